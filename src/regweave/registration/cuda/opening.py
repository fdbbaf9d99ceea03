"""Choice of a GPU: by number, or the first there is."""

from __future__ import annotations

import threading
from typing import Any

from regweave import notices
from regweave.errors import UsageError
from regweave.kernels import gpu
from regweave.registration.cpu import CPU
from regweave.registration.cuda.device import CudaDevice

_here = threading.local()
"""GPUs that the present thread has opened: each thread has queues of its own, so that their work runs side by side."""
_told: set[str] = set()


def open_gpu(which: str = "") -> CudaDevice:
    """Return a GPU, the first where no number is given; it stays open for later calls of the thread.

    Raises
    ------
    UsageError
        E173 for what is no number of a GPU, E157 where there is no such GPU, or none that can be used.
    """
    found, why = gpu.gpus()
    if which and not which.isdecimal():
        raise UsageError("E173", f"cuda:{which} names no GPU", "write cuda, or cuda:N with the number of a GPU")
    number = int(which or 0)
    if not found:
        raise UsageError("E157", f"no GPU can be used: {why}", "use --device cpu, or auto to take what there is")
    if number >= len(found):
        listed = ", ".join(f"cuda:{i} {g.name}" for i, g in enumerate(found))
        raise UsageError("E157", f"there is no GPU {number}", f"choose one of {listed}")
    kept: dict[int, CudaDevice] = _here.__dict__.setdefault("devices", {})
    if number not in kept:
        try:
            kept[number] = CudaDevice(gpu.module(), number)
        except RuntimeError as error:
            raise UsageError("E157", f"GPU {number} cannot be used: {error}", "use --device cpu") from error
    return kept[number]


def open_best(which: str = "") -> Any:
    """Return the first GPU, or the host where there is none, which is said once."""
    if which:
        raise UsageError("E173", f"auto:{which} is no device", "write auto, cpu, cuda or cuda:N")
    found, why = gpu.gpus()
    if found:
        return open_gpu()
    if why not in _told:
        _told.add(why)
        notices.warn(f"W219: no GPU can be used: {why}; the processor computes")
    return CPU
