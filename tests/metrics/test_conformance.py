"""Every metric keeps the same promises; a new file in regweave.metrics is tested by being there."""

from __future__ import annotations

import numpy as np
import pytest
import pywt

from regweave import _core, metrics
from regweave.errors import UsageError
from regweave.metrics import dwt, mi, mind, ncc
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.label_set import LabelSet, shift
from regweave.types import Geometry

SPACING = (2.0, 1.5, 1.0)


def smooth_image(seed: int, shape: tuple[int, int, int] = (20, 18, 23)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    image = rng.random(shape)
    for axis in range(3):
        image = (np.roll(image, 1, axis) + 2 * image + np.roll(image, -1, axis)) / 4
    image = (image - image.min()) / (image.max() - image.min())
    image[:, :, :4] = 0.0
    return np.ascontiguousarray(image, dtype=np.float32)


def grid_of(shape: tuple[int, int, int], spacing_mm: float = 8.0, support: int | None = None) -> ControlGrid:
    return ControlGrid.cover(Geometry(shape, np.diag([*SPACING, 1.0])), spacing_mm, support)


def prepared(metric, image: np.ndarray) -> np.ndarray:
    """What the metric's ``features`` is given."""
    return getattr(metric, "prepare", lambda i: i)(image)


@pytest.fixture(params=metrics.available())
def metric(request):
    return metrics.get(request.param)


@pytest.mark.parametrize("support", [None, 6, 3])
def test_volume_equals_the_readable_definition(metric, support):
    fixed, moved = (prepared(metric, smooth_image(s)) for s in (0, 1))
    options = metric.Options()
    f, m = metric.features(fixed, options), metric.features(moved, options)
    grid = grid_of(fixed.shape[-3:], support=support)
    labels = LabelSet((np.array([-2.3, 0.0, 1.0]), np.array([-0.5, 0.25]), np.array([-30.0, -1.5, 0.0, 0.75, 3.0])))
    fast = metric.volume(f, m, grid, labels.offsets, options)
    slow = np.stack([metric.cost(f, shift(m, d), grid, options) for d in labels.vectors], axis=1)
    assert fast.shape == (grid.n_nodes, labels.n_labels)
    assert fast.dtype == np.float32
    # A histogram jumps when rounding moves a voxel over a bin edge, so a few MI values may differ by one count.
    off = np.abs(fast - slow) > 2e-5
    assert off.mean() <= (0.01 if hasattr(metric, "prepare") else 0.0)
    assert np.abs(fast - slow).max() < 0.02


def test_minimum_at_the_planted_shift(metric):
    moved = prepared(metric, smooth_image(3))
    options = metric.Options()
    fixed = shift(moved, np.array([1.0, -2.0, 1.0]))
    grid = grid_of(moved.shape[-3:])
    labels = LabelSet.cube(5, np.ones(3))
    total = metric.volume(
        metric.features(fixed, options), metric.features(moved, options), grid, labels.offsets, options
    ).sum(axis=0)
    assert labels.vectors[total.argmin()].tolist() == [1.0, -2.0, 1.0]


def test_perfect_match_costs_nothing_and_nothing_is_negative(metric):
    image = prepared(metric, smooth_image(4))
    options = metric.Options()
    f = metric.features(image, options)
    grid = grid_of(image.shape[-3:])
    costs = metric.volume(f, f, grid, LabelSet.cube(3, np.ones(3)).offsets, options)
    assert costs.min() >= -1e-6
    assert np.abs(costs[:, 13]).max() < 1e-5


def test_inputs_unmodified_and_same_bits_for_any_thread_count(metric):
    fixed, moved = (prepared(metric, smooth_image(s)) for s in (5, 6))
    options = metric.Options()
    f, m = metric.features(fixed, options), metric.features(moved, options)
    copies = f.copy(), m.copy()
    labels = LabelSet.cube(3, np.full(3, 0.7))
    results = []
    before = _core.threads()
    try:
        for n in (1, 2, 3):
            _core.set_threads(n)
            results.append(metric.volume(f, m, grid_of(fixed.shape[-3:]), labels.offsets, options))
    finally:
        _core.set_threads(before)
    assert all(np.array_equal(results[0], r) for r in results[1:])
    assert np.array_equal(f, copies[0])
    assert np.array_equal(m, copies[1])


def test_flat_patches_are_finite(metric):
    flat = np.zeros((16, 16, 16), dtype=np.float32)
    options = metric.Options()
    f = metric.features(prepared(metric, flat), options)
    costs = metric.volume(f, f, grid_of(flat.shape), LabelSet.cube(3, np.ones(3)).offsets, options)
    assert np.isfinite(costs).all()
    assert np.ptp(costs, axis=1).max() == 0


def test_correlation_is_the_mean_of_its_channels():
    options, grid = ncc.Options(), grid_of((20, 18, 23))
    fixed, moved = (np.stack([smooth_image(s), smooth_image(s + 1) ** 2]) for s in (10, 20))
    labels = LabelSet.cube(3, np.full(3, 0.7))
    both = ncc.volume(fixed, moved, grid, labels.offsets, options)
    each = [ncc.volume(fixed[c : c + 1], moved[c : c + 1], grid, labels.offsets, options) for c in (0, 1)]
    np.testing.assert_array_equal(both, np.mean(each, axis=0, dtype=np.float32))
    np.testing.assert_allclose(ncc.cost(fixed, moved, grid, options), both[:, 13], atol=2e-5)
    assert not np.allclose(each[0], each[1])


def test_unknown_metric_lists_the_known():
    with pytest.raises(
        UsageError, match=r"unknown metric 'nnc'; did you mean ncc\? available: dwt, gradient, mi, .*ncc.*sad"
    ):
        metrics.get("nnc")


def test_dwt_equals_pywavelets_on_single_patches():
    fixed, moved = smooth_image(7), smooth_image(8)
    grid = grid_of(fixed.shape, support=8)
    costs = dwt.volume(fixed[None], moved[None], grid, LabelSet.cube(1, np.ones(3)).offsets, dwt.Options())[:, 0]
    wide = dwt.wavelet_support(grid)
    assert wide.support == (8, 8, 8)
    for node, (a, b) in enumerate(zip(wide.patches(fixed), wide.patches(moved), strict=True)):
        flat, _ = pywt.coeffs_to_array(pywt.wavedecn(b - a, "haar", mode="periodization", level=2))
        assert costs[node] == pytest.approx(np.abs(flat).mean(), abs=1e-5)


def test_mi_does_not_see_a_monotone_change_of_contrast_but_sad_does():
    moved = smooth_image(9)
    ranks = mi.prepare(moved), mi.prepare(np.sqrt(moved))
    assert np.abs(ranks[0] - ranks[1]).max() < 0.02


def test_mi_bins_follow_the_support():
    small, large = grid_of((40, 40, 40), support=8), grid_of((40, 40, 40), support=16)
    assert mi.n_bins(small, mi.Options()) == 8
    assert mi.n_bins(large, mi.Options()) == 16


def test_mind_survives_inverted_contrast():
    image = smooth_image(10)
    a, b = (mind.features(i, mind.Options()) for i in (image, 1 - image))
    assert np.abs(a - b).max() < 1e-4
    assert a.shape == (12, *image.shape)


def test_mind_equals_its_definition_in_numpy():
    image = smooth_image(11, (9, 8, 7))
    options = mind.Options(distance_voxels=2, radius_voxels=1)
    inside = np.array(image.shape) - 1
    distances = np.zeros((12, *image.shape))
    for c, (p, q) in enumerate(mind.PAIRS):
        for v in np.ndindex(image.shape):
            cube = [w for w in np.ndindex(3, 3, 3) if all(0 <= v[a] + w[a] - 1 <= inside[a] for a in range(3))]
            voxels = np.array([[v[a] + w[a] - 1 for a in range(3)] for w in cube])
            first, second = (image[tuple((voxels + 2 * np.array(o)).clip(0, inside).T)] for o in (p, q))
            distances[c][v] = ((first - second) ** 2).mean()
    distances -= distances.min(axis=0)
    noise = distances.mean(axis=0)
    noise = noise.clip(0.001 * noise.mean(), 1000 * noise.mean())
    assert np.abs(mind.features(image, options) - np.exp(-distances / noise)).max() < 1e-4
