"""Sign-offs of propagated contours: read back, checked against the transform that was looked at, collected."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regweave.errors import RegweaveError
from regweave.io.disk.files import sha256
from regweave.io.disk.texts import parse_json, parse_rows, read_text
from regweave.pipeline.outputs import FILES
from regweave.pipeline.result import RECORD

NEEDED = ("reviewer", "date", "transform_sha256")
GRADES = {
    "4": "no error seen",
    "3": "small, below a voxel",
    "2": "visible, usable with care",
    "1": "large",
    "0": "wrong",
}
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
COLUMNS = ("structure", "grade", "comment")
USABLE = 2
"""Grades from here on let a structure be used."""
LONGEST = 1_000_000


@dataclass(frozen=True)
class SignOff:
    """A review of one result.

    Parameters
    ----------
    header : mapping
        Reviewer, date, hashes, version.
    rows : tuple of (structure, grade, comment)
    """

    header: Mapping[str, str]
    rows: tuple[tuple[str, str, str], ...]

    @property
    def word(self) -> str:
        """``accepted`` where every structure has a grade that lets it be used, else ``refused``."""
        return "accepted" if all(int(grade) >= USABLE for _, grade, _ in self.rows) else "refused"


def read_signoff(path: str | Path) -> SignOff:
    r"""Read a sign-off that the page exported.

    Parameters
    ----------
    path : path
        Lines ``# key: value``, then a table with tabs: structure, grade, comment.

    Raises
    ------
    RegweaveError
        E145 where it is no sign-off, or one that leaves out reviewer, date, hash or a grade.
    """
    lines = read_text(path, LONGEST).splitlines()
    header = {}
    for line in lines:
        if line.startswith("#") and ":" in line:
            key, _, value = line[1:].partition(":")
            header[key.strip()] = value.strip()
    rows = parse_rows([line for line in lines if line.strip() and not line.startswith("#")], "\t")
    if not rows or tuple(rows[0][: len(COLUMNS)]) != COLUMNS:
        raise _refuse(path, f"it has no table with the columns {', '.join(COLUMNS)}")
    missing = [key for key in NEEDED if not header.get(key)]
    if missing:
        raise _refuse(path, f"it does not state {', '.join(missing)}")
    if not DATE.fullmatch(header["date"]):
        raise _refuse(path, "its date is not written as year-month-day")
    found = tuple((row[0], row[1].strip(), row[2] if len(row) > 2 else "") for row in rows[1:])
    ungraded = [name for name, grade, _ in found if grade not in GRADES]
    if not found or ungraded:
        raise _refuse(path, f"{len(ungraded)} of {len(found)} structures have no grade from 0 to 4")
    return SignOff(header, found)


def require_match(signed: SignOff, results: Sequence[Path], path: str | Path) -> Path:
    """Return the result whose transform was signed, or raise E145: a changed transform has no sign-off."""
    same = [r for r in results if sha256(r / FILES["transform"]) == signed.header["transform_sha256"]]
    missing = {folder: _ungraded(signed, folder) for folder in same}
    for folder in same:
        if not missing[folder]:
            return folder
    if same:
        left = missing[same[0]]
        raise _refuse(path, f"{len(left)} structures of the result have no grade: {', '.join(left[:5])}")
    raise _refuse(
        path, f"its transform is none of the {len(results)} results that are named: another one was looked at"
    )


def _ungraded(signed: SignOff, folder: Path) -> list[str]:
    """Return the structures of a result that a sign-off does not grade."""
    section = parse_json(read_text(folder / RECORD)).get("clinic")
    if section is None:
        return []
    called = section.get("names", {})
    wanted = [called.get(row["name"], row["name"]) for row in section["structures"]]
    there = {name for name, _, _ in signed.rows}
    return [name for name in wanted if _cell(name) not in there]


def _cell(name: str) -> str:
    """Return a name as the page exports it: one line, and nothing that a spreadsheet runs as a formula."""
    text = re.sub(r"[\t\r\n]+", " ", name).strip()
    return f"'{text}" if text[:1] in "=+@-" else text


def collected(signed: Sequence[tuple[SignOff, Path]]) -> str:
    """Return all sign-offs as one table with tabs, a line for each structure."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    writer.writerow(("result", "structure", "grade", "reviewer", "date", "comment", "transform_sha256", "verdict"))
    for one, folder in signed:
        for name, grade, comment in one.rows:
            h = one.header
            writer.writerow(
                (folder.name, name, grade, h["reviewer"], h["date"], comment, h["transform_sha256"], one.word)
            )
    return out.getvalue()


def _refuse(path: str | Path, why: str) -> RegweaveError:
    return RegweaveError("E145", f"'{path}' cannot be taken as a sign-off: {why}", "export it again from the page")
