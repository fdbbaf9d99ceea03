"""Mixes of metrics and structure maps that a cross-validation chooses among: weights, smoothness, start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPARED = "compared"
"""Stands for the member that compares maps of both images: `shapes`, or `anatomy` where a bank has no `shapes`."""


@dataclass(frozen=True)
class Mix:
    """Weights of members of maps against one metric, factor of the smoothness, and whether maps act earlier too.

    ``coarse`` gives the first member's maps a weight in the levels: ``levels`` times that of all metrics together.
    ``start`` lays structures on each other first, ``longer`` makes so many times the steps of the refinement. With
    ``apart`` the background has a column of its own: that of the images, with the smoothness of the preset.
    """

    maps: Mapping[str, float]
    smoother: float
    coarse: bool = False
    start: bool = False
    levels: float = 1.0
    longer: int = 1
    apart: bool = False

    @property
    def name(self) -> str:
        """How results and models call it."""
        parts = [f"{member} {factor:g}" for member, factor in self.maps.items()]
        weight = "" if self.levels == 1.0 else f" {self.levels:g}"
        parts += [f"{next(iter(self.maps))}-coarse{weight}"] if self.coarse else []
        parts += ["structures"] if self.start else []
        parts += ["background apart"] if self.apart else []
        return ", ".join(parts) + f" × {self.smoother:g}" + ("" if self.longer == 1 else f", {self.longer} × steps")


LEARNED, MASKED = "learned", "learned, mask"
"""Rungs without and with the moving mask."""
MIXES = {
    "fine": {
        LEARNED: (Mix({COMPARED: 8}, 0.25), Mix({COMPARED: 32}, 0.25)),
        MASKED: (Mix({"outline": 4}, 0.5), Mix({"outline": 8}, 0.5), Mix({"outline": 8, COMPARED: 4}, 0.25)),
    },
    "longer": {
        LEARNED: (Mix({COMPARED: 32}, 0.25, longer=2), Mix({COMPARED: 32}, 0.125, longer=2)),
        MASKED: (
            Mix({"outline": 8}, 0.25, longer=2),
            Mix({"outline": 8, COMPARED: 8}, 0.25, longer=2),
            Mix({COMPARED: 32}, 0.25),
        ),
    },
    "coarse": {
        LEARNED: (Mix({COMPARED: 2}, 0.5, coarse=True), Mix({COMPARED: 8}, 0.5, coarse=True)),
        MASKED: (Mix({"outline": 2}, 1.0, coarse=True), Mix({"outline": 8}, 1.0, coarse=True)),
    },
    "started": {
        LEARNED: (
            Mix({COMPARED: 8}, 0.5, coarse=True, start=True),
            Mix({COMPARED: 32}, 0.25, coarse=True, start=True),
        ),
        MASKED: (
            Mix({"outline": 8}, 0.5, coarse=True, start=True),
            Mix({"outline": 8, COMPARED: 4}, 0.25, coarse=True, start=True),
        ),
    },
    "laid": {
        LEARNED: (Mix({COMPARED: 8}, 0.25, start=True), Mix({COMPARED: 32}, 0.25, start=True)),
        MASKED: (Mix({"outline": 8}, 0.5, start=True), Mix({"outline": 8}, 0.25, start=True)),
    },
    "apart": {
        LEARNED: (Mix({COMPARED: 8}, 0.25, apart=True), Mix({COMPARED: 32}, 0.25, apart=True)),
        MASKED: (
            Mix({"outline": 4}, 0.5, apart=True),
            Mix({"outline": 8}, 0.5, apart=True),
            Mix({"outline": 8, COMPARED: 4}, 0.25, apart=True),
        ),
    },
    "coarse-apart": {
        LEARNED: (Mix({COMPARED: 32}, 0.25, coarse=True, apart=True),),
        MASKED: (Mix({"outline": 8}, 0.5, coarse=True, apart=True),),
    },
    "started-apart": {
        LEARNED: (Mix({COMPARED: 32}, 0.25, coarse=True, start=True, apart=True),),
        MASKED: (Mix({"outline": 8, COMPARED: 4}, 0.25, coarse=True, start=True, apart=True),),
    },
    "far": {
        LEARNED: (
            Mix({COMPARED: 32}, 0.25, coarse=True, start=True, longer=3),
            Mix({COMPARED: 32}, 0.25, coarse=True, start=True, levels=8.0, longer=3),
        ),
        MASKED: (
            Mix({"outline": 8, COMPARED: 8}, 0.25, coarse=True, start=True, longer=3),
            Mix({"outline": 8, COMPARED: 8}, 0.25, coarse=True, start=True, levels=8.0, longer=3),
        ),
    },
}
"""Families of mixes by rung.

``fine`` uses maps in the refinement alone, ``longer`` gives it more steps, ``coarse`` uses them in the levels too,
``laid`` lays the structures of both images on each other first, ``started`` does so and uses them in the levels, and
``far`` lets maps lead the levels after that.
``apart``, ``coarse-apart`` and ``started-apart`` leave the background to the images.
"""
