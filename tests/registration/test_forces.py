"""Costs and forces of the refinement against plain numpy in float64 and numerical derivatives."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core, metrics
from regweave.config.settings import Refine, preset
from regweave.registration import cpu as steps
from regweave.registration.cpu import CPU, PENALTIES, forces, stretch
from regweave.spatial.control_grid import ControlGrid
from regweave.threads import kernel_threads
from regweave.types import Geometry, Image, ImagePair, Volume, WeightTable

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
def test_cost_and_force_are_added_with_the_same_bits_for_any_thread_count(case):
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
    results = []
    for n in (1, 2, 3):
        again = np.ones((3, *SHAPE), dtype=np.float32)
        with kernel_threads(n):
            results.append((fast(fixed, moved, weight, again), again))
    np.testing.assert_allclose(results[0][1], 1 + force, atol=1e-4)
    for cost, other in results[1:]:
        assert cost == results[0][0]
        assert np.array_equal(other, results[0][1])


def assert_derivative(force, slow, u, tolerance=1e-3):
    rng = np.random.default_rng(9)
    for _ in range(4):
        delta = rng.normal(size=u.shape)
        numerical = (slow(u + 1e-4 * delta) - slow(u - 1e-4 * delta)) / 2e-4
        assert float((force * delta).sum()) == pytest.approx(numerical, rel=1e-4, abs=tolerance)


def test_smoothness():
    rng = np.random.default_rng(2)
    u = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    factor = rng.random((3, 3)) + 0.5

    def slow(v) -> float:
        return 0.5 * sum(factor[c, a] * (np.diff(v[c], axis=a) ** 2).sum() for c in range(3) for a in range(3))

    force = np.zeros_like(u)
    assert _core.diffusion_force(u, force, factor.tolist()) == pytest.approx(slow(u.astype(np.float64)), rel=1e-5)
    assert_derivative(force, slow, u)
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
    assert_derivative(force, slow, u, 1e-2)
    i, j, k = np.meshgrid(*(np.arange(float(n)) for n in SHAPE), indexing="ij")
    straight = np.stack([i + 2 * j - k + 3, 5 - i, k * 4]).astype(np.float32)
    assert _core.bending_force(straight, np.zeros_like(u), factor.tolist()) == 0
    for shape in ((1, 5, 6), (2, 1, 7), (3, 4, 1), (1, 1, 1)):  # thin images bend along their long axes alone
        u = np.random.default_rng(4).normal(size=(3, *shape)).astype(np.float32)
        pairs = [(a, b) for a in range(3) for b in range(3)]
        expected = 0.5 * sum(float((np.diff(np.diff(u, axis=a + 1), axis=b + 1) ** 2).sum()) for a, b in pairs)
        found = _core.bending_force(u, np.zeros_like(u), [[[1.0] * 3] * 3] * 3)
        assert found == pytest.approx(expected, rel=1e-5), shape


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
    assert_derivative(force, slow, u)
    plain, one = np.zeros_like(u), np.zeros_like(u)
    energy = _core.diffusion_force(u, plain, factor.tolist())
    assert _core.stiff_diffusion_force(u, np.ones_like(stiffness), one, factor.tolist()) == pytest.approx(energy)
    np.testing.assert_allclose(one, plain, atol=1e-5)


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
    with pytest.raises(ValueError, match="one grid"):
        _core.absolute_force(fixed, moved[:, :-1].copy(), weight, force, EPSILON)
    with pytest.raises(ValueError, match="one channel"):
        _core.correlation_force(fixed, moved, weight, force, RADIUS, FLOOR, False)


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


# Exact forces: the pulled image against scipy's splines, forces against numerical derivatives of their costs.
MATRIX = np.array([[0.9, 0.1, 0.0, 0.4], [-0.05, 1.1, 0.02, -0.6], [0.0, 0.03, 0.8, 0.7]])


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((7, 9, 8)).astype(np.float32), rng.normal(size=(3, *SHAPE)).astype(np.float32)


def slow(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    grid = np.stack(np.meshgrid(*(np.arange(float(n)) for n in SHAPE), indexing="ij")) + u
    places = np.tensordot(MATRIX[:, :3], grid, 1) + MATRIX[:, 3].reshape(3, 1, 1, 1)
    places = np.clip(places, 0, np.array(image.shape).reshape(3, 1, 1, 1) - 1)
    return ndimage.map_coordinates(image.astype(np.float64), places, order=3, prefilter=False, mode="nearest")


def test_forces_are_the_derivative_of_the_pulled_image_and_of_the_cost():
    image, u = drawn(0)
    np.testing.assert_allclose(_core.pulled_image(image, MATRIX, u), slow(image, u), atol=2e-6)
    image, u = drawn(2)
    rng = np.random.default_rng(3)
    slope, force = rng.normal(size=SHAPE).astype(np.float32), np.zeros_like(u)
    _core.pulled_force(image, MATRIX, u, slope, force)
    for _ in range(4):
        step = rng.normal(size=u.shape)
        there, back = (float((slope * slow(image, u + h * step)).sum()) for h in (1e-5, -1e-5))
        assert float((force * step).sum()) == pytest.approx((there - back) / 2e-5, rel=1e-3, abs=1e-3)
    for shape in ((1, 5, 6), (2, 1, 3), (1, 1, 1)):  # thin images
        image = np.full(shape, 0.25, dtype=np.float32)
        np.testing.assert_allclose(_core.pulled_image(image, MATRIX, drawn(1)[1]), 0.25, atol=1e-6)
    assert mismatch(exact=True) < 0.02
    assert mismatch(exact=False) > 0.1
    assert "exact" not in preset("default").refine.model_dump()


SLOPES = {
    "absolute": (_core.absolute_slope, _core.absolute_force, (0.01,)),
    "correlation": (_core.correlation_slope, _core.correlation_force, (2, 1e-4, False)),
    "squared": (_core.correlation_slope, _core.correlation_force, (2, 1e-4, True)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_slope_is_the_derivative_by_the_moved_image(name):
    of, whole, options = SLOPES[name]
    rng = np.random.default_rng(4)
    fixed, moved, weight = (rng.random(SHAPE).astype(np.float32) for _ in range(3))
    moved[0], moved[1] = 0.0, 1.0

    def cost(m: np.ndarray) -> float:
        return float(whole(fixed[None], m[None], weight, np.zeros((3, *SHAPE), dtype=np.float32), *options))

    slope = np.zeros(SHAPE, dtype=np.float32)
    assert of(fixed, moved, weight, slope, 3.0, *options) == pytest.approx(cost(moved), rel=1e-5)
    assert np.abs(slope[:2]).max() == 0  # cut by the window: no change
    for _ in range(3):
        step = rng.normal(size=SHAPE).astype(np.float32)
        step[:2] = 0
        numerical = 3.0 * (cost(moved + 1e-3 * step) - cost(moved - 1e-3 * step)) / 2e-3
        assert float((slope * step).sum()) == pytest.approx(numerical, rel=2e-2, abs=0.1)


def noisy_pair() -> ImagePair:
    rng = np.random.default_rng(5)
    geometry = Geometry((20, 18, 16), np.diag([2.0, 2.0, 3.0, 1.0]))
    still = ndimage.gaussian_filter(rng.normal(size=geometry.shape), 2) * 400
    fixed, moving = (
        Volume((still + rng.normal(0, 20, geometry.shape)).astype(np.float32), geometry, "ct") for _ in range(2)
    )
    return ImagePair(Image.of(fixed), Image.of(moving))


def mismatch(exact: bool) -> float:
    """Return how far the force is from the derivative of the cost along a smooth displacement, as a share."""
    pair, settings = noisy_pair(), preset("default")
    schedule, refine = settings.for_bank("ct"), Refine(steps=1, exact=exact)
    members = [  # a window about the noise: numerical derivatives of a small cost are rounding errors
        m.model_copy(update={"window": (-200.0, 300.0)}) for m in schedule.continuous if m.name in ("lncc3", "lncc7")
    ]
    weights = WeightTable.constant({m.name: 1.0 for m in schedule.continuous}, 0.1)
    scene = CPU.scene(pair, schedule).at(refine)
    rng = np.random.default_rng(6)
    u, step = (
        ndimage.gaussian_filter(rng.normal(size=(3, *pair.fixed.geometry.shape)), (0, 3, 3, 3)).astype(np.float32) * 8
        for _ in range(2)
    )
    terms = CPU.data_terms(scene, u, members, weights, refine)

    def cost(h: float) -> float:
        return forces(scene, terms, (u + h * step).astype(np.float32), 1e-9)[0]

    numerical = (cost(1e-2) - cost(-1e-2)) / 2e-2
    return abs(float((forces(scene, terms, u, 1e-9)[2] * step).sum()) - numerical) / abs(numerical)


# The steps of the refinement against slow, obvious ones.
STEP_SHAPE = (23, 18, 21)


def slow_hold_back(u, update, grid):
    """All voxels again at each attempt; returns the displacement and how many attempts it took."""
    before = _core.jacobian(u)
    for attempt in range(steps.ATTEMPTS):
        composed = _core.compose(u, _core.ffd(update, grid.origin, grid.spacing, grid.image_shape))
        jacobian = _core.jacobian(composed)
        folding = (jacobian < steps.LEAST_JACOBIAN) & (jacobian < before)
        if not folding.any():
            return composed, attempt + 1
        folding = ndimage.binary_dilation(folding, iterations=attempt + 1)
        near = _core.ffd_adjoint(folding[None].astype(np.float32), grid.origin, grid.spacing, grid.nodes) > 0
        update = np.where(near, np.float32(0), update)
    return u, steps.ATTEMPTS + 1


def smooth_noise(seed, shape, size):
    noise = np.random.default_rng(seed).normal(size=(3, *shape))
    smooth = ndimage.gaussian_filter(noise, (0, 2, 2, 2))
    return (smooth * (size / np.abs(smooth).max())).astype(np.float32)


@pytest.mark.parametrize("spacing", [1.0, 1.6, 3.0])
@pytest.mark.parametrize(("size", "allowed", "taken"), [(0.2, 8, {1}), (5.0, 8, {3, 4, 5}), (5.0, 2, {3})])
def test_held_back_is_the_slow_one(monkeypatch, spacing, size, allowed, taken):
    monkeypatch.setattr(steps, "ATTEMPTS", allowed)
    grid = ControlGrid.every(STEP_SHAPE, spacing)
    u = smooth_noise(0, STEP_SHAPE, 1.0)
    update = smooth_noise(1, grid.nodes, size * spacing)
    update[:, : grid.nodes[0] // 2] *= 0.05  # one half folds, the other is left alone
    given = update.copy()
    wanted, attempts = slow_hold_back(u, update, grid)
    assert attempts in taken
    found = steps.held_back(u, update, grid)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    np.testing.assert_array_equal(update, given)
    with kernel_threads(3):
        np.testing.assert_array_equal(steps.held_back(u, update, grid), found)


def test_descent_is_adam_in_double_precision():
    geometry = Geometry((14, 12, 13), np.diag([1.0, 2.0, 3.0, 1.0]))
    grid = ControlGrid.every(geometry.shape, 1.5)
    settings = preset("default").refine
    descent = steps.Descent(settings, grid, geometry)
    s = stretch(geometry)[:, None, None, None]
    first, second = np.zeros((3, *grid.nodes)), np.zeros(grid.nodes)
    for done in range(1, 6):
        force = smooth_noise(done, geometry.shape, 10.0**done)
        g = _core.ffd_adjoint(force, grid.origin, grid.spacing, grid.nodes).astype(np.float64) / s
        squared = (g**2).sum(axis=0)
        first = steps.FIRST_MOMENT * first + (1 - steps.FIRST_MOMENT) * g
        second = steps.SECOND_MOMENT * second + (1 - steps.SECOND_MOMENT) * squared
        length = np.sqrt(second / (1 - steps.SECOND_MOMENT**done)) + steps.QUIET * np.sqrt(squared.mean())
        d = -settings.rate * 1.5 * first / (1 - steps.FIRST_MOMENT**done) / length / s
        wanted = d.clip(-steps.REACH * 1.5, steps.REACH * 1.5)
        np.testing.assert_allclose(descent.update(force), wanted, atol=3e-6)
