"""CUDA device: memory, copies, and the verbs of both loops that its modules carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regweave.config.settings import Schedule
from regweave.registration import measure as discrete
from regweave.registration.cuda import levels
from regweave.registration.cuda.scene import CudaScene
from regweave.registration.cuda.verbs import RefinementVerbs
from regweave.registration.measure import Around
from regweave.registration.scene import Scene
from regweave.types import Float32Array, ImagePair, Solution, Terms, WeightTable


class CudaDevice(RefinementVerbs):
    """Kernels on one NVIDIA GPU; arrays are handles of its memory.

    Parameters
    ----------
    kernels : module
        The compiled kernels, `regweave.kernels.gpu.module`; tests give the twin that runs on the host.
    ordinal : int
        Which GPU.
    """

    measure = staticmethod(levels.measure)

    def __init__(self, kernels: Any, ordinal: int = 0) -> None:
        self.kernels, self.queue = kernels, kernels.Queue(ordinal)
        self.name = f"cuda:{ordinal}"

    def upload(self, array: Float32Array) -> Any:
        """Copy an array to the GPU."""
        return self.queue.upload(np.ascontiguousarray(array))

    def download(self, array: Any) -> Any:
        """Copy an array to the host."""
        return array.numpy()

    def scene(self, pair: ImagePair, schedule: Schedule) -> CudaScene:
        """Return the pair at its own resolution."""
        return CudaScene.whole(self.kernels, self.queue, Scene.whole(pair, schedule))

    def loss(self, scene: CudaScene, u: Any, around: Around, structures: Sequence[int] | None) -> Float32Array:
        """Loss (N, L) of the labels around u, by the host."""
        return discrete.loss(scene.host, u.numpy(), around, structures)

    def terms(self, terms: levels.CudaTerms) -> Terms:
        """Bring terms to the host."""
        return terms.on_host()

    def minimize(self, terms: levels.CudaTerms, weights: WeightTable, schedule: Schedule) -> Solution:
        """Best labelling and its certificate."""
        return levels.minimize(self.kernels, self.queue, terms, weights, schedule)

    def compose(self, u: Any, around: Around, labels: Any) -> Any:
        """Compose u with the free-form deformation whose control points took these labels."""
        step = levels.increment(self.kernels, self.queue, self.lattices.of(around.grid), around, labels)
        return self.kernels.compose(u, step)
