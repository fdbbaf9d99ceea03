"""Voxel classifier used as a substitute for a missing moving segmentation.

A small classifier of voxels, trained on the images and label maps that also train the weights. It decides which
column of W a node uses, for which a rough outline is enough, and its maps of both images are what the metric `anatomy`
compares; it is no segmentation tool.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import ndimage

from regweave.predictors import voxel_features as see
from regweave.predictors.perceptron import Perceptron, fit_perceptron
from regweave.spatial.pyramid import shrink, shrink_geometry
from regweave.types import Float32Array, Float64Array, IntArray, LabelArray, LabelMap, Modality, StructureMaps, Volume

SAMPLES = 40_000
"""Voxels to train on, shared among images and classes."""
BACKGROUND_SHARES = 4
"""The background is as varied as many structures and gets this many shares of the samples."""
HIDDEN = 48
PENALTY = 5e-4
STEPS = 200
FOLDS = 3
SCORED_IMAGES = 12
"""Held-out images that are scored, at most."""
RARITY = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Powers of the class frequencies that are tried: 0 takes classes as equally likely, 1 as often as they occur."""
DEFAULT_RARITY = 0.75
BLUR_VOXELS = 0.7
"""Blur of outlines, in working voxels: what the classifier tells has no sharper edges."""


@dataclass(frozen=True)
class ClassPredictor:
    """Tells the classes of the voxels of an image.

    Parameters
    ----------
    classes : tuple of ints
        Label values, the background 0 first.
    modality : "ct" or "mr"
        How intensities are mapped.
    voxel_mm : float
        Size of the voxels that it works on.
    perceptron : Perceptron
        The classifier.
    names : mapping
        Names of the classes by label value.
    record : mapping
        What held-out images say: ``dice`` by class, their ``mean_dice``, ``accuracy``, ``n_images``, the ``rarity``
        that they chose; only the last where there was nothing to hold out.
    """

    classes: tuple[int, ...]
    modality: Modality
    voxel_mm: float
    perceptron: Perceptron
    names: Mapping[int, str] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        volumes: Sequence[Volume],
        label_maps: Sequence[LabelMap],
        classes: tuple[int, ...],
        modality: Modality,
        seed: int = 0,
        groups: Sequence[Hashable] | None = None,
        rarity: float | None = None,
    ) -> ClassPredictor:
        """Train on segmented images.

        Parameters
        ----------
        volumes, label_maps : sequences of the same length
            Images and their segmentations on the same grids.
        classes : tuple of ints
            Label values, 0 first; labels without a place here count as background.
        modality : "ct" or "mr"
            How intensities are mapped.
        seed : int
            Draws the voxels and the starting point; the same seed gives the same numbers.
        groups : sequence, optional
            Patient of each image, so that one patient is never both trained on and held out. By default each image
            is a patient.
        rarity : float, optional
            Use this power of the class frequencies; without it, held-out images choose it.

        Returns
        -------
        ClassPredictor
            Trained on all images; its record comes from up to three folds that held patients out.
        """
        _check(volumes, label_maps, classes, groups)
        voxel_mm = see.working_voxel_mm([v.geometry for v in volumes])
        quota = SAMPLES // (len(volumes) * (len(classes) - 1 + BACKGROUND_SHARES))
        samples = [
            _draw(volume, _numbers(labels.data, classes), modality, voxel_mm, quota, np.random.default_rng([seed, n]))
            for n, (volume, labels) in enumerate(zip(volumes, label_maps, strict=True))
        ]
        _require_classes(samples, classes)
        names = {value: name for labels in label_maps for value, name in labels.names.items() if value in classes}

        def train(chosen: Sequence[int]) -> tuple[ClassPredictor, Float64Array]:
            found = _train([samples[n] for n in chosen], len(classes), np.random.default_rng([seed, len(volumes)]))
            return cls(classes, modality, voxel_mm, found[0], names), found[1]

        scores = []
        for rest, held_out in _folds(groups or range(len(volumes))) if rarity is None else ():
            part, odds = train(rest)
            scores += [_score(part, odds, volumes[n], _numbers(label_maps[n].data, classes)) for n in held_out]
        record = _record(scores, classes) if rarity is None else {"rarity": rarity}
        whole, odds = train(range(len(volumes)))
        perceptron = whole.perceptron.with_bias(record["rarity"] * odds)
        return cls(classes, modality, voxel_mm, perceptron, names, record)

    def predict(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel, on the grid of the image."""
        scores, grid = self.scores(volume)
        labels = np.array(self.classes, dtype=np.int32)[scores.argmax(axis=0)]
        return LabelMap(grid.fine(labels), volume.geometry, self.names)

    def anatomy(self, volume: Volume) -> StructureMaps:
        """Return how likely each structure is, on the working grid laid along the axes of the image."""
        scores, grid = self.scores(volume)
        likely = np.exp(scores - scores.max(axis=0))
        shares = np.asarray(grid.along_image(likely[1:] / likely.sum(axis=0)), dtype=np.float32)
        return StructureMaps(shares, shrink_geometry(volume.geometry, grid.factors))

    def outline(self, labels: LabelMap) -> StructureMaps:
        """Return labels as `anatomy` gives an image: the share of each structure in a working voxel, blurred."""
        grid = see.WorkingGrid.of(labels.geometry, self.voxel_mm)
        masks = [shrink((labels.data == c).astype(np.float32), grid.factors) for c in self.classes[1:]]
        shares = [ndimage.gaussian_filter(m, BLUR_VOXELS, mode="nearest", truncate=3.0) for m in masks]
        return StructureMaps(np.stack(shares), shrink_geometry(labels.geometry, grid.factors))

    def scores(self, volume: Volume) -> tuple[Float32Array, see.WorkingGrid]:
        """Score of each class on the working grid, (C, blocks), and that grid."""
        grid = see.WorkingGrid.of(volume.geometry, self.voxel_mm)
        found = see.features(volume, grid, self.modality, self.voxel_mm)
        scores = self.perceptron.scores(found.reshape(len(found), -1).T)
        return np.ascontiguousarray(scores.T).reshape(-1, *found.shape[1:]), grid

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings that JSON can hold; `from_dict` gives back the same predictor."""
        return {
            "features": see.VERSION,
            "classes": list(self.classes),
            "names": {str(value): name for value, name in self.names.items()},
            "modality": self.modality,
            "voxel_mm": self.voxel_mm,
            "perceptron": self.perceptron.to_dict(),
            "record": dict(self.record),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ClassPredictor:
        """Inverse of `to_dict`; KeyError or ValueError where something is missing or does not fit."""
        if content["features"] != see.VERSION:
            raise ValueError(f"class predictor with features {content['features']!r}, supported {see.VERSION}")
        classes = tuple(int(c) for c in content["classes"])
        perceptron = Perceptron.from_dict(content["perceptron"])
        if len(classes) != len(perceptron.output_bias):
            raise ValueError(f"{len(classes)} classes, but the classifier tells {len(perceptron.output_bias)}")
        expected = see.n_features(content["modality"])
        if perceptron.hidden.shape[0] != expected:
            raise ValueError(f"{perceptron.hidden.shape[0]} features, {content['modality']} images have {expected}")
        names = {int(value): str(name) for value, name in content["names"].items()}
        voxel_mm = float(content["voxel_mm"])
        return cls(classes, content["modality"], voxel_mm, perceptron, names, dict(content["record"]))


@dataclass(frozen=True)
class _Sample:
    """Voxels drawn from one image: features (n, F), class numbers (n,), and how often each class occurs, (C,)."""

    features: Float32Array
    numbers: IntArray
    occurrence: Float64Array


def _numbers(labels: LabelArray, classes: tuple[int, ...]) -> IntArray:
    """Place of each label among the classes; 0, the background, for labels that have none."""
    out = np.zeros(labels.shape, dtype=np.int32)
    for number, value in enumerate(classes[1:], start=1):
        out[labels == value] = number
    return out


def _draw(
    volume: Volume, numbers: IntArray, modality: Modality, voxel_mm: float, quota: int, rng: np.random.Generator
) -> _Sample:
    """Draw up to ``quota`` working voxels of each class; a block has the class of most of its voxels."""
    grid = see.WorkingGrid.of(volume.geometry, voxel_mm)
    found = see.features(volume, grid, modality, voxel_mm)
    present = np.unique(numbers)
    coarse = present[np.argmax([grid.coarse((numbers == c).astype(np.float32)) for c in present], axis=0)].ravel()
    chosen = []
    for c in np.unique(coarse):
        voxels = np.flatnonzero(coarse == c)
        wanted = max(1, quota) * (BACKGROUND_SHARES if c == 0 else 1)
        chosen.append(rng.choice(voxels, min(wanted, len(voxels)), replace=False))
    rows = np.concatenate(chosen)
    return _Sample(found.reshape(len(found), -1).T[rows], coarse[rows], np.bincount(coarse).astype(np.float64))


def _train(samples: Sequence[_Sample], n_classes: int, rng: np.random.Generator) -> tuple[Perceptron, Float64Array]:
    """Fit the classifier to balanced samples; the log odds (C,) of true to sampled frequencies come with it."""
    x = np.concatenate([s.features for s in samples]).astype(np.float64)
    numbers = np.concatenate([s.numbers for s in samples])
    found = fit_perceptron(x, numbers, n_classes, HIDDEN, PENALTY, STEPS, rng)
    true = np.sum([np.pad(s.occurrence, (0, n_classes - len(s.occurrence))) for s in samples], axis=0)
    sampled = np.bincount(numbers, minlength=n_classes)
    # Half a voxel stands for a class that these images lack.
    ratio = np.maximum(true, 0.5) / true.sum() * sampled.sum() / np.maximum(sampled, 0.5)
    return found, np.log(ratio)


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


def _score(part: ClassPredictor, odds: Float64Array, volume: Volume, truth: IntArray) -> Float64Array:
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
    """Choose the rarity with the best mean Dice of the structures, and say what it reached."""
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


def _require_classes(samples: Sequence[_Sample], classes: tuple[int, ...]) -> None:
    seen = set(np.concatenate([s.numbers for s in samples]).tolist())
    missing = [value for number, value in enumerate(classes) if number not in seen]
    if missing:
        raise ValueError(f"no training label map shows class {missing} at working resolution; leave it out of classes")


def _check(
    volumes: Sequence[Volume],
    label_maps: Sequence[LabelMap],
    classes: tuple[int, ...],
    groups: Sequence[Hashable] | None,
) -> None:
    if not volumes or len(volumes) != len(label_maps) or (groups is not None and len(groups) != len(volumes)):
        n_groups = "none" if groups is None else len(groups)
        raise ValueError(
            f"{len(volumes)} images, {len(label_maps)} label maps, groups: {n_groups}; give as many of each"
        )
    if len(classes) < 2 or classes[0] != 0 or len(set(classes)) != len(classes):
        raise ValueError(f"classes are {classes}; give 0, the background, then each structure once")
    for n, (volume, labels) in enumerate(zip(volumes, label_maps, strict=True)):
        if volume.data.shape != labels.data.shape:
            shapes = f"{volume.data.shape} and {labels.data.shape}"
            raise ValueError(f"image {n} and its label map have shapes {shapes}; resample one onto the other")
