"""Options of a training, each declared once with its type, range, default and meaning.

The arguments of `regweave.train` and `regweave.MetricLearner`, the options of the command, the table ``[train]`` of a
settings file and the record of a model are made from these fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from regweave import extras, predictors
from regweave.config.settings import (
    Metrics,
    Settings,
    choose_settings,
    describe_problems,
    metric_weights,
    read_table,
    validate,
)
from regweave.errors import UsageError
from regweave.jobs.runner import next_values
from regweave.jobs.table import Pairs
from regweave.jobs.workers import Cluster
from regweave.learning.lssvm import ALPHAS, LssvmOptions
from regweave.model.record import Levels
from regweave.options import described, option, table_text
from regweave.progress import BatchProgress, TrainProgress
from regweave.run.read import Reading

Method = Literal["lssvm-joint", "lssvm", "global"]
LabelValues = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
AtLeastTwo = Annotated[int, Field(ge=2)]
GRID = {"C": (LssvmOptions.C,), "alpha": ALPHAS, "eta": (LssvmOptions.eta,)}
"""Values tried for hyper-parameters that are not given."""
SMOKE_PREDICTOR = {"perceptron": {"samples": 500, "steps": 3}, "unet": {"width": 8, "steps": 3}}
"""Options of predictors with effort ``smoke``."""
AUTO = "auto"
CHOICES = ("perceptron", "unet")  # predictors that `auto` chooses from, the cheapest first
TABLE = "train"  # table of these options in a settings file


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    method: Method = option(
        "lssvm-joint", "Kind of learning: all classes at once, one at a time as in the paper, or one column for all.",
        panel="Method", typed=str | None, metavar="lssvm-joint|lssvm|global", absent=None,
    )  # fmt: skip
    classes: LabelValues | None = option(
        None, "Label values to learn; the others become background. By default all, if every label map shows them.",
        panel="Input", typed=str | None, metavar="1,2,7",
    )  # fmt: skip
    withhold: LabelValues | None = option(
        None, "Label values that become background although they could be learned, to evaluate the model with them."
    )
    C: NonNegativeFloat | None = option(None, "Weight of the slacks; None lets left-out patients choose.")
    alpha: NonNegativeFloat | None = option(
        None, "Weight of the proximity to the start; None lets left-out patients choose."
    )
    eta: NonNegativeFloat | None = option(
        None, "Weight of the loss in the imputation; None lets left-out patients choose."
    )
    epsilon: PositiveFloat = option(LssvmOptions.epsilon, "Tolerance of the constraints, in loss per node.")
    rounds: PositiveInt = option(LssvmOptions.rounds, "Number of times that the trajectories are computed.")
    signed: bool = option(LssvmOptions.signed, "Allow negative weights, as the paper does.")
    levels: Levels = option("all", "Levels that are learned and use the learned weights: all, or the finest.")
    folds: AtLeastTwo = option(
        3, "Folds by patient; fewer where there are fewer patients.", panel="Method", typed=int | None, absent=None
    )
    max_pairs: PositiveInt | None = option(None, "Pairs to learn from, chosen at random; by default all that fit.")
    tune_pairs: PositiveInt = option(24, "Pairs, at most, with which the smoothness is tuned.")
    judge_pairs: AtLeastTwo = option(40, "Pairs, at most, with which weights are tried, judged and learned.")
    max_memory_mb: PositiveFloat = option(1500.0, "Memory of the samples; pairs are drawn at random until it is full.")
    refinement_learner: Literal["dice", "svm"] = option(
        "dice", "Learner of refinement weights by structure: Dice of registrations, or the latent SVM."
    )
    structure_start: Literal["auto", "keep"] = option(
        "auto", "Initial alignment of structures: tried on left-out patients, or that of the settings is kept."
    )
    guide_error_mm: Annotated[float, Field(gt=0, le=10)] | None = option(
        None, "Learn the weights of structures that guide, too. Contours of training pairs are drawn with this error, "
        "the standard deviation of a border along each axis."
    )  # fmt: skip
    gate: bool = option(True, "Use a learned column only where left-out patients gain by it.")
    seed: NonNegativeInt = option(0, "Seed of the choice of folds, pairs and samples.")
    predictor: str | None = option(
        "perceptron", "Segmenter used where no labels are given: perceptron, unet, or auto for the better one.",
        panel="Method", absent=None,
    )  # fmt: skip
    predictor_options: Mapping[str, Any] | None = option(None, "Options of the predictor by name; not with auto.")
    effort: Literal["full", "smoke"] = option(
        "full", "With smoke, one value of everything is tried: a test in seconds, not a useful model."
    )

    def check(self) -> None:
        """Refuse values out of range, and a training without the packages that it needs."""
        validated({f.name: getattr(self, f.name) for f in fields(TrainOptions)})
        both = sorted({*(self.withhold or ())} & {*(self.classes or ())})
        if both:
            message = f"structures {both} are both to learn and to withhold"
            raise UsageError("E194", message, "give each label value as one or the other")
        self._check_predictor()
        extras.require("daqp", "train", "learning")

    def _check_predictor(self) -> None:
        if self.predictor == AUTO and self.predictor_options:
            named = ", ".join(self.predictor_options)
            raise UsageError("E194", f"options of a predictor ({named}) and predictor auto", "name the predictor")
        if self.predictor in (AUTO, None):
            return
        needs = predictors.needs(self.predictor)
        try:
            predictors.registry.options(self.predictor, self.options_of(self.predictor))
        except ValidationError as error:
            known = ", ".join(predictors.get(self.predictor).Options.model_fields) or "none"
            message = f"options of the predictor {self.predictor}: {describe_problems(error)}"
            raise UsageError("E194", message, f"options: {known}") from error
        if needs is not None:
            extras.require(*needs)

    @property
    def predictors(self) -> tuple[str, ...]:
        """Kinds of predictors to choose from; of equals the first is taken, which is the cheapest."""
        if self.predictor != AUTO:
            return () if self.predictor is None else (self.predictor,)
        needed = {kind: predictors.needs(kind) for kind in CHOICES}
        return tuple(kind for kind, needs in needed.items() if needs is None or extras.installed(needs[0]))

    def options_of(self, predictor: str) -> dict[str, Any]:
        """Options of a kind of predictor."""
        smoke = SMOKE_PREDICTOR.get(predictor, {}) if self.effort == "smoke" else {}
        return {**smoke, **(self.predictor_options or {})}

    def grid(self) -> list[LssvmOptions]:
        """Hyper-parameters to try."""
        tried = {k: v[-1:] for k, v in GRID.items()} if self.effort == "smoke" else GRID
        values = [(v,) if (v := getattr(self, k)) is not None else tried[k] for k in ("C", "alpha", "eta")]
        return [LssvmOptions(c, a, e, self.epsilon, self.rounds, signed=self.signed) for c, a, e in product(*values)]

    def next_values(self, values: Sequence[float], found: Mapping[float, float]) -> list[float]:
        """Values to try next in a line search, from all allowed values and the mean Dice of those that were tried."""
        if self.effort == "smoke":
            return [] if found else [values[len(values) // 2]]
        return next_values(values, found)


@dataclass(frozen=True, kw_only=True)
class TrainSetup(TrainOptions):
    """Options of a training with the settings of its registrations."""

    preset: str = option("default", "Settings of the registrations, by name.", panel="Method", complete="preset")
    config: str | Path | Settings | None = option(
        None, "Settings of the registrations, TOML. In Python also `Settings`.", panel="Method", typed=Path | None
    )
    metrics: Metrics | None = option(
        None, 'Members or metrics instead of the bank of the settings: names, "name=weight", or weights by name.'
    )
    loss: str | None = option(None, "Loss on masks instead of that of the settings.")
    workers: int | None = option(None, "Processes of this machine.", panel="Machine")

    @property
    def options(self) -> TrainOptions:
        """Options of the training alone, checked."""
        found = TrainOptions(**{f.name: getattr(self, f.name) for f in fields(TrainOptions)})
        found.check()
        return found

    @property
    def settings(self) -> Settings:
        """Settings with the bank and the loss replaced where asked."""
        given = metric_weights(self.metrics)
        found = choose_settings(self.preset, self.config, None, given)
        if given:
            banks = {k: [{**m.model_dump(), "weight": given[m.name]} for m in bank] for k, bank in found.banks.items()}
            found = validate({**found.model_dump(), "banks": banks}, "the command line")
        return found if self.loss is None else validate({**found.model_dump(), "loss": self.loss}, "the command line")


@dataclass(frozen=True, kw_only=True)
class TrainJob(TrainSetup, Reading):
    """Request of a training."""

    pairs: Pairs = field(kw_only=False, metadata=described(
        "Pairs with both label maps. A CSV file, a pandas table, rows by column, or tuples of fixed image, moving "
        "image, fixed labels and moving labels, as files or in memory.", typed=Path, metavar="PAIRS.csv",
    ))  # fmt: skip
    output: str | Path | None = field(kw_only=False, default=None, metadata=described(
        "Model to write: JSON, or zip as a network needs. Finished registrations are kept in a folder beside it until "
        "all is done. Without it nothing is left on disk.", typed=Path, flags=("--output", "-o"),
        absent=inspect.Parameter.empty,
    ))  # fmt: skip
    scheduler: str | Cluster | None = option(
        None, "Dask scheduler to use instead, tcp://HOST:PORT or tls://HOST:PORT.", panel="Machine", typed=str | None
    )
    device: str | None = option(
        None, "Compute device: cpu (default), cuda, cuda:N, cuda:N,M for several GPUs, or auto.", panel="Machine"
    )
    resume: bool = option(
        False, "Continue after a run that was stopped, whose pairs were files; the model is the same, bit for bit."
    )
    overwrite: bool = option(False, "Replace an older model.")
    progress: bool = option(True, "Show a bar on a terminal and in a notebook, and lines on standard error elsewhere.")
    on_progress: Callable[[TrainProgress | BatchProgress], None] | None = option(
        None, "Function that is called when a stage begins, and after every registration, in place of the bar."
    )


@cache
def _adapter() -> TypeAdapter[TrainOptions]:
    return TypeAdapter(TrainOptions)


def validated(content: Mapping[str, Any]) -> TrainOptions:
    """Return options from plain values, as of TOML; E194 names what is out of range or unknown."""
    try:
        return _adapter().validate_python(dict(content))
    except ValidationError as error:
        hint = "correct the named options; `regweave presets show` lists them"
        raise UsageError("E194", f"options of the training: {describe_problems(error)}", hint) from error


def train_table(config: Path | None, others: Container[str] = ()) -> dict[str, Any]:
    """Return the table ``[train]`` of a settings file: options by name, and keys that are named as others.

    The command reads it; in Python all options are arguments.
    """
    content = read_table(config, TABLE)
    rest = {name: content.pop(name) for name in [*content] if name in others}
    found = validated(content)
    return {**rest, **{name: getattr(found, name) for name in content}}


def default_table() -> str:
    """Return the table ``[train]`` with all options at their defaults, as TOML; those without one are comments."""
    return table_text(list(fields(TrainOptions)), TABLE)
