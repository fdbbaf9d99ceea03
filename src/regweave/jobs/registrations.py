"""One row of a batch: a registration written into its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.config.settings import Settings, preset
from regweave.datasets.manifest import IMAGES, MASKS, PairTable, TableColumns
from regweave.errors import RegweaveError, UsageError
from regweave.io import image_sha256, names_file, prepare_output, sha256
from regweave.io.disk.files import is_file
from regweave.jobs.scoring import forget_peak, measured_peak_mb
from regweave.jobs.store import Outcome
from regweave.measures.verdict import Rules, default_rules, parse_rules
from regweave.model import find_model
from regweave.model.model import Model
from regweave.registration.initial import METHODS
from regweave.run.images import check_outputs
from regweave.run.reading import Reading
from regweave.run.register import register
from regweave.run.result import Result

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
        "rules": defaults.rules.record(),
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
    rules = parse_rules({"name": task["rules"]["name"], **task["rules"]["limits"]}, "the batch")
    forget_peak()
    with notices.muted():  # they are in the result, and many workers would talk at once
        result = register(
            **task["files"],
            model=task["model"], preset=task["preset"], init=task["init"], engine=task["engine"],
            config=None if task["config"] is None else Settings.model_validate(task["config"]),
            metrics=task["metrics"], reading=Reading.from_json(task["reading"]), threads=1, keep_view=True,
            device=task["device"],
        )  # fmt: skip
        result = replace(result, rules=rules)
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
    """Return what ``results.json`` says of a registration."""
    verdict, dice = result.verdict.record(), result.mean_dice
    return {
        "verdict": verdict["verdict"],
        "reasons": verdict["reasons"],
        "mean_dice_before": dice.get("before"),
        "mean_dice_after": dice.get("after"),
        "folding_percent": 100 * result.regularity["folding_fraction"],
        "min_jacobian": result.regularity["min_jacobian"],
        "max_jacobian": result.regularity["max_jacobian"],
        "seconds": sum(result.seconds.values()),
        "warnings": list(result.warnings),
        "device": result.device,
    }
