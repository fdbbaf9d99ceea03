"""Resampling by a transform, each output voxel interpolated once; and dense fields.

Fields are composed, resampled and inverted here, and their determinants computed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.errors import UsageError
from regweave.types import Field, Geometry, LabelMap, Transform, Volume
from regweave.types.images import Float32Array, Float64Array, IntArray, LabelArray

Interpolation = Literal["linear", "nearest", "label", "bspline"]
SLAB_VOXELS = 2**22  # Voxels of a field that are brought to other units at a time


def voxel_matrix(fixed: Geometry, moving: Geometry, affine: Float64Array) -> Float64Array:
    """Express an LPS affine map from fixed to moving as one (3, 4) between the voxels of the two grids."""
    matrix = np.linalg.solve(moving.affine, affine @ fixed.affine)[:3]
    return np.ascontiguousarray(matrix, dtype=np.float64)


def to_voxels(field: Field) -> Float32Array:
    """Return a field's displacements in voxels of its grid, float32 (3, X, Y, Z)."""
    return turned(field.data, np.linalg.inv(field.geometry.affine[:3, :3]))


def to_field(displacement: Float32Array, geometry: Geometry) -> Field:
    """Return displacements (3, X, Y, Z) given in voxels of a grid as a field in LPS millimetres."""
    return Field(turned(displacement, geometry.affine[:3, :3]), geometry)


def warp_image(
    moving: Volume, transform: Transform, *, fill: float = 0.0, interpolation: Interpolation = "linear",
    kernels: Any = _core,
) -> Volume:  # fmt: skip
    """Resample a moving image on the fixed grid, that of the transform's field.

    ``moving`` is the original image, not one that was resampled before; ``fill`` is the value more than half a voxel
    outside of it. ``kernels``, of the linear interpolation, are the functions of `regweave._core` or those of a GPU.
    ``label`` takes the value of the largest trilinear weight, ``bspline`` a cubic spline.
    """
    image = np.ascontiguousarray(moving.data, dtype=np.float32)
    if interpolation == "label":
        values, codes = np.unique(image, return_inverse=True)
        outside, codes = values.size + 1, codes.reshape(image.shape) + 1  # 0 is outside
        numbers = codes.astype(np.int32)
        found = _by_slabs(transform, moving.geometry, lambda matrix, u: _core.warp_labels(numbers, matrix, u))
        table = np.concatenate([[np.float32(fill)], values])[:outside]
        return Volume(table[found], transform.field.geometry, moving.modality)
    if interpolation == "linear":
        data = _by_slabs(transform, moving.geometry, lambda matrix, u: kernels.warp(image, matrix, u, fill, False))
        return Volume(data, transform.field.geometry, moving.modality)
    order = {"nearest": 0, "bspline": 3}[interpolation]
    knots = ndimage.spline_filter(image, order, mode="mirror") if order > 1 else image

    def sampled(matrix: Float64Array, u: Float32Array) -> Float32Array:
        index = np.moveaxis(np.indices(u.shape[1:], dtype=np.float64), 0, -1) + np.moveaxis(u, 0, -1)
        at = np.moveaxis(index @ matrix[:, :3].T + matrix[:, 3], -1, 0)
        last = (np.array(image.shape) - 1.0)[:, None, None, None]
        outside = ((at < -0.5) | (at > last + 0.5)).any(axis=0)
        at = np.clip(at, 0.0, last)
        values = ndimage.map_coordinates(knots, at, order=order, mode="mirror", prefilter=False, output=np.float32)
        return np.where(outside, np.float32(fill), values)

    return Volume(_by_slabs(transform, moving.geometry, sampled), transform.field.geometry, moving.modality)


def warp_labels(labels: LabelMap, transform: Transform, *, kernels: Any = _core) -> LabelMap:
    """Resample a moving segmentation on the fixed grid; dtype and names stay.

    Each voxel takes the label with the largest trilinear weight, as if each label were warped as a smooth mask and the
    largest value kept. Outside the moving grid it is 0.
    """
    codes, table = encode(labels.data)
    warped = _by_slabs(transform, labels.geometry, lambda matrix, u: kernels.warp_labels(codes, matrix, u))
    data = warped.astype(labels.data.dtype) if table is None else table[warped]
    return LabelMap(data, transform.field.geometry, labels.names)


def chained(transforms: Sequence[Transform], grid: Geometry) -> Transform:
    """Join maps that are applied one after the other, the first to points of a grid, as one on that grid."""
    if not any(one.field.data.any() for one in transforms):
        matrix = np.eye(4)
        for one in transforms:
            matrix = one.affine @ matrix
        return Transform(Field.zero(grid), matrix)
    data = np.empty((3, *grid.shape), dtype=np.float32)
    for slab in slabs(grid.shape):
        index = np.moveaxis(np.indices((slab.stop - slab.start, *grid.shape[1:]), dtype=np.float64), 0, -1)
        index[..., 0] += slab.start
        points = start = grid.points(index)
        for one in transforms:
            points = warp_points(points, one)
        data[:, slab] = np.moveaxis(points - start, -1, 0)
    return Transform(Field(data, grid))


