"""Training of a model from a list of pairs with labels.

A training is a chain of stages; each returns the state with its own parts set.

::

    list of pairs
      │ scan_dataset      read all files once: structures, grids, modality; choose the pairs that tune and judge
      │ tune              smoothness of the levels and of the refinement, with the uniform bank
      │ predict_classes   class predictor of the model, and predictors without the patients of a pair
      │ weigh_refinement  weights of the refinement and of structure maps, by Dice          (training.refinement)
      │ select_columns    columns of the levels by the latent SVM, for each fold:           (training.columns)
      │     learn         align → samples → CCCP: impute, then cutting planes: violate      (learning)
      │     try           register the left-out pairs: shares, gates, smoothness, strengths
      │ fit_columns       the same columns from all pairs; weights of guides                (training.refinement)
      ▼
    Model                 uniform bank → blend(share, gates) → balance → strengths → weights by class

Every choice is made by real registrations of patients that were left out. The equations (4) to (11) of the paper are in
`regweave.learning`; only ``learn`` uses them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from regweave import __version__, notices, predictors
from regweave.config.settings import BANKS, Settings
from regweave.errors import RegweaveError, UsageError
from regweave.io import require_absent
from regweave.io.disk.outputs import clear, working_folder
from regweave.io.modality import BankName, Stated, bank_of
from regweave.jobs.runner import LEVELS, Method, Runner, SmoothnessParameter, best_of, mean_over_pairs, pair_score
from regweave.jobs.table import PairFiles, cover_patients, in_one_numbering, pairs_on_disk
from regweave.jobs.workers import place, require_cluster, worker_count
from regweave.learning.columns import FittedColumns
from regweave.measures.scores import PairScore
from regweave.model.archive import SUFFIX
from regweave.model.domain import Domain, ImageFacts
from regweave.model.model import Model
from regweave.model.record import FitPoint, SmoothnessRecord, TrainingRecord, Tuning
from regweave.options import called
from regweave.predictors import Choice
from regweave.progress import TrainingBar, TrainProgress
from regweave.run.memory import Cache
from regweave.run.read import Reading
from regweave.run.resolve import with_stated
from regweave.threads import kernel_threads
from regweave.training.columns import ColumnLearner, ColumnSelection, select_columns
from regweave.training.options import CHOICES, TrainJob, TrainOptions
from regweave.training.predictor_fits import Predictors, choose_predictors, segmented_images, with_record
from regweave.training.refinement import weigh_guides, weigh_refinement
from regweave.training.state import CandidateRunner, PairScores, TrainingLog, TrainingState, tuning_record
from regweave.types import Geometry, LabelMap, Modality, WeightTable

NOT_RECORDED = ("predictor", "predictor_options", "tune_pairs", "judge_pairs")
"""Options that other parts of a record imply."""
RECORDED_IF_SET = ("withhold", "refinement_learner", "structure_start", "guide_error_mm", "effort")
"""Options that are recorded where they differ from their default."""


SHOWN = 5  # pairs that a message names before it counts the rest


@called(TrainJob)
def train(job: TrainJob) -> Model:
    """Learn from masks how much each metric weighs in each structure.

    Returns
    -------
    Model
        ``save`` writes it, ``register(…, model=…)`` uses it.
    """
    options, settings = job.options, job.settings
    n, placement = worker_count(job.workers, job.scheduler), place(job.device, job.scheduler)
    with (
        TemporaryDirectory(prefix="regweave-") as name,
        TrainingBar(lines=True, shown=job.progress and job.on_progress is None) as bar,
    ):
        images, report = Path(name) / "images", job.on_progress or bar
        path = Path(name) / f"model{SUFFIX}" if job.output is None else Path(job.output)
        _require_archive(path, options)
        require_absent(path, overwrite=job.overwrite, keep=True)
        listed = pairs_on_disk(job.pairs, images)
        if job.resume and images.exists():
            message = "a training from images in memory cannot be continued"
            raise UsageError("E194", message, "save the images and give their files, or leave resume out")
        require_cluster(job.scheduler)
        store = path.with_name(path.name + ".work")
        reading = replace(job.reading, classes=None)  # the scan of the list finds those to learn
        with (
            working_folder(store, "tasks", "a training that was stopped", resume=job.resume),
            Runner(reading, job.workers, job.scheduler, store / "tasks", report, placement) as runner,
        ):
            model = fit_model(listed, settings, options, runner, report, n)
            model.save(path)
        clear(store, "tasks")
    return model


def _require_archive(path: Path, options: TrainOptions) -> None:
    """Refuse to train for an hour what could not be written; the model may turn out to be small, but need not."""
    large = [kind for kind in options.predictors if getattr(predictors.get(kind), "ARCHIVED", False)]
    if large and path.suffix != SUFFIX:
        message = f"{path} would be JSON, which holds no {large[0]}; the predictor asked for is {options.predictor}"
        raise UsageError("E152", message, f"write the model to {path.stem}{SUFFIX}")


def fit_model(
    pairs: Sequence[PairFiles], settings: Settings, options: TrainOptions, run: Runner,
    on_progress: Callable[[TrainProgress], None], workers: int = 1,
) -> Model:  # fmt: skip
    """Run all stages and return the model; the order of the pairs does not change it.

    ``workers`` are threads for learning.
    """
    log, listed = TrainingLog(on_progress), tuple(sorted(pairs, key=lambda p: p.id))
    state = TrainingState(options, log, Cache(options.max_memory_mb), workers, listed, settings, run)
    with log.stage("read"):
        state = scan_dataset(state)
    stages = {"tune": tune, "predictor": predict_classes, "mix": weigh_refinement, "gate": select_columns}
    with notices.muted("W20"):  # warnings about files have been shown; each registration would repeat them
        for name, stage in stages.items():
            with log.stage(name):
                state = stage(state)
        return fit_columns(state)


def scan_dataset(state: TrainingState) -> TrainingState:
    """Read every file once, remove pairs that cannot be read, and choose structures, modality and judged pairs."""
    options, log = state.options, state.log
    reading = with_stated(in_one_numbering(state.run.reading, state.pairs), state.settings, None)
    found = scan(state.pairs, reading)
    state = state.leave_out({name: str(error) for name, error in found.failed.items()})
    classes = choose_structures(found, options.classes, options.withhold or ())
    skipped = found.lacking(classes)
    bare = [name for name, missing in skipped.items() if len(missing) == len(classes)]
    state = state.leave_out(dict.fromkeys(bare, "E131: its label maps share none of the structures"))
    for name, missing in skipped.items():
        log.report("note", f"pair {name} does not show {missing} in both label maps: skipped there")
    if options.classes is not None or options.withhold:
        reading = replace(reading, classes=classes)
    bank = choose_bank(found)
    chosen = cover_patients(state.pairs, options.judge_pairs, options.seed)
    judged, tuning = (tuple(sorted(of, key=lambda p: p.id)) for of in (chosen, chosen[: options.tune_pairs]))
    if len(tuning) < len(state.pairs):
        text = f"{len(tuning)} to tune and {len(judged)} to judge with of {len(state.pairs)} pairs, patients evenly"
        log.report("note", text)
    state = replace(
        state, judged=judged, tuning=tuning, scan=found, classes=classes, skipped=skipped, modality=bank,
        run=state.run.reading_by(reading), settings=state.settings.model_copy(update={"modality": bank}),
    )  # fmt: skip
    state.folds()  # too few patients are an error of the list, raised before anything is computed
    return state


@dataclass(frozen=True)
class PairContents:
    """Grids, structures and bank of one pair."""

    fixed: Geometry
    moving: Geometry
    shown: tuple[frozenset[int], frozenset[int]]
    bank: BankName
    facts: tuple[ImageFacts, ImageFacts]  # what a model records of both images

    @property
    def in_both(self) -> frozenset[int]:
        """Structures that a deformation can bring together."""
        return self.shown[0] & self.shown[1]


@dataclass(frozen=True)
class DatasetScan:
    """Structures found by pair id, why other pairs cannot be read, and the names of the structures."""

    contents: Mapping[str, PairContents]
    failed: Mapping[str, RegweaveError]
    names: Mapping[int, str]

    def structures(self) -> list[int]:
        """Labels of all maps, ascending."""
        return sorted({c for s in self.contents.values() for shown in s.shown for c in shown})

    def lacking(self, classes: Sequence[int]) -> dict[str, list[int]]:
        """Structures that one of the maps of a pair does not show, by id of the pairs that lack any."""
        found = {name: [c for c in classes if c not in s.in_both] for name, s in self.contents.items()}
        return {name: missing for name, missing in found.items() if missing}


def scan(pairs: Sequence[PairFiles], reading: Reading) -> DatasetScan:
    """Read every file of a list once; pairs with a file that cannot be used are named, not fatal."""
    seen, failed = {}, {}
    names: dict[int, str] = {}

    @cache
    def look(image: Path, labels: Path, stated: Stated) -> tuple[Geometry, frozenset[int], Modality, ImageFacts]:
        volume = reading.image(image, stated)
        found = reading.labels(labels, volume.geometry)
        assert volume.modality is not None
        assert isinstance(found, LabelMap)
        values = frozenset(found.values())
        for value in sorted(values & found.names.keys()):
            names.setdefault(value, found.names[value])
        return volume.geometry, values, volume.modality, ImageFacts.of(volume, found)

    for pair in pairs:
        try:
            fixed, a, of_fixed, one = look(pair.fixed, pair.fixed_labels, reading.fixed_modality)
            moving, b, of_moving, other = look(pair.moving, pair.moving_labels, reading.moving_modality)
            for mask, grid in ((pair.fixed_mask, fixed), (pair.moving_mask, moving)):
                reading.labels(mask, grid, mask=True)
            seen[pair.id] = PairContents(fixed, moving, (a, b), bank_of(of_fixed, of_moving), (one, other))
        except RegweaveError as error:
            failed[pair.id] = error
    return DatasetScan(seen, failed, names)


def domain_of(found: DatasetScan, ids: Sequence[str], classes: Sequence[int], modality: BankName) -> Domain | None:
    """Return the domain of the images of some pairs; None for two modalities, which one domain does not describe."""
    if modality == "multi":
        return None
    facts = {id(one): one for name in ids for one in found.contents[name].facts}.values()
    kept = [replace(f, volumes_ml={c: v for c, v in f.volumes_ml.items() if c in classes}) for f in facts]
    return Domain.over(kept, modality)


def choose_bank(found: DatasetScan) -> BankName:
    """Return the bank that compares the images of every pair, or refuse a list of several kinds (E172)."""
    kinds: dict[BankName, list[str]] = {}
    for name, seen in found.contents.items():
        kinds.setdefault(seen.bank, []).append(name)
    if len(kinds) > 1:
        listed = "; ".join(f"{BANKS[kind]}: {', '.join(ids[:SHOWN])}" for kind, ids in sorted(kinds.items()))
        raise RegweaveError(
            "E172",
            f"the pairs of the list are not of one kind ({listed})",
            "train a model for each kind, or state what the images are with fixed_modality and moving_modality",
        )
    return next(iter(kinds))


def choose_structures(
    found: DatasetScan, wanted: Sequence[int] | None, withheld: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the structures to learn; all label maps must show the same ones, or the user must choose.

    Raises E136 where label maps differ and nothing is chosen, E131 where no pair shows a structure in both maps, or no
    label map one that is to be withheld.
    """
    strange = sorted(set(withheld) - set(found.structures()))
    if strange:
        message = f"structures {strange} are to be withheld and stand in no label map"
        raise RegweaveError("E131", message, f"choose among {found.structures()}")
    union = [c for c in found.structures() if c not in withheld]
    chosen = tuple(union) if wanted is None else tuple(sorted(set(wanted)))
    lacking = found.lacking(chosen)
    if wanted is None and lacking:
        common = [c for c in union if not any(c in missing for missing in lacking.values())]
        odd = ", ".join([*lacking][:SHOWN]) + (f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else "")
        raise RegweaveError(
            "E136",
            f"label maps differ: structures {union} in all, but not in both maps of {odd}",
            f"choose with --classes, for example {','.join(map(str, common)) or 'those that matter'}",
        )
    empty = [c for c in chosen if all(c not in s.in_both for s in found.contents.values())]
    if empty or not chosen:
        what = f"structures {empty} are" if chosen else "all structures are"
        raise RegweaveError("E131", f"{what} empty in every pair", f"choose among {union}")
    return chosen


