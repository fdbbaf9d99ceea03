from itertools import permutations, product

import numpy as np
import pytest

from regweave.io.geometry import Orientation
from regweave.types import Geometry, Volume

ALL = [(order, flips) for order in permutations(range(3)) for flips in product((1, -1), repeat=3)]
SHAPE = (4, 5, 6)


def rotation(degrees: float) -> np.ndarray:
    a = np.radians(degrees)
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1.0]])
    return turn @ turn[[2, 0, 1]][:, [2, 0, 1]]


def stored_as(volume: Volume, order, flips) -> Volume:
    """The same physical image in another storage, written out index by index."""
    shape = tuple(volume.geometry.shape[axis] for axis in order)
    data = np.empty(shape, dtype=np.float32)
    for index in np.ndindex(*shape):
        old = [0, 0, 0]
        for new, axis in enumerate(order):
            old[axis] = index[new] if flips[new] > 0 else shape[new] - 1 - index[new]
        data[index] = volume.data[tuple(old)]
    affine = np.eye(4)
    for new, axis in enumerate(order):
        affine[:3, new] = flips[new] * volume.geometry.affine[:3, axis]
    start = [0.0, 0.0, 0.0]
    for new, axis in enumerate(order):
        start[axis] = 0.0 if flips[new] > 0 else shape[new] - 1.0
    affine[:3, 3] = volume.geometry.points(np.array(start))
    return Volume(data, Geometry(shape, affine))


def image(degrees: float) -> Volume:
    affine = np.eye(4)
    affine[:3, :3] = rotation(degrees) * [0.9, 1.1, 3.3]
    affine[:3, 3] = [-71.3, 12.7, 1002.123456789]
    data = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    return Volume(data, Geometry(SHAPE, affine))


@pytest.mark.parametrize("degrees", [0.0, 17.0, 44.9, 45.0, 80.0])
def test_all_48_storages_become_one(degrees):
    original = image(degrees)
    expected = Orientation.of(original.geometry).turned(original)
    for order, flips in ALL:
        stored = stored_as(original, order, flips)
        orientation = Orientation.of(stored.geometry)
        found = orientation.turned(stored)
        np.testing.assert_array_equal(found.data, expected.data)
        np.testing.assert_array_equal(found.geometry.affine, expected.geometry.affine)
        np.testing.assert_array_equal(orientation.to_stored(found.data), stored.data)


def test_canonical_voxels_lie_where_the_stored_ones_do():
    stored = stored_as(image(17.0), (2, 0, 1), (-1, 1, -1))
    orientation = Orientation.of(stored.geometry)
    where = np.moveaxis(stored.geometry.points(indices(stored.geometry)), -1, 0)
    found = np.moveaxis(orientation.to_canonical(where), 0, -1)
    np.testing.assert_allclose(found, orientation.canonical.points(indices(orientation.canonical)), atol=1e-5)
    direction = Orientation.of(stored_as(image(20.0), (1, 2, 0), (-1, -1, 1)).geometry).canonical.direction
    assert (np.diagonal(direction) > 0.7).all()
    affine = np.diag([-1e-6, 2e-6, 1e-6, 1.0])
    affine[:3, 3] = [1e7, -3.0, 0.0]
    grid = Geometry(SHAPE, affine)
    canonical = Orientation.of(grid).canonical
    np.testing.assert_allclose(canonical.spacing_mm, [1e-6, 2e-6, 1e-6], rtol=1e-5)
    np.testing.assert_allclose(canonical.origin_mm, grid.points(np.array([3.0, 0, 0])), atol=1e-9)


def indices(geometry: Geometry) -> np.ndarray:
    return np.stack(np.meshgrid(*(np.arange(n, dtype=float) for n in geometry.shape), indexing="ij"), axis=-1)
