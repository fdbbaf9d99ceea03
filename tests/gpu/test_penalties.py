"""Costs and forces of the refinement: the twin of each GPU kernel against the compiled core."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core

SHAPE = (9, 8, 10)
FACTORS = [[1.0, 0.7, 1.4], [0.6, 1.1, 0.9], [1.3, 0.8, 1.2]]
PENALTIES = {
    "absolute": lambda f, m, w, g: _core.absolute_force(f, m, w, g, 0.01),
    "tensor": _core.tensor_force,
    "r1": lambda f, m, w, g: _core.correlation_force(f, m, w, g, 1, 1e-4, True),
    "r3": lambda f, m, w, g: _core.correlation_force(f, m, w, g, 3, 1e-2, False),
    "r12": lambda f, m, w, g: _core.correlation_force(f, m, w, g, 12, 1e-3, True),
}
RADII = {"r1": (1, 1e-4, True), "r3": (3, 1e-2, False), "r12": (12, 1e-3, True)}


def images(rng, channels):
    """Fixed and moved features, (C, X, Y, Z), and a weight of each voxel, some of them zero."""
    fixed, moved = (
        ndimage.gaussian_filter(rng.normal(size=(channels, *SHAPE)), (0, 1, 1, 1)).astype(np.float32) for _ in range(2)
    )
    weight = rng.random(SHAPE, dtype=np.float32)
    weight[:2] = 0
    return fixed, moved, weight


def add(twin, device, name, balance, fixed, moved, weight, factor, share):
    fixed, moved, weight = (device.upload(a) for a in (fixed, moved, weight))
    if name == "absolute":
        twin.absolute(balance, fixed, moved, weight, factor, share, 0.01)
    elif name == "tensor":
        twin.tensor(balance, fixed, moved, weight, factor, share)
    else:
        one, other = fixed.reshaped(SHAPE), moved.reshaped(SHAPE)
        sums = twin.local_sums(one, RADII[name][0])
        twin.correlation(balance, one, sums, other, weight, factor, share, *RADII[name])


@pytest.mark.parametrize("name", sorted(PENALTIES))
@pytest.mark.parametrize("weighed", ["plain", "channel", "voxel"])
def test_cost_and_force_are_those_of_the_core(twin, device, rng, name, weighed):
    fixed, moved, weight = images(rng, 1 if name.startswith("r") else 3)
    factor = {"plain": None, "channel": np.float32([[[0.7]]]), "voxel": rng.random(SHAPE, dtype=np.float32)}[weighed]
    share = 1.0 if factor is None else 0.25
    balance = twin.balance(device.upload(np.zeros((3, *SHAPE), dtype=np.float32)))
    for _ in range(2):  # what is there is added to
        add(twin, device, name, balance, fixed, moved, weight, None if factor is None else device.upload(factor), share)
    force = np.zeros((3, *SHAPE), dtype=np.float32)
    cost = PENALTIES[name](fixed, moved, weight if factor is None else weight * (factor * np.float32(share)), force)
    data, smooth = balance.totals()
    assert abs(cost) > 0.1
    assert data == pytest.approx(2 * cost, rel=1e-5)
    assert smooth == 0
    assert np.abs(force).max() > 0.01
    np.testing.assert_allclose(balance.force.numpy(), 2 * force, atol=2e-4 * np.abs(force).max())


def test_smoothness_forces_of_the_host_moments_and_sums(twin, device, rng):
    for stiff in [False, True]:
        u, stiffness = rng.normal(size=(3, *SHAPE)).astype(np.float32), rng.random(SHAPE, dtype=np.float32)
        force = np.zeros_like(u)
        if stiff:
            cost = _core.stiff_diffusion_force(u, stiffness, force, FACTORS)
        else:
            cost = _core.diffusion_force(u, force, FACTORS)
        balance = twin.diffusion(device.upload(u), device.upload(stiffness) if stiff else None, FACTORS, 0.3)
        data, smooth = balance.totals()
        assert (data, smooth) == (0, pytest.approx(cost, rel=1e-6))
        np.testing.assert_allclose(balance.force.numpy(), np.float32(0.3) * force, atol=1e-5)
    u = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    balance = twin.diffusion(device.upload(u), None, FACTORS, 1.0)
    before = balance.force.numpy().copy()
    twin.add_force(balance, device.upload(u))
    assert np.array_equal(balance.force.numpy(), before + u)
    force = rng.normal(size=(3, 20, 30, 40)).astype(np.float32)
    second, fourth = twin.force_moments(device.upload(force))
    assert np.sqrt(fourth / second) == pytest.approx(np.sqrt(_core.mean_square_force(force)), rel=1e-12)
    assert second == pytest.approx((force.astype(np.float64) ** 2).sum(), rel=1e-12)
    image = rng.random(SHAPE, dtype=np.float32)
    found = twin.local_sums(device.upload(image), 2).numpy()
    for index in [(0, 0, 0), (4, 4, 4), (8, 7, 9), (1, 6, 3)]:
        box = image[tuple(slice(max(i - 2, 0), i + 3) for i in index)].astype(np.float64)
        np.testing.assert_allclose(found[(slice(None), *index)], [box.sum(), (box**2).sum()], rtol=1e-6)
