"""Evaluation: every method on every pair, per structure, with paired comparisons by patient."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from regweave import notices
from regweave.config.presets import choose_settings
from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.io import prepare_output
from regweave.io.disk.outputs import working_folder
from regweave.io.disk.records import PAGE_RECORD, PAGES, this_program, write_record
from regweave.jobs.cluster import Cluster, require_cluster
from regweave.jobs.methods import Method, bank_of_list, baseline_methods, model_methods, tune
from regweave.jobs.runner import PairNumbers, Runner
from regweave.jobs.store import Outcome, worker_count
from regweave.jobs.table import PairFiles, Pairs, check_leak, in_one_numbering, pairs_on_disk
from regweave.jobs.workers import place
from regweave.measures.verdict import Rules, default_rules, read_rules
from regweave.model.model import Model
from regweave.progress import OnBatchProgress
from regweave.run.read import Reading, ReadingWords, reading_of
from regweave.run.register import register
from regweave.study.comparison import (
    REFERENCE,
    Evaluation,
    MethodRecord,
    PairInputs,
    PairResult,
    compare,
    verdict_of,
)

STORE = "tasks"


def evaluate(
    pairs: Pairs,
    output: str | Path | None = None,
    *,
    models: Sequence[str | Path | Model] = (),
    baselines: bool = False,
    preset: str | None = None,
    config: str | Path | Settings | None = None,
    train_pairs: Pairs | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    device: str | None = None,
    resume: bool = False,
    allow_leak: bool = False,
    withhold: Sequence[int] | None = None,
    rules: str | Path | Rules | None = None,
    on_progress: OnBatchProgress | None = None,
    **reading: Unpack[ReadingWords],
) -> Evaluation:
    """Register every pair of a list with every method and write what came out.

    Parameters
    ----------
    pairs : path, table, or sequence
        Pairs with both label maps: a CSV file, a pandas table, rows by column, or tuples of fixed image, moving image,
        fixed labels and moving labels, as files or in memory.
    output : path, optional
        Folder for results.csv, results.json and summary.md; finished registrations are kept in it as they come. Without
        it nothing is left on disk.
    models : sequence of paths, names or Models
        Models to evaluate, each with the settings stored in it.
    baselines : bool
        Also evaluate the uniform mix and each member of the bank alone.
    preset, config : optional
        Settings of the baselines; by default those of the first model, or the default preset.
    train_pairs : as ``pairs``, optional
        Pairs on which each baseline's smoothness is tuned.
    workers, scheduler : optional
        Processes of this machine, or a Dask scheduler; see `regweave.jobs.store.run_tasks`.
    device : str, optional
        What computes, as in `regweave.register`; ``cuda:0,1`` deals the processes out to several GPUs.
    resume : bool
        Continue in a folder that an earlier call left.
    allow_leak : bool
        Evaluate on patients that were trained on; the summary has a note.
    withhold : sequence of ints, optional
        Structures that no model has learned, scored apart from the others: the gain without labels.
    rules : path or Rules, optional
        Acceptance criteria of the verdicts; by default the shipped ones.
    on_progress : callable, optional
        Called after every registration.
    **reading
        How files are read: ``label_names``, ``classes``, ``nifti_frame``, …, as in `regweave.register`.

    Returns
    -------
    Evaluation
    """
    stated = reading_of(reading, evaluate)
    worker_count(workers, scheduler)
    placement = place(device, scheduler)
    if train_pairs is not None and not baselines:
        raise UsageError("E192", "--train-pairs is given without --baselines, which it would tune", "add --baselines")
    withheld = tuple(withhold or ())
    judged_by = read_rules(rules) if isinstance(rules, str | Path) else rules or default_rules()
    with TemporaryDirectory(prefix="regweave-") as name:
        memory = Path(name)
        folder = memory / "evaluation" if output is None else Path(output)
        listed = pairs_on_disk(pairs, memory / "images")
        training = [] if train_pairs is None else pairs_on_disk(train_pairs, memory / "images")
        rule = in_one_numbering(stated, [*listed, *training])
        named = model_methods(_on_disk(models, memory))
        _check_withheld(withheld, named, rule.classes)
        leaked = _leaked(listed, training, [model for _, model in named], allow_leak)
        require_cluster(scheduler)
        methods = _methods(named, listed, rule, preset, config, baselines=baselines, tuned=bool(training))
        with (
            working_folder(folder, STORE, "an evaluation", resume=resume),
            Runner(rule, workers, scheduler, folder / STORE, on_progress, placement) as run,
        ):
            if training:
                methods = tune(methods, training, lambda plan: _kept(run(plan, dice_only=True), withheld))
            plan = [(f"{method.name}/{pair.id}", method, pair) for method in methods for pair in listed]
            outcomes = {(m.name, p.id): outcome for (_, m, p), outcome in zip(plan, run(plan), strict=True)}
            results = []
            for pair in listed:
                for method in methods:
                    outcome = outcomes[method.name, pair.id]
                    scores = None if outcome.error is not None else PairNumbers.model_validate(outcome.value)
                    results.append(PairResult(
                        id=pair.id, method=method.name, error=outcome.error, scores=scores,
                        verdict=verdict_of(outcome.error, scores, judged_by),
                    ))  # fmt: skip
            found = Evaluation(
                notes=_notes(methods, leaked, rule.classes, withheld, baselines=baselines, tuned=bool(training)),
                pairs=tuple(PairInputs(id=p.id, group=p.group, inputs_sha256=run.hashes(p)) for p in listed),
                methods=tuple(MethodRecord(**method.describe()) for method in methods),
                reference=next((m for m in methods if m.name == REFERENCE), methods[0]).name,
                withheld=withheld, rules=judged_by, results=tuple(results), provenance=this_program(),
            )  # fmt: skip
            found = found.model_copy(update={"comparison": compare(found)})
            found._used.update({method.name: method for method in methods})
            found._files.update({pair.id: pair for pair in listed})
            found.write(folder)
    return found


def _on_disk(models: Sequence[str | Path | Model], folder: Path) -> list[Path]:
    """Return the files of models; those in memory are written first."""
    paths = []
    for number, model in enumerate(models, start=1):
        path = folder / f"model{number}.json" if isinstance(model, Model) else Path(model)
        if isinstance(model, Model):
            model.save(path)
        paths.append(path)
    return paths


def _methods(
    named: Sequence[tuple[Method, Model]],
    pairs: Sequence[PairFiles],
    reading: Reading,
    preset: str | None,
    config: str | Path | Settings | None,
    *,
    baselines: bool,
    tuned: bool,
) -> list[Method]:
    if named and preset is None and config is None:
        base = named[0][0].settings
    else:
        base = choose_settings(preset or "default", config, None, None)
    methods = [] if named else [Method(f"preset:{base.name}", base)]
    if baselines and not tuned:
        methods = []  # the preset is the uniform mix
    if baselines:
        methods += baseline_methods(base, bank_of_list(base, pairs, reading))
    return [*methods, *(method for method, _ in named)]


def _leaked(
    pairs: Sequence[PairFiles], training: Sequence[PairFiles], models: Sequence[Model], allow: bool
) -> tuple[str, ...]:
    trained = [pair.group for pair in training]
    for model in models:
        trained += model.training.trained_on
    return check_leak(trained, [pair.group for pair in pairs], allow=allow)


def _check_withheld(
    withheld: Sequence[int], named: Sequence[tuple[Method, Model]], classes: Sequence[int] | None
) -> None:
    """Refuse structures that a model has learned, and those that do not count."""
    for method, model in named:
        learned = sorted(set(withheld) & set(model.weights.classes))
        if learned:
            message = f"the model {method.name} has learned the structures {learned}, which --withhold names"
            raise UsageError("E192", message, f"train it with withhold = {list(withheld)} in its table [train]")
    unscored = [] if classes is None else sorted(set(withheld) - set(classes))
    if unscored:
        message = f"--withhold names the structures {unscored}, which --classes makes background"
        raise UsageError("E192", message, "withhold structures that count")


def _kept(outcomes: Sequence[Outcome], withheld: Sequence[int]) -> list[Outcome]:
    """Return outcomes without the scores of structures by which nothing may be chosen."""

    def kept(value: Any) -> Any:
        return {**value, "structures": [row for row in value["structures"] if row["label"] not in withheld]}

    return [o if o.error is not None else replace(o, value=kept(o.value)) for o in outcomes]


def _notes(
    methods: Sequence[Method],
    leaked: Sequence[str],
    classes: Sequence[int] | None,
    withheld: Sequence[int],
    *,
    baselines: bool,
    tuned: bool,
) -> tuple[str, ...]:
    notes = []
    if classes is not None:
        notes.append(f"Structures {', '.join(map(str, classes))} count; all other labels are background.")
    if leaked:
        who = f"{len(leaked)} test patients were trained on ({', '.join(leaked)})"
        notes.append(f"{who}: these are training figures, not evidence.")
    if baselines and not tuned:
        notes.append("The baselines use the smoothness of the settings: no training pairs were given to tune it on.")
    failed = [m.name for m in methods if m.tunable and tuned and not m.tuning]
    if failed:
        notes.append(f"Tuning failed on every training pair, so the settings' smoothness is used: {', '.join(failed)}.")
    if withheld:
        names = f"Structures {', '.join(map(str, withheld))} were withheld from learning and tuning"
        notes.append(f"{names}: `mean` is without them, `withheld` is theirs.")
    return tuple(notes)


def keep_registration(found: Evaluation, row: PairResult, reading: Reading, folder: Path) -> Path:
    """Register a pair as an evaluation did, and write the whole result with what a page shows.

    Return its folder below that of the evaluation, ``pages/<id>``; an earlier one of that name is replaced.
    """
    method, pair = found._used[row.method], found._files[row.id]
    with notices.muted():
        result = register(
            **pair.files, config=None if method.model is not None else method.settings,
            model=None if method.model is None else method.model[0], predict_classes=method.predicted,
            **vars(reading), progress=False,
        )  # fmt: skip
    target = folder / PAGES / pair.id
    with prepare_output(target, overwrite=True) as part:
        write_record(part / PAGE_RECORD, {"id": pair.id, "method": method.name})
        result.model_copy(update={"rules": found.rules}).write(part)  # its page links to the evaluation by that record
    return target
