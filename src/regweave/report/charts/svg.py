"""SVG elements of the charts: scales with round ticks, colours, text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

NAMESPACE = "http://www.w3.org/2000/svg"
FONT = "system-ui, sans-serif"
FONT_SIZE = 12
WIDTH = 880.0
CHARACTER = 6.6
"""Mean width of a character of the font, to leave room for words; charts have no way to measure text."""

LIGHT = {
    "ink": "#1d2329", "soft": "#59636e", "rule": "#d5dae0", "paper": "#ffffff", "mark": "#b3261e",
    "series-1": "#0072b2", "series-2": "#b35900", "series-3": "#00795a", "series-4": "#a8487f",
    "series-5": "#2f7fb5", "series-6": "#7a6a00", "series-7": "#5b4db3", "series-8": "#59636e",
}  # fmt: skip
DARK = {
    "ink": "#e6e9ec", "soft": "#a3adb8", "rule": "#3a424b", "paper": "#14181c", "mark": "#ff8a80",
    "series-1": "#56b4e9", "series-2": "#e69f00", "series-3": "#2bc79a", "series-4": "#e08fbf",
    "series-5": "#8ecbff", "series-6": "#f0e442", "series-7": "#b3a6ff", "series-8": "#a3adb8",
}  # fmt: skip
"""Colours after Okabe and Ito (2008), darker or lighter for contrast; a name or a dash always says the same."""
N_SERIES = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 1 2")

# Control characters that XML 1.0 does not allow in any form, and lone surrogates.
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--chart-{name}:{value};" for name, value in colours.items())


STYLE = (
    f":root{{{_variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_variables(DARK)}}}}}"
    f":root[data-theme=dark]{{{_variables(DARK)}}}"
    "svg.chart{display:block;max-width:100%;height:auto}"
    "svg.chart text{font:inherit;fill:var(--chart-ink)}svg.chart text.soft{fill:var(--chart-soft)}"
    "svg.chart text.strong{font-weight:600}"
    "@media print{:root,:root[data-theme=dark]{" + _variables(LIGHT) + "}}"
)
"""Style sheet of a page with charts."""


ROUND = (1, 2, 2.5, 5, 10)
WHOLE = (1, 2, 5, 10)
"""Steps between ticks, times a power of ten."""


@dataclass(frozen=True)
class Scale:
    """A straight or logarithmic map from values to pixels, with round ticks inside its range."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def tick_texts(self) -> list[str]:
        """Return the ticks as short text, all with the same number of digits."""
        if self.log or len(self.ticks) < 2:
            return [f"{t:g}" for t in self.ticks]
        step = self.ticks[1] - self.ticks[0]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        if not math.isclose(round(step, digits), step):  # a step of 2.5 needs a digit more
            digits += 1
        if max(abs(t) for t in self.ticks) >= 1e6 or digits > 5:
            return [f"{t:g}" for t in self.ticks]
        return [f"{t:.{digits}f}".replace("-", "−") for t in self.ticks]


