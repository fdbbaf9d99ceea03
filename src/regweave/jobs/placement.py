"""Placement of tasks on devices: what every task is told, and which GPU each worker takes."""

from __future__ import annotations

from dataclasses import dataclass

from regweave.errors import UsageError
from regweave.jobs.cluster import Cluster
from regweave.registration import devices
from regweave.registration.cuda.opening import gpu_numbers

LANES = 4
"""Registrations that one GPU works on at once where nothing else is asked for; more threads of Python are slower."""


@dataclass(frozen=True)
class Placement:
    """Device of the tasks of a list.

    Parameters
    ----------
    word : str
        What each task is told: ``cpu``, ``cuda`` or ``auto``; a worker knows which GPU is meant.
    gpus : tuple of int
        Numbers of the GPUs of this machine that workers are dealt out to; none on the processor or a cluster.
    """

    word: str = "cpu"
    gpus: tuple[int, ...] = ()

    def lanes(self, workers: int | None, most: int) -> int:
        """Threads that register on the GPUs at once, of at most so many."""
        return workers or max(1, min(most, LANES * len(self.gpus)))


def place(device: str | None, scheduler: str | Cluster | None = None) -> Placement:
    """Check the word for a device, and that its GPUs are there, before anything is read.

    Raises
    ------
    UsageError
        E173 for what names no device, E157 where a GPU is missing.

    Examples
    --------
    >>> place("cpu")
    Placement(word='cpu', gpus=())
    """
    word, _, which = (device or "cpu").partition(":")
    if scheduler is not None and word in ("auto", "cuda"):
        if which:
            hint = "write --device cuda, and start each worker with its own GPU, CUDA_VISIBLE_DEVICES=N"
            raise UsageError("E173", f"--device {device} numbers GPUs that workers of a cluster have", hint)
        return Placement(word)
    if word == "cuda":
        return Placement(word, gpu_numbers(which))
    found = devices.get(device)
    return Placement() if found.name == "cpu" else Placement(word, (0,))
