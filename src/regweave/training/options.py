"""Options of a training, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError

from regweave import extras, predictors
from regweave.config.member import describe_problems
from regweave.errors import UsageError
from regweave.jobs.methods import next_values
from regweave.learning.lssvm import ALPHAS, LssvmOptions
from regweave.model.model import Levels

MethodName = Literal["lssvm", "lssvm-joint", "global"]
RefinementLearner = Literal["dice", "svm"]
StructureStart = Literal["auto", "keep"]
Effort = Literal["full", "smoke"]
GRID = {"C": (LssvmOptions.C,), "alpha": ALPHAS, "eta": (LssvmOptions.eta,)}
"""Values tried for hyper-parameters that are not given."""
LEAST = {
    "epsilon": 0.0, "max_memory_mb": 0.0, "rounds": 1, "folds": 2, "max_pairs": 1, "seed": 0,
    "tune_pairs": 1, "judge_pairs": 2,
}  # fmt: skip
"""Smallest value of each number; epsilon and the memory must be above theirs."""
ABOVE = ("epsilon", "max_memory_mb")
SMOKE_PREDICTOR = {"perceptron": {"hidden": 4}, "unet": {"width": 8, "steps": 3}}
"""Options of predictors with effort ``smoke``."""
AUTO = "auto"
CHOICES = ("perceptron", "unet")
"""Predictors that ``auto`` chooses from, the cheapest first."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of a training; None for C, alpha or eta means chosen by cross-validation grouped by patient.

    Parameters
    ----------
    method : "lssvm", "lssvm-joint" or "global"
        One class at a time as in the paper, all classes at once, or one column for all.
    classes : tuple of ints, optional
        Label values to learn; other labels become background. By default all, if every label map shows the same ones.
    withhold : tuple of ints, optional
        Label values that become background although they could be learned, to judge by them what was learned.
    C, alpha, eta, epsilon, signed
        As in `regweave.learning.lssvm.LssvmOptions`.
    rounds : int
        How often the trajectories are refreshed.
    levels : "all" or "finest"
        Where the learned weights act; with ``finest`` they are learned there too.
    folds : int
        Folds by patient, fewer where the patients do not allow so many.
    max_pairs : int, optional
        Learn on this many pairs chosen at random.
    tune_pairs, judge_pairs : int
        Pairs, at most, with which smoothness is tuned, and with which weights are tried, judged and learned; they are
        chosen to cover the patients evenly. The class predictor learns from the images of all pairs.
    max_memory_mb : float
        Learn on as many pairs, chosen at random, as have samples that fit.
    refinement_learner : "dice" or "svm"
        What teaches structures columns of their own in the refinement: real Dice of registrations with each value, or
        the latent SVM on the refinement's costs. Left-out patients judge either.
    structure_start : "auto" or "keep"
        Try a start from structures, which left-out patients judge, or keep that of the settings: structures that nobody
        labelled may lose by the former.
    gate : bool
        Use a column only where left-out patients gained by it; without it, everything that was learned is used.
    seed : int
        Chooses folds, pairs and candidates.
    predictor : str, optional
        Name of the predictor that tells the classes of images without labels; ``auto`` is the one with the best Dice on
        left-out patients among the perceptron and, where PyTorch is installed, the U-Net. None for a model without one.
    predictor_options : mapping, optional
        Options of the predictor by name; not with ``auto``.
    effort : "full" or "smoke"
        With ``smoke`` one value of everything is tried: a test of the procedure in seconds, not a useful model.
    """

    method: MethodName = "lssvm-joint"
    classes: tuple[int, ...] | None = None
    withhold: tuple[int, ...] | None = None
    C: float | None = None
    alpha: float | None = None
    eta: float | None = None
    epsilon: float = LssvmOptions.epsilon
    rounds: int = LssvmOptions.rounds
    signed: bool = LssvmOptions.signed
    levels: Levels = "all"
    folds: int = 3
    max_pairs: int | None = None
    tune_pairs: int = 24
    judge_pairs: int = 40
    max_memory_mb: float = 1500.0
    refinement_learner: RefinementLearner = "dice"
    structure_start: StructureStart = "auto"
    gate: bool = True
    seed: int = 0
    predictor: str | None = "perceptron"
    predictor_options: Mapping[str, Any] | None = None
    effort: Effort = "full"

    def next_values(self, values: Sequence[float], found: Mapping[float, float]) -> list[float]:
        """Values to try next in a line search, from all allowed values and the mean Dice of those that were tried."""
        if self.effort == "smoke":
            return [] if found else [values[len(values) // 2]]
        return next_values(values, found)

    def options_of(self, predictor: str) -> dict[str, Any]:
        """Options of a kind of predictor."""
        smoke = SMOKE_PREDICTOR.get(predictor, {}) if self.effort == "smoke" else {}
        return {**smoke, **(self.predictor_options or {})}

    @property
    def predictors(self) -> tuple[str, ...]:
        """Kinds of predictors to choose from; of equals the first is taken, which is the cheapest."""
        if self.predictor != AUTO:
            return () if self.predictor is None else (self.predictor,)
        needed = {kind: predictors.needs(kind) for kind in CHOICES}
        return tuple(kind for kind, needs in needed.items() if needs is None or extras.installed(needs[0]))

    def grid(self) -> list[LssvmOptions]:
        """Hyper-parameters to try."""
        tried = {k: v[-1:] for k, v in GRID.items()} if self.effort == "smoke" else GRID
        values = {k: (v,) if (v := getattr(self, k)) is not None else tried[k] for k in tried}
        return [
            LssvmOptions(C=c, alpha=a, eta=e, epsilon=self.epsilon, rounds=self.rounds, signed=self.signed)
            for c in values["C"]
            for a in values["alpha"]
            for e in values["eta"]
        ]

    def check(self) -> None:
        """Refuse what no training can mean, and a training without the packages that it needs."""
        words = {
            "method": MethodName,
            "levels": Levels,
            "refinement_learner": RefinementLearner,
            "structure_start": StructureStart,
            "effort": Effort,
        }
        for name, known in ((name, get_args(kind)) for name, kind in words.items()):
            value = getattr(self, name)
            if value not in known:
                raise UsageError("E194", f"unknown {name} {value!r}", f"available: {', '.join(known)}")
        self._check_predictor()
        for name in ("C", "alpha", "eta"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError("E194", f"{name} is {value}", "give a number of 0 or more")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not (least <= value < math.inf and (value > least or name not in ABOVE)):
                raise UsageError(
                    "E194", f"{name} is {value}", f"give {'more than' if name in ABOVE else 'at least'} {least}"
                )
        if self.classes is not None and (not self.classes or min(self.classes) < 1):
            raise UsageError("E194", f"structures to learn are {list(self.classes)}", "give label values of 1 or more")
        withheld = self.withhold or ()
        both = set(withheld) & set(self.classes or ())
        if both or min(withheld, default=1) < 1:
            message = f"structures to withhold are {list(withheld)}, to learn {list(self.classes or ())}"
            raise UsageError("E194", message, "give label values of 1 or more, each as one or the other")
        extras.require("daqp", "train", "learning")

    def _check_predictor(self) -> None:
        if self.predictor == AUTO:
            if self.predictor_options:
                told = ", ".join(self.predictor_options)
                raise UsageError("E194", f"options of a predictor ({told}) and predictor auto", "name the predictor")
            return
        if self.predictor is None:
            return
        needs = predictors.needs(self.predictor)
        try:
            predictors.registry.options(self.predictor, self.predictor_options or {})
        except ValidationError as error:
            known = ", ".join(predictors.get(self.predictor).Options.model_fields) or "none"
            message = f"options of the predictor {self.predictor}: {describe_problems(error)}"
            raise UsageError("E194", message, f"options: {known}") from error
        if needs is not None:
            extras.require(*needs)
