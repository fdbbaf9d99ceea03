"""Training pipeline: tune, learn, try on left-out patients, gate class by class, and say all of it in a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from regweave import __version__, notices
from regweave.config.settings import Settings
from regweave.datasets.folds import Fold, one_by_one, split_groups
from regweave.datasets.manifest import PairFiles
from regweave.errors import RegweaveError, UsageError
from regweave.io.modality import BankName
from regweave.jobs.methods import LEVELS, REFINE, Knob, Method, best_of, next_values
from regweave.jobs.runner import Runner
from regweave.jobs.scoring import mean_over_pairs
from regweave.learning.columns import Columns
from regweave.learning.lssvm import Hyper
from regweave.learning.search import LEAST_CANDIDATES
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.pipeline.reading import in_one_numbering
from regweave.pipeline.recipe import with_stated
from regweave.training.candidates import Trials
from regweave.training.column_selection import Choice, Scores, rebalance, strengthen, try_columns
from regweave.training.learning_stage import LearningStage
from regweave.training.log import Effort, TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.predictors_by_fold import Predictors, segmented_images
from regweave.training.refinement_weights import Mix, judge_without_mask, mix_refinement
from regweave.training.scan import Survey, choose_bank, choose_structures, survey
from regweave.types import Geometry, WeightTable


class Training:
    """One run of training: pairs, settings, and the runner that keeps finished registrations.

    Parameters
    ----------
    pairs : sequence of PairFiles
        In any order; it does not change the model.
    settings : Settings
        Settings of the registrations.
    options : TrainOptions
        How to train.
    run : Runner
        Runs the registrations.
    store : path
        Folder for the models that are tried on left-out patients.
    tell : callable
        Called with a `TrainProgress` now and then.
    workers : int
        Threads for learning.
    """

    def __init__(
        self,
        pairs: Sequence[PairFiles],
        settings: Settings,
        options: TrainOptions,
        run: Runner,
        store: Path,
        tell: Callable[[TrainProgress], None],
        workers: int = 1,
    ) -> None:
        self.pairs = sorted(pairs, key=lambda p: p.id)
        self.settings, self.options, self.run, self.store, self.workers = settings, options, run, store, workers
        self.effort = Effort(tell)
        self.failed: dict[str, str] = {}
        self._of_folds: Sequence[Columns] = ()

    def fit(self) -> Model:
        """Train and return the model."""
        with self.effort.stage("read"):
            self.survey = self._look()
        with notices.muted("W20"):  # warnings about files have been shown and would come again with every round
            return self._fit()

    def _fit(self) -> Model:
        self._folds()  # before anything is computed: too few patients are an error of the list
        with self.effort.stage("tune"):
            tuned, uniform = self._tune()
        schedule = self.settings.schedule(self._modality)
        start = schedule.start_weights(self.settings.smoothness, (0, *self.classes))
        predictors = self._predictors(start.classes)
        with self.effort.stage("predictor"):
            predictor = self._predictor(predictors)
        trials = Trials(self.run, self.settings, self.options.levels, self.effort, predictors)
        with self.effort.stage("mix"):
            mix = self._mix(start, uniform, trials, seen=predictor is not None)
            trials, mix = self._smooth(mix, trials)
            mix = self._bare(mix, trials)
        w0 = mix.weights
        stage = LearningStage(self.options, self._modality, self.survey, trials, self.workers)
        with self.effort.stage("gate"):
            choice, trail = self._choose(w0, mix.scores, self._folds(), stage)
        with self.effort.stage("learn"):
            used = stage.sampled(self.pairs)
            self.effort.tell("learn", f"{len(used)} pairs")
            learned = stage.learn(w0, used, choice.hyper)
        choice = _that_changed(choice, w0, learned.weights)
        final = choice.apply(w0, learned.weights)
        more = {
            "learned_on": [p.id for p in used],
            "smoothness": tuned,
            "refinement": mix.evidence(),
            "surrogate_and_dice": trail,
        }
        record = TrainingRecord.model_validate(plain(self._evidence(learned, choice, more)))
        names = {c: "background" if c == 0 else self.survey.names.get(c, str(c)) for c in w0.classes}
        self.effort.finish()
        return Model(
            final, self.settings, self._modality, names, record,
            self.options.levels, predictor, mix.without_mask is None or mix.without_mask["used"],
        )  # fmt: skip

    def _look(self) -> Survey:
        """Read every file once, leave out pairs that cannot be read, and settle structures and modality."""
        self.run.reading = with_stated(in_one_numbering(self.run.reading, self.pairs), self.settings, None)
        found = survey(self.pairs, self.run.reading)
        self._leave_out({name: str(error) for name, error in found.failed.items()})
        self.classes = choose_structures(found, self.options.classes)
        self.skipped = found.lacking(self.classes)
        bare = [name for name, missing in self.skipped.items() if len(missing) == len(self.classes)]
        if bare:
            self._leave_out(dict.fromkeys(bare, "E131: its label maps share none of the structures"))
        if self.options.method == "search":
            self._check_budget()
        for name, missing in self.skipped.items():
            self.effort.tell("note", f"pair {name} does not show {missing} in both label maps: skipped there")
        if self.options.classes is not None:
            self.run.reading = replace(self.run.reading, classes=self.classes)
        self._modality: BankName = choose_bank(found)
        self.settings = self.settings.model_copy(update={"modality": self._modality})
        return found

    def _check_budget(self) -> None:
        n = min(len(self.pairs), self.options.max_pairs or len(self.pairs))
        if self.options.budget < LEAST_CANDIDATES * n:
            message = f"a budget of {self.options.budget} registrations is too small for {n} pairs"
            raise UsageError("E194", message, f"give at least {LEAST_CANDIDATES * n}, or lower --max-pairs")

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        """Take pairs off the list and say so; the others go on."""
        for name, error in failed.items():
            self.effort.tell("failed", f"pair {name} is left out: {error}")
        # The code alone: messages name files, and a model travels.
        self.failed |= {name: error.split(":")[0] for name, error in failed.items()}
        self.pairs = [p for p in self.pairs if p.id not in self.failed]
        if not self.pairs:
            raise RegweaveError("E135", f"all {len(self.failed)} training pairs failed", next(iter(failed.values())))

    def _folds(self) -> list[Fold]:
        """Split by patient into as many folds as asked for, or as the patients allow, at least two."""
        if not self.options.gate:
            return []
        for k in range(self.options.folds, 2, -1):
            with suppress(RegweaveError):
                return split_groups(self.pairs, k, self.options.seed)
        return split_groups(self.pairs, 2, self.options.seed)

    def _tune(self) -> tuple[dict[str, Any], Scores]:
        """Choose both smoothnesses of the uniform bank on the training pairs, as every baseline's are."""
        uniform: Scores = {}
        found: dict[str, Any] = {}
        for knob in Method("uniform", self.settings).knobs:
            base = Method("uniform", self.settings, tunable=True)
            curve, scores = self._try_values(knob, base)
            best = best_of(curve)
            self.settings, uniform = knob.set(self.settings, best), scores[best]
            listed = [{"smoothness": v, "mean_dice": d} for v, d in curve.items()]
            found[knob.name] = {"smoothness": best, "curve": listed, "mean_dice": curve[best]}
            if knob is LEVELS:
                self._least_smoothness = min(curve)
        return {**found["levels"], **{k: v for k, v in found.items() if k != "levels"}}, uniform

    def _try_values(self, knob: Knob, base: Method) -> tuple[dict[float, float], dict[float, Scores]]:
        """Go uphill from the settings' smoothness; mean Dice and scores by value."""
        values = knob.values(base.settings)
        means: dict[float, float] = {}
        known: dict[str, Mapping[str, Any]] = {}
        while tried := next_values(values, means):
            plan = [(f"tune/{knob.name}/{v!r}/{p.id}", base.at(knob, v), p) for v in tried for p in self.pairs]
            self.effort.tell("tune", f"smoothness of the {knob.name}, uniform bank: {len(plan)} registrations")
            outcomes = self.run(plan, dice_only=True)
            self.effort.registrations += len(plan)
            failed = {p.id: o.error for (_, _, p), o in zip(plan, outcomes, strict=True) if o.error is not None}
            self._leave_out(failed)
            known |= {o.key: o.value for o in outcomes}
            scores: dict[float, Scores] = {
                v: {p.id: known[f"tune/{knob.name}/{v!r}/{p.id}"] for p in self.pairs} for v in [*means, *tried]
            }
            means = {v: mean_over_pairs(of.values()) for v, of in sorted(scores.items())}
        return means, scores

    def _mix(self, start: WeightTable, uniform: Scores, trials: Trials, *, seen: bool) -> Mix:
        """Weigh the members of the refinement, where there is one; learned ones where every pair can be judged."""
        members = [m for m in self.settings.schedule(self._modality).continuous if m.stage == "refine"]
        if not self.settings.refine.steps:
            return Mix(start, uniform)
        if any(m.sees_anatomy for m in members) and not (
            seen and all(trials.predictors.without(p) is not None for p in self.pairs)
        ):
            members = [m for m in members if not m.sees_anatomy]
            self.effort.tell("note", "too few patients to judge what a predictor makes out: those members stay unused")

        folds = one_by_one(self.pairs) if self.options.gate else []

        def register(weights: Sequence[WeightTable]) -> list[Scores]:
            self.effort.tell("mix", f"members of the refinement: {len(weights) * len(self.pairs)} registrations")
            return trials([(w, self.pairs) for w in weights])

        return mix_refinement(start, uniform, [m.name for m in members], folds, register)

    def _smooth(self, mix: Mix, trials: Trials) -> tuple[Trials, Mix]:
        """Tune the smoothness of the refinement once more where its members changed: other forces, other balance."""
        if mix.gain is None:
            return trials, mix
        values = REFINE.values(self.settings)
        here = REFINE.get(self.settings)
        found, scores = {here: self._mean(mix.scores)}, {here: mix.scores}
        while tried := next_values(values, found):
            for value in tried:
                self.effort.tell("mix", f"smoothness of the refinement: {len(self.pairs)} registrations")
                other = replace(trials, settings=REFINE.set(self.settings, value))
                scores[value] = other([(mix.weights, self.pairs)])[0]
                found[value] = self._mean(scores[value])
            found = dict(sorted(found.items()))
        best = best_of(found)
        self.settings = REFINE.set(self.settings, best)
        curve = [{"smoothness": v, "mean_dice": d} for v, d in found.items()]
        smoothness = {"smoothness": best, "curve": curve, "mean_dice": found[best]}
        return replace(trials, settings=self.settings), replace(mix, scores=scores[best], smoothness=smoothness)

    def _bare(self, mix: Mix, trials: Trials) -> Mix:
        """Choose the fall-back of label-based members where no moving segmentation is given."""
        unmasked = self.settings.schedule(self._modality).without_mask(mix.weights)
        if (unmasked.matrix == mix.weights.matrix).all():
            return mix
        self.effort.tell("mix", f"without moving labels: {2 * len(self.pairs)} registrations")
        used, unused = trials([(mix.weights, self.pairs)], predicted=True), trials([(unmasked, self.pairs)])
        return replace(mix, without_mask=judge_without_mask(used[0], unused[0], self.pairs))

    def _mean(self, scores: Scores) -> float:
        return mean_over_pairs(scores[p.id] for p in self.pairs)

    def _choose(
        self, w0: WeightTable, uniform: Scores, folds: Sequence[Fold], stage: LearningStage
    ) -> tuple[Choice, list[dict[str, Any]]]:
        """Learn on each fold, register its left-out pairs, and decide hyper-parameters, share and gates."""
        grid = self.options.grid()
        if not self.options.gate:
            return Choice(grid[0], 1.0, w0.classes, {}), []
        shown = {name: seen.in_both for name, seen in self.survey.seen.items()}
        tried: list[tuple[Choice, dict[str, Any]]] = []
        learned: dict[Hyper, list[Columns]] = {}
        register = partial(stage.trials.left_out, folds)
        for hyper in grid:
            columns = []
            for i, fold in enumerate(folds, start=1):
                numbers = f"C {hyper.C:g}, alpha {hyper.alpha:g}, eta {hyper.eta:g}"
                self.effort.tell("gate", f"fold {i} of {len(folds)}, {numbers}")
                columns.append(stage.learn(w0, stage.sampled(fold.train), hyper))
            learned[hyper] = columns
            tried += try_columns(hyper, w0, columns, uniform, shown, folds, register)
        best = _best(tried)
        tried += rebalance(best, w0, learned[best.hyper], uniform, folds, register, least=self._least_smoothness)
        best = _best(tried)
        best = best if best.value > 0 else replace(best, classes=(), gain=None, balance=1.0)
        tried += (strong := strengthen(best, w0, learned[best.hyper], uniform, folds, register))
        best = _best([(best, {}), *strong])
        self._of_folds = learned[best.hyper]
        return best, [line for _, line in tried]

    def _predictors(self, classes: tuple[int, ...]) -> Predictors:
        def grids(pair: PairFiles) -> dict[str, Geometry]:
            return {"fixed": self.survey.seen[pair.id].fixed, "moving": self.survey.seen[pair.id].moving}

        return Predictors(
            segmented_images(self.pairs, self.run.hashes, grids), self.run.reading, classes,
            "ct" if self._modality == "ct" else "mr",
            seed=self.options.seed, max_memory_mb=self.options.max_memory_mb,
        )  # fmt: skip

    def _predictor(self, predictors: Predictors) -> dict[str, Any] | None:
        """Learn to tell the classes of an image without labels; None, with a note, where that cannot be."""
        if self._modality == "multi":
            self.effort.tell("note", "the model has no class predictor: one classifier does not read two modalities")
            return None
        try:
            return predictors.whole.to_dict()
        except ValueError as error:
            self.effort.tell("note", f"the model has no class predictor: {error}")
            return None

    def _evidence(self, learned: Columns, choice: Choice, more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "regweave": __version__,
            "method": self.options.method,
            "groups": sorted({p.group for p in self.pairs}),
            "pairs": {p.id: self.run.hashes(p) for p in self.pairs},
            "failed": dict(sorted(self.failed.items())),
            "skipped": self.skipped,
            "registrations": self.effort.registrations,
            "inferences": self.effort.inferences,
            "stages": self.effort.counts,
            "options": dict(vars(self.options)),
            **more,
            "hyper": vars(choice.hyper),
            "share": choice.share,
            "balance": choice.balance,
            "strengths": {str(c): f for c, f in choice.strengths.items()},
            "gates": {
                str(c): {"gain": g.gain, "standard_error": g.standard_error, "n": g.n, "used": c in choice.classes}
                for c, g in choice.gates.items()
            },
            "left_out_gain": choice.gain,
            "learned": learned.weights.matrix.tolist(),
            "learned_by_fold": [columns.weights.matrix.tolist() for columns in self._of_folds],
            "history": dict(learned.history),
            "overlays": dict(learned.overlays),
        }


def _best(tried: Sequence[tuple[Choice, Mapping[str, Any]]]) -> Choice:
    """Return the choice with the largest gain, of equals the first."""
    return max((choice for choice, _ in tried), key=lambda choice: choice.value)


def _that_changed(choice: Choice, w0: WeightTable, learned: WeightTable) -> Choice:
    """Drop classes whose final fit equals the start; their cross-validated gain does not apply."""
    changed = dict(zip(w0.classes, (w0.matrix != learned.matrix).any(axis=0), strict=True))
    kept = tuple(c for c in choice.classes if changed[c])
    if kept or choice.strengths:
        return replace(choice, classes=kept)
    return replace(choice, classes=(), gain=None, balance=1.0)


def plain(value: Any) -> Any:
    """Return JSON values, what is not finite as null."""
    text = json.dumps(value, default=lambda v: v.tolist() if isinstance(v, np.ndarray) else str(v))
    return json.loads(text, parse_constant=lambda _: None)
