"""Commissioning: phantoms with known maps, propagated and measured against limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regweave import notices
from regweave.clinic.inputs import Sources
from regweave.clinic.phantom import (
    SHAPE,
    SPACING_MM,
    Map,
    PhantomScan,
    inner_points,
    make_scan,
    rigid_map,
    shrunken,
    smooth_map,
)
from regweave.clinic.propagate import ContoursRequest, Propagation, propagate
from regweave.contours import dice_of_areas
from regweave.io.disk.records import this_program
from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Structure

COUCH_MM = (7.3, -11.6, 4.2)
"""Where the couch stands today."""
POINTS, DEPTH_MM = 400, 8.0
"""Points whose error is measured, and how far below the skin they lie: at the skin itself there is nothing to see."""
TG132 = "AAPM TG-132 as quoted by Latifi et al. 2018 (PMC6036411)"
SITE = "site: our suggestion, in no report"
LIMITS: Mapping[str, tuple[tuple[str, str, float, str], ...]] = {
    "rigid": (
        (
            "mean_mm",
            "mean error of points, mm",
            0.5 * max(SPACING_MM),
            f"{TG132}: half a voxel, here of its longest edge, for a rigid phantom",
        ),
        ("least_dice", "lowest Dice of an organ (at least)", 0.95, SITE),
    ),
    "deformable": (
        ("mean_mm", "mean error of points, mm", 2.0, f"{TG132}: mean of at most 2 mm"),
        ("max_mm", "largest error of a point, mm", 5.0, f"{TG132}: at most 5 mm"),
        ("least_dice", "lowest Dice of an organ (at least)", 0.90, SITE),
        ("folding_percent", "voxels folded, %", 0.0, SITE),
    ),
}
"""By kind of trial: number, words, limit and its source; a Dice must be above its limit, the others below."""


@dataclass(frozen=True)
class PhantomTrial:
    """One phantom: what is done to it, by which map, and whether it is rigid."""

    name: str
    words: str
    where: Map
    kind: str = "deformable"
    along_mm: Float64Array | None = None


def even_slices() -> Float64Array:
    """Return the positions of the plan's slices."""
    return np.asarray((np.arange(float(SHAPE[2])) - (SHAPE[2] - 1) / 2) * SPACING_MM[2], dtype=np.float64)


def trials(seed: int) -> tuple[PhantomTrial, ...]:
    """Return the trials of a commissioning."""
    rng = np.random.default_rng(seed)

    def random(amplitude_mm: float) -> Map:
        return smooth_map(int(rng.integers(1 << 30)), amplitude_mm)

    even = even_slices()
    uneven = np.asarray(even + np.where(np.arange(len(even)) % 4 == 1, 1.2, 0.0))
    short = even[6:-4]
    return (
        PhantomTrial("same", "the same scan at another couch position", lambda p: p, "rigid"),
        PhantomTrial("shift", "shifted by no whole number of voxels", rigid_map(0.0, (5.3, -3.7, 4.1)), "rigid"),
        PhantomTrial("turn", "turned by 4 degrees and shifted", rigid_map(4.0, (3.1, 2.3, -3.4)), "rigid"),
        PhantomTrial("deformed 1", "smooth deformation of up to 8 mm", random(8.0)),
        PhantomTrial("deformed 2", "smooth deformation of up to 8 mm", random(8.0)),
        PhantomTrial("shrunken", "an organ smaller by 15 % along each axis", shrunken("gland-like", 0.15)),
        PhantomTrial("uneven", "deformed, and slices at uneven distances", random(6.0), along_mm=uneven),
        PhantomTrial("shortened", "deformed, and fewer slices than the plan", random(6.0), along_mm=short),
    )  # fmt: skip


def commission(seed: int = 0, on_trial: Callable[[str, float], None] | None = None) -> dict[str, Any]:
    """Run all trials.

    Parameters
    ----------
    seed : int
        Chooses the random deformations.
    on_trial : callable, optional
        Told the trial that begins, and the share that is done.

    Returns
    -------
    dict
        The record of the commissioning, as JSON values.
    """
    even = even_slices()
    plan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=even, name="PLAN", seed=0)
    rows, chosen = [], trials(seed)
    for n, trial in enumerate(chosen):
        if on_trial is not None:
            on_trial(trial.name, n / len(chosen))
        along = even if trial.along_mm is None else trial.along_mm
        today = make_scan(trial.where, shift_mm=COUCH_MM, along_mm=along, name="TODAY", seed=n + 1)
        with notices.muted():
            done = propagate(ContoursRequest(Sources(plan.series, today.series, plan.structures)))
        rows.append(judged(trial, measured(trial, done, today)))
    word = "pass" if all(row["word"] == "pass" for row in rows) else "fail"
    return {"seed": seed, "word": word, "trials": rows, "program": dict(this_program()), "phantom": _phantom_words()}


def measured(trial: PhantomTrial, done: Propagation, today: PhantomScan) -> dict[str, Any]:
    """Compare a propagation with what is known: points of the body, and outlines of the organs."""
    points = inner_points(DEPTH_MM, POINTS, 5)
    low, high = (today.series.slices[k].along_mm - COUCH_MM[2] for k in (0, -1))
    points = points[(points[:, 2] > low + 12.0) & (points[:, 2] < high - 12.0)]
    found = warp_points(points + np.asarray(COUCH_MM), done.transform)
    errors = np.linalg.norm(found - trial.where(points), axis=1)
    dice = {}
    for drawn in today.structures.structures:
        one, beyond = done.structures.named(drawn.name), _beyond_plan(drawn, trial.where)
        true = _without(drawn, beyond)
        dice[drawn.name] = 0.0 if one is None else float(dice_of_areas(_without(one, beyond), true, today.series))
    return {
        "points": len(errors),
        "mean_mm": float(errors.mean()),
        "p95_mm": float(np.percentile(errors, 95)),
        "max_mm": float(errors.max()),
        "dice": dice,
        "least_dice": min(dice.values()),
        "folding_percent": 100 * done.result.regularity["folding_fraction"],
        "seconds": float(sum(done.result.seconds.values())),
    }


def _beyond_plan(true: Structure, where: Map) -> frozenset[int | None]:
    """Slices of today on which a structure reaches beyond the ends of the plan, where nothing can be carried from."""
    half = SHAPE[2] * SPACING_MM[2] / 2
    return frozenset(c.image for c in true.contours if np.abs(where(c.points_mm - COUCH_MM)[:, 2]).max() > half)


def _without(structure: Structure, images: frozenset[int | None]) -> Structure:
    return replace(structure, contours=tuple(c for c in structure.contours if c.image not in images))


def judged(trial: PhantomTrial, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial with its numbers, its limits and whether it passes."""
    checks = []
    for key, words, limit, source in LIMITS[trial.kind]:
        value = float(numbers[key])
        good = value >= limit if key == "least_dice" else value <= limit
        checks.append(
            {"words": words, "value": value, "limit": limit, "source": source, "word": "pass" if good else "fail"}
        )
    word = "pass" if all(check["word"] == "pass" for check in checks) else "fail"
    return {"name": trial.name, "what": trial.words, "kind": trial.kind, "word": word, "checks": checks, **numbers}


def _phantom_words() -> str:
    size, spacing = (" × ".join(f"{n:g}" for n in part) for part in (SHAPE, SPACING_MM))
    return f"{size} voxels of {spacing} mm; body, three bones, five organs, texture of 18 HU, noise of 8 HU, couch"
