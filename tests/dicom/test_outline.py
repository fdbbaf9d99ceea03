"""The patient's outline, found anew or carried, and what is moved rigidly; a plan on its own scan comes back."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_body import ORGANS, Head, box, frame, mark, skin, with_ears
from made_dicom import Roi, write_rtstruct, write_series

from regweave.cli import main
from regweave.clinic.propagate import propagate_contours
from regweave.clinic.scans import prepare, read_scans
from regweave.clinic.structures import Pair, find_outline, flagged, outline_row, rigid_pair, rigid_reason, rigid_row
from regweave.contours import carry, dice_of_areas, shape_of, volume_ml
from regweave.errors import RegweaveError
from regweave.io.dicom.rtstruct import read_rtstruct
from regweave.io.dicom.series import read_series
from regweave.measures.verdict import clinic_rules
from regweave.spatial.rigid import rigid_fit
from regweave.spatial.warp import warp_points
from regweave.types import Field, Transform, Volume

TILT = np.radians(15)
UNEVEN = tuple(np.cumsum([0.0, 3, 3, 3, 5, 3, 3, 2, 3, 3, 5, 3, 3, 3, 2, 3]).tolist())
SCANS = {
    "even": Head(),
    "tilted, prone and uneven": Head(
        along=UNEVEN, row=(-1.0, 0.0, 0.0), column=(0.0, -float(np.cos(TILT)), -float(np.sin(TILT))),
        origin=(80.0, 86.0, 21.0),
    ),
}  # fmt: skip
OUTLINES = {"skin": skin, "box": box, "with ears": with_ears}


def drawn(scan: Head) -> list[Roi]:
    """Organs, three outlines, a frame and a mark."""
    outlines = [scan.drawn_at(name, level, "EXTERNAL") for name, level in OUTLINES.items()]
    organs = [scan.drawn_at(name, lambda p, name=name: _organ(p, name)) for name in ORGANS]
    return [*organs, *outlines, scan.drawn_at("frame", frame, "FIXATION"), scan.drawn_at("mark", mark, "MARKER")]


def _organ(points: np.ndarray, name: str) -> np.ndarray:
    centre, half, _ = ORGANS[name]
    return (np.linalg.norm((points - centre) / half, axis=1) - 1) * min(half)


def written(folder: Path, plan: Head, today: Head) -> tuple[Path, Path]:
    for name, scan in (("plan", plan), ("today", today)):
        write_series(folder / name, scan)
    write_rtstruct(folder / "plan" / "set.dcm", plan, drawn(plan))
    return folder / "plan", folder / "today"


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """Scans of a plan, and of another day on which the patient lies elsewhere."""
    today = replace(SCANS["even"], series="77", frame="7", study="7", shift=(4.0, -3.0, 0.0), noise=8.0)
    return read_scans(*written(tmp_path_factory.mktemp("even"), SCANS["even"], today))


def test_a_plan_on_its_own_scan_returns_every_structure(tmp_path, recwarn):
    name = "tilted, prone and uneven"
    plan, _ = written(tmp_path, SCANS[name], SCANS[name])
    assert main(["contours", str(plan), str(plan), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    series = read_series(plan)
    planned, found = (read_rtstruct(path, series) for path in (plan / "set.dcm", tmp_path / "out" / "rtstruct.dcm"))
    overlap = {one.name: dice_of_areas(one, found.named(one.name), series) for one in planned.structures}
    assert set(overlap) == {*ORGANS, *OUTLINES, "frame", "mark"}
    assert min(overlap.values()) >= 0.99, overlap
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    notes = {row["name"]: row["note"] for row in record["clinic"]["structures"]}
    assert notes["skin"].startswith(
        "re-contoured automatically in today's CT; the same method gives the plan's outline"
    )
    for name in ("box", "with ears"):
        assert notes[name].startswith("carried: the plan's outline is not the skin found in the plan's CT (Dice 0.")
    assert notes["frame"] == "moved rigidly: a fixation device is not bent"
    assert notes["mark"] == "moved rigidly: it lies outside the body"


def _stretched(grid, amount: float = 0.08) -> Transform:
    """A map that stretches space about the middle of a grid, far beyond the patient too."""
    index = np.stack(np.meshgrid(*(np.arange(float(n)) for n in grid.shape), indexing="ij"), axis=-1).reshape(-1, 3)
    points = grid.points(index)
    away = (points - points.mean(axis=0)) * [amount, amount, 0.0]
    return Transform(Field(away.T.reshape(3, *grid.shape).astype(np.float32), grid))


def test_no_tissue_is_drawn_on_slices_that_show_no_patient(even):
    still = np.eye(4)
    plan, today, planned = even
    data = today.image.data.copy()
    data[..., -2:] = -1000.0
    blank = replace(today, image=Volume(data, today.image.geometry, "ct"))
    done = propagate_contours(
        plan, blank, rtstruct=planned, init=still, carry_external=True, progress=False,
        structures=["skin", "frame"],
    )  # fmt: skip
    last = {one.name: max(c.image for c in one.contours) for one in done.structures.structures}
    assert last["skin"] < last["frame"]
    assert last["skin"] <= 13
    note = {row.name: row.note for row in done.quality.structures}["skin"]
    assert note.endswith("slices that show no patient")


def test_landmarks_guide_and_structures_of_the_plan_stay_rigid(even):
    """Those asked for and fixation devices are rigid in the map; a name that the plan lacks is refused."""
    plan, today, planned = even
    name = next(iter(ORGANS))
    middle = today.image.geometry.points((np.array(today.image.geometry.shape) - 1) / 2)
    points = middle + np.random.default_rng(0).uniform(-14, 14, (7, 3))
    done = propagate_contours(
        plan, today, rtstruct=planned, init=np.eye(4), carry_external=True, progress=False, rigid=name,
        fixed_points=points, moving_points=points - np.array([4.0, -3.0, 0.0]), guide_points=0.5,
        name_map={name: "renamed"},
    )  # fmt: skip
    assert set(done.result.rigid_mm) == {"renamed", "frame"}
    assert done.result.provenance.call.rigid == ("renamed", "frame")
    assert all(point.guides for point in done.result.landmarks.points)
    assert done.result.landmarks.after_mm["mean"] < done.result.landmarks.before_mm["mean"]
    shape = shape_of(planned.named(name), plan)
    inside = today.image.geometry.points(np.argwhere(np.ones(today.image.geometry.shape)).astype(float))
    inside = inside[shape.at(warp_points(inside, done.transform)) < -1.0]
    there = warp_points(inside, done.transform)
    motion = rigid_fit(inside, there)
    assert np.linalg.norm(inside @ motion[:3, :3].T + motion[:3, 3] - there, axis=1).max() < 0.1
    with pytest.raises(RegweaveError, match="E121: 'nothing' is no structure"):
        propagate_contours(plan, today, rtstruct=planned, init=np.eye(4), progress=False, rigid="nothing")
    with pytest.raises(RegweaveError, match="E121: structures to keep rigid are ''"):
        propagate_contours(plan, today, rtstruct=planned, init=np.eye(4), progress=False, rigid="")
    with pytest.raises(RegweaveError, match="E116: landmarks of the fixed image are missing"):
        propagate_contours(plan, today, rtstruct=planned, progress=False, guide_points=1.0)


@pytest.fixture(scope="module")
def stretched(even):
    """The plan's structures, and a registration of both scans that bends what it carries."""
    plan, today = prepare(*even[:2])
    there, back = (_stretched(today.image.geometry, amount) for amount in (0.08, 1 / 1.08 - 1))
    return even[2], Pair(plan, today, there, back)


