"""Interface of predictors: what is fitted, what is told, and what is saved.

A predictor stands in for a missing segmentation: its labels choose which column of W a node uses, for which a rough
outline is enough, and its maps of both images are a source of features. It is no segmentation tool.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.predictors._features import WorkingGrid
from regweave.spatial.pyramid import shrink, shrink_geometry
from regweave.types import Geometry, LabelMap, Modality, StructureMaps, Volume

__all__ = ["Examples", "MemoryAccount", "Parts", "Predictor", "PredictorKind", "WorkingGrid", "maps_from_labels"]

BLUR_VOXELS = 0.7
"""Blur of maps made from labels, in working voxels: what a classifier tells has no sharper edges."""
FIRST = "perceptron"
"""Predictor of models that name none: the only one there was."""


@dataclass(frozen=True)
class Examples:
    """Segmented images to learn from.

    Parameters
    ----------
    volumes, label_maps : sequences of the same length
        Images and their segmentations on the same grids.
    classes : tuple of ints
        Label values, 0 first; labels without a place here count as background.
    modality : "ct" or "mr"
        How intensities are mapped.
    seed : int
        Draws all that is random; the same seed gives the same numbers.
    groups : sequence, optional
        Patient of each image, so that one patient is never both trained on and held out. By default each image is a
        patient.
    tell : callable, optional
        Called now and then by a fit that takes long, with the step, the number of steps, and the loss.
    checkpoint : path, optional
        File in which a fit that takes long keeps where it stands, and from which one that was stopped goes on.
    """

    volumes: Sequence[Volume]
    label_maps: Sequence[LabelMap]
    classes: tuple[int, ...]
    modality: Modality
    seed: int = 0
    groups: Sequence[Hashable] | None = None
    tell: Callable[[int, int, float], None] | None = None
    checkpoint: Path | None = None

    def check(self) -> None:
        """Raise ValueError where images, label maps, groups or classes do not belong together."""
        n, groups = len(self.volumes), self.groups
        if not n or n != len(self.label_maps) or (groups is not None and len(groups) != n):
            n_groups = "none" if groups is None else len(groups)
            raise ValueError(f"{n} images, {len(self.label_maps)} label maps, groups: {n_groups}; give as many of each")
        if len(self.classes) < 2 or self.classes[0] != 0 or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes are {self.classes}; give 0, the background, then each structure once")
        for k, (volume, labels) in enumerate(zip(self.volumes, self.label_maps, strict=True)):
            if volume.data.shape != labels.data.shape:
                shapes = f"{volume.data.shape} and {labels.data.shape}"
                raise ValueError(f"image {k} and its label map have shapes {shapes}; resample one onto the other")


@dataclass(frozen=True)
class Parts:
    """A saved predictor: JSON values beside arrays.

    Parameters
    ----------
    kind : str
        Name of the predictor.
    fields : mapping
        JSON values.
    arrays : mapping
        Arrays of numbers by name.
    record : mapping
        JSON values: what held-out images said of it.
    """

    kind: str
    fields: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    record: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return JSON values, the arrays as lists under the name of the kind."""
        kind = {} if self.kind == FIRST else {"kind": self.kind}
        listed = {name: array.tolist() for name, array in self.arrays.items()} if arrays else {}
        return {**kind, **self.fields, self.kind: listed, "record": dict(self.record)}

    def identity(self) -> str:
        """SHA-256 of the content."""
        digest = hashlib.sha256(json.dumps(self.to_json(arrays=False), sort_keys=True).encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @classmethod
    def from_json(cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> Parts:
        """Inverse of `to_json`, with the arrays where they were kept apart; ValueError for what is no array."""
        rest = {key: value for key, value in content.items() if key not in ("kind", "record")}
        kind = str(content.get("kind", FIRST))
        listed = rest.pop(kind)
        found = {str(n): _array(f"{kind}.{n}", v) for n, v in listed.items()} if arrays is None else dict(arrays)
        return cls(kind, rest, found, content["record"])


@runtime_checkable
class Predictor(Protocol):
    """Interface of a fitted predictor."""

    @property
    def classes(self) -> tuple[int, ...]:
        """Label values, the background 0 first."""

    @property
    def modality(self) -> Modality:
        """Images that it can read."""

    @property
    def voxel_mm(self) -> float:
        """Size of the voxels that it works on."""

    def labels(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel, on the grid of the image."""

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the probability of each structure, on a grid along the axes of the image."""

    def save(self) -> Parts:
        """Return the parts from which the same predictor can be loaded."""


@runtime_checkable
class MemoryAccount(Protocol):
    """Interface of a predictor that knows what memory it takes."""

    def memory_bytes(self, geometry: Geometry) -> float:
        """Forecast the memory that an image on this grid takes, beside the image itself."""


@runtime_checkable
class TrainedResolution(Protocol):
    """Interface of a predictor that knows how fine its training images were."""

    @property
    def trained_mm(self) -> float | None:
        """Smallest side of a voxel of the middle training image; None where that is not known."""


class PredictorKind(Protocol):
    """Interface of a kind of predictor.

    A kind may also have ``NEEDS``, the arguments of `regweave.extras.require` for the package that fitting needs;
    ``COSTLY``, True where a fit takes so long that few are made; and ``ARCHIVED``, True where it holds too many numbers
    for a model in JSON.
    """

    Options: type[Any]

    def fit(self, examples: Examples, options: Any, like: Predictor | None) -> Predictor:
        """Learn from segmented images; ValueError where a class is too small to be seen."""

    def load(self, parts: Parts) -> Predictor:
        """Return the predictor that was saved; KeyError, TypeError or ValueError where something does not fit."""


def maps_from_labels(labels: LabelMap, predictor: Predictor) -> StructureMaps:
    """Return labels as structure maps: the share of each structure in a working voxel of a predictor, blurred."""
    grid = WorkingGrid.of(labels.geometry, predictor.voxel_mm)
    masks = [shrink((labels.data == c).astype(np.float32), grid.factors) for c in predictor.classes[1:]]
    shares = [ndimage.gaussian_filter(m, BLUR_VOXELS, mode="nearest", truncate=3.0) for m in masks]
    return StructureMaps(np.stack(shares), shrink_geometry(labels.geometry, grid.factors), predictor.classes[1:])


def _array(name: str, value: object) -> NDArray[Any]:
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"class_predictor.{name} is no array of numbers") from error
