"""Axes and sizes of the charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

import numpy as np
from markupsafe import Markup

from regweave.report.charts.svg import (
    DASHES,
    FONT_SIZE,
    Ink,
    Scale,
    drawing,
    hover,
    number,
    plain,
    scale,
    shorten,
    tag,
    width_of,
    words,
)

WIDTH = 880.0
LEFT, RIGHT, TOP = 72.0, 14.0, 34.0
PLOT_HEIGHT = 210.0


def y_axis(up: Scale, label: str, left: float, right: float, ink: Ink) -> str:
    """Draw rules, their values and the label of an upward scale."""
    parts = []
    for tick, text in zip(up.ticks, up.tick_texts(), strict=True):
        y = up(tick)
        rule = "soft" if tick == 0 else "rule"
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, stroke=ink(rule), stroke_width=1))
        parts.append(words(text, left - 6, y, ink, "soft", text_anchor="end", dominant_baseline="central"))
    middle = (up.start + up.end) / 2
    turned = f"rotate(-90 {FONT_SIZE + 2} {number(middle)})"
    parts.append(words(label, FONT_SIZE + 2, middle, ink, "soft", text_anchor="middle", transform=turned))
    return tag("g", "".join(parts), class_="axis")


def x_axis(across: Scale, y: float, label: str, ink: Ink) -> str:
    """Draw the line, values and label of a scale to the right."""
    parts = [tag("line", x1=across.start, x2=across.end, y1=y, y2=y, stroke=ink("soft"))]
    for tick, text in zip(across.ticks, across.tick_texts(), strict=True):
        x = across(tick)
        parts.append(tag("line", x1=x, x2=x, y1=y, y2=y + 4, stroke=ink("soft")))
        parts.append(words(text, x, y + 17, ink, "soft", text_anchor="middle"))
    parts.append(words(label, (across.start + across.end) / 2, y + 36, ink, "soft", text_anchor="middle"))
    return tag("g", "".join(parts), class_="axis")


def nothing(x: float, y: float, ink: Ink) -> str:
    """Say that there is nothing to draw."""
    return words("no data", x, y, ink, "soft", text_anchor="middle")


MARKS_UP_TO = 40
"""Points of a longer line have no dots."""


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
    """Draw points joined by lines, one line for each series, told apart by colour and dash.

    Parameters
    ----------
    series : mapping
        By name, (x, y) points.
    title, x_label, y_label : str
        Words.
    standalone : bool
        For a file of its own.
    log_y : bool
        Powers of ten upwards; what is not above zero is left out.
    width : float
        Pixels of the whole chart.

    Examples
    --------
    >>> line_chart({"a": [(0, 1.0), (1, 0.5)]}, title="Loss", x_label="step", y_label="loss").count("<polyline")
    1
    """
    ink = Ink(standalone)
    kept = {name: [p for p in points if _shown(p, log_y)] for name, points in series.items()}
    points = [p for of_series in kept.values() for p in of_series]
    legend, legend_height = _legend(list(kept), width, ink)
    top = TOP + legend_height
    bottom = top + PLOT_HEIGHT
    whole = all(float(x).is_integer() for x, _ in points)
    across = scale([x for x, _ in points], LEFT, width - RIGHT - 10, whole=whole)
    up = scale([y for _, y in points], bottom, top, log=log_y)
    parts = [words(title, LEFT, 18, ink, strong=True), legend]
    parts += [y_axis(up, y_label, LEFT, width - RIGHT, ink), x_axis(across, bottom, x_label, ink)]
    parts += [_draw_line(name, of, i, across, up, ink) for i, (name, of) in enumerate(kept.items())]
    if not points:
        parts.append(nothing(width / 2, bottom - PLOT_HEIGHT / 2, ink))
    about = "; ".join(_line_text(name, of) for name, of in kept.items())
    return drawing(parts, width, bottom + 44, title=title, about=about, ink=ink)


def interval_plot(
    rows: Sequence[tuple[str, float, float, float]], *, title: str, x_label: str, standalone: bool = False
) -> Markup:
    """Draw a point with its interval for each row, and a line at zero: a forest plot.

    Parameters
    ----------
    rows : sequence of (name, value, low, high)
        From top to bottom; without finite ends a point stands alone.
    title, x_label, standalone
        As in `line_chart`.
    """
    ink = Ink(standalone)
    room = min(260.0, max([60.0, *(width_of(row[0]) for row in rows)])) + 16
    texts = [_interval_text(*row[1:]) for row in rows]
    right = WIDTH - max([40.0, *(width_of(text) for text in texts)]) - 24
    across = scale([0.0, *chain.from_iterable(row[1:] for row in rows)], room + 10, right)
    height = 24.0
    bottom = TOP + height * max(1, len(rows)) + 6
    zero = across(0.0)
    parts = [words(title, 8, 18, ink, strong=True), x_axis(across, bottom, x_label, ink)]
    parts.append(
        tag("line", class_="zero", x1=zero, x2=zero, y1=TOP, y2=bottom, stroke=ink("soft"), stroke_dasharray="4 3")
    )
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        parts.append(_draw_interval(row, text, TOP + height * (i + 0.5), across, room, right, ink))
    if not rows:
        parts.append(nothing(WIDTH / 2, bottom - 12, ink))
    about = "; ".join(f"{row[0]}: {text}" for row, text in zip(rows, texts, strict=True))
    return drawing(parts, WIDTH, bottom + 44, title=title, about=about, ink=ink)


def _shown(point: tuple[float, float], log_y: bool) -> bool:
    x, y = point
    return math.isfinite(x) and math.isfinite(y) and (y > 0 or not log_y)


def _draw_line(name: str, points: Sequence[tuple[float, float]], i: int, across: Scale, up: Scale, ink: Ink) -> str:
    if not points:
        return ""
    colour = ink.series(i)
    joined = " ".join(f"{number(across(x))},{number(up(y))}" for x, y in points)
    dash = DASHES[i % len(DASHES)] or None
    line = tag("polyline", points=joined, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dash)
    marks = ""
    if len(points) <= MARKS_UP_TO:
        marks = "".join(
            tag("circle", hover(f"{name}: {x:g}, {y:.5g}"), cx=across(x), cy=up(y), r=3.0, fill=colour)
            for x, y in points
        )
    return tag("g", line + marks, class_="series", data_name=name)


def _line_text(name: str, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return f"{name}: no value"
    return f"{name}: {points[0][1]:.5g} at {points[0][0]:g} to {points[-1][1]:.5g} at {points[-1][0]:g}"


def _legend(names: Sequence[str], width: float, ink: Ink) -> tuple[str, float]:
    """Write a sample of each line with its name, in rows; none for a single series."""
    if len(names) < 2:
        return "", 0.0
    parts, x, y = [], LEFT, TOP + 4
    for i, name in enumerate(names):
        text = shorten(name, 230)
        need = 40 + width_of(text)
        if x + need > width - RIGHT and x > LEFT:
            x, y = LEFT, y + 18
        colour, dash = ink.series(i), DASHES[i % len(DASHES)] or None
        parts.append(
            tag("line", x1=x, x2=x + 22, y1=y - 4, y2=y - 4, stroke=colour, stroke_width=2, stroke_dasharray=dash)
        )
        parts.append(words(text, x + 28, y, ink))
        x += need
    return "".join(parts), y - TOP + 14


def _interval_text(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "no value"
    ends = f" [{low:+.4f}, {high:+.4f}]" if math.isfinite(low) and math.isfinite(high) else ""
    return f"{value:+.4f}{ends}".replace("-", "−")


def _draw_interval(
    row: tuple[str, float, float, float], text: str, y: float, across: Scale, room: float, right: float, ink: Ink
) -> str:
    name, value, low, high = row
    parts = [
        words(shorten(name, room - 8), room, y, ink, text_anchor="end", dominant_baseline="central"),
        words(text, right + 14, y, ink, "soft", dominant_baseline="central"),
    ]
    if math.isfinite(low) and math.isfinite(high):
        x1, x2, colour = across(low), across(high), ink.series(0)
        parts.append(tag("line", class_="interval", x1=x1, x2=x2, y1=y, y2=y, stroke=colour, stroke_width=3))
    if math.isfinite(value):
        parts.append(tag("rect", class_="value", x=across(value) - 4, y=y - 4, width=8.0, height=8.0, fill=ink("ink")))
    return tag("g", "".join(parts) + hover(f"{name}: {text}"), class_="row", data_name=name)


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


STRIP, NAMED = 54.0, 3
"""Pixels of a line, and how many outliers have their name beside the dot."""


@dataclass(frozen=True)
class Strip:
    """One measure of a group.

    Parameters
    ----------
    label : str
    form : str
        Format of a number.
    values : sequence of (name, value)
        NaN where there is none.
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
    """Draw the strips one below the other; outliers are large, red, and the first of them named.

    Examples
    --------
    >>> strip = Strip("Dice", ".2f", [("a", 0.8), ("b", 0.2)], 0.8, frozenset({"b"}))
    >>> strip_plot([strip], title="Group").count('class="far"')
    1
    """
    ink = Ink(standalone)
    room = min(200.0, max([60.0, *(width_of(strip.label) for strip in strips)])) + 16
    parts = [words(title, 8, 18, ink, strong=True)]
    for n, strip in enumerate(strips):
        parts.append(_draw(strip, TOP + STRIP * (n + 0.5), room, ink))
    said = [f"{s.label}: median {s.median:{s.form}}, outliers {', '.join(sorted(s.far)) or 'none'}" for s in strips]
    return drawing(parts, WIDTH, TOP + STRIP * len(strips) + 8, title=title, about="; ".join(said), ink=ink)


