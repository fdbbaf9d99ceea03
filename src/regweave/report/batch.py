"""Index page of a batch, each registration with its verdict and the reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from regweave.io import owned_path
from regweave.measures.rules import RULES, Rules
from regweave.report._results import Results, Row, mean
from regweave.report._values import fixed, signed
from regweave.report.overview import KINDS, MARKS
from regweave.report.page import asset, document, escape

NAME = "index.html"
STYLE = (
    "a{color:var(--accent)}"
    ".filters{display:flex;flex-wrap:wrap;gap:10px 16px;align-items:end;margin:12px 0}"
    ".filters label{display:grid;gap:2px;font-size:.88rem}"
    ".filters .check{display:flex;align-items:center;gap:6px;min-height:34px}"
    "th button{border:0;background:none;padding:2px 0;min-height:0;font-weight:600}"
    "th[aria-sort=ascending] button::after{content:' ↑'}th[aria-sort=descending] button::after{content:' ↓'}"
    "tr.fail th:first-child{box-shadow:inset 4px 0 var(--bad)}"
    "tr.look th:first-child{box-shadow:inset 4px 0 var(--warn)}"
    "tr.pass th:first-child{box-shadow:inset 4px 0 var(--good)}"
    "td.mark{white-space:nowrap}"
    "tbody th{min-width:9ch}td.what{min-width:24ch;max-width:60ch}"
    ".rules dt{font-weight:600;float:left;clear:left;min-width:24em}.rules dd{margin-left:24.5em}"
)
COLUMNS = (
    ("pair", "text"),
    ("method", "text"),
    ("verdict", "text"),
    ("reasons", "text"),
    ("Dice before", "number"),
    ("Dice after", "number"),
    ("change", "number"),
    ("HD95 mm", "number"),
    ("folding %", "number"),
    ("seconds", "number"),
)


def write_page(folder: str | Path) -> Path:
    """Write ``index.html`` into the folder of an evaluation, without links to pages of single registrations."""
    where = Path(folder)
    with owned_path(where / NAME) as part:
        part.write_text(page_text(Results.read(where), {}), encoding="utf-8")
    return where / NAME


def page_text(results: Results, links: Mapping[tuple[str, str], str]) -> str:
    """Return the list as HTML; ``links`` are addresses by (pair, method)."""
    body = (
        f"<p>{escape(results.tally())}</p>"
        f"<details><summary>Rules “{escape(results.rules.name)}”</summary>{_rules(results.rules)}</details>"
        f"{_filters(results)}"
        '<p class="quiet" id="count" role="status" aria-live="polite"></p>'
        f"{_table(results, links)}"
    )
    return document("Registrations", body, style=STYLE, scripts=[asset("batch.js")], back=("report.html", "Evaluation"))


def _rules(rules: Rules) -> str:
    items = "".join(
        f"<dt>{escape(RULES[rule].words)}</dt><dd>{escape(rules.words(rule))}</dd>" for rule in rules.limits
    )
    return (
        '<p class="quiet">A registration that ended with an error fails. Structures count where both label maps show '
        f'them.</p><dl class="rules">{items}</dl>'
    )


def _filters(results: Results) -> str:
    methods = "".join(f'<option value="{escape(m)}">{escape(m)}</option>' for m in results.methods)
    broken = dict.fromkeys(reason.rule for row in results.rows for reason in row.verdict.reasons)
    marks = "".join(f'<option value="{escape(rule)}">{escape(_title(rule))}</option>' for rule in broken)
    return (
        '<div class="filters" role="search">'
        '<label>Find<input id="find" type="search" placeholder="pair, method, error" title="Shortcut: /"></label>'
        f'<label>Method<select id="method"><option value="">all</option>{methods}</select></label>'
        '<label>Verdict<select id="mark"><option value="">all</option><option value="pass">pass</option>'
        f'<option value="look">look</option><option value="fail">fail</option>{marks}</select></label>'
        '<button type="button" id="reset">Show all</button></div>'
    )


def _title(rule: str) -> str:
    return RULES[rule].words if rule in RULES else rule


def _table(results: Results, links: Mapping[tuple[str, str], str]) -> str:
    head = "".join(
        f'<th scope="col" data-kind="{kind}"{_side(kind)}><button type="button">{escape(title)}</button></th>'
        for title, kind in COLUMNS
    )
    rows = "\n".join(_line(row, links.get((row.id, row.method))) for row in results.rows)
    return f'<div class="wide"><table id="rows"><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _side(kind: str) -> str:
    return ' class="number"' if kind == "number" else ""


def _line(row: Row, link: str | None) -> str:
    before, after = row.mean_dice("dice_before"), row.mean_dice()
    hd95, folding = row.values("hd95_mm"), 100 * row.number("folding_fraction")
    values = [
        (before, fixed(before, 3)),
        (after, fixed(after, 3)),
        (after - before, signed(after - before, 3)),
        (mean(hd95), fixed(mean(hd95), 2)),
        (folding, fixed(folding, 4)),
        (row.number("seconds"), fixed(row.number("seconds"), 1)),
    ]
    cells = "".join(
        f'<td class="number" data-value="{"" if math.isnan(value) else repr(value)}">{text}</td>'
        for value, text in values
    )
    name = f'<a href="{escape(link)}">{escape(row.id)}</a>' if link else escape(row.id)
    word = row.verdict.word
    marks = " ".join(dict.fromkeys([word, *(reason.rule for reason in row.verdict.reasons)]))
    return (
        f'<tr class="{word}" data-method="{escape(row.method)}" data-marks="{escape(marks)}">'
        f'<th scope="row">{name}</th><td>{escape(row.method)}</td>'
        f'<td class="mark"><span class="{KINDS[word]}">{escape(MARKS[word])}</span></td>'
        f'<td class="what">{escape(row.verdict.text)}</td>{cells}</tr>'
    )
