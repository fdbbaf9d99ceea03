"""Data of the viewer: every voxel in its place, windows and boxes of known images, maps against loops."""

import base64
import itertools
import zlib

import numpy as np
import pytest

from regweave.report.viewer import (
    BUDGET,
    GRID_UNIT,
    MARGIN,
    Display,
    by_label,
    confidence_map,
    content_box,
    grid_field,
    jacobian_map,
    metric_map,
    packed,
    quantise,
    structures,
    windows,
)
from regweave.spatial.warp import determinant
from regweave.types import Field, Geometry, NodeEvidence

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


def test_large_volumes_are_merged_within_the_budget():
    affine = np.diag([1.0, 1.0, 3.0, 1.0])
    display = Display.of(Geometry((40, 40, 20), affine), budget=8000)
    assert display.factors == (2, 2, 1)
    assert display.geometry.shape == (20, 20, 20)
    np.testing.assert_allclose(display.geometry.points(np.zeros(3)), [0.5, 0.5, 0.0])
    for shape in ((128, 128, 128), (512, 512, 200), (7, 3000, 900)):
        display = Display.of(Geometry(shape, np.diag([0.9, 0.9, 2.5, 1.0])))
        assert np.prod(display.geometry.shape) <= BUDGET
        assert (display.factors == (1, 1, 1)) == (np.prod(shape) <= BUDGET)
    turn = np.deg2rad(20.0)
    affine = np.eye(4)
    affine[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    assert Display.of(Geometry((4, 4, 4), affine)).tilt_degrees == pytest.approx(20.0)


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
    wide = np.abs(values) * np.float32(1.9 * 2**10 / np.abs(values).max())
    (codes,), (large,) = (quantise([of])[0] for of in (wide, wide * np.float32(2.0**117)))  # up to 3.2e38
    np.testing.assert_array_equal(large, codes)
    rng = np.random.default_rng(3)
    tissue = rng.normal(40.0, 20.0, 40_000)
    scan = np.concatenate([np.full(50_000, -1000.0), tissue, np.linspace(300, 3000, 1000)]).astype(np.float32)
    (codes,), table = quantise([scan.reshape(10, 10, -1)])
    error = np.abs(table[codes].ravel() - scan)[50_000:90_000]
    assert error.mean() < 1.0  # an even table of 4000 HU would have steps of 16, so a mean error of 4
    assert np.abs(table[codes].ravel() - scan).max() <= 16.0
    a, b = np.float32([[[0.0, 1.0]]]), np.float32([[[1.0, 5.0]]])
    (first, second), table = quantise([a, b])
    assert table[first].tolist() == a.tolist()
    assert table[second].tolist() == b.tolist()
    for kind in [np.uint8, np.int16]:
        data = np.arange(24).reshape(2, 3, 4).astype(kind)
        raw = zlib.decompress(base64.b64decode(packed(data)["data"]))
        assert np.frombuffer(raw, dtype=np.dtype(kind).newbyteorder("<")).tolist() == data.ravel(order="F").tolist()


CT = {"fixed": "ct", "moving": "ct", "bank": "ct"}


def chest() -> tuple[np.ndarray, np.ndarray]:
    """A body of water with two lungs, in air; and the lungs."""
    data = np.full((30, 24, 20), -1000.0, dtype=np.float32)
    data[4:26, 4:20] = 20.0
    lungs = np.zeros(data.shape, dtype=bool)
    lungs[6:13, 8:16, 4:16] = lungs[17:24, 8:16, 4:16] = True
    data[lungs] = -820.0
    return data, lungs


def test_the_window_follows_the_structures():
    data, lungs = chest()
    body = (data > -900) & ~lungs
    assert windows(data, data, CT, lungs)[0]["name"] == "lung"
    assert windows(data, data, CT, body)[0]["name"] == "brain"  # water alone
    names = [w["name"] for w in windows(data, data, CT, body | lungs)]
    assert names[0] == "soft tissue"
    assert {"mediastinum", "liver", "bone", "whole range"} <= set(names)
    assert len(names) == len(set(names))


def test_an_image_without_units_has_the_range_of_its_tissue():
    data = np.linspace(0, 1000, 6000, dtype=np.float32).reshape(30, 20, 10)
    first, second = windows(data, 3 * data, {"fixed": "mr", "moving": "mr", "bank": "mr"}, data > 0)
    assert first["name"] == "auto"
    assert first["fixed"] == pytest.approx((10.0, 995.0), abs=2.0)
    assert first["moving"] == pytest.approx((30.0, 2985.0), abs=6.0)
    assert second["name"] == "whole range"


@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_the_box_holds_body_and_labels_with_a_margin(flip):
    data, _ = chest()
    geometry = Geometry(data.shape, np.diag([flip * 2.0, 2.0, 3.0, 1.0]))
    x, y, z = content_box(geometry, [data], [])
    margin = round(MARGIN * 22) + 1
    assert x == (4 - margin, 26 + margin)  # symmetric, so flipping changes nothing
    assert y == (4 - 2, 20 + 2)
    assert z == (0, 20)
    labels = np.zeros(data.shape, dtype=np.int32)
    labels[0, 10, 10] = 1
    low, high = content_box(geometry, [data], [labels])[0]
    assert (low, high) == ((0, 26 + 2) if flip > 0 else (2, 30))


def test_structures_and_their_jacobians_against_loops():
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 3, 7], (8, 7, 6))
    jacobian = rng.uniform(0.2, 3.0, labels.shape).astype(np.float32)
    found = by_label(jacobian, labels)
    assert found.keys() == {3, 7}
    for value, numbers in found.items():
        inside = jacobian[labels == value]
        assert numbers == pytest.approx((inside.min(), inside.mean(), inside.max()), rel=1e-5)
    codes, rows = structures({"fixed": labels}, {3: "cord"}, Display.of(Geometry(labels.shape, np.eye(4))))
    assert [(r["code"], r["label"], r["name"]) for r in rows] == [(1, 3, "cord"), (2, 7, "7")]
    for row in rows:
        where = np.argwhere(codes["fixed"] == row["code"])
        nearest = np.linalg.norm(where - where.mean(axis=0), axis=1).min()
        assert np.linalg.norm(np.array(row["centre"]) - where.mean(axis=0)) == pytest.approx(nearest)


