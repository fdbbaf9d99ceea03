"""Tolerant access to recorded values: a part that is missing or of another kind is empty, never an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: object) -> float:
    """Return a number, NaN for anything else.

    Examples
    --------
    >>> number(2), number(None), number("2")
    (2.0, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a table, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[Any]:
    """Return a list, an empty one for anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def records(value: object) -> list[Mapping[str, Any]]:
    """Return the tables of a list."""
    return [row for row in listed(value) if isinstance(row, Mapping)]


def signed(value: float, digits: int = 4) -> str:
    """Return a difference as text, a dash for none."""
    return "–" if math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def fixed(value: float, digits: int) -> str:
    """Return a number as text, a dash for none."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def interval(low: float, high: float) -> str:
    """Return two ends as text, a dash where one is missing."""
    return "–" if math.isnan(low) or math.isnan(high) else f"[{signed(low)}, {signed(high)}]"