def _draw(strip: Strip, y: float, room: float, ink: Ink) -> str:
    shown = [(name, value) for name, value in strip.values if math.isfinite(value)]
    across = scale([value for _, value in shown], room + 10, WIDTH - 20)
    rule = tag("line", x1=across.start, x2=across.end, y1=y, y2=y, stroke=ink("rule"))
    middle = across(strip.median)
    parts = [
        words(shorten(strip.label, room - 8), room, y, ink, text_anchor="end", dominant_baseline="central"),
        rule,
        tag("line", class_="median", x1=middle, x2=middle, y1=y - 9, y2=y + 9, stroke=ink("soft"), stroke_width=2),
    ]
    for tick, text in zip(across.ticks, across.tick_texts(), strict=True):
        parts.append(words(text, across(tick), y + 22, ink, "soft", text_anchor="middle"))
    named = sorted((abs(value - strip.median), name) for name, value in shown if name in strip.far)[-NAMED:]
    for name, value in shown:
        far = name in strip.far
        dot = tag(
            "circle", hover(f"{name}: {value:{strip.form}}"), class_="far" if far else "near", cx=across(value), cy=y,
            r=5.0 if far else 3.5, fill=ink("mark") if far else ink.series(0), fill_opacity=1 if far else 0.45,
        )  # fmt: skip
        parts.append(dot)
        if any(name == other for _, other in named):
            parts.append(words(shorten(name, 120), across(value), y - 13, ink, text_anchor="middle"))
    return tag("g", "".join(parts), class_="strip", data_name=strip.label)


