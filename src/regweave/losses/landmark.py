"""Landmark loss: distance of each landmark to its place in the fixed image, at the node that holds it.

A landmark is a class of the label maps: a small blob whose centroid is the point. Under label d the moved point shows
at its centroid − d, so the loss of every label follows from two centroids. A node loses by the landmarks whose fixed
point lies in its support, or that it is nearest to where supports leave gaps; their mean counts. Other nodes lose
nothing, whatever the label.

Distances are in control spacings, cut and scaled to reach 1 at ``cap_spacings``. A covering grid keeps its spacing
equal in millimetres along the axes, so anisotropic voxels do no harm. A landmark that the fixed masks lack is no
landmark; one that only the moved masks lack is a full loss at each node that holds some of the fixed blob.

Shifting a mask shifts its centroid as long as the blob stays inside the image; nearer to the border the volume keeps
to centroid − d, while `cost` of the shifted mask sees the edge voxels repeat. A blob should be wider than the voxels
of the coarsest level, or it falls between them and the landmark is missing there.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regweave import losses
from regweave.losses import Offsets
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array, Float64Array


class Options(losses.Options):
    """Reach of the distance."""

    cap_spacings: float = Field(default=2.0, ge=0.1, le=20)
    """Distance in control spacings at which a landmark costs all it can."""


def centroid(mask: Float32Array) -> Float64Array | None:
    """Mean position of a mask (X, Y, Z) in voxels, each voxel weighted by its value; None where it is empty."""
    by_axis = [mask.sum(axis=tuple({0, 1, 2} - {axis}), dtype=np.float64) for axis in range(3)]
    total = by_axis[0].sum()
    if total <= 0:
        return None
    return np.array([np.arange(len(m)) @ m / total for m in by_axis])


def holders(point: Float64Array, grid: ControlGrid) -> NDArray[np.bool_]:
    """Nodes (N,) whose support holds a point in voxels; the nearest node where none does."""
    along = []
    for axis in range(3):
        start = grid.starts[axis] - 0.5
        along.append((start <= point[axis]) & (point[axis] < start + grid.support[axis]))
        if not along[axis].any():
            distance = np.abs(grid.origin[axis] + np.arange(grid.nodes[axis]) * grid.spacing[axis] - point[axis])
            along[axis] = np.arange(grid.nodes[axis]) == distance.argmin()
    return np.asarray(np.einsum("i,j,k->ijk", *along).reshape(-1))


def cost(fixed: Float32Array, moved: Float32Array, grid: ControlGrid, options: Options) -> Float32Array:
    """Landmark loss of each node, (N,)."""
    zero = np.zeros(1)
    return volume(fixed, moved, grid, (zero, zero, zero), options)[:, 0]


def volume(
    fixed: Float32Array, moved: Float32Array, grid: ControlGrid, offsets: Offsets, options: Options
) -> Float32Array:
    """Loss of every label, (N, L)."""
    labels = np.stack(np.meshgrid(*offsets, indexing="ij"), axis=-1).reshape(-1, 3)
    total, held = np.zeros((grid.n_nodes, len(labels))), np.zeros(grid.n_nodes)
    for fixed_mask, moved_mask in zip(fixed, moved, strict=True):
        place, found = centroid(fixed_mask), centroid(moved_mask)
        if place is None:
            continue
        if found is None:
            nodes, losses = grid.pool(fixed_mask) > 0, np.ones(len(labels))
        else:
            distance = np.linalg.norm((found - labels - place) / grid.spacing, axis=1)
            nodes, losses = holders(place, grid), np.minimum(distance / options.cap_spacings, 1)
        total[nodes] += losses
        held += nodes
    return np.asarray(total / np.maximum(held, 1)[:, None], dtype=np.float32)
