"""Resumable store of many small tasks, which outlast failures and interruptions.

A finished task is one JSON file in a store, named by a hash of the task's content and written whole or not at all. The
same call after a crash takes these and runs the rest, and gives what one uninterrupted call would have given.
"""

import dataclasses
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from regweave.errors import UsageError
from regweave.io import atomic_path
from regweave.jobs.workers import Cluster, Function, Outcome, Team, as_cluster, on_cluster, on_processes, program_hash
from regweave.predictors import Predictor
from regweave.progress import BatchProgress, OnBatchProgress
from regweave.run.memory import MAX_THREADS, allowed_threads

logger = logging.getLogger(__name__)


def run_tasks(
    tasks: Iterable[tuple[str, Any]], function: Function, *, workers: int | Team | None = None,
    scheduler: str | Cluster | None = None, store: Path | None = None, on_progress: OnBatchProgress | None = None,
    whole: Callable[[Outcome], bool] | None = None, missing: str | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run a function on many arguments in parallel; an outcome for each, in the order of the tasks.

    Keys are unique names; arguments are small: JSON values, paths, numpy arrays, dataclasses, pydantic models. Where
    the function reads files, put their hashes in, or a changed file goes unnoticed by the store. The function returns a
    JSON value, and is one of a module that the workers can import. A failure stops no other task.

    ``workers`` are processes of this machine, each with one kernel thread; by default as many as threads are allowed. A
    Dask ``scheduler`` takes their place, whose workers must run the code of the caller. Finished tasks are kept in
    ``store`` and looked up there first; those that failed, those of other code, and those whose files ``whole`` finds
    changed run again; with ``missing``, the text of their error, no task runs.

    Raises E192 and E193 where workers or scheduler cannot be used, E156 where the scheduler has no workers, E197 where
    it was lost, E199 where a worker runs other code. On Ctrl-C the running processes are ended first.
    """
    listed = list(tasks)
    if len({key for key, _ in listed}) < len(listed):
        raise ValueError("two tasks have the same key; keys must be unique")
    cluster, n = as_cluster(scheduler), worker_count(workers, scheduler)
    name = [program_hash(), function.__module__, function.__qualname__]
    files = {key: store and store / f"{content_hash([*name, key, arguments])}.json" for key, arguments in listed}
    stored = {key: outcome for key, file in files.items() if (outcome := _load(file, key))}
    outcomes = {key: outcome for key, outcome in stored.items() if whole is None or whole(outcome)}
    if missing is not None:
        outcomes |= {key: Outcome(key, None, missing) for key, _ in listed if key not in outcomes}
    todo = [(key, arguments) for key, arguments in listed if key not in outcomes]
    reused, start = len(outcomes), time.monotonic()

    def report(key: str, seconds_left: float) -> None:
        if on_progress is not None:
            failed = sum(outcome.error is not None for outcome in outcomes.values())
            on_progress(BatchProgress(len(outcomes), len(listed), failed, key, seconds_left))

    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    if reused:
        logger.info("%d of %d tasks are taken from the store", reused, len(listed))
        report("", math.nan)
    with nullcontext(workers) if isinstance(workers, Team) else Team(n) as team:
        given = [arguments for _, arguments in todo]
        answers = on_processes(function, given, team) if cluster is None else on_cluster(function, given, cluster)
        with closing(answers):  # ends the processes at once on Ctrl-C, wherever it strikes
            for index, answer in answers:
                key = todo[index][0]
                outcomes[key] = dataclasses.replace(answer, key=key)
                if (file := files[key]) is not None and answer.error is None:
                    content = {"key": key, "value": answer.value, "seconds": answer.seconds}
                    with atomic_path(file) as part:  # Python writes and reads floats without loss
                        part.write_text(json.dumps(content), encoding="utf-8")
                pace = (time.monotonic() - start) / (len(outcomes) - reused)
                report(key, pace * (len(listed) - len(outcomes)))
    return [outcomes[key] for key, _ in listed]


def worker_count(workers: int | Team | None, scheduler: str | Cluster | None) -> int:
    """Check the two ways to ask for workers and return the number of processes."""
    if workers is not None and scheduler is not None:
        raise UsageError("E192", "--workers and --scheduler are both given", "give one of them")
    if isinstance(workers, Team):
        return workers.n
    if workers is not None and not 1 <= workers <= MAX_THREADS:
        raise UsageError("E192", f"--workers is {workers}", f"give a number from 1 to {MAX_THREADS}")
    return allowed_threads() if workers is None else workers


def content_hash(value: Any) -> str:
    """Return 64 hexadecimal digits that change with the content of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Predictor):
        return value.save().identity()
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a task may not hold a {type(value).__name__}; give JSON values, paths, arrays or dataclasses")


def _load(file: Path | None, key: str) -> Outcome | None:
    if file is None:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["key"] == key:
            return Outcome(key, content["value"], None, content["seconds"], reused=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        logger.warning("%s is damaged; the task runs again", file.name)
    return None
