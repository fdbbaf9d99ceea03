"""Evaluation: every method on every pair, per structure, with paired comparisons by patient."""

from __future__ import annotations

import csv
import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Self

import numpy as np
from pydantic import ConfigDict, Field, PrivateAttr, StrictBool, model_validator

from regweave import extras, notices
from regweave.config.settings import Settings, choose_settings
from regweave.errors import UsageError
from regweave.io import owned_path, prepare_output, working_folder
from regweave.io.disk import records
from regweave.io.disk.files import shown
from regweave.jobs import runner
from regweave.jobs.table import PairFiles, Pairs, check_leak, in_one_numbering, pairs_on_disk
from regweave.jobs.workers import Cluster, Outcome, place, require_cluster, worker_count
from regweave.measures.scores import PairScore, When
from regweave.measures.statistics import count_better, paired_bootstrap, patients_of
from regweave.measures.verdict import Rules, Verdict, failed, tally
from regweave.model.model import Model
from regweave.options import called, described, option
from regweave.progress import OnBatchProgress
from regweave.run.job import rules_of
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.types import Float64Array

REFERENCE, SINGLE = "uniform", "single:"
WITHHELD = "withheld"  # in place of a label: the mean over the structures that nothing was allowed to learn
MEASURES = (
    ("hd95_mm", "HD95 mm", ".2f"), ("assd_mm", "ASSD mm", ".2f"), ("folding_fraction", "folding %", ".4f"),
    ("sdlogj", "SDlogJ", ".3f"), ("seconds", "seconds", ".1f"), ("peak_mb", "peak MB", ".0f"),
)  # fmt: skip
"""Measures beside the Dice, with their titles and formats."""
PERCENT = ("folding_fraction",)
PER_PAIR = ("seconds", "peak_mb", "folding_fraction", "sdlogj")
PER_LABEL = ("dice_before", "dice_start", "dice_after", "hd95_mm", "assd_mm")
COLUMNS = ("id", "method", "label", *PER_LABEL, *PER_PAIR, "state")  # columns of `results.csv`
BOTH: tuple[When, When] = ("dice_before", "dice_after")


def mean(values: Iterable[float]) -> float:
    """Return the mean of the numbers there are, NaN for none."""
    kept = [v for v in values if not math.isnan(v)]
    return sum(kept) / len(kept) if kept else math.nan


class Difference(records.RecordPart):
    """Difference of a method from the reference, over all structures (label None), withheld ones, or one alone."""

    method: records.Text
    label: records.Text | None
    n: records.Count  # pairs that count, of which some were better, worse and equal
    mean: records.Known  # mean difference of Dice with a 95 % interval by patient
    low: records.Known
    high: records.Known
    better: records.Count
    worse: records.Count
    equal: records.Count


class PairResult(records.RecordPart):
    """One registration of an evaluation: its scores, or its error."""

    id: records.SafeName
    method: records.Text
    error: records.Text | None
    verdict: Verdict
    scores: runner.PairNumbers | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.error is None and self.scores is None:
            raise ValueError(f"no scores of {self.id} with {shown(self.method)}")
        return self

    @property
    def score(self) -> PairScore:
        """State and Dice of each structure; none for a failure."""
        return PairScore() if self.error is not None or self.scores is None else self.scores.score

    def values(self, name: str) -> list[float]:
        """Return a number of the pair, or of each of its structures, without those that are missing."""
        return [] if self.scores is None else [v for v in self.scores.values(name) if not math.isnan(v)]

    def dice(self, label: str | None = None, when: When = "dice_after", withheld: Sequence[int] = ()) -> float:
        """Return the Dice of a label, or the mean of those that count without the withheld ones, or of these."""
        if label is None or label == WITHHELD:
            return self.score.among(withheld, inside=label == WITHHELD).mean(when)
        return next((getattr(s, when) for s in self.score.structures if str(s.label) == label), math.nan)


def verdict_of(error: str | None, scores: runner.PairNumbers | None, rules: Rules) -> Verdict:
    """Judge a registration; one that ended with an error fails."""
    return failed(str(error), rules) if error is not None or scores is None else runner.judge_pair(scores, rules)


class PairInputs(records.RecordPart):
    """Hashes of the files of a pair."""

    id: records.Text
    group: records.Text | None = None
    inputs_sha256: dict[str, records.Text] = Field(default_factory=dict)


