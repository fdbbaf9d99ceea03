"""Learning the weights of a bank from pairs with masks, end to end.

Every stage is a list of registrations run by `regweave.workflows.batch`: tune the smoothness of the uniform bank,
learn, try what was learned on left-out patients, gate it class by class, and write a model that says all of this.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from regweave import __version__
from regweave.errors import RegweaveError, UsageError
from regweave.evaluation.statistics import paired_bootstrap
from regweave.io import require_absent, sha256
from regweave.io.folds import Fold, split_groups
from regweave.io.manifest import PairFiles, read_pairs
from regweave.io.model import Model, write_model
from regweave.learning.columns import Columns, Hyper, Mapper, Trainer
from regweave.learning.gate import Gate, balanced, blend, decide, embed
from regweave.learning.search import search
from regweave.registration.settings import Settings, validate
from regweave.types import Weights
from regweave.workflows import inputs as given
from regweave.workflows.batch import BatchProgress, Outcome, content_hash, worker_count
from regweave.workflows.evaluate import Runner
from regweave.workflows.machine import kernel_threads
from regweave.workflows.methods import FACTORS, Method, modality_of_list
from regweave.workflows.scoring import mean_dice

MethodName = Literal["lssvm", "lssvm-joint", "global", "search"]
SHARES = (0.5, 1.0)
"""Shares of the way from the uniform bank to the learned columns that are tried on left-out patients."""
GRID = {"C": (100.0,), "alpha": (1.0,), "eta": (1.0, 10.0)}
"""Values tried for hyper-parameters that are not given."""


@dataclass(frozen=True)
class TrainOptions:
    """How a model is trained; None means chosen by cross-validation grouped by patient."""

    method: MethodName = "lssvm-joint"
    classes: tuple[int, ...] | None = None
    C: float | None = None
    alpha: float | None = None
    eta: float | None = None
    epsilon: float = 1e-3
    rounds: int = 2
    signed: bool = False
    folds: int = 3
    max_pairs: int | None = None
    budget: int = 400
    gate: bool = True
    seed: int = 0

    def grid(self) -> list[Hyper]:
        """Hyper-parameters to try."""
        values = {k: (v,) if (v := getattr(self, k)) is not None else GRID[k] for k in GRID}
        return [
            Hyper(C=c, alpha=a, eta=e, epsilon=self.epsilon, rounds=self.rounds, signed=self.signed)
            for c in values["C"]
            for a in values["alpha"]
            for e in values["eta"]
        ]


@dataclass(frozen=True)
class TrainProgress:
    """Where training is, in words."""

    stage: str
    message: str


@dataclass
class Training:
    """One run of training: pairs, settings, and the runner that keeps finished registrations."""

    pairs: Sequence[PairFiles]
    settings: Settings
    options: TrainOptions
    run: Runner
    store: Path
    tell: Callable[[TrainProgress], None]
    workers: int = 1
    n_registrations: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    _loaded: dict[str, Any] = field(default_factory=dict)

    def fit(self) -> Model:
        """Train and return the model."""
        classes = check_structures(self.pairs, self.options.classes, self.run)
        modality = modality_of_list(self.settings, self.pairs, self.run.reading)
        self.settings = self.settings.model_copy(update={"modality": modality})
        self._folds()  # before anything is computed: too few patients are an error of the list
        tuned = self._tune()
        self.settings = self.settings.model_copy(update={"smoothness": tuned["smoothness"]})
        bank = tuple(m.name for m in self.settings.schedule(modality).bank)
        w0 = Weights.uniform(bank, self.settings.smoothness, (0, *classes))
        choice = self._choose(w0, self._folds())
        learned = self._learn(w0, self.pairs, choice.hyper)
        final = blend(w0, learned.weights, choice.share, choice.classes)
        return self._model(w0, final, learned, choice, tuned)

    def _folds(self) -> list[Fold]:
        """Split by patient into as many folds as asked for, or as the patients allow, at least two."""
        if not self.options.gate:
            return []
        for k in range(self.options.folds, 2, -1):
            with suppress(RegweaveError):
                return split_groups(self.pairs, k, self.options.seed)
        return split_groups(self.pairs, 2, self.options.seed)

    def _tune(self) -> dict[str, Any]:
        """Choose the smoothness of the uniform bank on the training pairs, as every baseline's is."""
        base = Method("uniform", self.settings, tunable=True)
        plan = [
            (f"tune/{f!r}/{p.id}", c, p) for f, c in zip(FACTORS, base.candidates(), strict=True) for p in self.pairs
        ]
        self.tell(TrainProgress("tune", f"smoothness of the uniform bank: {len(plan)} registrations"))
        outcomes = self._drop_failed(plan, self.run(plan, surfaces=False))
        self.n_registrations += len(plan)
        table = np.array([mean_dice(o.value) for o in outcomes]).reshape(len(FACTORS), -1).mean(axis=1)
        best = int(max(range(len(FACTORS)), key=lambda i: (table[i], FACTORS[i])))
        values = [self.settings.smoothness * f for f in FACTORS]
        curve = [{"smoothness": v, "mean_dice": float(d)} for v, d in zip(values, table, strict=True)]
        return {"smoothness": values[best], "curve": curve, "mean_dice": float(table[best])}

    def _drop_failed(self, plan: Sequence[tuple[str, Method, PairFiles]], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Take pairs that cannot be registered off the list and say so; the others go on."""
        for (_, _, pair), outcome in zip(plan, outcomes, strict=True):
            if outcome.error is not None and pair.id not in self.failed:
                self.failed[pair.id] = outcome.error
                self.tell(TrainProgress("failed", f"pair {pair.id} is left out: {outcome.error}"))
        self.pairs = [p for p in self.pairs if p.id not in self.failed]
        if len(self.pairs) < 2:
            raise RegweaveError(
                "E135", f"{len(self.failed)} training pairs failed, {len(self.pairs)} are left", "see above"
            )
        return [o for (_, _, p), o in zip(plan, outcomes, strict=True) if p.id not in self.failed]

    def _score(self, plan: Sequence[tuple[str, Method, PairFiles]]) -> list[Outcome]:
        """Register; training needs every number, so a failed pair is an error that names it."""
        outcomes = self.run(plan, surfaces=False)
        self.n_registrations += len(plan)
        failed = {p.id: o.error for (_, _, p), o in zip(plan, outcomes, strict=True) if o.error is not None}
        if failed:
            listed = "; ".join(f"{k}: {v}" for k, v in sorted(failed.items()))
            raise RegweaveError("E135", f"training pairs failed: {listed}", "repair them or take them off the list")
        return outcomes

    def _method(self, name: str, weights: Weights) -> Method:
        """Put weights into a file that workers can read, named by what is in it."""
        settings = self.settings
        model = Model(weights, settings.model_dump(mode="json"), str(settings.modality))
        path = self.store / "models" / f"{content_hash([weights.matrix, weights.pairwise, model.settings])}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_model(path, model)
        return Method(name, settings, (path.absolute(), sha256(path)))

    def _dice(self, name: str, weights: Weights, pairs: Sequence[PairFiles]) -> list[Mapping[str, Any]]:
        method = self._method(name, weights)
        plan = [(f"{name}/{method.model[1] if method.model else ''}/{p.id}", method, p) for p in pairs]
        return [o.value for o in self._score(plan)]

    def _learn(self, w0: Weights, pairs: Sequence[PairFiles], hyper: Hyper) -> Columns:
        """Learn by the method asked for; columns keep the start's balance with the smoothness."""
        if self.options.method == "search":
            return self._search(w0, pairs)
        schedule = self.settings.schedule(self.settings.modality)  # type: ignore[arg-type]
        schedule = schedule.model_copy(update={"bank": schedule.discrete})
        start = w0.of(tuple(m.name for m in schedule.bank))
        with self._parallel() as mapper:
            trainer = Trainer(self._in_memory(self._sampled(pairs)), schedule, start, hyper, mapper)
            ways = {"lssvm": trainer.per_class, "lssvm-joint": trainer.joint, "global": trainer.whole}
            found = ways[self.options.method]()
        self.n_registrations += found.n_registrations
        return replace(found, weights=embed(balanced(found.weights, start), w0))

    def _search(self, w0: Weights, pairs: Sequence[PairFiles]) -> Columns:
        def score(candidates: Sequence[Weights]) -> list[float]:
            methods = [self._method("search", w) for w in candidates]
            plan = [
                (f"search/{i}/{m.model[1] if m.model else ''}/{p.id}", m, p)
                for i, m in enumerate(methods)
                for p in pairs
            ]
            dice = [mean_dice(o.value) for o in self._score(plan)]
            return [float(np.mean(dice[i * len(pairs) : (i + 1) * len(pairs)])) for i in range(len(methods))]

        found = search(score, w0, max(2, self.options.budget // len(pairs)), self.options.seed)
        curve = [{"number": i, "mean_dice": v} for i, v in enumerate(found.history)]
        return Columns(found.weights, {"search": curve})

    def _sampled(self, pairs: Sequence[PairFiles]) -> list[PairFiles]:
        """Take some pairs at random, as the paper does, where a limit is given."""
        ordered = sorted(pairs, key=lambda p: p.id)
        limit = self.options.max_pairs
        if limit is None or limit >= len(ordered):
            return ordered
        chosen = np.random.default_rng(self.options.seed).choice(len(ordered), limit, replace=False)
        return [ordered[i] for i in sorted(chosen)]

    def _in_memory(self, pairs: Sequence[PairFiles]) -> list[tuple[str, Any]]:
        for p in pairs:
            if p.id not in self._loaded:
                data = given.read_inputs(p.fixed, p.moving, p.fixed_labels, p.moving_labels, self.run.reading)
                self._loaded[p.id] = given.start(data, self.settings.initial)
        return [(p.id, self._loaded[p.id]) for p in pairs]

    @contextmanager
    def _parallel(self) -> Iterator[Mapper]:
        """Threads over pairs and samples, one kernel thread each: the kernels leave Python free."""
        with kernel_threads(1), ThreadPoolExecutor(self.workers) as pool:

            def mapper(function: Callable[..., Any], *values: Iterable[Any]) -> Iterable[Any]:
                return pool.map(function, *values)

            yield mapper

    def _choose(self, w0: Weights, folds: Sequence[Fold]) -> Choice:
        """Learn on each fold, register its left-out pairs, and decide hyper-parameters, share and gates."""
        grid = self.options.grid()
        if not self.options.gate:
            return Choice(grid[0], 1.0, w0.classes, {}, None, ())
        uniform = [self._dice("uniform", w0, f.test) for f in folds]
        best: Choice | None = None
        for hyper in grid if self.options.method != "search" else grid[:1]:
            columns = []
            for i, fold in enumerate(folds):
                self.tell(TrainProgress("gate", f"fold {i + 1} of {len(folds)}, eta {hyper.eta:g}, C {hyper.C:g}"))
                columns.append(self._learn(w0, fold.train, hyper).weights)
            for share in SHARES:
                models = [blend(w0, w, share, w0.classes) for w in columns]
                scores = [self._dice("fold", m, f.test) for m, f in zip(models, folds, strict=True)]
                gates = decide(_gains(uniform, scores, w0.classes))
                open_ = tuple(c for c, g in gates.items() if g.open)
                choice = Choice(hyper, share, open_, gates, None, ())
                if open_:
                    gated = [blend(w0, w, share, open_) for w in columns]
                    again = [self._dice("fold", m, f.test) for m, f in zip(gated, folds, strict=True)]
                    choice = replace(choice, **_evidence(uniform, again, folds))
                best = choice if best is None or choice.value > best.value else best
        assert best is not None
        return best if best.value > 0 else replace(best, classes=(), gain=None)

    def _model(self, w0: Weights, final: Weights, learned: Columns, choice: Choice, tuned: Mapping[str, Any]) -> Model:
        names = {c: "background" if c == 0 else str(c) for c in w0.classes}
        for pair in self.pairs:
            labels = self.run.reading.labels(pair.moving_labels, self.run.reading.image(pair.moving).geometry)
            if labels is not None:
                names |= {c: labels.name(c) for c in w0.classes if c in labels.names}
        evidence = {
            "regweave": __version__,
            "method": self.options.method,
            "groups": sorted({p.group for p in self.pairs}),
            "pairs": {p.id: self.run.hashes(p) for p in sorted(self.pairs, key=lambda p: p.id)},
            "failed": dict(sorted(self.failed.items())),
            "options": dict(vars(self.options)),
            "smoothness": dict(tuned),
            "hyper": vars(choice.hyper),
            "share": choice.share,
            "gates": {
                str(c): {"gain": g.gain, "standard_error": g.standard_error, "n": g.n, "used": c in choice.classes}
                for c, g in choice.gates.items()
            },
            "left_out_gain": choice.gain,
            "surrogate_and_dice": list(choice.trail),
            "learned": learned.weights.matrix.tolist(),
            "history": dict(learned.history),
        }
        return Model(
            final, self.settings.model_dump(mode="json"), str(self.settings.modality), names, None, plain(evidence)
        )


@dataclass(frozen=True)
class Choice:
    """What cross-validation chose, with the gain in Dice on left-out patients."""

    hyper: Hyper
    share: float
    classes: tuple[int, ...]
    gates: Mapping[int, Gate]
    gain: Mapping[str, float] | None
    trail: tuple[Mapping[str, float], ...]

    @property
    def value(self) -> float:
        """Mean gain on left-out patients; 0 where nothing is used."""
        return self.gain["mean"] if self.gain is not None else 0.0


Scores = Sequence[Sequence[Mapping[str, Any]]]


def _gains(uniform: Scores, scores: Scores, classes: Sequence[int]) -> dict[int, list[float]]:
    """Gain of each class on each left-out pair that shows it; the background's is the mean over the structures."""
    out: dict[int, list[float]] = {c: [] for c in classes}
    for before, after in zip(_flat(uniform), _flat(scores), strict=True):
        out[0].append(mean_dice(after) - mean_dice(before))
        for c in classes[1:]:
            rows = [s["labels"].get(str(c), {}).get("dice_after") for s in (before, after)]
            if None not in rows:
                out[c].append(rows[1] - rows[0])
    return out


def _evidence(uniform: Scores, scores: Scores, folds: Sequence[Fold]) -> dict[str, Any]:
    differences = [mean_dice(a) - mean_dice(b) for a, b in zip(_flat(scores), _flat(uniform), strict=True)]
    groups = [p.group for f in folds for p in f.test]
    interval = paired_bootstrap(differences, groups)
    gain = {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": len(differences)}
    return {"gain": gain}


def _flat(scores: Scores) -> list[Mapping[str, Any]]:
    return [s for fold in scores for s in fold]


def check_structures(pairs: Sequence[PairFiles], wanted: tuple[int, ...] | None, run: Runner) -> tuple[int, ...]:
    """Return the structures to learn; all label maps must show the same ones, or the user must choose."""
    found: dict[str, tuple[set[int], set[int]]] = {}
    for pair in pairs:
        maps = [run.reading.labels(f, run.reading.image(i).geometry) for f, i in _label_files(pair)]
        found[pair.id] = tuple(set(m.values()) if m is not None else set() for m in maps)  # type: ignore[assignment]
    union = sorted(set().union(*(a | b for a, b in found.values())))
    if wanted is None:
        odd = [k for k, (a, b) in found.items() if a != set(union) or b != set(union)]
        if odd:
            common = sorted(set(union).intersection(*(a & b for a, b in found.values())))
            raise RegweaveError(
                "E136",
                f"label maps differ: structures {union} in all, but not in every map of {', '.join(odd[:5])}",
                f"choose with --classes, for example {','.join(map(str, common)) or 'those that matter'}",
            )
        return tuple(union)
    empty = [c for c in wanted if not any(c in a and c in b for a, b in found.values())]
    if empty:
        raise RegweaveError("E131", f"structures {empty} are empty in every pair", f"choose among {union}")
    return tuple(sorted(wanted))


def _label_files(pair: PairFiles) -> list[tuple[Path, Path]]:
    return [(pair.fixed_labels, pair.fixed), (pair.moving_labels, pair.moving)]


def plain(value: Any) -> Any:
    """Return JSON values, what is not finite as null."""
    text = json.dumps(value, default=lambda v: v.tolist() if isinstance(v, np.ndarray) else str(v))
    return json.loads(text, parse_constant=lambda _: None)


def check_options(options: TrainOptions) -> None:
    """Refuse what no training can mean."""
    if options.method not in get_args(MethodName):
        known = ", ".join(get_args(MethodName))
        raise UsageError("E194", f"unknown method {options.method!r}", f"available: {known}")


def train(
    pairs: str | Path,
    output: str | Path,
    *,
    options: TrainOptions | None = None,
    preset: str = "default",
    config: str | Path | Settings | None = None,
    metrics: Sequence[str] | None = None,
    loss: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    resume: bool = False,
    reading: given.Reading | None = None,
    on_progress: Callable[[TrainProgress | BatchProgress], None] | None = None,
) -> Model:
    """Learn weights from a list of pairs and write the model.

    Parameters
    ----------
    pairs : path
        List of pairs with both label maps; see `regweave.io.manifest`.
    output : path
        Model to write. Finished registrations are kept in a folder beside it until the model is there.
    options : TrainOptions, optional
        Method, structures, hyper-parameters, folds.
    preset, config : optional
        Settings of the registrations.
    metrics : sequence of str, optional
        Members, or metrics with their default options, instead of the bank of the settings.
    loss : str, optional
        Loss instead of that of the settings.
    workers, scheduler : optional
        Processes of this machine, or address of a Dask scheduler.
    resume : bool
        Continue after a run that was stopped; the model is the same, bit for bit.
    """
    options, path = options or TrainOptions(), Path(output)
    check_options(options)
    n = worker_count(workers, scheduler)
    listed = read_pairs(pairs)
    settings = given.choose_settings(preset, config, None, dict.fromkeys(metrics, 1.0) if metrics else None)
    if loss is not None:
        settings = validate({**settings.model_dump(), "loss": loss}, "the command line")
    require_absent(path)
    store = path.with_name(path.name + ".work")
    if store.exists() and not resume:
        raise RegweaveError("E150", f"'{store}' holds a training that was stopped", "pass --resume, or remove it")
    tell = on_progress or (lambda _: None)
    runner = Runner(reading or given.Reading(), workers, scheduler, store / "tasks", tell)
    model = Training(listed, settings, options, runner, store, tell, n).fit()
    write_model(path, model)
    shutil.rmtree(store, ignore_errors=True)
    return model
