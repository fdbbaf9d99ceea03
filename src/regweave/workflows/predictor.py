"""The class predictor of a model, trained on the moving images of its training pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regweave.io.manifest import PairFiles
from regweave.learning.class_predictor import ClassPredictor
from regweave.pyramid.intensity import Modality
from regweave.types import Geometry
from regweave.workflows.inputs import Reading

BYTES_PER_VOXEL = 8.0
"""An image and its labels in memory."""


@dataclass(frozen=True)
class MovingImage:
    """A moving image of the list: a pair that has it, and the patient it shows."""

    pair: PairFiles
    patient: str


def moving_images(pairs: Sequence[PairFiles], hashes: Callable[[PairFiles], Mapping[str, str]]) -> list[MovingImage]:
    """Each moving image once, whatever its name.

    A pair of two patients does not say which of them its moving image shows; those that all pairs with this image
    have in common do, mostly.
    """
    patients: dict[str, set[str]] = {}
    for pair in pairs:
        for column in ("fixed", "moving"):
            known = patients.setdefault(hashes(pair)[column], set(pair.patients))
            known &= set(pair.patients)
    first: dict[str, PairFiles] = {}
    for pair in pairs:
        first.setdefault(hashes(pair)["moving"], pair)
    return [MovingImage(pair, "+".join(sorted(patients[file])) or pair.group) for file, pair in first.items()]


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


def fit_predictor(
    images: Sequence[MovingImage],
    grids: Mapping[str, Geometry],
    reading: Reading,
    classes: tuple[int, ...],
    modality: Modality,
    *,
    seed: int,
    max_memory_mb: float,
) -> ClassPredictor:
    """Train on as many images as the memory holds, chosen at random.

    Raises
    ------
    ValueError
        Where a class is too small to be seen at working resolution.
    """
    sizes = [BYTES_PER_VOXEL * float(np.prod(grids[i.pair.id].shape)) / 2**20 for i in images]
    chosen = [images[k] for k in within(sizes, max_memory_mb, np.random.default_rng(seed))]
    volumes = [reading.image(i.pair.moving) for i in chosen]
    labels = [reading.labels(i.pair.moving_labels, v.geometry) for i, v in zip(chosen, volumes, strict=True)]
    segmented = [found for found in labels if found is not None]
    return ClassPredictor.fit(volumes, segmented, classes, modality, seed, [i.patient for i in chosen])
