"""Coarser grids keep their place in millimetres; intensities land in [0, 1]."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import ndimage
from scipy.spatial.transform import Rotation

from regweave.registration import scene as channels
from regweave.registration.scene import Channels, View
from regweave.spatial.voxels import BODY_WINDOW_HU, apply_window, change_level, default_window, shrink, shrink_geometry
from regweave.types import Geometry, Volume

factors = st.tuples(*[st.integers(1, 4)] * 3)


def oblique(shape: tuple[int, int, int]) -> Geometry:
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", [0.3, -0.2, 0.7]).as_matrix() * [1.0, 2.0, 3.5]
    affine[:3, 3] = (-20.0, 33.0, 7.0)
    return Geometry(shape, affine)


def centre_of_mass_mm(image: np.ndarray, geometry: Geometry) -> np.ndarray:
    index = np.array([(np.indices(image.shape)[a] * image).sum() / image.sum() for a in range(3)])
    return geometry.points(index)


def test_shrink_against_loops_and_a_round_trip():
    image = np.random.default_rng(0).random((7, 6, 5)).astype(np.float32)
    small = shrink(image, (3, 2, 4))
    assert small.shape == shrink_geometry(oblique(image.shape), (3, 2, 4)).shape == (3, 3, 2)
    padded = np.pad(image, ((0, 2), (0, 0), (0, 3)), mode="edge")
    for i, j, k in np.ndindex(small.shape):
        block = padded[3 * i : 3 * i + 3, 2 * j : 2 * j + 2, 4 * k : 4 * k + 4]
        assert small[i, j, k] == pytest.approx(block.mean(), rel=1e-5)
    assert small.flags.c_contiguous
    assert shrink(image, (1, 1, 1)) is image
    shape = (32, 32, 32)
    x = np.indices(shape) / 31.0
    u = (2 * np.sin(2 * np.pi * x[::-1]) * np.ones((3, 1, 1, 1))).astype(np.float32)
    down = change_level(u, (1, 1, 1), (2, 2, 2), (16, 16, 16))
    back = change_level(down, (2, 2, 2), (1, 1, 1), shape)
    inside = (slice(None), *[slice(2, -2)] * 3)
    assert np.abs(back - u)[inside].max() < 0.1
    assert np.abs(down).max() == pytest.approx(1.0, abs=0.05)  # half as many voxels


@settings(max_examples=25, deadline=None)
@given(factors)
def test_what_is_shrunk_stays_where_it_is(f):
    geometry = oblique((24, 24, 24))
    small = shrink_geometry(geometry, f)
    distance = np.moveaxis(np.indices(geometry.shape), 0, -1) - np.array([11.3, 10.1, 12.6])
    blob = np.exp(-(distance**2).sum(axis=-1) / (2 * 2.5**2)).astype(np.float32)
    np.testing.assert_allclose(centre_of_mass_mm(shrink(blob, f), small), centre_of_mass_mm(blob, geometry), atol=0.02)
    positions, blocks = (
        g.points(np.moveaxis(np.indices(g.shape, dtype=np.float64), 0, -1)).astype(np.float32)
        for g in (geometry, small)
    )
    for axis in range(3):  # the mean of a ramp is its value at the centre
        np.testing.assert_allclose(shrink(np.ascontiguousarray(positions[..., axis]), f), blocks[..., axis], atol=1e-3)
    np.testing.assert_allclose(small.spacing_mm, geometry.spacing_mm * f)
    np.testing.assert_allclose(small.direction, geometry.direction, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(factors, factors)
def test_a_linear_field_survives_a_change_of_level(before, after):
    """Where both grids reach, positions in millimetres get the same displacement in millimetres."""
    geometry = oblique((24, 20, 22))
    matrix = np.array([[0.02, -0.01, 0.005], [0.01, 0.03, -0.02], [0.0, 0.015, -0.01]])

    def linear(level: Geometry) -> np.ndarray:
        points = level.points(np.moveaxis(np.indices(level.shape, dtype=np.float64), 0, -1))
        voxels = (points @ matrix.T) @ np.linalg.inv(level.affine[:3, :3]).T
        return np.ascontiguousarray(np.moveaxis(voxels, -1, 0), dtype=np.float32)

    a, b = shrink_geometry(geometry, before), shrink_geometry(geometry, after)
    moved = change_level(linear(a), before, after, b.shape)
    assert moved.shape == (3, *b.shape)
    inside = np.stack(np.meshgrid(*(np.arange(n) for n in b.shape), indexing="ij"), -1).astype(float)
    index_in_a = (b.points(inside) - a.origin_mm) @ np.linalg.inv(a.affine[:3, :3]).T
    reached = ((index_in_a >= -1e-9) & (index_in_a <= np.array(a.shape) - 1 + 1e-9)).all(axis=-1)
    assert reached.any()
    np.testing.assert_allclose(moved[:, reached], linear(b)[:, reached], atol=2e-4)
    if before == after:
        np.testing.assert_array_equal(moved, linear(a))


def volume(data) -> Volume:
    array = np.asarray(data, dtype=np.float32)
    return Volume(array, Geometry(array.shape, np.eye(4)))


def test_channels_window_prepare_shrink_smooth_in_this_order_and_slab_by_slab(monkeypatch):
    image = np.arange(1001, dtype=np.float32).reshape(7, 11, 13)
    assert default_window(image, "ct") == BODY_WINDOW_HU
    np.testing.assert_allclose(default_window(image, "mr"), (5.0, 995.0))
    mostly_air = np.zeros((20, 20, 20), dtype=np.float32)
    mostly_air[0, 0, 0] = 7.0
    assert default_window(mostly_air, "mr") == (0.0, 7.0)
    image = np.array([[[-300.0, -100.0, 50.0, 200.0, 900.0]]], dtype=np.float32)
    out = apply_window(image, (-100.0, 200.0))
    assert out.dtype == np.float32
    assert out.ravel().tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    data = np.random.default_rng(0).normal(100, 30, (12, 12, 12)).astype(np.float32)
    made = Channels(volume(data), "mr")
    square = np.square
    found = made.view(View((50.0, 150.0), 1.5, square), (2, 3, 1))
    slow = shrink(np.clip((data - 50) / 100, 0, 1) ** 2, (2, 3, 1))
    slow = ndimage.gaussian_filter(slow.astype(np.float64), 1.5, mode="nearest")
    np.testing.assert_allclose(found, slow, atol=1e-5)
    again = made.view(View((50.0, 150.0), 1.5, square), (2, 3, 1))
    assert again is found
    made.view(View((50.0, 150.0), 1.5, square), (1, 1, 1))
    assert {factors for _, factors in made._level} == {(1, 1, 1)}  # one level is held at a time
    default = made.view(View(None, 0.0, None), (1, 1, 1))
    np.testing.assert_allclose(default, apply_window(data, default_window(data, "mr")), atol=1e-6)
    rng = np.random.default_rng(8)
    image = Volume(rng.normal(size=(31, 9, 10)).astype(np.float32), Geometry((31, 9, 10), np.eye(4)))
    view = View((-1.0, 1.5), 0.7, None)
    whole = Channels(image, "mr").view(view, (3, 2, 1))
    monkeypatch.setattr(channels, "KEPT_VOXELS", 7 * 90)  # slabs of six planes, the last one of one
    in_slabs = Channels(image, "mr")
    np.testing.assert_array_equal(in_slabs.view(view, (3, 2, 1)), whole)
    assert not in_slabs._full