def tune(state: TrainingState) -> TrainingState:
    """Choose both smoothnesses of the uniform bank on the training pairs, as for every baseline."""
    uniform: PairScores = {}
    tuned: dict[str, Tuning] = {}
    least = 0.0
    for parameter in Method("uniform", state.settings).parameters:
        state, curve, scores = _try_values(state, parameter)
        best = best_of(curve)
        uniform = scores[best]
        state = replace(state, settings=parameter.set(state.settings, best))
        tuned[parameter.name] = tuning_record(best, curve)
        if parameter is LEVELS:
            least = min(curve)
    state, uniform = _score_rest(state, uniform)
    record = SmoothnessRecord.model_validate(
        {**dict(tuned["levels"]), **{k: v for k, v in tuned.items() if k != "levels"}}
    )
    return replace(state, uniform=uniform, smoothness=record, least_smoothness=least)


def _try_values(
    state: TrainingState, parameter: SmoothnessParameter
) -> tuple[TrainingState, dict[float, float], dict[float, PairScores]]:
    """Search from the settings' smoothness; mean Dice and scores by value. Pairs that fail are removed."""
    base = Method("uniform", state.settings, tunable=True)
    values = parameter.values(base.settings)
    means: dict[float, float] = {}
    scores: dict[float, PairScores] = {}
    known: dict[tuple[float, str], PairScore] = {}
    while tried := state.options.next_values(values, means):
        cases = [(v, p) for v in tried for p in state.tuning]
        plan = [(f"tune/{parameter.name}/{v!r}/{p.id}", base.at(parameter, v), p) for v, p in cases]
        state.log.report("tune", f"smoothness of the {parameter.name}, uniform bank: {len(plan)} registrations")
        outcomes = dict(zip(cases, state.run(plan, dice_only=True), strict=True))
        state.log.count(registrations=len(plan))
        failed = {p.id: o.error for (_, p), o in outcomes.items() if o.error is not None}
        known |= {(v, p.id): pair_score(o.value) for (v, p), o in outcomes.items() if o.error is None}
        state = state.leave_out(failed)
        scores = {v: {p.id: known[v, p.id] for p in state.tuning} for v in [*means, *tried]}
        means = {v: mean_over_pairs(of.values()) for v, of in sorted(scores.items())}
    return state, means, scores


