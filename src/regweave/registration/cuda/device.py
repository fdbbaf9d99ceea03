"""CUDA device: memory, copies, and the verbs of both loops that its modules carry."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.registration import measure as discrete
from regweave.registration.cuda import levels
from regweave.registration.cuda.constants import Constants
from regweave.registration.cuda.memory import free_bytes, needed_bytes, require_memory
from regweave.registration.cuda.scene import CudaScene, GpuPair
from regweave.registration.cuda.verbs import RefinementVerbs
from regweave.registration.measure import Around
from regweave.registration.scene import Scene
from regweave.types import Float32Array, ImagePair, Solution, Terms, WeightTable


class CudaDevice(RefinementVerbs):
    """Kernels on one NVIDIA GPU; arrays are handles of its memory.

    Parameters
    ----------
    kernels : module
        The compiled kernels, `regweave.registration.cuda.opening.module`; tests give the twin that runs on the host.
    ordinal : int
        Which GPU.
    """

    measure = staticmethod(levels.measure)

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
        """Tell whether a pair fits into the memory that is free."""
        needed = needed_bytes(pair, schedule)
        return needed <= free_bytes(self.queue, needed)

    def _leave(self, ended: Any) -> None:
        """Give the images of a pair up when the pair is."""
        if self._pair is not None and self._pair[0] is ended:
            self._pair = None

    def loss(self, scene: CudaScene, u: Any, around: Around, structures: Sequence[int] | None) -> Float32Array:
        """Loss (N, L) of the labels around u, by the host."""
        return discrete.loss(scene.host, u.numpy(), around, structures)

    def terms(self, terms: levels.CudaTerms) -> Terms:
        """Bring terms to the host."""
        return terms.on_host()

    def minimize(self, terms: levels.CudaTerms, weights: WeightTable, schedule: Settings) -> Solution:
        """Best labelling and its certificate."""
        return levels.minimize(self.kernels, self.constants, terms, weights, schedule)

    def compose(self, u: Any, around: Around, labels: Any) -> Any:
        """Compose u with the free-form deformation whose control points took these labels."""
        step = levels.increment(self.kernels, self.constants, self.lattices.of(around.grid), around, labels)
        return self.kernels.compose(u, step)
