"""RT structure sets: what is read, what is left out and said so, what is written."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from made_dicom import Made, Roi, circle, rtstruct, save, uid, write_rtstruct, write_series

from regweave.contours import carry_set
from regweave.errors import RegweaveError
from regweave.io.dicom.rtstruct import read_rtstruct, referenced_series, write_rtstruct as write_set
from regweave.io.dicom.series import read_series
from regweave.types import Field, Transform

PLAN = Made()
TODAY = replace(PLAN, series="7", frame="7", study="7", origin=(-33.0, -41.0, 7.5), spacing=(1.05, 1.3))
RING = circle((30.0, 32.0), 12.0)
ROIS = [
    Roi("Cord", tuple((k, RING) for k in range(3, 9)), kind="AVOIDANCE", colour=(255, 0, 128)),
    Roi("Iso", points=((1.0, 2.0, 15.0),), kind="ISOCENTER"),
    Roi("Nothing"),
    Roi("Channel", ((3, RING[:2]),), geometric="OPEN_NONPLANAR", kind="BRACHY_CHANNEL"),
    Roi("Speck", ((3, RING[:1]), (4, RING), (5, RING[:2]))),
    Roi("Old point", ((5, RING[:1]),)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("plan")
    write_series(made / "plan", PLAN)
    write_series(made / "today", TODAY)
    write_rtstruct(made / "rtstruct.dcm", PLAN, ROIS)
    return made


@pytest.fixture(scope="module")
def plan(folder):
    return read_series(folder / "plan")


@pytest.fixture(scope="module")
def today(folder):
    return read_series(folder / "today")


def test_everything_is_taken_or_left_out_with_a_reason(folder, plan):
    found = read_rtstruct(folder / "rtstruct.dcm", plan)
    assert [(one.number, one.name, len(one.contours), len(one.points)) for one in found.structures] == [
        (7, "Cord", 6, 0), (10, "Iso", 0, 1), (19, "Speck", 1, 0), (22, "Old point", 0, 1),
    ]  # fmt: skip
    cord = found.named("Cord")
    assert (cord.kind, cord.colour, [c.image for c in cord.contours]) == (
        "AVOIDANCE",
        (255, 0, 128),
        [3, 4, 5, 6, 7, 8],
    )
    assert {(one.name, one.reason) for one in found.left_out} == {
        ("Nothing", "no contours"),
        ("Channel", "1 contours are open lines, which are not carried over"),
        ("Speck", "2 contours have fewer than three points"),
    }
    assert "SECRET" not in repr(found)
    assert uid(3, 1) in referenced_series(folder / "rtstruct.dcm")


def test_contours_may_lie_between_and_beyond_slices(tmp_path, plan):
    far = Made(along=tuple(2.0 * k for k in range(30)))
    drawn = [Roi("Cord", tuple((k, RING) for k in range(6, 25)))]
    found = read_rtstruct(write_rtstruct(tmp_path / "a.dcm", far, drawn, images=False), plan)
    assert [c.image for c in found.structures[0].contours] == [6, 7, 8, 9, 10, 11]
    assert found.left_out[0].reason == "13 contours lie beyond or between the slices of the series"
    between = Made(along=(4.7, 9.3, 11.9, 12.4))
    path = write_rtstruct(tmp_path / "a.dcm", between, [Roi("Cord", tuple((k, RING) for k in range(4)))])
    with pytest.warns(UserWarning, match=r"W245.* 0\.70 mm.*: Cord$"):
        found = read_rtstruct(path, plan)
    assert [c.image for c in found.structures[0].contours] == [2, 5, 6]
    assert "share a slice" in found.left_out[0].reason
    found = read_rtstruct(write_rtstruct(tmp_path / "a.dcm", PLAN, [Roi("Cord", ((4, RING), (4, RING)))]), plan)
    assert len(found.structures[0].contours) == 1
    path = write_rtstruct(tmp_path / "a.dcm", replace(PLAN, series="5"), ROIS[:1])
    with pytest.warns(UserWarning, match="W224"):
        assert len(read_rtstruct(path, plan).structures) == 1


def test_items_of_one_structure_are_joined_and_contours_of_nobody_are_said(tmp_path, plan):
    data = rtstruct(PLAN, ROIS[:1])
    whole = data.ROIContourSequence[0]
    second, nobody = pydicom.Dataset(), pydicom.Dataset()
    second.ReferencedROINumber, second.ContourSequence = 7, list(whole.ContourSequence)[2:]
    nobody.ReferencedROINumber, nobody.ContourSequence = 77, list(whole.ContourSequence)[:1]
    whole.ContourSequence = list(whole.ContourSequence)[:2]
    data.ROIContourSequence = [whole, second, nobody]
    with pytest.warns(UserWarning, match="W246") as caught:
        found = read_rtstruct(save(tmp_path / "a.dcm", data), plan)
    assert [contour.image for contour in found.named("Cord").contours] == [3, 4, 5, 6, 7, 8]
    assert found.left_out[0].name == "ROI 77"
    assert {str(one.message).rsplit(": ", 1)[1] for one in caught} == {"Cord", "77"}


def test_a_name_that_dicom_does_not_allow_is_mended_and_said(tmp_path, plan):
    for stated, name in [
        ("A" * 70, "A" * 64),
        (["Parotid", "L"], "Parotid L"),
        ("Cord\x07PRV", "Cord PRV"),
        ("Cord\n", "Cord"),
        ("", "ROI 7"),
    ]:
        data = rtstruct(PLAN, [replace(ROIS[0], name="Cord"), replace(ROIS[0], name="Cache ")])
        unchecked = pydicom.DataElement(0x30060026, "LO", stated, validation_mode=pydicom.config.IGNORE)
        data.StructureSetROISequence[0].add(unchecked)
        with pytest.warns(UserWarning, match=f"W230.* 1 names .*: {name}$") as caught:
            found = read_rtstruct(save(tmp_path / "a.dcm", data), plan)
        assert [one.name for one in found.structures] == [name, "Cache"]
        assert not [one for one in caught if "SECRET" in str(one.message)]


def written(folder, plan, today, path, **words):
    found = read_rtstruct(folder / "rtstruct.dcm", plan)
    moved = carry_set(found, plan, Transform(Field.zero(today.image.geometry)), today)
    write_set(path, moved, today, source=found, **words)
    return pydicom.dcmread(path), moved


def test_the_written_set_keeps_the_rules(folder, plan, today, tmp_path):
    data, moved = written(folder, plan, today, tmp_path / "new.dcm")
    source = pydicom.dcmread(folder / "rtstruct.dcm")
    assert data.file_meta.TransferSyntaxUID == pydicom.uid.ImplicitVRLittleEndian
    assert (data.StudyInstanceUID, data.FrameOfReferenceUID) == (uid(1, 7), uid(4, 7))
    assert (data.PatientID, str(data.PatientName)) == (source.PatientID, str(source.PatientName))
    assert {data.SOPInstanceUID, data.SeriesInstanceUID}.isdisjoint({source.SOPInstanceUID, source.SeriesInstanceUID})
    assert (data.ApprovalStatus, data.get("ReviewerName")) == ("UNAPPROVED", None)
    assert data.PredecessorStructureSetSequence[0].ReferencedSOPInstanceUID == source.SOPInstanceUID
    assert data.StructureSetLabel != source.StructureSetLabel
    listed = data.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0].RTReferencedSeriesSequence[0]
    assert [one.ReferencedSOPInstanceUID for one in listed.ContourImageSequence] == [
        one.instance_uid for one in today.slices
    ]
    assert [roi.ROIName for roi in data.StructureSetROISequence] == ["Cord", "Iso", "Speck", "Old point"]
    by_slice = {one.instance_uid: one.along_mm for one in today.slices}
    numbers = []
    for item in data.ROIContourSequence:
        for contour in item.ContourSequence:
            numbers.append(contour.ContourNumber)
            points = np.array(contour.ContourData, dtype=float).reshape(-1, 3)
            assert all(len(v.original_string) <= 16 for v in contour.ContourData)
            if contour.ContourGeometricType == "POINT":
                continue
            along = by_slice[contour.ContourImageSequence[0].ReferencedSOPInstanceUID]
            assert np.abs(points @ today.grid.normal - along).max() < 0.001
            assert len(points) == contour.NumberOfContourPoints
            assert not (points == np.roll(points, 1, axis=0)).all(axis=1).any()
    assert len(set(numbers)) == len(numbers)
    assert [one.name for one in moved.left_out] == ["Nothing", "Channel", "Speck"]
    point = next(i for i in data.ROIContourSequence if i.ContourSequence[0].ContourGeometricType == "POINT")
    assert [float(v) for v in point.ContourSequence[0].ContourData] == [1.0, 2.0, 15.0]


def test_points_are_written_without_an_object_for_each_number(folder, plan, today, tmp_path, monkeypatch):
    def decoded(*_):
        raise AssertionError("a text of numbers was decoded to be written")

    found = read_rtstruct(folder / "rtstruct.dcm", plan)
    moved = carry_set(found, plan, Transform(Field.zero(today.image.geometry)), today)
    with monkeypatch.context() as during:
        during.setitem(pydicom.values.converters, "DS", decoded)
        write_set(tmp_path / "new.dcm", moved, today, source=found)
    again = read_rtstruct(tmp_path / "new.dcm", today)
    assert [len(one.contours) for one in again.structures] == [len(one.contours) for one in moved.structures]


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dciodvfy is not installed")
def test_a_validator_finds_no_error(folder, plan, today, tmp_path):
    written(folder, plan, today, tmp_path / "new.dcm")
    run = subprocess.run(["dciodvfy", tmp_path / "new.dcm"], capture_output=True, text=True, check=False)
    assert [line for line in (run.stdout + run.stderr).splitlines() if line.startswith("Error")] == []


def test_names_are_mapped_and_checked(folder, plan, today, tmp_path):
    with pytest.warns(UserWarning, match="W225"):
        data, _ = written(folder, plan, today, tmp_path / "a.dcm", names={"Cord": "Spinal cord, propagated"})
    assert data.StructureSetROISequence[0].ROIName == "Spinal cord, propagated"
    for names in ({"Cord": "Iso"}, {"Cord": ""}, {"Cord": "a\\b"}, {"Cord": "a\nb"}, {"Cord": "x" * 65}):
        with pytest.raises(RegweaveError, match="E166"):
            written(folder, plan, today, tmp_path / "b.dcm", names=names)
    assert not (tmp_path / "b.dcm").exists()


def test_names_in_other_alphabets_survive(tmp_path, plan, today):
    data = rtstruct(PLAN, [Roi("Nerf optique gauche".replace("e", "é")[:16], tuple((k, RING) for k in range(3, 9)))])
    data.SpecificCharacterSet = "ISO_IR 100"
    found = read_rtstruct(save(tmp_path / "a.dcm", data), plan)
    name = found.structures[0].name
    assert "é" in name
    write_set(
        tmp_path / "b.dcm",
        carry_set(found, plan, Transform(Field.zero(today.image.geometry)), today),
        today,
        source=found,
    )
    assert pydicom.dcmread(tmp_path / "b.dcm").StructureSetROISequence[0].ROIName == name
