"""Contours of many patients and fractions: each row of a list in its own folder, with a table and a page of all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.clinic.propagate import ContoursJob, write_contours
from regweave.errors import RegweaveError
from regweave.io import owned_path, require_file, sha256, working_folder
from regweave.io.dicom.parse import files_in
from regweave.io.disk.records import this_program
from regweave.jobs import batch, runner
from regweave.jobs.table import Table, TableColumns, read_table
from regweave.jobs.workers import run_tasks, worker_count
from regweave.measures.verdict import clinic_rules, read_rules
from regweave.model import find_model
from regweave.progress import OnBatchProgress

SCANS = ("plan", "today")
COLUMNS = TableColumns(
    ("id", *SCANS), ("rtstruct",), (), "each line names a plan and a scan of today, folders of DICOM files",
    batch.RESERVED,
)  # fmt: skip


def contours_list(
    table: Table, output: str | Path, *, workers: int | None = None, resume: bool = False,
    on_progress: OnBatchProgress | None = None, **options: Any,
) -> batch.Batch:  # fmt: skip
    """Bring the contours of a plan onto each later scan of a list; a row that fails stops no other.

    The columns are ``id``, ``plan``, ``today`` and, if wanted, ``rtstruct``; paths are relative to the list. With
    ``resume`` rows are kept whose files, options and results are as they were. ``options`` are those of
    `regweave.propagate_contours`, with paths for files. Before anything is computed E101 is raised for files, E132 for
    the list, E150 where the folder holds something else.
    """
    listed = read_table(table, COLUMNS)
    named = [one if one.is_file() else find_model(one) for one in options.values() if isinstance(one, Path)]
    hashes = {str(path): sha256(path) for path in named}
    judged_by = read_rules(options["rules"]) if options.get("rules") else clinic_rules()
    tasks = []
    for row in listed.rows:
        places = {name: str(listed.folder / row[name]) for name in (*SCANS, "rtstruct") if name in row}
        read = {name: _hashes(place) for name, place in places.items()}
        folder = str(Path(output).absolute() / row["id"])
        tasks.append((row["id"], {"folder": folder, **places, "options": options, "sha256": [read, hashes]}))
    with working_folder(output, batch.STORE, "contours of a list", resume=resume):
        outcomes = run_tasks(
            tasks, contours_row, workers=worker_count(workers, None), store=Path(output) / batch.STORE,
            on_progress=on_progress, whole=lambda outcome: batch.is_whole(Path(output), outcome),
        )  # fmt: skip
        rows = tuple(map(batch.BatchRow.of, outcomes))
        found = batch.Batch(rules=judged_by.name, rows=rows, provenance=this_program(), folder=Path(output))
        found.write()
    return found


def _hashes(place: str) -> dict[str, str]:
    """Return the hash of each file of a scan, so that a changed scan is another task."""
    if Path(place).is_dir():
        files = tuple(sorted(path for path in Path(place).rglob("*") if path.is_file()))
    else:
        files = files_in(require_file(place)) or (Path(place),)
    if not files:
        raise RegweaveError("E101", f"'{place}' holds no file", "name the folder of a DICOM series")
    return {str(path): sha256(path) for path in files}


def contours_row(task: Mapping[str, Any]) -> dict[str, Any]:
    """Propagate the contours of one row with one thread, and return its row as JSON values, with hashes of files."""
    runner.forget_peak()
    folder = Path(task["folder"])
    with notices.muted():  # they are in the result
        job = ContoursJob(
            plan=task["plan"], today=task["today"], rtstruct=task.get("rtstruct"), threads=1, progress=False,
            **task["options"],
        )  # fmt: skip
        done = write_contours(job, folder, overwrite=True)
        with owned_path(folder / batch.THUMBNAIL) as part:
            part.write_bytes(done.result.thumbnail())
    return batch.row_of(done.result, folder)
