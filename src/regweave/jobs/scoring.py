"""Scoring task of a batch: one pair registered by one method, as numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.config.settings import Settings
from regweave.jobs.kept import Kept
from regweave.measures.scores import PairScore
from regweave.model.model import Model
from regweave.run.machine import peak_memory_mb, spare_memory_mb
from regweave.run.prepare import Request
from regweave.run.reading import Reading
from regweave.run.register import register, score_trial

PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class ScoringTask:
    """One pair, one method: the arguments of `score_pair` and `score_dice`.

    Parameters
    ----------
    files, sha256 : mappings
        Path and hash of each file of the pair, by column: a changed file is another task.
    reading : Reading
        How files are read.
    settings : Settings
        Settings; those of the model where there is one.
    model : (path, SHA-256) or Model, optional
        Model file, or a model that is only tried.
    predict_classes : bool
        Let the model's class predictor choose the weights; the moving labels are for scoring alone.
    device : str
        What computes, as in `regweave.run.register.register`.
    """

    files: Mapping[str, Any]
    sha256: Mapping[str, str]
    reading: Reading
    settings: Settings
    model: tuple[Path, str] | Model | None = None
    predict_classes: bool = False
    device: str = "cpu"

    @property
    def home(self) -> str:
        """Content of the pair: tasks of one home share what they prepare."""
        return " ".join(f"{name}={digest}" for name, digest in sorted(self.sha256.items()))


def score_pair(task: ScoringTask) -> dict[str, Any]:
    """Register one pair with one thread and measure all that an evaluation reports.

    Returns
    -------
    dict
        JSON values: by label the state, the Dice before and after, the distances of surfaces and the volumes; time,
        memory, regularity, error of the inverse, warnings. What cannot be measured is None.
    """
    forget_peak()
    model = task.model[0] if isinstance(task.model, tuple) else task.model
    with notices.muted():  # they are in the result, and many workers would talk at once
        result = register(
            **task.files,
            config=None if model is not None else task.settings,
            model=model,
            predict_classes=task.predict_classes,
            threads=1,
            device=task.device,
            reading=task.reading,
        )
    peak_mb = measured_peak_mb()
    return {
        "labels": {str(row.pop("label")): row for row in result.structures()},
        "seconds": sum(result.seconds.values()),
        "peak_mb": peak_mb,
        **{name: _number(value) for name, value in result.regularity.items()},
        "inverse_error": result.inverse_error and result.inverse_error.record(),
        "smoothness": result.weights.pairwise,
        "modality": result.modality,
        "warnings": list(result.warnings),
        **({} if result.device == "cpu" else {"device": result.device}),
    }


@cache
def kept() -> Kept:
    """Return what this process keeps of the pairs that it has registered."""
    return Kept(spare_memory_mb())


def score_dice(task: ScoringTask) -> dict[str, Any]:
    """Register one pair and measure the overlap of its structures; images, start and maps are those of the last time.

    Returns
    -------
    dict
        ``labels`` of `score_pair`, without the distances of surfaces.
    """
    model = kept()(task.model, partial(Model.load, task.model[0])) if isinstance(task.model, tuple) else task.model
    request = Request(
        task.settings, **task.files, model=model, predict_classes=task.predict_classes, reading=task.reading,
        identity=task.home, device=task.device,
    )  # fmt: skip
    with notices.muted():
        rows = [s.record() for s in score_trial(request, kept()).structures]
    return {"labels": {str(row.pop("label")): row for row in rows}}


def pair_score(scores: Mapping[str, Any]) -> PairScore:
    """Return the scores of the structures that `score_pair` found."""
    return PairScore.read((int(label), row) for label, row in scores["labels"].items())


def mean_over_pairs(scores: Iterable[PairScore]) -> float:
    """Return the mean of the mean Dice of pairs, without pairs that share no structure; NaN for none."""
    values = [v for s in scores if not math.isnan(v := s.mean())]
    return float(np.mean(values)) if values else math.nan


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def forget_peak() -> None:
    """Start a new peak where the system can (Linux), so that a worker's task does not inherit the one before."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def measured_peak_mb() -> float:
    """Peak of the current program; ``getrusage`` also knows that of the process which started it."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB", (PROCESS / "status").read_text(encoding="ascii"), re.MULTILINE)
        if found:
            return int(found[1]) / 2**10
    return peak_memory_mb()
