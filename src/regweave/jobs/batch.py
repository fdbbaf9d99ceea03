"""Batches: every pair of a table registered into its own folder, with a table and a page of all."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from regweave import extras, notices
from regweave.config.settings import load as load_settings, metric_weights, preset
from regweave.errors import RegweaveError, UsageError
from regweave.io import image_sha256, is_file, names_file, owned_path, prepare_output, sha256, working_folder
from regweave.io.disk import records
from regweave.jobs.runner import forget_peak, measured_peak_mb
from regweave.jobs.table import IMAGES, MASKS, PairTable, Table, TableColumns, read_table
from regweave.jobs.workers import Cluster, Outcome, Team, place, require_cluster, run_tasks, worker_count
from regweave.measures.verdict import Reason, Verdict, Word, tally
from regweave.model import find_model
from regweave.model.model import Model
from regweave.options import called, described, option
from regweave.progress import OnBatchProgress
from regweave.registration.initial import METHODS
from regweave.run.job import AUTO, Method, rules_of
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.run.result import FILES as OUTPUTS, Result, check_outputs, load
from regweave.run.start import asked_guides, require_labels

LABELS = ("fixed_labels", "moving_labels")
COMPANIONS = (*LABELS, *MASKS)
STORE = "tasks"
RESULTS = ("results.csv", "results.json", records.INDEX)
RESERVED = (STORE, *RESULTS)  # names in the folder of a batch that no pair may have
COLUMNS = TableColumns(
    ("id", *IMAGES), (*COMPANIONS, "model", "preset", "init", "guide", "group"), (*IMAGES, *COMPANIONS),
    "each line names a pair and its two images", RESERVED,
)  # fmt: skip
THUMBNAIL = "thumbnail.png"
FILES = "files"  # key of the hashes of a row's files in the store
FORMAT: Literal["regweave-batch"] = "regweave-batch"
CELLS = (
    "id", "status", "verdict", "likeness", "mean_dice_before", "mean_dice_after", "folding_percent", "min_jacobian",
    "max_jacobian", "seconds", "peak_mb", "warnings", "code", "message", "folder",
)  # fmt: skip
"""Columns of ``results.csv``."""


class BatchRow(records.RecordPart):
    """Outcome of one pair of a batch: its numbers, or the code and the message of its error."""

    id: records.SafeName
    status: Literal["ok", "failed"]
    folder: records.SafePath | None = None  # folder of the result, relative to that of the batch, as is the picture
    thumbnail: records.SafePath | None = None
    verdict: Word | None = None
    reasons: tuple[Reason, ...] = ()
    likeness: records.Known = None  # score without labels of the fixed image: look at the lowest first
    mean_dice_before: records.Known = None  # means over the structures that count, where both images have labels
    mean_dice_after: records.Known = None
    folding_percent: records.Known = None
    min_jacobian: records.Known = None
    max_jacobian: records.Known = None
    seconds: records.Known = None
    warnings: tuple[records.Text, ...] = ()
    device: records.Text = ""
    peak_mb: records.Known = None
    code: records.Text | None = None
    message: records.Text | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.status == "ok" and (self.folder is None or self.verdict is None):
            raise ValueError(f"{self.id} is ok, but has no folder or no verdict")
        if self.status == "failed" and self.message is None:
            raise ValueError(f"{self.id} has failed, but there is no message")
        return self

    @classmethod
    def of(cls, outcome: Outcome) -> BatchRow:
        """Return the row of a finished task."""
        if outcome.error is not None:
            code, _, message = outcome.error.partition(": ")
            return cls(id=outcome.key, status="failed", code=code, message=message)
        places = {"folder": outcome.key, "thumbnail": f"{outcome.key}/{THUMBNAIL}"}
        return cls.model_validate({"id": outcome.key, "status": "ok", **places, **outcome.value})

    def cells(self) -> dict[str, Any]:
        """Return the line of ``results.csv``; of the warnings it has the codes."""
        codes = " ".join(dict.fromkeys(text.partition(":")[0] for text in self.warnings))
        return {**{name: getattr(self, name) for name in CELLS}, "warnings": codes}


class Batch(records.RecordPart):
    """Outcome of a batch, ``results.json``: one row a pair, in the order of the table; images stay in the folders.

    ``folder`` has a folder for each pair, results.csv, results.json and index.html; ``rules`` is the name of the
    acceptance criteria.
    """

    format: Literal["regweave-batch"] = FORMAT
    rules: records.Text
    rows: tuple[BatchRow, ...]
    provenance: dict[str, Any] = Field(default_factory=dict)
    folder: Annotated[Path, Field(exclude=True)] = Path()

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len({row.id for row in self.rows}) < len(self.rows):
            raise ValueError("a pair stands twice")
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Result:
        """Open the result of one pair."""
        return load(self.folder / name)

    def __repr__(self) -> str:
        return f"Batch of {len(self)} pairs in '{self.folder}': {self.tally()}"

    @property
    def failures(self) -> dict[str, str]:
        """Code and message of each pair that ended with an error, by id."""
        return {row.id: f"{row.code}: {row.message}" for row in self.rows if row.status == "failed"}

    def tally(self) -> str:
        """Count the verdicts in words."""
        return tally(Verdict(row.verdict or "fail") for row in self.rows)

    def table(self) -> Any:
        """Return the rows as a pandas table, with the columns of results.csv."""
        pandas = extras.load("pandas", "notebook", "a table of the results")
        return pandas.DataFrame([row.cells() for row in self.rows], columns=list(CELLS))

    def write(self) -> None:
        """Write results.csv, results.json and index.html, each whole or not at all."""
        with owned_path(self.folder / RESULTS[0]) as part, part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, CELLS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row.cells() for row in self.rows)
        with owned_path(self.folder / RESULTS[1]) as part:
            # A row has the keys of its kind alone: a failed one has no numbers.
            rows = [row.model_dump(mode="json", exclude_unset=True) for row in self.rows]
            part.write_text(records.record_text({**self.content(), "rows": rows}), encoding="utf-8")
        from regweave.report import batch as page  # noqa: PLC0415 (pages are above results)

        page.draw(self)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What studies of many images have in common."""

    preset: str | None = option(
        None, "Settings of the registrations by name.", panel="Method", metavar="NAME", complete="preset"
    )
    device: str | None = option(
        None, "Compute device of the registrations: cpu, cuda, cuda:N or auto.", panel="Method", metavar="NAME"
    )
    workers: int | None = option(
        None, "Processes, each with one thread. By default all cores.", panel="Machine", metavar="N"
    )
    on_progress: OnBatchProgress | None = option(
        None, "Function that gets a `BatchProgress` after every registration.", typed=None
    )


