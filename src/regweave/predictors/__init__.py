"""Predictors of structures: class probabilities for images that come without a segmentation.

A predictor replaces a missing segmentation. Its labels choose the column of W that a node uses, for which a rough
outline is enough. Its maps of both images are a source of features. It is no segmentation tool.

One file each, whose name is the predictor's name everywhere: ``Options``, ``fit(examples, options, like)`` and
``load(parts)``, as in `PredictorKind`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, StrictInt
from scipy import ndimage

from regweave.predictors._features import WorkingGrid
from regweave.registry import Registry
from regweave.spatial.voxels import shrink, shrink_geometry
from regweave.types import LabelMap, Modality, StructureMaps, Volume

BLUR_VOXELS = 0.7  # blur of maps made from labels, in working voxels: predicted maps have no sharper edges
DEFAULT = "perceptron"  # kind of a saved predictor without a kind
LARGEST_NUMBER = 1e6  # largest parameter of a predictor: features are about 1, so float32 holds all sums
MOST_NUMBERS = 10_000_000  # largest array of a saved predictor


def _ascending(classes: tuple[int, ...]) -> tuple[int, ...]:
    if classes[:1] != (0,) or any(a >= b for a, b in pairwise(classes)):
        raise ValueError(f"found {list(classes)[:20]}, allowed: whole numbers, 0 first, ascending, each once")
    return classes


Classes = Annotated[tuple[StrictInt, ...], AfterValidator(_ascending)]  # label values of a saved predictor
Names = Annotated[dict[int, Annotated[str, Field(max_length=200)]], Field(max_length=4096)]
"""Names of classes by label value."""
VoxelMm = Annotated[float, Field(strict=True, ge=1e-4, le=1e3, allow_inf_nan=False)]


@dataclass(frozen=True)
class Examples:
    """Segmented images to fit to."""

    volumes: Sequence[Volume]
    label_maps: Sequence[LabelMap]  # images and their segmentations on the same grids
    classes: tuple[int, ...]  # label values, 0 first; labels without a place here count as background
    modality: Modality  # how intensities are mapped
    seed: int = 0  # draws all that is random; the same seed gives the same numbers
    groups: Sequence[Hashable] | None = None
    """Patient of each image, so that one patient is never both trained on and held out. By default each image is a
    patient."""
    tell: Callable[[int, int, float], None] | None = None
    """Called at intervals by a long fit, with the step, the number of steps, and the loss."""
    checkpoint: Path | None = None  # file with the state of a long fit; an interrupted fit continues from it

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
    """A saved predictor: JSON values beside arrays."""

    kind: str
    fields: Mapping[str, Any]  # JSON values
    arrays: Mapping[str, NDArray[Any]]  # arrays of numbers by name
    record: Mapping[str, Any] = field(default_factory=dict)  # JSON values: results on held-out images

    def to_json(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return JSON values, the arrays as lists under the name of the kind."""
        kind = {} if self.kind == DEFAULT else {"kind": self.kind}
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
        kind = str(content.get("kind", DEFAULT))
        listed = rest.pop(kind)
        found = {str(n): _array(f"{kind}.{n}", v) for n, v in listed.items()} if arrays is None else dict(arrays)
        for name, values in found.items():
            if not 1 <= values.size <= MOST_NUMBERS or not (np.abs(values.astype(np.float64)) <= LARGEST_NUMBER).all():
                raise ValueError(
                    f"class_predictor.{kind}.{name[:40]} has shape {values.shape} or a number beyond "
                    f"±{LARGEST_NUMBER:g}, allowed: at most {MOST_NUMBERS} numbers within it"
                )
        return cls(kind, rest, found, content["record"])


@runtime_checkable
class Predictor(Protocol):
    """Interface of a fitted predictor.

    It may also have ``memory_bytes(geometry)``, a forecast of the memory for an image on this grid beside the image
    itself. ``trained_mm``, if it is there and not None, is the smallest side of a voxel of the middle training image.
    """

    @property
    def classes(self) -> tuple[int, ...]:
        """Label values, the background 0 first."""

    @property
    def modality(self) -> Modality:
        """Images that it can read."""

    @property
    def voxel_mm(self) -> float:
        """Size of the working voxels."""

    def labels(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel, on the grid of the image."""

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the probability of each structure, on a grid along the axes of the image."""

    def save(self) -> Parts:
        """Return the parts from which the same predictor can be loaded."""


class PredictorKind(Protocol):
    """Interface of a kind of predictor.

    A kind may also have three constants. ``NEEDS`` are the arguments of `regweave.extras.require` for the package that
    fitting needs. ``COSTLY`` is True where a fit takes so long that few are made. ``ARCHIVED`` is True where a model in
    JSON cannot hold its numbers.
    """

    Options: type[Any]

    def fit(self, examples: Examples, options: Any, like: Predictor | None) -> Predictor:
        """Fit to segmented images; ValueError where a class is too small for the working voxels."""

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


registry = Registry[PredictorKind]("predictors", "predictor", "E169", ("Options", "fit", "load"))
available, add, get = registry.available, registry.add, registry.get


@dataclass(frozen=True)
class Choice:
    """A kind of predictor with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # options that are not the default

    @property
    def costly(self) -> bool:
        """True if a fit takes so long that few should be made."""
        return bool(getattr(get(self.name), "COSTLY", False))


def needs(name: str) -> tuple[str, str, str] | None:
    """Return what fitting a predictor needs: package, extra that brings it, and what for; None for nothing."""
    found: tuple[str, str, str] | None = getattr(get(name), "NEEDS", None)
    return found


def fit(name: str, examples: Examples, like: Predictor | None = None, **options: Any) -> Predictor:
    """Fit a predictor to segmented images; ``like`` hands on the choices that held-out images made before."""
    return get(name).fit(examples, registry.options(name, options), like)


def load(parts: Parts) -> Predictor:
    """Return the predictor that was saved; KeyError, TypeError or ValueError where something does not fit."""
    return get(parts.kind).load(parts)