def _score_rest(state: TrainingState, known: PairScores) -> tuple[TrainingState, PairScores]:
    """Add the scores of pairs that smoothness was not tuned with; those that fail are removed."""
    rest = [p for p in state.judged if p not in state.tuning]
    if not rest:
        return state, known
    state.log.report("tune", f"uniform bank on the other pairs: {len(rest)} registrations")
    plan = [(f"tune/rest/{p.id}", Method("uniform", state.settings), p) for p in rest]
    outcomes = dict(zip([p.id for p in rest], state.run(plan, dice_only=True), strict=True))
    state.log.count(registrations=len(plan))
    state = state.leave_out({name: o.error for name, o in outcomes.items() if o.error is not None})
    found = {name: pair_score(o.value) for name, o in outcomes.items() if o.error is None}
    return state, {p.id: known[p.id] if p.id in known else found[p.id] for p in state.judged}


def predict_classes(state: TrainingState) -> TrainingState:
    """Fit the class predictor of the model; none, with a note, where the data do not allow it.

    Where there are several kinds to choose from, or a fit is costly, left-out patients judge them.
    """
    options, bank = state.options, state.modality
    start = state.settings.for_bank(bank).start_weights(state.settings.smoothness, (0, *state.classes))
    grids = {name: {"fixed": c.fixed, "moving": c.moving} for name, c in state.scan.contents.items()}
    # Without a predictor in the options, one without images takes its place; it has no maps for any pair.
    shown = state.pairs if options.predictors else ()
    images = segmented_images(shown, state.run.hashes, lambda p: grids[p.id])
    kinds = []
    for name in options.predictors or CHOICES[:1]:
        choice = Choice(name, options.options_of(name))
        kinds.append(Predictors(
            images, state.judged, choice, start.classes, "ct" if bank == "ct" else "mr", state.run.reading,
            options.seed, options.max_memory_mb, state.run.store, partial(state.log.report, "predictor"),
        ))  # fmt: skip
    predictor, choice_record, reason = None, None, "one classifier does not read two modalities"
    taken = kinds[0]
    if bank != "multi":
        try:
            with kernel_threads(state.workers):
                taken, choice_record = choose_predictors(kinds, state.log)
                predictor = with_record(taken.whole, choice_record)
        except ValueError as error:
            reason = str(error)
    if predictor is None:
        state.log.report("note", f"the model has no class predictor: {reason}")
    candidates = CandidateRunner(state.run, state.settings, options.levels, state.log, taken)
    return replace(state, start=start, predictor=predictor, predictor_choice=choice_record, candidates=candidates)


