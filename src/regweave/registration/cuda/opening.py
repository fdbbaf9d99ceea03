"""Choice of a GPU: by number, that of the present worker, or the first there is."""

import threading
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from regweave.errors import UsageError
from regweave.registration.cuda.device import CudaDevice, Opened

MODULE = "regweave._cuda"  # Compiled where the build finds nvcc; loads without a driver


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver shows: its name, bytes of memory and architecture."""

    name: str
    memory_bytes: int
    architecture: tuple[int, int]


def module() -> Any | None:
    """Return the compiled kernels; None where this build has none."""
    return None if find_spec(MODULE) is None else import_module(MODULE)


def gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs of this machine, and where there is none, why."""
    if (found := module()) is None:
        return (), "this build of regweave has no GPU kernels"
    listed, why = found.devices()
    return tuple(Gpu(name, memory, (major, minor)) for name, memory, major, minor in listed), why


_here = threading.local()
"""GPUs that the present thread has opened: each thread has queues of its own, so that their work runs side by side."""


def use(number: int) -> None:
    """Let the present thread mean this GPU where it asks for one without a number: workers share GPUs so."""
    _here.number = number


def gpu_numbers(which: str) -> tuple[int, ...]:
    """Return the numbers of GPUs, written with commas; the first where none is given."""
    parts = which.split(",") if which else ["0"]
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise UsageError("E173", f"cuda:{which} names no GPUs", "write cuda, cuda:N, or cuda:N,M with their numbers")
    found, why = gpus()
    if not found:
        raise UsageError("E157", f"no GPU can be used: {why}", "use --device cpu, or auto to take what there is")
    for number in map(int, parts):
        if number >= len(found):
            listed = ", ".join(f"cuda:{i} {g.name}" for i, g in enumerate(found))
            raise UsageError("E157", f"there is no GPU {number}", f"choose one of {listed}")
    return tuple(map(int, parts))


def open_gpu(which: str = "") -> CudaDevice:
    """Return a GPU; without a number that of the worker, else the first. It stays open for the thread's later calls."""
    numbers = gpu_numbers(which or str(getattr(_here, "number", 0)))
    if len(numbers) > 1:
        hint = "write cuda:N; several GPUs share the pairs of batch, evaluate and train"
        raise UsageError("E173", f"cuda:{which} names {len(numbers)} GPUs for one registration", hint)
    number, kernels = numbers[0], module()
    if not hasattr(_here, "opened"):
        _here.opened = Opened()
    try:
        return cast("CudaDevice", _here.opened.device(kernels, number, lambda: CudaDevice(kernels, number)))
    except RuntimeError as error:
        raise UsageError("E157", f"GPU {number} cannot be used: {error}", "use --device cpu") from error
