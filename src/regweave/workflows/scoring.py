"""One pair registered by one method, as numbers: the task that an evaluation hands to its workers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.evaluation.surface import assd_mm, hd95_mm
from regweave.io.manifest import FILES, PairFiles
from regweave.registration.settings import Settings
from regweave.types import LabelMap
from regweave.workflows.inputs import Reading
from regweave.workflows.machine import peak_memory_mb
from regweave.workflows.register import register
from regweave.workflows.result import Result

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
    kept = () if reading.classes is None else (None, list(reading.classes))
    return {
        "files": {name: str(getattr(pair, name)) for name in FILES},
        "sha256": dict(hashes),
        "settings": None if settings is None else settings.model_dump(mode="json"),
        "model": None if model is None else [str(model[0]), model[1]],
        "reading": [reading.nifti_frame, reading.nonfinite, *kept],
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
        JSON values: by label the Dice before and after and the distances of surfaces; time, memory, regularity,
        warnings. What cannot be measured is None.
    """
    files, reading = task["files"], Reading(*task["reading"])
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
    fixed = reading.labels(files["fixed_labels"], result.warped.geometry)
    assert fixed is not None
    assert result.warped_labels is not None
    return {
        "labels": {
            str(value): _label_numbers(result, fixed, result.warped_labels, value, surfaces=task["surfaces"])
            for value in result.dice
        },
        "seconds": sum(result.seconds.values()),
        "peak_mb": peak_mb,
        "folding_fraction": _number(result.regularity["folding_fraction"]),
        "sdlogj": _number(result.regularity["sdlogj"]),
        "smoothness": result.weights.pairwise,
        "modality": result.modality,
        "warnings": list(result.warnings),
    }


def mean_dice(scores: Mapping[str, Any], when: str = "dice_after") -> float:
    """Return the mean Dice over the structures that either image shows; one without a number counts as 0.

    Examples
    --------
    >>> mean_dice({"labels": {"1": {"dice_after": 0.5}, "2": {"dice_after": None}}})
    0.25
    """
    values = [row[when] or 0.0 for row in scores["labels"].values()]
    return sum(values) / len(values) if values else float("nan")


def _label_numbers(result: Result, fixed: LabelMap, warped: LabelMap, value: int, *, surfaces: bool) -> dict[str, Any]:
    row = result.dice[value]
    a, b = warped.data == value, fixed.data == value
    spacing_mm = fixed.geometry.spacing_mm
    return {
        "name": row["name"],
        "dice_before": _number(row["before"]),
        "dice_after": _number(row["after"]),
        "hd95_mm": _number(hd95_mm(a, b, spacing_mm)) if surfaces else None,
        "assd_mm": _number(assd_mm(a, b, spacing_mm)) if surfaces else None,
        "missing": not (a.any() and b.any()),
    }


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