def test_devices_and_marks_outside_the_body_keep_their_shape(stretched):
    for name, reason in [("frame", "a fixation device is not bent"), ("mark", "outside the body")]:
        planned, found = stretched
        plan, today = found.plan.series, found.today.series
        shape = shape_of(planned.named(name), plan)
        assert reason in rigid_reason(shape, found.plan)
        rigid = rigid_pair(shape, found)
        turn = rigid.transform.affine[:3, :3]
        np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-9)
        drawn_ml, bent_ml = volume_ml(shape.structure, plan), volume_ml(carry(shape, found.transform, today), today)
        moved = carry(shape, rigid.transform, today)
        assert volume_ml(moved, today) == pytest.approx(drawn_ml, rel=0.03)
        assert bent_ml < 0.95 * drawn_ml
        row = rigid_row(shape, moved, rigid, found.transform.affine, "")
        assert row.jacobian_least == row.jacobian_largest == 1.0
        assert row.displacement_mean_mm >= 0
        assert rigid_reason(shape_of(planned.named("Liver"), plan), found.plan) == ""


def test_a_mark_follows_the_tissue_near_it(stretched):
    planned, found = stretched
    shape = shape_of(planned.named("mark"), found.plan.series)
    moved = carry(shape, rigid_pair(shape, found).transform, found.today.series)
    where = np.concatenate([c.points_mm for c in moved.contours]).mean(axis=0)
    tissue = carry(shape, found.transform, found.today.series)
    assert np.linalg.norm(where - np.concatenate([c.points_mm for c in tissue.contours]).mean(axis=0)) < 3.0


def test_an_outline_found_today_is_measured_and_another_object_is_flagged(even):
    plan, today = prepare(*even[:2])
    still = Transform(Field.zero(today.image.geometry))
    found, planned = Pair(plan, today, still, still), even[2].named("skin")
    drawn, note = find_outline(planned, today, plan)
    row = outline_row(planned, drawn, found, note)
    assert 0.9 < row.outline_dice < 0.97  # the patient lies 5 mm away and nothing was registered
    assert abs(row.volume_change_percent) < 1.0
    assert f"Dice {row.outline_dice:.3f} with the plan's outline carried here" in row.note
    assert flagged(row, clinic_rules()).flag == "look"
    larger = outline_row(planned, even[2].named("box"), found, note)
    assert larger.volume_change_percent > 60
    assert flagged(larger, clinic_rules()).flag == "fail"


def test_an_outline_that_cannot_be_found_is_carried_or_left_unmeasured(even):
    plan, today = prepare(*even[:2])
    far = np.eye(4)
    far[2, 3] = 500.0
    away, back = (Transform(Field.zero(today.image.geometry), m) for m in (far, np.linalg.inv(far)))
    planned = even[2].named("skin")
    skin, _ = find_outline(planned, today, plan)
    row = flagged(outline_row(planned, skin, Pair(plan, today, away, back), ""), clinic_rules())
    assert row.outline_dice is None
    assert row.flag == "look"
    assert any(text.startswith("not measured: ") for text in row.reasons)
    plan, today = prepare(*even[:2])
    assert find_outline(even[2].named("skin"), today, plan, only_carry=True) == (None, "carried, as asked for")
