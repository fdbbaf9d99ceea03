"""Bad DICOM ends in a code, with nothing written and nobody's name shown."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest
from made_dicom import (
    BIRTH,
    ID,
    NAME,
    ROOT,
    Made,
    Roi,
    circle,
    dose,
    image,
    rtstruct,
    save,
    uid,
    write_rtstruct,
    write_series,
)  # fmt: skip
from pydicom.encaps import encapsulate

from regweave.cli import main

PLAN = Made(along=tuple(2.0 * k for k in range(8)), size=(24, 20))
TODAY = replace(PLAN, series="7", study="7")
RING = circle((12.0, 12.0), 6.0, 24)
ROIS = [Roi("Cord", tuple((k, RING) for k in range(2, 6)))]
SECRETS = ("SECRET", NAME, ID, BIRTH, ROOT, "20200102")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    write_series(folder / "plan", PLAN, shuffle=False)
    write_series(folder / "today", TODAY, shuffle=False)
    write_rtstruct(folder / "set.dcm", PLAN, ROIS)
    save(folder / "dose.dcm", dose(PLAN))
    return folder


@pytest.fixture
def study(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "study"))


def warp(study, out):
    """Run `regweave warp rtstruct` by the identity; return its exit status."""
    words = (study / "set.dcm", "--planning", study / "plan", "-t", "identity", "-r", study / "today", "-o", out)
    return main(["warp", "rtstruct", *map(str, words)])


def changed(path, **elements):
    """Change elements of a file; None deletes one."""
    data = pydicom.dcmread(path)
    for keyword, value in elements.items():
        if value is None:
            del data[keyword]
        else:
            setattr(data, keyword, value)
    data.save_as(path)


def one(folder, k=3):
    return sorted(folder.iterdir())[k]


def every(folder, **elements):
    for path in folder.iterdir():
        changed(path, **elements)


def cut(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])


def contour(study, **elements):
    """Change the first contour of the set."""
    data = pydicom.dcmread(study / "set.dcm")
    first = data.ROIContourSequence[0].ContourSequence[0]
    for keyword, value in elements.items():
        setattr(first, keyword, value)
    data.save_as(study / "set.dcm")


def redrawn(study, rois, made=PLAN, **elements):
    write_rtstruct(study / "set.dcm", made, rois)
    if elements:
        changed(study / "set.dcm", **elements)


def raw_number(path, old, new):
    """Write bytes that pydicom would not."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def packed(path, syntax, before=2):
    """Say that the pixels are compressed, and give them as one fragment."""
    data = pydicom.dcmread(path)
    data.file_meta.TransferSyntaxUID = syntax
    data.file_meta.FileMetaInformationVersion = bytes(before)
    data.PixelData = encapsulate([bytes(range(200))])
    data["PixelData"].VR = "OB"
    data["PixelData"].is_undefined_length = True
    data.save_as(path)


def same_number_twice(study):
    data = pydicom.dcmread(study / "set.dcm")
    again = pydicom.Dataset()
    again.update(data.StructureSetROISequence[0])
    data.StructureSetROISequence.append(again)
    data.save_as(study / "set.dcm")


def raw_contour(study, numbers):
    """Write contour data that pydicom would not."""
    data = pydicom.dcmread(study / "set.dcm")
    first = data.ROIContourSequence[0].ContourSequence[0]
    first[0x30060050] = pydicom.DataElement(0x30060050, "UT", numbers)
    first.NumberOfContourPoints = (numbers.count("\\") + 1) // 3
    data.save_as(study / "set.dcm")


def two_other_frames(study):
    data = pydicom.dcmread(study / "set.dcm")
    frames = [pydicom.Dataset(), pydicom.Dataset()]
    frames[0].FrameOfReferenceUID, frames[1].FrameOfReferenceUID = uid(4, 77), uid(4, 78)
    data.ReferencedFrameOfReferenceSequence = frames
    for roi in data.StructureSetROISequence:
        del roi.ReferencedFrameOfReferenceUID
    data.save_as(study / "set.dcm")


