"""Registration of a table of pairs, each into its own folder, on processes or a cluster."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from regweave import extras
from regweave.config.choice import Metrics, metric_weights
from regweave.config.settings import Settings
from regweave.config.settings import load as load_settings
from regweave.datasets.manifest import Table, read_table
from regweave.errors import UsageError
from regweave.io import owned_path
from regweave.io.disk.outputs import working_folder
from regweave.io.disk.records import INDEX, record_text, this_program
from regweave.jobs.cluster import Cluster, require_cluster
from regweave.jobs.placement import place
from regweave.jobs.program import UNUSED
from regweave.jobs.registrations import COLUMNS, FILES, THUMBNAIL, RowDefaults, is_whole, register_row, row_tasks
from regweave.jobs.store import OnBatchProgress, Outcome, run_tasks, worker_count
from regweave.jobs.workers import Team
from regweave.measures.verdict import Rules, Verdict, default_rules, failed, read_rules, tally
from regweave.report import batch as page
from regweave.run.reading import ReadingWords, reading_of
from regweave.run.result import Result
from regweave.run.saved import load

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
        with (
            owned_path(self.folder / RESULTS[0]) as part,
            part.open("w", encoding="utf-8", newline="") as stream,
        ):
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
            unused=UNUSED, on_progress=on_progress, whole=partial(is_whole, folder),
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
