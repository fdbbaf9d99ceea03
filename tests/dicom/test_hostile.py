"""Plausible mistakes with two scans and a structure set are refused or named; hostile names stay text."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest
from made_body import ORGANS, PLAN, TODAY, write_study
from made_dicom import rtstruct, save, write_rtstruct, write_series
from test_bad_inputs import every

from regweave.cli import main
from regweave.clinic.scans import read_scans

pytestmark = pytest.mark.usefixtures("few_steps")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("h"))


@pytest.fixture
def study(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "s"))


def contours(study, capsys, *more, plan="plan", today="today"):
    """Run `regweave contours`; return status, what was printed and the record, if there is one."""
    out = study.parent / "out"
    words = ("contours", study / plan, study / today, "-o", out, "--structures", "Liver", *more)
    status = main([str(word) for word in words])
    record = json.loads((out / "result.json").read_text()) if status == 0 else {}
    assert out.exists() == (status == 0)
    return status, "".join(capsys.readouterr()), record


def test_exchanged_scans_are_refused_and_the_wrong_order_or_patient_is_named(study, capsys):
    status, said, _ = contours(study, capsys, "--rtstruct", study / "plan" / "set.dcm", plan="today", today="plan")
    assert (status, "E146" in said) == (2, True)
    write_series(study / "same", replace(TODAY, frame="1"))
    status, said, _ = contours(study, capsys, "--rtstruct", study / "plan" / "set.dcm", plan="same", today="plan")
    assert (status, "E146" in said) == (2, True)
    status, said, _ = contours(study, capsys, plan="today", today="plan")
    assert (status, "E101" in said, "are PLAN and TODAY exchanged?" in " ".join(said.split())) == (3, True, True)
    write_series(study / "plan", replace(PLAN, series="5"))
    other = replace(PLAN, series="9", frame="9", patient=("OTHER^PATIENT", "4711", "19500101"))
    write_rtstruct(study / "other.dcm", other, [PLAN.drawn("Liver")])
    status, said, _ = contours(study, capsys, "--rtstruct", study / "other.dcm")
    assert (status, "E162" in said) == (3, True)


def test_a_scan_that_ends_early_cuts_and_says_so_everywhere(study, capsys):
    write_series(study / "short", replace(TODAY, along=TODAY.along[:9]))
    status, said, record = contours(study, capsys, today="short")
    row, whole = record["clinic"]["structures"][0], record["clinic"]["whole"]
    assert (status, row["state"]) == (0, "cut by the scan end")
    assert "mm (" in whole["missing_ends"]
    assert "at its upper end" in whole["missing_ends"]
    assert "W242" in said
    assert re.search(r"cut +Liver: cut by the scan end: \d+ % of the plan's contour", said)
    out = study.parent / "out"
    roi = pydicom.dcmread(out / "rtstruct.dcm").StructureSetROISequence[0]
    assert roi.ROIDescription.startswith(f"regweave: {row['flag'].upper()} ")
    assert "cut by the scan end" in roi.ROIDescription
    page = (out / "report.html").read_text()
    assert f"Liver ({row['outside_percent']:.0f} % beyond)" in page
    assert not [text for text in row["reasons"] if "volume" in text or "moved out" in text]


def test_a_registration_has_its_direction_and_a_transform_of_other_series_is_refused_or_named(study, capsys):
    assert contours(study, capsys)[0] == 0
    made = shutil.copy(study.parent / "out" / "transform.h5", study)
    _directions(study, capsys)
    shutil.rmtree(study.parent / "out")
    content = Path(made).read_bytes()
    assert not [word for word in (b"1.2.826", b"SECRET") if word in content]
    write_series(study / "later", replace(TODAY, series="78"))
    status, said, _ = contours(study, capsys, "--init", made, today="later")
    assert (status, "W243" in said, "today's scan" in said) == (0, True, True)
    shutil.rmtree(study.parent / "out")
    other = replace(PLAN, series="5")
    write_series(study / "plan5", other)
    write_rtstruct(study / "plan5" / "set.dcm", other, [other.drawn("Liver")])
    status, said, _ = contours(study, capsys, "--init", made, plan="plan5", today="later")
    assert (status, "E144" in said) == (3, True)


def test_a_scan_that_shows_nothing_is_refused(study, capsys):
    write_series(study / "air", replace(TODAY, hu=(0.0, -1000.0)))
    status, said, _ = contours(study, capsys, today="air")
    assert (status, "E147" in said) == (3, True)


def test_one_scan_twice_an_older_today_and_a_folder_of_two_patients_are_named(study, capsys):
    with pytest.warns(UserWarning, match="W231"):
        read_scans(study / "plan", study / "plan")
    other = ("OTHER^PATIENT", "4711", "19500101")
    write_series(study / "plan", replace(PLAN, series="5", patient=other))
    assert main(["check", str(study / "plan")]) == 0
    assert "images and objects of 2 patients" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="W233"):
        read_scans(study / "plan", study / "today")
    every(study / "today", StudyDate="20191231")
    with pytest.warns(UserWarning, match="W23[23]") as caught:
        read_scans(study / "plan", study / "today")
    said = "".join(str(one.message) for one in caught)
    assert ("W232" in said, "2019" in said) == (True, False)
    write_series(study / "today", replace(TODAY, series="5", patient=other))
    status, said, _ = contours(study, capsys)
    assert (status, "E161" in said) == (2, True)


def test_contours_beside_the_images_are_left_out_by_name(study, capsys):
    liver, fat = (PLAN.drawn(name) for name in ORGANS)
    far = replace(fat, contours=tuple((k, flat + np.array([900.0, 0.0])) for k, flat in fat.contours))
    half = replace(liver, contours=tuple((k, flat + np.array([45.0, 0.0])) for k, flat in liver.contours))
    write_rtstruct(study / "plan" / "set.dcm", PLAN, [half, far])
    status, said, record = contours(study, capsys)
    assert (status, "W235" in said) == (0, True)
    assert {"name": "Fat", "reason": f"{len(far.contours)} contours lie beside the images of the series"} in (
        record["clinic"]["left_out"]
    )
    assert record["clinic"]["structures"][0]["flag"] != "pass"  # half of it lies outside today's scan


def test_what_cannot_be_is_told_before_anything_is_computed(study, capsys):
    (study / "map.csv").write_text("Liver,a\\b\n")
    for option, value, code in (
        ("--device", "cuda:99", "E157"), ("--device", "tpu", "E173"), ("--model", "nope", "E171"),
        ("--name-map", study / "map.csv", "E166"), ("--model", "hippocampus-t1", "E172"),
    ):  # fmt: skip
        status, said, _ = contours(study, capsys, option, value)
        assert status in {2, 3}
        assert f"error {code}" in said
        assert "fixed_modality" not in said  # an option that there is not
        assert "patient and start" not in said or code == "E172"
    labels = ("--moving-labels", study / "plan" / "set.dcm", "-o", study / "o")
    assert main([str(word) for word in ("register", study / "today", study / "plan", *labels)]) == 3
    assert "regweave contours" in capsys.readouterr().err


HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)", "Li\nver\x1b[31m\t=cmd()", "\u202egnissim")


def test_hostile_names_stay_text_on_page_and_terminal(study, capsys):
    shapes = [replace(PLAN.drawn("Liver"), name=f"n{n}") for n in range(len(HOSTILE))]
    data = rtstruct(PLAN, shapes)
    data.SpecificCharacterSet = "ISO_IR 192"
    for roi, name in zip(data.StructureSetROISequence, HOSTILE, strict=True):
        roi[0x30060026]._value = name
    save(study / "plan" / "set.dcm", data)
    out = study.parent / "out"
    assert main(["contours", str(study / "plan"), str(study / "today"), "-o", str(out)]) == 0
    said = "".join(capsys.readouterr())
    assert "W230" in said
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", said)
    page = (out / "report.html").read_text()
    assert "<img src=x" not in page
    assert page.count("<script") == len(re.findall(r"<script[^>]*>", page))
    assert "<script>alert" not in page
    assert "&lt;img src=x" in page


def _directions(study, capsys):
    """A registration says its direction by its frames."""
    reg = study.parent / "out" / "registration.dcm"
    words = ("warp", "image", study / "plan", "-t", reg, "-r", study / "today", "-o", study / "there.nii.gz")
    assert main([str(word) for word in words]) == 0
    assert "W212" not in "".join(capsys.readouterr())
    words = ("warp", "image", study / "today", "-t", reg, "-r", study / "plan", "-o", study / "back.nii.gz")
    assert main([str(word) for word in words]) == 3
    assert "E160" in capsys.readouterr().err
    assert not (study / "back.nii.gz").exists()
    drawn = ("warp", "rtstruct", study / "plan" / "set.dcm", "--planning", study / "plan", "-t", reg)
    assert main([str(word) for word in (*drawn, "-r", study / "today", "-o", study / "set.nii.gz")]) == 2
    assert "E152" in capsys.readouterr().err
    assert main([str(word) for word in (*drawn, "-r", study / "today", "-o", study / "new.dcm")]) == 0
    assert "W212" not in "".join(capsys.readouterr())


def test_contours_partly_outside_their_images_are_kept(study, capsys):
    flat = PLAN.drawn("Liver").contours
    write_rtstruct(study / "plan" / "set.dcm", PLAN, [replace(PLAN.drawn("Liver"), contours=flat)])
    edge = replace(PLAN.drawn("Liver"), contours=tuple((k, ring - [ring[:, 0].min() + 3.0, 0.0]) for k, ring in flat))
    write_rtstruct(study / "plan" / "set.dcm", PLAN, [edge])
    assert all(np.min(ring[:, 0]) < -2.9 for _, ring in edge.contours)
    assert main(["check", str(study / "plan")]) == 0
    assert "beside" not in "".join(capsys.readouterr())
