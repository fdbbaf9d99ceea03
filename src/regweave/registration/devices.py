"""Choice of a compute device: the host, or a GPU by number, that of the present worker, or the first there is."""

import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from regweave import notices
from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.registration.cpu import CPU, Device
from regweave.registration.cuda import CudaDevice, Opened
from regweave.types import ImagePair

MODULE = "regweave._cuda"  # Compiled where the build finds nvcc; loads without a driver
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
    if not found.has_room(pair, schedule):
        notices.warn("W219: the GPU has too little memory for this pair; the processor computes")
        return CPU
    return found


def module() -> Any | None:
    """Return the compiled kernels of GPUs; None where this build has none."""
    return None if find_spec(MODULE) is None else import_module(MODULE)


def gpus() -> tuple[list[tuple[str, int, int, int]], str]:
    """Return name, bytes of memory and architecture of the GPUs of this machine, and where there is none, why."""
    if (found := module()) is None:
        return [], "this build of regweave has no GPU kernels"
    listed, why = found.devices()
    return listed, why


_here = threading.local()
"""GPUs that the present thread has opened: each thread has queues of its own, so that their work runs side by side."""
_warned: set[str] = set()


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
            listed = ", ".join(f"cuda:{i} {name}" for i, (name, *_) in enumerate(found))
            raise UsageError("E157", f"there is no GPU {number}", f"choose one of {listed}")
    return tuple(map(int, parts))


def open_gpu(which: str = "") -> Device:
    """Return a GPU; without a number that of the worker, else the first. It stays open for the thread's later calls."""
    numbers = gpu_numbers(which or str(getattr(_here, "number", 0)))
    if len(numbers) > 1:
        hint = "write cuda:N; several GPUs share the pairs of batch, evaluate and train"
        raise UsageError("E173", f"cuda:{which} names {len(numbers)} GPUs for one registration", hint)
    number, kernels = numbers[0], module()
    if not hasattr(_here, "opened"):
        _here.opened = Opened()
    try:
        return _here.opened.device(kernels, number, lambda: CudaDevice(kernels, number))
    except RuntimeError as error:
        raise UsageError("E157", f"GPU {number} cannot be used: {error}", "use --device cpu") from error


def open_best(which: str = "") -> Device:
    """Return the first GPU, or the host where there is none, with one warning."""
    if which:
        raise UsageError("E173", f"auto:{which} is no device", "write auto, cpu, cuda or cuda:N")
    found, why = gpus()
    if found:
        return open_gpu()
    if why not in _warned:
        _warned.add(why)
        notices.warn(f"W219: no GPU can be used: {why}; the processor computes")
    return CPU


DEVICES: dict[str, Callable[[str], Device]] = {"auto": open_best, "cpu": lambda _: CPU, "cuda": open_gpu}
"""What opens a device; it is given what stands behind the colon of its name."""
