"""Checks that every metric passes, and a plug-in should: ``python -m regweave.study.conformance NAME``.

NAME is a metric that is installed, found in a folder of ``REGWEAVE_PLUGINS``, or was added by the program.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from regweave import metrics
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.threads import kernel_threads
from regweave.types import Float32Array, Geometry

SPACING = (2.0, 1.5, 1.0)


def smooth_image(seed: int, shape: tuple[int, int, int] = (20, 18, 23)) -> Float32Array:
    """Return blurred noise from 0 to 1 with an empty margin."""
    image = np.random.default_rng(seed).random(shape)
    for axis in range(3):
        image = (np.roll(image, 1, axis) + 2 * image + np.roll(image, -1, axis)) / 4
    image = (image - image.min()) / (image.max() - image.min())
    image[:, :, :4] = 0.0
    return np.ascontiguousarray(image, dtype=np.float32)


def grid_of(shape: tuple[int, int, int], spacing_mm: float = 8.0, support: int | None = None) -> ControlGrid:
    """Return control points for an image of that shape."""
    return ControlGrid.cover(Geometry(shape, np.diag([*SPACING, 1.0])), spacing_mm, support)


def prepared(metric: Any, image: Float32Array) -> Float32Array:
    """Return what ``features`` of a metric is given."""
    found: Float32Array = getattr(metric, "prepare", lambda i: i)(image)
    return found


def _features(metric: Any, *images: Float32Array) -> list[Float32Array]:
    return [metric.features(prepared(metric, image), metric.Options()) for image in images]


def volume_equals_cost(metric: Any) -> None:
    """Give a ``volume`` that has shape (nodes, labels), is float32, and equals ``cost`` of each shifted image."""
    options, images = metric.Options(), (smooth_image(0), smooth_image(1))
    f, m = _features(metric, *images)
    labels = LabelSet((np.array([-2.3, 0.0, 1.0]), np.array([-0.5, 0.25]), np.array([-30.0, -1.5, 0.0, 0.75, 3.0])))
    for support in (None, 6, 3):
        grid = grid_of(images[0].shape, support=support)
        fast = metric.volume(f, m, grid, labels.offsets, options)
        slow = np.stack([metric.cost(f, shift(m, d), grid, options) for d in labels.vectors], axis=1)
        _require(fast.shape == (grid.n_nodes, labels.n_labels), f"volume has shape {fast.shape}")
        _require(fast.dtype == np.float32, f"volume is {fast.dtype}, not float32")
        # A histogram jumps when rounding moves a voxel over a bin edge, so a few values may differ by one count.
        off = np.abs(fast - slow)
        share = 0.01 if hasattr(metric, "prepare") else 0.0
        _require((off > 2e-5).mean() <= share and off.max() < 0.02, f"volume and cost differ by up to {off.max():.3g}")


def minimum_at_the_planted_shift(metric: Any) -> None:
    """Find the smallest sum over all nodes at the shift between two images."""
    moved, options = prepared(metric, smooth_image(3)), metric.Options()
    planted = [1.0, -2.0, 1.0]
    f, m = (metric.features(image, options) for image in (shift(moved, np.array(planted)), moved))
    labels = LabelSet.cube(5, np.ones(3))
    total = metric.volume(f, m, grid_of(moved.shape[-3:]), labels.offsets, options).sum(axis=0)
    found = labels.vectors[total.argmin()].tolist()
    _require(found == planted, f"the minimum is at {found}, planted was {planted}")


def equal_images_cost_nothing(metric: Any) -> None:
    """Give no negative costs, and 0 where both images are equal."""
    (f,) = _features(metric, smooth_image(4))
    costs = metric.volume(f, f, grid_of((20, 18, 23)), LabelSet.cube(3, np.ones(3)).offsets, metric.Options())
    _require(costs.min() >= -1e-6, f"a cost is {costs.min():.3g}")
    _require(np.abs(costs[:, 13]).max() < 1e-5, f"equal images cost {np.abs(costs[:, 13]).max():.3g}")


def same_bits_for_any_thread_count(metric: Any) -> None:
    """Leave the inputs unchanged, and give the same bits for any number of threads."""
    options = metric.Options()
    f, m = _features(metric, smooth_image(5), smooth_image(6))
    copies, labels, results = (f.copy(), m.copy()), LabelSet.cube(3, np.full(3, 0.7)), []
    for n in (1, 2, 3):
        with kernel_threads(n):
            results.append(metric.volume(f, m, grid_of((20, 18, 23)), labels.offsets, options))
    _require(all(np.array_equal(results[0], r) for r in results[1:]), "results depend on the number of threads")
    _require(np.array_equal(f, copies[0]) and np.array_equal(m, copies[1]), "volume changes its inputs")


def flat_images_are_finite(metric: Any) -> None:
    """Give finite costs for an image without contrast, the same for every shift."""
    (f,) = _features(metric, np.zeros((16, 16, 16), dtype=np.float32))
    costs = metric.volume(f, f, grid_of((16, 16, 16)), LabelSet.cube(3, np.ones(3)).offsets, metric.Options())
    _require(bool(np.isfinite(costs).all()), "a cost of a flat image is not finite")
    _require(np.ptp(costs, axis=1).max() == 0, "costs of a flat image depend on the shift")


CHECKS: tuple[Callable[[Any], None], ...] = (
    volume_equals_cost, minimum_at_the_planted_shift, equal_images_cost_nothing, same_bits_for_any_thread_count,
    flat_images_are_finite,
)  # fmt: skip
"""Each takes a metric and raises AssertionError with what is wrong."""


def check_metric(name: str) -> dict[str, str | None]:
    """Run every check on a metric; return what is wrong by name of the check, None where it passes.

    >>> check_metric("sad")["minimum_at_the_planted_shift"] is None
    True
    """
    metric = metrics.get(name)
    found: dict[str, str | None] = {}
    for check in CHECKS:
        try:
            check(metric)
            found[check.__name__] = None
        except AssertionError as error:
            found[check.__name__] = str(error)
        except Exception as error:  # every exception of a plug-in is a finding
            found[check.__name__] = f"{type(error).__name__}: {error}"
    return found


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def main(names: Sequence[str]) -> int:
    """Check metrics by name and print a line for each check; 1 if one fails."""
    failed = 0
    for name in names:
        for check, problem in check_metric(name).items():
            sys.stdout.write(f"{name}  {check.replace('_', ' '):<34} {'passes' if problem is None else problem}\n")
            failed += problem is not None
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
