"""Working pair: both scans as they are registered, with their masks and the plan's label map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regweave.clinic.scans.field_of_view import cuts_patient, trusted
from regweave.clinic.scans.patient import patient_mask, tissue_values, trusted_region, without_couch
from regweave.clinic.scans.working import MOST_MM, crop_round
from regweave.contours import Shape
from regweave.measures.body import bright_mask
from regweave.spatial.pyramid import shrink, shrink_geometry
from regweave.spatial.warp import inverse_of, warp_labels
from regweave.types import Field, Float64Array, Geometry, LabelMap, Transform, Volume


@dataclass(frozen=True)
class WorkingScan:
    """A scan as it is registered.

    Parameters
    ----------
    image : Volume
        Crop round the patient, about 2 mm or finer; in a CT what is not the patient is air.
    region : LabelMap, optional
        Where the image counts, if not everywhere.
    body : boolean array of the image's shape, optional
        The patient, where it was found.
    seen : boolean array of shape (X, Y), optional
        Pixels of the scan's own slices that were measured, where its field of view cuts the patient.
    """

    image: Volume
    region: LabelMap | None
    body: NDArray[np.bool_] | None
    seen: NDArray[np.bool_] | None = None


def working_scan(scan: Volume, seen: NDArray[np.bool_] | None = None) -> WorkingScan:
    """Make the working copy of a scan; couch and immobilisation of a CT become air.

    Parameters
    ----------
    scan : Volume
    seen : boolean array of shape (X, Y), optional
        Field of view of a CT. Where it cuts the patient, nothing outside of it counts.
    """
    if scan.modality != "ct":
        image = crop_round(scan.geometry, None, scan.geometry).of(scan)
        # What is dark to the end of the scan counts as a gap even where bright tissue encloses it.
        return WorkingScan(image, trusted_region(image, bright_mask(image)) if scan.modality == "mr" else None, None)
    scan = tissue_values(scan)
    x, y, z = (max(1, round(MOST_MM / s)) for s in scan.geometry.spacing_mm.tolist())
    factors = (x, y, z)
    coarse = Volume(shrink(scan.data, factors), shrink_geometry(scan.geometry, factors), scan.modality)
    found = patient_mask(coarse)
    if found is None or (
        seen is not None
        and not cuts_patient(_pixels(seen, scan.geometry, coarse.geometry), found, coarse.geometry.spacing_mm)
    ):
        seen = None
    image = crop_round(scan.geometry, found, coarse.geometry).of(scan)
    if found is None:
        return WorkingScan(image, None, None)
    mask = LabelMap(found.astype(np.uint8), coarse.geometry)
    body = np.asarray(warp_labels(mask, Transform(Field.zero(image.geometry))).data != 0)
    region = trusted_region(image, body)
    if seen is not None:
        region = _within(region, seen, scan.geometry, image.geometry)
    return WorkingScan(without_couch(image, body), region, body, seen)


def _pixels(seen: NDArray[np.bool_], whole: Geometry, part: Geometry) -> NDArray[np.bool_]:
    """Return a mask of the slices of a scan on the slices of its working copy."""
    mask = LabelMap(np.repeat(seen[..., None], whole.shape[2], axis=2).astype(np.uint8), whole)
    return np.asarray(warp_labels(mask, Transform(Field.zero(part))).data[..., 0] != 0)


def _within(region: LabelMap | None, seen: NDArray[np.bool_], whole: Geometry, part: Geometry) -> LabelMap:
    """Return where an image counts: in the region, and well inside the field of view."""
    inner = trusted(_pixels(seen, whole, part), part.spacing_mm)[..., None]
    counted = np.broadcast_to(inner, part.shape) if region is None else inner & (region.data != 0)
    return LabelMap(counted.astype(np.uint8), part)


@dataclass(frozen=True)
class VoxelBox:
    """Voxels of a grid round some points: index of the first, and their LPS places (n, 3)."""

    first: tuple[int, int, int]
    shape: tuple[int, int, int]
    points_mm: Float64Array

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """Places of the box in an array on the grid."""
        x, y, z = (slice(a, a + n) for a, n in zip(self.first, self.shape, strict=True))
        return x, y, z


def box_round(points_mm: Float64Array, geometry: Geometry) -> VoxelBox | None:
    """Return the voxels of a grid round points, with one to spare; None where they lie outside."""
    index = np.asarray(points_mm, dtype=np.float64)
    back = inverse_of(geometry.affine)
    index = index @ back[:3, :3].T + back[:3, 3]
    low = np.maximum(np.floor(index.min(axis=0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(index.max(axis=0)).astype(int) + 2, geometry.shape)
    if (high <= low).any():
        return None
    axes = [np.arange(a, b, dtype=np.float64) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    (x, y, z), (a, b, c) = low.tolist(), (high - low).tolist()
    return VoxelBox((x, y, z), (a, b, c), geometry.points(grid))


def label_map(
    shapes: Sequence[Shape], geometry: Geometry, values: Mapping[int, int], names: Mapping[str, str]
) -> LabelMap:
    """Draw shapes on a grid as labels; where two overlap the smaller one is seen.

    Parameters
    ----------
    shapes : sequence of Shape
    geometry : Geometry
    values : mapping
        Label of each structure by its number.
    names : mapping
        Other names of structures.
    """
    data = np.zeros(geometry.shape, dtype=np.uint16)
    drawn = [s for s in shapes if len(s.along_mm)]
    for shape in sorted(drawn, key=_size, reverse=True):
        points = np.concatenate([c.points_mm for c in shape.structure.contours])
        box = box_round(points, geometry)
        if box is not None:
            inside = (shape.at(box.points_mm) < 0).reshape(box.shape)
            data[box.slices][inside] = values[shape.structure.number]
    called = {values[s.structure.number]: s.structure.name for s in drawn}
    return LabelMap(data, geometry, {value: names.get(name, name) for value, name in called.items()})


def _size(shape: Shape) -> float:
    return float((shape.distance < 0).sum() * np.prod(shape.step_mm))
