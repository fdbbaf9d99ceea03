"""Image channels: an image preprocessed for one member of a bank, at one resolution."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from regweave import _core
from regweave.spatial.intensity import Window, apply_window, default_window, extrapolated, inside
from regweave.spatial.pyramid import Factors, shrink
from regweave.types import Float32Array, Modality, Volume

Prepare = Callable[[Float32Array], Float32Array]
CUT = 4.0  # Half the length of the smoothing kernel, in standard deviations
KEPT_VOXELS = 2**24  # Larger images are not kept under their windows


@dataclass(frozen=True)
class View:
    """Preprocessing of an image for one member: intensity window, smoothing, the metric's own map of intensities."""

    window: Window | None
    sigma_voxels: float
    prepare: Prepare | None

    @property
    def plain(self) -> bool:
        """True if nothing but a window is applied, voxel by voxel."""
        return self.prepare is None and not self.sigma_voxels


@dataclass
class Channels:
    """The views of one image, made once and kept for the present level.

    Beside a large image there is no room for it under each window: it is mapped again for each level, slab by slab.
    """

    image: Volume
    modality: Modality
    _full: dict[View, Float32Array] = field(default_factory=dict)
    _level: dict[tuple[View, Factors], Float32Array] = field(default_factory=dict)
    _raw: dict[Factors, Float32Array] = field(default_factory=dict)

    def view(self, view: View, factors: Factors) -> Float32Array:
        """Return the image under a view on the grid shrunk by ``factors``."""
        key = (view, factors)
        if key not in self._level:
            data = self._shrunken(View(view.window, 0.0, view.prepare), factors)
            if view.sigma_voxels:
                data = _core.gaussian(data[None], (view.sigma_voxels,) * 3, CUT)[0]
            self._level = {k: v for k, v in self._level.items() if k[1] == factors}
            self._level[key] = np.ascontiguousarray(data, dtype=np.float32)
        return self._level[key]

    def raw(self, factors: Factors) -> Float32Array:
        """Return the intensities themselves on the grid shrunk by ``factors``."""
        if factors not in self._raw:
            self._raw = {factors: np.ascontiguousarray(shrink(self.data, factors), dtype=np.float32)}
        return self._raw[factors]

    @cached_property
    def _default_window(self) -> Window:
        found = inside(self.image)
        return default_window(self.image.data if found is None else self.image.data[found], self.modality)

    @cached_property
    def data(self) -> Float32Array:
        """Intensities, beyond a mask those of its rim."""
        return extrapolated(self.image)

    def window(self, view: View) -> Window:
        """Return the intensities that a view maps to [0, 1]."""
        return view.window or self._default_window

    def _shrunken(self, view: View, factors: Factors) -> Float32Array:
        if view.prepare is not None or self.image.data.size <= KEPT_VOXELS or factors == (1, 1, 1):
            return shrink(self._mapped(view), factors)
        step = factors[0] * max(1, KEPT_VOXELS // (factors[0] * self.data[0].size))
        window = self.window(view)
        starts = range(0, len(self.data), step)
        return np.concatenate([shrink(apply_window(self.data[i : i + step], window), factors) for i in starts])

    def _mapped(self, view: View) -> Float32Array:
        if view not in self._full:
            data = apply_window(self.data, self.window(view))
            self._full[view] = data if view.prepare is None else view.prepare(data)
        return self._full[view]
