"""Domain of a model: what its training images show, and how another image differs from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from regweave.io.disk.records import Count, Number, RecordPart, Text
from regweave.io.geometry import Orientation
from regweave.spatial.voxels import apply_window, default_window
from regweave.types import Float64Array, Geometry, LabelMap, Volume

AXES = ("left to right", "front to back", "along the body")
BLOCKS = 6  # blocks along each axis of an image, whose mean intensities are compared
EDGES_HU = np.array([-1e6, -950, -700, -200, -130, -20, 20, 60, 100, 150, 250, 500, 1e6])
EDGES_SHARE = np.array([-1.0, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 2.0])
"""Edges of the histogram of a CT, and of other images, whose window is mapped to [0, 1]."""
WIDER, NARROWER = 1.6, 0.35  # times that an image may be wider or narrower than the training images
COARSER = 2.5  # times that its voxels may be larger; finer ones are averaged by the network
HISTOGRAM_MARGIN, PATTERN_MARGIN = 0.15, 0.25
VOLUMES_APART = 3.0  # times that a structure may be larger or smaller than in any training image
Range = tuple[Number, Number]


@dataclass(frozen=True)
class ImageFacts:
    """What a domain compares of one image; axes are left, posterior, superior."""

    extent_mm: Float64Array
    spacing_mm: Float64Array
    histogram: Float64Array  # share of the voxels in each bin
    pattern: Float64Array  # mean intensity of each block, (216,)
    volumes_ml: Mapping[int, float]

    @classmethod
    def of(cls, image: Volume, labels: LabelMap | None = None) -> ImageFacts:
        """Measure an image without the padding round it, and the volumes of its structures."""
        assert image.modality is not None
        turned = _without_padding(Orientation.of(image.geometry).turned(image))
        window = default_window(turned.data, image.modality)
        shares = apply_window(turned.data, window if window[0] < window[1] else (window[0], window[0] + 1))
        values, edges = (turned.data, EDGES_HU) if image.modality == "ct" else (shares, EDGES_SHARE)
        counts = np.histogram(values, edges)[0]
        pattern: Float64Array = shares.astype(np.float64)
        for axis, n in enumerate(shares.shape):
            starts = np.arange(BLOCKS) * n // BLOCKS if n >= BLOCKS else np.minimum(np.arange(BLOCKS), n - 1)
            sizes = np.diff([*starts, n]) if n >= BLOCKS else np.ones(BLOCKS)
            summed = np.add.reduceat(pattern, starts, axis=axis) if n >= BLOCKS else pattern.take(starts, axis)
            pattern = summed / sizes.reshape([-1 if k == axis else 1 for k in range(3)])
        grid = turned.geometry
        return cls(
            np.array(grid.shape) * grid.spacing_mm, np.asarray(grid.spacing_mm), counts / max(counts.sum(), 1),
            pattern.ravel(), {} if labels is None else volumes_ml(labels),
        )  # fmt: skip


def _without_padding(image: Volume) -> Volume:
    """Return the box of the voxels above the smallest value, at least one voxel."""
    shown = image.data > image.data.min()
    box = []
    for axis in range(3):
        at = np.flatnonzero(shown.any(axis=tuple(k for k in range(3) if k != axis)))
        box.append(slice(int(at[0]), int(at[-1]) + 1) if at.size else slice(0, 1))
    data = image.data[tuple(box)]
    x, y, z = data.shape
    return Volume(data, Geometry((x, y, z), image.geometry.affine), image.modality)


def volumes_ml(labels: LabelMap) -> dict[int, float]:
    """Return the volume of each structure of a label map."""
    voxel_ml = abs(float(np.linalg.det(labels.geometry.affine[:3, :3]))) / 1000.0
    values, counts = np.unique(labels.data, return_counts=True)
    return {int(v): int(n) * voxel_ml for v, n in zip(values, counts, strict=True) if v != 0}


class Domain(RecordPart):
    """Ranges over the training images of a model; no number belongs to one image alone."""

    images: Count = Field(ge=1)  # their number
    modality: Text
    # field of view and voxels from left to right, from front to back and along the body
    extent_mm: tuple[Range, Range, Range]
    spacing_mm: tuple[Range, Range, Range]
    histogram: tuple[Number, ...]  # mean shares of the voxels, and how far the most unusual image is from them
    histogram_apart: Number
    pattern: tuple[Number, ...]  # mean image of 6 x 6 x 6 blocks, and the least correlation of a training image with it
    pattern_alike: Number
    # range of the volume of each structure
    volumes_ml: dict[Annotated[int, Field(ge=0, le=10**15)], Range] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole(self) -> Domain:
        bins = (EDGES_HU if self.modality == "ct" else EDGES_SHARE).size - 1
        if len(self.histogram) != bins or len(self.pattern) != BLOCKS**3:
            raise ValueError(f"{bins} shares of the histogram and {BLOCKS**3} blocks are needed")
        if any(low > high for low, high in (*self.extent_mm, *self.spacing_mm, *self.volumes_ml.values())):
            raise ValueError("a range ends before it begins")
        return self

    @classmethod
    def over(cls, images: Sequence[ImageFacts], modality: str) -> Domain:
        """Return the domain of some training images."""
        patterns, histograms = (np.stack([getattr(i, n) for i in images]) for n in ("pattern", "histogram"))
        pattern, histogram = patterns.mean(axis=0).round(3), histograms.mean(axis=0).round(4)
        labels = sorted({label for image in images for label in image.volumes_ml})
        ranges = {name: np.stack([getattr(i, name) for i in images]) for name in ("extent_mm", "spacing_mm")}
        volumes = {label: [i.volumes_ml[label] for i in images if label in i.volumes_ml] for label in labels}
        return cls.model_validate({
            "images": len(images), "modality": modality,
            **{name: [_range(column) for column in values.T] for name, values in ranges.items()},
            "histogram": histogram.tolist(), "histogram_apart": max(_apart(i.histogram, histogram) for i in images),
            "pattern": pattern.tolist(), "pattern_alike": min(_alike(i.pattern, pattern) for i in images),
            "volumes_ml": {label: _range(values) for label, values in volumes.items()},
        })  # fmt: skip

    def misfits(self, image: ImageFacts) -> list[str]:
        """Describe in words what an image has that no training image had; empty where it fits."""
        found = []
        for words, size, (least, most) in zip(AXES, image.extent_mm, self.extent_mm, strict=True):
            if not NARROWER * least <= size <= WIDER * most:
                found.append(f"it measures {size:.0f} mm {words}, training images {_words(least, most)} mm")
        for words, size, (_, most) in zip(AXES, image.spacing_mm, self.spacing_mm, strict=True):
            if size > COARSER * most:
                found.append(f"its voxels measure {size:.3g} mm {words}, those of training images {most:.3g} mm")
        apart = _apart(image.histogram, np.array(self.histogram))
        if apart > (limit := self.histogram_apart + HISTOGRAM_MARGIN):
            found.append(f"{apart:.0%} of its histogram differs from training images, allowed {limit:.0%}")
        alike = _alike(image.pattern, np.array(self.pattern))
        if alike < (limit := self.pattern_alike - PATTERN_MARGIN):
            found.append(f"it shows another part or position (correlation {alike:.2f}, at least {limit:.2f})")
        return found

    def odd_volumes(self, volumes_ml: Mapping[int, float], names: Mapping[int, str]) -> list[str]:
        """Describe segmented structures whose volumes no training image had."""
        return [
            f"{names.get(label, label)} {volume:.3g} ml ({_words(*self.volumes_ml[label])} ml in training)"
            for label, volume in sorted(volumes_ml.items())
            if label in self.volumes_ml
            and not self.volumes_ml[label][0] / VOLUMES_APART <= volume <= self.volumes_ml[label][1] * VOLUMES_APART
        ]


def _range(values: Sequence[float] | Float64Array) -> tuple[float, float]:
    return float(f"{np.min(values):.4g}"), float(f"{np.max(values):.4g}")


def _words(least: float, most: float) -> str:
    return f"{least:.3g}" if f"{least:.3g}" == f"{most:.3g}" else f"{least:.3g} to {most:.3g}"


def _apart(one: Float64Array, other: Float64Array) -> float:
    return float(np.abs(one - other).sum() / 2)


def _alike(one: Float64Array, other: Float64Array) -> float:
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0