BAD = {
    "no such folder": ("E101", lambda s: shutil.rmtree(s / "plan")),
    "empty folder": ("E101", lambda s: [p.unlink() for p in (s / "plan").iterdir()]),
    "no DICOM in the folder": ("E101", lambda s: [p.write_text("no image") for p in (s / "plan").iterdir()]),
    "two series": ("E161", lambda s: write_series(s / "plan", replace(PLAN, series="5"))),
    "images of two patients": ("E162", lambda s: changed(one(s / "plan"), PatientID="SECRETID88", PatientName="OTHER")),
    "two frames in a series": ("E160", lambda s: changed(one(s / "plan"), FrameOfReferenceUID=uid(4, 9))),
    "a missing slice": ("E113", lambda s: one(s / "plan").unlink()),
    "several missing slices": ("E113", lambda s: [p.unlink() for p in sorted((s / "plan").iterdir())[3:5]]),
    "another size": ("E113", lambda s: changed(one(s / "plan"), Rows=10, PixelData=bytes(480))),
    "another direction": ("E113", lambda s: changed(one(s / "plan"), ImageOrientationPatient=[0, 1, 0, 1, 0, 0])),
    "another pixel spacing": ("E113", lambda s: changed(one(s / "plan"), PixelSpacing=[3, 3])),
    "two images at one place": ("E113", lambda s: save(
        s / "plan" / "x.dcm", image(replace(PLAN, elements={"SOPInstanceUID": uid(2, 99)}), 3))),
    "a skew direction": ("E111", lambda s: every(s / "plan", ImageOrientationPatient=[1, 0, 0, 1, 0, 0])),
    "no direction": ("E102", lambda s: changed(one(s / "plan"), ImageOrientationPatient=None)),
    "no position": ("E102", lambda s: changed(one(s / "plan"), ImagePositionPatient=None)),
    "a position of two numbers": ("E102", lambda s: changed(one(s / "plan"), ImagePositionPatient=[1, 2])),
    "no pixel spacing": ("E102", lambda s: changed(one(s / "plan"), PixelSpacing=None)),
    "pixel spacing of nothing": ("E111", lambda s: every(s / "plan", PixelSpacing=[0, 0])),
    "a single slice": ("E103", lambda s: [p.unlink() for p in sorted((s / "plan").iterdir())[1:]]),
    "three slices": ("E103", lambda s: [p.unlink() for p in sorted((s / "plan").iterdir())[3:]]),
    "localisers alone": ("E101", lambda s: every(s / "plan", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])),
    "RT images alone": ("E101", lambda s: every(s / "plan", Modality="RTIMAGE")),
    "pixels cut off": ("E102", lambda s: cut(one(s / "plan"), 0.7)),
    "header cut off": ("E102", lambda s: cut(one(s / "plan"), 0.2)),
    "a file of garbage": ("E102", lambda s: one(s / "plan").write_bytes(bytes(128) + b"DICM" + bytes(range(256)) * 3)),
    "no pixel data": ("E102", lambda s: changed(one(s / "plan"), PixelData=None)),
    "a slope of zero": ("E102", lambda s: changed(one(s / "plan"), RescaleSlope=0)),
    "a slope that is no number": ("E102", lambda s: raw_number(one(s / "plan"), b"DS\x04\x000.5 ", b"DS\x04\x00abc ")),
    "colour": ("E163", lambda s: changed(one(s / "plan"), SamplesPerPixel=3, PhotometricInterpretation="RGB")),
    "many frames": ("E163", lambda s: changed(one(s / "plan"), NumberOfFrames=4)),
    "enhanced CT": ("E163", lambda s: every(s / "plan", SOPClassUID="1.2.840.10008.5.1.4.1.1.2.1", NumberOfFrames=8)),
    "twelve bits": ("E163", lambda s: changed(one(s / "plan"), BitsAllocated=12)),
    "compressed in an unknown way": ("E163", lambda s: packed(one(s / "plan"), "1.2.840.10008.1.2.4.104")),
    "deflated": ("E163", lambda s: packed(one(s / "plan"), "1.2.840.10008.1.2.1.99")),
    "deflated, said late": ("E163", lambda s: packed(one(s / "plan"), "1.2.840.10008.1.2.1.99", 40_000)),
    "a set of another patient": ("E162", lambda s: changed(s / "set.dcm", PatientID="SECRETID99")),
    "a set of another name": ("E162", lambda s: changed(s / "set.dcm", PatientName="SECRETOTHER^JOHN")),
    "a set in another frame": ("E160", lambda s: redrawn(s, ROIS, replace(PLAN, frame="3"))),
    "a set that is an image": ("E164", lambda s: shutil.copy(one(s / "plan"), s / "set.dcm")),
    "a set that is a dose": ("E164", lambda s: shutil.copy(s / "dose.dcm", s / "set.dcm")),
    "a set that is no DICOM": ("E103", lambda s: (s / "set.dcm").write_text("no set")),
    "no set": ("E101", lambda s: (s / "set.dcm").unlink()),
    "a set cut off": ("E102", lambda s: cut(s / "set.dcm", 0.6)),
    "a set of empty structures": ("E165", lambda s: redrawn(s, [Roi("Cord"), Roi("Liver")])),
    "a set without structures": ("E165", lambda s: redrawn(s, [])),
    "a set far away": ("E165", lambda s: redrawn(s, ROIS, replace(PLAN, origin=(0.0, 0.0, 900.0)))),
    "a set of sagittal contours": ("E165", lambda s: redrawn(
        s, [Roi("Cord", ((0, RING),))], replace(PLAN, row=(0.0, 1.0, 0.0), column=(0.0, 0.0, 1.0)))),
    "open lines alone": ("E165", lambda s: redrawn(s, [replace(ROIS[0], geometric="OPEN_PLANAR")])),
    "points that are no triples": ("E102", lambda s: contour(s, ContourData=[1, 2, 3, 4])),
    "a wrong number of points": ("E102", lambda s: contour(s, NumberOfContourPoints=3)),
    "a point at infinity": ("E102", lambda s: contour(s, ContourData=["1e300"] * 72)),
    "two structures of one number": ("E164", same_number_twice),
    "bits above those that are stored": ("E123", lambda s: every(s / "plan", BitsStored=12, HighBit=15)),
    "more bits stored than allocated": ("E123", lambda s: every(s / "plan", BitsStored=20, HighBit=19)),
    "no bit stored": ("E123", lambda s: every(s / "plan", BitsStored=0)),
    "half the rows": ("E102", lambda s: every(s / "plan", Rows=10)),
    "bytes for words": ("E102", lambda s: every(s / "plan", BitsAllocated=8, BitsStored=8, HighBit=7)),
    "an underscore in a spacing": ("E102", lambda s: [
        raw_number(p, b"1.250000\\", b"1_250000\\") for p in (s / "plan").iterdir()]),
    "an underscore in a contour": ("E102", lambda s: raw_contour(s, "1_0\\0\\9" + "\\5\\5\\9" * 2)),
    "one MR in a CT": ("E113", lambda s: changed(one(s / "plan"), Modality="MR")),
    "one identifier for all images": ("E123", lambda s: every(s / "plan", SOPInstanceUID=uid(2, 1))),
    "no identifiers of today's images": ("E123", lambda s: every(s / "today", SOPInstanceUID=None)),
    "no identifier of today's study": ("E123", lambda s: every(s / "today", StudyInstanceUID=None)),
    "pixels of no size": ("E111", lambda s: every(s / "plan", PixelSpacing=["1e-300", "1e-300"])),
    "a set of two other frames": ("E160", two_other_frames),
    "a point far away": ("E123", lambda s: contour(s, ContourData=["999999", "0", "11"] + ["0", "0", "11"] * 23)),
    "contours without number on a slice": ("E123", lambda s: redrawn(s, [Roi("Cord", ((4, RING),) * 2001)])),
    "structures without number": ("E123", lambda s: redrawn(s, [replace(ROIS[0], name=f"S{n}") for n in range(501)])),
    "another frame and the identity": ("E160", lambda s: every(s / "today", FrameOfReferenceUID=uid(4, 9))),
    "two structures of one name": ("E166", lambda s: redrawn(s, [ROIS[0], ROIS[0]])),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_ends_in_its_code(study, capsys, name):
    code, damage = BAD[name]
    damage(study)
    before = {path: path.stat().st_mtime_ns for path in study.rglob("*")}
    out = study.parent / "out.dcm"
    status = warp(study, out)
    said = capsys.readouterr()
    assert f"error {code}:" in said.err, said.err
    assert status in {2, 3}
    assert not out.exists()
    assert sorted(path.name for path in study.parent.iterdir()) == ["study"]
    assert {path: path.stat().st_mtime_ns for path in study.rglob("*")} == before
    assert not [word for word in SECRETS if word in said.out + said.err]


