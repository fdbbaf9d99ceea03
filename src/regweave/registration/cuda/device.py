"""CUDA device: memory, copies, and the functions that both loops call; dense fields with arrays of the host."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from regweave.config.settings import Level, Refine, Settings
from regweave.errors import ResourceError
from regweave.registration import forces as continuous
from regweave.registration import measure as discrete
from regweave.registration.cuda import levels, refinement
from regweave.registration.cuda.refinement import gaussian_sides
from regweave.registration.cuda.scene import Constants, CudaScene, GpuPair
from regweave.registration.measure import StepSearch
from regweave.registration.scene import Scene
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.pyramid import Factors, shrink_geometry
from regweave.types import Float32Array, Float64Array, Geometry, ImagePair, IntArray

FLOAT, DOUBLE = 4, 8
FULL_FIELDS = 3  # Displacements at full resolution that are alive at once, in the level change at the end
LEVEL_IMAGES = 48
"""Arrays of the size of a level's image that a step keeps: views, features of twelve channels, fields, their copies."""
MESSAGES = 5  # Arrays (N, L) in float64 that message passing keeps: unaries, one message for each axis, room
_waiting: defaultdict[tuple[Any, int], list[Any]] = defaultdict(list)  # Idle devices, by kernels and number
SPREAD = 2  # Blocks round a folding voxel that are smoothed too


class CudaDevice:
    """Kernels on one NVIDIA GPU, or their twin on the host, which tests use; arrays are handles of its memory."""

    measure = staticmethod(levels.measure)
    terms = staticmethod(levels.CudaTerms.on_host)
    minimize = levels.minimize
    data_terms, forces = refinement.data_terms, refinement.forces

    def __init__(self, kernels: Any, ordinal: int = 0) -> None:
        self.kernels, self.queue = kernels, kernels.Queue(ordinal)
        self.name, self.constants = f"cuda:{ordinal}", Constants(kernels, self.queue)
        self._brought: tuple[Any, Any] | None = None
        self._pair: tuple[Any, GpuPair] | None = None

    def upload(self, array: Float32Array) -> Any:
        """Copy an array to the GPU; one that was brought from there last is there still."""
        if self._brought is not None and self._brought[0]() is array:
            return self._brought[1]
        return self.queue.upload(np.ascontiguousarray(array))

    def download(self, array: Any) -> Any:
        """Copy an array to the host; it is read-only there, since the GPU may keep it too."""
        out = array.numpy()
        out.flags.writeable = False
        self._brought = (weakref.ref(out), array)
        weakref.finalize(out, self._forget, array)
        return out

    def _forget(self, array: Any) -> None:
        if self._brought is not None and self._brought[1] is array:
            self._brought = None

    def scene(self, pair: ImagePair, schedule: Settings) -> CudaScene:
        """Return the pair at its own resolution; the images of the last pair are still on the GPU."""
        host = Scene.whole(pair, schedule)
        if self._pair is None or self._pair[0]() is not pair or not self._pair[1].shows(host):
            self._pair = None
            require_memory(self.queue, pair, schedule)
            self._pair = (weakref.ref(pair, self._leave), GpuPair.of(self.kernels, self.queue, self.constants, host))
        return CudaScene.whole(host, self._pair[1])

    def has_room(self, pair: ImagePair, schedule: Settings) -> bool:
        """Return whether a pair fits into the memory that is free."""
        needed = needed_bytes(pair, schedule)
        return needed <= free_bytes(self.queue, needed)

    def _leave(self, ended: Any) -> None:
        """Give the images of a pair up when the pair is."""
        if self._pair is not None and self._pair[0] is ended:
            self._pair = None

    def loss(self, scene: CudaScene, u: Any, around: StepSearch, structures: Sequence[int] | None) -> Float32Array:
        """Loss (N, L) of the labels around u, by the host."""
        return discrete.loss(scene.host, u.numpy(), around, structures)

    def compose(self, u: Any, around: StepSearch, labels: Any) -> Any:
        """Compose u with the free-form deformation whose control points took these labels."""
        offsets = around.labels.offsets
        along, k = self.constants.array(np.concatenate(offsets)), tuple(len(o) for o in offsets)
        points = self.kernels.label_vectors(labels, along, k, around.grid.nodes)
        return self.kernels.compose(u, self.constants.lattice(around.grid).displacement(points))

    @cached_property
    def fields(self) -> CudaFields:
        """Kernels of dense displacement fields, with arrays of the host in and out."""
        return CudaFields(self.kernels, self.queue)

    def change_level(self, u: Any, before: Factors, after: Factors, shape: tuple[int, int, int]) -> Any:
        """Resample a displacement from one shrunken grid to another."""
        if before == after:
            return u
        b, a = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
        return self.kernels.resample_field(u, shape, a / b, (a - b) / (2 * b), b / a)

    def smoothed(self, u: Any, sigma_mm: float, geometry: Geometry) -> Any:
        """Smooth a displacement by a Gaussian, a narrower one where that would fold."""
        if sigma_mm == 0:
            return u
        kernels = self.kernels
        least = min(continuous.LEAST_JACOBIAN, kernels.least(kernels.jacobian(u)))
        while sigma_mm > continuous.LEAST_SIGMA_VOXELS * geometry.spacing_mm.min():
            out = kernels.gaussian(u, gaussian_sides(sigma_mm / geometry.spacing_mm, continuous.CUT))
            if kernels.least(kernels.jacobian(out)) >= least:
                return out
            sigma_mm /= 2
        return u

    def descent(self, settings: Refine, grid: ControlGrid, geometry: Geometry) -> Any:
        """Return Adam at its start, as `regweave.registration.forces.Descent`."""
        spacing, s = float(grid.spacing[0]), continuous
        lengths, moments = (settings.rate * spacing, s.REACH * spacing), (s.FIRST_MOMENT, s.SECOND_MOMENT)
        lattice = self.constants.lattice(grid)
        return self.kernels.Descent(self.queue, lattice, s.stretch(geometry), *lengths, s.QUIET, *moments)

    def held_back(self, u: Any, update: Any, grid: ControlGrid) -> Any:
        """Return u ∘ (id + δ), δ that of the control points' update, held back where it would fold."""
        limits = (continuous.LEAST_JACOBIAN, continuous.ATTEMPTS)
        return self.kernels.held_back(u, update, self.constants.lattice(grid), *limits)[0]

    def unfolded(self, u: Any, factors: Factors, shape: tuple[int, int, int]) -> tuple[Any, Any]:
        """Return u, smoothed where it folds on the grid of the image, and the displacement there."""
        knots, sides = u, gaussian_sides((1.0, 1.0, 1.0), continuous.CUT)
        u = self.change_level(knots, factors, (1, 1, 1), shape)
        for _ in range(continuous.ATTEMPTS):
            if (near := self.kernels.folded_blocks(u, knots.shape[1:], factors, SPREAD)) is None:
                break
            knots = self.kernels.where_marked(knots, self.kernels.gaussian(knots, sides), near)
            u = self.change_level(knots, factors, (1, 1, 1), shape)
        return knots, u


