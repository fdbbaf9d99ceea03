"""CUDA device: memory, copies, and the verbs of both loops that its modules carry."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.registration.cuda.verbs import RefinementVerbs
from regweave.types import Float32Array


class CudaDevice(RefinementVerbs):
    """Kernels on one NVIDIA GPU; arrays are handles of its memory.

    Parameters
    ----------
    kernels : module
        The compiled kernels, `regweave.kernels.gpu.module`; tests give the twin that runs on the host.
    ordinal : int
        Which GPU.
    """

    def __init__(self, kernels: Any, ordinal: int = 0) -> None:
        self.kernels, self.queue = kernels, kernels.Queue(ordinal)
        self.name = f"cuda:{ordinal}"

    def upload(self, array: Float32Array) -> Any:
        """Copy an array to the GPU."""
        return self.queue.upload(np.ascontiguousarray(array))

    def download(self, array: Any) -> Any:
        """Copy an array to the host."""
        return array.numpy()
