"""Sortable lists of registrations: those of an evaluation, and the index of a batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.disk.files import open_file, read_text
from regweave.io.disk.records import INDEX, REPORT, RESULTS, read_record
from regweave.jobs.batch import Batch, BatchRow
from regweave.measures.likeness import Likeness
from regweave.report.charts import STYLE, Strip, strip_plot
from regweave.report.page import asset, render
from regweave.report.pictures import SIGNATURE, data_address
from regweave.report.signoff import GRADES, USABLE
from regweave.run.result import load

LARGEST_THUMBNAIL = 100_000  # bytes; a larger picture is left out
DICE = (("Dice before", ".3f"), ("Dice after", ".3f"), ("change", "+.3f"))
SEVERITY = {"fail": 4, "look": 2}
LONGEST_GRADES = 10_000_000  # bytes
MOST_APART = 20  # outliers that are listed
LIKENESS = ("likeness", "+.2f")
OTHERS = (("folding %", ".4f"), ("seconds", ".1f"))


@dataclass(frozen=True)
class Line:
    """One registration of a list; numbers are NaN and texts are empty where there is none."""

    id: str
    word: str  # verdict
    text: str  # reasons of the verdict, or the error
    marks: list[str]  # for the filter: the verdict, broken rules, and the code of an error
    values: list[float]  # one for each numeric column
    method: str = ""
    link: str = ""
    thumbnail: str = ""
    dice: float = math.nan
    likeness: float = math.nan

    @property
    def badness(self) -> float:
        """Order of the contact sheet: failures first, then what is to be looked at, and the less alike the sooner."""
        within = 1.0 - self.dice if math.isnan(self.likeness) else 1 / (1 + math.exp(self.likeness))
        return SEVERITY.get(self.word, 0) + (0.0 if math.isnan(within) else within)


def write_page(folder: str | Path) -> Path:
    """Make ``index.html`` again in the folder of a batch, and return its path; E101, E102, E178 for results.json."""
    where = Path(folder)
    return draw(read_record(Batch, where / RESULTS).model_copy(update={"folder": where}))


def compare_grades(folder: str | Path, path: str | Path) -> dict[str, Any]:
    """Compare the grades that the page of a batch exported with verdicts and likeness.

    The result has the graded rows, the rank correlation of grade and likeness, and the pairs where grade and verdict
    contradict. Raises E145 where the table is not one of this batch.
    """
    batch = read_record(Batch, Path(folder) / RESULTS)
    rows = {row.id: row for row in batch.rows}
    try:
        cells = [line.rstrip("\r").split("\t") for line in read_text(path, LONGEST_GRADES).split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise _no_grades(path, "it is no text in UTF-8") from error
    if not cells or cells[0] != ["id", "grade"] or len(cells) < 2:
        raise _no_grades(path, "it is no table with the columns id and grade")
    for n, cell in enumerate(cells[1:], start=2):
        if len(cell) != 2 or cell[0] not in rows or cell[1].strip() not in GRADES:
            raise _no_grades(path, f"line {n} is not a pair of the batch with a grade from 0 to 4")
    given = {name: int(grade) for name, grade in cells[1:]}
    if len(given) < len(cells) - 1:
        raise _no_grades(path, "a pair is graded twice")
    graded = [(rows[name], grade) for name, grade in given.items()]
    pairs = [(grade, row.likeness) for row, grade in graded if row.likeness is not None]
    varies = all(len(set(values)) > 1 for values in zip(*pairs, strict=True)) if len(pairs) > 2 else False
    return {
        "graded": [{"id": r.id, "grade": g, "verdict": r.verdict or "fail", "likeness": r.likeness} for r, g in graded],
        "of": len(rows),
        "rank_correlation": float(stats.spearmanr(pairs).statistic) if varies else None,
        "unusable_but_pass": [row.id for row, grade in graded if grade < USABLE and row.verdict == "pass"],
        "usable_but_fail": [row.id for row, grade in graded if grade >= USABLE and row.verdict in ("fail", None)],
    }  # fmt: skip


def good_results(folder: str | Path, path: str | Path) -> list[Likeness]:
    """Return the likeness of the pairs of a batch that were graded as usable."""
    found = compare_grades(folder, path)["graded"]
    good = [row["id"] for row in found if row["grade"] >= USABLE and row["likeness"] is not None]
    return [one for name in good if (one := load(Path(folder) / name).likeness) is not None]


def _no_grades(path: str | Path, why: str) -> RegweaveError:
    hint = "export the grades again from the contact sheet of this batch"
    return RegweaveError("E145", f"'{path}' cannot be taken as grades: {why}", hint)


def draw(batch: Batch, name: str = INDEX, title: str = "Batch") -> Path:
    """Write the page of a batch, which links the pages and shows the pictures in its folder."""
    labelled = any(row.mean_dice_after is not None for row in batch.rows)
    text = list_page(
        [_line(row, batch.folder, labelled) for row in batch.rows], title=title, back=None, tally=batch.tally(),
        rules=batch.rules, columns=[*(DICE if labelled else ()), LIKENESS, *OTHERS],
    )  # fmt: skip
    with owned_path(batch.folder / name) as part:
        part.write_text(text, encoding="utf-8")
    return batch.folder / name


def list_page(
    lines: Sequence[Line], *, title: str, back: tuple[str, str] | None, tally: str, rules: str,
    columns: Sequence[tuple[str, str]], limits: Mapping[str, str] = MappingProxyType({}), methods: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return a list of registrations as HTML; a column is a title and the format of its numbers."""
    alone = len(methods) < 2  # several methods are compared on a separate page
    strips, apart = spread_of([one.id for one in lines], columns if alone else (), [one.values for one in lines])
    chart = strip_plot(strips, title="All registrations, a dot each; the bar is the median") if strips else ""
    context = {
        "lines": lines, "title": title, "back": back, "tally": tally, "rules": rules,
        "limits": limits, "methods": methods, "columns": columns, "group": chart,
        "apart": [(lines[one["place"]], one) for one in apart[:MOST_APART]], "others": apart[MOST_APART:],
    }  # fmt: skip
    return render("list.j2", context, style=STYLE + asset("list.css"), scripts=[asset("list.js")])


