"""The commands on DICOM files: warp rtstruct and dose, convert, check, register."""

import json
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from made_dicom import Made, Roi, circle, dose, save, write_rtstruct, write_series

from regweave.cli import main
from regweave.io import read_transform, write_image
from regweave.io.dicom.dose import read_dose
from regweave.io.dicom.rtstruct import read_rtstruct
from regweave.io.dicom.series import list_series, read_series
from regweave.io.transforms.files import write_linear, write_transform
from regweave.types import Ends, Field, Geometry, Transform, Volume

PLAN = Made()
TODAY = replace(PLAN, series="7", frame="7", study="7")
SHIFT = np.eye(4)
SHIFT[:3, 3] = 4.0, 0.0, 2.0


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_series(folder / "plan" / "ct", PLAN)
    write_series(folder / "today", TODAY)
    rois = [Roi("Cord", tuple((k, circle((30.0, 32.0), 12.0)) for k in range(3, 9))), Roi("Empty")]
    write_rtstruct(folder / "plan" / "rtstruct.dcm", PLAN, rois)
    save(folder / "plan" / "dose.dcm", dose(PLAN))
    write_linear(folder / "shift.tfm", SHIFT)
    return folder


def run(capsys, *words):
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    assert "SECRET" not in said.out + said.err
    return status, said.out, said.err


def warp_rtstruct(study, out, *more):
    plan = study / "plan"
    words = ["warp", "rtstruct", plan / "rtstruct.dcm", "--planning", plan / "ct", "-t", study / "shift.tfm"]
    return [*words, "-r", study / "today", "-o", out, *more]


def test_contours_move_against_the_transform(capsys, study, tmp_path):
    status, out, _ = run(capsys, *warp_rtstruct(study, tmp_path / "new.dcm"))
    assert status == 0
    assert "left out: Empty: no contours" in out
    today = read_series(study / "today")
    cord = read_rtstruct(tmp_path / "new.dcm", today).named("Cord")
    assert [c.image for c in cord.contours] == [2, 3, 4, 5, 6, 7]
    centre = np.mean([c.points_mm.min(axis=0) + c.points_mm.max(axis=0) for c in cord.contours], axis=0) / 2
    assert centre[:2] == pytest.approx([-31.0 + 30.0 - 4.0, -40.0 + 32.0], abs=0.02)


def test_structures_are_chosen_and_renamed_and_nothing_is_written_beside_inputs(capsys, study, tmp_path):
    (tmp_path / "names.json").write_text('{"Cord": "Myelon"}')
    more = ("--structures", "Cord", "--name-map", tmp_path / "names.json", "--json")
    status, out, _ = run(capsys, *warp_rtstruct(study, tmp_path / "new.dcm", *more))
    assert status == 0
    assert json.loads(out)["structures"][0]["name"] == "Myelon"
    status, _, err = run(capsys, *warp_rtstruct(study, tmp_path / "b.dcm", "--structures", "Liver"))
    assert (status, "E165" in err, "choose some of: Cord" in err) == (2, True, True)
    before = sorted(study.rglob("*"))
    status, _, err = run(capsys, *warp_rtstruct(study, study / "today" / "new.dcm"))
    assert (status, "E168" in err) == (3, True)
    assert sorted(study.rglob("*")) == before


def test_a_dose_is_warped(capsys, study, tmp_path):
    words = ("warp", "dose", study / "plan" / "dose.dcm", "-t", study / "shift.tfm", "-r", study / "today")
    assert run(capsys, *words, "-o", tmp_path / "new.dcm")[0] == 0
    before, after = read_dose(study / "plan" / "dose.dcm").volume, read_dose(tmp_path / "new.dcm").volume
    point = np.array([-10.0, -10.0, 15.0])
    values = [
        float(v.data[tuple(np.rint(np.linalg.solve(v.geometry.affine, [*p, 1.0])[:3]).astype(int))])
        for v, p in ((after, point), (before, point + SHIFT[:3, 3]))
    ]
    assert values[0] == pytest.approx(values[1], abs=0.4)