def fit_columns(state: TrainingState) -> Model:
    """Learn the columns from all pairs, and return the model with its record."""
    log, w0 = state.log, state.refinement.weights
    learner = ColumnLearner.of(state)
    with log.stage("learn"):
        used = learner.sampled(state.judged)
        log.report("learn", f"{len(used)} pairs")
        learned = learner.learn(w0, used, state.selection.options)
    selection = state.selection.where_learned(w0, learned.weights)
    weights, guides = selection.apply(w0, learned.weights), None
    if state.options.guide_error_mm is not None:
        with log.stage("guides"):
            weights, guides = weigh_guides(state, weights)
    names = {c: "background" if c == 0 else state.scan.names.get(c, str(c)) for c in w0.classes}
    record = training_record(state, selection, learned, [p.id for p in used])
    record = record if guides is None else record.model_copy(update={"guides": guides})
    log.finish()
    without_mask = state.refinement.record.without_mask
    return Model(
        weights=weights,
        settings=state.settings,
        modality=state.modality,
        class_names=names,
        training=record,
        levels=state.options.levels,
        predictor=state.predictor,
        outline_without_mask=without_mask is None or without_mask.used,
        weights_without_mask=_weights_without_labels(state, weights),
        domain=domain_of(state.scan, [p.id for p in state.pairs], state.classes, state.modality),
    )


