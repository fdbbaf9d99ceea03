"""The inverse of a transform, and how well two transforms undo each other."""

from __future__ import annotations

import numpy as np

from regweave import _core, notices
from regweave.deformation.warp import inverse_of, to_field, to_voxels, voxel_matrix
from regweave.types import Field, Float32Array, Geometry, Transform

ACCEPTABLE_MM = 0.1
SLAB_PLANES = 16


def invert(transform: Transform, geometry: Geometry, *, max_iter: int = 50, tolerance_mm: float = 1e-3) -> Transform:
    """Invert a transform on the moving grid.

    Each voxel q solves ``affine · (p + u(p)) = q`` for p by damped Newton steps on the trilinear field u.

    Parameters
    ----------
    transform : Transform
        Takes fixed points to moving points.
    geometry : Geometry
        The moving grid, where the result's field lies.
    max_iter : int
        Steps allowed to each voxel.
    tolerance_mm : float
        A voxel is done when its error in fixed space is below this.

    Returns
    -------
    Transform
        Takes moving points to fixed points: field v on ``geometry`` and the inverse affine, so that
        ``affine⁻¹ · (q + v(q))`` is p.

    Warns
    -----
    RegweaveWarning
        W202, where the error of a voxel stays above 0.1 mm.

    Examples
    --------
    >>> grid = Geometry((4, 4, 4), np.eye(4))
    >>> shift = Transform(Field(np.ones((3, 4, 4, 4), dtype=np.float32), grid))
    >>> float(invert(shift, grid).field.data[0, 2, 2, 2])
    -1.0
    """
    fixed = transform.field.geometry
    matrix = voxel_matrix(fixed, geometry, transform.affine)
    back = inverse_of(transform.affine)
    displacement, residual = _core.invert(
        to_voxels(transform.field),
        matrix,
        voxel_matrix(geometry, fixed, back),
        geometry.shape,
        max_iter,
        tolerance_mm / float(fixed.spacing_mm.max()),
    )
    _report(residual * float(fixed.spacing_mm.max()))
    return Transform(to_field(displacement, geometry), back)


def inverse_consistency_mm(forward: Transform, inverse: Transform) -> dict[str, float]:
    """Measure how far fixed points end from where they started, there and back.

    Parameters
    ----------
    forward : Transform
        Takes fixed points to moving points.
    inverse : Transform
        Takes moving points to fixed points; its field lies on the moving grid.

    Returns
    -------
    dict
        ``mean``, ``p95`` and ``max`` in millimetres over the fixed voxels whose image lies inside the moving
        grid; NaN where there are none.

    Examples
    --------
    >>> still = Transform(Field.zero(Geometry((4, 4, 4), np.eye(4))))
    >>> inverse_consistency_mm(still, still)["max"]
    0.0
    """
    slabs = (slice(i, i + SLAB_PLANES) for i in range(0, forward.field.geometry.shape[0], SLAB_PLANES))
    error = np.concatenate([_errors_mm(forward, inverse, slab) for slab in slabs])
    if error.size == 0:
        return dict.fromkeys(("mean", "p95", "max"), float("nan"))
    return {
        "mean": float(error.mean(dtype=np.float64)),
        "p95": float(np.percentile(error, 95)),
        "max": float(error.max()),
    }


def _errors_mm(forward: Transform, inverse: Transform, slab: slice) -> Float32Array:
    """Distance between the start and the return of the points of some planes that land inside the moving grid."""
    fixed, moving = forward.field.geometry, inverse.field.geometry
    origin = np.array([slab.start, 0.0, 0.0])
    planes = np.ascontiguousarray(forward.field.data[:, slab])
    affine = fixed.affine.copy()
    affine[:3, 3] = fixed.points(origin)
    part = Geometry((planes.shape[1], planes.shape[2], planes.shape[3]), affine)
    matrix, u = voxel_matrix(part, moving, forward.affine), to_voxels(Field(planes, part))
    inside = _core.warp_valid(moving.shape, matrix, u).astype(bool)
    back = [_core.warp(np.ascontiguousarray(c), matrix, u, 0.0, True)[inside] for c in inverse.field.data]
    # Fixed p goes to q = A (p + u) and returns to B (q + v(q)).
    p = part.points(np.argwhere(inside).astype(np.float64))
    shifted = p + np.stack([c[inside] for c in planes], axis=-1)
    q = shifted @ forward.affine[:3, :3].T + forward.affine[:3, 3]
    returned = (q + np.stack(back, axis=-1)) @ inverse.affine[:3, :3].T + inverse.affine[:3, 3]
    return np.asarray(np.linalg.norm(returned - p, axis=-1), dtype=np.float32)


def _report(residual_mm: Float32Array) -> None:
    failed = np.argwhere(residual_mm > ACCEPTABLE_MM)
    if len(failed) == 0:
        return
    worst = np.unravel_index(int(residual_mm.argmax()), residual_mm.shape)
    notices.warn(
        f"W202: no inverse found at {len(failed)} of {residual_mm.size} voxels, error p95 "
        f"{np.percentile(residual_mm, 95):.3g} mm, {residual_mm.max():.3g} mm at voxel "
        f"{tuple(int(x) for x in worst)}; look for folds there or raise max_iter"
    )
