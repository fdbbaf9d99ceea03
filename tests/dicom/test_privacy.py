"""Nothing that names a person, place, date or object leaves the DICOM objects, in good runs and in bad ones."""

import gzip
import json
import logging
import shutil
import traceback
from dataclasses import replace
from pathlib import Path

import pydicom
import pytest
from made_body import ORGANS, PLAN, TODAY, write_study
from made_dicom import dose, save, uid, write_series
from test_bad_inputs import changed, cut, every, one

import regweave as rw
from regweave.cli import main
from regweave.errors import RegweaveError

pytestmark = pytest.mark.usefixtures("few_steps")
TOLD = {
    "StudyDate": "20190203", "SeriesDate": "20190204", "AcquisitionDate": "20190205", "ContentDate": "20190206",
    "StudyTime": "112233.4455", "AcquisitionTime": "112234.5566", "InstitutionName": "SECRET HOSPITAL",
    "InstitutionAddress": "1 Secret Lane", "InstitutionalDepartmentName": "Dept of Secrets",
    "ReferringPhysicianName": "SECRETREF^DOC", "PerformingPhysicianName": "SECRETPERF^DOC",
    "OperatorsName": "SECRETOP^TECH", "StationName": "SECRETSTATION", "DeviceSerialNumber": "SN-SECRET-1",
    "AccessionNumber": "ACC-SECRET-2", "StudyID": "STUDY-SECRET", "StudyDescription": "secret study of Jane",
    "SeriesDescription": "secret series of Jane", "OtherPatientIDs": "OTHER-SECRET", "PatientComments": "secret words",
    "EthnicGroup": "secretgroup", "PatientAddress": "2 Secret Street", "ProtocolName": "secret protocol",
    "PatientBirthName": "SECRETBORN^JANE", "PatientTelephoneNumbers": "555-SECRET", "RequestingPhysician": "SECRETREQ",
}  # fmt: skip
PLAIN = {"Modality", "ROIName", "ROIGenerationAlgorithm", "RTROIInterpretedType", "ContourGeometricType", "PatientSex",
         "ImageType", "ApprovalStatus", "PhotometricInterpretation", "DoseUnits", "DoseType",
         "DoseSummationType"}  # fmt: skip
"""Text elements that tell of no person; names of structures are the content of a page."""
TEXTS = {"PN", "LO", "SH", "ST", "LT", "UC", "UT", "DA", "TM", "DT", "AS", "UI", "CS"}


def identifying(folder: Path) -> set[str]:
    """Return every text, date, time and identifier of the files of a folder, whole and by the words of names."""
    found: set[str] = set()

    def note(_, element):
        if element.VR not in TEXTS or element.keyword in PLAIN:
            return
        values = element.value if isinstance(element.value, (list, pydicom.multival.MultiValue)) else [element.value]
        for value in map(str, values):
            if not value.startswith("1.2.840.10008."):
                found.update(part for part in {value, *value.split("^")} if len(part) > 5)

    for path in folder.rglob("*.dcm"):
        data = pydicom.dcmread(path)
        data.walk(note)
    return found


def all_bytes(folder: Path) -> bytes:
    """Return all that is written but the DICOM objects: names of files too, and compressed ones inflated."""
    parts = []
    for path in sorted(folder.rglob("*")):
        parts.append(str(path.relative_to(folder)).encode())
        if path.is_file() and path.suffix != ".dcm":
            data = path.read_bytes()
            parts.append(gzip.decompress(data) if path.suffix == ".gz" else data)
    return b"\n".join(parts)


def leaks(text: bytes, secrets: set[str]) -> list[str]:
    low = text.lower()
    return sorted(word for word in secrets if word.lower().encode() in low)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("p")
    write_study(folder, replace(PLAN, elements=TOLD), replace(TODAY, elements=TOLD))
    changed(
        folder / "plan" / "set.dcm",
        StructureSetDate="20190207",
        StructureSetName="secret set",
        StructureSetLabel="SECRETLABEL",
        **TOLD,
    )
    save(folder / "dose.dcm", dose(replace(PLAN, elements=TOLD)))
    private = pydicom.dcmread(one(folder / "plan"))
    private.private_block(0x0011, "SECRETMAKER", create=True).add_new(1, "LO", "PRIVATE-SECRET")
    private.save_as(one(folder / "plan"))
    return folder


@pytest.fixture(scope="module")
def secrets(study):
    found = identifying(study)
    assert set(TOLD.values()) <= found
    assert {"SECRETNAME", "SECRETID77", "19330205", uid(3, 1), uid(4, 1), "SECRETDOCTOR", "PRIVATE-SECRET"} <= found
    return found


@pytest.fixture(scope="module")
def result(study, tmp_path_factory, few_steps):
    out = tmp_path_factory.mktemp("o") / "out"
    assert main(["contours", str(study / "plan"), str(study / "today"), "-o", str(out), "--quiet"]) == 0
    return out


