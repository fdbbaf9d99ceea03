"""Two registrations joined: their error against maps whose product is known."""

from __future__ import annotations

import numpy as np
import pytest

from regweave.clinic.scans import WorkingScan
from regweave.clinic.start import BothWays, run_back
from regweave.types import Field, Geometry, Transform, Volume

GRID = Geometry((20, 18, 16), np.diag([2.0, 2.0, 3.0, 1.0]))


def shift(x, y, z):
    affine = np.eye(4)
    affine[:3, 3] = x, y, z
    return Transform(Field.zero(GRID), affine)


def scan():
    return WorkingScan(Volume(np.zeros(GRID.shape, np.float32), GRID, "ct"), None, None)


def test_errors_are_what_two_shifts_leave():
    numbers = BothWays(shift(3, 0, 0), shift(-3, 4, 0)).numbers(scan())
    assert numbers["both_ways_mean_mm"] == pytest.approx(4.0)
    assert numbers["both_ways_max_mm"] == pytest.approx(4.0)
    assert numbers["both_ways_voxels"] == pytest.approx(4.0 / 3.0)


def test_points_that_leave_the_plan_have_no_error():
    both = BothWays(shift(0, 0, 12), shift(0, 0, -12))
    points = GRID.points(np.array([[5.0, 5.0, 2.0], [5.0, 5.0, 14.0]]))
    assert both.errors_mm(points).tolist() == [0.0]
    away = BothWays(shift(0, 0, 900), shift(0, 0, -900)).numbers(scan())
    assert set(away.values()) == {None}


def test_the_way_back_begins_at_the_inverse_of_the_start():
    calls = []

    def register(fixed, moving, start):
        calls.append((fixed, moving, start))
        return start

    today, plan = scan(), scan()
    both = run_back(shift(3, 1, 0), shift(3, 1, 0), (today, plan), register)
    (fixed, moving, start) = calls[0]
    assert fixed is plan
    assert moving is today
    np.testing.assert_allclose(start.affine[:3, 3], [-3.0, -1.0, 0.0])
    assert both.numbers(today)["both_ways_max_mm"] == pytest.approx(0.0, abs=1e-5)
