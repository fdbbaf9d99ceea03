"""Page of an evaluation: ladder of methods, box plots, measures, worst cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.disk.records import DEMO, INDEX, PAGE_RECORD, PAGES, REPORT
from regweave.io.disk.text import read_json
from regweave.measures.verdict import Rules
from regweave.report import batch
from regweave.report.charts import STYLE, box_plot, interval_plot
from regweave.report.page import asset, render
from regweave.report.results import Results, mean
from regweave.study.comparison import Difference

N_WORST = 10
MEASURES = (
    ("hd95_mm", "HD95 mm", ".2f"),
    ("assd_mm", "ASSD mm", ".2f"),
    ("folding_fraction", "folding %", ".4f"),
    ("sdlogj", "SDlogJ", ".3f"),
    ("seconds", "seconds", ".1f"),
    ("peak_mb", "peak MB", ".0f"),
)
PERCENT = ("folding_fraction",)
Links = Mapping[tuple[str, str], str]
"""Addresses of the pages of single registrations, by pair and method."""


def write_page(folder: str | Path, rules: Rules | None = None) -> Path:
    """Write ``report.html`` and ``index.html`` into the folder of an evaluation.

    Parameters
    ----------
    folder : path
        Holds results.json; pages of single registrations in ``pages/<id>/report.html`` are linked where they exist.
    rules : Rules, optional
        Acceptance criteria of the verdicts on the pages, instead of those of the record.

    Returns
    -------
    Path
        The page of the evaluation.

    Raises
    ------
    RegweaveError
        E101, E102, E178 where results.json is missing, damaged, or not what `evaluate` writes.
    """
    where = Path(folder)
    results = Results.read(where, rules)
    links = page_links(where, results)
    target = where / REPORT
    back = (f"../{INDEX}", "Demo") if (where.parent / DEMO).is_file() else None
    pages = {target: page_text(results, links, back), where / INDEX: batch.evaluation_list(results, links)}
    for path, text in pages.items():
        with owned_path(path) as part:
            part.write_text(text, encoding="utf-8")
    return target


def page_links(folder: Path, results: Results) -> dict[tuple[str, str], str]:
    """Return relative addresses of the pages of single registrations, by (pair, method), for those that exist."""
    links = {}
    for record in sorted((folder / PAGES).glob(f"*/{PAGE_RECORD}")):
        try:
            found = read_json(record)
        except RegweaveError:
            continue
        if (record.parent / REPORT).is_file():
            key = (str(found.get("id")), str(found.get("method")))
            links[key] = f"{PAGES}/{quote(record.parent.name)}/{REPORT}"
    known = {(row.id, row.method) for row in results.rows}
    return {key: link for key, link in links.items() if key in known}


def page_text(results: Results, links: Links, back: tuple[str, str] | None = None) -> str:
    """Return the page of an evaluation as HTML."""
    groups = _groups(results)
    ordered = sorted(results.methods, key=lambda m: -_or_least(_mean_dice(results, m)))
    against = {row.method: row for row in results.record.comparison if row.label is None}
    done = [row for row in results.of(results.shown) if row.error is None]
    context = {
        "back": back,
        "results": results,
        "links": links,
        "index": INDEX,
        "ladder": [_rung(results, m, against.get(m)) for m in ordered],
        "before": mean([row.mean_dice("dice_before") for row in results.of(results.reference)]),
        "forest": _forest(results.reference, {m: against[m] for m in ordered if m in against}),
        "groups": {group: [mean(values) for values in of.values()] for group, of in groups.items()},
        "boxes": box_plot(groups, title="Dice by structure and method", x_label="Dice"),
        "differences": [
            (row, _title(results, row.label)) for row in results.record.comparison if row.label is not None
        ],
        "measures": [(title, form) for _, title, form in MEASURES],
        "measured": [_measured(results, method) for method in results.methods],
        "worst": sorted(done, key=lambda r: (not r.score.counted, _or_least(r.mean_dice()), r.id))[:N_WORST],
        "titles": results.titles(),
    }
    return render("evaluation.j2", context, style=STYLE + asset("evaluation.css"))


def _rung(results: Results, method: str, difference: Difference | None) -> dict[str, Any]:
    """Return a line of the ladder; the reference differs from itself in nothing."""
    return {
        "method": method,
        "dice": _mean_dice(results, method),
        "difference": None if method == results.reference else difference,
        "failed": sum(row.error is not None for row in results.of(method)),
    }


def _forest(reference: str, against: Mapping[str, Difference]) -> Markup:
    if not against:
        return Markup()
    rows = [(m, _number(d.mean), _number(d.low), _number(d.high)) for m, d in against.items()]
    title = f"Difference of Dice from {reference}, 95 % interval by patient"
    return interval_plot(rows, title=title, x_label=f"Dice, method − {reference}")


def _groups(results: Results) -> dict[str, dict[str, list[float]]]:
    """Return the Dice of each pair by structure, and by ``before`` or the method."""
    before = results.of(results.reference)
    labels, titles = results.labels(), results.titles()
    groups = {
        titles[label]: {"before": [row.dice(label, "dice_before") for row in before]}
        | {m: [row.dice(label) for row in results.of(m)] for m in results.methods}
        for label in labels
    }
    if len(labels) < 2:
        return groups

    def means(*, withheld: bool) -> dict[str, list[float]]:
        of = {m: [row.mean_dice(withheld=withheld) for row in results.of(m)] for m in results.methods}
        return {"before": [row.mean_dice("dice_before", withheld=withheld) for row in before]} | of

    apart = {"withheld": means(withheld=True)} if results.record.withheld else {}
    return {"mean": means(withheld=False)} | apart | groups


def _measured(results: Results, method: str) -> dict[str, Any]:
    """Return the means of the measures of a method, and how many pairs fold."""
    rows = results.of(method)
    values = {name: [v for row in rows for v in row.values(name)] for name, _, _ in MEASURES}
    return {
        "method": method,
        "means": [mean(of) * (100 if name in PERCENT else 1) for name, of in values.items()],
        "folded": sum(row.number("folding_fraction") > 0 for row in rows),
        "smoothness": next((s for row in rows if not math.isnan(s := row.number("smoothness"))), None),
    }


def _title(results: Results, label: str) -> str:
    return results.titles().get(int(label), label) if label.lstrip("-").isdecimal() else label


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _mean_dice(results: Results, method: str) -> float:
    return mean([row.mean_dice() for row in results.of(method)])
