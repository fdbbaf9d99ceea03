"""Acceptance criteria: the shipped ones, files of a department, and what each rule looks at."""

from dataclasses import replace

import pytest

from regweave.errors import RegweaveError, UsageError
from regweave.measures.landmarks import Landmark, LandmarkScore
from regweave.measures.likeness import Likeness
from regweave.measures.scores import InverseError, PairScore, StructureScore
from regweave.measures.verdict import (
    OF_REGISTRATIONS,
    RULES,
    Verdict,
    clinic_rules,
    default_rules,
    failed,
    judge,
    parse_rules,
    read_rules,
    shipped_text,
    tally,
    unchecked_words,
)

GOOD = {
    "regularity": {"folding_fraction": 0.0, "extreme_fraction": 0.001, "min_jacobian": 0.3, "max_jacobian": 3.0},
    "inverse_error": InverseError(1, 2000, 0.2, (0, 0, 0), 0.4, 0.4),
    "landmarks": LandmarkScore(points=(Landmark("a", *[(0.0, 0.0, 0.0)] * 4, 3.0, 1.0),)),
    "warnings": [],
    "likeness": Likeness(
        word="alike", score=0.2, reasons=("images correlate 0.97",), numbers={}, reference="r", kind="ct"
    ),
}


def at(distance_mm):
    return LandmarkScore(points=(Landmark("a", *[(0.0, 0.0, 0.0)] * 4, 3.0, distance_mm),))


def inverse(inexact, p99_voxels, body=100_000):
    return InverseError(inexact, body, 0.2, (0, 0, 0), p99_voxels, p99_voxels)


def field(**numbers):
    return {"regularity": {**GOOD["regularity"], **numbers}}


def structure(name="cord", before=0.5, after=0.8, state="scored", volumes=(1.0, 1.0, 1.0), hd95_mm=3.0):
    return StructureScore(1, name, state, before, after, *volumes, hd95_mm=hd95_mm)


SCORE = PairScore((structure(), structure("lens", 0.4, 0.41)))
VANISHED = structure("node", 0.3, 0.0, "vanished", (1.0, 1.0, 0.0))
ALONE = StructureScore(9, "duct", "no reference", volume_fixed_ml=0.0, volume_before_ml=2.0, volume_after_ml=0.0)


def verdict(numbers=None, *structures, rules=None):
    given = {**GOOD, **(numbers or {})}
    return judge(PairScore((*SCORE.structures, *structures)), rules or default_rules(), **given)


def test_what_counts_against_nobody():
    found = verdict()
    assert (found.word, found.reasons, found.text, found.unchecked) == ("pass", (), "", ())
    assert verdict({"inverse_error": inverse(1, 0.01, 40_960)}).word == "pass"
    assert verdict(None, ALONE).word == "pass"
    assert judge(PairScore((ALONE,)), default_rules(), **GOOD).word == "pass"
    rules = parse_rules({"least_mean_dice": {"look": 0.605}, "surface_distance_mm": {"fail": 3.0}}, "mine")
    assert verdict(rules=rules).word == "pass"
    assert verdict(None, structure("eye", 0.5, 0.59, hd95_mm=3.5), rules=rules).word == "fail"


def test_rules_of_the_field_and_of_structures():
    for numbers, word, rule in [
        (field(folding_fraction=1e-6), "look", "folding_percent"),
        (field(folding_fraction=0.002), "fail", "folding_percent"),
        (field(extreme_fraction=0.12), "look", "extreme_jacobian_percent"),
        ({"inverse_error": inverse(700, 0.1)}, "look", "inverse_inexact_percent"),
        ({"inverse_error": inverse(0, 1.5)}, "look", "inverse_error_voxels"),
    ]:
        found = verdict(numbers)
        assert found.word == word
        assert [r.rule for r in found.reasons] == [rule]
    for extra, word, rules in [
        (structure("eye", 0.9, 0.83), "look", ["structure_dice_drop"]),
        (structure("eye", 0.9, 0.5), "fail", ["structure_dice_drop", "mean_dice_drop"]),
        (VANISHED, "fail", ["vanished_structures", "structure_dice_drop"]),
        (structure("eye", 0.5, 0.8, volumes=(1.0, 2.0, 0.5)), "look", ["volume_change_percent"]),
    ]:
        found = verdict(None, extra)
        assert found.word == word
        assert {r.rule for r in found.reasons} >= set(rules[:1])
        assert extra.name in found.text
    # A wrong start or labels of exchanged sides lose nothing, for there was nothing.
    apart = tuple(structure(name, 0.0, 0.0) for name in ("cord", "lens"))
    assert judge(PairScore(apart), default_rules(), **GOOD).word == "fail"
    side = verdict(None, structure("left eye", 0.0, 0.05), structure("brain", 0.5, 0.9))
    assert (side.word, [r.rule for r in side.reasons]) == ("look", ["least_structure_dice"])
    assert "left eye" in side.text