@dataclass(frozen=True, kw_only=True)
class BatchJob(Method, StudyOptions):
    """Request of registrations of a list; a cell of the list takes the place of an option."""

    table: Table = field(kw_only=False, metadata=described(
        "List of pairs. Its columns are ``id``, ``fixed``, ``moving``, and if wanted ``fixed_labels``, "
        "``moving_labels``, ``fixed_mask``, ``moving_mask``, ``model``, ``preset``, ``init`` and ``guide`` (all, no or "
        "names), each of which may be empty in a row. Paths are relative to the CSV file, or to the present folder.",
        typed=Path, metavar="PAIRS.csv",
    ))  # fmt: skip
    output: str | Path = field(kw_only=False, metadata=described(
        "Folder for the results, one folder a pair. ``output/ID`` is what ``regweave register -o`` writes; besides "
        "there are results.csv, results.json and index.html.", typed=Path, metavar="FOLDER", flags=("--output", "-o"),
    ))  # fmt: skip
    write: Sequence[str] | None = option(
        None, f"Files beside each result.json: some of {', '.join(OUTPUTS)}.", typed=str | None, metavar="NAMES"
    )
    scheduler: str | Cluster | None = option(None, "Dask scheduler whose workers are used.", typed=None)
    resume: bool = option(
        False, "Continue a batch that was interrupted. Pairs that are done, with the same files, names and settings, "
        "and whose results are as they were written, are not run again.", flags=("--resume",),
    )  # fmt: skip
    shard: str | None = option(
        None, "Part of the list that runs here, such as 3/20: every 20th pair from the third on. Several parts may run "
        "at once with one ``output``, on machines that share it.", panel="Machine", metavar="K/N",
    )  # fmt: skip
    collect: bool = option(
        False, "Write the table and the page of what the shards have done; nothing is registered.", panel="Machine",
        flags=("--collect",),
    )  # fmt: skip


