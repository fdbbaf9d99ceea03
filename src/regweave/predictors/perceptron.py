"""Voxel classifier that predicts the structures of an image without a segmentation: a perceptron with one hidden layer.

Voxels of segmented images are drawn on a coarse grid, the same number from each class. The perceptron is fitted to
their features. Held-out images choose the influence of the true class frequencies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from regweave import _core, registry
from regweave.predictors import Classes, Examples, Names, Parts, Predictor, VoxelMm, _features as see
from regweave.spatial.control_grid import numbers_of
from regweave.spatial.voxels import shrink_geometry
from regweave.types import Float32Array, Float64Array, IntArray, LabelMap, Modality, StructureMaps, Volume

BACKGROUND_SHARES = 4  # shares of the samples for the background, which is as varied as many structures
FOLDS = 3
SCORED_IMAGES = 12  # held-out images that are scored, at most
RARITY = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Powers of the class frequencies to try: 0 makes classes equally likely, 1 as likely as they occur."""
DEFAULT_RARITY = 0.75
ROWS = 64
"""Rows multiplied at a time: too few for a BLAS to share among threads, so results do not depend on their number.

OpenBLAS shares products of more than 262144 multiplications; 64 rows of 48 hidden units and 46 features have 141312.
"""
BLOCKS = 512
"""Blocks of rows that are scored at a time: the hidden layer of a whole image would be many times larger than it."""


class Options(registry.Options):
    """Size and regularisation."""

    hidden: int = Field(default=48, ge=1, le=256)
    """Units of the hidden layer."""
    penalty: float = Field(default=5e-4, ge=0, le=1)
    """Weight of the squares of both layers."""
    samples: int = Field(default=40_000, ge=1, le=10_000_000)
    """Voxels to train on, shared among images and classes."""
    steps: int = Field(default=200, ge=1, le=100_000)
    """Iterations of L-BFGS; stopping short of the minimum is part of the regularisation."""


