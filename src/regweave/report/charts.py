"""SVG charts: pure functions from plain numbers to markup.

Colours are variables of `STYLE`, so that charts follow the light or dark scheme of a page.
Numbers that are not finite are left out.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from markupsafe import Markup, escape

FONT = "system-ui, sans-serif"
FONT_SIZE = 12
WIDTH, HALF = 880.0, 560.0  # pixels of a chart, and of one that shares its row
CHARACTER = 6.6  # mean width of a character in pixels; nothing here can measure text

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
"""Colours after Okabe and Ito (2008), darker or lighter for contrast; a name or a dash repeats what a colour means."""
N_SERIES = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 1 2")

# Control characters that XML 1.0 does not allow in any form, and lone surrogates.
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


_LIGHT, _DARK = ("".join(f"--chart-{name}:{value};" for name, value in c.items()) for c in (LIGHT, DARK))
STYLE = (
    f":root{{{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_DARK}}}}}"
    f":root[data-theme=dark]{{{_DARK}}}"
    "svg.chart{display:block;max-width:100%;height:auto}"
    "svg.chart text{font:inherit;fill:var(--chart-ink)}svg.chart text.soft{fill:var(--chart-soft)}"
    "svg.chart text.strong{font-weight:600}"
    "@media print{:root,:root[data-theme=dark]{" + _LIGHT + "}}"
)
"""Style sheet of a page with charts."""

ROUND = (1, 2, 2.5, 5, 10)
WHOLE = (1, 2, 5, 10)  # steps between ticks, times a power of ten
LEFT, RIGHT, TOP = 72.0, 14.0, 34.0
PLOT_HEIGHT = 210.0
MARKS_UP_TO = 40  # points of a longer line have no dots
LINE, GROUP_GAP, COLUMN_GAP, END = 18.0, 8.0, 28.0, 16.0
"""Pixels of one item, between groups, between two columns, and right of a scale."""
LABEL_ROOM = 160.0  # largest width of the name beside a box or a bar, in pixels
MOST_ROWS = 24  # more lines than this are drawn in two columns
WHISKER = 1.5  # whiskers end at the last value within this many ranges of the quartiles (Tukey)
BESIDE: dict[str, Any] = {"dominant_baseline": "central"}  # of a text whose middle line is at a height
STRIP, NAMED = 54.0, 3  # pixels of a strip, and number of outliers with a name beside the dot


class Scale:
    """A straight or logarithmic map from values to pixels, from ``start`` to ``end``, with ticks and their texts.

    It is fitted to finite values, with ``log`` to those above zero; its ends are ticks. Ticks are whole numbers if
    ``whole``, and powers of ten if ``log``.
    """

    def __init__(
        self, values: Iterable[float], start: float, end: float, *, whole: bool = False, log: bool = False
    ) -> None:
        kept = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(kept), max(kept)) if kept else (0.1, 1.0) if log else (0.0, 1.0)
        self.start, self.end, self.log = start, end, log
        if log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            last = max(last, first + 1)
            self.low, self.high = 10.0**first, 10.0**last
            self.ticks = tuple(10.0**k for k in range(first, last + 1, max(1, (last - first) // 6)))
            self.texts = [f"{t:g}" for t in self.ticks]
            return
        if high == low:
            low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
        rough = (high - low) / 5
        power: float = 10.0 ** math.floor(math.log10(rough))
        step = next(f * power for f in (WHOLE if whole else ROUND) if f * power >= rough * (1 - 1e-9))
        step = max(1.0, step) if whole else step
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        self.ticks = tuple(float(f"{k * step:.12g}") for k in range(first, max(last, first + 1) + 1))
        self.low, self.high = self.ticks[0], self.ticks[-1]
        step = self.ticks[1] - self.ticks[0]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        digits += not math.isclose(round(step, digits), step)  # a step of 2.5 needs a digit more
        form = "g" if max(map(abs, self.ticks)) >= 1e6 or digits > 5 else f".{digits}f"
        self.texts = [f"{t:{form}}" if form == "g" else f"{t:{form}}".replace("-", "−") for t in self.ticks]

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def plain(text: object) -> str:
    """Return text that is safe between tags and in attributes."""
    return str(escape(_ILLEGAL.sub("", str(text))))


def shorten(text: object, room: float) -> str:
    """Cut text that is wider than some pixels, with an ellipsis."""
    whole, n = _ILLEGAL.sub("", str(text)), max(2, int(room / CHARACTER))
    return whole if len(whole) <= n else whole[: n - 1] + "…"


def width_of(texts: Iterable[str], least: float, most: float = math.inf) -> float:
    """Estimate the width of the widest text in pixels, within two bounds."""
    return min(most, max([least, *(len(text) * CHARACTER for text in texts)]))


def number(value: float) -> str:
    """Return a coordinate with at most three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def tag(name: str, content: str = "", **attributes: object) -> str:
    """Write one element; underscores in names of attributes become hyphens."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else plain(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def colour(name: str | int) -> str:
    """Return a colour by its name, or the colour of a series by its number; there are eight of these."""
    key = name if isinstance(name, str) else f"series-{name % N_SERIES + 1}"
    return f"var(--chart-{key},{LIGHT[key]})"


class Plot:
    """An SVG chart: marks, and the same numbers as a description for readers who do not see it."""

    def __init__(self, title: str, left: float = 8.0, width: float = WIDTH) -> None:
        self.title, self.width = title, width
        self.description: list[str] = []
        self.parts = [self.text(title, left, 18, strong=True)]

    def text(
        self, text: object, x: float, y: float, ink: str = "ink", *, strong: bool = False, **attributes: Any
    ) -> str:
        """Write text at a point; the style sheet of a page has rules for its classes."""
        return tag(
            "text", plain(text), class_=f"{ink} strong" if strong else ink, x=float(x), y=float(y),
            fill=colour(ink), font_weight=600 if strong else None, **attributes,
        )  # fmt: skip

    def x_axis(self, across: Scale, y: float, label: str) -> None:
        """Draw the line, values and label of a scale to the right."""
        parts = [tag("line", x1=across.start, x2=across.end, y1=y, y2=y, stroke=colour("soft"))]
        for tick, text in zip(across.ticks, across.texts, strict=True):
            x = across(tick)
            parts.append(tag("line", x1=x, x2=x, y1=y, y2=y + 4, stroke=colour("soft")))
            parts.append(self.text(text, x, y + 17, "soft", text_anchor="middle"))
        parts.append(self.text(label, (across.start + across.end) / 2, y + 36, "soft", text_anchor="middle"))
        self.parts.append(tag("g", "".join(parts), class_="axis"))

    def y_axis(self, up: Scale, label: str, left: float, right: float) -> None:
        """Draw rules, their values and the label of an upward scale."""
        parts = []
        for tick, text in zip(up.ticks, up.texts, strict=True):
            y, rule = up(tick), colour("soft" if tick == 0 else "rule")
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, stroke=rule, stroke_width=1))
            parts.append(self.text(text, left - 6, y, "soft", text_anchor="end", **BESIDE))
        middle = (up.start + up.end) / 2
        turned = f"rotate(-90 {FONT_SIZE + 2} {number(middle)})"
        parts.append(self.text(label, FONT_SIZE + 2, middle, "soft", text_anchor="middle", transform=turned))
        self.parts.append(tag("g", "".join(parts), class_="axis"))

    def item(self, kind: str, name: str, text: str, marks: str, **data: str) -> None:
        """Add the marks of one item, with its numbers as text under the pointer and in the description."""
        self.parts.append(tag("g", marks + tag("title", plain(f"{name}: {text}")), class_=kind, **data))
        self.description.append(f"{name}: {text}")

    def markup(self, height: float, *, empty: tuple[float, float] | None = None) -> Markup:
        """Return the whole chart as an SVG element; an empty one has a note at a place."""
        if empty is not None:
            self.parts.append(self.text("no data", *empty, "soft", text_anchor="middle"))
        head = tag("title", plain(self.title)) + tag("desc", plain("; ".join(self.description)))
        return Markup(tag(
            "svg", head + "\n" + "\n".join(part for part in self.parts if part) + "\n",
            class_="chart", role="img", aria_label=self.title, viewBox=f"0 0 {number(self.width)} {number(height)}",
            width=number(self.width), height=number(height), font_family=FONT, font_size=FONT_SIZE,
        ))  # fmt: skip


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str, y_label: str,
    log_y: bool = False, width: float = WIDTH,
) -> Markup:  # fmt: skip
    """Draw the (x, y) points of each series joined by a line; colour and dash differ between series.

    With ``log_y`` the vertical scale has powers of ten, and values that are not above zero are left out.
    """
    plot = Plot(title, LEFT, width)
    finite = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    kept = {name: [p for p in points if p[1] > 0 or not log_y] for name, points in finite.items()}
    points = [p for of_series in kept.values() for p in of_series]
    strokes: list[dict[str, Any]] = [
        {"stroke": colour(i), "stroke_width": 2, "stroke_dasharray": DASHES[i % len(DASHES)] or None}
        for i in range(len(kept))
    ]
    top, x, y = TOP, LEFT, TOP + 4
    for name, stroke in zip(kept, strokes, strict=True) if len(kept) > 1 else ():  # samples of lines, in rows
        text = shorten(name, 230)
        need = len(text) * CHARACTER + 40
        if x + need > width - RIGHT and x > LEFT:
            x, y = LEFT, y + 18
        plot.parts.append(tag("line", x1=x, x2=x + 22, y1=y - 4, y2=y - 4, **stroke) + plot.text(text, x + 28, y))
        x, top = x + need, y + 14
    bottom = top + PLOT_HEIGHT
    whole = all(float(x).is_integer() for x, _ in points)
    across = Scale([x for x, _ in points], LEFT, width - RIGHT - 10, whole=whole)
    up = Scale([y for _, y in points], bottom, top, log=log_y)
    plot.y_axis(up, y_label, LEFT, width - RIGHT)
    plot.x_axis(across, bottom, x_label)
    for i, (name, of) in enumerate(kept.items()):
        if not of:
            plot.description.append(f"{name}: no value")
            continue
        plot.description.append(f"{name}: {of[0][1]:.5g} at {of[0][0]:g} to {of[-1][1]:.5g} at {of[-1][0]:g}")
        joined = " ".join(f"{number(across(x))},{number(up(y))}" for x, y in of)
        mark = tag("polyline", points=joined, fill="none", **strokes[i])
        if len(of) <= MARKS_UP_TO:
            for x, y in of:
                shown = tag("title", plain(f"{name}: {x:g}, {y:.5g}"))
                mark += tag("circle", shown, cx=across(x), cy=up(y), r=3.0, fill=colour(i))
        plot.parts.append(tag("g", mark, class_="series", data_name=name))
    return plot.markup(bottom + 44, empty=None if points else (width / 2, bottom - PLOT_HEIGHT / 2))


def interval_plot(rows: Sequence[tuple[str, float, float, float]], *, title: str, x_label: str) -> Markup:
    """Draw a forest plot: a point with its interval for each (name, value, low, high), and a line at zero.

    A value without finite ends has no interval.
    """
    plot = Plot(title)
    room = width_of([row[0] for row in rows], 60.0, 260.0) + 16
    texts = []
    for _, value, low, high in rows:
        ends = f" [{low:+.4f}, {high:+.4f}]" if math.isfinite(low) and math.isfinite(high) else ""
        texts.append(f"{value:+.4f}{ends}".replace("-", "−") if math.isfinite(value) else "no value")
    right = WIDTH - width_of(texts, 40.0) - 24
    across = Scale([0.0, *chain.from_iterable(row[1:] for row in rows)], room + 10, right)
    height = 24.0
    bottom = TOP + height * max(1, len(rows)) + 6
    zero = across(0.0)
    plot.x_axis(across, bottom, x_label)
    rule: dict[str, Any] = {"x1": zero, "x2": zero, "y1": TOP, "y2": bottom}
    plot.parts.append(tag("line", class_="zero", **rule, stroke=colour("soft"), stroke_dasharray="4 3"))
    for i, ((name, value, low, high), text) in enumerate(zip(rows, texts, strict=True)):
        y = TOP + height * (i + 0.5)
        row = plot.text(shorten(name, room - 8), room, y, text_anchor="end", **BESIDE)
        row += plot.text(text, right + 14, y, "soft", **BESIDE)
        if math.isfinite(low) and math.isfinite(high):
            at: dict[str, Any] = {"x1": across(low), "x2": across(high), "y1": y, "y2": y}
            row += tag("line", class_="interval", **at, stroke=colour(0), stroke_width=3)
        if math.isfinite(value):
            corner = {"x": across(value) - 4, "y": y - 4}
            row += tag("rect", "", class_="value", **corner, width=8.0, height=8.0, fill=colour("ink"))
        plot.item("row", name, text, row, data_name=name)
    return plot.markup(bottom + 44, empty=None if rows else (WIDTH / 2, bottom - 12))


Draw = Callable[[float, float, str, Scale], str] | None
"""Draws an item: its height, half its width, its colour, and the scale; None for one without a value."""


def box_plot(groups: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, x_label: str) -> Markup:
    """Draw a box of the values of each method in each group, an organ for example.

    The mean is a square and the median a bar, as in the paper's Fig. 1.
    """
    plot = Plot(title)
    items: dict[str, dict[str, tuple[str, Draw]]] = {g: {} for g in groups}
    shown: list[float] = []
    for group, methods in groups.items():
        for method, values in methods.items():
            box = summary(values)
            if box is None:
                items[group][method] = "no value", None
                continue
            text = (
                f"mean {box['mean']:.4g}, median {box['median']:.4g}, "
                f"quartiles {box['lower']:.4g} to {box['upper']:.4g}, n {box['n']}"
            )
            items[group][method] = text, partial(_box, box)
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


def _box(box: Mapping[str, Any], y: float, half: float, ink: str, across: Scale) -> str:
    at = {name: across(value) for name, value in box.items() if isinstance(value, float)}
    mark = colour("mark")
    parts = [
        tag("line", class_="whisker", x1=at[a], x2=at[b], y1=y, y2=y, stroke=ink)
        for a, b in (("low", "lower"), ("upper", "high"))
    ]
    parts += [
        tag("line", x1=at[end], x2=at[end], y1=y - half / 2, y2=y + half / 2, stroke=ink) for end in ("low", "high")
    ]
    parts += [
        tag("rect", class_="box", x=at["lower"], y=y - half, width=at["upper"] - at["lower"], height=2 * half,
            fill=ink, fill_opacity=0.16, stroke=ink),
        tag("line", class_="median", x1=at["median"], x2=at["median"], y1=y - half, y2=y + half, stroke=mark,
            stroke_width=2),
        tag("rect", class_="mean", x=at["mean"] - 3, y=y - 3, width=6.0, height=6.0, fill=mark),
    ]  # fmt: skip
    circles = (across(v) for v in box["outliers"])
    return "".join(
        [*parts, *(tag("circle", class_="outlier", cx=x, cy=y, r=2.2, fill="none", stroke=ink) for x in circles)]
    )


def bar_chart(groups: Mapping[str, Mapping[str, tuple[float, float]]], *, title: str, x_label: str) -> Markup:
    """Draw a bar for the (value, spread) of each member in each group, a class for example.

    A whisker shows one spread to each side; a spread of NaN or 0 has none.
    """
    plot = Plot(title)
    items: dict[str, dict[str, tuple[str, Draw]]] = {g: {} for g in groups}
    shown = [0.0]
    for group, members in groups.items():
        for member, (value, given) in members.items():
            spread = given if math.isfinite(given) else 0.0
            text = f"{value:.4g} ± {spread:.2g}" if spread > 0 else f"{value:.4g}"
            items[group][member] = text, partial(_bar, value, spread) if math.isfinite(value) else None
            shown += [value - spread, value + spread]
    return _grouped(plot, items, shown, x_label)


def _bar(value: float, spread: float, y: float, half: float, ink: str, across: Scale) -> str:
    x, zero, soft = across(value), across(0.0), colour("ink")
    bar = tag(
        "rect", class_="bar", x=min(x, zero), y=y - half, width=abs(zero - x), height=2 * half, fill=ink,
        fill_opacity=0.75, stroke=ink,
    )  # fmt: skip
    if spread <= 0:
        return bar
    ends = [across(value - spread), across(value + spread)]
    stem = tag("line", class_="spread", x1=ends[0], x2=ends[1], y1=y, y2=y, stroke=soft)
    return bar + stem + "".join(tag("line", x1=e, x2=e, y1=y - 4, y2=y + 4, stroke=soft) for e in ends)


def _grouped(
    plot: Plot, items: Mapping[str, Mapping[str, tuple[str, Draw]]], values: Sequence[float], label: str
) -> Markup:
    """Draw groups one below the other, a line for each item with its name; all have the same scale."""
    names = list(dict.fromkeys(name for group in items.values() for name in group))
    room = width_of(names, 40.0, LABEL_ROOM) + 10
    columns, ends = [list(items)], np.cumsum([max(1, len(group)) + 1 for group in items.values()])
    if len(items) > 1 and ends[-1] > MOST_ROWS:  # two columns of about the same height
        first = max(1, int(np.argmin(np.abs(ends - ends[-1] / 2))) + 1)
        columns = [list(items)[:first], list(items)[first:]]
    width = (WIDTH - (len(columns) - 1) * COLUMN_GAP) / len(columns)
    lowest = TOP
    for n, groups in enumerate(columns):
        start = n * (width + COLUMN_GAP)
        across = Scale(values, start + room, start + width - END)
        y = TOP + sum(LINE * (1 + len(items[group])) + GROUP_GAP for group in groups)
        lowest = max(lowest, y)
        if groups:
            rules = "".join(
                tag("line", x1=across(t), x2=across(t), y1=TOP, y2=y, stroke=colour("soft" if t == 0 else "rule"))
                for t in across.ticks
            )
            plot.parts.append(tag("g", rules, class_="rules"))
            plot.x_axis(across, y, label)
        y = TOP
        for group in groups:
            heading = shorten(group, across.end - across.start + room)
            plot.parts.append(plot.text(heading, start + 8, y + LINE / 2, strong=True, **BESIDE))
            y += LINE
            for name, (text, draw) in items[group].items():
                middle = y + LINE / 2
                row = plot.text(
                    shorten(name, LABEL_ROOM), across.start - 8, middle, "soft", text_anchor="end", **BESIDE
                )
                if draw is None:
                    row += plot.text("×", across.start + 8, middle, "soft", text_anchor="middle", **BESIDE)
                else:
                    row += draw(middle, LINE * 0.3, colour(names.index(name)), across)
                plot.item("item", f"{group}, {name}", text, row, data_group=group, data_name=name)
                y += LINE
            y += GROUP_GAP
    return plot.markup(lowest + 48, empty=None if items else (LEFT + 60, TOP + 20))


Strip = tuple[str, str, Sequence[tuple[str, float]], float, frozenset[str]]
"""Name of a measure, format of its numbers, its values by name, their median, and the names of outliers."""


def strip_plot(strips: Sequence[Strip], *, title: str) -> Markup:
    """Draw a line of dots for each measure; outliers are large, red, and the farthest have their names."""
    plot = Plot(title)
    room = width_of([label for label, *_ in strips], 60.0, 200.0) + 16
    for n, (label, form, values, median, outlying) in enumerate(strips):
        y = TOP + STRIP * (n + 0.5)
        shown = [(name, value) for name, value in values if math.isfinite(value)]
        across = Scale([value for _, value in shown], room + 10, WIDTH - 20)
        middle, soft = across(median), colour("soft")
        parts = [
            plot.text(shorten(label, room - 8), room, y, text_anchor="end", **BESIDE),
            tag("line", x1=across.start, x2=across.end, y1=y, y2=y, stroke=colour("rule")),
            tag("line", class_="median", x1=middle, x2=middle, y1=y - 9, y2=y + 9, stroke=soft, stroke_width=2),
        ]
        ticks = zip(across.ticks, across.texts, strict=True)
        parts += [plot.text(text, across(tick), y + 22, "soft", text_anchor="middle") for tick, text in ticks]
        farthest = sorted((abs(value - median), name) for name, value in shown if name in outlying)[-NAMED:]
        named = {name for _, name in farthest}
        for name, value in shown:
            far, x = name in outlying, across(value)
            parts.append(tag(
                "circle", tag("title", plain(f"{name}: {value:{form}}")), class_="far" if far else "near",
                cx=x, cy=y, r=5.0 if far else 3.5, fill=colour("mark" if far else 0), fill_opacity=1 if far else 0.45,
            ))  # fmt: skip
            if name in named:
                parts.append(plot.text(shorten(name, 120), x, y - 13, text_anchor="middle"))
        plot.parts.append(tag("g", "".join(parts), class_="strip", data_name=label))
        outliers = ", ".join(sorted(outlying)) or "none"
        plot.description.append(f"{label}: median {median:{form}}, outliers {outliers}")
    return plot.markup(TOP + STRIP * len(strips) + 8)
