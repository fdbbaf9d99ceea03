"""Verbs of the refinement loop on a GPU, which its device inherits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from regweave.config.member import Member
from regweave.config.settings import Refine
from regweave.registration.cuda import refinement, terms
from regweave.registration.cuda.outputs import CudaFields
from regweave.registration.cuda.refinement import Lattices
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import Factors
from regweave.types import Geometry, WeightTable


class RefinementVerbs:
    """Verbs of the refinement; see `regweave.registration.devices.Device`."""

    kernels: Any
    queue: Any

    @cached_property
    def fields(self) -> CudaFields:
        """Kernels of dense displacement fields, with arrays of the host in and out."""
        return CudaFields(self.kernels, self.queue)

    @cached_property
    def lattices(self) -> Lattices:
        """Lattices of the control grids in use."""
        return Lattices(self.kernels, self.queue)

    def change_level(self, u: Any, before: Factors, after: Factors, shape: tuple[int, int, int]) -> Any:
        """Carry a displacement from one shrunken grid to another."""
        return refinement.change_level(self.kernels, u, before, after, shape)

    def smoothed(self, u: Any, sigma_mm: float, geometry: Geometry) -> Any:
        """Smooth a displacement by a Gaussian, no further than it stays free of folds."""
        return refinement.smoothed(self.kernels, u, sigma_mm, geometry)

    def data_terms(
        self, scene: Any, u: Any, members: Sequence[Member], weights: WeightTable, settings: Refine
    ) -> terms.GpuObjective:
        """Weight map of each member, scaled so that a weight of one means a typical force of one at u; stiffness."""
        return terms.data_terms(self, scene, u, members, weights, settings)

    def forces(self, scene: Any, objective: terms.GpuObjective, u: Any, smoothness: float) -> tuple[float, float, Any]:
        """Cost of the data, weighted cost of the smoothness, and the force of both."""
        return terms.forces(self, scene, objective, u, smoothness)

    def descent(self, settings: Refine, grid: ControlGrid, geometry: Geometry) -> Any:
        """Return a descent at its start."""
        return refinement.descent(self.kernels, self.queue, self.lattices.of(grid), settings, grid, geometry)

    def held_back(self, u: Any, update: Any, grid: ControlGrid) -> Any:
        """Return u ∘ (id + δ), δ that of the control points' update, held back where it would fold."""
        return refinement.held_back(self.kernels, u, update, self.lattices.of(grid))

    def unfolded(self, u: Any, factors: Factors, shape: tuple[int, int, int]) -> tuple[Any, Any]:
        """Return u, smoothed where it folds on the grid of the image, and the displacement there."""
        return refinement.unfolded(self.kernels, u, factors, shape)
