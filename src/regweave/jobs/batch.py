"""One row of a batch: a registration written into its own folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from regweave import extras, notices
from regweave.config.presets import Metrics, metric_weights, preset
from regweave.config.presets import load as load_settings
from regweave.config.settings import Settings
from regweave.errors import RegweaveError, UsageError
from regweave.io import image_sha256, names_file, owned_path, prepare_output, sha256
from regweave.io.disk.files import is_file
from regweave.io.disk.outputs import working_folder
from regweave.io.disk.records import INDEX, record_text, this_program
from regweave.jobs.cluster import Cluster, require_cluster
from regweave.jobs.runner import forget_peak, measured_peak_mb
from regweave.jobs.store import Outcome, run_tasks, worker_count
from regweave.jobs.table import IMAGES, MASKS, PairTable, Table, TableColumns, read_table
from regweave.jobs.workers import Team, place
from regweave.measures.verdict import Rules, Verdict, default_rules, failed, read_rules, tally
from regweave.model import find_model
from regweave.model.model import Model
from regweave.progress import OnBatchProgress
from regweave.registration.initial import METHODS
from regweave.run.images import check_outputs
from regweave.run.read import Reading, ReadingWords, reading_of
from regweave.run.register import register
from regweave.run.result import Result, load

COMPANIONS = ("fixed_labels", "moving_labels", *MASKS)
COLUMNS = TableColumns(
    ("id", *IMAGES), (*COMPANIONS, "model", "preset", "init", "group"), (*IMAGES, *COMPANIONS),
    "each line names a pair and its two images",
)  # fmt: skip
RESERVED = ("tasks", "results.csv", "results.json", "index.html")
"""Names in the folder of a batch that no pair may have."""
THUMBNAIL = "thumbnail.png"
FILES = "files"
"""Key of the hashes of a row's files in the store."""


@dataclass(frozen=True)
class RowDefaults:
    """Defaults of the rows of a batch, for cells that are empty.

    Parameters
    ----------
    model, preset, init, engine, metrics
        As in `regweave.register`.
    config : Settings, optional
        Settings instead of a preset.
    reading : Reading
        How files are read.
    write : tuple of str, optional
        Outputs of each registration; by default the usual ones.
    rules : Rules
        Acceptance criteria of the verdicts.
    device : str
        What computes, as in `regweave.register`.
    """

    model: str | None = None
    preset: str | None = None
    config: Settings | None = None
    init: str | None = None
    engine: str | None = None
    metrics: Mapping[str, float] | None = None
    reading: Reading = field(default_factory=Reading)
    write: tuple[str, ...] | None = None
    rules: Rules = field(default_factory=default_rules)
    device: str = "cpu"

    def names_of(self, labels: str | None) -> str | None:
        """Return the file with the names of a label map, if there is one."""
        given = self.reading.label_names
        path = names_file(labels) if given is None else given if isinstance(given, str | Path) else None
        return None if labels is None or path is None else str(Path(path).absolute())


def row_tasks(table: PairTable, output: Path, defaults: RowDefaults) -> list[tuple[str, dict[str, Any]]]:
    """Return a task for each row, after a check of everything that can be checked without reading images.

    Raises
    ------
    RegweaveError
        E132 for an id that the folder of a batch needs itself, E170 or E101 for a model, E184 for a preset, E187 for a
        start that does not exist, E189 for settings given twice, E119 for outputs.
    """
    if defaults.write is not None:
        check_outputs(defaults.write)
    hashes = _Hashes(defaults.reading)
    return [(row["id"], _task(table, row, output, defaults, hashes)) for row in table.rows]


def _task(
    table: PairTable, row: Mapping[str, str], output: Path, defaults: RowDefaults, hashes: _Hashes
) -> dict[str, Any]:
    if row["id"].lower() in RESERVED:
        message = f"{table.name} is not a usable list of pairs: the id {row['id']!r} is the name of an output"
        raise RegweaveError("E132", message, f"give it another id than {', '.join(RESERVED)}")
    words = {name: row.get(name) or getattr(defaults, name) for name in ("model", "preset", "init")}
    if words["preset"] is not None and defaults.config is not None:
        raise UsageError("E189", f"{row['id']}: a preset and a file of settings are both given", "give one of them")
    if words["preset"] is not None:
        preset(words["preset"])
    if words["init"] is not None and words["init"] not in METHODS:
        words["init"] = _file(table, words["init"])
        if not is_file(words["init"]):
            hint = f"give {', '.join(METHODS)} or a transform file"
            raise UsageError("E187", f"{row['id']}: unknown start {row.get('init') or defaults.init!r}", hint)
    if words["model"] is not None:
        words["model"] = str(find_model(_file(table, words["model"])).absolute())
    files = {name: row[name] for name in COLUMNS.files if name in row}
    named = [names for name in ("fixed_labels", "moving_labels") if (names := defaults.names_of(files.get(name)))]
    used = [
        *files.values(),
        *named,
        *(words[name] for name in ("model", "init") if words[name] not in (None, *METHODS)),
    ]
    return {
        "folder": str(output.absolute() / row["id"]),
        "files": files,
        "sha256": {path: hashes(path, model=path == words["model"]) for path in used},
        **words,
        "config": None if defaults.config is None else defaults.config.model_dump(mode="json"),
        "engine": defaults.engine,
        "metrics": defaults.metrics and dict(defaults.metrics),
        "reading": defaults.reading.to_json(),
        "write": defaults.write and list(defaults.write),
        "rules": asdict(defaults.rules),
        "device": defaults.device,
    }


