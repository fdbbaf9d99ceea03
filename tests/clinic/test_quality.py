"""Numbers of propagated structures where today's scan ends, and where a deformation moves a structure out of it."""

import dataclasses

import numpy as np
import pytest

from regweave.clinic.commission import make_scan
from regweave.clinic.propagate import is_absent
from regweave.clinic.scans import Scan, missing_ends
from regweave.clinic.structures import Pair, bones_bent, flagged, moved_inside, structure_row
from regweave.contours import carry, shape_of
from regweave.measures.verdict import clinic_rules
from regweave.types import Field, Geometry, Transform, Volume

ALONG = tuple(3.0 * k - 46.5 for k in range(32))


@pytest.fixture(scope="module")
def plan():
    return make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=ALONG, name="PLAN", seed=0)


def shorter(series, slices):
    """The first slices of a series."""
    image, n = series.image, slices
    geometry = dataclasses.replace(image.geometry, shape=(*image.geometry.shape[:2], n))
    cut = Volume(np.ascontiguousarray(image.data[..., :n]), geometry, image.modality)
    return dataclasses.replace(series, image=cut, slices=series.slices[:n])


def moved_by(grid, mm):
    """Maps of a shift along the slices, there and back; its field is that of the deformation."""
    field, back = (Field.zero(grid) for _ in range(2))
    field.data[2], back.data[2] = mm, -mm
    return Transform(field), Transform(back)


def rows_of(plan, today, mm):
    there, back = moved_by(today.image.geometry, mm)
    found = Pair(Scan(plan.series, plan.series.image), Scan(today, today.image), there, back)
    shapes = [shape_of(one, plan.series) for one in plan.structures.structures]
    carried = [carry(shape, there, today) for shape in shapes]
    rows = {
        s.structure.name: flagged(structure_row(s, c, found), clinic_rules())
        for s, c in zip(shapes, carried, strict=True)
    }
    return rows, shapes, carried, found


def test_a_scan_that_ends_is_a_state_and_volumes_are_those_of_the_shared_slices(plan):
    rows = rows_of(plan, shorter(plan.series, 22), 0.0)[0]
    cut = [row for row in rows.values() if row.state]
    assert len(cut) >= 2
    for row in cut:
        assert row.state == "cut by the scan end"
        assert row.outside_percent > 5
        if row.planes >= 3:
            assert row.flag == "cut"
            assert abs(row.volume_change_percent) < 3
            assert row.volume_today_ml < 0.95 * row.volume_plan_ml
            assert row.centroid_shift_mm < 1.0  # of the whole structure it would be 10 mm and more
            assert row.reasons[-1].startswith("cut by the scan end: ")
    assert {row.flag for row in rows.values() if not row.state} == {"pass"}


def test_structures_beyond_the_scan_are_an_alarm_absent_or_lost(plan):
    rows = rows_of(plan, plan.series, -60.0)[0]
    out = [row for row in rows.values() if row.pushed_percent > 30]
    assert out
    assert {row.flag for row in out} == {"fail"}
    assert all("moved out of the scan" in row.reasons[0] for row in out if row.planes >= 3)
    for slices, mm in ((4, 0.0), (32, -400.0)):
        rows, _, carried, _ = rows_of(plan, shorter(plan.series, slices), mm)
        gone = [rows[one.name] for one in carried if not one.contours]
        assert gone
        assert {is_absent(row) for row in gone} == {mm == 0}


def test_missing_slices_are_stated_for_the_whole():
    grid = Geometry((20, 20, 21), np.diag([4.0, 4.0, 3.0, 1.0]))
    body = np.zeros(grid.shape, dtype=bool)
    body[5:15, 5:15] = True
    plan = Scan(None, Volume(np.zeros(grid.shape, np.float32), grid, "ct"), body=body)
    small = Geometry((20, 20, 15), grid.affine)
    today = Scan(None, Volume(np.zeros(small.shape, np.float32), small, "ct"), body=body[..., :15])
    still = Transform(Field.zero(small))
    assert "18 mm (6 slices) at its upper end" in missing_ends(today, plan, still)
    assert missing_ends(plan, plan, Transform(Field.zero(grid))) == ""
    lower = np.eye(4)
    lower[2, 3] = 18.0  # the patient lies six slices lower today
    assert "at its lower end" in missing_ends(today, plan, Transform(Field.zero(small), lower))


def test_bones_that_turn_are_rigid_and_bones_that_bend_are_measured():
    grid = Geometry((40, 40, 40), np.diag([3.0, 3.0, 3.0, 1.0]))
    points = np.moveaxis(np.indices(grid.shape, dtype=np.float64), 0, -1) * 3.0
    data = np.where(points[..., 0] < 60, 600, 20).astype(np.float32)
    scan = Scan(None, Volume(data, grid, "ct"))
    a = np.radians(6.0)
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    bend = np.zeros_like(points)
    bend[..., 1] = 6.0 * np.sin(2 * np.pi * points[..., 0] / 40)
    soft = np.where(points[..., :1] >= 60, bend, 0)
    found = {}
    for name, moved in (("turn", points @ turn.T - points), ("bend", bend), ("soft", soft)):
        field = Field(np.ascontiguousarray(np.moveaxis(moved, -1, 0), dtype=np.float32), grid)
        found[name] = bones_bent(scan, Transform(field)), moved_inside(scan, Transform(field))
    assert found["turn"][0] < 1e-3
    assert found["soft"][0] < 1e-6
    assert 2.0 < found["bend"][0] < 6.0
    assert found["soft"][1] == pytest.approx(6.0, abs=0.1)
    none = dataclasses.replace(scan, image=Volume(np.zeros_like(data), grid, "ct"))
    assert np.isnan(bones_bent(none, Transform(Field.zero(grid))))
