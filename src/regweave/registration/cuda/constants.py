"""Cache of small arrays on a GPU.

Tables, label offsets and supports of nodes stay there from step to step and from pair to pair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.label_set import LabelSet

KEPT = 256
"""So many stay; those used last go last."""


class Constants:
    """Cache of values on one GPU, by what they are made of.

    Examples
    --------
    >>> constants = Constants(None, None)
    >>> constants("two", lambda: [2]) is constants("two", lambda: [2])
    True
    """

    def __init__(self, kernels: Any, queue: Any) -> None:
        self._kernels, self._queue = kernels, queue
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def __call__(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made now if it is not kept."""
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def array(self, values: Any) -> Any:
        """Return an array of the host on the GPU."""
        return self((values.shape, values.dtype.char, values.tobytes()), lambda: self._queue.upload(values))

    def ones(self, rows: int, columns: int) -> Any:
        """Return an array (rows, columns) on the GPU, its first column 1, the others 0."""

        def made() -> Any:
            values = np.zeros((rows, columns), dtype=np.float32)
            values[:, 0] = 1
            return self._queue.upload(values)

        return self(("ones", rows, columns), made)

    def search(self, grid: ControlGrid, labels: LabelSet) -> Any:
        """Return the supports of the nodes of a grid and the shifts of labels."""
        numbers = tuple(a.tobytes() for a in (grid.origin, grid.spacing, *labels.offsets))
        key = ("search", grid.image_shape, grid.nodes, grid.support, numbers)
        return self(
            key,
            lambda: self._kernels.Search(self._queue, grid.image_shape, grid.starts, grid.support, labels.offsets),
        )
