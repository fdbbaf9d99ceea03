"""Worst cases of an evaluation, registered once more and kept for a look."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from regweave import notices
from regweave.io import atomic_path, prepare_output
from regweave.io.disk.records import PAGE_RECORD, PAGES
from regweave.jobs.methods import Method
from regweave.jobs.runner import pair_score
from regweave.jobs.table import PairFiles
from regweave.measures.verdict import Rules
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.study.comparison import Scores


def shown_method(scores: Scores) -> Method:
    """Return the method whose pairs get pages: the last one, but not a model that predicts the masks."""
    return next((m for m in reversed(scores.methods) if not m.predicted), scores.methods[-1])


def worst_pairs(scores: Scores, n: int) -> list[PairFiles]:
    """Return the pairs with the lowest mean Dice of the shown method, lowest first; failures have nothing to show."""
    method = shown_method(scores)
    done = [
        (pair_score(o.value).mean(), p.id, p) for p in scores.pairs if (o := scores.outcome(method, p)).error is None
    ]
    # NaN, where nothing is scored, has no place among numbers: such pairs come last.
    return [pair for _, _, pair in sorted(done, key=lambda row: (math.isnan(row[0]), *row[:2]))[:n]]


def keep_registration(method: Method, pair: PairFiles, reading: Reading, folder: Path, rules: Rules) -> Path:
    """Register a pair as an evaluation did, and write the whole result with what a page shows.

    Return its folder below that of the evaluation, ``pages/<id>``; an earlier one of that name is replaced.
    """
    with notices.muted():
        result = register(
            **pair.files,
            config=None if method.model is not None else method.settings,
            model=None if method.model is None else method.model[0],
            predict_classes=method.predicted,
            reading=reading,
            keep_view=True,
        )
    target = folder / PAGES / pair.id
    with prepare_output(target, overwrite=True) as part:
        with atomic_path(part / PAGE_RECORD) as record:
            record.write_text(json.dumps({"id": pair.id, "method": method.name}) + "\n", encoding="utf-8")
        replace(result, rules=rules).write(part)  # its page links to the evaluation by that record
    return target