def _file(table: PairTable, word: str) -> str:
    """Return a word of a cell as a path, where a file of that name lies beside the table."""
    beside = table.folder / word
    return str(beside) if is_file(beside) else word


class _Hashes:
    """SHA-256 of files, each computed once; a model is read on the way."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._known: dict[str, str] = {}

    def __call__(self, path: str, *, model: bool) -> str:
        if path not in self._known and model:
            Model.load(path)
            self._known[path] = sha256(path)
        elif path not in self._known:
            self._known[path] = image_sha256(path, follow_links=self._reading.follow_links)
        return self._known[path]


def register_row(task: Mapping[str, Any]) -> dict[str, Any]:
    """Register one pair with one thread, write its folder, and return the numbers of its line.

    Parameters
    ----------
    task : mapping
        Made by `row_tasks`.

    Returns
    -------
    dict
        JSON values; the images are in the folder and not in memory.
    """
    rules = Rules(**task["rules"])
    forget_peak()
    with notices.muted():  # they are in the result, and many workers would talk at once
        result = register(
            **task["files"],
            model=task["model"], preset=task["preset"], init=task["init"], engine=task["engine"],
            config=None if task["config"] is None else Settings.model_validate(task["config"]),
            metrics=task["metrics"], reading=Reading.from_json(task["reading"]), threads=1, keep_view=True,
            device=task["device"],
        )  # fmt: skip
        result = result.model_copy(update={"rules": rules})
        with prepare_output(task["folder"], overwrite=True) as part:
            result = result.write(part, task["write"])
            (part / THUMBNAIL).write_bytes(result.thumbnail())
    return {**_line(result), "peak_mb": measured_peak_mb(), FILES: file_hashes(Path(task["folder"]))}


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a result; pages can be made again and do not count."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html")
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def is_whole(folder: Path, outcome: Outcome) -> bool:
    """Tell whether the files of a finished row are as it left them; a warning names those that are not."""
    listed = outcome.value[FILES]
    place = folder / outcome.key
    changed = [name for name, digest in listed.items() if not is_file(place / name) or sha256(place / name) != digest]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        notices.warn(f"W251: '{place / changed[0]}'{more} is missing or was changed; {outcome.key} is run again")
    return not changed


def _line(result: Result) -> dict[str, Any]:
    """Return the line of ``results.json`` for a registration."""
    verdict, dice = result.verdict, result.mean_dice
    return {
        "verdict": verdict.word,
        "reasons": [asdict(reason) for reason in verdict.reasons],
        "mean_dice_before": dice.get("before"),
        "mean_dice_after": dice.get("after"),
        "folding_percent": 100 * result.regularity["folding_fraction"],
        "min_jacobian": result.regularity["min_jacobian"],
        "max_jacobian": result.regularity["max_jacobian"],
        "seconds": sum(result.seconds.values()),
        "warnings": list(result.warnings),
        "device": result.provenance.device,
    }


STORE = "tasks"
RESULTS = ("results.csv", "results.json", INDEX)
CELLS = (
    "id", "status", "verdict", "mean_dice_before", "mean_dice_after", "folding_percent", "min_jacobian",
    "max_jacobian", "seconds", "peak_mb", "warnings", "code", "message", "folder",
)  # fmt: skip
"""Columns of ``results.csv``."""


@dataclass(frozen=True)
class Batch:
    """Outcome of a batch: one row a pair, in the order of the table; images stay in the folders.

    Parameters
    ----------
    folder : Path
        Holds a folder for each pair, results.csv, results.json and index.html.
    rows : tuple of mappings
        As ``results.json`` has them.
    rules : Rules
        Acceptance criteria of the verdicts.
    """

    folder: Path
    rows: tuple[Mapping[str, Any], ...]
    rules: Rules

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
        return {row["id"]: f"{row['code']}: {row['message']}" for row in self.rows if row["status"] == "failed"}

    def tally(self) -> str:
        """Count the verdicts in words."""
        return tally(
            Verdict(row["verdict"]) if row["status"] == "ok" else failed(row["message"], self.rules)
            for row in self.rows
        )

    def table(self) -> Any:
        """Return the rows as a pandas table, with the columns of results.csv."""
        pandas = extras.load("pandas", "notebook", "a table of the results")
        return pandas.DataFrame([_cells(row) for row in self.rows], columns=list(CELLS))

    def write(self) -> None:
        """Write results.csv, results.json and index.html, each whole or not at all."""
        with owned_path(self.folder / RESULTS[0]) as part, part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, CELLS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(_cells(row) for row in self.rows)
        content = {
            "format": "regweave-batch",
            "rules": self.rules.name,
            "rows": self.rows,
            "provenance": this_program(),
        }
        with owned_path(self.folder / RESULTS[1]) as part:
            part.write_text(record_text(content), encoding="utf-8")
        from regweave.report import batch as page  # noqa: PLC0415 (pages stand above results)

        page.write_page(self.folder)


def batch(
    table: Table,
    output: str | Path,
    *,
    model: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | Settings | None = None,
    metrics: Metrics | None = None,
    init: str | Path | None = None,
    engine: str | None = None,
    rules: str | Path | Rules | None = None,
    write: Sequence[str] | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    device: str | None = None,
    resume: bool = False,
    on_progress: OnBatchProgress | None = None,
    **reading: Unpack[ReadingWords],
) -> Batch:
    """Register every pair of a table and write each result into a folder of its own.

    Parameters
    ----------
    table : path, mappings or pandas table
        Columns ``id``, ``fixed``, ``moving``, and if wanted ``fixed_labels``, ``moving_labels``, ``fixed_mask``,
        ``moving_mask``, ``model``, ``preset``, ``init``, each of which may be empty in a row. Paths are relative to the
        CSV file, or to the present folder.
    output : path
        Folder for the results: ``output/ID`` is what ``regweave register -o`` writes; besides there are results.csv,
        results.json and index.html.
    model, preset, config, metrics, init, engine, rules
        As in `regweave.register`, for the rows that say nothing else.
    write : sequence of str, optional
        Files of each result; as in `Result.save`.
    workers, scheduler : optional
        Processes of this machine, each with one thread, or a Dask scheduler.
    device : str, optional
        What computes, as in `regweave.register`; ``cuda:0,1`` deals the processes out to several GPUs. Workers of a
        scheduler take ``cuda``, the first GPU that each of them sees.
    resume : bool
        Go on with what an earlier call left: pairs that are done, with the same files, names and settings, and whose
        results are as they were written, are not run again.
    on_progress : callable, optional
        Called with a `BatchProgress` after every pair.
    **reading
        How files are read: ``label_names``, ``nifti_frame``, …, as in `regweave.register`.

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
    rule = reading_of(reading, batch)
    n, placement = worker_count(workers, scheduler), place(device, scheduler)
    if preset is not None and config is not None:
        raise UsageError("E189", "a preset and a file of settings are both given", "give one of them")
    folder, judged_by = Path(output), rules if isinstance(rules, Rules) else read_rules(rules) if rules else None
    defaults = RowDefaults(
        None if model is None else str(model), preset,
        load_settings(Path(config)) if isinstance(config, str | Path) else config,
        None if init is None else str(init), engine, metric_weights(metrics), rule,
        None if write is None else tuple(write), judged_by or default_rules(), placement.word,
    )  # fmt: skip
    tasks = row_tasks(read_table(table, COLUMNS), folder, defaults)
    require_cluster(scheduler)
    with working_folder(folder, STORE, "a batch", resume=resume), Team(n, placement.gpus) as team:
        outcomes = run_tasks(
            tasks, register_row, workers=None if scheduler else team, scheduler=scheduler, store=folder / STORE,
            on_progress=on_progress, whole=partial(is_whole, folder),
        )  # fmt: skip
        found = Batch(folder, tuple(_row(outcome) for outcome in outcomes), defaults.rules)
        found.write()
    return found


def _row(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is None:
        place = {"folder": outcome.key, "thumbnail": f"{outcome.key}/{THUMBNAIL}"}
        line = {name: value for name, value in outcome.value.items() if name != FILES}
        return {"id": outcome.key, "status": "ok", **place, **line}
    code, _, message = outcome.error.partition(": ")
    return {"id": outcome.key, "status": "failed", "code": code, "message": message}


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    warned = " ".join(dict.fromkeys(text.partition(":")[0] for text in row.get("warnings", ())))
    return {**{name: row.get(name) for name in CELLS}, "warnings": warned}
