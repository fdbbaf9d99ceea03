"""Strips: a dot for each registration of a group, a line for each measure, with its own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from regweave.report.charts.axes import TOP, WIDTH
from regweave.report.charts.svg import Ink, drawing, hover, scale, shorten, tag, width_of, words

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