def warp_channels(channels: Float32Array, matrix: Float64Array, u: Float32Array) -> Float32Array:
    """Pull images (C, X, Y, Z) through matrix ∘ (id + u), all in voxels; beyond the grid the border value holds."""
    return np.stack([_core.warp(np.ascontiguousarray(c), matrix, u, 0.0, True) for c in channels])


def warp_points(points_mm: Float64Array, transform: Transform) -> Float64Array:
    """Map points (..., 3) of LPS millimetres forward, from fixed to moving space; E116 for another shape.

    The field, or the knots where there are any, is trilinear, and constant beyond its grid.
    """
    given = np.asarray(points_mm, dtype=np.float64)
    if given.ndim == 0 or given.shape[-1] != 3:
        raise UsageError("E116", f"points have shape {given.shape}, needed is (..., 3)", "give x, y, z in LPS mm")
    points = given.reshape(-1, 3)
    field = transform.interpolated
    to_index = np.linalg.inv(field.geometry.affine)
    index = (points @ to_index[:3, :3].T + to_index[:3, 3]).T
    shift = [ndimage.map_coordinates(c, index, order=1, mode="nearest", output=np.float64) for c in field.data]
    moved = points + np.stack(shift, axis=-1)
    return np.asarray(moved @ transform.affine[:3, :3].T + transform.affine[:3, 3]).reshape(given.shape)


def beyond(points_mm: Float64Array, grid: Geometry) -> NDArray[np.bool_]:
    """Whether points (P, 3) lie more than half a voxel outside a grid, (P,)."""
    index = grid.index(points_mm)
    return np.asarray((np.abs(index - (np.array(grid.shape) - 1) / 2) > np.array(grid.shape) / 2).any(axis=1))


def turned(vectors: Float32Array, matrix: NDArray[Any]) -> Float32Array:
    """Multiply vectors (3, X, Y, Z) by a 3×3 matrix."""
    return _core.turn_vectors(np.ascontiguousarray(vectors, dtype=np.float32), matrix.tolist())


def turn_in_place(vectors: Float32Array, matrix: Float64Array) -> Float32Array:
    """Do the same with vectors that nobody else uses, many of them slab by slab in their own memory."""
    if len(parts := slabs(vectors.shape[1:])) == 1:
        return turned(vectors, matrix)
    for slab in parts:
        vectors[:, slab] = turned(vectors[:, slab], matrix)
    return vectors


