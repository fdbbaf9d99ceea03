"""Compute devices: the verbs of both registration loops, behind one protocol.

`align` and `refine` are written once, on these verbs. Displacements, terms and forces stay on the device between them;
what the loops themselves read (grids, energies, costs) is on the host.

Another device is one file with such a class and its line in `DEVICES`. A metric that it has no kernel for goes through
`regweave.registration.measure.host_costs`, and a penalty through `regweave.registration.forces.host_forces`: the
host computes costs (N, L) or a force (3, X, Y, Z), and the device uploads them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from regweave import _core, notices
from regweave.config.settings import Member, Refine, Settings
from regweave.energy.assemble import solve
from regweave.errors import UsageError
from regweave.registration import forces as continuous
from regweave.registration import measure as discrete
from regweave.registration.cuda import opening
from regweave.registration.measure import StepSearch
from regweave.registration.scene import Scene
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import Factors, change_level
from regweave.types import Float32Array, Geometry, ImagePair, IntArray, Solution, Terms, WeightTable

DeviceArray: TypeAlias = Any  # An array where the device keeps it; the loops hand it on and never look inside


class Device(Protocol):
    """Protocol of a compute backend for registration.

    Displacements u have shape (3, X, Y, Z), in voxels of the grid of the scene.
    """

    @property
    def name(self) -> str:
        """Word that chooses the device, and that the record of a run bears."""

    @property
    def fields(self) -> Any:
        """What makes warped images, the inverse and determinants: the functions of `regweave._core`."""

    def upload(self, array: Float32Array) -> DeviceArray:
        """Bring an array to the device."""

    def download(self, array: DeviceArray) -> Any:
        """Bring an array to the host."""

    def scene(self, pair: ImagePair, schedule: Settings) -> Any:
        """Return the pair at its own resolution, with ``factors``, ``geometry`` and ``at(resolution)``."""

    def change_level(self, u: DeviceArray, before: Factors, after: Factors, shape: tuple[int, int, int]) -> DeviceArray:
        """Carry a displacement from one shrunken grid to another."""

    def measure(self, scene: Any, u: DeviceArray, around: StepSearch, scales: Any) -> tuple[Any, Any]:
        """Terms of the labels around u, and the scales of the members: fitted where None are given, else as given."""

    def loss(self, scene: Any, u: DeviceArray, around: StepSearch, structures: Sequence[int] | None) -> Float32Array:
        """Loss (N, L) of the labels around u, on the host, for a learner that asks for it."""

    def terms(self, terms: Any) -> Terms:
        """Bring terms to the host."""

    def minimize(self, terms: Any, weights: WeightTable, schedule: Settings) -> Solution:
        """Best labelling and its certificate; the labels stay on the device."""

    def compose(self, u: DeviceArray, around: StepSearch, labels: DeviceArray) -> DeviceArray:
        """Return u ∘ (id + d), d the free-form deformation whose control points took these labels."""

    def smoothed(self, u: DeviceArray, sigma_mm: float, geometry: Geometry) -> DeviceArray:
        """Smooth a displacement by a Gaussian, no further than it stays free of folds."""

    def data_terms(
        self, scene: Any, u: DeviceArray, members: Sequence[Member], weights: WeightTable, settings: Refine
    ) -> Any:
        """Weight map of each member, scaled so that a weight of one means a typical force of one at u; stiffness."""

    def forces(self, scene: Any, terms: Any, u: DeviceArray, smoothness: float) -> tuple[float, float, DeviceArray]:
        """Cost of the data, weighted cost of the smoothness, and the force of both."""

    def descent(self, settings: Refine, grid: ControlGrid, geometry: Geometry) -> Any:
        """Return a descent at its start: ``update(force)`` gives the displacement of the control points, in voxels."""

    def held_back(self, u: DeviceArray, update: DeviceArray, grid: ControlGrid) -> DeviceArray:
        """Return u ∘ (id + δ), δ that of the control points' update, held back where it would fold."""

    def unfolded(
        self, u: DeviceArray, factors: Factors, shape: tuple[int, int, int]
    ) -> tuple[DeviceArray, DeviceArray]:
        """Return u, smoothed where it folds on the grid of the image, and the displacement there."""


class CpuDevice:
    """Compiled kernels on the host; arrays are NumPy's and need no copies."""

    name = "cpu"
    fields: Any = _core
    scene = staticmethod(Scene.whole)
    change_level = staticmethod(change_level)
    measure = staticmethod(discrete.measure)
    loss = staticmethod(discrete.loss)
    smoothed = staticmethod(continuous.smoothed)
    data_terms = staticmethod(continuous.data_terms)
    forces = staticmethod(continuous.forces)
    descent = staticmethod(continuous.Descent)
    held_back = staticmethod(continuous.held_back)
    unfolded = staticmethod(continuous.unfolded)

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

    def compose(self, u: Float32Array, around: StepSearch, labels: IntArray) -> Float32Array:
        """Compose u with the free-form deformation whose control points took these labels."""
        grid = around.grid
        coefficients = around.labels.vectors[labels].T.reshape(3, *grid.nodes).astype(np.float32)
        increment = _core.ffd(
            np.ascontiguousarray(coefficients), tuple(grid.origin), tuple(grid.spacing), grid.image_shape
        )
        return _core.compose(u, increment)


CPU = CpuDevice()


_warned: set[str] = set()


def open_best(which: str = "") -> Any:
    """Return the first GPU, or the host where there is none, with one warning."""
    if which:
        raise UsageError("E173", f"auto:{which} is no device", "write auto, cpu, cuda or cuda:N")
    found, why = opening.gpus()
    if found:
        return opening.open_gpu()
    if why not in _warned:
        _warned.add(why)
        notices.warn(f"W219: no GPU can be used: {why}; the processor computes")
    return CPU


DEVICES: dict[str, Callable[[str], Device]] = {"auto": open_best, "cpu": lambda _: CPU, "cuda": opening.open_gpu}
"""What opens a device; it is given what stands behind the colon of its name."""


LEAST_VOXELS = 16**3  # Smallest fixed image that ``auto`` gives to a GPU: below, the host ends before a GPU is started


def get(name: str | None = None) -> Device:
    """Return the device ``cpu``, ``cuda``, ``cuda:N``, or ``auto``, a GPU where there is one; by default the host."""
    word, _, which = ("cpu" if name is None else name).partition(":")
    if word not in DEVICES or (word == "cpu" and which):
        raise UsageError("E173", f"unknown device {name!r}", "available: auto, cpu, cuda, cuda:N")
    return DEVICES[word](which)


def best_for(pair: ImagePair, schedule: Settings) -> Device:
    """Return what ``auto`` means for a pair: a GPU where there is one, the pair fits into it, and it pays."""
    found = get("auto")
    if found.name == CPU.name or pair.fixed.data.size < LEAST_VOXELS:
        return CPU
    if not found.has_room(pair, schedule):  # type: ignore[attr-defined]
        notices.warn("W219: the GPU has too little memory for this pair; the processor computes")
        return CPU
    return found
