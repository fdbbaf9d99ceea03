"""Estimator interface of scikit-learn: its rules for parameters, cloning, search and pipelines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from regweave.errors import RegweaveError, UsageError
from regweave.jobs.runner import Method, Runner, mean_over_pairs, pair_score
from regweave.jobs.table import PairFiles, Pairs, pairs_on_disk
from regweave.jobs.workers import worker_count
from regweave.model.record import TrainingRecord
from regweave.options import option
from regweave.progress import TrainProgress
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.training.options import TrainSetup
from regweave.training.run import fit_model
from regweave.types import Transform


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MetricLearner(TrainSetup):
    """Learn weights of metrics by structure, from pairs with label maps.

    The parameters are the options of `regweave.train`, and ``verbose``. As scikit-learn asks, they are stored as given,
    and `fit` checks them.

    Attributes
    ----------
    model_ : Model
        Learned model with its training record; its ``save`` writes it.
    weights_ : WeightTable
        W of the model.
    history_ : dict
        Curves of the last fit, by column.
    classes_ : tuple of ints
        Label values of the columns, the background 0 first.

    Examples
    --------
    >>> learner = MetricLearner(method="lssvm", C=30.0)
    >>> learner.set_params(eta=1.0).get_params()["eta"]
    1.0
    >>> learner.fit(pairs, groups=patients).score(other_pairs)  # doctest: +SKIP
    0.81

    In a grid search or a pipeline of scikit-learn the pairs are ``X`` and there is no ``y``:

    >>> GridSearchCV(learner, {"C": [10.0, 100.0]}, cv=GroupKFold(3)).fit(pairs, groups=patients)  # doctest: +SKIP
    """

    verbose: bool = option(
        False, "Print the stages of a fit on standard error; in a search, with the parameters that differ."
    )

    def __sklearn_tags__(self) -> Any:
        """Tags of scikit-learn: no target is needed, and the input is no table."""
        from sklearn.utils import InputTags, Tags, TargetTags  # noqa: PLC0415  # only scikit-learn itself calls this

        return Tags(None, TargetTags(required=False), input_tags=InputTags(two_d_array=False))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; ``deep`` is there for scikit-learn and has no effect."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set some parameters and return self."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"unknown parameter {name!r} of {type(self).__name__}; known: {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = (f"{f.name}={v!r}" for f in fields(self) if (v := getattr(self, f.name)) is not f.default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def fit(self, pairs: Pairs, y: None = None, *, groups: Sequence[str] | None = None) -> Self:
        """Learn a model from pairs, given as in `regweave.train`; ``y`` is there for scikit-learn, and is None.

        ``groups`` are the patients of each pair, ``p07`` or ``p07+p11``; by default those of the rows, else each pair
        is a patient of its own.
        """
        _refuse_target(y)
        options, settings, n = self.options, self.settings, worker_count(self.workers, None)
        with self._runner(Reading(), pairs, groups) as (run, listed):
            self.model_ = fit_model(listed, settings, options, run, self._report, n)
        self.weights_ = self.model_.weights
        self.history_ = self.model_.training.to_json()["history"]
        self.classes_ = self.weights_.classes
        return self

    def predict(self, pairs: Pairs) -> list[Transform]:
        """Register pairs and return the transform of each, from fixed to moving points.

        The moving labels, where the list has them, choose the weights.
        """
        model, reading = self._fitted(), Reading(classes=self.classes)
        with self._runner(reading, pairs) as (_, listed):
            given = ({k: v for k, v in p.files.items() if k != "fixed_labels"} for p in listed)
            return [register(**files, **vars(reading), model=model, progress=False).transform for files in given]

    def score(self, pairs: Pairs, y: None = None) -> float:
        """Mean Dice of the warped moving labels, over the structures of each pair first; ``y`` as in `fit`."""
        _refuse_target(y)
        model = self._fitted()
        method = Method("model", model.settings, tried=replace(model, training=TrainingRecord()))
        with self._runner(Reading(classes=self.classes), pairs) as (run, listed):
            outcomes = run([(p.id, method, p) for p in listed], dice_only=True)
        failed = [f"{o.key}: {o.error}" for o in outcomes if o.error is not None]
        if failed:
            raise RegweaveError("E135", f"pairs cannot be registered: {'; '.join(failed)}", "repair or leave them out")
        return mean_over_pairs(pair_score(o.value) for o in outcomes)

    def _report(self, progress: TrainProgress) -> None:
        if self.verbose:
            sys.stderr.write(f"{self!r} {progress.stage}: {progress.message}\n")
            sys.stderr.flush()

    def _fitted(self) -> Any:
        if not hasattr(self, "model_"):
            raise UsageError("E194", f"this {type(self).__name__} is not fitted yet", "call fit first")
        return self.model_

    @contextmanager
    def _runner(
        self, reading: Reading, pairs: Pairs, groups: Sequence[str] | None = None
    ) -> Iterator[tuple[Runner, list[PairFiles]]]:
        """Runner of registrations and the files of the pairs; both end with the block."""
        with (
            TemporaryDirectory(prefix="regweave-") as folder,
            Runner(reading, self.workers, None, Path(folder) / "tasks", None) as run,
        ):
            yield run, pairs_on_disk(pairs, Path(folder) / "images", groups)


def _refuse_target(y: Any) -> None:
    if y is not None:
        raise ValueError("y was given and would not be used; patients go into groups=, masks into the pairs")


# Options are frozen; an estimator of scikit-learn can be set, and scikit-learn also deletes what it has set.
MetricLearner.__setattr__ = object.__setattr__  # type: ignore[method-assign]
MetricLearner.__delattr__ = object.__delattr__  # type: ignore[method-assign]