@pytest.mark.parametrize("rules", [default_rules(), clinic_rules()])
@pytest.mark.parametrize(("mean", "word"), [(1.9, "pass"), (2.1, "look"), (5.1, "fail"), (30.0, "fail")])
def test_landmarks_far_apart_fail(rules, mean, word):
    found = verdict({"landmarks": at(mean)}, rules=rules)
    assert found.word == word
    assert ("landmarks (none given: --fixed-points" in unchecked_words(found.unchecked)) is False
    assert "landmarks (none given: --fixed-points" in unchecked_words(verdict({"landmarks": None}).unchecked)


def test_every_rule_can_be_broken_and_is_in_the_shipped_file(tmp_path):
    assert not [rule for rule, one in RULES.items() if not one.needs]
    limits = {name: {"look": 1e9 if rule.least else -1e9} for name, rule in OF_REGISTRATIONS.items()}
    found = judge(SCORE, parse_rules(limits, "all"), **GOOD)
    assert {r.rule for r in found.reasons} == set(OF_REGISTRATIONS)
    found = judge(PairScore(), default_rules(), regularity={"folding_fraction": 0.0})
    assert found.word == "pass"
    assert set(found.unchecked) == set(default_rules().limits) - {"folding_percent"}
    text = shipped_text()
    assert all(f"[{rule}]" in text for rule in OF_REGISTRATIONS)
    (tmp_path / "mine.toml").write_text(text)
    assert read_rules(tmp_path / "mine.toml") == default_rules()
    head, marks = shipped_text().split("take away the marks to use them.\n")
    text = head + "\n" + "\n".join(line.removeprefix("# ") for line in marks.splitlines())
    (tmp_path / "all.toml").write_text(text)
    assert set(read_rules(tmp_path / "all.toml").limits) == set(OF_REGISTRATIONS)


def test_reasons_in_their_order_and_words():
    found = verdict(field(extreme_fraction=0.5), VANISHED)
    assert found.word == "fail"
    assert [r.level for r in found.reasons] == sorted((r.level for r in found.reasons), key=["fail", "look"].index)
    (reason,) = verdict(field(folding_fraction=0.002)).reasons
    assert reason.text == "voxels folded: 0.2 % (fail above 0.1 %, look above 0 %)"
    found = verdict({"warnings": ["W210: affine start rejected", "W205: 3 voxels", *["W215: the image is wide"] * 2]})
    assert found.word == "look"
    assert [r.text for r in found.reasons] == ["affine start rejected (W210)", "the image is wide (W215)"]
    assert failed("E102: x", default_rules()).text == "ended with an error: E102: x"
    words = [Verdict("pass")] * 3 + [Verdict("look")] * 2 + [Verdict("fail")]
    assert tally(words) == "3 of 6 passed, 2 to look at, 1 failed"
    # A start that helps, and a deformation that spoils it, is no gain.
    started = replace(structure("eye", 0.3, 0.6), dice_start=0.9)
    found = judge(PairScore((started,)), default_rules(), **GOOD)
    assert {r.rule for r in found.reasons} == {"mean_dice_drop", "structure_dice_drop"}


def test_a_bad_file_is_named_with_what_is_allowed(tmp_path):
    for text, words in [
        ("[folding_percnt]\nlook = 1", "unknown rule 'folding_percnt'; did you mean folding_percent?"),
        ("[folding_percent]\nmaximum = 1", "unknown key 'maximum'; allowed: look, fail"),
        ("[folding_percent]\nlook = 'much'", "must be a finite number, found much"),
        ("[folding_percent]\nlook = true", "must be a finite number"),
        ("[folding_percent]\nlook = nan", "not finite"), ("[folding_percent]\n", "look, fail or both"),
        ("folding_percent = 3", "look, fail or both"),
        ("[folding_percent]\nlook = 2\nfail = 1", "would be reached before look"),
        ("[least_mean_dice]\nlook = 0.5\nfail = 0.7", "would be reached before look"), ("", "holds no rule"),
        ("name = 3\n[folding_percent]\nlook = 1", "name must be"),
        ("[folding_percent\nlook = 1", "cannot be read as TOML"),
        ("[folding_percent]\nlook = 1\n[folding_percent]\nlook = 2", "cannot be read as TOML"),
        ("x = " + "[" * 5000, "cannot be read as TOML"),
    ]:  # fmt: skip
        path = tmp_path / "mine.toml"
        path.write_text(text)
        with pytest.raises(UsageError, match=r"^E177: .*mine\.toml") as caught:
            read_rules(path)
        assert words in caught.value.message
        assert "structure_dice_drop" in caught.value.hint
    with pytest.raises(RegweaveError, match="E101"):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RegweaveError, match="E177"):
        read_rules(tmp_path / "bytes.toml")
    (tmp_path / "long.toml").write_text("#" * 200_000)
    with pytest.raises(RegweaveError, match="E114"):
        read_rules(tmp_path / "long.toml")