@dataclass(frozen=True)
class Perceptron:
    """Scores of the classes: ``tanh(x·hidden + hidden_bias)·output + output_bias``."""

    hidden: Float64Array
    hidden_bias: Float64Array  # first layer, on raw features
    output: Float64Array
    output_bias: Float64Array  # second layer

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.hidden)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.output_bias)

    def scores(self, x: Float32Array) -> Float32Array:
        """Score of each class, (n, C), for features (n, F)."""
        w, b, v, c = (p.astype(np.float32) for p in (self.hidden, self.hidden_bias, self.output, self.output_bias))
        out = np.empty((len(x), self.n_classes), dtype=np.float32)
        for begin in range(0, len(x), ROWS * BLOCKS):
            rows = x[begin : begin + ROWS * BLOCKS]
            padded = np.zeros((-(-len(rows) // ROWS) * ROWS, x.shape[1]), dtype=x.dtype)
            padded[: len(rows)] = rows
            part = np.tanh(padded.reshape(-1, ROWS, x.shape[1]) @ w + b) @ v + c
            out[begin : begin + len(rows)] = part.reshape(-1, self.n_classes)[: len(rows)]
        return out

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the layers by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Perceptron:
        """Inverse of `arrays`; KeyError or ValueError where the layers do not fit each other."""
        w, b, v, c = (arrays[name] for name in cls.__dataclass_fields__)
        if w.ndim != 2 or v.ndim != 2 or b.shape != (w.shape[1],) or v.shape != (len(b), len(c)) or c.ndim != 1:
            raise ValueError(f"layers of shapes {w.shape}, {b.shape}, {v.shape}, {c.shape} do not fit")
        return cls(w, b, v, c)


class Saved(BaseModel):
    """Fields of a saved predictor."""

    features: Literal[2, 3]
    classes: Classes
    names: Names
    modality: Modality
    voxel_mm: VoxelMm
    unit_mm: VoxelMm | None = Field(default=None, exclude_if=lambda unit: unit is None)

    @property
    def sizes(self) -> see.Sizes:
        """Voxel size and unit; one length serves for both in the older version of the features."""
        if self.features == see.SAME_UNIT_VERSION:
            return see.Sizes(self.voxel_mm, self.voxel_mm)
        if self.unit_mm is None:
            raise ValueError("unit_mm is missing")
        return see.Sizes(self.voxel_mm, self.unit_mm)


@dataclass(frozen=True)
class VoxelPredictor:
    """Fitted classifier of the voxels of an image."""

    classes: tuple[int, ...]  # label values, the background 0 first
    modality: Modality  # how intensities are mapped
    sizes: see.Sizes  # working voxel size, and the unit of the features
    classifier: Perceptron  # scores of the classes by the features of a voxel
    names: Mapping[int, str] = field(default_factory=dict)  # names of the classes by label value
    record: Mapping[str, Any] = field(default_factory=dict)
    """Results on held-out images: ``dice`` by class, ``mean_dice``, ``accuracy``, ``n_images`` and the chosen
    ``rarity``; only the last where no image was held out."""

    @property
    def voxel_mm(self) -> float:
        """Size of the working voxels."""
        return self.sizes.voxel_mm

    @property
    def trained_mm(self) -> float | None:
        """Size of the training voxels, which are the working voxels; None where those were enlarged."""
        return None if self.sizes.limited else self.voxel_mm

    def labels(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel, on the grid of the image."""
        scores, grid = self.scores(volume)
        labels = np.array(self.classes, dtype=np.int32)[scores.argmax(axis=0)]
        return LabelMap(grid.fine(labels), volume.geometry, self.names)

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the probability of each structure, on the working grid along the axes of the image."""
        scores, grid = self.scores(volume)
        likely = np.exp(scores - scores.max(axis=0))
        shares = np.asarray(grid.along_image(likely[1:] / likely.sum(axis=0)), dtype=np.float32)
        return StructureMaps(shares, shrink_geometry(volume.geometry, grid.factors), self.classes[1:])

    def scores(self, volume: Volume) -> tuple[Float32Array, see.WorkingGrid]:
        """Score of each class on the working grid, (C, blocks), and that grid."""
        grid = see.WorkingGrid.of(volume.geometry, self.voxel_mm)
        found = see.features(volume, grid, self.modality, self.sizes.unit_mm)
        scores = self.classifier.scores(found.reshape(len(found), -1).T)
        return np.ascontiguousarray(scores.T).reshape(-1, *found.shape[1:]), grid

    def save(self) -> Parts:
        """Return the parts from which `load` restores the same predictor."""
        same = self.sizes.unit_mm == self.sizes.voxel_mm
        saved = Saved(
            features=see.SAME_UNIT_VERSION if same else see.VERSION,
            classes=self.classes,
            names=dict(self.names),
            modality=self.modality,
            voxel_mm=self.voxel_mm,
            unit_mm=None if same else self.sizes.unit_mm,
        )
        return Parts("perceptron", saved.model_dump(mode="json"), self.classifier.arrays(), self.record)


def load(parts: Parts) -> VoxelPredictor:
    """Return the predictor that was saved; KeyError or ValueError where a part is missing or does not fit."""
    saved, classifier = Saved.model_validate(parts.fields), Perceptron.of(parts.arrays)
    if len(saved.classes) != classifier.n_classes:
        raise ValueError(f"{len(saved.classes)} classes, but the classifier has {classifier.n_classes}")
    expected = see.n_features(saved.modality)
    if classifier.n_features != expected:
        raise ValueError(f"{classifier.n_features} features, {saved.modality} images have {expected}")
    return VoxelPredictor(saved.classes, saved.modality, saved.sizes, classifier, saved.names, dict(parts.record))


def fit(examples: Examples, options: Options, like: Predictor | None) -> VoxelPredictor:
    """Fit to segmented images; ``like`` gives the power of the class frequencies, else held-out images choose it.

    The predictor is fitted to all images. Its record comes from up to three folds with held-out patients.
    """
    examples.check()
    volumes, label_maps, classes, seed = examples.volumes, examples.label_maps, examples.classes, examples.seed
    sizes = see.Sizes.of([v.geometry for v in volumes])
    quota = options.samples // (len(volumes) * (len(classes) - 1 + BACKGROUND_SHARES))
    numbers = [numbers_of(labels.data, classes) for labels in label_maps]
    samples = [
        _draw(volume, numbers[n], examples.modality, sizes, quota, np.random.default_rng([seed, n]))
        for n, volume in enumerate(volumes)
    ]
    require_classes((found for _, found, _ in samples), classes)
    names = {value: name for labels in label_maps for value, name in labels.names.items() if value in classes}

    def train(chosen: Sequence[int]) -> tuple[VoxelPredictor, Float64Array]:
        rng = np.random.default_rng([seed, len(volumes)])
        classifier, odds = _train([samples[n] for n in chosen], len(classes), options, rng)
        return VoxelPredictor(classes, examples.modality, sizes, classifier, names), odds

    folds = _folds(examples.groups or range(len(volumes))) if like is None else []
    with ThreadPoolExecutor(_core.threads()) as pool:  # a fit depends on its samples alone; the longest comes first
        (whole, odds), *parts = pool.map(train, [range(len(volumes)), *(rest for rest, _ in folds)])
    scores = []
    for (part, sampled_odds), (_, held_out) in zip(parts, folds, strict=True):
        scores += [_score(part, sampled_odds, volumes[n], numbers[n]) for n in held_out]
    record = _record(scores, classes) if like is None else {"rarity": like.save().record["rarity"]}
    chosen = replace(whole.classifier, output_bias=whole.classifier.output_bias + record["rarity"] * odds)
    return replace(whole, classifier=chosen, record=record)


_Sample = tuple[Float32Array, IntArray, Float64Array]
"""Voxels drawn from one image: features (n, F), class numbers (n,), and how often each class occurs, (C,)."""


def _draw(
    volume: Volume, numbers: IntArray, modality: Modality, sizes: see.Sizes, quota: int, rng: np.random.Generator
) -> _Sample:
    """Draw up to ``quota`` working voxels of each class; a block has the class of most of its voxels."""
    grid = see.WorkingGrid.of(volume.geometry, sizes.voxel_mm)
    found = see.features(volume, grid, modality, sizes.unit_mm)
    present = np.unique(numbers)
    coarse = present[np.argmax([grid.coarse((numbers == c).astype(np.float32)) for c in present], axis=0)].ravel()
    chosen = []
    for c in np.unique(coarse):
        voxels = np.flatnonzero(coarse == c)
        wanted = max(1, quota) * (BACKGROUND_SHARES if c == 0 else 1)
        chosen.append(rng.choice(voxels, min(wanted, len(voxels)), replace=False))
    rows = np.concatenate(chosen)
    return found.reshape(len(found), -1).T[rows], coarse[rows], np.bincount(coarse).astype(np.float64)


def _train(
    samples: Sequence[_Sample], n_classes: int, options: Options, rng: np.random.Generator
) -> tuple[Perceptron, Float64Array]:
    """Fit the classifier to balanced samples; also return the log odds (C,) of true to sampled frequencies."""
    x = np.concatenate([features for features, _, _ in samples]).astype(np.float64)
    numbers = np.concatenate([found for _, found, _ in samples])
    classifier = fit_perceptron(x, numbers, n_classes, rng, options)
    true = np.sum([np.pad(counts, (0, n_classes - len(counts))) for _, _, counts in samples], axis=0)
    sampled = np.bincount(numbers, minlength=n_classes)
    # A class that these images lack counts as half a voxel.
    ratio = np.maximum(true, 0.5) / true.sum() * sampled.sum() / np.maximum(sampled, 0.5)
    return classifier, np.log(ratio)


def _folds(groups: Sequence[Hashable]) -> list[tuple[list[int], list[int]]]:
    """Images to train on and to hold out, by whole groups in turn; none where there is one group."""
    distinct = list(dict.fromkeys(groups))
    n_folds = min(FOLDS, len(distinct))
    if n_folds < 2:
        return []
    fold = [distinct.index(g) % n_folds for g in groups]
    split = [
        ([n for n, f in enumerate(fold) if f != k], [n for n, f in enumerate(fold) if f == k]) for k in range(n_folds)
    ]
    return [(rest, held_out[: SCORED_IMAGES // n_folds]) for rest, held_out in split]


def _score(part: VoxelPredictor, odds: Float64Array, volume: Volume, truth: IntArray) -> Float64Array:
    """Dice of each structure and, last, the share of right voxels, for each `RARITY`: (R, C)."""
    scores, grid = part.scores(volume)
    out = np.full((len(RARITY), len(odds)), np.nan)
    for r, power in enumerate(RARITY):
        found = grid.fine((scores + (power * odds).astype(np.float32)[:, None, None, None]).argmax(axis=0))
        for c in range(1, len(odds)):
            a, b = found == c, truth == c
            if b.any():
                out[r, c - 1] = 2 * (a & b).sum() / (a.sum() + b.sum())
        out[r, -1] = (found == truth).mean()
    return out


def _record(scores: Sequence[Float64Array], classes: tuple[int, ...]) -> dict[str, Any]:
    if not scores:
        return {"rarity": DEFAULT_RARITY}
    stacked = np.stack(scores)
    seen = ~np.isnan(stacked).all(axis=(0, 1))
    mean = np.full(stacked.shape[1:], np.nan)
    mean[:, seen] = np.nanmean(stacked[:, :, seen], axis=0)
    best = int(np.nanmean(mean[:, :-1], axis=1).argmax())
    dice = {str(c): float(d) for c, d in zip(classes[1:], mean[best], strict=False) if np.isfinite(d)}
    return {
        "rarity": RARITY[best],
        "dice": dice,
        "mean_dice": float(np.mean(list(dice.values()))),
        "accuracy": float(mean[best, -1]),
        "n_images": len(scores),
    }


def require_classes(numbers: Iterable[NDArray[Any]], classes: tuple[int, ...]) -> None:
    """Raise ValueError where a class does not occur among class numbers."""
    seen = {int(number) for found in numbers for number in np.unique(found)}
    missing = [value for number, value in enumerate(classes) if number not in seen]
    if missing:
        raise ValueError(f"no training label map shows class {missing} at working resolution; leave it out of classes")


def fit_perceptron(
    x: Float64Array, classes: IntArray, n_classes: int, rng: np.random.Generator, options: Options
) -> Perceptron:
    """Minimise the mean cross-entropy + ½ · penalty · |layers|² on standardised features (n, F) with classes (n,)."""
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    f, hidden = x.shape[1], options.hidden
    shapes = ((f, hidden), (hidden,), (hidden, n_classes), (n_classes,))
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    rows = np.ascontiguousarray((x - mean) / spread, dtype=np.float32)
    numbers = np.ascontiguousarray(classes, dtype=np.int32)
    start = [rng.normal(size=shapes[0]) / np.sqrt(f), np.zeros(hidden)]
    start += [0.1 * rng.normal(size=shapes[2]) / np.sqrt(hidden), np.zeros(n_classes)]

    def unpack(p: Float64Array) -> list[Float64Array]:
        return [part.reshape(shape) for part, shape in zip(np.split(p, cuts), shapes, strict=True)]

    def objective(p: Float64Array) -> tuple[float, Float64Array]:
        w, b, v, c = unpack(p)
        total, gradient = _core.perceptron_cross_entropy(rows, numbers, w, b, v, c)
        squares = np.concatenate([options.penalty * w.ravel(), 0.0 * b, options.penalty * v.ravel(), 0.0 * c])
        return total / len(rows) + 0.5 * float((squares * p).sum()), gradient / len(rows) + squares

    from scipy import optimize  # noqa: PLC0415 (a fifth of the program's start, and used by training alone)

    limits = {"maxiter": options.steps, "maxfun": 2 * options.steps}
    begin = np.concatenate([s.ravel() for s in start])
    found = optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", options=limits)
    w, b, v, c = unpack(found.x)
    return Perceptron(w / spread[:, None], b - (mean / spread) @ w, v, c)