IMAGE = Geometry((8, 6, 5), np.diag([2.0, 2.0, 3.0, 1.0]))


def stretched(geometry: Geometry, factor: float) -> Field:
    """A field that scales the first axis by a factor."""
    data = np.zeros((3, *geometry.shape), dtype=np.float32)
    data[0] = ((factor - 1) * geometry.spacing_mm[0] * np.arange(geometry.shape[0]))[:, None, None]
    return Field(data, geometry)


def test_jacobian_codes_give_the_change_of_volume_back_and_folds_are_zero():
    for factor in (0.3, 0.8, 1.0, 2.5):
        codes, first, step = jacobian_map(determinant(stretched(IMAGE, factor)), Display.of(IMAGE))
        np.testing.assert_allclose(2.0 ** (first + step * codes.astype(float)), factor, rtol=0.01)
    for factor, code in ((0.1, 1), (6.0, 255)):  # beyond the scale
        assert (jacobian_map(determinant(stretched(IMAGE, factor)), Display.of(IMAGE))[0] == code).all()
    field = stretched(IMAGE, 1.0)
    field.data[0, 4, 3, 2] = -9.0  # far behind its neighbours
    whole = jacobian_map(determinant(field), Display.of(IMAGE))[0] == 0
    assert 0 < whole.sum() < 10
    merged = jacobian_map(determinant(field), Display.of(IMAGE, budget=60))[0] == 0
    assert 0 < merged.sum() <= whole.sum()


def nodes() -> NodeEvidence:
    """Two members, of which the first rules at one end and the second at the other."""
    place = np.diag([14.0, 10.0, 12.0, 1.0])
    influence = np.zeros((2, 2, 2, 2), dtype=np.float32)
    influence[0, 0], influence[1, 1] = 3.0, 3.0
    confidence = np.zeros((2, 2, 2), dtype=np.float32)
    confidence[1] = 0.5
    return NodeEvidence(Geometry((2, 2, 2), place), ("sad", "ncc"), influence, confidence)


def test_the_deciding_member_against_a_loop():
    who, share, parts = metric_map(nodes(), Display.of(IMAGE))
    for i in range(8):
        second = i * 2.0 / 14.0  # part of the way to the far nodes
        expected = 1 if second < 0.5 else 2
        assert (who[i] == expected).all()
        assert np.abs(share[i].astype(int) - round(100 * max(second, 1 - second))).max() <= 1
    assert parts == [0.5, 0.5]
    silent = nodes()
    who, share, parts = metric_map(
        NodeEvidence(silent.geometry, silent.members, 0 * silent.influence, silent.confidence), Display.of(IMAGE)
    )
    assert not who.any()
    assert not share.any()
    assert parts == [0.0, 0.0]
    codes, first, step = confidence_map(nodes(), Display.of(IMAGE))
    values = first + step * codes[:, 0, 0].astype(float)
    np.testing.assert_allclose(values, 0.5 * np.arange(8) * 2.0 / 14.0, atol=0.003)


@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_the_grid_moves_along_the_axes_of_the_page(flip):
    geometry = Geometry((40, 8, 8), np.diag([flip * 2.0, 2.0, 2.0, 1.0]))
    data = np.zeros((3, 40, 8, 8), dtype=np.float32)
    data[0] = 5.0  # towards the patient's left, which is where the page's first axis runs
    moved, step = grid_field(Field(data, geometry), Display.of(geometry))
    assert step == 2
    assert moved.shape == (3, 20, 4, 4)
    np.testing.assert_allclose(moved[0] * GRID_UNIT, 2.5)
    assert not moved[1:].any()
