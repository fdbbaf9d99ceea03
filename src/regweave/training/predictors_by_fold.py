"""Out-of-fold class predictors: the model's own, and for each pair one that has seen none of its patients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regweave.datasets.manifest import PairFiles
from regweave.measures.overlap import dice
from regweave.pipeline.reading import Reading
from regweave.predictors import Choice, Examples, Predictor
from regweave.types import Geometry, Modality

BYTES_PER_VOXEL = 8.0
"""An image and its labels in memory."""
PARTS = 5
"""Parts into which the patients are dealt; a pair's predictor leaves out those of its own patients."""

SCORED_IMAGES = 12
"""Images whose segmentations are scored, at most."""


@dataclass(frozen=True)
class SegmentedImage:
    """An image of the list with its labels, its grid, and the patients that it may show."""

    image: Path
    labels: Path
    geometry: Geometry
    patients: frozenset[str]


def segmented_images(
    pairs: Sequence[PairFiles],
    hashes: Callable[[PairFiles], Mapping[str, str]],
    grids: Callable[[PairFiles], Mapping[str, Geometry]],
) -> list[SegmentedImage]:
    """Each image of the list once, whatever its name; moving images first.

    A pair of two patients does not say which of them an image shows; those that all pairs with this image have in
    common do, mostly.

    Parameters
    ----------
    pairs : sequence of PairFiles
        The list.
    hashes : callable
        SHA-256 of the files of a pair, by column.
    grids : callable
        Grids of the images of a pair, ``fixed`` and ``moving``.
    """
    patients: dict[str, set[str]] = {}
    for pair in pairs:
        for column in ("moving", "fixed"):
            known = patients.setdefault(hashes(pair)[column], set(pair.patients))
            known &= set(pair.patients)
    first: dict[str, SegmentedImage] = {}
    for column in ("moving", "fixed"):
        for pair in pairs:
            file = hashes(pair)[column]
            shown = frozenset(patients[file]) or frozenset(pair.patients)
            files = (getattr(pair, column), getattr(pair, f"{column}_labels"))
            first.setdefault(file, SegmentedImage(*files, grids(pair)[column], shown))
    return list(first.values())


def within(sizes: Iterable[float], limit: float, rng: np.random.Generator, most: int | None = None) -> list[int]:
    """Choose places at random until their sizes reach a limit, at least one, at most so many; ascending.

    Examples
    --------
    >>> within([3.0, 3.0, 3.0], 7.0, np.random.default_rng(0))
    [0, 2]
    """
    listed = list(sizes)
    order = rng.permutation(len(listed))[:most]
    total = np.cumsum([listed[i] for i in order])
    n = max(1, int((total <= limit).sum()))
    return sorted(int(i) for i in order[:n])


class Predictors:
    """Fits class predictors to the images of a list, each when it is first asked for.

    Parameters
    ----------
    images : sequence of SegmentedImage
        What to learn from.
    reading : Reading
        How files are read.
    classes : tuple of ints
        Label values, 0 first.
    modality : "ct" or "mr"
        How intensities are mapped.
    kind : Choice
        Kind of predictor and its options.
    seed : int
        Draws voxels, images and parts.
    max_memory_mb : float
        Images are drawn at random until they fill it.
    """

    def __init__(
        self,
        images: Sequence[SegmentedImage],
        reading: Reading,
        classes: tuple[int, ...],
        modality: Modality,
        *,
        kind: Choice,
        seed: int,
        max_memory_mb: float,
    ) -> None:
        self._images, self._reading, self._classes, self._modality = images, reading, classes, modality
        self.kind, self._seed, self._max_memory_mb = kind, seed, max_memory_mb
        names = sorted({name for image in images for name in image.patients})
        order = np.random.default_rng(seed).permutation(len(names))
        self._part = {names[place]: number % PARTS for number, place in enumerate(order)}
        self._known: dict[frozenset[int], Predictor | None] = {}

    @cached_property
    def whole(self) -> Predictor:
        """The predictor of all patients.

        Raises
        ------
        ValueError
            Where a class is too small to be seen at working resolution, or there are no images.
        """
        return self._fit(self._images, None)

    def without(self, shown: PairFiles | SegmentedImage) -> Predictor | None:
        """Return a predictor that knows no patient of a pair or image; None where too little is left to learn from."""
        parts = frozenset(self._part[name] for name in shown.patients if name in self._part)
        if parts not in self._known:
            left = [i for i in self._images if not parts & {self._part[name] for name in i.patients}]
            try:
                self._known[parts] = self._fit(left, self.whole) if left else None
            except ValueError:
                self._known[parts] = None
        return self._known[parts]

    def left_out(self) -> dict[str, Any]:
        """Score segmentations of some images, each by a predictor that knows none of its patients.

        Returns
        -------
        dict
            ``dice`` by class, their ``mean_dice``, and ``n_images``; empty where no predictor could be judged.
        """
        order = np.random.default_rng([self._seed, 1]).permutation(len(self._images))
        found: dict[int, list[float]] = {}
        n = 0
        for image in (self._images[k] for k in sorted(order[:SCORED_IMAGES])):
            predictor = self.without(image)
            volume = self._reading.image(image.image)
            truth = self._reading.labels(image.labels, volume.geometry)
            if predictor is None or truth is None:
                continue
            n += 1
            shown = [c for c in self._classes[1:] if (truth.data == c).any()]
            for c, value in dice(predictor.labels(volume), truth, shown).items():
                found.setdefault(c, []).append(value)
        means = {str(c): float(np.mean(values)) for c, values in sorted(found.items())}
        return {"dice": means, "mean_dice": float(np.mean(list(means.values()))), "n_images": n} if means else {}

    def _fit(self, images: Sequence[SegmentedImage], like: Predictor | None) -> Predictor:
        if not images:
            raise ValueError("there are no images to learn it from")
        sizes = [BYTES_PER_VOXEL * float(np.prod(i.geometry.shape)) / 2**20 for i in images]
        chosen = [images[k] for k in within(sizes, self._max_memory_mb, np.random.default_rng(self._seed))]
        volumes = [self._reading.image(i.image) for i in chosen]
        labels = [self._reading.labels(i.labels, v.geometry) for i, v in zip(chosen, volumes, strict=True)]
        segmented = [found for found in labels if found is not None]
        patients = ["+".join(sorted(i.patients)) for i in chosen]
        examples = Examples(volumes, segmented, self._classes, self._modality, self._seed, patients)
        return self.kind.fit(examples, like)
