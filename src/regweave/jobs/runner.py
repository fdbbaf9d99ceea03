"""Registrations of a list of pairs by several methods: models, presets, and baselines tuned as carefully."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from regweave import notices
from regweave.config import settings as registration_settings
from regweave.config.settings import Member, Settings
from regweave.errors import RegweaveError, UsageError
from regweave.io import image_sha256, sha256
from regweave.io.disk.files import peak_memory_mb
from regweave.io.disk.records import Measured, RecordPart, Text
from regweave.io.modality import BankName, bank_of
from regweave.jobs.table import PairFiles
from regweave.jobs.workers import LANES, Cluster, Outcome, Placement, Team, run_tasks, worker_count
from regweave.measures.likeness import Likeness
from regweave.measures.scores import InverseError, PairScore, Regularity
from regweave.measures.verdict import Rules, Verdict, judge
from regweave.model import find_model
from regweave.model.model import Model
from regweave.progress import OnBatchProgress
from regweave.run.job import Job
from regweave.run.memory import Cache, spare_memory_mb
from regweave.run.read import Reading
from regweave.run.register import run, score_trial
from regweave.run.resolve import predictor_of

PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class ScoringTask:
    """One pair, one method: the arguments of `score_pair` and `score_dice`."""

    files: Mapping[str, Any]
    sha256: Mapping[str, str]  # hash of each file, by column: a changed file is another task
    reading: Reading
    settings: Settings
    model: tuple[Path, str] | Model | None = None
    """Model file with its hash, or a model that is only tried; its settings are those of the task."""
    predict_classes: bool = False
    """Let the model's class predictor choose the weights; the moving labels are for scoring alone."""
    device: str = "cpu"
    drawn: tuple[float, int] | None = None  # error in mm and seed of contours that guide, for `score_dice`

    @property
    def cache_key(self) -> str:
        """Content of the pair: tasks with the same key share what they cache."""
        return " ".join(f"{name}={digest}" for name, digest in sorted(self.sha256.items()))


class PairNumbers(RecordPart):
    """Scores of one pair with one method, as ``results.json`` holds them; NaN where nothing could be measured."""

    score: PairScore = Field(alias="structures")
    seconds: Measured = math.nan
    peak_mb: Measured = math.nan
    regularity: Regularity = Field(default_factory=dict, validate_default=True)
    inverse_error: InverseError | None = None
    likeness: Likeness | None = None
    smoothness: Measured = math.nan
    modality: Text = ""
    warnings: tuple[Text, ...] = ()
    device: Text = "cpu"

    def values(self, name: str) -> list[float]:
        """Return a number of the pair, or of each of its structures."""
        if name in self.regularity:
            return [self.regularity[name]]
        own = name in type(self).model_fields
        return [getattr(self, name)] if own else [getattr(s, name) for s in self.score.structures]


def judge_pair(numbers: PairNumbers, rules: Rules) -> Verdict:
    """Apply acceptance criteria to a pair."""
    return judge(
        numbers.score, rules, regularity=numbers.regularity, inverse_error=numbers.inverse_error,
        warnings=numbers.warnings, likeness=numbers.likeness,
    )  # fmt: skip


def score_pair(task: ScoringTask) -> dict[str, Any]:
    """Register one pair with one thread; return all that an evaluation reports, `PairNumbers` as JSON values."""
    forget_peak()
    model = task.model[0] if isinstance(task.model, tuple) else task.model
    with notices.muted():  # they are in the result, and many workers would print at once
        job = Job(
            **task.files, **vars(task.reading), config=None if model is not None else task.settings, model=model,
            predict_classes=task.predict_classes, threads=1, device=task.device,
        )  # fmt: skip
        result = run(job, keep_view=False)
    return PairNumbers(
        structures=result.with_surfaces, seconds=sum(result.seconds.values()), peak_mb=measured_peak_mb(),
        regularity=result.regularity, inverse_error=result.inverse_error, likeness=result.likeness,
        smoothness=result.weights.pairwise, modality=result.provenance.modality.bank, warnings=result.warnings,
        device=result.provenance.device,
    ).content()  # fmt: skip


