"""Run one method on one pair in a process of its own, and judge the field that it wrote: the same way for all."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from _common import failure
from _fresh import pair_files
from _pairs import PHANTOM_SHAPE, PHANTOM_SPACING_MM, SETS, PairName
from _peer_methods import FOLDER, Method
from regweave.io import fill_value, write_image, write_labels
from regweave.measures import dice, hd95_mm, regularity
from regweave.pipeline.prepare import start_pair
from regweave.pipeline.reading import Reading, as_stored, read_inputs
from regweave.spatial import warp_image, warp_labels
from regweave.types import Field, ImagePair, LabelMap, Transform

THREAD_VARIABLES = (
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


@dataclass(frozen=True)
class Case:
    """A pair as every method gets it: files to register, and in memory what the judge needs."""

    paths: Mapping[str, Path]
    pair: ImagePair
    labels: list[int]


@contextmanager
def case_of(name: PairName, init: str) -> Iterator[Case]:
    """Read a pair. With an initial alignment the moving files are those of the resampled image, for every method."""
    labels = list(SETS[name.set].labels)
    reading = Reading(classes=tuple(labels))
    with pair_files(name, PHANTOM_SHAPE, PHANTOM_SPACING_MM) as given_paths, TemporaryDirectory() as folder:
        paths = dict(given_paths)
        pair = _started(paths, reading, init)
        if not np.array_equal(pair.initial, np.eye(4)):
            paths |= _resampled(pair, Path(folder))
            pair = _started(paths, reading, "none")
        yield Case(paths, pair, labels)


def _started(paths: Mapping[str, Path], reading: Reading, init: str) -> ImagePair:
    """Read a pair at its start, on the grids of its files, as every peer reads it."""
    data = read_inputs(**paths, reading=reading)
    return as_stored(start_pair(data, init), data)


def _resampled(pair: ImagePair, folder: Path) -> dict[str, Path]:
    assert pair.moving_labels is not None
    start = Transform(Field.zero(pair.fixed.geometry), pair.initial)
    paths = {"moving": folder / "moving.nii.gz", "moving_labels": folder / "moving_labels.nii.gz"}
    write_image(paths["moving"], warp_image(pair.moving, start, fill=fill_value(pair.moving)))
    write_labels(paths["moving_labels"], warp_labels(pair.moving_labels, start))
    return paths


def measure(method: Method, setting: str, case: Case, threads: int, timeout_s: float) -> dict[str, Any]:
    """Register a pair with one setting: a row with all numbers, or with the error."""
    if method.missing is not None:
        return {"error": method.missing}
    with TemporaryDirectory() as folder:
        field_path = Path(folder, "field.npy")
        row = _register(method, _job(method, setting, case, threads, field_path), Path(folder), timeout_s)
        if row["error"] is not None:
            return row
        try:
            return {**row, **judge(case, np.load(field_path, allow_pickle=False))}
        except (OSError, ValueError) as error:
            return {"error": failure(error)}


def _job(method: Method, setting: str, case: Case, threads: int, field_path: Path) -> dict[str, Any]:
    options = {k: v for k, v in method.settings[setting].items() if k != "sha256"}
    if "model" in options:
        options["moving_labels"] = str(case.paths["moving_labels"])
    return {
        "fixed_path": str(case.paths["fixed"]),
        "moving_path": str(case.paths["moving"]),
        "out_field_path": str(field_path),
        "setting": options,
        "threads": threads,
    }


def _register(method: Method, job: Mapping[str, Any], folder: Path, timeout_s: float) -> dict[str, Any]:
    """Run the worker; the wall time is that of its whole process, from start to end."""
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    command = [method.python, str(FOLDER / "_worker.py"), method.adapter, str(path)]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(job["threads"]))}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {timeout_s:g} s"}
    wall_seconds = time.perf_counter() - start
    answer = path.with_suffix(".answer")
    if not answer.exists():
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return {"error": f"process ended with status {done.returncode}: {last[:200]}"}
    row: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if row["error"] is not None:
        return {"error": row["error"].replace(str(folder), "…")}
    return {**row, "wall_seconds": wall_seconds}


def judge(case: Case, displacement: Any) -> dict[str, Any]:
    """Dice and HD95 by label of the labels warped by a field in LPS millimetres, and how regular the field is."""
    geometry = case.pair.fixed.geometry
    data = np.ascontiguousarray(displacement, dtype=np.float32)
    if data.shape != (3, *geometry.shape):
        raise ValueError(f"the field has shape {data.shape}, wanted is {(3, *geometry.shape)}")
    if not np.isfinite(data).all():
        raise ValueError("the field has numbers that are not finite")
    assert case.pair.moving_labels is not None
    assert case.pair.fixed_labels is not None
    field = Field(data, geometry)
    warped = warp_labels(case.pair.moving_labels, Transform(field))
    scores = dice(warped.data, case.pair.fixed_labels.data, case.labels)
    return {
        "dice": {str(v): d for v, d in scores.items()},
        "hd95_mm": _distances_mm(warped, case.pair.fixed_labels, case.labels),
        **regularity(field),
    }


def start_scores(case: Case) -> dict[str, Any]:
    """Scores before any deformation."""
    return judge(case, np.zeros((3, *case.pair.fixed.geometry.shape), dtype=np.float32))


def _distances_mm(a: LabelMap, b: LabelMap, labels: Sequence[int]) -> dict[str, float]:
    return {str(v): hd95_mm(a.data == v, b.data == v, b.geometry.spacing_mm) for v in labels}