STEP_WIDTH, STEP_HEIGHT = 620.0, 180.0
STEP_LEFT, STEP_RIGHT, STEP_TOP, STEP_BOTTOM = 64.0, 12.0, 24.0, 34.0
KEY_WIDTH = 230.0


def step_chart(
    title: str, series: Sequence[tuple[str, Sequence[float]]], *, groups: Sequence[str] = (), from_zero: bool = False
) -> Markup:
    """Draw series over the number of the step.

    Parameters
    ----------
    title : str
        Plain text for readers that do not see the chart.
    series : sequence of (name, values)
        All of one length; the n-th has the class ``s<n>``.
    groups : sequence of str
        What group each step belongs to; a line is broken where the group changes.
    from_zero : bool
        Begin the vertical axis at 0.

    Returns
    -------
    Markup
        An ``<svg>``; empty where there is nothing to draw.
    """
    values = [v for _, row in series for v in row]
    if not values:
        return Markup()
    n = len(series[0][1])
    low, high = min(values), max(values)
    low = min(low, 0.0) if from_zero else low
    span = (high - low) or abs(high) or 1.0

    def x(i: float) -> float:
        return STEP_LEFT + (STEP_WIDTH - STEP_LEFT - STEP_RIGHT) * ((i + 0.5) / n)

    def y(v: float) -> float:
        return STEP_TOP + (STEP_HEIGHT - STEP_TOP - STEP_BOTTOM) * (1 - (v - low) / span)

    pieces = [list(piece) for _, piece in groupby(range(n), lambda i: groups[i] if groups else "")]
    parts = [_frame(low, high), *(_group(groups[piece[0]], piece, x, n) for piece in pieces if groups)]
    for index, (name, row) in enumerate(series):
        kind = f"s{index}"
        lines = (" ".join(f"{x(i):.1f},{y(row[i]):.1f}" for i in piece) for piece in pieces)
        parts += [tag("polyline", class_=kind, points=points) for points in lines]
        parts += [
            tag(
                "circle",
                hover(f"{name}, step {i + 1}: {v:.3g}"),
                class_=kind,
                cx=f"{x(i):.1f}",
                cy=f"{y(v):.1f}",
                r=2.5,
            )
            for i, v in enumerate(row)
        ]
    parts += [
        tag("text", plain(name), class_=f"s{i}", x=STEP_LEFT + KEY_WIDTH * i, y=12)
        for i, (name, _) in enumerate(series)
    ]
    box = f"0 0 {STEP_WIDTH:g} {STEP_HEIGHT:g}"
    return Markup(tag("svg", "".join(parts), class_="chart", viewBox=box, role="img", aria_label=title))


def _frame(low: float, high: float) -> str:
    bottom = STEP_HEIGHT - STEP_BOTTOM
    return (
        tag("path", class_="axis", d=f"M{STEP_LEFT} {STEP_TOP}V{bottom}H{STEP_WIDTH - STEP_RIGHT}")
        + tag("text", f"{high:.3g}", x=STEP_LEFT - 6, y=STEP_TOP + 8, text_anchor="end")
        + tag("text", f"{(low + high) / 2:.3g}", x=STEP_LEFT - 6, y=(STEP_TOP + bottom) / 2 + 4, text_anchor="end")
        + tag("text", f"{low:.3g}", x=STEP_LEFT - 6, y=bottom, text_anchor="end")
        + tag("text", "step", x=STEP_WIDTH - STEP_RIGHT, y=STEP_HEIGHT - 4, text_anchor="end")
    )


def _group(name: str, piece: Sequence[int], x: Callable[[float], float], n: int) -> str:
    """Write the name of a group below its steps, and a line after it."""
    middle = (x(piece[0]) + x(piece[-1])) / 2
    text = tag("text", plain(name), x=f"{middle:.1f}", y=STEP_HEIGHT - 18, text_anchor="middle")
    if piece[-1] == n - 1:
        return text
    return text + tag("path", class_="divide", d=f"M{x(piece[-1] + 0.5):.1f} {STEP_TOP}V{STEP_HEIGHT - STEP_BOTTOM}")
