"""Fold-free gradient descent on the control points of a free-form deformation."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from regweave import _core
from regweave.config.settings import Refine
from regweave.registration.class_weights import stretch
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import Factors, change_level
from regweave.types import Float32Array, Geometry

LEAST_JACOBIAN = 0.1
"""A step may not bring a voxel's volume change below this."""
ATTEMPTS = 8
"""Times that the control points round folding voxels are held, farther each time, before the step is given up."""
REACH = 0.4
"""Largest displacement of a control point in one step, in control spacings: cubic B-splines fold beyond."""
LEAST_SIGMA_VOXELS = 0.1
"""A Gaussian narrower than this changes nothing."""
CUT = 3.0
"""Half the length of the smoothing kernel, in standard deviations."""
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.99
QUIET = 0.1
"""Control points with a gradient below this share of the typical one do not take full steps."""


class Descent:
    """Adam on control points, the step length set by each point's own recent gradients (Kingma and Ba 2015).

    The second moment is that of the whole vector, so that the direction is kept.
    """

    def __init__(self, settings: Refine, grid: ControlGrid, geometry: Geometry) -> None:
        spacing = float(grid.spacing[0])
        self._grid, self._length, self._reach = grid, settings.rate * spacing, REACH * spacing
        self._stretch = tuple(float(s) for s in stretch(geometry))
        self._first = np.zeros((3, *grid.nodes), dtype=np.float32)
        self._second = np.zeros(grid.nodes, dtype=np.float32)
        self._done = 0

    def update(self, force: Float32Array) -> Float32Array:
        """Displacement of the control points, in voxels, bounded so that the step is invertible."""
        self._done += 1
        g = _core.ffd_adjoint(force, self._grid.origin, self._grid.spacing, self._grid.nodes)
        keep = (FIRST_MOMENT, SECOND_MOMENT)
        return _core.descend(
            g, self._first, self._second, self._stretch, self._done, keep, self._length, self._reach, QUIET
        )


def held_back(u: Float32Array, update: Float32Array, grid: ControlGrid) -> Float32Array:
    """Return u ∘ (id + δ), where δ is the free-form deformation of the update.

    Control points near a voxel that the step would bring below the least Jacobian are left where they are.
    """
    return _core.hold_back(u, update, grid.origin, grid.spacing, LEAST_JACOBIAN, ATTEMPTS)


def smoothed(u: Float32Array, sigma_mm: float, geometry: Geometry) -> Float32Array:
    """Smooth a start by a Gaussian, a narrower one where that would fold: an average of displacements rarely does."""
    if sigma_mm == 0:
        return u
    least = min(LEAST_JACOBIAN, float(_core.jacobian(u).min()))
    while sigma_mm > LEAST_SIGMA_VOXELS * geometry.spacing_mm.min():
        sigma = sigma_mm / geometry.spacing_mm
        out = _core.gaussian(u, sigma, CUT)
        if _core.jacobian(out).min() >= least:
            return out
        sigma_mm /= 2
    return u


def unfolded(knots: Float32Array, factors: Factors, shape: tuple[int, int, int]) -> tuple[Float32Array, Float32Array]:
    """Bring the displacement to the grid of the image, smoothed where it folds there though not on that of the steps.

    Upsampling can create folds that central differences on the coarse grid do not see. The knots are smoothed, not the
    voxels of the image, so that the fine displacement is the interpolation of the knots everywhere.

    Returns
    -------
    knots, displacement : float32 arrays of shape (3, X, Y, Z)
        In voxels of the shrunken grid, and of the image.
    """
    u = change_level(knots, factors, (1, 1, 1), shape)
    for _ in range(ATTEMPTS):
        jacobian = _core.jacobian(u)
        if jacobian.min() > 0:
            break
        folding = np.argwhere(jacobian <= 0)
        mask = np.zeros(knots.shape[1:], dtype=bool)
        mask[tuple((folding // factors).T)] = True
        near = ndimage.binary_dilation(mask, iterations=2)
        knots = knots.copy()
        for box in ndimage.find_objects(ndimage.label(near)[0]):
            wide = tuple(slice(max(0, s.start - 3), s.stop + 3) for s in box)
            part, inside = knots[:, *wide], near[wide]
            part[:, inside] = ndimage.gaussian_filter(part, (0, 1, 1, 1), mode="nearest", truncate=CUT)[:, inside]
        del u, jacobian, folding  # room for the next ones
        u = change_level(knots, factors, (1, 1, 1), shape)
    return knots, u
