"""GPU kernels of the metrics: which features each compares, and its cost volume.

A metric that is not in `METRICS` has no kernel; the host computes its costs, and they are uploaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from regweave import metrics
from regweave.metrics import dwt, mi, mind
from regweave.registration.cuda.constants import Constants
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Float32Array

MOST_COUNTED = 65535
"""A joint histogram counts no more voxels of a support than this."""


@dataclass(frozen=True)
class Asked:
    """Options of a metric, grid with its support, and what the GPU keeps."""

    options: Any
    grid: ControlGrid
    constants: Constants


@dataclass(frozen=True)
class GpuMetric:
    """Kernels of one metric.

    Parameters
    ----------
    features : callable
        From kernels, image (1, X, Y, Z) and options to features (C, X, Y, Z).
    costs : callable
        From kernels, search, both features, the row (N, L) to fill, and what is asked for.
    support : callable, optional
        Support that the metric makes of a node's, where it is not that one.
    maps : bool
        True if the features of structure maps are the maps themselves.
    single : bool
        True if the costs are those of one channel.
    fits : callable, optional
        Tells whether a support suits the kernels.
    """

    features: Callable[[Any, Any, Any], Any]
    costs: Callable[[Any, Any, Any, Any, Any, Asked], None]
    support: Callable[[ControlGrid], ControlGrid] | None = None
    maps: bool = False
    single: bool = False
    fits: Callable[[ControlGrid], bool] | None = None


def find(name: str) -> GpuMetric | None:
    """Return the kernels of a metric of the package; None for others, and for a plug-in that took its name."""
    return METRICS.get(name) if metrics.registry.origin(name).place == "regweave" else None


@lru_cache(maxsize=8)
def n_log_n(voxels: int) -> Float32Array:
    """Return n log n for counts from 0 to the voxels of a support."""
    n = np.arange(voxels + 1, dtype=np.float64)
    return np.asarray(n * np.log(np.maximum(n, 1)), dtype=np.float32)


def _plain(kernels: Any, image: Any, options: Any) -> Any:
    return image


def _gradient(kernels: Any, image: Any, options: Any) -> Any:
    return kernels.gradient_magnitude(image, options.sigma_voxels)


def _ngf(kernels: Any, image: Any, options: Any) -> Any:
    return kernels.normalised_gradient(image, options.sigma_voxels, options.edge)


def _mind(kernels: Any, image: Any, options: Any) -> Any:
    pairs = np.array(mind.PAIRS, dtype=np.int32) * np.int32(options.distance_voxels)
    return kernels.self_similarity(image.reshaped(image.shape[1:]), pairs, options.radius_voxels, *mind.NOISE_RANGE)


def _sad_costs(kernels: Any, search: Any, fixed: Any, moved: Any, out: Any, asked: Asked) -> None:
    kernels.sad_costs(search, fixed, moved, out)


def _ncc_costs(kernels: Any, search: Any, fixed: Any, moved: Any, out: Any, asked: Asked) -> None:
    kernels.ncc_costs(search, fixed, moved, out, asked.options.variance_floor, asked.options.squared)


def _ngf_costs(kernels: Any, search: Any, fixed: Any, moved: Any, out: Any, asked: Asked) -> None:
    kernels.ngf_costs(search, fixed, moved, out)


def _dwt_costs(kernels: Any, search: Any, fixed: Any, moved: Any, out: Any, asked: Asked) -> None:
    kernels.dwt_costs(search, fixed, moved, out)


def _mi_costs(kernels: Any, search: Any, fixed: Any, moved: Any, out: Any, asked: Asked) -> None:
    table = asked.constants.array(n_log_n(int(np.prod(asked.grid.support))))
    kernels.mi_costs(search, fixed, moved, out, mi.n_bins(asked.grid, asked.options), table)


def _countable(grid: ControlGrid) -> bool:
    return bool(np.prod(grid.support) <= MOST_COUNTED)


METRICS = {
    "sad": GpuMetric(_plain, _sad_costs, maps=True),
    "gradient": GpuMetric(_gradient, _sad_costs),
    "mind": GpuMetric(_mind, _sad_costs),
    "ncc": GpuMetric(_plain, _ncc_costs, maps=True, single=True),
    "ngf": GpuMetric(_ngf, _ngf_costs),
    "dwt": GpuMetric(_plain, _dwt_costs, support=dwt.wavelet_support),
    "mi": GpuMetric(_plain, _mi_costs, fits=_countable),
}
