"""Evaluation: every method on every pair, per structure, with paired comparisons by patient."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from regweave.measures.verdict import Rules
from regweave.model.model import Model
from regweave.options import called, described, option
from regweave.progress import OnBatchProgress
from regweave.run.job import rules_of
from regweave.run.read import Reading
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


@dataclass(frozen=True, kw_only=True)
class EvaluateJob(Reading):
    """Request of an evaluation."""

    pairs: Pairs = field(kw_only=False, metadata=described(
        "List of pairs with both label maps. A CSV file, a pandas table, rows by column, or tuples of fixed image, "
        "moving image, fixed labels and moving labels, as files or in memory.", typed=Path, metavar="PAIRS.csv",
    ))  # fmt: skip
    output: str | Path | None = field(kw_only=False, default=None, metadata=described(
        "Folder for the results. These are results.csv, results.json and summary.md; finished registrations are kept "
        "in it as they come. Without it nothing is left on disk.", typed=Path, metavar="FOLDER",
        flags=("--output", "-o"), absent=inspect.Parameter.empty,
    ))  # fmt: skip
    models: Sequence[str | Path | Model] = option(
        (), "Models to evaluate, each with the settings stored in it. On the command line a file or a shipped name, "
        "repeated for several.", panel="Method", typed=list[Path], metavar="MODEL", flags=("--model",),
        complete="model", absent=None,
    )  # fmt: skip
    baselines: bool = option(
        False, "Also evaluate the uniform mix and each member of the bank alone.", panel="Method",
        flags=("--baselines",),
    )  # fmt: skip
    train_pairs: Pairs | None = option(
        None, "Pairs on which the smoothness of each baseline is tuned.", panel="Input", typed=Path | None,
        metavar="TRAIN.csv",
    )  # fmt: skip
    preset: str | None = option(
        None, "Settings of the baselines by name. By default those of the first model, or the default preset.",
        panel="Method", metavar="NAME", complete="preset",
    )  # fmt: skip
    config: str | Path | Settings | None = option(
        None, "Settings of the baselines, TOML. In Python also `Settings`.", panel="Method", typed=Path | None,
        metavar="FILE",
    )  # fmt: skip
    classes: tuple[int, ...] | None = option(
        None, "Structures that count, label values with commas; others are background. By default all.",
        panel="Input", typed=str | None, metavar="1,2,7",
    )  # fmt: skip
    withhold: Sequence[int] | None = option(
        None, "Structures that no model has learned, scored apart from the others. Their gain is that without labels.",
        panel="Input", typed=str | None, metavar="3,4",
    )  # fmt: skip
    workers: int | None = option(
        None, "Processes, each with one thread; by default all cores.", panel="Machine", metavar="N"
    )
    scheduler: str | Cluster | None = option(None, "Dask scheduler whose workers are used.", typed=None)
    device: str | None = option(
        None, "Compute device: cpu, cuda, cuda:N,M for several GPUs, or auto. By default cpu.", panel="Machine",
        metavar="NAME",
    )  # fmt: skip
    resume: bool = option(False, "Continue an evaluation that was interrupted.", flags=("--resume",))
    allow_leak: bool = option(
        False, "Evaluate on patients that were trained on; the summary has a note.", panel="Method",
        flags=("--allow-leak",),
    )  # fmt: skip
    rules: str | Path | Rules | None = option(
        None, "Rules for pass, look and fail, TOML. By default the shipped ones; `regweave rules` prints them.",
        panel="Method", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    on_progress: OnBatchProgress | None = option(
        None, "Function that gets a `BatchProgress` after every registration.", typed=None
    )


@called(EvaluateJob)
def evaluate(job: EvaluateJob) -> Evaluation:
    """Register every pair of a list with every method and write what came out.

    Returns
    -------
    Evaluation
    """
    worker_count(job.workers, job.scheduler)
    placement = place(job.device, job.scheduler)
    if job.train_pairs is not None and not job.baselines:
        raise UsageError("E192", "--train-pairs is given without --baselines, which it would tune", "add --baselines")
    withheld, judged_by = tuple(job.withhold or ()), rules_of(job.rules)
    with TemporaryDirectory(prefix="regweave-") as name:
        memory = Path(name)
        folder = memory / "evaluation" if job.output is None else Path(job.output)
        listed = pairs_on_disk(job.pairs, memory / "images")
        training = [] if job.train_pairs is None else pairs_on_disk(job.train_pairs, memory / "images")
        rule = in_one_numbering(job.reading, [*listed, *training])
        named = model_methods(_on_disk(job.models, memory))
        _check_withheld(withheld, named, rule.classes)
        trained = [*(pair.group for pair in training), *(g for _, model in named for g in model.training.trained_on)]
        leaked = check_leak(trained, [pair.group for pair in listed], allow=job.allow_leak)
        require_cluster(job.scheduler)
        methods = _methods(job, named, listed, rule, tuned=bool(training))
        with (
            working_folder(folder, STORE, "an evaluation", resume=job.resume),
            Runner(rule, job.workers, job.scheduler, folder / STORE, job.on_progress, placement) as run,
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
                notes=_notes(methods, leaked, rule.classes, withheld, baselines=job.baselines, tuned=bool(training)),
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
    job: EvaluateJob,
    named: Sequence[tuple[Method, Model]],
    pairs: Sequence[PairFiles],
    reading: Reading,
    *,
    tuned: bool,
) -> list[Method]:
    if named and job.preset is None and job.config is None:
        base = named[0][0].settings
    else:
        base = choose_settings(job.preset or "default", job.config, None, None)
    methods = [] if named else [Method(f"preset:{base.name}", base)]
    if job.baselines and not tuned:
        methods = []  # the preset is the uniform mix
    if job.baselines:
        methods += baseline_methods(base, bank_of_list(base, pairs, reading))
    return [*methods, *(method for method, _ in named)]


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
