"""A cone beam of the treatment day: values that are no Hounsfield units, a field of view that cuts the patient."""

import json
from dataclasses import replace

import numpy as np
import pytest
from made_body import ORGANS, PLAN, TODAY, write_study
from made_dicom import Roi, circle, write_rtstruct

from regweave.cli import main
from regweave.clinic.scans import cuts_patient, field_of_view, hounsfield_map, trusted
from regweave.contours import dice_of_areas
from regweave.io.dicom.rtstruct import read_rtstruct
from regweave.io.dicom.series import read_series
from regweave.types import Geometry, Volume

BEAM = replace(TODAY, along=TODAY.along[2:13], hu=(0.8, 350.0), noise=30.0, seen_mm=50.0)
FAR = circle((128.0, 66.0), 2.0)
"""A structure of the plan near the skin, 53 mm from the middle: the field of view does not reach it."""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = write_study(tmp_path_factory.mktemp("beam"), PLAN, BEAM)
    drawn = [PLAN.drawn(name) for name in ORGANS]
    drawn.append(Roi("Far", tuple((k, FAR) for k in range(5, 9))))
    drawn.append(Roi("BODY", tuple((k, _body(k)) for k in range(len(PLAN.along))), kind="EXTERNAL"))
    write_rtstruct(folder / "plan" / "set.dcm", PLAN, drawn)
    return folder


def _body(k: int) -> np.ndarray:
    turn = np.arange(90) * 2 * np.pi / 90
    at = PLAN.position(k)
    return np.stack([55 * np.cos(turn) - at[0], 45 * np.sin(turn) - at[1]], axis=1)


@pytest.fixture(scope="module")
def result(study, tmp_path_factory):
    out = tmp_path_factory.mktemp("o") / "out"
    assert main(["contours", str(study / "plan"), str(study / "today"), "-o", str(out), "--quiet"]) == 0
    return out


def test_organs_inside_the_field_of_view_are_met(study, result, tmp_path):
    today = read_series(study / "today")
    found = read_rtstruct(result / "rtstruct.dcm", today)
    true = read_rtstruct(write_rtstruct(tmp_path / "true.dcm", BEAM, [BEAM.drawn(name) for name in ORGANS]), today)
    for one in true.structures:
        assert dice_of_areas(found.named(one.name), one, today) > 0.9


def test_what_was_not_measured_is_named(result):
    record = json.loads((result / "result.json").read_text())
    said = " ".join(text[:4] for text in record["warnings"])
    assert "W236" in said
    assert "W237" in said
    left = {row["name"]: row["reason"] for row in record["clinic"]["left_out"]}
    assert left == {"Far": "not in today's scan: 100 % of its contour lies beyond it"}
    rows = {row["name"]: row for row in record["clinic"]["structures"]}
    assert rows["BODY"]["outside_percent"] > 20  # carried over: the rim of the field of view is no skin
    assert rows["BODY"]["note"] == "carried: the field of view of a scan cuts the patient"
    assert rows["Fat"]["outside_percent"] == 0
    assert record["clinic"]["whole"]["today_values"].startswith("HU by ")
    assert "Far" in (result / "report.html").read_text()


GRID = Geometry((50, 44, 6), np.diag([2.0, 2.0, 3.0, 1.0]))
X, Y = (np.indices((50, 44)) - np.array([24.5, 21.5])[:, None, None]) * 2.0


def scan(inside: np.ndarray, padding: float = -1000.0) -> Volume:
    rng = np.random.default_rng(1)
    data = 30.0 + rng.normal(0, 8, GRID.shape)
    return Volume(np.where(inside[..., None], data, padding).astype(np.float32), GRID, "ct")


def test_a_round_field_of_view_is_found_and_cuts_who_reaches_its_rim():
    circle_ = np.hypot(X, Y) < 40
    assert (field_of_view(scan(circle_)) == circle_).all()
    assert field_of_view(scan(np.hypot(X / 1.2, Y) < 34)) is None  # a patient whose surroundings were painted over
    assert field_of_view(scan(np.ones((50, 44), dtype=bool))) is None
    noisy = scan(circle_)
    noisy.data[~circle_] += np.random.default_rng(2).normal(0, 3, noisy.data[~circle_].shape).astype(np.float32)
    assert field_of_view(noisy) is None  # air that was measured
    seen = np.hypot(X, Y) < 40
    small, large = (np.repeat((np.hypot(X, Y) < r)[..., None], 6, axis=2) for r in (25, 60))
    assert not cuts_patient(seen, small, GRID.spacing_mm)
    assert cuts_patient(seen, large & seen[..., None], GRID.spacing_mm)
    assert np.hypot(X, Y)[trusted(seen, GRID.spacing_mm)].max() <= 40 - 5


def test_values_return_to_the_scale_of_the_plan():
    for slope, offset in [(0.8, -150.0), (1.0, 1000.0), (1.2, 200.0), (0.9, 0.0)]:
        body = np.hypot(X, Y) < 32
        plan = scan(body)
        plan.data[:] += np.random.default_rng(3).normal(0, 12, GRID.shape).astype(np.float32)
        plan.data[20:30, 18:26] += 600.0
        today = replace(plan, data=plan.data * np.float32(slope) + np.float32(offset))
        found = hounsfield_map(today, plan)
        for hu in (-1000.0, 30.0, 630.0):
            assert abs((hu * slope + offset) * found[0] + found[1] - hu) < 60


def test_what_needs_no_map_of_values():
    plan, less = scan(np.hypot(X, Y) < 32), scan(np.hypot(X, Y) < 24)
    less.data[:] += np.random.default_rng(4).normal(0, 25, GRID.shape).astype(np.float32) + 15.0
    assert hounsfield_map(less, plan) is None
    for which in ["plan", "today", "both"]:
        body = np.hypot(X, Y) < 32
        plan = scan(body)
        plan.data[20:30, 18:26] += 600.0
        plan.data[body & (np.hypot(X, Y) > 24)] -= 130.0
        over = replace(plan, data=np.where(plan.data < 0, plan.data + np.float32(32768.0), plan.data))
        today, planned = {"plan": (plan, over), "today": (over, plan), "both": (over, over)}[which]
        assert hounsfield_map(today, planned) is None
