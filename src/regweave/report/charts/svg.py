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
CHARACTER = 6.6
"""Mean width of a character of the font, to leave room for words; charts have no way to measure text."""

LIGHT = {
    "ink": "#1d2329",
    "soft": "#59636e",
    "rule": "#d5dae0",
    "paper": "#ffffff",
    "mark": "#b3261e",
    "series-1": "#0072b2",
    "series-2": "#b35900",
    "series-3": "#00795a",
    "series-4": "#a8487f",
    "series-5": "#2f7fb5",
    "series-6": "#7a6a00",
    "series-7": "#5b4db3",
    "series-8": "#59636e",
}
DARK = {
    "ink": "#e6e9ec",
    "soft": "#a3adb8",
    "rule": "#3a424b",
    "paper": "#14181c",
    "mark": "#ff8a80",
    "series-1": "#56b4e9",
    "series-2": "#e69f00",
    "series-3": "#2bc79a",
    "series-4": "#e08fbf",
    "series-5": "#8ecbff",
    "series-6": "#f0e442",
    "series-7": "#b3a6ff",
    "series-8": "#a3adb8",
}
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
class Ink:
    """Names of colours as a drawing writes them: variables of the page, or for a file of its own plain colours."""

    standalone: bool

    def __call__(self, name: str) -> str:
        """Return a colour by its name."""
        return LIGHT[name] if self.standalone else f"var(--chart-{name},{LIGHT[name]})"

    def series(self, number: int) -> str:
        """Return the colour of a series, from 0; the colours come again after eight."""
        return self(f"series-{number % N_SERIES + 1}")


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
    """Write one element; underscores in names of attributes stand for hyphens.

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


def words(
    text: object, x: float, y: float, ink: Ink, colour: str = "ink", *, strong: bool = False, **attributes: object
) -> str:
    """Write text at a point; classes say colour and weight to a page, whose style sheet has rules for text."""
    names = f"{colour} strong" if strong else colour
    weight = 600 if strong else None
    return tag(
        "text", plain(text), class_=names, x=float(x), y=float(y), fill=ink(colour), font_weight=weight, **attributes
    )


def hover(text: str) -> str:
    """Give the element around it a text to show under the pointer."""
    return tag("title", plain(text))


def drawing(parts: Sequence[str], width: float, height: float, *, title: str, about: str, ink: Ink) -> Markup:
    """Put parts together to an SVG with a title and a description for those who cannot see it."""
    attributes: dict[str, object] = {"xmlns": NAMESPACE} if ink.standalone else {}
    attributes |= {
        "class_": "chart",
        "role": "img",
        "aria_label": title,
        "viewBox": f"0 0 {number(width)} {number(height)}",
        "width": number(width),
        "height": number(height),
        "font_family": FONT,
        "font_size": FONT_SIZE,
    }
    paper = tag("rect", width=float(width), height=float(height), fill=ink("paper")) if ink.standalone else ""
    head = tag("title", plain(title)) + tag("desc", plain(about)) + paper
    return Markup(tag("svg", head + "\n" + "\n".join(p for p in parts if p) + "\n", **attributes))