class MethodRecord(records.RecordPart):
    """A method as `Method.describe` gives it; ``tuning`` has the mean Dice of each smoothness that was tried."""

    model_config = ConfigDict(extra="allow")
    name: records.Text
    predicted_classes: StrictBool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] | None = None
    tuning: tuple[dict[str, records.Known], ...] = ()

    @property
    def is_baseline(self) -> bool:
        """True for the uniform mix and for a member alone."""
        return self.name == REFERENCE or self.name.startswith(SINGLE)


class Evaluation(records.RecordPart):
    """Paired scores of several methods on the same pairs; ``results.json``.

    ``notes`` are restrictions of the evidence, ``withheld`` structures have a separate mean, ``rules`` are those of the
    verdicts, and ``results`` has a registration for each pair and method.
    """

    notes: tuple[records.Text, ...] = ()
    pairs: tuple[PairInputs, ...] = ()
    methods: tuple[MethodRecord, ...] = ()
    reference: records.Text
    withheld: tuple[records.Whole, ...] = ()
    rules: Rules
    comparison: tuple[Difference, ...] = ()
    results: Annotated[tuple[PairResult, ...], Field(min_length=1)]
    provenance: dict[str, Any] = Field(default_factory=dict)
    _used: dict[str, runner.Method] = PrivateAttr(default_factory=dict)
    _files: dict[str, PairFiles] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        methods = {row.method for row in self.results}
        if len({(row.id, row.method) for row in self.results}) < len(self.results):
            raise ValueError("a pair stands twice with one method")
        for what, name in (("reference", self.reference), *(("comparison", row.method) for row in self.comparison)):
            if name not in methods:
                raise ValueError(f"{what} names the method {shown(name)}, which has no results")
        return self

    def __repr__(self) -> str:
        """Numbers of pairs, methods and failures, not the scores."""
        n = len({row.id for row in self.results})
        return f"Evaluation({n} pairs, {len(self.by_method)} methods, {len(self.failures)} failed)"

    def __str__(self) -> str:
        """Mean Dice of each method over the pairs, before and after; `table` has every structure."""
        lines = [f"{'method':<24} {'Dice before':>11} {'after':>7} {'pairs':>6} {'failed':>7}"]
        for method, rows in self.by_method.items():
            before, after = (
                _number(mean(self.dice(method, when=w)), ".3f", "-") for w in ("dice_before", "dice_after")
            )
            n_failed = sum(row.error is not None for row in rows)
            lines.append(f"{method[:24]:<24} {before:>11} {after:>7} {len(rows) - n_failed:>6} {n_failed:>7}")
        return "\n".join(lines)

    @cached_property
    def by_method(self) -> dict[str, list[PairResult]]:
        """Registrations of each method, in the order of the methods and pairs."""
        found: dict[str, list[PairResult]] = {}
        for row in self.results:
            found.setdefault(row.method, []).append(row)
        return found

    @cached_property
    def labels(self) -> dict[str, str]:
        """Names by label of all structures, in the order of their values."""
        found = {s.label: s.name for row in self.results for s in row.score.structures}
        return {str(label): found[label] for label in sorted(found)}

    @property
    def means(self) -> tuple[str | None, ...]:
        """Labels of the means: that of the structures which count in the first place, and that of the withheld ones."""
        return (None, WITHHELD) if self.withheld else (None,)

    @property
    def failures(self) -> list[PairResult]:
        """Registrations that ended with an error, in the order of methods and pairs."""
        return [row for rows in self.by_method.values() for row in rows if row.error is not None]

    @property
    def shown(self) -> str:
        """Method whose worst cases are shown: the last one that uses the masks it was given."""
        guessed = {method.name for method in self.methods if method.predicted_classes}
        names = list(self.by_method)
        return next((name for name in reversed(names) if name not in guessed), names[-1])

    def dice(self, method: str, label: str | None = None, when: When = "dice_after") -> Float64Array:
        """Return the Dice of a label in each pair, or the mean of a pair's labels but withheld ones, or of those.

        NaN where the structure is not in both label maps, or the pair failed; 0 where warping lost it.
        """
        return np.array([row.dice(label, when, self.withheld) for row in self.by_method[method]])

    def measured(self, method: str) -> list[float]:
        """Return the means of the `MEASURES` of a method over pairs, or over structures and pairs."""
        rows = self.by_method[method]
        means = {name: mean(v for row in rows for v in row.values(name)) for name, _, _ in MEASURES}
        return [value * (100 if name in PERCENT else 1) for name, value in means.items()]

    def smoothness(self, method: str) -> float:
        """Return the smoothness that a method used; NaN where every pair failed."""
        return next((v for row in self.by_method[method] for v in row.values("smoothness")), math.nan)

    def worst(self, n: int) -> list[PairResult]:
        """Return the pairs with the lowest mean Dice of the shown method, lowest first; failures have nothing to show.

        Pairs in which nothing is scored come last.
        """
        done = [(row.dice(withheld=self.withheld), row.id, row) for row in self.by_method[self.shown] if not row.error]
        return [row for _, _, row in sorted(done, key=lambda one: (math.isnan(one[0]), *one[:2]))[:n]]

    def judged(self, rules: Rules) -> Self:
        """Return the evaluation with the verdicts of other rules."""
        rows = (r.model_copy(update={"verdict": verdict_of(r.error, r.scores, rules)}) for r in self.results)
        return self.model_copy(update={"rules": rules, "results": tuple(rows)})

    def rows(self) -> list[dict[str, Any]]:
        """Lines of ``results.csv``; a failed pair has its labels, and None for every number."""
        labels: dict[str, list[str]] = {}
        for row in self.results:
            labels[row.id] = labels.get(row.id) or [str(s.label) for s in row.score.structures]
        out = []
        for row in self.results:
            head = {"id": row.id, "method": row.method}
            if row.scores is None or row.error is not None:
                out += [{**dict.fromkeys(COLUMNS), **head, "label": label} for label in labels[row.id] or [""]]
                continue
            numbers = {name: records.plain(row.scores.values(name)[0]) for name in PER_PAIR}
            for one in row.score.rows():
                by_label = {name: one[name] for name in (*PER_LABEL, "state")}
                out.append({**head, "label": str(one["label"]), **by_label, **numbers})
        return out

    def table(self) -> Any:
        """Return the rows as a pandas table: one for each pair, method and structure."""
        pandas = extras.load("pandas", "notebook", "a table of the results")
        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def write(self, folder: Path) -> None:
        """Write results.csv, results.json and summary.md, each whole or not at all."""
        with owned_path(folder / "results.csv") as part, part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows())
        for name, text in {
            records.RESULTS: records.record_text(self.content()),
            "summary.md": summary_text(self),
        }.items():
            with owned_path(folder / name) as part:
                part.write_text(text, encoding="utf-8")