def test_no_file_and_no_value_in_memory_names_anybody(result, secrets, study):
    assert leaks(b"seen by Dr SecretRef at 9", secrets)
    assert leaks((result / "rtstruct.dcm").read_bytes(), secrets)  # where they belong
    assert {"result.json", "report.html"} <= {path.name for path in result.iterdir()}
    assert leaks(all_bytes(result), secrets) == []
    series = rw.io.dicom.series.read_series(study / "plan")
    planned = rw.io.dicom.rtstruct.read_rtstruct(study / "plan" / "set.dcm", series)
    assert leaks(repr((series, planned, planned.identity)).encode(), secrets) == []
    assert set(ORGANS) == {one.name for one in planned.structures}


def test_ids_are_shown_where_they_are_asked_for(study, secrets, tmp_path, capsys):
    words = ("contours", study / "plan", study / "today", "-o", tmp_path / "out", "--show-ids", "--structures", "Liver")
    assert main([str(word) for word in words]) == 0
    record = json.loads((tmp_path / "out" / "result.json").read_text())["clinic"]["ids"]
    assert (record["patient_id"], record["patient_name"]) == ("SECRETID77", "SECRETNAME^JANE")
    assert "SECRETNAME" in (tmp_path / "out" / "report.html").read_text()
    assert leaks("".join(capsys.readouterr()).encode(), secrets) == []


def test_no_other_command_tells(study, result, secrets, tmp_path, capsys):
    there = {name: study / name for name in ("plan", "today", "dose.dcm")}
    set_, reg = there["plan"] / "set.dcm", result / "registration.dcm"
    calls = [
        ("check", there["plan"], there["today"], "--json"), ("check", there["plan"], "-v"),
        ("register", there["today"], there["plan"], "-o", tmp_path / "r", "--preset", "paper@1"),
        ("warp", "rtstruct", set_, "--planning", there["plan"], "-t", reg, "-r", there["today"], "-o",
         tmp_path / "s.dcm"),
        ("warp", "dose", there["dose.dcm"], "-t", reg, "-r", there["today"], "-o", tmp_path / "d.dcm", "--json"),
        ("convert", reg, "-o", tmp_path / "t.h5"), ("report", result),
    ]  # fmt: skip
    for call in calls:
        assert main([str(word) for word in call]) == 0, capsys.readouterr().err
    assert leaks("".join(capsys.readouterr()).encode() + all_bytes(tmp_path), secrets) == []


BAD = {
    "another patient": ("E162", lambda s: every(s / "today", PatientID="OTHER-SECRET", PatientName="SECRETREF")),
    "two series": ("E161", lambda s: write_series(s / "today", replace(TODAY, series="5", elements=TOLD))),
    "pixels cut off": ("E102", lambda s: cut(one(s / "plan"), 0.7)),
    "a long name": ("E102", lambda s: claims_more(one(s / "today"))),
    "a name for a number": ("E102", lambda s: numbered_by_name(one(s / "plan"))),
    "two sets": ("E161", lambda s: shutil.copy(s / "plan" / "set.dcm", s / "plan" / "SET2.dcm")),
}


def claims_more(path):
    """Let a name claim to be longer than the file."""
    data = bytearray(path.read_bytes())
    at = bytes(data).index(b"SECRETNAME")
    data[at - 2 : at] = (60000).to_bytes(2, "little")
    path.write_bytes(bytes(data))


def numbered_by_name(path):
    """Put a patient's name where a number belongs."""
    data = pydicom.dcmread(path)
    data.add_new("RescaleSlope", "DS", "1")
    data["RescaleSlope"]._value = "SECRETNAME^JANE"
    data["RescaleSlope"].VR = "LO"
    data.save_as(path)


@pytest.mark.parametrize("name", BAD)
def test_no_error_tells(study, secrets, tmp_path, capsys, caplog, recwarn, name):
    code, damage = BAD[name]
    copy = Path(shutil.copytree(study, tmp_path / "s"))
    damage(copy)
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "out"
    main(["contours", str(copy / "plan"), str(copy / "today"), "-o", str(out)])
    main(["check", str(copy / "plan"), str(copy / "today"), "-v"])
    main(["register", str(copy / "today"), str(copy / "plan"), "-o", str(out), "--preset", "nope"])
    with pytest.raises(RegweaveError) as caught:
        rw.propagate_contours(copy / "plan", copy / "today", progress=False)
    assert caught.value.code == code
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    printed = "".join(capsys.readouterr())
    assert f"error {code}:" in printed
    said = told + printed + caplog.text + "".join(str(w.message) for w in recwarn)
    assert set(leaks(said.encode(), secrets)) <= ({TOLD["SeriesDescription"]} if name == "two series" else set())
    assert not out.exists()
