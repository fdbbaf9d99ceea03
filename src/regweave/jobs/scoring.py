"""One pair registered by one method, as numbers: the task that an evaluation hands to its workers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.config.settings import Settings
from regweave.datasets.manifest import FILES, PairFiles
from regweave.measures.scores import PairScore, When
from regweave.pipeline.machine import peak_memory_mb
from regweave.pipeline.reading import Reading
from regweave.pipeline.register import register

PROCESS = Path("/proc/self")


def scoring_task(
    pair: PairFiles,
    hashes: Mapping[str, str],
    settings: Settings | None,
    model: tuple[Path, str] | None,
    reading: Reading,
    *,
    surfaces: bool = True,
    predict_classes: bool = False,
) -> dict[str, Any]:
    """Put the arguments of `score_pair` together as JSON values.

    Parameters
    ----------
    pair : PairFiles
        What to register.
    hashes : mapping
        SHA-256 of each file of the pair, by column: a changed file is another task.
    settings : Settings, optional
        Settings; None with a model, which brings its own.
    model : (path, SHA-256), optional
        Model file.
    reading : Reading
        How files are read.
    surfaces : bool
        Measure distances of surfaces too.
    predict_classes : bool
        Let the model's class predictor choose the weights; the moving labels are for scoring alone.
    """
    return {
        "files": {name: str(getattr(pair, name)) for name in FILES},
        "sha256": dict(hashes),
        "settings": None if settings is None else settings.model_dump(mode="json"),
        "model": None if model is None else [str(model[0]), model[1]],
        "reading": reading.to_json(),
        "surfaces": surfaces,
        **({"predict_classes": True} if predict_classes else {}),
    }


def score_pair(task: Mapping[str, Any]) -> dict[str, Any]:
    """Register one pair with one thread and measure the result.

    Parameters
    ----------
    task : mapping
        Made by `scoring_task`.

    Returns
    -------
    dict
        JSON values: by label the state, the Dice before and after, the distances of surfaces and the volumes; time,
        memory, regularity, error of the inverse, warnings. What cannot be measured is None.
    """
    files, reading = task["files"], Reading.from_json(task["reading"])
    _forget_peak()
    with notices.muted():  # they are in the result, and many workers would talk at once
        result = register(
            **files,
            config=None if task["settings"] is None else Settings.model_validate(task["settings"]),
            model=None if task["model"] is None else task["model"][0],
            predict_classes=task.get("predict_classes", False),
            threads=1,
            reading=reading,
        )
    peak_mb = _peak_mb()
    rows = result.structures() if task["surfaces"] else [s.record() for s in result.score.structures]
    return {
        "labels": {str(row.pop("label")): row for row in rows},
        "seconds": sum(result.seconds.values()),
        "peak_mb": peak_mb,
        **{name: _number(value) for name, value in result.regularity.items()},
        "inverse_error": result.inverse_error and result.inverse_error.record(),
        "smoothness": result.weights.pairwise,
        "modality": result.modality,
        "warnings": list(result.warnings),
    }


def pair_score(scores: Mapping[str, Any]) -> PairScore:
    """Return the scores of the structures that `score_pair` found."""
    return PairScore.read((int(label), row) for label, row in scores["labels"].items())


def mean_dice(scores: Mapping[str, Any], when: When = "dice_after") -> float:
    """Return the mean Dice of a pair over the structures that both label maps show; NaN where there are none.

    Examples
    --------
    >>> mean_dice({"labels": {"1": {"dice_after": 0.5}, "2": {"state": "vanished", "dice_after": 0.0}}})
    0.25
    """
    return pair_score(scores).mean(when)


def mean_over_pairs(scores: Iterable[Mapping[str, Any]]) -> float:
    """Return the mean of the mean Dice of pairs, without pairs that share no structure; NaN for none."""
    values = [v for s in scores if not math.isnan(v := mean_dice(s))]
    return float(np.mean(values)) if values else math.nan


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _forget_peak() -> None:
    """Start a new peak where the system can (Linux), so that a worker's task does not inherit the one before."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def _peak_mb() -> float:
    """Peak of the current program; ``getrusage`` also knows that of the process which started it."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB", (PROCESS / "status").read_text(encoding="ascii"), re.MULTILINE)
        if found:
            return int(found[1]) / 2**10
    return peak_memory_mb()