def difference(found: Evaluation, method: str, reference: str, label: str | None = None) -> Difference:
    """Compare a method with another one by the Dice of a label, or by a mean."""
    differences = found.dice(method, label) - found.dice(reference, label)
    groups = [pair.group or pair.id for pair in found.pairs]
    middle, low, high = (records.plain(v) for v in paired_bootstrap(differences, groups))
    counts, n = count_better(differences), int((~np.isnan(differences)).sum())
    return Difference(method=method, label=label, n=n, mean=middle, low=low, high=high, **counts)


def compare(found: Evaluation) -> tuple[Difference, ...]:
    """Compare each method with the reference by Dice, over all structures, withheld ones, and each alone."""
    others, labels = [m for m in found.by_method if m != found.reference], (*found.means, *found.labels)
    return tuple(difference(found, method, found.reference, label) for method in others for label in labels)


DASH = "–"
N_NAMED = 10  # registrations that did not pass and are named in the summary
STATES_SHOWN = {"vanished": ("vanished",), "not scored": ("no reference", "not in moving")}


def summary_text(found: Evaluation) -> str:
    """Return the summary of an evaluation in Markdown."""
    patients = {name for pair in found.pairs for name in patients_of(pair.group or pair.id)}
    n_failed = len(found.failures)
    parts = [
        "# Evaluation",
        f"{len(found.pairs)} pairs of {len(patients)} patients, {len(found.by_method)} methods, {n_failed} failed "
        f"registration{'' if n_failed == 1 else 's'}.",
        *(f"**Note.** {note}" for note in found.notes),
        "## Dice",
        "Mean over pairs; `mean` is over the structures of each pair first. A structure counts where both label maps "
        "of a pair show it, before and after alike; one that warping loses (`vanished`) counts 0. Where one of the "
        "maps lacks it (`not scored`), there is nothing to compare.",
        _dice_table(found),
        "## Other measures",
        "Distances are means over structures and pairs, without vanished structures. Time and memory are of one "
        "registration on one thread, with other registrations running beside it.",
        _measures_table(found),
        *_verdict_parts(found),
    ]
    if len(found.by_method) > 1:
        parts += _comparison_parts(found)
    if found.failures:
        parts += ["## Failures", "\n".join(f"- `{row.method}/{row.id}`: {row.error}" for row in found.failures)]
    return "\n\n".join(parts) + "\n"


