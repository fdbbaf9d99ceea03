"""Axes and sizes of the charts."""

from __future__ import annotations

from regweave.report.charts.svg import FONT_SIZE, Ink, Scale, number, tag, words

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
