"""MW of a reproduction with the class of the place where a node is, instead of the place where a label puts it.

The paper's eq. (1) takes the column of the dominant class in the *displaced* patch. Costs of different columns are then
compared with each other, and a label is cheap where it leads into a class whose metrics are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from _reproduced_claims import interval_of
from regweave.datasets.manifest import read_pairs
from regweave.jobs.methods import Method
from regweave.jobs.runner import Runner
from regweave.jobs.scoring import pair_score
from regweave.measures.scores import PairScore
from regweave.model.model import Model
from regweave.pipeline.reading import Reading


def anchored(folder: Path, experiment: Mapping[str, Any], n: int, workers: int) -> dict[str, Any]:
    """Register test pairs of each fold's first draw with MW, its classes taken at the nodes.

    Parameters
    ----------
    folder : path
        Folder of the run, with its models and lists.
    experiment : mapping
        Its part of ``reproduce.json``.
    n : int
        Pairs of each fold, at most.
    workers : int
        Processes.

    Returns
    -------
    dict
        ``n`` pairs, ``mean_dice``, and the difference from MW and from the uniform mix on the same pairs.
    """
    name, reading = experiment["name"], Reading(classes=tuple(sorted(map(int, experiment["classes"]))))
    known = {(r["split"], r["method"], r["id"]): r for r in experiment["results"] if r["error"] is None}
    values: list[float] = []
    groups: list[str] = []
    rivals: dict[str, list[float]] = {"model:mw": [], "uniform": []}
    with Runner(reading, workers, None, folder / "work" / name / "anchored", None) as run:
        for split in (s["name"] for s in experiment["splits"] if s["repetition"] == 1):
            pairs = read_pairs(folder / "lists" / name / f"{split}-test.csv")[:n]
            model = Model.load(folder / "models" / name / split / "mw.json")
            settings = model.settings.model_copy(update={"class_at": "anchored"})
            method = Method("anchored", settings, tried=replace(model, settings=settings))
            outcomes = run([(f"{split}/{p.id}", method, p) for p in pairs], dice_only=True)
            for p, outcome in zip(pairs, outcomes, strict=True):
                rows = {m: known.get((split, m, p.id)) for m in rivals}
                if outcome.error is not None or None in rows.values():
                    continue
                values.append(pair_score(outcome.value).mean())
                groups.append(p.group)
                for m, row in rows.items():
                    rivals[m].append(_mean(row))
    minus = {m: interval_of([a - b for a, b in zip(values, of, strict=True)], groups) for m, of in rivals.items()}
    return {"n": len(values), "mean_dice": sum(values) / len(values) if values else None, "minus": minus}


def _mean(row: Any) -> float:
    return PairScore.read((int(c), s) for c, s in row["labels"].items()).mean()


def content_of(folder: Path) -> dict[str, Any]:
    """Return ``reproduce.json`` of a run."""
    content: dict[str, Any] = json.loads((folder / "reproduce.json").read_text(encoding="utf-8"))
    return content
