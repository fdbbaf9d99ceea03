"""CPU backend: the verbs of both registration loops on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave import _core
from regweave.config.settings import Settings
from regweave.energy.assemble import solve
from regweave.registration import data_terms as continuous
from regweave.registration import measure as discrete
from regweave.registration import steps
from regweave.registration.measure import Around
from regweave.registration.scene import Scene
from regweave.spatial.pyramid import change_level
from regweave.types import Float32Array, IntArray, Solution, Terms, WeightTable


class CpuDevice:
    """Compiled kernels on the host; arrays are NumPy's and need no copies."""

    name = "cpu"
    fields: Any = _core
    scene = staticmethod(Scene.whole)
    change_level = staticmethod(change_level)
    measure = staticmethod(discrete.measure)
    loss = staticmethod(discrete.loss)
    smoothed = staticmethod(steps.smoothed)
    data_terms = staticmethod(continuous.data_terms)
    forces = staticmethod(continuous.forces)
    descent = staticmethod(steps.Descent)
    held_back = staticmethod(steps.held_back)
    unfolded = staticmethod(steps.unfolded)

    def upload(self, array: Float32Array) -> Float32Array:
        """Return the array itself."""
        return array

    def download(self, array: Float32Array) -> Float32Array:
        """Return the array itself."""
        return array

    def terms(self, terms: Terms) -> Terms:
        """Return the terms themselves."""
        return terms

    def minimize(self, terms: Terms, weights: WeightTable, schedule: Settings) -> Solution:
        """Minimise w·Ψ with the engine of the schedule."""
        return solve(terms, weights, schedule.solver)

    def compose(self, u: Float32Array, around: Around, labels: IntArray) -> Float32Array:
        """Compose u with the free-form deformation whose control points took these labels."""
        grid = around.grid
        coefficients = around.labels.vectors[labels].T.reshape(3, *grid.nodes).astype(np.float32)
        increment = _core.ffd(
            np.ascontiguousarray(coefficients), tuple(grid.origin), tuple(grid.spacing), grid.image_shape
        )
        return _core.compose(u, increment)


CPU = CpuDevice()