def _dice_table(found: Evaluation) -> str:
    labels = (*found.means, *found.labels)
    ladder: list[tuple[str, str, When]] = [("before", found.reference, "dice_before")]
    ladder += [(method, method, "dice_after") for method in found.by_method]
    rows = [[title, *(_number(mean(found.dice(m, label, when))) for label in labels)] for title, m, when in ladder]
    apart, reference = [DASH] * (len(found.means) - 1), found.by_method[found.reference]
    seen = (int((~np.isnan(found.dice(found.reference, label))).sum()) for label in found.labels)
    rows.append(["pairs", str(len(found.pairs)), *apart, *map(str, seen)])
    for title, states in STATES_SHOWN.items():
        lost = [str(s.label) for row in reference for s in row.score.of(*states)]
        rows.append([title, str(len(lost)), *apart, *(str(lost.count(label)) for label in found.labels)])
    titles = [_title(label, name) for label, name in found.labels.items()]
    return _table(["", "mean", *filter(None, found.means), *titles], rows)


def _measures_table(found: Evaluation) -> str:
    tuned = {method.name for method in found.methods if method.tuning}
    rows = []
    for method, of in found.by_method.items():
        n_failed, smoothness = sum(row.error is not None for row in of), found.smoothness(method)
        means = [_number(v, form) for v, (_, _, form) in zip(found.measured(method), MEASURES, strict=True)]
        last = DASH if math.isnan(smoothness) else f"{smoothness:.4g}{' (tuned)' if method in tuned else ''}"
        rows.append([method, str(len(of) - n_failed), str(n_failed), *means, last])
    return _table(["", "pairs", "failed", *(title for _, title, _ in MEASURES), "smoothness"], rows)


def _verdict_parts(found: Evaluation) -> list[str]:
    """Count the verdicts of each method, and name what did not pass."""
    counts = {method: tally(row.verdict for row in rows) for method, rows in found.by_method.items()}
    doubtful = [row for rows in found.by_method.values() for row in rows if row.verdict.word != "pass"]
    named = [f"- `{r.method}/{r.id}`: {r.verdict.word}, {_title('', r.verdict.text)}" for r in doubtful[:N_NAMED]]
    if len(doubtful) > N_NAMED:
        named.append(f"- and {len(doubtful) - N_NAMED} more; index.html lists all")
    text = f"By the rules “{found.rules.name}”; `regweave rules` prints the shipped ones, `--rules` takes others."
    lines = [f"- {name}: {count}" for name, count in counts.items()]
    return ["## Verdicts", text, "\n".join(lines), *(["\n".join(named)] if named else [])]


def _comparison_parts(found: Evaluation) -> list[str]:
    labels = {WITHHELD: WITHHELD, **found.labels}
    means = [row for row in found.comparison if row.label is None]
    each = [row for row in found.comparison if row.label is not None]
    header = ["method", "difference", "95 % interval", "pairs", "better", "worse", "equal"]
    return [
        f"## Against {found.reference}",
        f"Differences of Dice, method − {found.reference}, pair by pair; the intervals come from drawing patients "
        "anew.",
        "\n".join(f"- {_verdict(row, found.reference)}" for row in means),
        _table(header, [[row.method, *_difference(row)] for row in means]),
        "### Each structure",
        _table(
            [header[0], "structure", *header[1:]],
            [[row.method, _title(str(row.label), labels[str(row.label)]), *_difference(row)] for row in each],
        ),
    ]


def _verdict(row: Difference, reference: str) -> str:
    if row.mean is None:
        return f"{row.method}: no pair in common with {reference}."
    if row.low is None or row.high is None:
        return f"{row.method}: {row.mean:+.4f}, no interval from one patient."
    word = "better than" if row.low > 0 else "worse than" if row.high < 0 else "not told apart from"
    ends = f"[{row.low:+.4f}, {row.high:+.4f}]"
    return f"{row.method} is {word} {reference}: {row.mean:+.4f} {ends} on {row.n} pairs."


def _difference(row: Difference) -> list[str]:
    interval = DASH if row.low is None or row.high is None else f"[{row.low:+.4f}, {row.high:+.4f}]"
    middle = DASH if row.mean is None else f"{row.mean:+.4f}"
    return [middle, interval, *(str(n) for n in (row.n, row.better, row.worse, row.equal))]


def _title(label: str, name: str) -> str:
    """Label and name, made safe for a table cell: the name comes from a file."""
    safe = "".join(c for c in name if c.isprintable() and c not in "|<>`")
    return label if safe == label else f"{label} {safe}".strip()


