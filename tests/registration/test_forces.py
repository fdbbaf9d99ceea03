"""Costs and forces of the refinement against plain numpy in float64 and numerical derivatives."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core, metrics
from regweave.registration.forces import PENALTIES

SHAPE = (9, 8, 10)
RADIUS, FLOOR, EPSILON = 2, 1e-4, 0.01


def images(channels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fixed and moved features, (C, X, Y, Z), and a weight of each voxel, some of them zero."""
    rng = np.random.default_rng(seed)
    smooth = [ndimage.gaussian_filter(rng.normal(size=(channels, *SHAPE)), (0, 1, 1, 1)) for _ in range(2)]
    weight = rng.random(SHAPE)
    weight[:2] = 0
    return (*(s.astype(np.float32) for s in smooth), weight.astype(np.float32))


def absolute(fixed, moved, weight) -> float:
    d = moved - fixed
    return float((weight * (np.sqrt(d**2 + EPSILON**2) - EPSILON).mean(axis=0)).sum())


def tensor(fixed, moved, weight) -> float:
    outer = [np.einsum("i...,j...->ij...", a.astype(float), a.astype(float)) for a in (fixed, moved)]
    return float((weight * 0.5 * ((outer[0] - outer[1]) ** 2).sum(axis=(0, 1))).sum())


def local_correlation(fixed, moved, floor, squared) -> np.ndarray:
    out = np.zeros(SHAPE)
    for index in np.ndindex(SHAPE):
        box = tuple(slice(max(i - RADIUS, 0), i + RADIUS + 1) for i in index)
        f, m = fixed[0][box], moved[0][box]
        cov = ((f - f.mean()) * (m - m.mean())).mean()
        norm = np.sqrt((f.var() + floor) * (m.var() + floor))
        out[index] = (cov / norm) ** 2 if squared else (cov + floor) / norm
    return out


def correlation(fixed, moved, weight) -> float:
    return float((weight * (1 - local_correlation(fixed, moved, FLOOR, False))).sum())


def squared_correlation(fixed, moved, weight) -> float:
    return float((weight * (1 - local_correlation(fixed, moved, FLOOR, True))).sum())


CASES = {
    "absolute": (2, absolute, lambda f, m, w, g: _core.absolute_force(f, m, w, g, EPSILON)),
    "tensor": (3, tensor, _core.tensor_force),
    "correlation": (1, correlation, lambda f, m, w, g: _core.correlation_force(f, m, w, g, RADIUS, FLOOR, False)),
    "squared": (1, squared_correlation, lambda f, m, w, g: _core.correlation_force(f, m, w, g, RADIUS, FLOOR, True)),
}


@pytest.mark.parametrize("case", CASES)
def test_cost_and_force(case):
    channels, slow, fast = CASES[case]
    fixed, moved, weight = images(channels)
    force = np.zeros((3, *SHAPE), dtype=np.float32)
    cost = fast(fixed, moved, weight, force)
    f, m, w = (a.astype(np.float64) for a in (fixed, moved, weight))
    assert cost == pytest.approx(slow(f, m, w), rel=1e-4)

    gradient = np.stack([np.stack(np.gradient(c)) for c in m])  # (C, 3, X, Y, Z)
    rng = np.random.default_rng(1)
    for _ in range(4):
        delta = rng.normal(size=(3, *SHAPE))
        along = (gradient * delta).sum(axis=1)
        t = 1e-5
        numerical = (slow(f, m + t * along, w) - slow(f, m - t * along, w)) / (2 * t)
        assert float((force * delta).sum()) == pytest.approx(numerical, rel=2e-3, abs=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_force_is_added_to_what_is_there_and_has_the_same_bits_for_any_thread_count(case):
    channels, _, fast = CASES[case]
    fixed, moved, weight = images(channels)
    alone = np.zeros((3, *SHAPE), dtype=np.float32)
    fast(fixed, moved, weight, alone)
    before, results = _core.threads(), []
    try:
        for n in (1, 2, 3):
            _core.set_threads(n)
            force = np.ones((3, *SHAPE), dtype=np.float32)
            results.append((fast(fixed, moved, weight, force), force))
    finally:
        _core.set_threads(before)
    np.testing.assert_allclose(results[0][1], 1 + alone, atol=1e-4)
    for cost, force in results[1:]:
        assert cost == results[0][0]
        assert np.array_equal(force, results[0][1])


def test_smoothness():
    rng = np.random.default_rng(2)
    u = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    factor = rng.random((3, 3)) + 0.5

    def slow(v) -> float:
        return 0.5 * sum(factor[c, a] * (np.diff(v[c], axis=a) ** 2).sum() for c in range(3) for a in range(3))

    force = np.zeros_like(u)
    assert _core.diffusion_force(u, force, factor.tolist()) == pytest.approx(slow(u.astype(np.float64)), rel=1e-5)
    for _ in range(4):
        delta = rng.normal(size=u.shape)
        numerical = (slow(u + 1e-4 * delta) - slow(u - 1e-4 * delta)) / 2e-4
        assert float((force * delta).sum()) == pytest.approx(numerical, rel=1e-4, abs=1e-3)
    still = np.full_like(u, 3.0)
    force = np.zeros_like(u)
    assert _core.diffusion_force(still, force, factor.tolist()) == 0
    assert np.abs(force).max() == 0


def test_bending():
    rng = np.random.default_rng(3)
    u = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    factor = rng.random((3, 3, 3)) + 0.5
    factor += factor.transpose(0, 2, 1)

    def slow(v) -> float:
        axes = [(c, a, b) for c in range(3) for a in range(3) for b in range(3)]
        return 0.5 * sum(factor[c, a, b] * (np.diff(np.diff(v[c], axis=a), axis=b) ** 2).sum() for c, a, b in axes)

    force = np.zeros_like(u)
    assert _core.bending_force(u, force, factor.tolist()) == pytest.approx(slow(u.astype(np.float64)), rel=1e-5)
    for _ in range(4):
        delta = rng.normal(size=u.shape)
        numerical = (slow(u + 1e-4 * delta) - slow(u - 1e-4 * delta)) / 2e-4
        assert float((force * delta).sum()) == pytest.approx(numerical, rel=1e-4, abs=1e-2)
    i, j, k = np.meshgrid(*(np.arange(float(n)) for n in SHAPE), indexing="ij")
    straight = np.stack([i + 2 * j - k + 3, 5 - i, k * 4]).astype(np.float32)
    assert _core.bending_force(straight, np.zeros_like(u), factor.tolist()) == 0


@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 1, 7), (3, 4, 1), (1, 1, 1)])
def test_thin_images_bend_along_their_long_axes_alone(shape):
    u = np.random.default_rng(4).normal(size=(3, *shape)).astype(np.float32)
    pairs = [(a, b) for a in range(3) for b in range(3)]
    slow = 0.5 * sum(float((np.diff(np.diff(u, axis=a + 1), axis=b + 1) ** 2).sum()) for a, b in pairs)
    assert _core.bending_force(u, np.zeros_like(u), [[[1.0] * 3] * 3] * 3) == pytest.approx(slow, rel=1e-5)


