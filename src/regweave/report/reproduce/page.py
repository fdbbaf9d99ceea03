"""Page of a reproduction: the paper's table, figures and pictures beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.records.folders import REPORT
from regweave.io.records.schema import read_record
from regweave.report.charts import STYLE, bar_chart, box_plot, interval_plot
from regweave.report.page import asset, environment, render
from regweave.report.reproduce import tables
from regweave.report.reproduce.pictures import difference, overlay, sample
from regweave.report.reproduce.records import ExperimentRecord, Looks, PicturesRecord, ReproduceRecord
from regweave.report.viewer.png import data_address


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
    record = read_record(ReproduceRecord, folder / "reproduce.json")
    pictures = read_record(PicturesRecord, folder / "pictures.json").looks
    if lost := [e.name for e in record.experiments if e.name not in pictures]:
        raise RegweaveError(
            "E178", f"'{folder / 'pictures.json'}' has no pictures of {', '.join(lost)}", "run the reproduction again"
        )
    figures = Figures(folder / "figures")
    context = {
        "record": record,
        "experiments": [
            {**_told(e, record), **_drawn(e, figures), **_pictures(e, pictures[e.name], figures)}
            for e in record.experiments
        ],
    }
    with owned_path(folder / REPORT) as part:
        part.write_text(render("reproduce.j2", context, style=STYLE + asset("reproduce.css")), encoding="utf-8")
    with owned_path(folder / "summary.md") as part:
        part.write_text(summary_text(record), encoding="utf-8")
    return folder / REPORT


def summary_text(record: ReproduceRecord) -> str:
    """Write the same tables in Markdown."""
    context = {"record": record, "experiments": [_told(e, record) for e in record.experiments]}
    return environment().get_template("reproduce.md.j2").render(context)


@dataclass(frozen=True)
class Figures:
    """Folder of figures: each is a file of its own besides the page."""

    folder: Path

    def chart(self, name: str, draw: Callable[..., Markup], content: Any, **words: str) -> Markup:
        """Draw a chart twice: as a file with its own colours, and for the page."""
        self._write(f"{name}.svg", draw(content, standalone=True, **words).encode())
        return draw(content, **words)

    def picture(self, name: str, png: bytes, caption: str) -> tuple[str, str]:
        """Keep a picture and return its address and caption."""
        self._write(f"{name}.png", png)
        return data_address(png), caption

    def _write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with owned_path(self.folder / name) as part:
            part.write_bytes(content)


def _told(e: ExperimentRecord, record: ReproduceRecord) -> dict[str, Any]:
    """Return the numbers of an experiment and its tables, which the page and the summary show alike."""
    train, test = ([len(getattr(s, key)) for s in e.splits] for key in ("train", "test"))
    return {
        "e": e,
        "folds": len({s.fold for s in e.splits}),
        "repetitions": max(s.repetition for s in e.splits),
        "train": train,
        "test": test,
        "paper": tables.paper_table(e),
        "ladder": tables.ladder_table(e),
        "gain": tables.gain_table(e),
        "truth": tables.truth_table(e),
        "cost": tables.cost_table(e, record.timing.get(e.name, {})),
    }


def _drawn(e: ExperimentRecord, figures: Figures) -> dict[str, Any]:
    return {
        "boxes": figures.chart(
            f"{e.name}-dice", box_plot, boxes(e),
            title="Dice after registration (the paper's Figure 1): square mean, bar median", x_label="Dice",
        ),
        "forest": figures.chart(
            f"{e.name}-ladder", interval_plot, _intervals(e),
            title="Against the uniform mix: difference of mean Dice, 95 % interval by patient", x_label="Dice",
        ),
        "weights": figures.chart(
            f"{e.name}-weights", bar_chart, learned_weights(e, "model:mw"),
            title="Weights that MW learned (the paper's Figure 2): mean, and spread over folds and draws",
            x_label="share of the class",
        ),
    }  # fmt: skip


def boxes(e: ExperimentRecord) -> dict[str, dict[str, list[float]]]:
    """Dice of the paper's methods on all test pairs, organ by organ."""
    shown = [m for m in tables.PAPER_METHODS.values() if m in e.methods]
    return {organ: {tables.short(m): tables.dice(e, m, label) for m in shown} for label, organ in e.classes.items()}


def _intervals(e: ExperimentRecord) -> list[tuple[str, float, float, float]]:
    rows = {row.method: row for row in e.comparison if row.label is None}
    out = []
    for m in tables.ladder(e):
        if row := rows.get(m):
            value, low, high = (float("nan") if v is None else v for v in (row.mean, row.low, row.high))
            out.append((tables.words(m), value, low, high))
    return out


def learned_weights(e: ExperimentRecord, method: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Share of each member in each class, mean and standard deviation over the splits."""
    runs = [run.weights for run in e.runs if run.method == method and run.weights is not None]
    shares = np.stack([np.array(w.matrix) / np.abs(w.matrix).sum(axis=0) for w in runs])
    spread = shares.std(axis=0, ddof=1) if len(runs) > 1 else np.full(shares.shape[1:], np.nan)
    return {
        e.classes.get(str(c), "background"): {
            m.upper(): (float(shares[:, i, k].mean()), float(spread[i, k])) for i, m in enumerate(runs[0].members)
        }
        for k, c in enumerate(runs[0].classes)
    }


def _pictures(e: ExperimentRecord, looks: Looks, figures: Figures) -> Mapping[str, Any]:
    """Return one row for each view: before, MW, then the single metrics, as in the paper; and the samples."""
    draw = overlay if e.overlay else difference
    columns = [m for m in dict.fromkeys(("model:mw", *tables.PAPER_METHODS.values())) if m in looks.shown]
    rows = []
    for view in next(iter(looks.shown.values()), {}):
        first = draw(looks.shown[columns[0]][view], "before")
        cells = [figures.picture(f"{e.name}-{view}-before", first, f"{view}, before")]
        for m in columns:
            label, after = tables.short(m), draw(looks.shown[m][view], "after")
            cells.append(figures.picture(f"{e.name}-{view}-{label.lower()}", after, f"{view}, {label}"))
        rows.append(cells)
    samples = [figures.picture(f"{e.name}-sample-{s}", sample(c), s) for s, c in looks.samples.items()]
    return {"pair": looks.pair, "rows": rows, "samples": samples}
