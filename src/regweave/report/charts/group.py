"""Group view of many registrations: how each measure is spread, and who lies apart on the bad side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regweave.report.charts.strips import Strip

LEAST = 5
"""A group of fewer registrations has no outliers."""
REACH = 1.5
"""An outlier lies this many ranges of the quartiles beyond them, as Tukey drew boxes."""
BAD_SIDE = {"Dice after": -1, "change": -1, "HD95 mm": 1, "folding %": 1, "seconds": 1}
"""Measures that are looked at, and the side on which a value is bad."""


@dataclass(frozen=True)
class Apart:
    """A registration that lies apart from its group: its place in the list, the measure, both values as text."""

    place: int
    measure: str
    value: str
    median: str


def spread_of(
    names: Sequence[str], columns: Sequence[tuple[str, str]], values: Sequence[Sequence[float]]
) -> tuple[list[Strip], list[Apart]]:
    """Return a strip for each measure, and the registrations that lie apart, the farthest first.

    Parameters
    ----------
    names : sequence of str
        Registrations.
    columns : sequence of (title, format)
    values : sequence of sequences
        A number for each column of each registration, NaN for none.

    Examples
    --------
    >>> dice = [0.8, 0.81, 0.82, 0.83, 0.2]
    >>> strips, apart = spread_of("abcde", [("Dice after", ".2f")], [[d] for d in dice])
    >>> strips[0].far, apart[0].value
    (frozenset({'e'}), '0.20')
    """
    strips: list[Strip] = []
    found: list[tuple[float, Apart]] = []
    for column, (title, form) in enumerate(columns):
        numbers = np.array([row[column] for row in values], dtype=np.float64)
        known = numbers[np.isfinite(numbers)]
        if title not in BAD_SIDE or len(known) < LEAST or np.ptp(known) == 0:
            continue
        lower, median, upper = np.percentile(known, (25, 50, 75))
        edge, side = (upper if BAD_SIDE[title] > 0 else lower), BAD_SIDE[title]
        beyond = side * (numbers - edge) - REACH * (upper - lower)
        far = [n for n in np.flatnonzero(beyond > 1e-9).tolist() if np.isfinite(numbers[n])]
        strips.append(
            Strip(
                title,
                form,
                list(zip(names, numbers.tolist(), strict=True)),
                float(median),
                frozenset(names[n] for n in far),
            )
        )
        scale = max(float(upper - lower), 1e-9)
        found += [(beyond[n] / scale, Apart(n, title, f"{numbers[n]:{form}}", f"{median:{form}}")) for n in far]
    return strips, [apart for _, apart in sorted(found, key=lambda pair: -pair[0])]