class CudaFields:
    """Functions of `regweave._core` by the kernels of a GPU."""

    def __init__(self, kernels: Any, queue: Any) -> None:
        self._kernels, self._queue = kernels, queue

    def _upload(self, array: Any, dtype: Any = np.float32) -> Any:
        return self._queue.upload(np.ascontiguousarray(array, dtype=dtype))

    def warp(self, image: Float32Array, matrix: Float64Array, field: Float32Array, fill: float, clamp: bool) -> Any:
        """Sample an image at matrix · (x + field(x)); outside: the border if clamp, else fill."""
        if clamp:
            return self.warp_channels(image[None], matrix, field)[0]
        return self._kernels.warp_filled(self._upload(image), matrix, self._upload(field), fill).numpy()

    def warp_channels(self, channels: Float32Array, matrix: Float64Array, u: Float32Array) -> Any:
        """Pull images (C, X, Y, Z) through matrix ∘ (id + u); beyond the grid the border value holds."""
        return self._kernels.warp(self._upload(channels), matrix, self._upload(u)).numpy()

    def warp_valid(self, shape: tuple[int, int, int], matrix: Float64Array, field: Float32Array) -> Any:
        """1 where matrix · (x + field(x)) is inside a grid of that shape."""
        found = self._kernels.warp_valid(shape, matrix, self._upload(field), None, None).numpy()
        return found.astype(np.uint8)

    def warp_labels(self, labels: IntArray, matrix: Float64Array, field: Float32Array) -> Any:
        """Take the label with the largest sum of trilinear weights; 0 outside."""
        return self._kernels.warp_labels(self._upload(labels, np.int32), matrix, self._upload(field)).numpy()

    def jacobian(self, u: Float32Array) -> Any:
        """Return det(I + du/dx), central differences, one-sided at borders."""
        return self._kernels.jacobian(self._upload(u)).numpy()

    def return_errors(self, u: Float32Array, there: Float64Array, back: Float32Array, *affines: Float64Array) -> Any:
        """Return how far each fixed voxel ends from where it started, in mm; affines (4, 4) as the kernel has them."""
        rows = (np.ascontiguousarray(a[:3], dtype=np.float64) for a in affines)
        return self._kernels.return_errors(self._upload(u), there, self._upload(back), *rows).numpy()

    def invert(
        self, u: Float32Array, matrix: Float64Array, inverse_matrix: Float64Array, shape: tuple[int, int, int],
        max_iter: int, tolerance: float,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Solve matrix · (p + u(p)) = q for each voxel q of shape; return matrix · p - q and what remains."""
        arguments = (matrix, inverse_matrix, shape, max_iter, tolerance)
        found, residual = self._kernels.invert(self._upload(u), *arguments)
        return found.numpy(), residual.numpy()


def needed_bytes(pair: ImagePair, schedule: Settings) -> int:
    """Bytes that the levels and a refinement at the finest of them need at once."""
    fixed, moving = (prod(image.geometry.shape) for image in (pair.fixed, pair.moving))
    full = FLOAT * (fixed + moving + 3 * FULL_FIELDS * fixed)
    return full + max(_step_bytes(pair, schedule, level) for level in schedule.levels_for(pair.fixed.geometry))


def _step_bytes(pair: ImagePair, schedule: Settings, level: Level) -> int:
    """Bytes of one step of a level: images and fields of its size, costs, messages."""
    geometry = shrink_geometry(pair.fixed.geometry, level.factors(pair.fixed.geometry))
    nodes = ControlGrid.cover(geometry, level.spacing_mm, level.support).n_nodes
    volume = nodes * level.labels_per_axis**3 * (FLOAT * len(schedule.bank) + DOUBLE * MESSAGES)
    return FLOAT * LEVEL_IMAGES * prod(geometry.shape) + volume


def free_bytes(queue: Any, needed: int) -> int:
    """Bytes that are free; idle devices give theirs up where that is less than is needed."""
    if needed > queue.memory()[0]:
        release_idle()
    return int(queue.memory()[0])


def require_memory(queue: Any, pair: ImagePair, schedule: Settings) -> None:
    """Raise E140 for a pair that does not fit into the memory of the GPU."""
    needed, total = needed_bytes(pair, schedule), queue.memory()[1]
    if needed > (free := free_bytes(queue, needed)):
        raise ResourceError(
            "E140",
            f"this registration needs about {needed / 2**20:.0f} MB of the GPU, of whose {total / 2**20:.0f} MB "
            f"{free / 2**20:.0f} MB are free",
            "use --device cpu, a coarser preset or smaller images, or end what else uses the GPU",
        )


class Opened:
    """Devices that one thread has opened, by number; they become idle when the thread, and so this, ends.

    A queue allocates and pins memory during its first registration, which takes longer than the registration, and a
    learner starts threads anew for each fit: the next thread takes an idle device with its memory.
    """

    def __init__(self) -> None:
        self._devices: dict[tuple[Any, int], Any] = {}
        weakref.finalize(self, _leave, self._devices).atexit = False

    def device(self, kernels: Any, number: int, make: Any) -> Any:
        """Return the device of a number: this thread's, an idle one, or one that is made now."""
        key = (kernels, number)
        if key not in self._devices:
            try:
                self._devices[key] = _waiting[key].pop()
            except IndexError:
                self._devices[key] = make()
        return self._devices[key]


def _leave(devices: dict[tuple[Any, int], Any]) -> None:
    for key, device in devices.items():
        _waiting[key].append(device)


def release_idle() -> None:
    """Give the memory of idle devices back."""
    _waiting.clear()
