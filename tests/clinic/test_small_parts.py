"""Choice of structures, rules, sign-offs, name maps and settings of the clinic."""

from dataclasses import asdict

import numpy as np
import pytest
from pydantic import TypeAdapter

from regweave.clinic.propagate import intra_patient_settings
from regweave.clinic.structures import choose, flagged, kinds_done, note_of, require_names
from regweave.errors import RegweaveWarning, UsageError
from regweave.io.labels import read_name_map
from regweave.measures.landmarks import Landmark, LandmarkScore
from regweave.measures.propagation import ClinicSection, PropagatedStructure, WholePair
from regweave.measures.scores import PairScore
from regweave.measures.verdict import Rules, clinic_rules, judge, parse_rules
from regweave.types import Contour, Geometry, LeftOut, Structure, StructureSet

RING = Contour(np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0]]), image=0)


def structure(number, name, kind=""):
    return Structure(number, name, kind, None, (RING,))


PLANNED = StructureSet(
    (
        structure(1, "BODY", "EXTERNAL"),
        structure(2, "PTV1", "PTV"),
        structure(3, "Dose 5200[cGy]"),
        structure(4, "Cord"),
    )
)


def test_what_is_asked_for_is_carried_and_a_mistyped_structure_has_a_suggestion():
    carried, outlines, left_out = choose(PLANNED, None)
    assert {s.name: note_of(s) for s in carried} == {"PTV1": "re-derive from CTV", "Cord": ""}
    assert [s.name for s in outlines] == ["BODY"]
    assert [one.name for one in left_out] == ["Dose 5200[cGy]"]
    carried, _, left_out = choose(PLANNED, ["Dose 5200[cGy]"])
    assert [s.name for s in carried] == ["Dose 5200[cGy]"]
    assert {one.name: one.reason for one in left_out}["Cord"] == "not asked for"
    with pytest.warns(RegweaveWarning, match="W234"):
        require_names(PLANNED.structures, {"Livre": "Leber"})
    for asked, meant in [("cord", "'Cord'"), ("Crod", "'Cord'"), ("PTV 1", "'PTV1'")]:
        with pytest.raises(UsageError, match="E165") as caught:
            choose(PLANNED, [asked])
        assert f"did you mean {meant}?" in caught.value.hint


def test_shipped_limits_have_sources_that_survive_their_record():
    rules = clinic_rules()
    assert set(rules.sources) == set(rules.limits)
    named = {rule for rule, source in rules.sources.items() if "TG-132" in source}
    assert named == {"landmark_mean_mm", "landmark_max_mm"}
    assert all(source.startswith("site") for rule, source in rules.sources.items() if rule not in named)
    rules = clinic_rules()
    assert TypeAdapter(Rules).validate_python(asdict(rules)) == rules
    with pytest.raises(UsageError, match="E177"):
        parse_rules({"landmark_mean_mm": {"source": "nobody"}}, "bad.toml")
    states = {row.kind: row.state for row in kinds_done()}
    assert list(states) == list("ABCDEFGHIJ")
    assert states["E"].startswith("not done")


def row_of(name="a", **numbers):
    known = {"number": 1, "name": name, "type": "", "note": "", "flag": "look", "reasons": [], "planes": 4,
             "volume_plan_ml": 1.0, "volume_today_ml": 1.0, "volume_change_percent": 1.0, "outside_percent": 0.0,
             "jacobian_least": 0.9}  # fmt: skip
    return PropagatedStructure(**(known | numbers))


def pair_of(**numbers):
    texts = dict.fromkeys(("plan", "today", "frames", "start"), "")
    names = ("overlap_percent", "similarity_headers", "similarity_before", "similarity_after", "folding_percent")
    known = dict.fromkeys((*names, "inverse_mean_mm", "inverse_p95_mm", "inverse_max_mm"))
    return WholePair(**(texts | known | numbers))


def section_of(whole, rows=(), lost=()):
    return ClinicSection.model_construct(structures=tuple(rows), lost=lost, whole=whole)


