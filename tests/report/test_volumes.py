from __future__ import annotations

import base64
import itertools
import zlib

import numpy as np
import pytest

from regweave.report.viewer import BUDGET, Display, packed, quantise
from regweave.types import Geometry

ORIENTATIONS = list(itertools.product(itertools.permutations(range(3)), itertools.product((1.0, -1.0), repeat=3)))


def grid(axes, signs, shape=(3, 4, 5), spacing=(1.0, 2.0, 3.0)) -> Geometry:
    """Image axis i runs along body axis ``axes[i]``."""
    affine = np.eye(4)
    affine[:3, :3] = 0
    for image, body in enumerate(axes):
        affine[body, image] = signs[image] * spacing[image]
    affine[:3, 3] = (10.0, -20.0, 30.0)
    return Geometry(shape, affine)


def test_every_voxel_keeps_its_place_in_the_body():
    for axes, signs in ORIENTATIONS:
        geometry = grid(axes, signs)
        display = Display.of(geometry)
        index = np.moveaxis(np.indices(geometry.shape), 0, -1).astype(float)
        where = geometry.points(index)  # the data are their own positions
        turned = np.stack([display.turn(where[..., c]) for c in range(3)], axis=-1)
        shown = np.moveaxis(np.indices(display.geometry.shape), 0, -1).astype(float)
        np.testing.assert_allclose(turned, display.geometry.points(shown))
        assert (np.diag(display.geometry.direction) > 0.99).all()
        assert display.tilt_degrees < 1e-5


def test_an_oblique_grid_is_named():
    turn = np.deg2rad(20.0)
    affine = np.eye(4)
    affine[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    assert Display.of(Geometry((4, 4, 4), affine)).tilt_degrees == pytest.approx(20.0)


def test_large_volumes_are_merged_where_voxels_are_closest():
    affine = np.diag([1.0, 1.0, 3.0, 1.0])
    display = Display.of(Geometry((40, 40, 20), affine), budget=8000)
    assert display.factors == (2, 2, 1)
    assert display.geometry.shape == (20, 20, 20)
    np.testing.assert_allclose(display.geometry.points(np.zeros(3)), [0.5, 0.5, 0.0])


@pytest.mark.parametrize("shape", [(128, 128, 128), (512, 512, 200), (7, 3000, 900)])
def test_the_budget_holds(shape):
    display = Display.of(Geometry(shape, np.diag([0.9, 0.9, 2.5, 1.0])))
    assert np.prod(display.geometry.shape) <= BUDGET
    assert (display.factors == (1, 1, 1)) == (np.prod(shape) <= BUDGET)


def test_merging_against_loops():
    rng = np.random.default_rng(1)
    data = rng.normal(size=(5, 4, 3)).astype(np.float32)
    labels = rng.integers(0, 4, (5, 4, 3))
    display = Display((0, 1, 2), (False, False, False), (2, 2, 1), Geometry((3, 2, 3), np.eye(4)))
    mean, picked = display.image(data), display.labels(labels)
    for i, j, k in np.ndindex(3, 2, 3):
        rows = [min(2 * i + a, 4) for a in (0, 1)]
        assert mean[i, j, k] == pytest.approx(np.mean([data[r, 2 * j + b, k] for r in rows for b in (0, 1)]), abs=1e-6)
        assert picked[i, j, k] == labels[min(2 * i + 1, 4), 2 * j + 1, k]


def test_codes_are_the_nearest_values_of_the_table():
    values = np.random.default_rng(2).normal(size=(9, 8, 7)).astype(np.float32) * 300
    (codes,), table = quantise([values])
    assert table.shape == (256,)
    assert (np.diff(table) >= 0).all()
    nearest = np.abs(values[..., None] - table).min(axis=-1)
    np.testing.assert_allclose(np.abs(values - table[codes]), nearest, atol=1e-4)


def test_a_narrow_range_of_tissue_keeps_its_greys():
    rng = np.random.default_rng(3)
    tissue = rng.normal(40.0, 20.0, 40_000)
    scan = np.concatenate([np.full(50_000, -1000.0), tissue, np.linspace(300, 3000, 1000)]).astype(np.float32)
    (codes,), table = quantise([scan.reshape(10, 10, -1)])
    error = np.abs(table[codes].ravel() - scan)[50_000:90_000]
    assert error.mean() < 1.0  # an even table of 4000 HU would have steps of 16, so a mean error of 4
    assert np.abs(table[codes].ravel() - scan).max() <= 16.0


def test_two_volumes_share_a_table():
    a, b = np.float32([[[0.0, 1.0]]]), np.float32([[[1.0, 5.0]]])
    (first, second), table = quantise([a, b])
    assert table[first].tolist() == a.tolist()
    assert table[second].tolist() == b.tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.int16])
def test_packed_bytes_run_along_the_first_axis(kind):
    data = np.arange(24).reshape(2, 3, 4).astype(kind)
    raw = zlib.decompress(base64.b64decode(packed(data)))
    assert np.frombuffer(raw, dtype=np.dtype(kind).newbyteorder("<")).tolist() == data.ravel(order="F").tolist()