def _weights_without_labels(state: TrainingState, weights: WeightTable) -> WeightTable | None:
    """Return the weights for pairs without moving labels, where training chose others.

    Where their levels equal those of the weights with labels, they take the selected columns and balance too.
    """
    found, schedule = state.refinement.without_labels, state.settings.for_bank(state.modality)
    if found is None:
        return None
    rows = found.rows([m.name for m in schedule.discrete])
    before, after = (schedule.without_label_members(w).matrix[rows] for w in (state.refinement.weights, weights))
    matrix = found.matrix.copy()
    if not np.allclose(before, matrix[rows]):
        return found
    matrix[rows] = after
    return replace(found, matrix=matrix, pairwise=weights.pairwise)


def training_record(
    state: TrainingState, selection: ColumnSelection, learned: FittedColumns, used: Sequence[str]
) -> TrainingRecord:
    """Return the record that a model keeps of its training."""
    options = vars(state.options)
    usual = vars(TrainOptions())
    implied = {*NOT_RECORDED, *(name for name in RECORDED_IF_SET if options[name] == usual[name])}
    parts: dict[str, Any] = {}
    if state.run.placement.word != "cpu":
        parts["device"] = state.run.placement.word
    if len(state.tuning) < len(state.pairs):
        parts["chosen"] = {"tune": tuple(p.id for p in state.tuning), "judge": tuple(p.id for p in state.judged)}
    if state.predictor_choice is not None:
        parts["predictor"] = state.predictor_choice
    return TrainingRecord(
        regweave=__version__,
        method=state.options.method,
        groups=tuple(sorted({p.group for p in state.pairs})),
        pairs={p.id: state.run.hashes(p) for p in state.pairs},
        failed=dict(sorted(state.failed.items())),
        skipped={name: tuple(missing) for name, missing in state.skipped.items()},
        registrations=state.log.registrations,
        inferences=state.log.inferences,
        stages=state.log.counts,
        options={name: value for name, value in options.items() if name not in implied},
        learned_on=tuple(used),
        smoothness=state.smoothness,
        refinement=state.refinement.record,
        surrogate_and_dice=tuple(state.trail),
        learned=learned.weights.matrix.tolist(),
        learned_by_fold=tuple(columns.weights.matrix.tolist() for columns in state.by_fold),
        history={name: tuple(FitPoint(**point) for point in curve) for name, curve in learned.history.items()},
        **selection.record(),
        **parts,
    )
