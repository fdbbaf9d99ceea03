"""Sign-offs of a page: what the page exports, read back, compared with the files of the result, collected."""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from regweave.errors import RegweaveError
from regweave.io.disk.files import is_file, open_file, parse_json, read_text, sha256, table_cell
from regweave.io.disk.records import REPORT
from regweave.run.result import load

TRANSFORM = "transform.h5"
SEEN = {
    "rtstruct_sha256": "rtstruct.dcm",
    "warped_labels_sha256": "warped_labels.nii.gz",
    "warped_sha256": "warped.nii.gz",
}
"""Files that a reviewer looks at, by the line of the sign-off with their hash: the first that a result has counts."""
NEEDED = ("reviewer", "date", "transform_sha256")
GRADES = ("0", "1", "2", "3", "4")
USABLE = 2  # grades from here on let a structure be used
DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
COLUMNS = ("structure", "grade", "comment")
COLLECTED = (
    "result", "structure", "grade", "reviewer", "date", "comment", "transform_sha256", "seen", "seen_sha256", "verdict",
)  # fmt: skip
LONGEST = 1_500_000
DATA = b'<script type="application/json" id="signoff-data">'


@dataclass(frozen=True)
class SignOff:
    """A review of one result."""

    header: Mapping[str, str]  # reviewer, date, hashes, version
    rows: tuple[tuple[str, str, str], ...]

    @cached_property
    def word(self) -> str:
        """``accepted`` where every structure has a grade that lets it be used, else ``refused``."""
        return "refused" if self.unusable else "accepted"

    @cached_property
    def unusable(self) -> list[tuple[str, str, str]]:
        """Rows whose grade does not let the structure be used."""
        return [row for row in self.rows if int(row[1]) < USABLE]


def reviewed_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes that bind a sign-off to a result: of the transform and of what the reviewer looks at."""
    seen = next((key for key, name in SEEN.items() if is_file(folder / name)), "warped_sha256")
    return {"transform_sha256": sha256(folder / TRANSFORM), seen: sha256(folder / SEEN[seen])}


def signoff_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names that an exported sign-off lists, as cells of a table, each once."""
    cells = [table_cell(str(row["name"])) or f"label {row['label']}" for row in rows]
    counts = Counter(cells)
    return [
        cell if counts[cell] == 1 else f"{cell} (label {row['label']})" for cell, row in zip(cells, rows, strict=True)
    ]


def read_signoff(path: str | Path) -> SignOff:
    """Read a sign-off that the page exported; E145 if it is none or incomplete, E114 if it is too long.

    Lines ``# key: value`` come first, then a table with tabs: structure, grade, comment. Nothing is quoted, and from
    the line of the columns on every line is a row.
    """
    try:
        lines = read_text(path, LONGEST).removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _refuse(path, "it is no text in UTF-8") from error
    cells = [line.removesuffix("\r").split("\t") for line in lines]
    start = next((n for n, row in enumerate(cells) if tuple(row) == COLUMNS), None)
    if start is None:
        raise _refuse(path, f"it has no table with the columns {', '.join(COLUMNS)}")
    header = _header(["\t".join(row) for row in cells[:start]], path)
    found = []
    for n, row in enumerate(cells[start + 1 :], start=start + 2):
        if len(row) not in (2, 3) or not row[0].strip():
            raise _refuse(path, f"line {n} is not a structure, a grade and a comment with tabs between")
        if row[1] not in GRADES:
            raise _refuse(path, f"line {n}: '{row[0][:60]}' has no grade from 0 to 4")
        found.append((row[0], row[1], row[2] if len(row) == 3 else ""))
    if not found:
        raise _refuse(path, "it grades no structure")
    twice = [name for name, count in Counter(name for name, _, _ in found).items() if count > 1]
    if twice:
        raise _refuse(path, f"{_listed(twice)} graded more than once")
    return SignOff(header, tuple(found))


