"""Box plots and bar charts in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from markupsafe import Markup

from regweave.report.charts.axes import LEFT, PLOT_HEIGHT, RIGHT, TOP, WIDTH, nothing, y_axis
from regweave.report.charts.svg import Ink, Scale, drawing, hover, number, scale, shorten, tag, width_of, words

SLOTS, GROUP_GAP = (30.0, 26.0, 22.0), 26.0
"""Pixels for one item, the widest first, and between groups."""
LABEL_ROOM = 160.0
"""Most pixels that the name below a box or a bar may take."""
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
    groups: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, y_label: str, standalone: bool = False
) -> Markup:
    """Draw a box for each method in each group; the mean is a square and the median a bar, as in the paper's Fig. 1.

    Parameters
    ----------
    groups : mapping of mappings
        By group, an organ for example, and by method the values.
    title, y_label : str
        Words.
    standalone : bool
        For a file of its own.

    Examples
    --------
    >>> box_plot({"liver": {"sad": [0.8, 0.9]}}, title="Dice", y_label="Dice").count('class="median"')
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
    return _grouped(items, values, partial(_draw_box, ink=ink), title=title, y_label=y_label, about=about, ink=ink)


def bar_chart(
    groups: Mapping[str, Mapping[str, tuple[float, float]]], *, title: str, y_label: str, standalone: bool = False
) -> Markup:
    """Draw a bar for each member in each group, with a whisker of one spread to each side.

    Parameters
    ----------
    groups : mapping of mappings
        By group, a class for example, and by member (value, spread); a spread of NaN or 0 has no whisker.
    title, y_label, standalone
        As in `box_plot`.
    """
    ink = Ink(standalone)
    pairs = [pair for members in groups.values() for pair in members.values()]
    spreads = [(v, s if math.isfinite(s) else 0.0) for v, s in pairs]
    values = [0.0, *(v - s for v, s in spreads), *(v + s for v, s in spreads)]
    items = {g: {m: (pair, _bar_text(*pair)) for m, pair in members.items()} for g, members in groups.items()}
    about = "; ".join(f"{g}, {m}: {text}" for g, members in items.items() for m, (_, text) in members.items())
    return _grouped(items, values, partial(_draw_bar, ink=ink), title=title, y_label=y_label, about=about, ink=ink)


@dataclass(frozen=True)
class _Layout:
    """Groups in rows, and the width of an item: the widest one that does not cost a row."""

    rows: list[list[str]]
    sizes: Mapping[str, int]
    slot: float

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> _Layout:
        tried = [cls._broken(sizes, slot) for slot in SLOTS]
        return min(tried, key=lambda layout: len(layout.rows))

    @classmethod
    def _broken(cls, sizes: Mapping[str, int], slot: float) -> _Layout:
        """Break groups into rows that fit; a group that is wider than a row has one of its own."""
        layout, used = cls([], sizes, slot), math.inf
        for name in sizes:
            if used + layout.width(name) > WIDTH - LEFT - RIGHT:
                layout.rows.append([])
                used = 0.0
            layout.rows[-1].append(name)
            used += layout.width(name)
        return layout

    def width(self, *groups: str) -> float:
        """Pixels that groups take."""
        return sum(self.slot * max(1, self.sizes[g]) + GROUP_GAP for g in groups)