@called(BatchJob)
def batch(job: BatchJob) -> Batch:
    """Register every pair of a table and write each result into its own folder.

    Returns
    -------
    Batch
        A failed pair stops no other; it is a row with its error.

    Raises
    ------
    RegweaveError
        Before anything is computed: E101 for files, E132 for the table, E150 where the folder is taken, and for models,
        presets and starts the codes of `regweave.register`.
    """
    stated = Reading.from_json(job.to_json())  # its paths absolute: a worker may be anywhere
    n, placement = worker_count(job.workers, job.scheduler), place(job.device, job.scheduler)
    if job.preset is not None and job.config is not None:
        raise UsageError("E189", "a preset and a file of settings are both given", "give one of them")
    folder = Path(job.output)
    rules = rules_of(job.rules)
    common = {
        **{f.name: getattr(job, f.name) for f in fields(Method)}, **vars(stated),
        "model": job.model and str(job.model), "init": job.init and str(job.init), "rules": rules,
        "config": load_settings(Path(job.config)) if isinstance(job.config, str | Path) else job.config,
        "metrics": metric_weights(job.metrics), "device": placement.word,
    }  # fmt: skip
    shared = {"write": None if job.write is None else check_outputs(job.write)}

    @cache
    def digest(path: str, is_model: bool) -> str:
        if is_model:
            Model.load(path)
        return sha256(path) if is_model else image_sha256(path, follow_links=stated.follow_links)

    listed = read_table(job.table, COLUMNS)
    tasks = [(row["id"], {**_task(listed, row, folder, common, digest), **shared}) for row in listed.rows]
    tasks = tasks[_shard(job)]
    require_cluster(job.scheduler)
    if job.collect and not (folder / STORE).is_dir():
        message = f"--collect is given, and no shard has finished a pair in '{folder}'"
        raise RegweaveError("E196", message, "run each shard with this folder first, as --shard 1/4")
    part, resume = job.shard is not None, job.resume or job.collect or job.shard is not None
    with working_folder(folder, STORE, "a batch", resume=resume, shared=part), Team(n, placement.gpus) as team:
        outcomes = run_tasks(
            tasks, register_row, workers=None if job.scheduler else team, scheduler=job.scheduler,
            store=folder / STORE, on_progress=job.on_progress, whole=partial(is_whole, folder),
            missing="E196: no shard has finished it; run its shard again" if job.collect else None,
        )  # fmt: skip
        rows = tuple(map(BatchRow.of, outcomes))
        found = Batch(rules=rules.name, rows=rows, provenance=records.this_program(), folder=folder)
        if not part:
            found.write()
    return found


def _shard(job: BatchJob) -> slice:
    if job.shard is None:
        return slice(None)
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", job.shard)
    if found is None or int(found[1]) > int(found[2]) or job.collect:
        message = f"--shard is {job.shard}{' beside --collect' if job.collect else ''}"
        raise UsageError("E192", message, "write K/N with K from 1 to N, and collect in a call of its own")
    return slice(int(found[1]) - 1, None, int(found[2]))


