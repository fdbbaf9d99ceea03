"""Line chart of the steps of one registration, coloured by the page's style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from markupsafe import Markup

from regweave.report.charts.svg import hover, plain, tag

WIDTH, HEIGHT = 620.0, 180.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 24.0, 34.0
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
        return LEFT + (WIDTH - LEFT - RIGHT) * ((i + 0.5) / n)

    def y(v: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (v - low) / span)

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
        tag("text", plain(name), class_=f"s{i}", x=LEFT + KEY_WIDTH * i, y=12) for i, (name, _) in enumerate(series)
    ]
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return Markup(tag("svg", "".join(parts), class_="chart", viewBox=box, role="img", aria_label=title))


def _frame(low: float, high: float) -> str:
    bottom = HEIGHT - BOTTOM
    return (
        tag("path", class_="axis", d=f"M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}")
        + tag("text", f"{high:.3g}", x=LEFT - 6, y=TOP + 8, text_anchor="end")
        + tag("text", f"{(low + high) / 2:.3g}", x=LEFT - 6, y=(TOP + bottom) / 2 + 4, text_anchor="end")
        + tag("text", f"{low:.3g}", x=LEFT - 6, y=bottom, text_anchor="end")
        + tag("text", "step", x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end")
    )


def _group(name: str, piece: Sequence[int], x: Callable[[float], float], n: int) -> str:
    """Write the name of a group below its steps, and a line after it."""
    middle = (x(piece[0]) + x(piece[-1])) / 2
    text = tag("text", plain(name), x=f"{middle:.1f}", y=HEIGHT - 18, text_anchor="middle")
    if piece[-1] == n - 1:
        return text
    return text + tag("path", class_="divide", d=f"M{x(piece[-1] + 0.5):.1f} {TOP}V{HEIGHT - BOTTOM}")
