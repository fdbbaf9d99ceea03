"""Line chart of the steps of one registration, coloured by the page's style."""

from __future__ import annotations

from collections.abc import Sequence

from regweave.report.page import escape

WIDTH, HEIGHT = 620.0, 180.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 24.0, 34.0
KEY_WIDTH = 230.0


def step_chart(
    title: str,
    series: Sequence[tuple[str, Sequence[float]]],
    *,
    groups: Sequence[str] = (),
    x_label: str = "step",
    number: str = ".3g",
    from_zero: bool = False,
) -> str:
    """Draw series over the number of the step.

    Parameters
    ----------
    title : str
        Plain text for readers that do not see the chart.
    series : sequence of (name, values)
        All of one length; the n-th has the class ``s<n>``.
    groups : sequence of str
        What group each step belongs to; a line is broken where the group changes.
    x_label : str
        Title of the horizontal axis.
    number : str
        Format of the numbers on the vertical axis.
    from_zero : bool
        Begin the vertical axis at 0.

    Returns
    -------
    str
        An ``<svg>``; empty where there is nothing to draw.
    """
    values = [v for _, row in series for v in row]
    if not values:
        return ""
    n = len(series[0][1])
    low, high = min(values), max(values)
    low = min(low, 0.0) if from_zero else low
    span = (high - low) or abs(high) or 1.0
    inner = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)

    def x(i: int) -> float:
        return LEFT + inner[0] * ((i + 0.5) / n)

    def y(v: float) -> float:
        return TOP + inner[1] * (1 - (v - low) / span)

    parts = [_frame(low, high, number, inner, x_label), _groups(groups, x)]
    for index, (name, row) in enumerate(series):
        for piece in _pieces(n, groups):
            points = " ".join(f"{x(i):.1f},{y(row[i]):.1f}" for i in piece)
            parts.append(f'<polyline class="s{index}" points="{points}"/>')
        parts += [
            f'<circle class="s{index}" cx="{x(i):.1f}" cy="{y(v):.1f}" r="2.5">'
            f"<title>{escape(name)}, {escape(x_label)} {i + 1}: {v:{number}}</title></circle>"
            for i, v in enumerate(row)
        ]
    keys = [
        f'<text class="s{i}" x="{LEFT + KEY_WIDTH * i:g}" y="12">{escape(name)}</text>'
        for i, (name, _) in enumerate(series)
    ]
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}{''.join(keys)}</svg>"
    )


def _frame(low: float, high: float, number: str, inner: tuple[float, float], x_label: str) -> str:
    bottom = TOP + inner[1]
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{high:{number}}</text>'
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">{low:{number}}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>'
    )


def _groups(groups: Sequence[str], x: object) -> str:
    assert callable(x)
    out, start = [], 0
    for i in range(1, len(groups) + 1):
        if i == len(groups) or groups[i] != groups[start]:
            middle = (x(start) + x(i - 1)) / 2
            out.append(f'<text x="{middle:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{escape(groups[start])}</text>')
            if i < len(groups):
                edge = (x(i - 1) + x(i)) / 2
                out.append(f'<path class="divide" d="M{edge:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
            start = i
    return "".join(out)


def _pieces(n: int, groups: Sequence[str]) -> list[list[int]]:
    """Split the steps into runs of one group."""
    pieces: list[list[int]] = []
    for i in range(n):
        if pieces and (not groups or groups[i] == groups[i - 1]):
            pieces[-1].append(i)
        else:
            pieces.append([i])
    return pieces