@cache
def kept() -> Cache:
    """Return what this process keeps of the pairs that it has registered."""
    return Cache(spare_memory_mb())


def score_dice(task: ScoringTask) -> dict[str, Any]:
    """Register one pair and measure the overlap of its structures, with what this process keeps of the pair.

    Return ``structures`` of `score_pair`, without the distances of surfaces.
    """
    model = kept()(task.model, partial(Model.load, task.model[0])) if isinstance(task.model, tuple) else task.model
    job = Job(
        **task.files, **vars(task.reading), config=task.settings, model=model, predict_classes=task.predict_classes,
        device=task.device, guide=task.drawn is not None,
    )  # fmt: skip
    with notices.muted():
        return {"structures": score_trial(job, kept(), task.cache_key, task.drawn).rows()}


def pair_score(scores: Mapping[str, Any]) -> PairScore:
    """Return the scores of the structures that `score_pair` found."""
    return PairScore.model_validate(scores["structures"])


def mean_over_pairs(scores: Iterable[PairScore]) -> float:
    """Return the mean of the mean Dice of pairs, without pairs that share no structure; NaN for none."""
    values = [v for s in scores if not math.isnan(v := s.mean())]
    return float(np.mean(values)) if values else math.nan


def forget_peak() -> None:
    """Start a new peak where the system can (Linux), so that a worker's task does not inherit the one before."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def measured_peak_mb() -> float:
    """Peak of the current program; ``getrusage`` includes that of the process which started it."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB", (PROCESS / "status").read_text(encoding="ascii"), re.MULTILINE)
        if found:
            return int(found[1]) / 2**10
    return peak_memory_mb()


