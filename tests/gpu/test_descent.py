"""Steps of the refinement: the twin of the GPU against `regweave.registration.cpu`."""

import numpy as np
from scipy import ndimage

from regweave import _core
from regweave.config.settings import Refine
from regweave.registration import cpu as class_weights, cpu as steps
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.voxels import change_level, shrink_geometry
from regweave.types import Geometry

SHAPE = (14, 12, 16)
GEOMETRY = Geometry(SHAPE, np.diag([1.0, 1.2, 2.0, 1.0]))


def smooth_field(rng, size, shape=SHAPE, sigma=2.0):
    u = ndimage.gaussian_filter(rng.normal(size=(3, *shape)), (0, sigma, sigma, sigma))
    return (size * u / np.abs(u).max()).astype(np.float32)


def test_updates_and_starts_are_those_of_the_host(twin, device, rng):
    grid, settings = ControlGrid.every(SHAPE, 1.4), Refine(steps=3, rate=0.3)
    host = steps.Descent(settings, grid, GEOMETRY)
    ours = device.descent(settings, grid, GEOMETRY)
    for scale in (1.0, 30.0, 0.1):
        force = (scale * rng.normal(size=(3, *SHAPE))).astype(np.float32)
        expected = host.update(force)
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(ours.update(device.upload(force)).numpy(), expected, atol=2e-6)
    for sigma_mm in [0.0, 0.05, 1.5, 4.0]:
        u = smooth_field(rng, 2.0, sigma=1.0)
        expected = steps.smoothed(u, sigma_mm, GEOMETRY)
        found = device.smoothed(device.upload(u), sigma_mm, GEOMETRY).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_steps_are_held_back_as_on_the_host(twin, device, rng):
    for size in [0.2, 2.0, 6.0, 40.0]:
        grid = ControlGrid.every(SHAPE, 1.4)
        u, update = smooth_field(rng, 1.0), smooth_field(rng, size, grid.nodes, 0.7)
        expected = steps.held_back(u, update, grid)
        found = device.held_back(device.upload(u), device.upload(update), grid).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        free = _core.compose(u, _core.ffd(update, grid.origin, grid.spacing, SHAPE))
        assert np.array_equal(free, expected) == (_core.jacobian(free).min() >= steps.LEAST_JACOBIAN)
    grid = ControlGrid.every(SHAPE, 1.0)
    u, update = smooth_field(rng, 0.5), rng.normal(0, 8, (3, *grid.nodes)).astype(np.float32)
    lattice = device.constants.lattice(grid)
    found, attempts = twin.held_back(device.upload(u), device.upload(update), lattice, 0.1, 1)
    assert attempts == 1
    assert np.array_equal(found.numpy(), u)
    grid = ControlGrid.every(SHAPE, 1.4)
    u, still = rng.normal(0, 0.5, (3, *SHAPE)).astype(np.float32), np.zeros((3, *grid.nodes), dtype=np.float32)
    assert _core.jacobian(u).min() < 0
    lattice = device.constants.lattice(grid)
    found, attempts = twin.held_back(device.upload(u), device.upload(still), lattice, steps.LEAST_JACOBIAN, 8)
    assert attempts == 1
    assert np.array_equal(found.numpy(), u)


def test_levels_and_class_numbers_are_changed_as_on_the_host(twin, device, rng):
    u, coarse = smooth_field(rng, 2.0), shrink_geometry(GEOMETRY, (2, 2, 1)).shape
    found = device.change_level(device.upload(u), (1, 1, 1), (2, 2, 1), coarse)
    np.testing.assert_allclose(found.numpy(), change_level(u, (1, 1, 1), (2, 2, 1), coarse), atol=1e-6)
    same = device.upload(u)
    assert device.change_level(same, (2, 2, 1), (2, 2, 1), SHAPE) is same
    numbers = (rng.integers(1, 5, SHAPE) * (rng.random(SHAPE) < 0.04)).astype(np.int32)
    for reach, voxel in [(1.0, (1, 1, 1)), (2.0, (1, 1, 1)), (2.0, (0.8, 0.8, 1.6)), (3.5, (1.3, 0.7, 1.1))]:
        expected = class_weights.spread(numbers, reach, np.array(voxel, dtype=float))
        assert (expected != numbers).any()
        assert np.array_equal(twin.spread(device.upload(numbers), reach, voxel).numpy(), expected)


def test_folds_of_the_fine_grid_are_smoothed_away(twin, device, rng):
    factors, fine = (2, 2, 2), (28, 24, 31)
    knots = smooth_field(rng, 1.0)
    knots[0, 7, 6, 8] += 2.4  # one fold that the coarse grid hardly sees
    host_knots, host = steps.unfolded(knots, factors, fine)
    assert (_core.jacobian(change_level(knots, factors, (1, 1, 1), fine)) <= 0).any()
    found_knots, found = (a.numpy() for a in device.unfolded(device.upload(knots), factors, fine))
    assert _core.jacobian(found).min() > 0
    np.testing.assert_allclose(found_knots, host_knots, atol=1e-5)
    np.testing.assert_allclose(found, host, atol=1e-5)
    knots = smooth_field(rng, 0.5)
    there = device.upload(knots)
    same, u = device.unfolded(there, (1, 1, 1), SHAPE)
    assert same is there
    assert u is there
