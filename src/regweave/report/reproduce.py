"""Page of a reproduction: the paper's table, figures and pictures beside ours, all from JSON files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.report import reproduce_tables as tables
from regweave.report.charts import STYLE, bar_chart, box_plot, interval_plot
from regweave.report.contents import read_json
from regweave.report.page import document, escape, table
from regweave.report.png import data_address
from regweave.report.records import Part, checked
from regweave.report.reproduce_pictures import difference, overlay, sample
from regweave.report.reproduce_records import PicturesRecord, ReproduceRecord
from regweave.report.reproduce_tables import Experiment, Table

TITLE = "Reproduction of Ferrante et al. 2017"
PAPER = (
    "Ferrante, Dokania, Marini, Paragios: Deformable registration through learning of context-specific metric "
    "aggregation, 2017."
)
QUICK = (
    "Fast look (--quick): one fold, one draw of two training pairs, at most four test pairs, no gates, a small search. "
    "Far fewer pairs than the protocol asks for: these figures show that everything runs, they are no evidence."
)
CSS = """
.row { display: flex; flex-wrap: wrap; gap: 10px; } .row figure { margin: 0; max-width: 190px; }
.row img { width: 100%; height: auto; display: block; background: #000; image-rendering: auto; }
figcaption { font-size: 0.85rem; color: var(--quiet); padding-top: 2px; }
.notice { border-left: 4px solid var(--warn); padding: 6px 12px; background: var(--soft); }
ul { max-width: 100ch; } section > .wide { margin: 18px 0; }
.row { margin-bottom: 8px; }
"""


def write_page(folder: str | Path) -> Path:
    """Write report.html, summary.md and figures from the JSON files of a run; return where the page is.

    Parameters
    ----------
    folder : path
        Output folder of `regweave.study.reproduce.run.reproduce`.

    Raises
    ------
    RegweaveError
        E101, E102, E178 where a file is missing, damaged, or not what a reproduction writes.
    """
    folder = Path(folder)
    content = _read(ReproduceRecord, folder / "reproduce.json")
    pictures = _read(PicturesRecord, folder / "pictures.json")
    if lost := [e["name"] for e in content["experiments"] if e["name"] not in pictures]:
        raise RegweaveError(
            "E178", f"'{folder / 'pictures.json'}' has no pictures of {', '.join(lost)}", "run the reproduction again"
        )
    figures = Figures(folder / "figures")
    body = page_body(content, pictures, figures)
    with owned_path(folder / "report.html") as part:
        part.write_text(document(TITLE, body, style=STYLE + CSS), encoding="utf-8")
    with owned_path(folder / "summary.md") as part:
        part.write_text(summary_text(content), encoding="utf-8")
    return folder / "report.html"


def _read(kind: type[Part], path: Path) -> dict[str, Any]:
    return checked(kind, read_json(path), path, defaults=False)


class Figures:
    """Figures of a page, each also written to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def chart(self, name: str, draw: Callable[..., str], content: Any, **words: str) -> str:
        """Draw a chart twice: as a file with its own colours, and for the page."""
        with owned_path(self.folder / f"{name}.svg") as part:
            part.write_text(draw(content, standalone=True, **words), encoding="utf-8")
        return f'<div class="wide">{draw(content, **words)}</div>'

    def picture(self, name: str, png: bytes, caption: str) -> str:
        """Keep a picture and return it with its caption."""
        with owned_path(self.folder / f"{name}.png") as part:
            part.write_bytes(png)
        text = escape(caption)
        return f'<figure><img src="{data_address(png)}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def page_body(content: Mapping[str, Any], pictures: Mapping[str, Any], figures: Figures) -> str:
    """Put the experiments one after the other."""
    parts = [f"<p>{escape(PAPER)} Settings: <code>{escape(content['settings']['name'])}</code>.</p>"]
    if content["quick"]:
        parts.append(f'<p class="notice">{escape(QUICK)}</p>')
    for experiment in content["experiments"]:
        name = experiment["name"]
        parts += _experiment(experiment, content["timing"].get(name, {}), pictures[name], figures)
    return "\n".join(parts)


def _experiment(
    experiment: Experiment, timing: Mapping[str, float], pictures: Mapping[str, Any], figures: Figures
) -> list[str]:
    name = experiment["name"]
    truth = tables.truth_table(experiment)
    return [
        f'<section id="{escape(name)}"><h2>{escape(experiment["title"])}</h2>',
        f"<p>{escape(protocol_text(experiment))}</p>",
        "<h3>Where this differs from the paper</h3>",
        "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in experiment["differences"]) + "</ul>",
        _html(tables.paper_table(experiment)),
        figures.chart(
            f"{name}-dice", box_plot, _boxes(experiment, list(tables.PAPER_METHODS.values())),
            title="Dice after registration (the paper's Figure 1): square mean, bar median", y_label="Dice",
        ),
        _html(tables.ladder_table(experiment)),
        figures.chart(
            f"{name}-ladder", interval_plot, _intervals(experiment),
            title="Against the uniform mix: difference of mean Dice, 95 % interval by patient", x_label="Dice",
        ),
        _html(tables.gain_table(experiment)),
        "" if truth is None else _html(truth),
        figures.chart(
            f"{name}-weights", bar_chart, learned_weights(experiment, "model:mw"),
            title="Weights that MW learned (the paper's Figure 2): mean, and spread over folds and draws",
            y_label="share of the class",
        ),
        *_pictures(experiment, pictures, figures),
        _html(tables.cost_table(experiment, timing)),
        f'<p class="quiet">{escape(experiment["source"])}</p></section>',
    ]  # fmt: skip


def protocol_text(experiment: Experiment) -> str:
    """Say in one sentence how many of everything there were."""
    splits = experiment["splits"]
    train, test = ([len(s[key]) for s in splits] for key in ("train", "test"))
    folds, repetitions = len({s["fold"] for s in splits}), max(s["repetition"] for s in splits)
    return (
        f"{len(experiment['cases'])} scans. {_count(folds, 'fold')}, {_count(repetitions, 'repetition')}; "
        f"{_span(train)} training and {_span(test)} test pairs in each; {sum(test)} tests of every method."
    )


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _span(numbers: list[int]) -> str:
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)}–{max(numbers)}"


