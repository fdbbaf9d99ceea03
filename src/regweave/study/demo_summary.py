"""Summary of a demo, computed from its scores and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regweave.io.records.demo import BEFORE, NO_MASKS, ColumnSummary, DemoSummary, PairedComparison
from regweave.jobs.methods import Method
from regweave.measures.scores import When
from regweave.measures.statistics import count_better
from regweave.model.model import Model
from regweave.study.comparison import Scores

SINGLE = "single:"


def title_of(method: Method) -> str:
    """Words for a method.

    Examples
    --------
    >>> from regweave.config.settings import preset
    >>> title_of(Method("single:mi", preset("default")))
    'mi alone'
    """
    if method.model is not None:
        return NO_MASKS if method.predicted else "learned"
    return f"{method.name.removeprefix(SINGLE)} alone" if method.name.startswith(SINGLE) else f"{method.name} mix"


def summarise(
    scores: Scores, model: Model, *, source: str, n_train: int, shown: Sequence[str], right: Mapping[int, str]
) -> DemoSummary:
    """Put the summary together from the scores of an evaluation and the model that was evaluated.

    Parameters
    ----------
    scores : Scores
        Of the baselines and the model.
    model : Model
        The learned weights.
    source : str
        Where the scans come from.
    n_train : int
        Pairs that were learned from.
    shown : sequence of str
        Pairs with a page of their own.
    right : mapping
        Metric that is right by construction, by label; empty for real scans.
    """
    labels = scores.labels()

    def means(method: Method, when: When = "dice_after") -> list[float | None]:
        return [_mean(scores.dice(method, label, when)) for label in (None, *labels)]

    learned = learned_method(scores)
    baselines = [m for m in scores.methods if m.tunable]
    best = max(
        (m for m in baselines if m.name.startswith(SINGLE)), key=lambda m: max(m.tuning.values(), default=float("-inf"))
    )
    by_pair = dict(zip((pair.id for pair in scores.pairs), scores.dice(learned).tolist(), strict=True))
    gain = model.training.left_out_gain
    return DemoSummary(
        source=source,
        n_train=n_train,
        n_test=len(scores.pairs),
        n_patients=len({name for pair in scores.pairs for name in pair.patients}),
        structures=list(labels.values()),
        dice={BEFORE: means(scores.reference, "dice_before"), **{title_of(m): means(m) for m in scores.methods}},
        learned=title_of(learned),
        best_single=title_of(best),
        against=[_against(scores, learned, m) for m in baselines],
        trust=_trust(model, right),
        gain=None if gain is None else gain.mean,
        shown={name: by_pair[name] for name in shown},
        failures=[f"{o.key}: {o.error}" for o in scores.failures],
    )


def learned_method(scores: Scores) -> Method:
    """Return the method that has the learned weights and the true masks to choose them."""
    return next(m for m in scores.methods if m.model is not None and not m.predicted)


def _trust(model: Model, right: Mapping[int, str]) -> list[ColumnSummary]:
    w, gates = model.weights, model.training.gates
    shares = w.matrix / np.maximum(np.abs(w.matrix).sum(axis=0), 1e-12)
    return [
        ColumnSummary(
            model.class_names.get(value, str(value)),
            dict(zip(w.members, shares[:, k].tolist(), strict=True)),
            str(value) not in gates or gates[str(value)].used,
            right.get(value),
        )
        for k, value in enumerate(w.classes)
    ]


def _against(scores: Scores, learned: Method, other: Method) -> PairedComparison:
    differences = scores.dice(learned) - scores.dice(other)
    counts = count_better(differences)
    n = int((~np.isnan(differences)).sum())
    return PairedComparison(title_of(other), _mean(differences) or 0.0, counts.better, counts.worse, n)


def _mean(values: Any) -> float | None:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else None