def _line(row: BatchRow, folder: Path, labelled: bool) -> Line:
    numbers = (row.mean_dice_before, row.mean_dice_after, row.likeness, row.folding_percent, row.seconds)
    before, after, likeness, folding, seconds = (math.nan if v is None else v for v in numbers)
    values = [*([before, after, after - before] if labelled else []), likeness, folding, seconds]
    if row.status == "failed":
        code = [row.code] if row.code else []
        return Line(row.id, "fail", ": ".join([*code, str(row.message)]), ["fail", "error", *code], values)
    marks = list(dict.fromkeys([str(row.verdict), *(reason.rule for reason in row.reasons)]))
    text = "; ".join(reason.text for reason in row.reasons)
    page = f"{row.folder}/{REPORT}"
    link = page if (folder / page).is_file() else ""
    return Line(
        row.id, str(row.verdict), text, marks, values, "", link, _thumbnail(row.thumbnail, folder), after, likeness
    )


def _thumbnail(place: str | None, folder: Path) -> str:
    """Return a picture as an address that holds it; nothing where there is none that a page should carry."""
    if place is None:
        return ""
    try:
        with open_file(folder / place) as stream:
            found = stream.read(LARGEST_THUMBNAIL + 1)
    except RegweaveError:
        return ""
    return data_address(found) if found.startswith(SIGNATURE) and len(found) <= LARGEST_THUMBNAIL else ""


LEAST = 5  # a group of fewer registrations has no outliers
REACH = 1.5  # an outlier is this many ranges of the quartiles beyond them, as Tukey drew boxes
BAD_SIDE = {"Dice after": -1, "change": -1, "likeness": -1, "HD95 mm": 1, "folding %": 1, "seconds": 1}
"""Measures that are looked at, and the side on which a value is bad."""


def spread_of(
    names: Sequence[str], columns: Sequence[tuple[str, str]], values: Sequence[Sequence[float]]
) -> tuple[list[Strip], list[dict[str, Any]]]:
    """Return a strip for each measure, and the outliers, the farthest first.

    A column is a title and the format of its numbers; ``values`` has a number for each column of each registration,
    NaN for none. An outlier is its place in the list, the measure, and its value and the median as text.
    """
    strips: list[Strip] = []
    outliers: list[tuple[float, dict[str, Any]]] = []
    for column, (title, form) in enumerate(columns):
        numbers = np.array([row[column] for row in values], dtype=np.float64)
        known = numbers[np.isfinite(numbers)]
        if title not in BAD_SIDE or len(known) < LEAST or np.ptp(known) == 0:
            continue
        lower, median, upper = np.percentile(known, (25, 50, 75))
        edge, side = (upper if BAD_SIDE[title] > 0 else lower), BAD_SIDE[title]
        beyond = side * (numbers - edge) - REACH * (upper - lower)
        far = [n for n in np.flatnonzero(beyond > 1e-9).tolist() if np.isfinite(numbers[n])]
        named = list(zip(names, numbers.tolist(), strict=True))
        strips.append((title, form, named, float(median), frozenset(names[n] for n in far)))
        scale = max(float(upper - lower), 1e-9)
        for n in far:
            one = {"place": n, "measure": title, "value": f"{numbers[n]:{form}}", "median": f"{median:{form}}"}
            outliers.append((beyond[n] / scale, one))
    return strips, [one for _, one in sorted(outliers, key=lambda pair: -pair[0])]