def test_a_transform_of_working_copies_goes_with_the_whole_scans(capsys, study, tmp_path):
    """As `contours` writes it: from a coarser part of today's series to one of the plan's."""

    def part(folder, low):
        whole = read_series(folder).image.geometry
        affine = whole.affine.copy()
        affine[:3, :2], affine[:3, 3] = 2 * affine[:3, :2], whole.points(np.array(low))
        return Geometry((8, 7, whole.shape[2]), affine)

    start, target = part(study / "today", (4.0, 4.0, 0.0)), part(study / "plan" / "ct", (3.0, 3.0, 0.0))
    there = Transform(Field.zero(start), ends=Ends("fixed_to_moving", start, target))
    write_transform(tmp_path / "t.h5", there)
    write_transform(tmp_path / "back.h5", Transform(Field.zero(target), ends=there.ends.turned()))
    elsewhere = Geometry(start.shape, start.affine + np.outer([500, 0, 0, 0], [0, 0, 0, 1]))
    write_transform(
        tmp_path / "far.h5", Transform(Field.zero(elsewhere), ends=Ends("fixed_to_moving", elsewhere, elsewhere))
    )
    plan, out = study / "plan", tmp_path / "new.dcm"
    for words in (
        ("warp", "dose", plan / "dose.dcm", "-r", study / "today", "-o", out, "--overwrite"),
        ("warp", "rtstruct", plan / "rtstruct.dcm", "--planning", plan / "ct", "-r", study / "today", "-o", out,
         "--overwrite"),
    ):  # fmt: skip
        assert run(capsys, *words, "-t", tmp_path / "t.h5")[0] == 0
        assert "E117" in run(capsys, *words, "-t", tmp_path / "back.h5")[2]
        assert "E118" in run(capsys, *words, "-t", tmp_path / "far.h5")[2]


def test_the_range_of_a_dose_needs_the_map_of_its_transform(capsys, study, tmp_path):
    grid = read_series(study / "today").image.geometry
    moved = Geometry(grid.shape, grid.affine + np.outer([40, 0, 0, 0], [0, 0, 0, 1]))
    there = Transform(Field.zero(grid), SHIFT, Ends("fixed_to_moving", grid, moved))
    write_transform(tmp_path / "t.h5", there)
    words = ("warp", "dose", study / "plan" / "dose.dcm", "-t", tmp_path / "t.h5", "-r", study / "today", "--limit")
    limit = np.random.default_rng(0).uniform(0.5, 6.0, grid.shape).astype(np.float32)
    for name, data, where, code in (
        ("own", limit, grid, None), ("moved", limit, moved, "E112"), ("labels", np.rint(limit), grid, "E122")
    ):  # fmt: skip
        write_image(tmp_path / f"{name}.nii.gz", Volume(data, where))
        status, _, err = run(capsys, *words, tmp_path / f"{name}.nii.gz", "-o", tmp_path / f"{name}.dcm")
        assert (status == 0, str(code) in err) == (code is None, code is not None), err
    low, dose_, high = (read_dose(tmp_path / f"own{end}.dcm").volume.data for end in ("_low", "", "_high"))
    assert (low <= dose_).all()
    assert (dose_ <= high).all()
    assert (low < high).any()


def test_a_dose_of_another_frame_is_refused(capsys, study, tmp_path):
    write_series(tmp_path / "other", replace(PLAN, series="9", frame="9"))
    write_linear(tmp_path / "shift.tfm", SHIFT)
    words = ("warp", "dose", study / "plan" / "dose.dcm", "-r", study / "today", "-o", tmp_path / "new.dcm")
    plain = ("-t", tmp_path / "shift.tfm")
    status, _, err = run(capsys, *words, *plain, "--planning", tmp_path / "other")
    assert (status, "E160" in err, (tmp_path / "new.dcm").exists()) == (3, True, False)
    for plan, expected in ((tmp_path / "other", 3), (study / "plan" / "ct", 0)):
        reg = tmp_path / f"{plan.name}_reg.dcm"
        assert run(capsys, "convert", *plain[1:], "-o", reg, "-r", study / "today", "--planning", plan)[0] == 0
        status, _, err = run(capsys, *words, "-t", reg)
        assert (status, "E160" in err) == (expected, expected == 3), err
    assert run(capsys, *words, *plain, "--planning", study / "plan" / "ct", "--overwrite")[0] == 0


