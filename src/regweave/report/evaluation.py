"""Page of an evaluation: ladder of methods, box plots, measures, worst cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.disk.records import DEMO, INDEX, PAGE_RECORD, PAGES, REPORT, RESULTS, read_record
from regweave.io.disk.text import read_json
from regweave.jobs.runner import judge_pair
from regweave.measures.scores import PairScore, When
from regweave.measures.verdict import Rules, failed, rule_words, tally
from regweave.report import batch
from regweave.report.charts import STYLE, box_plot, interval_plot
from regweave.report.page import asset, render
from regweave.study.comparison import Difference, EvaluationRecord, PairResult

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
RESERVED = ("mean", "withheld")
"""Groups of the charts beside the structures."""
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
    record = read_evaluation(where, rules)
    links = page_links(where, record)
    target = where / REPORT
    back = (f"../{INDEX}", "Demo") if (where.parent / DEMO).is_file() else None
    pages = {target: page_text(record, links, back), where / INDEX: evaluation_list(record, links)}
    for path, text in pages.items():
        with owned_path(path) as part:
            part.write_text(text, encoding="utf-8")
    return target


def read_evaluation(folder: Path, rules: Rules | None = None) -> EvaluationRecord:
    """Read the results of a folder; ``rules`` judge them again."""
    record = read_record(EvaluationRecord, folder / RESULTS)
    if rules is None:
        return record
    verdicts = (
        failed(str(row.error), rules) if row.error is not None or row.scores is None else judge_pair(row.scores, rules)
        for row in record.results
    )
    rows = (row.model_copy(update={"verdict": of}) for row, of in zip(record.results, verdicts, strict=True))
    return record.model_copy(update={"rules": rules, "results": tuple(rows)})


def page_links(folder: Path, record: EvaluationRecord) -> dict[tuple[str, str], str]:
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
    known = {(row.id, row.method) for row in record.results}
    return {key: link for key, link in links.items() if key in known}


def page_text(record: EvaluationRecord, links: Links, back: tuple[str, str] | None = None) -> str:
    """Return the page of an evaluation as HTML."""
    rows, shown = record.results, shown_method(record)
    of = {method: [row for row in rows if row.method == method] for method in methods(record)}
    dice = partial(mean_dice, withheld=record.withheld)
    means = {method: mean([dice(row) for row in own]) for method, own in of.items()}
    titles = _titles(record)
    groups = _groups(record, of, titles)
    ordered = sorted(of, key=lambda method: -_or_least(means[method]))
    against = {row.method: row for row in record.comparison if row.label is None}
    done = [row for row in of[shown] if row.error is None]
    context = {
        "back": back,
        "record": record,
        "ids": {row.id for row in rows},
        "methods": list(of),
        "failures": [row for row in rows if row.error is not None],
        "tally": tally(row.verdict for row in rows),
        "shown": shown,
        "links": links,
        "index": INDEX,
        "ladder": [
            (method, means[method], against.get(method), sum(row.error is not None for row in of[method]))
            for method in ordered
        ],
        "before": mean([dice(row, "dice_before") for row in of[record.reference]]),
        "forest": _forest(record.reference, {m: against[m] for m in ordered if m in against}),
        "groups": {group: [mean(values) for values in of.values()] for group, of in groups.items()},
        "boxes": box_plot(groups, title="Dice by structure and method", x_label="Dice"),
        "differences": [(row, _title(titles, row.label)) for row in record.comparison if row.label is not None],
        "measures": [(title, form) for _, title, form in MEASURES],
        "measured": {method: _measured(own) for method, own in of.items()},
        "worst": [
            (row, score_of(row).counted, dice(row, "dice_before"), dice(row))
            for row in sorted(done, key=lambda r: (not score_of(r).counted, _or_least(dice(r)), r.id))[:N_WORST]
        ],
        "titles": titles,
    }
    return render("evaluation.j2", context, style=STYLE + asset("evaluation.css"))


def evaluation_list(record: EvaluationRecord, links: Links) -> str:
    """Return the list of an evaluation as HTML; ``links`` are addresses by (pair, method)."""
    lines = []
    for row in record.results:
        before, after = (mean_dice(row, when, record.withheld) for when in ("dice_before", "dice_after"))
        folding, seconds = (mean(values_of(row, name)) for name in ("folding_fraction", "seconds"))
        values = [before, after, after - before, mean(values_of(row, "hd95_mm")), 100 * folding, seconds]
        marks = list(dict.fromkeys([row.verdict.word, *(reason.rule for reason in row.verdict.reasons)]))
        link = links.get((row.id, row.method), "")
        lines.append(batch.Line(row.id, row.verdict.word, row.verdict.text, marks, values, row.method, link))
    return batch.list_page(
        lines,
        title="Registrations",
        back=(REPORT, "Evaluation"),
        tally=tally(row.verdict for row in record.results),
        rules=record.rules.name,
        limits={rule_words(rule): record.rules.words(rule) for rule in record.rules.limits},
        methods=methods(record),
        columns=[*batch.DICE, ("HD95 mm", ".2f"), *batch.OTHERS],
    )


def methods(record: EvaluationRecord) -> list[str]:
    """Return the methods in the order they were given."""
    return list(dict.fromkeys(row.method for row in record.results))


def shown_method(record: EvaluationRecord) -> str:
    """Return the method whose worst cases are listed: the last one that uses the masks it was given."""
    guessed = {method.name for method in record.methods if method.predicted_classes}
    names = methods(record)
    return next((name for name in reversed(names) if name not in guessed), names[-1])


def score_of(row: PairResult) -> PairScore:
    """Return state and Dice of each structure; none for a failure."""
    return PairScore() if row.error is not None or row.scores is None else row.scores.score


def mean_dice(
    row: PairResult, when: When = "dice_after", withheld: Sequence[int] = (), *, inside: bool = False
) -> float:
    """Return the mean Dice over the structures that count, without the withheld ones or of these; NaN for a failure."""
    return score_of(row).among(withheld, inside=inside).mean(when)


def values_of(row: PairResult, name: str) -> list[float]:
    """Return a number of the pair, or of each of its structures, without those that are missing."""
    return [] if row.scores is None else [v for v in row.scores.values(name) if not math.isnan(v)]


def mean(values: Sequence[float]) -> float:
    """Return the mean of the numbers there are, NaN for none."""
    kept = [v for v in values if not math.isnan(v)]
    return sum(kept) / len(kept) if kept else math.nan


def _titles(record: EvaluationRecord) -> dict[int, str]:
    """Return what structures are called on pages: by name, and by number too where several share a name."""
    known = {s.label: s.name for row in record.results for s in score_of(row).structures}
    names = list(known.values())
    alone = {name for name in names if names.count(name) == 1 and name not in RESERVED}
    return {
        label: name if name in alone or name == str(label) else f"{label} {name}"
        for label, name in sorted(known.items())
    }


def _title(titles: Mapping[int, str], label: str) -> str:
    return titles.get(int(label), label) if label.lstrip("-").isdecimal() else label


def _groups(
    record: EvaluationRecord, of: Mapping[str, Sequence[PairResult]], titles: Mapping[int, str]
) -> dict[str, dict[str, list[float]]]:
    """Return the Dice of each pair by structure, and by ``before`` or the method."""

    def by_method(dice: Any) -> dict[str, list[float]]:
        before = [dice(row, "dice_before") for row in of[record.reference]]
        return {"before": before} | {method: [dice(row, "dice_after") for row in rows] for method, rows in of.items()}

    def of_structure(label: int, row: PairResult, when: When) -> float:
        """Return the Dice of a structure: 0 where warping lost it, NaN where there is none."""
        return next((getattr(s, when) for s in score_of(row).structures if s.label == label), math.nan)

    groups = {title: by_method(partial(of_structure, label)) for label, title in titles.items()}
    if len(titles) < 2:
        return groups
    means = {"mean": by_method(partial(mean_dice, withheld=record.withheld))}
    if record.withheld:
        means["withheld"] = by_method(partial(mean_dice, withheld=record.withheld, inside=True))
    return means | groups


def _forest(reference: str, against: Mapping[str, Difference]) -> Markup:
    if not against:
        return Markup()
    rows = [(m, _number(d.mean), _number(d.low), _number(d.high)) for m, d in against.items()]
    title = f"Difference of Dice from {reference}, 95 % interval by patient"
    return interval_plot(rows, title=title, x_label=f"Dice, method − {reference}")


def _measured(rows: Sequence[PairResult]) -> dict[str, Any]:
    """Return the means of the measures of a method, and how many pairs fold."""
    values = {name: [v for row in rows for v in values_of(row, name)] for name, _, _ in MEASURES}
    return {
        "means": [mean(of) * (100 if name in PERCENT else 1) for name, of in values.items()],
        "folded": sum(v > 0 for v in values["folding_fraction"]),
        "smoothness": next((v for row in rows for v in values_of(row, "smoothness")), None),
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value
