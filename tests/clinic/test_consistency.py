"""Two registrations joined: their error against maps whose product is known."""

import numpy as np
import pytest

from regweave.clinic.scans import Scan
from regweave.clinic.structures import both_ways_mm, both_ways_numbers
from regweave.types import Field, Geometry, Transform, Volume

GRID = Geometry((20, 18, 16), np.diag([2.0, 2.0, 3.0, 1.0]))


def shift(x, y, z):
    affine = np.eye(4)
    affine[:3, 3] = x, y, z
    return Transform(Field.zero(GRID), affine)


def scan():
    return Scan(None, Volume(np.zeros(GRID.shape, np.float32), GRID, "ct"))


def test_errors_are_what_two_shifts_leave_inside_the_plan():
    numbers = both_ways_numbers(shift(3, 0, 0), shift(-3, 4, 0), scan())
    assert numbers["both_ways_mean_mm"] == pytest.approx(4.0)
    assert numbers["both_ways_max_mm"] == pytest.approx(4.0)
    assert numbers["both_ways_voxels"] == pytest.approx(4.0 / 3.0)
    points = GRID.points(np.array([[5.0, 5.0, 2.0], [5.0, 5.0, 14.0]]))
    assert both_ways_mm(shift(0, 0, 12), shift(0, 0, -12), points).tolist() == [0.0]
    assert set(both_ways_numbers(shift(0, 0, 900), shift(0, 0, -900), scan()).values()) == {None}
