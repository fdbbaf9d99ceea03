"""Line charts and forest plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from markupsafe import Markup

from regweave.report.charts.axes import LEFT, PLOT_HEIGHT, RIGHT, TOP, WIDTH, nothing, x_axis, y_axis
from regweave.report.charts.svg import DASHES, Ink, Scale, drawing, hover, number, scale, shorten, tag, width_of, words

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