def test_the_good_study_passes(study, capsys):
    assert warp(study, study.parent / "out.dcm") == 0
    assert (study.parent / "out.dcm").exists()
    assert not [word for word in SECRETS if word in "".join(capsys.readouterr())]


HOSTILE = (
    "back\\slash", "../../etc/passwd", "<script>alert(1)</script>", "a\0b", "=cmd|' /C calc'!A0", "Ω" * 80, " ",
    "%s%n{0}",
)  # fmt: skip


def test_hostile_names_harm_nothing(study, capsys):
    data = rtstruct(PLAN, [replace(ROIS[0], name=f"placeholder {n}") for n in range(len(HOSTILE))])
    data.SpecificCharacterSet = "ISO_IR 192"
    for roi, name in zip(data.StructureSetROISequence, HOSTILE, strict=True):
        roi.add_new(0x30060026, "LO", "x")
        roi[0x30060026]._value = name
    save(study / "set.dcm", data)
    assert warp(study, study.parent / "out.dcm") == 0, capsys.readouterr().err
    names = [roi.ROIName for roi in pydicom.dcmread(study.parent / "out.dcm").StructureSetROISequence]
    assert len(names) == len(HOSTILE)
    assert all(0 < len(name) <= 64 and name.isprintable() for name in names)
    assert sorted(path.name for path in study.parent.iterdir()) == ["out.dcm", "study"]


