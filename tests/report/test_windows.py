"""Window and box of the content, on images whose content is known."""

from __future__ import annotations

import numpy as np
import pytest

from regweave.report.viewer import MARGIN, Display, by_label, content_box, structures, windows
from regweave.types import Geometry

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


def test_cropping_keeps_every_voxel_in_its_place():
    geometry = Geometry((9, 8, 7), np.diag([-2.0, 3.0, 4.0, 1.0]))
    where = geometry.points(np.moveaxis(np.indices(geometry.shape), 0, -1).astype(float))
    display = Display.of(geometry, box=((2, 6), (1, 8), (3, 4)))
    assert display.geometry.shape == (4, 7, 1)
    turned = np.stack([display.turn(where[..., c]) for c in range(3)], axis=-1)
    shown = np.moveaxis(np.indices((4, 7, 1)), 0, -1).astype(float)
    np.testing.assert_allclose(turned, display.geometry.points(shown))
    assert display.inner(((3, 5), (1, 8), (3, 4))) == [[0.5, -0.5, -0.5], [2.5, 6.5, 0.5]]


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
