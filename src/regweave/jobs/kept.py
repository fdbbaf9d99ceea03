"""Least-recently-used cache bounded by bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Kept:
    """Values that can be computed again, kept as long as there is room; those used last go last.

    Parameters
    ----------
    limit_mb : float
        Megabytes of arrays that are kept. An array that two values share counts for each.

    Examples
    --------
    >>> kept = Kept(1.0)
    >>> kept("zeros", lambda: np.zeros(10)) is kept("zeros", lambda: np.ones(10))
    True
    """

    def __init__(self, limit_mb: float) -> None:
        self._limit = limit_mb * 2**20
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.found = 0

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made now if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                self.found += 1
                found: T = self._values[key][0]
                return found
        value = make()
        with self._lock:
            self._values[key] = (value, sum(a.nbytes for a in _arrays(value)))
            while self._values and sum(size for _, size in self._values.values()) > self._limit:
                self._values.popitem(last=False)
        return value


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Arrays that a value is made of."""
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for f in fields(value):
            yield from _arrays(getattr(value, f.name))
    elif isinstance(value, Mapping):
        yield from _arrays(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _arrays(part)