DOSES = [
    {"PixelSpacing": None}, {"DoseGridScaling": None}, {"GridFrameOffsetVector": None}, {"PixelData": bytes(100)},
    {"GridFrameOffsetVector": [0] * 8}, {"GridFrameOffsetVector": [5.0 + 2 * k for k in range(8)]},
    {"GridFrameOffsetVector": [6.6 + 2 * k for k in range(8)]}, {"DoseGridScaling": "-0.01"},
    {"DoseGridScaling": "1e-300"}, {"ImageOrientationPatient": [2, 0, 0, 0, 2, 0]}, {"FrameOfReferenceUID": ""},
    {"BitsStored": 12, "HighBit": 11}, {"PixelSpacing": ["1e-300", "1e-300"]},
    {"Modality": "CT", "SOPClassUID": "1.2.840.10008.5.1.4.1.1.2"},
]  # fmt: skip


@pytest.mark.parametrize("elements", DOSES)
def test_bad_doses_are_refused(study, capsys, elements):
    changed(study / "dose.dcm", **elements)
    words = ("warp", "dose", study / "dose.dcm", "-t", "identity", "-r", study / "today", "-o", study / "out.dcm")
    assert main([str(word) for word in words]) == 3
    assert "error E1" in capsys.readouterr().err
    assert not (study / "out.dcm").exists()


def test_a_broken_file_shows_nothing_of_what_the_library_says(study, caplog, recwarn):
    path = one(study / "plan")
    data = bytearray(path.read_bytes())
    at = bytes(data).index(NAME.encode())
    data[at - 2 : at] = np.uint16(60000).tobytes()  # a name that claims to be longer than the file
    path.write_bytes(bytes(data))
    assert main(["check", str(study / "plan")]) == 3
    assert not caplog.records
    assert not [w for w in recwarn if "SECRET" in str(w.message)]
