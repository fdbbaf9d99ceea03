"""Vector plot of imputed against predicted displacements in a slice of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from regweave.report.charts.svg import Ink, drawing, tag, words

CELL = 26.0
MARGIN = 34.0
Rows = list[list[tuple[float, float]]]


def overlay_chart(
    lines: Mapping[str, tuple[Sequence[str], float]],
    counted: Sequence[str],
    axes: Sequence[str],
    *,
    title: str,
    standalone: bool = False,
) -> Markup:
    """Draw both displacements as lines from each node; nodes at which nothing can be lost are faint dots.

    Parameters
    ----------
    lines : mapping
        By name, the wide one first: displacements in the plane, a text line of pairs for each row of nodes, and their
        loss, NaN where it is not known.
    counted : sequence of str
        A text line for each row: not 0 where something can be lost.
    axes : sequence of str
        Names of the two axes, or nothing.
    title : str
        Words.
    standalone : bool
        For a file of its own.
    """
    ink = Ink(standalone)
    rows = {name: _vectors(texts) for name, (texts, _) in lines.items()}
    counts = [_numbers(row) for row in counted]
    axes = axes or ("", "")
    size = (len(counts), max((len(row) for row in counts), default=0))
    losses = {name: loss for name, (_, loss) in lines.items()}
    longest = max((math.hypot(*v) for of in rows.values() for row in of for v in row), default=0.0)
    reach = 0.7 * CELL / longest if longest > 0 else 0.0
    drawn = [words(title, 8, 18, ink, strong=True), *_legend(losses, ink)]
    top = 62.0
    for i, row in enumerate(counts):
        for j, weight in enumerate(row):
            x, y = MARGIN + CELL * i, top + CELL * j
            drawn.append(tag("circle", cx=x, cy=y, r=1.6, fill=ink("soft" if weight else "rule")))
            if weight:
                drawn += [_arrow(_at(rows[name], i, j), x, y, reach, k, ink) for k, name in enumerate(rows)]
    width = max(440.0, 2 * MARGIN + CELL * max(0, size[0] - 1))
    bottom = top + CELL * max(1, size[1])
    scale = f"nodes along {axes[0]} →, {axes[-1]} ↓; the longest line is {longest:.2g} of the node spacing"
    drawn.append(words(scale, 8, bottom, ink, "soft"))
    about = ", ".join(f"{name} loss {loss:.4g}" for name, loss in losses.items())
    return drawing(drawn, width, bottom + 14, title=title, about=about, ink=ink)


def _legend(losses: Mapping[str, float], ink: Ink) -> list[str]:
    parts = []
    for k, (name, loss) in enumerate(losses.items()):
        x = 8.0 + 170 * k
        parts.append(tag("line", x1=x, x2=x + 22, y1=36.0, y2=36.0, stroke=ink.series(k), stroke_width=_thickness(k)))
        text = name if math.isnan(loss) else f"{name}, loss {loss:.3f}"
        parts.append(words(text, x + 28, 40, ink))
    return parts


def _arrow(vector: tuple[float, float], x: float, y: float, reach: float, k: int, ink: Ink) -> str:
    end = (x + reach * vector[0], y + reach * vector[1])
    colour = ink.series(k)
    line = tag(
        "line", class_="arrow", x1=x, y1=y, x2=end[0], y2=end[1], stroke=colour, stroke_width=_thickness(k)
    )  # fmt: skip
    return line + tag("circle", cx=end[0], cy=end[1], r=2.4 if k else 3.2, fill=colour if k else "none", stroke=colour)


def _thickness(k: int) -> float:
    """Predicted is wide and lies below, so that both are seen where they agree."""
    return 1.5 if k else 4.0


def _at(rows: Rows, i: int, j: int) -> tuple[float, float]:
    try:
        return rows[i][j]
    except IndexError:
        return (0.0, 0.0)


def _vectors(rows: Sequence[str]) -> Rows:
    flat = [_numbers(row) for row in rows]
    return [list(zip(row[::2], row[1::2], strict=False)) for row in flat]


def _numbers(row: str) -> list[float]:
    """Read the numbers of a text line, 0 for what is none."""
    out = []
    for word in row.split():
        try:
            value = float(word)
        except ValueError:
            value = 0.0
        out.append(value if math.isfinite(value) else 0.0)
    return out