def test_flags_and_verdict_follow_the_worst_structure():
    rows = [
        row_of("a", pushed_percent=0.0, volume_change_percent=-30.0),
        row_of("b", pushed_percent=50.0, volume_change_percent=1.0),
    ]
    assert [flagged(row, clinic_rules()).flag for row in rows] == ["look", "fail"]
    marks = LandmarkScore(points=tuple(Landmark(str(d), *[(0.0, 0.0, 0.0)] * 4, 9.0, d) for d in (2.0, 3.0)))
    section = section_of(pair_of(), rows, lost=(LeftOut("c", ""),))
    verdict = judge(PairScore(), clinic_rules(), clinic=section, landmarks=marks)
    assert verdict.word == "fail"
    broken = {reason.rule: reason.text for reason in verdict.reasons}
    assert "“c”" in broken["lost_structures"]
    assert "“b”" in broken["structure_pushed_percent"]
    assert "30" in broken["structure_volume_percent"]
    assert "landmark_mean_mm" in broken
    assert "landmark_max_mm" not in broken


def test_what_was_not_measured_does_not_pass():
    for numbers, flag in [
        ({}, "pass"),
        ({"volume_change_percent": None}, "look"),
        ({"jacobian_least": None}, "look"),
        ({"planes": 0, "jacobian_least": None, "volume_change_percent": None, "inverse_p95_mm": 0.1}, "pass"),
        ({"planes": 0, "jacobian_least": None, "volume_change_percent": None}, "look"),
        ({"outline_dice": 0.8}, "fail"),
        ({"state": "cut", "volume_change_percent": None}, "cut"),
        ({"state": "cut", "found_today": True}, "look"),
    ]:
        assert flagged(row_of(**numbers), clinic_rules()).flag == flag


def test_two_signs_of_another_patient_fail_and_come_first():
    for whole, word, named in [
        ({"similarity_after": 0.98, "displacement_p95_mm": 4.0, "bones_bent_mm": 0.8}, "pass", False),
        ({"similarity_after": 0.77, "displacement_p95_mm": 4.0, "bones_bent_mm": 0.8}, "look", False),
        ({"similarity_after": 0.86, "displacement_p95_mm": 23.0, "bones_bent_mm": None}, "fail", True),
        ({"similarity_after": 0.86, "displacement_p95_mm": 8.0, "bones_bent_mm": 2.5}, "fail", True),
        ({"similarity_after": 0.50}, "pass", False),  # not two CT: these numbers do not tell people apart
    ]:
        lost = (LeftOut("c", ""),) if named else ()
        verdict = judge(PairScore(), clinic_rules(), clinic=section_of(pair_of(**whole), lost=lost))
        assert verdict.word == word
        assert (flagged(row_of(), clinic_rules(), pair_of(**whole)).flag == "fail") == named
        assert verdict.reasons[:1] == () or verdict.reasons[0].text.startswith("another patient? ") == named
        if named:
            assert "correlation of the scans inside the patient after the registration: 0.86" in verdict.reasons[0].text
            assert {reason.rule for reason in verdict.reasons} == {"another_patient_signs", "lost_structures"}
        assert ("another_patient_signs" in verdict.unchecked) == (len(whole) == 1)


def test_name_maps_of_both_kinds(tmp_path):
    (tmp_path / "a.csv").write_text("Parotid L,PAR_L\nCord,CORD\n")
    (tmp_path / "b.json").write_text('{"Parotid L": "PAR_L", "Cord": "CORD"}')
    assert (
        read_name_map(tmp_path / "a.csv")
        == read_name_map(tmp_path / "b.json")
        == {"Parotid L": "PAR_L", "Cord": "CORD"}
    )
    (tmp_path / "c.csv").write_text("Parotid L\n")
    with pytest.raises(UsageError, match="E107"):
        read_name_map(tmp_path / "c.csv")


def test_a_large_scan_gets_fewer_steps():
    small, large = (
        intra_patient_settings(Geometry(shape, np.diag([2.0, 2.0, 3.0, 1.0]))).refine.steps
        for shape in ((90, 90, 20), (256, 256, 130))
    )
    assert small == 80
    assert 24 <= large <= 30