class Runner:
    """Executor of (key, method, pair) triples; hashes each file once, and keeps its processes until it is closed.

    ``team`` are the processes, for other tasks on the same pairs; None on a cluster. Where nothing but overlaps is
    measured and a GPU registers, threads of this process share it: they fill it, and little is left for Python to do.
    """

    def __init__(
        self, reading: Reading, workers: int | None, scheduler: str | Cluster | None, store: Path,
        on_progress: OnBatchProgress | None, placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self.reading, self._scheduler, self.placement = reading, scheduler, placement or Placement()
        gpus, n = self.placement.gpus, worker_count(workers, scheduler)
        self.team = None if scheduler is not None else Team(n, gpus)
        lanes = workers or max(1, min(n, LANES * len(gpus)))  # threads that register on the GPUs at once
        self._lanes = Team(lanes, gpus, threads=True) if gpus else self.team
        self.store, self._on_progress = store, on_progress  # the folder in which finished work is kept
        self._known: dict[Path, str] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        for team in filter(None, (self.team, self._lanes)):
            team.__exit__(*error)

    def reading_by(self, reading: Reading) -> Runner:
        """Return a runner that reads files under other rules, with the same processes and store."""
        other = copy(self)
        other.reading = reading
        return other

    def hashes(self, pair: PairFiles) -> dict[str, str]:
        """SHA-256 of each file of a pair, by column."""
        for path in pair.files.values():
            if path not in self._known:
                self._known[path] = image_sha256(path, follow_links=self.reading.follow_links)
        return {name: self._known[path] for name, path in pair.files.items()}

    def __call__(self, plan: Sequence[tuple[str, Method, PairFiles]], *, dice_only: bool = False) -> list[Outcome]:
        """Run each triple; an outcome for each, in order. With ``dice_only``, nothing but overlaps is measured."""
        # Paths of the reading are absolute: a worker may be anywhere.
        reading, device = Reading.from_json(self.reading.to_json()), self.placement.word
        tasks = [
            (
                key,
                ScoringTask(
                    p.files, self.hashes(p), reading, m.settings, m.tried or m.model, m.predicted, device, m.drawn
                ),
            )
            for key, m, p in plan
        ]
        return run_tasks(
            tasks, score_dice if dice_only else score_pair, workers=self._lanes if dice_only else self.team,
            scheduler=self._scheduler, store=self.store, on_progress=self._on_progress,
        )  # fmt: skip


FACTORS = tuple(float(f) for f in 10.0 ** np.linspace(-1.5, 1.5, 9))
"""Smoothness values that tuning may take, against that of the settings: nine over three decades."""
REFINE_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # then those of the refinement


@dataclass(frozen=True)
class SmoothnessParameter:
    """Smoothness weight that tuning searches: its place, its factors, and where its curve is kept."""

    name: str
    record: str
    factors: tuple[float, ...]
    get: Callable[[Settings], float]
    set: Callable[[Settings, float], Settings]

    def values(self, settings: Settings) -> list[float]:
        """Values to try."""
        return [self.get(settings) * factor for factor in self.factors]


LEVELS = SmoothnessParameter(
    "levels", "tuning", FACTORS,
    lambda settings: settings.smoothness,
    lambda settings, value: settings.model_copy(update={"smoothness": value}),
)  # fmt: skip
REFINE = SmoothnessParameter(
    "refine", "refine_tuning", REFINE_FACTORS,
    lambda settings: settings.refine.smoothness_for("mr" if settings.modality == "auto" else settings.modality),
    lambda settings, value: settings.with_refine_smoothness(value),
)  # fmt: skip
PARAMETERS = (LEVELS, REFINE)


def _curve(found: Mapping[float, float]) -> list[dict[str, float]]:
    return [{"smoothness": s, "mean_dice": d} for s, d in found.items()]


def best_of(found: Mapping[float, float]) -> float:
    """Return the smoothness with the best Dice, of equals the larger."""
    return max(found, key=lambda smoothness: (found[smoothness], smoothness))


@dataclass(frozen=True)
class Method:
    """One method of an evaluation.

    The name is ``uniform``, ``single:NAME``, ``preset:NAME``, ``global`` or ``model:FILE-STEM``, with ``+predicted``
    where the model's class predictor chooses the weights instead of the moving labels.
    """

    name: str
    settings: Settings  # settings of its registrations; for a model, those stored with it
    model: tuple[Path, str] | None = None
    """Model file and its SHA-256; ``tried`` is a model in memory instead, one that training tries."""
    tried: Model | None = None
    predicted: bool = False
    drawn: tuple[float, int] | None = None  # error in mm and seed of contours that guide
    tunable: bool = False  # true for a baseline
    tuning: Mapping[float, float] = field(default_factory=dict)
    """Mean Dice on the training pairs by smoothness of the levels; ``refine_tuning`` by that of the refinement."""
    refine_tuning: Mapping[float, float] = field(default_factory=dict)

    @property
    def parameters(self) -> tuple[SmoothnessParameter, ...]:
        """What tuning turns, in order: the smoothness of the levels, and of the refinement if there is one."""
        return (LEVELS, REFINE) if self.settings.refine.steps else (LEVELS,)

    def at(self, parameter: SmoothnessParameter, value: float) -> Method:
        """Return the method with another smoothness."""
        return replace(self, settings=parameter.set(self.settings, value))

    def tuned(self, parameter: SmoothnessParameter, found: Mapping[float, float]) -> Method:
        """Take the smoothness with the best Dice, of equals the larger; where there is none, keep the settings'."""
        if not found:
            return self
        settings = parameter.set(self.settings, best_of(found))
        return replace(self, settings=settings, **{parameter.record: dict(sorted(found.items()))})  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        """Return the method as JSON values."""
        return {
            "name": self.name, "settings": self.settings.model_dump(mode="json"),
            "model": None if self.model is None else {"file": self.model[0].name, "sha256": self.model[1]},
            "predicted_classes": self.predicted, "tuning": _curve(self.tuning),
            "refine_tuning": _curve(self.refine_tuning),
        }  # fmt: skip


def model_methods(paths: Sequence[Path]) -> list[tuple[Method, Model]]:
    """Read models and name their methods: ``global`` for a file of that name, else ``model:`` and the stem.

    A model that brings a class predictor is two methods, with the true moving labels and with predicted ones.
    """
    out = []
    for path in map(find_model, paths):
        model = Model.load(path)
        name = "global" if path.stem == "global" else f"model:{path.stem}"
        method = Method(name, model.settings, (path.absolute(), sha256(path)))
        out.append((method, model))
        if predictor_of(model) is not None:
            out.append((replace(method, name=f"{name}+predicted", predicted=True), model))
    names = [method.name for method, _ in out]
    if len(set(names)) < len(names):
        raise UsageError("E192", f"models have the same name: {', '.join(names)}", "rename the files")
    return out


def baseline_methods(base: Settings, modality: BankName) -> list[Method]:
    """Return the uniform mix, and each member of the bank of a modality on its own, in both stages."""
    pinned = base.model_copy(update={"modality": modality})
    alone: list[Member] = []
    for member in pinned.for_bank(modality).bank:
        # A learned member is no baseline; a metric that is in the bank once for each stage is one.
        only = member.model_copy(update={"stage": "both", "weight": 1.0})
        if member.source == "image" and not any(only.model_copy(update={"name": one.name}) == one for one in alone):
            alone.append(only)
    return [Method("uniform", pinned, tunable=True), *(_single(pinned, modality, member) for member in alone)]


def _single(base: Settings, modality: BankName, member: Member) -> Method:
    """One member as the whole bank; refinement is left out where it cannot compare voxel by voxel."""
    content = base.model_dump(mode="json") | {"banks": {modality: [member.model_dump(mode="json")]}}
    if not member.penalty:
        content["refine"]["steps"] = 0
    settings = registration_settings.validate(content, f"the baseline {member.name}")
    return Method(f"single:{member.name}", settings, tunable=True)


def bank_of_list(settings: Settings, pairs: Sequence[PairFiles], reading: Reading) -> BankName:
    """Return the bank that settings name, or that of the first pair whose images can be read."""
    if settings.modality != "auto":
        return settings.modality
    problem: RegweaveError | None = None
    for pair in pairs:
        try:
            fixed = reading.image(pair.fixed, reading.fixed_modality).modality
            moving = reading.image(pair.moving, reading.moving_modality).modality
            return bank_of(fixed or "mr", moving or "mr")
        except RegweaveError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def tune(
    methods: Sequence[Method],
    pairs: Sequence[PairFiles],
    run: Callable[[list[tuple[str, Method, PairFiles]]], list[Outcome]],
) -> list[Method]:
    """Choose the smoothness of each baseline on training pairs: uphill from the settings', value by value.

    Methods that are not tunable come back unchanged. A pair that fails with any smoothness of a method is left out for
    this method. ``run`` takes (key, method, pair) triples and returns an outcome for each, in order.
    """
    for parameter in PARAMETERS:
        turned = [m for m in methods if m.tunable and parameter in m.parameters]
        dice: dict[str, dict[float, list[float]]] = {m.name: {} for m in turned}
        while plan := [
            (f"tune/{m.name}/{parameter.name}/{value!r}/{pair.id}", m.at(parameter, value), pair, value)
            for m in turned
            for value in next_values(parameter.values(m.settings), _means(dice[m.name]))
            if value not in dice[m.name]
            for pair in pairs
        ]:
            outcomes = run([(key, candidate, pair) for key, candidate, pair, _ in plan])
            for (_, candidate, _, value), outcome in zip(plan, outcomes, strict=True):
                score = float("nan") if outcome.error is not None else pair_score(outcome.value).mean()
                dice[candidate.name].setdefault(value, []).append(score)
        methods = [method.tuned(parameter, _means(dice.get(method.name, {}))) for method in methods]
    return list(methods)


def next_values(values: Sequence[float], found: Mapping[float, float]) -> list[float]:
    """Values to try next: the middle one and its neighbours, then the neighbours of the best until it has them."""
    if not found:
        middle = len(values) // 2
        return list(values[middle - 1 : middle + 2])
    best = values.index(best_of(found))
    return [values[i] for i in (best - 1, best + 1) if 0 <= i < len(values) and values[i] not in found]


def _means(dice: Mapping[float, Sequence[float]]) -> dict[float, float]:
    """Mean over the pairs that have a number for every smoothness."""
    if not dice:
        return {}
    table = np.array(list(dice.values()))
    whole = ~np.isnan(table).any(axis=0)
    if not whole.any():
        return {}
    return dict(zip(dice, table[:, whole].mean(axis=1).tolist(), strict=True))
