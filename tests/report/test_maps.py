from __future__ import annotations

import numpy as np
import pytest

from regweave.report.viewer import (
    GRID_UNIT,
    Display,
    confidence_map,
    grid_field,
    jacobian_map,
    member_parts,
    metric_map,
)
from regweave.spatial.deformation import determinant
from regweave.types import Field, Geometry, NodeEvidence

IMAGE = Geometry((8, 6, 5), np.diag([2.0, 2.0, 3.0, 1.0]))


def stretched(geometry: Geometry, factor: float) -> Field:
    """A field that scales the first axis by a factor."""
    data = np.zeros((3, *geometry.shape), dtype=np.float32)
    data[0] = ((factor - 1) * geometry.spacing_mm[0] * np.arange(geometry.shape[0]))[:, None, None]
    return Field(data, geometry)


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.0, 2.5])
def test_jacobian_codes_give_the_change_of_volume_back(factor):
    codes, first, step = jacobian_map(determinant(stretched(IMAGE, factor)), Display.of(IMAGE))
    values = 2.0 ** (first + step * codes.astype(float))
    np.testing.assert_allclose(values, factor, rtol=0.01)


def test_values_beyond_the_scale_have_codes_of_their_own():
    for factor, code in ((0.1, 1), (6.0, 255)):
        assert (jacobian_map(determinant(stretched(IMAGE, factor)), Display.of(IMAGE))[0] == code).all()


def test_a_fold_has_the_code_zero_and_survives_merging():
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
    who, share = metric_map(nodes(), Display.of(IMAGE))
    for i in range(8):
        second = i * 2.0 / 14.0  # part of the way to the far nodes
        expected = 1 if second < 0.5 else 2
        assert (who[i] == expected).all()
        assert np.abs(share[i].astype(int) - round(100 * max(second, 1 - second))).max() <= 1


def test_no_member_decides_where_all_are_silent():
    silent = nodes()
    who, share = metric_map(
        NodeEvidence(silent.geometry, silent.members, 0 * silent.influence, silent.confidence), Display.of(IMAGE)
    )
    assert not who.any()
    assert not share.any()
    assert member_parts(who, 2) == [0.0, 0.0]


def test_parts_leave_out_voxels_without_a_member():
    assert member_parts(np.uint8([[[0, 0, 1, 2, 2, 2]]]), 3) == [0.25, 0.75, 0.0]


def test_confidence_is_linear_between_nodes():
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