def scale(values: Iterable[float], start: float, end: float, *, whole: bool = False, log: bool = False) -> Scale:
    """Fit a scale to finite values; its ends are ticks.

    Parameters
    ----------
    values : numbers
        What must be shown; what is not finite, or with ``log`` not above zero, is left out.
    start, end : float
        Pixels of the ends.
    whole : bool
        Whole ticks only.
    log : bool
        Powers of ten.

    Examples
    --------
    >>> s = scale([0.62, 0.91], 100, 0)
    >>> s.ticks, round(s(0.8))
    ((0.6, 0.7, 0.8, 0.9, 1.0), 50)
    """
    kept = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(kept), max(kept)) if kept else (0.1, 1.0) if log else (0.0, 1.0)
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        last = max(last, first + 1)
        stride = max(1, (last - first) // 6)
        powers = tuple(10.0**k for k in range(first, last + 1, stride))
        return Scale(10.0**first, 10.0**last, start, end, powers, log=True)
    if high == low:
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    step = _round_step((high - low) / 5, WHOLE if whole else ROUND)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = tuple(float(f"{k * step:.12g}") for k in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, ticks)


def _round_step(rough: float, factors: Sequence[float]) -> float:
    """Return the smallest of some factors times a power of ten that is not below a rough step."""
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(f * power for f in factors if f * power >= rough * (1 - 1e-9))


def plain(text: object) -> str:
    """Return text that is safe between tags and in attributes."""
    return str(escape(_ILLEGAL.sub("", str(text))))


def shorten(text: object, room: float) -> str:
    """Cut text that is wider than some pixels, with an ellipsis."""
    whole, n = _ILLEGAL.sub("", str(text)), max(2, int(room / CHARACTER))
    return whole if len(whole) <= n else whole[: n - 1] + "…"


def width_of(text: object) -> float:
    """Estimate the width of a text in pixels."""
    return len(str(text)) * CHARACTER


def number(value: float) -> str:
    """Return a coordinate with at most three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def tag(name: str, content: str = "", **attributes: object) -> str:
    """Write one element; underscores in names of attributes become hyphens.

    Examples
    --------
    >>> tag("line", x1=0.5, stroke_width=2)
    '<line x1="0.5" stroke-width="2"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else plain(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def hover(text: str) -> str:
    """Return a text that a browser shows under the pointer for the element round it."""
    return tag("title", plain(text))


class Plot:
    """An SVG chart: marks, and the same numbers as a text for readers who do not see it.

    Colours are variables of the page, or plain colours if the chart is ``standalone``.
    """

    def __init__(self, title: str, *, standalone: bool, left: float = 8.0, width: float = WIDTH) -> None:
        self.title, self.standalone, self.width = title, standalone, width
        self.spoken: list[str] = []
        self.parts = [self.text(title, left, 18, strong=True)]

    def colour(self, name: str | int) -> str:
        """Return a colour by its name, or the colour of a series by its number; there are eight of these."""
        key = name if isinstance(name, str) else f"series-{name % N_SERIES + 1}"
        return LIGHT[key] if self.standalone else f"var(--chart-{key},{LIGHT[key]})"

    def text(
        self, text: object, x: float, y: float, colour: str = "ink", *, strong: bool = False, **attributes: object
    ) -> str:
        """Write text at a point; the style sheet of a page has rules for its classes."""
        return tag(
            "text", plain(text), class_=f"{colour} strong" if strong else colour, x=float(x), y=float(y),
            fill=self.colour(colour), font_weight=600 if strong else None, **attributes,
        )  # fmt: skip

    def beside(
        self,
        text: object,
        x: float,
        y: float,
        colour: str = "ink",
        *,
        strong: bool = False,
        text_anchor: str | None = None,
    ) -> str:
        """Write text whose middle line is at a height."""
        return self.text(text, x, y, colour, strong=strong, text_anchor=text_anchor, dominant_baseline="central")

    def x_axis(self, across: Scale, y: float, label: str) -> str:
        """Draw the line, values and label of a scale to the right."""
        parts = [tag("line", x1=across.start, x2=across.end, y1=y, y2=y, stroke=self.colour("soft"))]
        for tick, text in zip(across.ticks, across.tick_texts(), strict=True):
            x = across(tick)
            parts.append(tag("line", x1=x, x2=x, y1=y, y2=y + 4, stroke=self.colour("soft")))
            parts.append(self.text(text, x, y + 17, "soft", text_anchor="middle"))
        parts.append(self.text(label, (across.start + across.end) / 2, y + 36, "soft", text_anchor="middle"))
        return tag("g", "".join(parts), class_="axis")

    def y_axis(self, up: Scale, label: str, left: float, right: float) -> str:
        """Draw rules, their values and the label of an upward scale."""
        parts = []
        for tick, text in zip(up.ticks, up.tick_texts(), strict=True):
            y, rule = up(tick), self.colour("soft" if tick == 0 else "rule")
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, stroke=rule, stroke_width=1))
            parts.append(self.beside(text, left - 6, y, "soft", text_anchor="end"))
        middle = (up.start + up.end) / 2
        turned = f"rotate(-90 {FONT_SIZE + 2} {number(middle)})"
        parts.append(self.text(label, FONT_SIZE + 2, middle, "soft", text_anchor="middle", transform=turned))
        return tag("g", "".join(parts), class_="axis")

    def no_data(self, x: float, y: float) -> str:
        """Return the text of an empty chart."""
        return self.text("no data", x, y, "soft", text_anchor="middle")

    def markup(self, height: float) -> Markup:
        """Return the whole chart as an SVG element."""
        attributes: dict[str, object] = {"xmlns": NAMESPACE} if self.standalone else {}
        attributes |= {
            "class_": "chart", "role": "img", "aria_label": self.title,
            "viewBox": f"0 0 {number(self.width)} {number(height)}",
            "width": number(self.width), "height": number(height), "font_family": FONT, "font_size": FONT_SIZE,
        }  # fmt: skip
        paper = ""
        if self.standalone:
            paper = tag("rect", width=float(self.width), height=float(height), fill=self.colour("paper"))
        head = tag("title", plain(self.title)) + tag("desc", plain("; ".join(self.spoken))) + paper
        return Markup(tag("svg", head + "\n" + "\n".join(part for part in self.parts if part) + "\n", **attributes))
