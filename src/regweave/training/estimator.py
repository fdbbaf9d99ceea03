"""Estimator interface of scikit-learn: its rules for parameters, cloning, search and pipelines."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from regweave.config.presets import Metrics
from regweave.config.settings import Settings
from regweave.errors import RegweaveError, UsageError
from regweave.jobs.methods import Method
from regweave.jobs.runner import Runner, mean_over_pairs, pair_score
from regweave.jobs.store import worker_count
from regweave.jobs.table import PairFiles, Pairs, pairs_on_disk
from regweave.model.model import Levels
from regweave.model.record import TrainingRecord
from regweave.progress import TrainProgress
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.training.options import MethodName, RefinementLearner, StructureStart, TrainOptions
from regweave.training.run import fit_model, training_settings
from regweave.types import Transform


class MetricLearner:
    """Learn how much each structure trusts each metric, from pairs with masks.

    Parameters
    ----------
    method, classes, C, alpha, eta, epsilon, rounds, signed, levels, folds, max_pairs, tune_pairs, judge_pairs,
    max_memory_mb, refinement_learner, structure_start, gate, seed, predictor, predictor_options
        As in `regweave.training.options.TrainOptions`.
    preset, config, metrics, loss, workers
        As in `regweave.training.run.train`.
    verbose : bool
        Print each stage of a fit and its settings on standard error, in a search for every candidate and fold.

    Attributes
    ----------
    model_ : Model
        What was learned, with its training record; its ``save`` writes it.
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

    def __init__(
        self,
        *,
        method: MethodName = "lssvm-joint",
        classes: tuple[int, ...] | None = None,
        withhold: tuple[int, ...] | None = None,
        C: float | None = None,
        alpha: float | None = None,
        eta: float | None = None,
        epsilon: float = 1e-2,
        rounds: int = 1,
        signed: bool = False,
        levels: Levels = "all",
        folds: int = 3,
        max_pairs: int | None = None,
        tune_pairs: int = 24,
        judge_pairs: int = 40,
        max_memory_mb: float = 1500.0,
        refinement_learner: RefinementLearner = "dice",
        structure_start: StructureStart = "auto",
        gate: bool = True,
        seed: int = 0,
        predictor: str = "perceptron",
        predictor_options: Mapping[str, Any] | None = None,
        preset: str = "default",
        config: str | Path | Settings | None = None,
        metrics: Metrics | None = None,
        loss: str | None = None,
        workers: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.classes = classes
        self.withhold = withhold
        self.C = C
        self.alpha = alpha
        self.eta = eta
        self.epsilon = epsilon
        self.rounds = rounds
        self.signed = signed
        self.levels = levels
        self.folds = folds
        self.max_pairs = max_pairs
        self.tune_pairs = tune_pairs
        self.judge_pairs = judge_pairs
        self.max_memory_mb = max_memory_mb
        self.refinement_learner = refinement_learner
        self.structure_start = structure_start
        self.gate = gate
        self.seed = seed
        self.predictor = predictor
        self.predictor_options = predictor_options
        self.preset = preset
        self.config = config
        self.metrics = metrics
        self.loss = loss
        self.workers = workers
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator is, as scikit-learn asks: it needs no target, and its input is no table."""
        from sklearn.utils import InputTags, Tags, TargetTags  # noqa: PLC0415  # only scikit-learn itself calls this

        return Tags(None, TargetTags(required=False), input_tags=InputTags(two_d_array=False))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; ``deep`` is there for scikit-learn and changes nothing."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> Self:
        """Set some parameters and return self."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"unknown parameter {name!r} of {type(self).__name__}; known: {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = (f"{k}={v!r}" for k, v in self.get_params().items() if v is not defaults[k].default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def fit(self, pairs: Pairs, y: None = None, *, groups: Sequence[str] | None = None) -> Self:
        """Learn a model.

        Parameters
        ----------
        pairs : path, table, or sequence
            Training pairs, as in `regweave.training.run.train`.
        y : None
            There for scikit-learn; the masks of the pairs are what is learned from.
        groups : sequence of str, optional
            Patients of each pair, ``p07`` or ``p07+p11``; by default those of the rows, else each pair is a patient
            of its own.
        """
        _refuse_target(y)
        options = TrainOptions(**{f.name: getattr(self, f.name) for f in fields(TrainOptions)})
        options.check()
        settings = training_settings(self.preset, self.config, self.metrics, self.loss)
        n = worker_count(self.workers, None)
        with self._runner(Reading(), pairs, groups) as (run, listed):
            self.model_ = fit_model(listed, settings, options, run, self._tell, n)
        self.weights_ = self.model_.weights
        self.history_ = self.model_.training.to_json()["history"]
        self.classes_ = self.weights_.classes
        return self

    def predict(self, pairs: Pairs) -> list[Transform]:
        """Register pairs; the moving labels, where the list has them, choose the weights.

        Returns
        -------
        list of Transform
            Fixed to moving points, one for each pair.
        """
        model, reading = self._fitted(), Reading(classes=self.classes)
        with self._runner(reading, pairs) as (_, listed):
            given = ({k: v for k, v in p.files.items() if k != "fixed_labels"} for p in listed)
            return [register(**files, model=model, reading=reading).transform for files in given]

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

    def _tell(self, progress: TrainProgress) -> None:
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