def slabs(shape: Sequence[int]) -> list[slice]:
    """Planes of a grid in slabs of at most `SLAB_VOXELS`, one slab for most images."""
    step = max(1, SLAB_VOXELS // int(np.prod(shape[1:])))
    return [slice(i, min(i + step, shape[0])) for i in range(0, shape[0], step)]


def _by_slabs(transform: Transform, moving: Geometry, warp: Callable[[Float64Array, Float32Array], Any]) -> Any:
    """Join ``warp(matrix, u)`` of the slabs of a field: beside a large one there is no room for its copy in voxels."""
    field = transform.field
    whole = voxel_matrix(field.geometry, moving, transform.affine)
    out = None
    for slab in (parts := slabs(field.geometry.shape)):
        matrix = whole.copy()
        matrix[:, 3] += slab.start * whole[:, 0]
        found = warp(matrix, turned(field.data[:, slab], np.linalg.inv(field.geometry.affine[:3, :3])))
        if len(parts) == 1:
            return found
        out = np.empty(field.geometry.shape, dtype=found.dtype) if out is None else out
        out[slab] = found
    return out


def encode(labels: LabelArray) -> tuple[IntArray, LabelArray | None]:
    """Return labels as int32: themselves where they fit, else places in a table that begins with 0."""
    limits = np.iinfo(np.int32)
    if labels.size == 0 or (labels.min() >= limits.min and labels.max() <= limits.max):
        return np.ascontiguousarray(labels, dtype=np.int32), None
    present = np.unique(labels)
    others = present[present != 0]
    table = np.concatenate([np.zeros(1, dtype=labels.dtype), others])
    codes = np.where(labels == 0, 0, np.searchsorted(others, labels) + 1)
    return codes.astype(np.int32), table


def compose(outer: Field, inner: Field) -> Field:
    """Return the field of the map that applies ``inner`` first and ``outer``, on the same grid, to its result.

    It is ``inner(p) + outer(p + inner(p))``, trilinear; beyond the grid ``outer`` keeps its border value.
    """
    data: Float32Array = _core.compose(to_voxels(outer), to_voxels(inner))
    return to_field(data, inner.geometry)


def resample(field: Field, geometry: Geometry) -> Field:
    """Interpolate a field on another grid, trilinearly; beyond its own grid it keeps its border value.

    Displacements are in millimetres, so their values need no scaling.
    """
    matrix = voxel_matrix(geometry, field.geometry, np.eye(4))
    still = np.zeros((3, *geometry.shape), dtype=np.float32)
    return Field(warp_channels(field.data, matrix, still), geometry)


def determinant(field: Field, *, kernels: Any = _core) -> Float32Array:
    """Return ``det(I + ∂u/∂x)`` at each voxel, by central differences, one-sided at the border.

    It is the same in voxels and in millimetres. ``kernels`` are the functions of `regweave._core` or those of a GPU.
    """
    out = np.empty(field.geometry.shape, dtype=np.float32)
    for slab in slabs(field.geometry.shape):  # with its neighbours, which differences need
        low, high = max(0, slab.start - 1), min(slab.stop + 1, field.geometry.shape[0])
        part = Geometry((high - low, *field.geometry.shape[1:]), field.geometry.affine)  # its place does not matter
        values: Float32Array = kernels.jacobian(to_voxels(Field(field.data[:, low:high], part)))
        out[slab] = values[slab.start - low : slab.stop - low]
    return out


PART = 1 << 20  # Numbers that are looked at together


def invert(
    transform: Transform, geometry: Geometry | None = None, *, max_iter: int = 50, tolerance_mm: float = 1e-3,
    kernels: Any = _core,
) -> tuple[Transform, Float32Array]:  # fmt: skip
    """Invert a transform on the moving grid by Newton's method; return the error that remains too, (X, Y, Z) in mm.

    Each voxel q solves ``affine · (p + u(p)) = q`` for p by at most ``max_iter`` damped Newton steps on the trilinear
    field u, that of the knots where the transform has any, until its error in fixed space is below ``tolerance_mm``.
    ``geometry`` is the moving grid of the result; by default the one that the transform names, E115 where it names
    none. ``kernels`` are the functions of `regweave._core`, or those of a GPU.
    """
    if geometry is None:
        if transform.ends is None:
            message = "the transform does not say to which image it leads, so its inverse has no grid"
            raise UsageError("E115", message, "pass the geometry of that image")
        geometry = transform.ends.target
    field = transform.interpolated
    fixed = field.geometry
    matrix = voxel_matrix(fixed, geometry, transform.affine)
    back = np.asarray(np.linalg.inv(transform.affine), dtype=np.float64)
    ends = None if transform.ends is None else transform.ends.turned()
    if not field.data.any():  # a linear map has an exact inverse
        return Transform(Field.zero(geometry), back, ends), np.zeros(geometry.shape, dtype=np.float32)
    displacement, residual = kernels.invert(
        to_voxels(field),
        matrix,
        voxel_matrix(geometry, fixed, back),
        geometry.shape,
        max_iter,
        tolerance_mm / float(fixed.spacing_mm.max()),
    )
    residual *= np.float32(fixed.spacing_mm.max())
    shifts = Field(turn_in_place(displacement, geometry.affine[:3, :3]), geometry)
    return Transform(shifts, back, ends), residual


def inverse_errors_mm(forward: Transform, inverse: Transform, *, kernels: Any = _core) -> Float32Array:
    """Return how far each fixed voxel ends from where it started, there and back, in millimetres.

    NaN where the image of a voxel is outside the moving grid, on which the field of ``inverse`` is.
    """
    fixed, moving = forward.field.geometry, inverse.field.geometry
    if hasattr(kernels, "return_errors"):  # a GPU has the displacement in voxels already
        matrix, ways = voxel_matrix(fixed, moving, forward.affine), (fixed.affine, forward.affine, inverse.affine)
        errors: Float32Array = kernels.return_errors(to_voxels(forward.field), matrix, inverse.field.data, *ways)
        return errors
    maps = (fixed.affine, forward.affine, np.linalg.inv(moving.affine), inverse.affine)
    there, back = (np.ascontiguousarray(t.field.data, dtype=np.float32) for t in (forward, inverse))
    return _core.round_trip(there, back, *(m[:3].tolist() for m in maps))


def defined(values: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array that are no NaN, moved to its front in its own memory: a copy may not fit."""
    flat, n = values.reshape(-1), 0
    for start in range(0, flat.size, PART):
        part = flat[start : start + PART]
        kept = part[~np.isnan(part)]
        flat[n : n + kept.size] = kept
        n += kept.size
    return flat[:n]


def summary_mm(errors_mm: NDArray[Any]) -> dict[str, float]:
    """Return ``mean``, ``p95`` and ``max`` of the numbers there are, NaN for none; they are sorted in place."""
    error = defined(errors_mm)
    if error.size == 0:
        return dict.fromkeys(("mean", "p95", "max"), float("nan"))
    mean, most = float(error.mean(dtype=np.float64)), float(error.max())
    return {"mean": mean, "p95": float(np.percentile(error, 95, overwrite_input=True)), "max": most}