def _number(value: float, form: str = ".3f", missing: str = DASH) -> str:
    return missing if math.isnan(value) else f"{value:{form}}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    baselines: bool = option(False, "Also evaluate the uniform mix and each member of the bank alone.", panel="Method")
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
    resume: bool = option(False, "Continue an evaluation that was interrupted.")
    allow_leak: bool = option(
        False, "Evaluate on patients that were trained on; the summary has a note.", panel="Method"
    )
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
        models = [Path(model) for model in job.models if not isinstance(model, Model)]
        for number, model in enumerate(job.models):
            if isinstance(model, Model):  # those in memory are written first
                models.insert(number, memory / f"model{number + 1}.json")
                model.save(models[number])
        named = runner.model_methods(models)
        _check_withheld(withheld, named, rule.classes)
        trained = [*(pair.group for pair in training), *(g for _, model in named for g in model.training.trained_on)]
        leaked = check_leak(trained, [pair.group for pair in listed], allow=job.allow_leak)
        require_cluster(job.scheduler)
        methods = _methods(job, named, listed, rule, tuned=bool(training))
        with (
            working_folder(folder, STORE, "an evaluation", resume=job.resume),
            runner.Runner(rule, job.workers, job.scheduler, folder / STORE, job.on_progress, placement) as run,
        ):
            if training:
                methods = runner.tune(methods, training, lambda plan: _kept(run(plan, dice_only=True), withheld))
            plan = [(f"{method.name}/{pair.id}", method, pair) for method in methods for pair in listed]
            outcomes = {(m.name, p.id): outcome for (_, m, p), outcome in zip(plan, run(plan), strict=True)}
            results = []
            for pair in listed:
                for method in methods:
                    outcome = outcomes[method.name, pair.id]
                    scores = None if outcome.error is not None else runner.PairNumbers.model_validate(outcome.value)
                    results.append(PairResult(
                        id=pair.id, method=method.name, error=outcome.error, scores=scores,
                        verdict=verdict_of(outcome.error, scores, judged_by),
                    ))  # fmt: skip
            found = Evaluation(
                notes=_notes(job, methods, leaked, rule.classes, tuned=bool(training)),
                pairs=tuple(PairInputs(id=p.id, group=p.group, inputs_sha256=run.hashes(p)) for p in listed),
                methods=tuple(MethodRecord(**method.describe()) for method in methods),
                reference=next((m for m in methods if m.name == REFERENCE), methods[0]).name,
                withheld=withheld, rules=judged_by, results=tuple(results), provenance=records.this_program(),
            )  # fmt: skip
            found = found.model_copy(update={"comparison": compare(found)})
            found._used.update({method.name: method for method in methods})
            found._files.update({pair.id: pair for pair in listed})
            found.write(folder)
    return found


def _methods(
    job: EvaluateJob, named: Sequence[tuple[runner.Method, Model]], pairs: Sequence[PairFiles], reading: Reading, *,
    tuned: bool,
) -> list[runner.Method]:  # fmt: skip
    if named and job.preset is None and job.config is None:
        base = named[0][0].settings
    else:
        base = choose_settings(job.preset or "default", job.config, None, None)
    methods = [] if named else [runner.Method(f"preset:{base.name}", base)]
    if job.baselines and not tuned:
        methods = []  # the preset is the uniform mix
    if job.baselines:
        methods += runner.baseline_methods(base, runner.bank_of_list(base, pairs, reading))
    return [*methods, *(method for method, _ in named)]


def _check_withheld(
    withheld: Sequence[int], named: Sequence[tuple[runner.Method, Model]], classes: Sequence[int] | None
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
    job: EvaluateJob,
    methods: Sequence[runner.Method],
    leaked: Sequence[str],
    classes: Sequence[int] | None,
    *,
    tuned: bool,
) -> tuple[str, ...]:
    notes = []
    if classes is not None:
        notes.append(f"Structures {', '.join(map(str, classes))} count; all other labels are background.")
    if leaked:
        who = f"{len(leaked)} test patients were trained on ({', '.join(leaked)})"
        notes.append(f"{who}: these are training figures, not evidence.")
    if job.baselines and not tuned:
        notes.append("The baselines use the smoothness of the settings: no training pairs were given to tune it on.")
    failed = [m.name for m in methods if m.tunable and tuned and not m.tuning]
    if failed:
        notes.append(f"Tuning failed on every training pair, so the settings' smoothness is used: {', '.join(failed)}.")
    if job.withhold:
        names = f"Structures {', '.join(map(str, job.withhold))} were withheld from learning and tuning"
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
    target = folder / records.PAGES / pair.id
    with prepare_output(target, overwrite=True) as part:
        records.write_record(part / records.PAGE_RECORD, {"id": pair.id, "method": method.name})
        result.model_copy(update={"rules": found.rules}).write(part)  # its page links to the evaluation by that record
    return target
