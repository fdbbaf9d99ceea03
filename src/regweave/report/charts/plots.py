"""The kinds of charts: lines, intervals, boxes and bars in groups, strips, steps of a registration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
from markupsafe import Markup

from regweave.report.charts.svg import (
    DASHES,
    WIDTH,
    Plot,
    Scale,
    hover,
    number,
    plain,
    scale,
    shorten,
    tag,
    width_of,
)  # fmt: skip

LEFT, RIGHT, TOP = 72.0, 14.0, 34.0
PLOT_HEIGHT = 210.0
MARKS_UP_TO = 40
"""Points of a longer line have no dots."""
LINE, GROUP_GAP, COLUMN_GAP, END = 18.0, 8.0, 28.0, 16.0
"""Pixels of one item, between groups, between two columns, and right of a scale."""
LABEL_ROOM = 160.0
"""Largest width of the name beside a box or a bar, in pixels."""
MOST_ROWS = 24
"""More lines than this are drawn in two columns."""
WHISKER = 1.5
"""Whiskers end at the last value within this many ranges of the quartiles (Tukey)."""
STRIP, NAMED = 54.0, 3
"""Pixels of a strip, and number of outliers with a name beside the dot."""


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    standalone: bool = False,
    log_y: bool = False,
    width: float = WIDTH,
) -> Markup:
    """Draw the (x, y) points of each series joined by a line; colour and dash differ between series.

    With ``log_y`` the vertical scale has powers of ten, and values that are not above zero are left out.

    Examples
    --------
    >>> line_chart({"a": [(0, 1.0), (1, 0.5)]}, title="Loss", x_label="step", y_label="loss").count("<polyline")
    1
    """
    plot = Plot(title, standalone=standalone, left=LEFT, width=width)
    finite = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    kept = {name: [p for p in points if p[1] > 0 or not log_y] for name, points in finite.items()}
    points = [p for of_series in kept.values() for p in of_series]
    legend, legend_height = _legend(list(kept), plot)
    top = TOP + legend_height
    bottom = top + PLOT_HEIGHT
    whole = all(float(x).is_integer() for x, _ in points)
    across = scale([x for x, _ in points], LEFT, width - RIGHT - 10, whole=whole)
    up = scale([y for _, y in points], bottom, top, log=log_y)
    plot.parts += [legend, plot.y_axis(up, y_label, LEFT, width - RIGHT), plot.x_axis(across, bottom, x_label)]
    for i, (name, of) in enumerate(kept.items()):
        if not of:
            plot.spoken.append(f"{name}: no value")
            continue
        plot.spoken.append(f"{name}: {of[0][1]:.5g} at {of[0][0]:g} to {of[-1][1]:.5g} at {of[-1][0]:g}")
        joined = " ".join(f"{number(across(x))},{number(up(y))}" for x, y in of)
        mark = tag("polyline", "", points=joined, fill="none", **_stroke(plot, i))
        if len(of) <= MARKS_UP_TO:
            for x, y in of:
                shown = hover(f"{name}: {x:g}, {y:.5g}")
                mark += tag("circle", shown, cx=across(x), cy=up(y), r=3.0, fill=plot.colour(i))
        plot.parts.append(tag("g", mark, class_="series", data_name=name))
    if not points:
        plot.parts.append(plot.no_data(width / 2, bottom - PLOT_HEIGHT / 2))
    return plot.markup(bottom + 44)


def _stroke(plot: Plot, i: int) -> dict[str, object]:
    return {"stroke": plot.colour(i), "stroke_width": 2, "stroke_dasharray": DASHES[i % len(DASHES)] or None}


def _legend(names: Sequence[str], plot: Plot) -> tuple[str, float]:
    """Draw a sample of each line with its name, in rows, and return their height; nothing for a single series."""
    if len(names) < 2:
        return "", 0.0
    parts, x, y = [], LEFT, TOP + 4
    for i, name in enumerate(names):
        text = shorten(name, 230)
        need = 40 + width_of(text)
        if x + need > plot.width - RIGHT and x > LEFT:
            x, y = LEFT, y + 18
        parts.append(tag("line", "", x1=x, x2=x + 22, y1=y - 4, y2=y - 4, **_stroke(plot, i)))
        parts.append(plot.text(text, x + 28, y))
        x += need
    return "".join(parts), y - TOP + 14


def interval_plot(
    rows: Sequence[tuple[str, float, float, float]], *, title: str, x_label: str, standalone: bool = False
) -> Markup:
    """Draw a forest plot: a point with its interval for each (name, value, low, high), and a line at zero.

    A value without finite ends has no interval.
    """
    plot = Plot(title, standalone=standalone)
    room = min(260.0, max([60.0, *(width_of(row[0]) for row in rows)])) + 16
    texts = [_interval_text(*row[1:]) for row in rows]
    right = WIDTH - max([40.0, *(width_of(text) for text in texts)]) - 24
    across = scale([0.0, *chain.from_iterable(row[1:] for row in rows)], room + 10, right)
    height = 24.0
    bottom = TOP + height * max(1, len(rows)) + 6
    soft, zero = plot.colour("soft"), across(0.0)
    plot.parts.append(plot.x_axis(across, bottom, x_label))
    plot.parts.append(tag("line", class_="zero", x1=zero, x2=zero, y1=TOP, y2=bottom, stroke=soft,
                          stroke_dasharray="4 3"))  # fmt: skip
    for i, ((name, value, low, high), text) in enumerate(zip(rows, texts, strict=True)):
        y = TOP + height * (i + 0.5)
        row = plot.beside(shorten(name, room - 8), room, y, text_anchor="end")
        row += plot.beside(text, right + 14, y, "soft")
        if math.isfinite(low) and math.isfinite(high):
            ends = {"x1": across(low), "x2": across(high)}
            row += tag("line", "", class_="interval", **ends, y1=y, y2=y, stroke=plot.colour(0), stroke_width=3)
        if math.isfinite(value):
            corner = {"x": across(value) - 4, "y": y - 4}
            row += tag("rect", "", class_="value", **corner, width=8.0, height=8.0, fill=plot.colour("ink"))
        plot.parts.append(tag("g", row + hover(f"{name}: {text}"), class_="row", data_name=name))
        plot.spoken.append(f"{name}: {text}")
    if not rows:
        plot.parts.append(plot.no_data(WIDTH / 2, bottom - 12))
    return plot.markup(bottom + 44)


def _interval_text(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "no value"
    ends = f" [{low:+.4f}, {high:+.4f}]" if math.isfinite(low) and math.isfinite(high) else ""
    return f"{value:+.4f}{ends}".replace("-", "−")


Draw = Callable[[float, float, str, Scale], str]
"""Draws an item: its height, half its width, its colour, and the scale."""


def box_plot(
    groups: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, x_label: str, standalone: bool = False
) -> Markup:
    """Draw a box of the values of each method in each group, an organ for example.

    The mean is a square and the median a bar, as in the paper's Fig. 1.

    Examples
    --------
    >>> box_plot({"liver": {"sad": [0.8, 0.9]}}, title="Dice", x_label="Dice").count('class="median"')
    1
    """
    plot = Plot(title, standalone=standalone)
    items: dict[str, dict[str, tuple[str, Draw]]] = {g: {} for g in groups}
    shown: list[float] = []
    for group, methods in groups.items():
        for method, values in methods.items():
            box = summary(values)
            if box is None:
                items[group][method] = "no value", _missing(plot)
                continue
            text = (
                f"mean {box['mean']:.4g}, median {box['median']:.4g}, "
                f"quartiles {box['lower']:.4g} to {box['upper']:.4g}, n {box['n']}"
            )
            items[group][method] = text, _box(plot, box)
            shown += [box["low"], box["high"], box["mean"], *box["outliers"]]
    return _grouped(plot, items, shown, x_label)


def summary(values: Sequence[float]) -> dict[str, Any] | None:
    """Return count, quartiles, ends of the whiskers, mean and outliers of the finite values; None without any."""
    x = np.array([v for v in values if v is not None and math.isfinite(v)], dtype=np.float64)
    if not x.size:
        return None
    lower, median, upper = (float(q) for q in np.percentile(x, (25, 50, 75)))
    reach = WHISKER * (upper - lower)
    inside = x[(x >= lower - reach) & (x <= upper + reach)]
    outliers = [float(v) for v in np.sort(x) if v < lower - reach or v > upper + reach]
    return {
        "n": len(x), "low": float(inside.min()), "lower": lower, "median": median, "upper": upper,
        "high": float(inside.max()), "mean": float(x.mean()), "outliers": outliers,
    }  # fmt: skip


def _box(plot: Plot, box: Mapping[str, Any]) -> Draw:
    def draw(y: float, half: float, colour: str, across: Scale) -> str:
        at = {name: across(value) for name, value in box.items() if isinstance(value, float)}
        mark = plot.colour("mark")
        parts = [
            tag("line", class_="whisker", x1=at[a], x2=at[b], y1=y, y2=y, stroke=colour)
            for a, b in (("low", "lower"), ("upper", "high"))
        ]
        parts += [
            tag("line", x1=at[end], x2=at[end], y1=y - half / 2, y2=y + half / 2, stroke=colour)
            for end in ("low", "high")
        ]
        parts += [
            tag("rect", class_="box", x=at["lower"], y=y - half, width=at["upper"] - at["lower"], height=2 * half,
                fill=colour, fill_opacity=0.16, stroke=colour),
            tag("line", class_="median", x1=at["median"], x2=at["median"], y1=y - half, y2=y + half, stroke=mark,
                stroke_width=2),
            tag("rect", class_="mean", x=at["mean"] - 3, y=y - 3, width=6.0, height=6.0, fill=mark),
        ]  # fmt: skip
        circles = (across(v) for v in box["outliers"])
        parts += [tag("circle", class_="outlier", cx=x, cy=y, r=2.2, fill="none", stroke=colour) for x in circles]
        return "".join(parts)

    return draw


def _missing(plot: Plot) -> Draw:
    return lambda y, _half, _colour, across: plot.beside("×", across.start + 8, y, "soft", text_anchor="middle")


def bar_chart(
    groups: Mapping[str, Mapping[str, tuple[float, float]]], *, title: str, x_label: str, standalone: bool = False
) -> Markup:
    """Draw a bar for the (value, spread) of each member in each group, a class for example.

    A whisker shows one spread to each side; a spread of NaN or 0 has none.
    """
    plot = Plot(title, standalone=standalone)
    items: dict[str, dict[str, tuple[str, Draw]]] = {g: {} for g in groups}
    shown = [0.0]
    for group, members in groups.items():
        for member, (value, given) in members.items():
            spread = given if math.isfinite(given) else 0.0
            text = f"{value:.4g} ± {spread:.2g}" if spread > 0 else f"{value:.4g}"
            items[group][member] = text, _bar(plot, value, spread) if math.isfinite(value) else _missing(plot)
            shown += [value - spread, value + spread]
    return _grouped(plot, items, shown, x_label)


def _bar(plot: Plot, value: float, spread: float) -> Draw:
    def draw(y: float, half: float, colour: str, across: Scale) -> str:
        x, zero, ink = across(value), across(0.0), plot.colour("ink")
        bar = tag(
            "rect", class_="bar", x=min(x, zero), y=y - half, width=abs(zero - x), height=2 * half, fill=colour,
            fill_opacity=0.75, stroke=colour,
        )  # fmt: skip
        if spread <= 0:
            return bar
        ends = [across(value - spread), across(value + spread)]
        stem = tag("line", class_="spread", x1=ends[0], x2=ends[1], y1=y, y2=y, stroke=ink)
        return bar + stem + "".join(tag("line", x1=e, x2=e, y1=y - 4, y2=y + 4, stroke=ink) for e in ends)

    return draw


def _grouped(
    plot: Plot, items: Mapping[str, Mapping[str, tuple[str, Draw]]], values: Sequence[float], label: str
) -> Markup:
    """Draw groups one below the other, a line for each item with its name; all have the same scale."""
    names = list(dict.fromkeys(name for group in items.values() for name in group))
    room = min(LABEL_ROOM, max([40.0, *(width_of(name) for name in names)])) + 10
    columns = _columns({g: max(1, len(group)) for g, group in items.items()})
    width = (WIDTH - (len(columns) - 1) * COLUMN_GAP) / len(columns)
    lowest = TOP
    for n, groups in enumerate(columns):
        start = n * (width + COLUMN_GAP)
        across = scale(values, start + room, start + width - END)
        y, marks = TOP, []
        for group in groups:
            heading = shorten(group, across.end - across.start + room)
            marks.append(plot.beside(heading, start + 8, y + LINE / 2, strong=True))
            y += LINE
            for name, (text, draw) in items[group].items():
                middle = y + LINE / 2
                row = plot.beside(shorten(name, LABEL_ROOM), across.start - 8, middle, "soft", text_anchor="end")
                row += draw(middle, LINE * 0.3, plot.colour(names.index(name)), across)
                row += hover(f"{group}, {name}: {text}")
                marks.append(tag("g", row, class_="item", data_group=group, data_name=name))
                y += LINE
            y += GROUP_GAP
        if groups:
            rules = "".join(
                tag("line", x1=across(t), x2=across(t), y1=TOP, y2=y, stroke=plot.colour("soft" if t == 0 else "rule"))
                for t in across.ticks
            )
            plot.parts += [tag("g", rules, class_="rules"), plot.x_axis(across, y, label), *marks]
        lowest = max(lowest, y)
    if not items:
        plot.parts.append(plot.no_data(LEFT + 60, TOP + 20))
    plot.spoken += [f"{g}, {name}: {text}" for g, group in items.items() for name, (text, _) in group.items()]
    return plot.markup(lowest + 48)


def _columns(sizes: Mapping[str, int]) -> list[list[str]]:
    """Split the groups into two columns of about the same height where they are many."""
    groups, rows = list(sizes), sum(sizes.values()) + len(sizes)
    if rows <= MOST_ROWS or len(groups) < 2:
        return [groups]
    ends = np.cumsum([size + 1 for size in sizes.values()])
    first = max(1, int(np.argmin(np.abs(ends - rows / 2))) + 1)
    return [groups[:first], groups[first:]]


@dataclass(frozen=True)
class Strip:
    """One measure of a group of registrations.

    Parameters
    ----------
    label : str
    form : str
        Format of a number.
    values : sequence of (name, value)
        NaN for a missing value.
    median : float
    far : set of str
        Names of the outliers.
    """

    label: str
    form: str
    values: Sequence[tuple[str, float]]
    median: float
    far: frozenset[str]


def strip_plot(strips: Sequence[Strip], *, title: str, standalone: bool = False) -> Markup:
    """Draw a line of dots for each measure; outliers are large, red, and the farthest have their names.

    Examples
    --------
    >>> strip = Strip("Dice", ".2f", [("a", 0.8), ("b", 0.2)], 0.8, frozenset({"b"}))
    >>> strip_plot([strip], title="Group").count('class="far"')
    1
    """
    plot = Plot(title, standalone=standalone)
    room = min(200.0, max([60.0, *(width_of(strip.label) for strip in strips)])) + 16
    for n, strip in enumerate(strips):
        y = TOP + STRIP * (n + 0.5)
        shown = [(name, value) for name, value in strip.values if math.isfinite(value)]
        across = scale([value for _, value in shown], room + 10, WIDTH - 20)
        middle, soft = across(strip.median), plot.colour("soft")
        parts = [
            plot.beside(shorten(strip.label, room - 8), room, y, text_anchor="end"),
            tag("line", x1=across.start, x2=across.end, y1=y, y2=y, stroke=plot.colour("rule")),
            tag("line", class_="median", x1=middle, x2=middle, y1=y - 9, y2=y + 9, stroke=soft, stroke_width=2),
        ]
        ticks = zip(across.ticks, across.tick_texts(), strict=True)
        parts += [plot.text(text, across(tick), y + 22, "soft", text_anchor="middle") for tick, text in ticks]
        farthest = sorted((abs(value - strip.median), name) for name, value in shown if name in strip.far)[-NAMED:]
        named = {name for _, name in farthest}
        for name, value in shown:
            far, x = name in strip.far, across(value)
            parts.append(tag(
                "circle", hover(f"{name}: {value:{strip.form}}"), class_="far" if far else "near", cx=x, cy=y,
                r=5.0 if far else 3.5, fill=plot.colour("mark" if far else 0), fill_opacity=1 if far else 0.45,
            ))  # fmt: skip
            if name in named:
                parts.append(plot.text(shorten(name, 120), x, y - 13, text_anchor="middle"))
        plot.parts.append(tag("g", "".join(parts), class_="strip", data_name=strip.label))
        outliers = ", ".join(sorted(strip.far)) or "none"
        plot.spoken.append(f"{strip.label}: median {strip.median:{strip.form}}, outliers {outliers}")
    return plot.markup(TOP + STRIP * len(strips) + 8)


STEP_WIDTH, STEP_HEIGHT = 620.0, 180.0
STEP_LEFT, STEP_RIGHT, STEP_TOP, STEP_BOTTOM = 64.0, 12.0, 24.0, 34.0
KEY_WIDTH = 230.0


def step_chart(
    title: str, series: Sequence[tuple[str, Sequence[float]]], *, groups: Sequence[str] = (), from_zero: bool = False
) -> Markup:
    """Draw series over the number of the step; the page's style sheet has their colours.

    Parameters
    ----------
    title : str
        Plain text for readers who do not see the chart.
    series : sequence of (name, values)
        All of one length; the n-th has the class ``s<n>``.
    groups : sequence of str
        Group of each step; a line is broken where the group changes.
    from_zero : bool
        Begin the vertical axis at 0.

    Returns
    -------
    Markup
        An ``<svg>``; empty without values.
    """
    values = [v for _, row in series for v in row]
    if not values:
        return Markup()
    n = len(series[0][1])
    low, high = min(values), max(values)
    low = min(low, 0.0) if from_zero else low
    span = (high - low) or abs(high) or 1.0
    bottom = STEP_HEIGHT - STEP_BOTTOM

    def x(i: float) -> float:
        return STEP_LEFT + (STEP_WIDTH - STEP_LEFT - STEP_RIGHT) * ((i + 0.5) / n)

    def y(v: float) -> float:
        return STEP_TOP + (bottom - STEP_TOP) * (1 - (v - low) / span)

    def note(text: str, x: float | str, y: float, anchor: str) -> str:
        return tag("text", plain(text), x=x, y=y, text_anchor=anchor)

    pieces = [list(piece) for _, piece in groupby(range(n), lambda i: groups[i] if groups else "")]
    parts = [
        tag("path", class_="axis", d=f"M{STEP_LEFT} {STEP_TOP}V{bottom}H{STEP_WIDTH - STEP_RIGHT}"),
        note(f"{high:.3g}", STEP_LEFT - 6, STEP_TOP + 8, "end"),
        note(f"{(low + high) / 2:.3g}", STEP_LEFT - 6, (STEP_TOP + bottom) / 2 + 4, "end"),
        note(f"{low:.3g}", STEP_LEFT - 6, bottom, "end"),
        note("step", STEP_WIDTH - STEP_RIGHT, STEP_HEIGHT - 4, "end"),
    ]
    for piece in pieces if groups else ():
        first, last = piece[0], piece[-1]
        parts.append(note(groups[first], f"{(x(first) + x(last)) / 2:.1f}", STEP_HEIGHT - 18, "middle"))
        if last < n - 1:
            parts.append(tag("path", class_="divide", d=f"M{x(last + 0.5):.1f} {STEP_TOP}V{bottom}"))
    for index, (name, row) in enumerate(series):
        kind = f"s{index}"
        lines = (" ".join(f"{x(i):.1f},{y(row[i]):.1f}" for i in piece) for piece in pieces)
        parts += [tag("polyline", class_=kind, points=points) for points in lines]
        for i, v in enumerate(row):
            shown = hover(f"{name}, step {i + 1}: {v:.3g}")
            parts.append(tag("circle", shown, class_=kind, cx=f"{x(i):.1f}", cy=f"{y(v):.1f}", r=2.5))
    parts += [
        tag("text", plain(name), class_=f"s{i}", x=STEP_LEFT + KEY_WIDTH * i, y=12)
        for i, (name, _) in enumerate(series)
    ]
    box = f"0 0 {STEP_WIDTH:g} {STEP_HEIGHT:g}"
    return Markup(tag("svg", "".join(parts), class_="chart", viewBox=box, role="img", aria_label=title))
