"""Evaluation of candidate weights on training pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regweave.config.settings import Settings
from regweave.datasets.folds import Fold
from regweave.datasets.manifest import PairFiles
from regweave.errors import RegweaveError
from regweave.jobs.methods import Method
from regweave.jobs.runner import Runner
from regweave.jobs.store import content_hash
from regweave.model.model import Levels, Model
from regweave.training.column_selection import Scores
from regweave.training.log import Effort
from regweave.training.predictors_by_fold import Predictors
from regweave.types import WeightTable


@dataclass(frozen=True)
class Trials:
    """Registers pairs with weights, each combination once.

    Parameters
    ----------
    run : Runner
        Runs the registrations.
    settings : Settings
        Settings with their modality.
    levels : "all" or "finest"
        Where the weights act.
    effort : Effort
        Counts the registrations.
    predictors : Predictors
        Tell the classes of a pair to weights that ask for them, without having seen its patients.
    """

    run: Runner
    settings: Settings
    levels: Levels
    effort: Effort
    predictors: Predictors
    _known: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def __call__(
        self, work: Sequence[tuple[WeightTable, Sequence[PairFiles]]], *, predicted: bool = False
    ) -> list[Scores]:
        """Register pairs with weights, with their moving labels or as if there were none.

        Training needs every number, so a failure is an error.

        Raises
        ------
        RegweaveError
            E135 with the pairs that failed.
        """
        keyed: list[list[tuple[str, Method, PairFiles]]] = []
        for weights, pairs in work:
            keyed.append([])
            for p in pairs:
                model = self._model(weights, p)
                key = f"try/{content_hash(model)}/{p.id}" + "/predicted" * predicted
                keyed[-1].append((key, Method("try", self.settings, tried=model, predicted=predicted), p))
        todo = {key: (key, m, p) for row in keyed for key, m, p in row if key not in self._known}
        outcomes = self.run(list(todo.values()), dice_only=True) if todo else []
        self.effort.registrations += len(todo)
        failed = {todo[o.key][2].id: o.error for o in outcomes if o.error is not None}
        if failed:
            listed = "; ".join(f"{name}: {error}" for name, error in sorted(failed.items()))
            raise RegweaveError("E135", f"training pairs failed: {listed}", "repair them or take them off the list")
        self._known.update({o.key: o.value for o in outcomes})
        return [{p.id: self._known[key] for key, _, p in row} for row in keyed]

    def left_out(self, folds: Sequence[Fold], models: Sequence[Sequence[WeightTable]]) -> list[Scores]:
        """Register the left-out pairs of each fold with its own weights; one set of scores for each set of models."""
        work = [(w, fold.test) for of_folds in models for w, fold in zip(of_folds, folds, strict=True)]
        found = iter(self(work))
        return [{name: score for _ in folds for name, score in next(found).items()} for _ in models]

    def _model(self, weights: WeightTable, pair: PairFiles) -> Model:
        """Put weights and what they need for a pair together."""
        schedule = self.settings.schedule(self.settings.modality)  # type: ignore[arg-type]
        predictor = self.predictors.without(pair) if schedule.needs_anatomy(weights) else None
        return Model(
            weights, self.settings, self.settings.modality,  # type: ignore[arg-type]
            levels=self.levels, class_predictor=predictor,
        )  # fmt: skip
