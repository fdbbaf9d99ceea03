"""One whole registration in a process of its own: seconds of its stages and the most memory it held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from _common import failure
from _pairs import PHANTOM, PairName, files, settings_of
from regweave import Progress, register
from regweave.datasets.phantom import make_phantom
from regweave.io import write_image, write_labels
from regweave.pipeline.machine import peak_memory_mb

LARGE_SHAPE = (256, 128, 256)
LARGE_SPACING_MM = (0.9375, 1.5, 0.9375)


@contextmanager
def pair_files(name: PairName, shape: tuple[int, int, int], spacing_mm: tuple[float, float, float]) -> Iterator[Any]:
    """Files of a pair; a phantom of the given size is written for as long as the block lasts."""
    if name.set != PHANTOM:
        yield files(name)
        return
    with TemporaryDirectory() as folder:
        pair = make_phantom(int(name.fixed.split("_")[1]), shape, spacing_mm).pair
        for which in ("fixed", "moving"):
            write_image(Path(folder, f"{which}.nii.gz"), getattr(pair, which))
            write_labels(Path(folder, f"{which}_labels.nii.gz"), getattr(pair, f"{which}_labels"))
        names = ("fixed", "moving", "fixed_labels", "moving_labels")
        yield {n: Path(folder, f"{n}.nii.gz") for n in names}


def measure(paths: Mapping[str, Any], preset: str, init: str, threads: int) -> dict[str, Any]:
    """Register files in a fresh process: a row with the numbers, or with the error."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_attempt, dict(paths), preset, init, threads).result()
        except Exception as error:  # the process died, of too little memory say
            return {"error": failure(error)}


def _attempt(paths: dict[str, Any], preset: str, init: str, threads: int) -> dict[str, Any]:
    try:
        return {"error": None, **_measure(paths, preset, init, threads)}
    except Exception as error:
        return {"error": failure(error)}


def _measure(paths: dict[str, Any], preset: str, init: str, threads: int) -> dict[str, Any]:
    peaks: dict[str, float] = {}

    def note(progress: Progress) -> None:
        peaks[progress.stage] = _peak_mb()

    result = register(**paths, config=settings_of(preset), init=init, threads=threads, on_progress=note)
    summary = result.summary()
    return {
        "shape": list(result.warped.data.shape),
        "voxels": int(np.prod(result.warped.data.shape)),
        "seconds": summary["seconds"],
        "peak_memory_mb": _peak_mb(),
        "peak_memory_so_far_mb": peaks,
        "mean_dice": summary["mean_dice"],
        "folding_fraction": summary["folding_fraction"],
    }


def _peak_mb() -> float:
    """Most memory of this program alone: what `getrusage` says includes the parent's size at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return peak_memory_mb()