def test_stiffness_is_shared_by_both_ends_of_a_difference():
    rng = np.random.default_rng(4)
    u = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    stiffness = (rng.random(SHAPE) + 0.2).astype(np.float32)
    factor = rng.random((3, 3)) + 0.5

    def slow(v) -> float:
        total = 0.0
        for a in range(3):
            s = np.moveaxis(stiffness.astype(np.float64), a, 0)
            edge = np.moveaxis((s[1:] + s[:-1]) / 2, 0, a)
            total += sum(factor[c, a] * (edge * np.diff(v[c], axis=a) ** 2).sum() for c in range(3))
        return 0.5 * total

    force = np.zeros_like(u)
    found = _core.stiff_diffusion_force(u, stiffness, force, factor.tolist())
    assert found == pytest.approx(slow(u.astype(np.float64)), rel=1e-5)
    for _ in range(4):
        delta = rng.normal(size=u.shape)
        numerical = (slow(u + 1e-4 * delta) - slow(u - 1e-4 * delta)) / 2e-4
        assert float((force * delta).sum()) == pytest.approx(numerical, rel=1e-4, abs=1e-3)
    plain, one = np.zeros_like(u), np.zeros_like(u)
    energy = _core.diffusion_force(u, plain, factor.tolist())
    assert _core.stiff_diffusion_force(u, np.ones_like(stiffness), one, factor.tolist()) == pytest.approx(energy)
    np.testing.assert_allclose(one, plain, atol=1e-5)


def test_grids_must_agree():
    fixed, moved, weight = images(1)
    force = np.zeros((3, *SHAPE), dtype=np.float32)
    with pytest.raises(ValueError, match="one grid"):
        _core.absolute_force(fixed, moved[:, :-1].copy(), weight, force, EPSILON)
    with pytest.raises(ValueError, match="one channel"):
        _core.correlation_force(*images(2), force, RADIUS, FLOOR, False)


def test_correlation_of_several_channels_is_the_mean_over_them():
    fixed, moved, weight = images(2)
    options = metrics.get("ncc").Options(variance_floor=FLOOR)
    force = np.zeros((3, *SHAPE), dtype=np.float32)
    cost = PENALTIES["correlation"](fixed, moved, weight, force, RADIUS, options)
    each, costs = [], []
    for channel in range(2):
        part = np.zeros_like(force)
        alone = (np.ascontiguousarray(i[channel : channel + 1]) for i in (fixed, moved))
        costs.append(_core.correlation_force(*alone, weight, part, RADIUS, FLOOR, False))
        each.append(part)
    assert cost == pytest.approx(np.mean(costs), rel=1e-6)
    np.testing.assert_allclose(force, np.mean(each, axis=0), atol=1e-5 * np.abs(force).max())


def test_every_metric_that_names_a_penalty_names_one_that_exists():
    named = {name: getattr(metrics.get(name), "PENALTY", None) for name in metrics.available()}
    assert {p for p in named.values() if p} <= set(PENALTIES)
    assert named["mi"] is None
    fixed, moved, weight = images(1)
    for name, penalty in named.items():
        if penalty is None:
            continue
        metric = metrics.get(name)
        options = metric.Options()
        seen = (np.ascontiguousarray(i[0]) for i in (fixed, moved))
        f, m = (metric.features(i, options) for i in seen)
        force = np.zeros((3, *SHAPE), dtype=np.float32)
        cost = PENALTIES[penalty](f, m, weight, force, RADIUS, options)
        assert cost > 0
        assert np.abs(force).max() > 0
