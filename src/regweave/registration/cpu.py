"""Device of the host: the verbs of both registration loops, by compiled kernels.

`regweave.registration.align` and `regweave.registration.refine` are written once, on these verbs. Displacements u
(3, X, Y, Z), in voxels of the grid of a scene, terms and forces stay on the device between them; what the loops
themselves read (grids, energies, costs) is on the host.

Another device is a class with the same methods, and its line in `regweave.registration.devices.DEVICES`. A metric that
it has no kernel for goes through `regweave.registration.measure.host_costs`, and a penalty through
`regweave.registration.forces.host_forces`: the host computes costs (N, L) or a force (3, X, Y, Z), and the device
uploads them.
"""

from typing import Any, TypeAlias

import numpy as np

from regweave import _core
from regweave.config.settings import Settings
from regweave.energy.assemble import solve
from regweave.registration import forces as continuous
from regweave.registration import measure as discrete
from regweave.registration.measure import StepSearch
from regweave.registration.scene import Scene
from regweave.spatial.pyramid import change_level
from regweave.types import Float32Array, IntArray, Solution, Terms, WeightTable

Device: TypeAlias = Any  # `CpuDevice`, or a class with the same methods
DeviceArray: TypeAlias = Any  # An array where the device keeps it; the loops hand it on and never look inside


class CpuDevice:
    """Compiled kernels on the host; arrays are NumPy's and need no copies."""

    name = "cpu"
    fields: Any = _core  # what makes warped images, the inverse and determinants
    scene = staticmethod(Scene.whole)
    change_level = staticmethod(change_level)
    measure = staticmethod(discrete.measure)
    loss = staticmethod(discrete.loss)
    smoothed = staticmethod(continuous.smoothed)
    data_terms = continuous.data_terms
    columns = staticmethod(continuous.columns)
    laid = staticmethod(continuous.laid)
    typical_force = staticmethod(continuous.typical_force)
    forces = staticmethod(continuous.forces)
    descent = staticmethod(continuous.Descent)
    held_back = staticmethod(continuous.held_back)
    unfolded = staticmethod(continuous.unfolded)

    def upload(self, array: Float32Array) -> Float32Array:
        """Bring an array to the device: the array itself."""
        return array

    def download(self, array: Any) -> Any:
        """Bring an array to the host: the array itself."""
        return array

    def terms(self, terms: Terms) -> Terms:
        """Bring terms to the host: the terms themselves."""
        return terms

    def minimize(self, terms: Terms, weights: WeightTable, schedule: Settings) -> Solution:
        """Minimise w·Ψ with the engine of the schedule; the labels stay on the device."""
        return solve(terms, weights, schedule.solver)

    def compose(self, u: Float32Array, around: StepSearch, labels: IntArray) -> Float32Array:
        """Compose u with the free-form deformation whose control points took these labels."""
        grid = around.grid
        coefficients = around.labels.vectors[labels].T.reshape(3, *grid.nodes).astype(np.float32)
        increment = _core.ffd(
            np.ascontiguousarray(coefficients), tuple(grid.origin), tuple(grid.spacing), grid.image_shape
        )
        return _core.compose(u, increment)


CPU = CpuDevice()
