"""Box plots and bar charts in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from markupsafe import Markup

from regweave.report.charts.axes import LEFT, TOP, WIDTH, nothing, x_axis
from regweave.report.charts.svg import Ink, Scale, drawing, hover, scale, shorten, tag, width_of, words

LINE, GROUP_GAP, COLUMN_GAP, END = 18.0, 8.0, 28.0, 16.0
"""Pixels of one item, between groups, between two columns, and right of a scale."""
LABEL_ROOM = 160.0
"""Most pixels that the name beside a box or a bar may take."""
MOST_ROWS = 24
"""More lines than this are drawn in two columns."""
WHISKER = 1.5
"""Whiskers end at the last value within this many ranges of the quartiles, as Tukey drew them."""


@dataclass(frozen=True)
class Box:
    """Numbers of one box: quartiles, ends of the whiskers, mean, values beyond the whiskers."""

    n: int
    low: float
    lower: float
    median: float
    upper: float
    high: float
    mean: float
    outliers: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Box | None:
        """Summarise the finite values; None where there is none."""
        x = np.array([v for v in values if v is not None and math.isfinite(v)], dtype=np.float64)
        if not x.size:
            return None
        lower, median, upper = (float(q) for q in np.percentile(x, (25, 50, 75)))
        reach = WHISKER * (upper - lower)
        inside = x[(x >= lower - reach) & (x <= upper + reach)]
        outliers = tuple(float(v) for v in np.sort(x) if v < lower - reach or v > upper + reach)
        low, high = float(inside.min()), float(inside.max())
        return cls(len(x), low, lower, median, upper, high, float(x.mean()), outliers)

    def text(self) -> str:
        """Say it in words."""
        spread = f"quartiles {self.lower:.4g} to {self.upper:.4g}"
        return f"mean {self.mean:.4g}, median {self.median:.4g}, {spread}, n {self.n}"


def box_plot(
    groups: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, x_label: str, standalone: bool = False
) -> Markup:
    """Draw a box for each method in each group; the mean is a square and the median a bar, as in the paper's Fig. 1.

    Parameters
    ----------
    groups : mapping of mappings
        By group, an organ for example, and by method the values.
    title, x_label : str
        Words.
    standalone : bool
        For a file of its own.

    Examples
    --------
    >>> box_plot({"liver": {"sad": [0.8, 0.9]}}, title="Dice", x_label="Dice").count('class="median"')
    1
    """
    ink = Ink(standalone)
    boxes = {g: {m: Box.of(v) for m, v in methods.items()} for g, methods in groups.items()}
    shown = [box for methods in boxes.values() for box in methods.values() if box is not None]
    values = list(chain.from_iterable((b.low, b.high, b.mean, *b.outliers) for b in shown))
    about = "; ".join(
        f"{g}, {m}: {'no value' if box is None else box.text()}" for g, of in boxes.items() for m, box in of.items()
    )
    items = {g: {m: (box, box.text() if box else "no value") for m, box in of.items()} for g, of in boxes.items()}
    return _grouped(items, values, partial(_draw_box, ink=ink), title=title, label=x_label, about=about, ink=ink)


def bar_chart(
    groups: Mapping[str, Mapping[str, tuple[float, float]]], *, title: str, x_label: str, standalone: bool = False
) -> Markup:
    """Draw a bar for each member in each group, with a whisker of one spread to each side.

    Parameters
    ----------
    groups : mapping of mappings
        By group, a class for example, and by member (value, spread); a spread of NaN or 0 has no whisker.
    title, x_label, standalone
        As in `box_plot`.
    """
    ink = Ink(standalone)
    pairs = [pair for members in groups.values() for pair in members.values()]
    spreads = [(v, s if math.isfinite(s) else 0.0) for v, s in pairs]
    values = [0.0, *(v - s for v, s in spreads), *(v + s for v, s in spreads)]
    items = {g: {m: (pair, _bar_text(*pair)) for m, pair in members.items()} for g, members in groups.items()}
    about = "; ".join(f"{g}, {m}: {text}" for g, members in items.items() for m, (_, text) in members.items())
    return _grouped(items, values, partial(_draw_bar, ink=ink), title=title, label=x_label, about=about, ink=ink)


@dataclass(frozen=True)
class _Column:
    """Groups one below the other, their names and scale at given places."""

    groups: list[str]
    room: float
    across: Scale

    @property
    def left(self) -> float:
        """Where names end and the plot begins."""
        return self.across.start


def _columns(sizes: Mapping[str, int], names: Sequence[str], values: Sequence[float]) -> list[_Column]:
    """Put the groups into one column, or into two of about the same height where they are many."""
    many = 2 if sum(sizes.values()) + len(sizes) > MOST_ROWS and len(sizes) > 1 else 1
    room = min(LABEL_ROOM, max([40.0, *(width_of(name) for name in names)])) + 10
    width = (WIDTH - (many - 1) * COLUMN_GAP) / many
    broken, half = [list(sizes)], (sum(sizes.values()) + len(sizes)) / 2
    if many == 2:
        ends = np.cumsum([size + 1 for size in sizes.values()])
        first = max(1, int(np.argmin(np.abs(ends - half))) + 1)
        broken = [list(sizes)[:first], list(sizes)[first:]]
    starts = [n * (width + COLUMN_GAP) for n in range(many)]
    return [
        _Column(groups, room, scale(values, x + room, x + width - END))
        for groups, x in zip(broken, starts, strict=True)
    ]


def _grouped(
    items: Mapping[str, Mapping[str, tuple[object, str]]],
    values: Sequence[float],
    draw: Callable[..., str],
    *,
    title: str,
    label: str,
    about: str,
    ink: Ink,
) -> Markup:
    """Lay groups of items one below the other, a line for each item with its name; all have the same scale."""
    names = list(dict.fromkeys(name for group in items.values() for name in group))
    columns = _columns({g: max(1, len(group)) for g, group in items.items()}, names, values)
    parts, lowest = [words(title, 8, 18, ink, strong=True)], TOP
    for column in columns:
        y, marks = TOP, []
        for group in column.groups:
            marks.append(_group_title(group, column, y + LINE / 2, ink))
            y += LINE
            for name, (value, text) in items[group].items():
                row = _name(name, column, y + LINE / 2, ink)
                row += draw(value, y + LINE / 2, LINE * 0.3, names.index(name), column.across)
                marks.append(
                    tag("g", row + hover(f"{group}, {name}: {text}"), class_="item", data_group=group, data_name=name)
                )
                y += LINE
            y += GROUP_GAP
        if column.groups:
            parts += [_rules(column.across, TOP, y, ink), x_axis(column.across, y, label, ink), *marks]
        lowest = max(lowest, y)
    if not items:
        parts.append(nothing(LEFT + 60, TOP + 20, ink))
    return drawing(parts, WIDTH, lowest + 48, title=title, about=about, ink=ink)


def _rules(across: Scale, top: float, bottom: float, ink: Ink) -> str:
    lines = [
        tag("line", x1=across(t), x2=across(t), y1=top, y2=bottom, stroke=ink("soft" if t == 0 else "rule"))
        for t in across.ticks
    ]
    return tag("g", "".join(lines), class_="rules")


def _group_title(name: str, column: _Column, y: float, ink: Ink) -> str:
    text = shorten(name, column.across.end - column.left + column.room)
    return words(text, column.left - column.room + 8, y, ink, strong=True, dominant_baseline="central")


def _name(name: str, column: _Column, y: float, ink: Ink) -> str:
    text = shorten(name, LABEL_ROOM)
    return words(text, column.left - 8, y, ink, "soft", text_anchor="end", dominant_baseline="central")


def _draw_box(box: Box | None, y: float, half: float, colour: int, across: Scale, *, ink: Ink) -> str:
    if box is None:
        return words("×", across.start + 8, y, ink, "soft", text_anchor="middle", dominant_baseline="central")
    stroke = ink.series(colour)
    parts = [
        tag("line", class_="whisker", x1=across(a), x2=across(b), y1=y, y2=y, stroke=stroke)
        for a, b in ((box.low, box.lower), (box.upper, box.high))
    ]
    parts += [
        tag("line", x1=across(v), x2=across(v), y1=y - half / 2, y2=y + half / 2, stroke=stroke)
        for v in (box.low, box.high)
    ]
    parts.append(
        tag(
            "rect", class_="box", x=across(box.lower), y=y - half, width=across(box.upper) - across(box.lower),
            height=2 * half, fill=stroke, fill_opacity=0.16, stroke=stroke,
        )
    )  # fmt: skip
    x = across(box.median)
    parts.append(tag("line", class_="median", x1=x, x2=x, y1=y - half, y2=y + half, stroke=ink("mark"), stroke_width=2))
    parts.append(tag("rect", class_="mean", x=across(box.mean) - 3, y=y - 3, width=6.0, height=6.0, fill=ink("mark")))
    parts += [
        tag("circle", class_="outlier", cx=across(v), cy=y, r=2.2, fill="none", stroke=stroke) for v in box.outliers
    ]
    return "".join(parts)


def _bar_text(value: float, spread: float) -> str:
    return f"{value:.4g} ± {spread:.2g}" if math.isfinite(spread) and spread > 0 else f"{value:.4g}"


def _draw_bar(pair: tuple[float, float], y: float, half: float, colour: int, across: Scale, *, ink: Ink) -> str:
    value, spread = pair
    if not math.isfinite(value):
        return words("×", across.start + 8, y, ink, "soft", text_anchor="middle", dominant_baseline="central")
    x, zero = across(value), across(0.0)
    fill = ink.series(colour)
    bar = tag(
        "rect", class_="bar", x=min(x, zero), y=y - half, width=abs(zero - x), height=2 * half, fill=fill,
        fill_opacity=0.75, stroke=fill,
    )  # fmt: skip
    if not (math.isfinite(spread) and spread > 0):
        return bar
    ends = [across(value - spread), across(value + spread)]
    stem = tag("line", class_="spread", x1=ends[0], x2=ends[1], y1=y, y2=y, stroke=ink("ink"))
    return bar + stem + "".join(tag("line", x1=e, x2=e, y1=y - 4, y2=y + 4, stroke=ink("ink")) for e in ends)