def _task(
    table: PairTable, row: Mapping[str, str], output: Path, common: Mapping[str, Any], digest: Callable[..., str]
) -> dict[str, Any]:
    """Return the arguments of `register_row`, after a check of everything that can be checked without reading images.

    The hashes of the files are part of the task, so that a changed file is another task.
    """
    words = {**common, **{name: row.get(name) or common[name] for name in ("model", "preset", "init", "guide")}}
    asked = asked_guides(words["guide"], only=words["guide_only"])
    require_labels(asked, *(row.get(name) for name in LABELS))
    if words["preset"] is not None and words["config"] is not None:
        raise UsageError("E189", f"{row['id']}: a preset and a file of settings are both given", "give one of them")
    if words["preset"] is not None:
        preset(words["preset"])
    if words["init"] is not None and words["init"] not in METHODS:
        words["init"] = _file(table, given := words["init"])
        if not is_file(words["init"]):
            hint = f"give {', '.join(METHODS)} or a transform file"
            raise UsageError("E187", f"{row['id']}: unknown start {given!r}", hint)
    chosen = words["model"] not in (None, AUTO)
    if chosen:
        words["model"] = str(find_model(_file(table, words["model"])).absolute())
    files = {name: row[name] for name in COLUMNS.files if name in row}
    named = words["label_names"]
    names = [names_file(row[name]) if named is None else named for name in LABELS if name in row]
    used = [*files.values(), *(str(Path(one).absolute()) for one in names if isinstance(one, str | Path))]
    used += [words["init"]] if words["init"] not in (None, *METHODS) else []
    hashes = {path: digest(path, False) for path in used}
    if chosen:
        hashes[words["model"]] = digest(words["model"], True)
    return {"folder": str(output.absolute() / row["id"]), "register": {**files, **words}, "sha256": hashes}


def _file(table: PairTable, word: str) -> str:
    """Return a word of a cell as a path, where there is a file of that name beside the table."""
    beside = table.folder / word
    return str(beside) if is_file(beside) else word


def register_row(task: Mapping[str, Any]) -> dict[str, Any]:
    """Register one pair with one thread, write its folder, and return its row as JSON values, with hashes of files."""
    forget_peak()
    with notices.muted():  # they are in the result, and many workers would print at once
        result = register(**task["register"], threads=1, progress=False)
        with prepare_output(task["folder"], overwrite=True) as part:
            result = result.write(part, task["write"])
            (part / THUMBNAIL).write_bytes(result.thumbnail())
    return row_of(result, Path(task["folder"]))


def row_of(result: Result, folder: Path) -> dict[str, Any]:
    """Return the row of a result as JSON values, with the hashes of the files in its folder."""
    dice, regularity = result.mean_dice, result.regularity
    found: dict[str, Any] = records.plain({
        "verdict": result.verdict.word, "reasons": [vars(reason) for reason in result.verdict.reasons],
        "likeness": None if result.likeness is None else result.likeness.score,
        "mean_dice_before": dice.get("before"), "mean_dice_after": dice.get("after"),
        "folding_percent": 100 * regularity["folding_fraction"],
        "min_jacobian": regularity["min_jacobian"], "max_jacobian": regularity["max_jacobian"],
        "seconds": sum(result.seconds.values()), "warnings": result.warnings, "device": result.provenance.device,
        "peak_mb": measured_peak_mb(),
    })  # fmt: skip
    return {**found, FILES: file_hashes(folder)}


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of the files of a row by their names; pages can be made again and do not count."""
    written = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html")
    return {path.relative_to(folder).as_posix(): sha256(path) for path in written}


def is_whole(folder: Path, outcome: Outcome) -> bool:
    """Compare the files of a finished row with their hashes; warn of those that are missing or changed."""
    listed, where = outcome.value[FILES], folder / outcome.key
    changed = [name for name, digest in listed.items() if not is_file(where / name) or sha256(where / name) != digest]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        notices.warn(f"W251: '{where / changed[0]}'{more} is missing or was changed; {outcome.key} is run again")
    return not changed
