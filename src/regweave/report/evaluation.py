"""Page of an evaluation: the ladder of methods, boxes by structure, measures, worst cases; all from results.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.disk.texts import parse_json, read_text
from regweave.measures.rules import Rules
from regweave.measures.scores import When
from regweave.report import batch
from regweave.report._results import Results, Row, mean, title_of
from regweave.report._values import fixed, interval, listed, mapping, number, records, signed
from regweave.report.charts import STYLE, box_plot, interval_plot
from regweave.report.page import Markup, document, escape, table
from regweave.study import demo_summary as story
from regweave.study.worst_cases import PAGES

NAME = "report.html"
N_WORST = 10
MEASURES = (
    ("hd95_mm", "HD95 mm", 2),
    ("assd_mm", "ASSD mm", 2),
    ("folding_fraction", "folding %", 4),
    ("sdlogj", "SDlogJ", 3),
    ("seconds", "seconds", 1),
    ("peak_mb", "peak MB", 0),
)
LAYOUT = (
    "a{color:var(--accent)}tbody th{min-width:15ch}td{white-space:nowrap}"
    ".failures td:last-child,.worst td:last-child{white-space:normal}"
)
COUNTS = "better / worse / equal"
PERCENT = ("folding_fraction",)
LEGEND = (
    "Box: quartiles; whiskers: last value within 1.5 ranges of the quartiles; circles: values beyond; red bar: median; "
    "red square: mean. A structure counts where both label maps show it; one that warping loses counts 0."
)


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
    target = where / NAME
    back = ("../index.html", "Demo") if (where.parent / story.NAME).is_file() else None
    pages = {target: page_text(results, links, back), where / batch.NAME: batch.page_text(results, links)}
    for path, text in pages.items():
        with owned_path(path) as part:
            part.write_text(text, encoding="utf-8")
    return target


def page_links(folder: Path, results: Results) -> dict[tuple[str, str], str]:
    """Return relative addresses of the pages of single registrations, by (pair, method), for those that exist."""
    links = {}
    for record in sorted((folder / PAGES).glob("*/page.json")):
        try:
            found = mapping(parse_json(read_text(record)))
        except (RegweaveError, ValueError):
            continue
        if (record.parent / NAME).is_file():
            key = (str(found.get("id")), str(found.get("method")))
            links[key] = f"{PAGES}/{quote(record.parent.name)}/{NAME}"
    known = {(row.id, row.method) for row in results.rows}
    return {key: link for key, link in links.items() if key in known}


def page_text(results: Results, links: Mapping[tuple[str, str], str], back: tuple[str, str] | None = None) -> str:
    """Return the page of an evaluation as HTML."""
    sections = [
        _facts(results),
        _section("Ladder", _ladder(results)),
        _section("Dice by structure", _boxes(results)),
        _section("Other measures", _measures(results)),
        _section("Worst cases", _worst(results, links)),
        _section("Failures", _failures(results)) if any(row.error for row in results.rows) else "",
        _section("Methods and data", _provenance(results)),
    ]
    return document("Evaluation", "\n".join(sections), style=STYLE + LAYOUT, back=back)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def _quiet(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _facts(results: Results) -> str:
    failed = sum(row.error is not None for row in results.rows)
    counts = {"pair": len(results.ids), "method": len(results.methods), "registration": len(results.rows)}
    facts = " · ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())
    errors = f" ({failed} ended with an error)" if failed else ""
    verdict = f"{results.tally()}{errors}"
    notes = "".join(f'<p class="warn">Note. {escape(n)}</p>' for n in listed(results.content.get("notes")))
    return f'<p>{escape(facts)} · <a href="{batch.NAME}">{escape(verdict)}: see the list</a></p>{notes}'


def _ladder(results: Results) -> str:
    """Tell the methods by mean Dice, best first, with their differences from the reference."""
    against = {str(row.get("method")): row for row in results.comparison if row.get("label") is None}
    rows: list[list[object]] = []
    ordered = sorted(results.methods, key=lambda m: -_or_least(_mean_dice(results, m)))
    for place, method in enumerate(ordered, start=1):
        found = mapping(against.get(method))
        low, high = number(found.get("low")), number(found.get("high"))
        reference = method == results.reference
        counts = ["–", "–"] if reference else [_counts(found), str(found.get("n", "–"))]
        shown = ["reference", "–"] if reference else [signed(number(found.get("mean"))), interval(low, high)]
        failed = sum(row.error is not None for row in results.of(method))
        dice = fixed(_mean_dice(results, method), 4)
        rows.append([_breakable(method), place, dice, *shown, _word(low, high), *counts, failed])
    before = mean([row.mean_dice("dice_before") for row in results.of(results.reference)])
    rows.append(["before registration", "–", fixed(before, 4), "–", "–", "", "–", "–", "–"])
    header = [
        "method", "place", "mean Dice", f"against {results.reference}", "95 % interval", "", COUNTS, "pairs", "failed",
    ]  # fmt: skip
    text = (
        "Mean over pairs of the mean over structures. Differences are taken pair by pair; the intervals come from "
        "drawing patients anew, not pairs."
    )
    if any(row.error is not None for row in results.rows):
        text += " A mean is over the pairs that did not fail: compare methods with failures by their differences."
    forest = _forest(results.reference, {m: against[m] for m in ordered if m in against})
    return _quiet(text) + table(header, rows, numeric=(1, 2, 3, 4, 6, 7, 8)) + forest


def _counts(found: Mapping[str, Any]) -> str:
    return " / ".join(str(found.get(key, "–")) for key in ("better", "worse", "equal"))


def _breakable(method: str) -> Markup:
    """Let the name of a method break where its parts meet, so that columns of numbers stay narrow."""
    return Markup(escape(method).replace(":", ":<wbr>").replace("+", "<wbr>+"))


def _forest(reference: str, against: Mapping[str, Mapping[str, Any]]) -> str:
    if not against:
        return ""
    rows = [(m, number(row.get("mean")), number(row.get("low")), number(row.get("high"))) for m, row in against.items()]
    title = f"Difference of Dice from {reference}, 95 % interval by patient"
    return interval_plot(rows, title=title, x_label=f"Dice, method − {reference}")


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _word(low: float, high: float) -> object:
    """Say in words what an interval shows, so that no one needs the colour."""
    if low > 0:
        return Markup('<span class="good">better</span>')
    if high < 0:
        return Markup('<span class="bad">worse</span>')
    return "" if math.isnan(low) else "not told apart"


def _mean_dice(results: Results, method: str) -> float:
    return mean([row.mean_dice() for row in results.of(method)])


def _boxes(results: Results) -> str:
    labels = results.labels()
    groups = {
        title_of(label, name): {"before": _values(results.of(results.reference), label, "dice_before")}
        | {m: _values(results.of(m), label) for m in results.methods}
        for label, name in labels.items()
    }
    if len(labels) > 1:
        means = {"before": [row.mean_dice("dice_before") for row in results.of(results.reference)]}
        means |= {m: [row.mean_dice() for row in results.of(m)] for m in results.methods}
        groups = {"mean": means} | groups
    header = ["structure", "before", *map(_breakable, results.methods)]
    rows = [[group, *(fixed(mean(values), 3) for values in of.values())] for group, of in groups.items()]
    each = table(header, rows, numeric=range(1, len(header)), caption="Mean Dice")
    return (
        box_plot(groups, title="Dice by structure and method", y_label="Dice") + _quiet(LEGEND) + each + _each(results)
    )


def _values(rows: list[Row], label: str, when: When = "dice_after") -> list[float]:
    return [row.dice(label, when) for row in rows]


def _each(results: Results) -> str:
    """Tell the differences by structure, folded away."""
    labels = results.labels()
    rows = []
    for row in results.comparison:
        label = row.get("label")
        if label is not None:
            low, high = number(row.get("low")), number(row.get("high"))
            counts = [_counts(row), str(row.get("n", "–"))]
            name = title_of(str(label), labels.get(str(label), str(label)))
            rows.append([row.get("method"), name, signed(number(row.get("mean"))), interval(low, high), *counts])
    header = ["method", "structure", f"against {results.reference}", "95 % interval", COUNTS, "pairs"]
    if not rows:
        return ""
    body = table(header, rows, numeric=range(2, 6))
    return f"<details><summary>Differences by structure</summary>{body}</details>"


def _measures(results: Results) -> str:
    rows = []
    for method in results.methods:
        of, cells = results.of(method), []
        for name, _, digits in MEASURES:
            values = [v for row in of for v in row.values(name)] or [row.number(name) for row in of]
            found = mean(values)
            cells.append(fixed(100 * found if name in PERCENT else found, digits))
        folded = sum(row.number("folding_fraction") > 0 for row in of)
        smoothness = next((s for row in of if not math.isnan(s := row.number("smoothness"))), math.nan)
        rows.append([_breakable(method), *cells, folded, "–" if math.isnan(smoothness) else f"{smoothness:.4g}"])
    header = ["method", *(title for _, title, _ in MEASURES), "pairs that fold", "smoothness"]
    text = (
        "Distances are means over structures and pairs, without vanished structures. Time and memory are of one "
        "registration on one thread, with other registrations running beside it."
    )
    return _quiet(text) + table(header, rows, numeric=range(1, len(header)))


def _worst(results: Results, links: Mapping[tuple[str, str], str]) -> str:
    """Tell the lowest mean Dice of one method, with links to pages where there are some."""
    method = results.shown
    done = [row for row in results.of(method) if row.error is None]
    rows = []
    for row in sorted(done, key=lambda r: (not r.score.counted, _or_least(r.mean_dice()), r.id))[:N_WORST]:
        link = links.get((row.id, row.method))
        name: object = Markup(f'<a href="{escape(link)}">{escape(row.id)}</a>') if link else row.id
        lowest = min(row.score.counted, key=lambda s: s.dice_after, default=None)
        least = [None, None] if lowest is None else [title_of(str(lowest.label), lowest.name), lowest.dice_after]
        word = row.verdict.word + (f": {row.verdict.text}" if row.verdict.text else "")
        rows.append([name, row.mean_dice("dice_before"), row.mean_dice(), *least, word])
    header = ["pair", "mean Dice before", "mean Dice after", "lowest structure", "its Dice", "verdict"]
    linked = "" if links else " Pages of single registrations are written with --pages."
    return (
        _quiet(f"Lowest mean Dice with {method}.{linked}")
        + f'<div class="worst">{table(header, rows, numeric=(1, 2, 4))}</div>'
    )


def _failures(results: Results) -> str:
    rows = [[row.id, row.method, row.error] for row in results.rows if row.error is not None]
    return f'<div class="failures">{table(["pair", "method", "error"], rows)}</div>'


def _provenance(results: Results) -> str:
    files = ("fixed", "moving", "fixed_labels", "moving_labels")
    pairs = records(results.content.get("pairs"))
    hashes = [
        [p.get("id"), p.get("group"), *(Markup(f"<code>{_digits(p, name)}</code>") for name in files)] for p in pairs
    ]
    title = "First 12 digits of the SHA-256 of each file; results.json holds all 64."
    parts = [("Pairs and the hashes of their files", table(["pair", "patients", *files], hashes, caption=title))]
    parts += [(f"Settings of {m.get('name')}", _json(m)) for m in records(results.content.get("methods"))]
    parts.append(("Versions", _json(mapping(results.content.get("provenance")))))
    return "".join(f"<details><summary>{escape(name)}</summary>{body}</details>" for name, body in parts)


def _digits(pair: Mapping[str, Any], name: str) -> str:
    return escape(str(mapping(pair.get("inputs_sha256")).get(name, "–"))[:12])


def _json(content: Mapping[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(content, indent=1, ensure_ascii=False))}</pre>"