def _html(content: Table) -> str:
    numeric = range(content.n_words, len(content.header))
    return table(content.header, content.rows, numeric=numeric, caption=content.title)


def _boxes(experiment: Experiment, methods: list[str]) -> dict[str, dict[str, list[float]]]:
    shown = [m for m in methods if m in experiment["methods"]]
    return {
        organ: {tables.short(m): tables.dice(experiment, m, label) for m in shown}
        for label, organ in experiment["classes"].items()
    }


def _intervals(experiment: Experiment) -> list[tuple[str, float, float, float]]:
    rows = {row["method"]: row for row in experiment["comparison"] if row["label"] is None}
    out = []
    for m in tables.ladder(experiment):
        if m in rows:
            value, low, high = (float("nan") if rows[m][k] is None else rows[m][k] for k in ("mean", "low", "high"))
            out.append((tables.words(m), value, low, high))
    return out


def learned_weights(experiment: Experiment, method: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Share of each member in each class, mean and standard deviation over the splits."""
    runs = [r["weights"] for r in experiment["runs"] if r["method"] == method]
    shares = np.stack([np.array(w["matrix"]) / np.abs(w["matrix"]).sum(axis=0) for w in runs])
    spread = shares.std(axis=0, ddof=1) if len(runs) > 1 else np.full(shares.shape[1:], np.nan)
    out = {}
    for k, c in enumerate(runs[0]["classes"]):
        organ = experiment["classes"].get(str(c), "background")
        members = enumerate(runs[0]["members"])
        out[organ] = {m.upper(): (float(shares[:, i, k].mean()), float(spread[i, k])) for i, m in members}
    return out


def _pictures(experiment: Experiment, pictures: Mapping[str, Any], figures: Figures) -> list[str]:
    """One row for each view: before, MW, then the single metrics, as in the paper."""
    draw, what = (overlay, "target red, source blue before and green after registration")
    if not experiment["overlay"]:
        draw, what = (difference, "source minus target: blue darker, green equal, red brighter")
    name, shown = experiment["name"], pictures["shown"]
    parts = [f"<h3>Pair {escape(pictures['pair'])}: {what}</h3>"]
    columns = [m for m in ("model:mw", *tables.PAPER_METHODS.values()) if m in shown]
    columns = list(dict.fromkeys(columns))
    for view in next(iter(shown.values()), {}):
        first = shown[columns[0]][view]
        cells = [figures.picture(f"{name}-{view}-before", draw(first, "before"), f"{view}, before")]
        for m in columns:
            label = tables.short(m)
            cells.append(
                figures.picture(f"{name}-{view}-{label.lower()}", draw(shown[m][view], "after"), f"{view}, {label}")
            )
        parts.append(f'<div class="row">{"".join(cells)}</div>')
    samples = [figures.picture(f"{name}-sample-{s}", sample(c), s) for s, c in pictures["samples"].items()]
    return [*parts, "<h3>Sample slices</h3>", f'<div class="row">{"".join(samples)}</div>']


def summary_text(content: Mapping[str, Any]) -> str:
    """Write the same tables in Markdown."""
    parts = [f"# {TITLE}", f"{PAPER} Settings: `{content['settings']['name']}`, seed {content['seed']}."]
    if content["quick"]:
        parts.append(f"**{QUICK}**")
    for experiment in content["experiments"]:
        truth = tables.truth_table(experiment)
        parts += [
            f"## {experiment['title']}",
            protocol_text(experiment),
            "Where this differs from the paper:\n\n" + "\n".join(f"- {text}" for text in experiment["differences"]),
            tables.paper_table(experiment).markdown(),
            tables.ladder_table(experiment).markdown(),
            tables.gain_table(experiment).markdown(),
            *([] if truth is None else [truth.markdown()]),
            tables.cost_table(experiment, content["timing"].get(experiment["name"], {})).markdown(),
            experiment["source"],
        ]
    return "\n\n".join(parts) + "\n"