def test_contours_refuse_a_registration_of_other_frames(capsys, study, tmp_path):
    write_series(tmp_path / "other", replace(PLAN, series="9", frame="9"))
    reg = tmp_path / "reg.dcm"
    words = ("convert", study / "shift.tfm", "-o", reg, "-r", study / "today", "--planning", tmp_path / "other")
    assert run(capsys, *words)[0] == 0
    plan = study / "plan"
    words = ("warp", "rtstruct", plan / "rtstruct.dcm", "--planning", plan / "ct", "-t", reg, "-r", study / "today")
    status, _, err = run(capsys, *words, "-o", tmp_path / "new.dcm")
    assert (status, "E160" in err) == (3, True)
    for inverse in (f"[{reg},1]", "[identity,1]"):  # frames of an inverse are not compared
        status, _, err = run(capsys, *words, "-t", inverse, "-o", tmp_path / "new.dcm")
        assert (status, "E192" in err) == (2, True)


def test_the_ways_out_of_several_series_are_those_that_the_message_names(capsys, study, tmp_path):
    both = tmp_path / "both"
    write_series(both / "a", TODAY)
    write_series(both / "b", replace(TODAY, series="8"))
    status, _, err = run(capsys, "register", both, study / "plan" / "ct", "-o", tmp_path / "out")
    assert (
        status,
        "E161" in err,
        "with --series (or --planning-series), or name a folder of one" in " ".join(err.split()),
    ) == (2, True, True)
    words = (
        "register", both / "a", study / "plan" / "ct", "-o", tmp_path / "out", "--write", "transform", "--init",
        "none",
    )  # fmt: skip
    assert run(capsys, *words)[0] == 0
    words = ("warp", "dose", study / "plan" / "dose.dcm", "-t", study / "shift.tfm", "-r", both)
    assert run(capsys, *words, "-o", tmp_path / "new.dcm", "--series", list_series(both)[0].hash)[0] == 0


def test_registrations_are_converted_there_and_back_and_their_inverse_starts_in_the_plan(capsys, study, tmp_path):
    today, plan = study / "today", study / "plan" / "ct"
    words = ("convert", study / "shift.tfm", "-o", tmp_path / "reg.dcm", "-r", today, "--planning", plan)
    assert run(capsys, *words)[0] == 0
    assert pydicom.dcmread(tmp_path / "reg.dcm").Modality == "REG"
    assert run(capsys, "convert", tmp_path / "reg.dcm", "-o", tmp_path / "t.tfm")[0] == 0
    np.testing.assert_allclose(read_transform(tmp_path / "t.tfm").affine, SHIFT, atol=1e-6)
    status, _, err = run(capsys, "convert", study / "shift.tfm", "-o", tmp_path / "b.dcm")
    assert (status, "E192" in err) == (2, True)
    reg = tmp_path / "reg.dcm"
    for fixed, moving, expected in ((plan, study / "today", 0), (study / "today", plan, 3)):
        words = ("warp", "image", moving, "-t", f"[{reg},1]", "-r", fixed, "-o", tmp_path / f"{fixed.name}.nii.gz")
        status, _, err = run(capsys, *words)
        assert (status, "E160" in err) == (expected, expected == 3), err


def test_check_lists_a_folder(capsys, study):
    status, out, _ = run(capsys, "check", study / "plan")
    assert status == 0
    assert "64 × 56 × 12 voxels of 1 × 1.25 × 2 mm" in out
    assert "RTSTRUCT, 1 structures" in out
    assert "RTDOSE" in out
    status, out, _ = run(capsys, "check", study / "plan", "--json")
    assert {row["kind"] for row in json.loads(out)[0]["dicom"]} == {"CT", "RTSTRUCT", "RTDOSE"}


def test_register_takes_folders(capsys, study, tmp_path):
    words = ("register", study / "today", study / "plan" / "ct", "-o", tmp_path / "out")
    status, _, err = run(capsys, *words, "--write", "transform", "--init", "none")
    assert status == 0, err
    assert (tmp_path / "out" / "transform.h5").exists()
    record = (tmp_path / "out" / "result.json").read_text()
    assert "SECRET" not in record
    assert '"ct"' in record
