"""Surface loss: wrong voxels of each node, each weighted by its distance to the fixed surface.

The integral of that distance over the voxels where two masks differ is half the squared distance of their surfaces
(Kervadec et al. 2019, "Boundary loss for highly unbalanced segmentation", eq. 3), so an error far from the surface
costs more than many at its rim, as in a Hausdorff distance. It is linear in the moved mask, hence a sum over nodes.

Distances are in control spacings, which a covering grid keeps equal in millimetres along the axes whatever the
voxels are. Outside a structure they grow to 1 at one control spacing from its surface; inside, to 1 at that depth or
at the structure's own greatest depth where that is less, so that losing a thin structure is no small loss. The
weighted errors are divided by the mean volume of the structure per node that it touches, as those of ``voxel`` are,
and cut at 1. The edge of the image is no surface. A structure that the fixed mask lacks, or that fills it, has no
surface either: its wrong voxels count fully, as shares of the support.

The fixed masks must be 0 or 1; the moved ones may lie between.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import ndimage

from regweave import _core, losses
from regweave.losses import Offsets
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array, Float64Array


class Options(losses.Options):
    """Reach of the distance."""

    cap_spacings: float = Field(default=1.0, ge=0.1, le=10)
    """Distance to the fixed surface, in control spacings, beyond which an error costs no more."""


def weights(fixed: Float32Array, spacing: Float64Array, cap_spacings: float) -> Float32Array:
    """Weight in (0, 1] of an error at each voxel of the structures (C, X, Y, Z); ``spacing`` in voxels."""
    return np.stack([_weights(mask > 0.5, spacing, cap_spacings) for mask in fixed])


def _weights(mask: NDArray[np.bool_], spacing: Float64Array, cap_spacings: float) -> Float32Array:
    out = np.ones(mask.shape, dtype=np.float32)
    if not mask.any() or mask.all():
        return out
    # Beyond the cap the weight is 1, so the distances are needed only near the structure.
    margin = np.ceil(cap_spacings * spacing).astype(int) + 1
    found = ndimage.find_objects(mask.astype(np.uint8))[0]
    box = tuple(slice(max(0, s.start - m), s.stop + m) for s, m in zip(found, margin, strict=True))
    structure = mask[box]
    # A surface lies half a voxel before the next voxel's centre.
    half = 0.5 / spacing.max()
    inside = ndimage.distance_transform_edt(structure, sampling=1 / spacing) - half
    outside = ndimage.distance_transform_edt(~structure, sampling=1 / spacing) - half
    depth = min(cap_spacings, float(inside.max()))
    out[box] = np.minimum(np.where(structure, inside / depth, outside / cap_spacings), 1)
    return out


def _normalise(errors: Float32Array, sizes: Float32Array) -> Float32Array:
    """Divide errors (C, N, ...) by the mean size of the structure over the nodes that it touches."""
    touched = (sizes > 0).sum(axis=1)
    mean = np.where(touched > 0, sizes.sum(axis=1) / np.maximum(touched, 1), np.float32(1))
    scaled = errors / mean.reshape(-1, *(1,) * (errors.ndim - 1))
    return np.asarray(scaled.clip(0, 1).mean(axis=0), dtype=np.float32)


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Surface loss of each node, (N,)."""
    errors = weights(fixed, grid.spacing, options.cap_spacings) * np.abs(fixed - moved)
    return _normalise(grid.pool(errors), grid.pool(fixed))


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Options
) -> Float32Array:
    """Loss of every label, (N, L)."""
    weighted = weights(fixed, grid.spacing, options.cap_spacings)
    # |m − f| = f + m·(1 − 2f) for f of 0 or 1: what depends on the label is one product with the moved mask.
    signed = weighted * (1 - 2 * fixed)
    missed = grid.pool(weighted * fixed)
    errors = np.stack(
        [
            _core.overlap_volume(signed[c : c + 1], moved[c : c + 1], *grid.support_arguments, *offsets)
            for c in range(len(fixed))
        ]
    )
    return _normalise(errors + missed[:, :, None], grid.pool(fixed))
