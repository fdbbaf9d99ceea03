"""Fold-free gradient descent on the control points of a free-form deformation, on a GPU.

The numbers are those of `regweave.registration.steps`; one function of the kernels does the work of each verb, so that
the host looks at the GPU once for each attempt of a step.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from regweave.config.settings import Refine
from regweave.registration import steps
from regweave.registration.class_weights import stretch
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import Factors
from regweave.types import Geometry

KEPT_LATTICES = 8
"""B-splines of so many control grids stay on the GPU."""
SPREAD = 2
"""Blocks round a folding voxel that are smoothed too."""


def change_level(kernels: Any, u: Any, before: Factors, after: Factors, shape: tuple[int, int, int]) -> Any:
    """Carry a displacement from one shrunken grid to another."""
    if before == after:
        return u
    b, a = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
    return kernels.resample_field(u, shape, a / b, (a - b) / (2 * b), b / a)


def gaussian_sides(sigmas: Any, cut: float) -> list[list[float]]:
    """Weights of a Gaussian along each axis, from the voxel itself outwards; none where it is narrower than a voxel."""
    out = []
    for sigma in sigmas:
        x = np.arange(int(cut * float(sigma) + 0.5) + 1)
        side = np.exp(-0.5 / float(sigma) ** 2 * x**2) if sigma > 1e-15 else np.ones(1)
        out.append((side / (2 * side.sum() - side[0])).tolist() if sigma > 1e-15 else [])
    return out


def smoothed(kernels: Any, u: Any, sigma_mm: float, geometry: Geometry) -> Any:
    """Smooth a start by a Gaussian, a narrower one where that would fold."""
    if sigma_mm == 0:
        return u
    least = min(steps.LEAST_JACOBIAN, kernels.least(kernels.jacobian(u)))
    while sigma_mm > steps.LEAST_SIGMA_VOXELS * geometry.spacing_mm.min():
        out = kernels.gaussian(u, gaussian_sides(sigma_mm / geometry.spacing_mm, steps.CUT))
        if kernels.least(kernels.jacobian(out)) >= least:
            return out
        sigma_mm /= 2
    return u


def unfolded(kernels: Any, knots: Any, factors: Factors, shape: tuple[int, int, int]) -> tuple[Any, Any]:
    """Bring the displacement to the grid of the image, its knots smoothed where it folds there."""
    u = change_level(kernels, knots, factors, (1, 1, 1), shape)
    sides = gaussian_sides((1.0, 1.0, 1.0), steps.CUT)
    for _ in range(steps.ATTEMPTS):
        near = kernels.folded_blocks(u, knots.shape[1:], factors, SPREAD)
        if near is None:
            break
        knots = kernels.where_marked(knots, kernels.gaussian(knots, sides), near)
        u = change_level(kernels, knots, factors, (1, 1, 1), shape)
    return knots, u


class Lattices:
    """B-splines of the latest control grids, kept between steps and between registrations."""

    def __init__(self, kernels: Any, queue: Any) -> None:
        self._kernels, self._queue = kernels, queue
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    def of(self, grid: ControlGrid) -> Any:
        """Return the lattice of a control grid."""
        key = (tuple(grid.origin), tuple(grid.spacing), grid.nodes, grid.image_shape)
        if key not in self._kept:
            self._kept[key] = self._kernels.Lattice(self._queue, *key)
            while len(self._kept) > KEPT_LATTICES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def descent(kernels: Any, queue: Any, lattice: Any, settings: Refine, grid: ControlGrid, geometry: Geometry) -> Any:
    """Return Adam at its start, as `regweave.registration.steps.Descent`."""
    spacing = float(grid.spacing[0])
    lengths = (settings.rate * spacing, steps.REACH * spacing)
    moments = (steps.FIRST_MOMENT, steps.SECOND_MOMENT)
    return kernels.Descent(queue, lattice, stretch(geometry), *lengths, steps.QUIET, *moments)


def held_back(kernels: Any, u: Any, update: Any, lattice: Any) -> Any:
    """Return u ∘ (id + δ), held back where it would fold."""
    return kernels.held_back(u, update, lattice, steps.LEAST_JACOBIAN, steps.ATTEMPTS)[0]
