"""Dense fields: composition, resampling, determinants, the numerical inverse, and how well two maps undo each other."""

from typing import Any

import numpy as np

from regweave import _core
from regweave.errors import UsageError
from regweave.spatial.warp import inverse_of, slabs, to_field, to_voxels, turn_in_place, voxel_matrix, warp_channels
from regweave.types import Field, Float32Array, Geometry, Transform


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
    parts = slabs(field.geometry.shape)
    if len(parts) == 1:
        return _planes(field, parts[0], kernels)
    out = np.empty(field.geometry.shape, dtype=np.float32)
    for slab in parts:
        out[slab] = _planes(field, slab, kernels)
    return out


def _planes(field: Field, slab: slice, kernels: Any) -> Float32Array:
    """Return the determinants of some planes, which differences with their neighbours need."""
    begin, end = slab.start, slab.stop
    low, high = max(0, begin - 1), min(end + 1, field.geometry.shape[0])
    part = Geometry((high - low, *field.geometry.shape[1:]), field.geometry.affine)  # where it lies does not matter
    values: Float32Array = kernels.jacobian(to_voxels(Field(field.data[:, low:high], part)))
    return values[begin - low : end - low]


def log_deviation(values: Float32Array, least: float, most: float, shift: float = 0.0) -> float:
    """Return the standard deviation of log(value + shift), cut to ``least`` and ``most`` before the logarithm."""
    return _core.log_spread(np.ascontiguousarray(values.ravel(), dtype=np.float32), shift, least, most)[1]


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
    back = inverse_of(transform.affine)
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
    maps = (fixed.affine, forward.affine, inverse_of(moving.affine), inverse.affine)
    there, back = (np.ascontiguousarray(t.field.data, dtype=np.float32) for t in (forward, inverse))
    return _core.round_trip(there, back, *(m[:3].tolist() for m in maps))


def defined(values: Float32Array) -> Float32Array:
    """Return the numbers of an array that are no NaN, moved to its front in its own memory: a copy may not fit."""
    flat, n = values.reshape(-1), 0
    for start in range(0, flat.size, PART):
        part = flat[start : start + PART]
        kept = part[~np.isnan(part)]
        flat[n : n + kept.size] = kept
        n += kept.size
    return flat[:n]


def summary_mm(errors_mm: Float32Array) -> dict[str, float]:
    """Return ``mean``, ``p95`` and ``max`` of the numbers there are, NaN for none; they are sorted in place."""
    error = defined(errors_mm)
    if error.size == 0:
        return dict.fromkeys(("mean", "p95", "max"), float("nan"))
    mean, most = float(error.mean(dtype=np.float64)), float(error.max())
    return {"mean": mean, "p95": float(np.percentile(error, 95, overwrite_input=True)), "max": most}