def _grouped(
    items: Mapping[str, Mapping[str, tuple[object, str]]],
    values: Sequence[float],
    draw: Callable[..., str],
    *,
    title: str,
    y_label: str,
    about: str,
    ink: Ink,
) -> Markup:
    """Lay groups of items side by side, in as many rows as they need; every row has the same scale."""
    names = list(dict.fromkeys(name for group in items.values() for name in group))
    layout = _Layout.of({g: len(group) for g, group in items.items()})
    label_room = min(LABEL_ROOM, max([20.0, *(width_of(n) for n in names)])) + 16
    row_height = PLOT_HEIGHT + label_room + 40
    parts = [words(title, LEFT, 18, ink, strong=True)]
    for r, row in enumerate(layout.rows):
        top = TOP + r * row_height
        up = scale(values, top + PLOT_HEIGHT, top)
        parts.append(y_axis(up, y_label, LEFT, LEFT + max(120.0, layout.width(*row)), ink))
        x = LEFT
        for group in row:
            parts.append(_group_title(group, x, layout.width(group), top + PLOT_HEIGHT + label_room + 18, ink))
            for i, (name, (value, text)) in enumerate(items[group].items()):
                centre = x + GROUP_GAP / 2 + layout.slot * (i + 0.5)
                mark = draw(value, centre, layout.slot * 0.33, names.index(name), up) + hover(
                    f"{group}, {name}: {text}"
                )
                parts.append(tag("g", mark, class_="item", data_group=group, data_name=name))
                parts.append(_below(name, centre, top + PLOT_HEIGHT + 10, ink))
            x += layout.width(group)
    if not layout.rows:
        parts.append(nothing(LEFT + 60, TOP + 20, ink))
    widest = max([240.0, *(layout.width(*row) for row in layout.rows)])
    width = max(LEFT + widest + RIGHT, LEFT + width_of(title) * 1.15)
    height = TOP + len(layout.rows) * row_height if layout.rows else TOP + 40
    return drawing(parts, width, height, title=title, about=about, ink=ink)


def _group_title(name: str, x: float, width: float, y: float, ink: Ink) -> str:
    return words(shorten(name, width), x + width / 2, y, ink, strong=True, text_anchor="middle")


def _below(name: str, x: float, y: float, ink: Ink) -> str:
    """Write a name upwards below an item."""
    text = shorten(name, LABEL_ROOM)
    turned = f"rotate(-90 {number(x)} {number(y)})"
    return words(text, x, y, ink, "soft", text_anchor="end", dominant_baseline="central", transform=turned)


def _draw_box(box: Box | None, x: float, half: float, colour: int, up: Scale, *, ink: Ink) -> str:
    if box is None:
        return words("×", x, up.start - 6, ink, "soft", text_anchor="middle")
    stroke = ink.series(colour)
    parts = [
        tag("line", class_="whisker", x1=x, x2=x, y1=up(a), y2=up(b), stroke=stroke)
        for a, b in ((box.low, box.lower), (box.upper, box.high))
    ]
    parts += [
        tag("line", x1=x - half / 2, x2=x + half / 2, y1=up(v), y2=up(v), stroke=stroke) for v in (box.low, box.high)
    ]
    parts.append(
        tag(
            "rect", class_="box", x=x - half, y=up(box.upper), width=2 * half, height=up(box.lower) - up(box.upper),
            fill=stroke, fill_opacity=0.16, stroke=stroke,
        )
    )  # fmt: skip
    median = up(box.median)
    parts.append(
        tag("line", class_="median", x1=x - half, x2=x + half, y1=median, y2=median, stroke=ink("mark"), stroke_width=2)
    )
    parts.append(tag("rect", class_="mean", x=x - 3, y=up(box.mean) - 3, width=6.0, height=6.0, fill=ink("mark")))
    parts += [tag("circle", class_="outlier", cx=x, cy=up(v), r=2.2, fill="none", stroke=stroke) for v in box.outliers]
    return "".join(parts)


def _bar_text(value: float, spread: float) -> str:
    return f"{value:.4g} ± {spread:.2g}" if math.isfinite(spread) and spread > 0 else f"{value:.4g}"


def _draw_bar(pair: tuple[float, float], x: float, half: float, colour: int, up: Scale, *, ink: Ink) -> str:
    value, spread = pair
    if not math.isfinite(value):
        return words("×", x, up.start - 6, ink, "soft", text_anchor="middle")
    y, zero = up(value), up(0.0)
    fill = ink.series(colour)
    bar = tag(
        "rect", class_="bar", x=x - half, y=min(y, zero), width=2 * half, height=abs(zero - y), fill=fill,
        fill_opacity=0.75, stroke=fill,
    )  # fmt: skip
    if not (math.isfinite(spread) and spread > 0):
        return bar
    ends = [up(value - spread), up(value + spread)]
    stem = tag("line", class_="spread", x1=x, x2=x, y1=ends[0], y2=ends[1], stroke=ink("ink"))
    return bar + stem + "".join(tag("line", x1=x - 4, x2=x + 4, y1=e, y2=e, stroke=ink("ink")) for e in ends)