def _header(lines: Sequence[str], path: str | Path) -> dict[str, str]:
    header: dict[str, str] = {}
    for n, line in enumerate(lines, start=1):
        key, colon, value = line.removeprefix("# ").partition(":")
        if not line.startswith("# ") or not colon or key in header:
            raise _refuse(path, f"line {n} is no line '# key: value', or repeats one")
        header[key] = value.strip()
    missing = [key for key in NEEDED if not header.get(key)]
    if missing:
        raise _refuse(path, f"it does not state {', '.join(missing)}")
    try:
        date.fromisoformat(header["date"] if DATE.fullmatch(header["date"]) else "")
    except ValueError as error:
        raise _refuse(path, "its date is no day of the calendar, written as 2026-01-31") from error
    return header


@dataclass(frozen=True)
class Reviewable:
    """A result as a sign-off must match it: its folder, hashes of what was looked at, structures that are graded."""

    folder: Path
    hashes: Mapping[str, str]
    structures: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Reviewable:
        """Read record, hashes and page of a result.

        Raises E101, E102 or E178 where a file is missing or not one that regweave wrote; E145 where the page exports no
        sign-off.
        """
        load(folder)
        with open_file(folder / REPORT) as stream:
            try:
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    start = content.find(DATA)
                    end = content.find(b"</script>", start)
                    text = content[start + len(DATA) : end].decode() if start >= 0 else ""
                names = parse_json(text)["structures"]
            except (ValueError, TypeError, KeyError) as error:
                why = f"the page '{folder / REPORT}' exports no sign-off that can be compared"
                raise RegweaveError("E145", why, "make the page again with `regweave report`") from error
        return cls(folder, reviewed_hashes(folder), tuple(map(str, names)))


def require_match(signed: SignOff, results: Sequence[Reviewable], path: str | Path) -> Reviewable:
    """Return the result that was reviewed.

    Raises E145 where transform, structure set, labels or image of no result are those that were looked at, or where the
    structures that are graded are not those of the result.
    """
    changed = [{key for key, value in one.hashes.items() if signed.header.get(key) != value} for one in results]
    same = [one for one, keys in zip(results, changed, strict=True) if not keys]
    wrong = ""
    for one in same:
        graded, wanted = {name for name, _, _ in signed.rows}, set(one.structures)
        if graded == wanted:
            return one
        wrong = wrong or "; ".join(
            f"{_listed(sorted(names))} {words}"
            for names, words in ((wanted - graded, "without a grade"), (graded - wanted, "not in the result"))
            if names
        )
    if same:
        raise _refuse(path, wrong)
    keys, nearest = min(zip(changed, results, strict=True), key=lambda pair: len(pair[0]))
    names = {"transform_sha256": TRANSFORM, **SEEN}
    unstated = sorted(key for key in keys if key not in signed.header)
    if unstated:
        raise _refuse(
            path, f"it does not state {', '.join(unstated)} of '{nearest.folder}', so what was seen is unknown"
        )
    files = ", ".join(sorted(names[key] for key in keys))
    among = f"none of the {len(results)} results is the one that was reviewed; " if len(results) > 1 else ""
    raise _refuse(path, f"{among}{files} of '{nearest.folder}' is not what was reviewed")


def collected(signed: Sequence[tuple[SignOff, Reviewable]]) -> str:
    """Return all sign-offs as one table with tabs, a line for each structure."""
    lines = ["\t".join(COLLECTED)]
    for one, result in signed:
        seen = next(key for key in SEEN if key in result.hashes)
        where, reviewer, day = map(table_cell, (result.folder.name, one.header["reviewer"], one.header["date"]))
        bound = (one.header["transform_sha256"], SEEN[seen], result.hashes[seen], one.word)
        for name, grade, comment in one.rows:
            lines.append("\t".join((where, table_cell(name), grade, reviewer, day, table_cell(comment), *bound)))
    return "\n".join(lines) + "\n"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    count = "1 structure" if len(names) == 1 else f"{len(names)} structures"
    return f"{count} ({', '.join(name[:60] for name in names[:5])}{more})"


def _refuse(path: str | Path, why: str) -> RegweaveError:
    hint = "review the result as it is now and export the sign-off from its page"
    return RegweaveError("E145", f"'{path}' cannot be taken as a sign-off: {why}", hint)
