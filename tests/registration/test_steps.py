"""The steps of the refinement against slow, obvious ones."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.config.presets import preset
from regweave.registration import forces as steps
from regweave.registration.forces import stretch
from regweave.spatial.control_grid import ControlGrid
from regweave.threads import kernel_threads
from regweave.types import Geometry

SHAPE = (23, 18, 21)


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
    grid = ControlGrid.every(SHAPE, spacing)
    u = smooth_noise(0, SHAPE, 1.0)
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
