"""Folder of a propagation: structure set, registration, transform, labels, record and page."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from regweave.clinic.propagate import Propagation
from regweave.errors import UsageError
from regweave.io import write_labels
from regweave.io.dicom.reg import write_reg_deformable
from regweave.io.dicom.rtstruct import write_rtstruct
from regweave.io.disk.files import sha256
from regweave.io.disk.text import parse_json, parse_rows, read_text
from regweave.run.images import FILES

RTSTRUCT, REG = "rtstruct.dcm", "registration.dcm"
WRITTEN = ("warped", "labels", "transform", "report")
"""Outputs of the registration that a propagation writes: the page is made from them."""
LONGEST_MAP = 1_000_000


def write_files(folder: Path, done: Propagation) -> Propagation:
    """Write all files of a propagation into an existing folder; return it with what writing told."""
    began, called = time.perf_counter(), dict(done.names)
    remarks = {
        row["number"]: f"regweave: {row['flag'].upper()} {'; '.join(row['reasons'])}"
        for row in done.quality["structures"]
        if row["flag"] != "pass"
    }
    write_rtstruct(
        folder / RTSTRUCT, done.structures, done.scans.today, source=done.scans.planned, names=called, remarks=remarks
    )
    error_mm = write_reg_deformable(folder / REG, done.transform, done.scans.today, done.scans.plan)
    done.result.images.write(folder, ["transform"], {})
    write_labels(folder / FILES["labels"], done.labels)
    section = {
        **done.quality,
        "transform_sha256": sha256(folder / FILES["transform"]),
        "grid_error_mm": error_mm,
        "names": {old: new for old, new in called.items() if done.structures.named(old) is not None},
        "slices_mm": [one.along_mm for one in done.scans.today.slices],
        "files": {
            "structure set": RTSTRUCT,
            "registration": REG,
            "transform": FILES["transform"],
            "labels, one structure a voxel: the smallest where several overlap": FILES["labels"],
        },
    }
    seconds = {**done.result.seconds, "objects": time.perf_counter() - began}
    told = replace(done, result=replace(done.result, clinic=section, seconds=seconds))
    return replace(told, result=told.result.write(folder, WRITTEN, there=["transform", "labels"]))


def read_name_map(path: str | Path) -> dict[str, str]:
    """Read new names of structures: JSON ``{"old": "new"}``, or two columns with a comma or a tab between.

    Raises
    ------
    UsageError
        E107 where the file is something else.
    """
    text = read_text(path, LONGEST_MAP)
    try:
        if Path(path).suffix.lower() == ".json":
            pairs = list(parse_json(text).items())
        else:
            pairs = [tuple(row) for row in parse_rows(text.splitlines(), "\t" if "\t" in text else ",") if any(row)]
        found = {str(old).strip(): str(new).strip() for old, new in pairs}
    except (ValueError, TypeError, AttributeError) as error:
        message = f"'{path}' is no map of names ({type(error).__name__})"
        raise UsageError("E107", message, 'JSON {"old": "new"}, or a line "old,new" for each structure') from error
    if not found or not all(found) or not all(found.values()):
        raise UsageError("E107", f"'{path}' maps no name, or an empty one", 'write a line "old,new" for each structure')
    return found
