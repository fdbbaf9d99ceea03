"""Page of an evaluation: ladder of methods, box plots, measures, worst cases."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.disk.files import read_json
from regweave.io.disk.records import DEMO, INDEX, PAGE_RECORD, PAGES, REPORT, RESULTS, read_record
from regweave.measures.verdict import Rules, rule_words, tally
from regweave.report import batch, charts, page
from regweave.study.evaluate import MEASURES, WITHHELD, Evaluation, mean

N_WORST = 10
RESERVED = ("mean", WITHHELD)  # groups of the charts beside the structures
Links = Mapping[tuple[str, str], str]  # addresses of the pages of single registrations, by pair and method


def write_page(folder: str | Path, rules: Rules | None = None) -> Path:
    """Write ``report.html`` and ``index.html`` into the folder of an evaluation, and return the path of the former.

    Pages of single registrations, ``pages/<id>/report.html``, are linked where they exist. ``rules`` replace those of
    the record. A results.json that is missing, damaged or not ours is E101, E102 or E178.
    """
    where = Path(folder)
    found = read_record(Evaluation, where / RESULTS)
    found = found if rules is None else found.judged(rules)
    links = _page_links(where, found)
    back = (f"../{INDEX}", "Demo") if (where.parent / DEMO).is_file() else None
    for path, text in {where / REPORT: _page(found, links, back), where / INDEX: _list(found, links)}.items():
        with owned_path(path) as part:
            part.write_text(text, encoding="utf-8")
    return where / REPORT


def _page_links(folder: Path, found: Evaluation) -> dict[tuple[str, str], str]:
    """Return relative addresses of the pages of single registrations, by (pair, method), for those that exist."""
    links = {}
    for path in sorted((folder / PAGES).glob(f"*/{PAGE_RECORD}")):
        try:
            content = read_json(path)
        except RegweaveError:
            continue
        if (path.parent / REPORT).is_file():
            key = (str(content.get("id")), str(content.get("method")))
            links[key] = f"{PAGES}/{quote(path.parent.name)}/{REPORT}"
    known = {(row.id, row.method) for row in found.results}
    return {key: link for key, link in links.items() if key in known}


def _page(found: Evaluation, links: Links, back: tuple[str, str] | None) -> str:
    methods = list(found.by_method)
    means = {method: mean(found.dice(method)) for method in methods}
    titles = _titles(found)
    groups = _groups(found, titles)
    ordered = sorted(methods, key=lambda method: math.inf if math.isnan(means[method]) else -means[method])
    against = {row.method: row for row in found.comparison if row.label is None}
    differences = ((m, against[m]) for m in ordered if m in against)
    ends = {m: [math.nan if v is None else v for v in (d.mean, d.low, d.high)] for m, d in differences}
    forest = [(m, middle, low, high) for m, (middle, low, high) in ends.items()]
    failed = {method: sum(row.error is not None for row in rows) for method, rows in found.by_method.items()}
    apart = found.withheld
    context = {
        "back": back,
        "record": found,
        "ids": {row.id for row in found.results},
        "methods": methods,
        "failures": [row for row in found.results if row.error is not None],
        "tally": tally(row.verdict for row in found.results),
        "shown": found.shown,
        "links": links,
        "index": INDEX,
        "ladder": [(method, means[method], against.get(method), failed[method]) for method in ordered],
        "before": mean(found.dice(found.reference, when="dice_before")),
        "forest": charts.interval_plot(
            forest, title=f"Difference of Dice from {found.reference}, 95 % interval by patient",
            x_label=f"Dice, method − {found.reference}",
        ) if forest else "",
        "groups": {group: [mean(values) for values in of.values()] for group, of in groups.items()},
        "boxes": charts.box_plot(groups, title="Dice by structure and method", x_label="Dice"),
        "differences": [(row, titles.get(row.label, row.label)) for row in found.comparison if row.label is not None],
        "measures": [(title, form) for _, title, form in MEASURES],
        "measured": {
            method: {
                "means": found.measured(method),
                "folded": sum(v > 0 for row in rows for v in row.values("folding_fraction")),
                "smoothness": found.smoothness(method),
            }
            for method, rows in found.by_method.items()
        },
        "worst": [(row, row.score.counted, row.dice(None, "dice_before", apart), row.dice(withheld=apart))
                  for row in found.worst(N_WORST)],
        "titles": titles,
    }  # fmt: skip
    return page.render("evaluation.j2", context, style=charts.STYLE + page.asset("evaluation.css"))


def _list(found: Evaluation, links: Links) -> str:
    lines = []
    for row in found.results:
        before, after = row.dice(None, "dice_before", found.withheld), row.dice(withheld=found.withheld)
        hd95, folding, seconds = (mean(row.values(name)) for name in ("hd95_mm", "folding_fraction", "seconds"))
        values = [before, after, after - before, hd95, 100 * folding, seconds]
        marks = list(dict.fromkeys([row.verdict.word, *(reason.rule for reason in row.verdict.reasons)]))
        link = links.get((row.id, row.method), "")
        lines.append(batch.Line(row.id, row.verdict.word, row.verdict.text, marks, values, row.method, link))
    return batch.list_page(
        lines, title="Registrations", back=(REPORT, "Evaluation"), tally=tally(row.verdict for row in found.results),
        rules=found.rules.name, limits={rule_words(rule): found.rules.words(rule) for rule in found.rules.limits},
        methods=list(found.by_method), columns=[*batch.DICE, ("HD95 mm", ".2f"), *batch.OTHERS],
    )  # fmt: skip


def _titles(found: Evaluation) -> dict[str, str]:
    """Return what structures are called on pages: by name, and by number too where several share a name."""
    names = list(found.labels.values())
    alone = {name for name in names if names.count(name) == 1 and name not in RESERVED}
    return {
        label: name if name in alone or name == label else f"{label} {name}" for label, name in found.labels.items()
    }


def _groups(found: Evaluation, titles: Mapping[str, str]) -> dict[str, dict[str, Sequence[float]]]:
    """Return the Dice of each pair by structure, and by ``before`` or the method."""
    means = {label or "mean": label for label in found.means} if len(titles) > 1 else {}
    return {
        title: {
            "before": found.dice(found.reference, label, "dice_before").tolist(),
            **{method: found.dice(method, label).tolist() for method in found.by_method},
        }
        for title, label in {**means, **{title: label for label, title in titles.items()}}.items()
    }
