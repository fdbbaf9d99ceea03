"""Test task of a reproduction: one pair registered once, scored, measured against the truth, and looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.config.settings import Settings
from regweave.io import fill_value, total_displacement
from regweave.jobs.scoring import kept
from regweave.measures.regularity import regularity
from regweave.model.model import Model
from regweave.pipeline.prepare import Prepared, Request, Stopwatch, align_levels, prepare, refine_field
from regweave.pipeline.reading import Reading, as_stored
from regweave.pipeline.register import transform_of
from regweave.pipeline.stages.measurements import score_of
from regweave.spatial import warp_image, warp_labels
from regweave.spatial.masking import inside
from regweave.study.reproduce.pictures import slices, true_errors_mm
from regweave.types import Field, ImagePair, LabelMap, Transform


@dataclass(frozen=True)
class PairTask:
    """One pair, one method.

    Parameters
    ----------
    files, sha256 : mappings
        Path and hash of each file of the pair, by column: a changed file is another task.
    reading : Reading
        How files are read.
    settings : Settings
        Settings; those of the model where there is one.
    model : (path, SHA-256), optional
        Model file.
    truths : (path or None, path or None), optional
        Known deformations of the fixed and the moving scan, None for an original; None where nothing is known.
    picture : bool
        Cut slices.
    device : str
        What computes.
    """

    files: Mapping[str, Any]
    sha256: Mapping[str, str]
    reading: Reading
    settings: Settings
    model: tuple[Path, str] | None
    truths: tuple[str | None, str | None] | None
    picture: bool
    device: str = "cpu"

    @property
    def home(self) -> str:
        """Content of the pair: tasks of one home share what they prepare."""
        return " ".join(f"{name}={digest}" for name, digest in sorted(self.sha256.items()))


def run_pair(task: PairTask) -> dict[str, Any]:
    """Register one pair and measure all that the report of an experiment shows.

    Returns
    -------
    dict
        JSON values: ``labels`` and regularity as in an evaluation; ``seconds`` of levels and refinement, those of the
        first time where the same weights were run before; ``error_mm`` by label, mean distance to the true
        deformation in the fixed organ, before and after; ``views``, slices by view.
    """
    model = None if task.model is None else kept()(task.model, partial(Model.load, task.model[0]))
    request = Request(
        task.settings, **task.files, model=model, reading=task.reading, identity=task.home, device=task.device
    )
    watch = Stopwatch()
    with notices.muted():
        run = prepare(request, kept(), watch)
        aligned = align_levels(run, kept())
        with watch.stage("refine"):
            transform = transform_of(run, refine_field(run, aligned))
    pair = as_stored(run.pair, run.data)
    assert pair.fixed_labels is not None
    assert pair.moving_labels is not None
    warped = warp_labels(pair.moving_labels, transform)
    before = warp_labels(pair.moving_labels, _start(pair))
    score = score_of(pair, warped).with_surfaces(pair.fixed_labels, warped, before)
    rows = [s.record() for s in score.structures]
    numbers = regularity(transform.field, inside(pair.fixed))
    error_mm = {}
    if task.truths is not None:
        error_mm = true_errors_mm(total_displacement(transform), task.truths, pair.fixed_labels)
    return {
        "labels": {str(row.pop("label")): row for row in rows},
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "seconds": sum(sum(step.seconds.values()) for step in aligned.steps) + watch.seconds["refine"],
        "error_mm": error_mm,
        "views": _views(run, transform, warped) if task.picture else {},
    }


def _start(pair: ImagePair) -> Transform:
    """Return the initial alignment alone."""
    return Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)


def _views(run: Prepared, transform: Transform, warped: LabelMap) -> dict[str, Any]:
    """Slices of the fixed image, and of the moving one at its start and after registration."""
    pair = as_stored(run.pair, run.data)
    assert pair.fixed_labels is not None
    assert pair.moving_labels is not None
    start = _start(pair)
    fill = fill_value(pair.moving)
    pictures = {
        "fixed": (pair.fixed, pair.fixed_labels),
        "before": (warp_image(pair.moving, start, fill=fill), warp_labels(pair.moving_labels, start)),
        "after": (warp_image(pair.moving, transform, fill=fill), warped),
    }
    return slices(pictures, pair.fixed_labels)
