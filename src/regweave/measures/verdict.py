"""Acceptance criteria of a registration, an editable TOML file, and the verdict that they give."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from regweave.errors import UsageError
from regweave.io.disk.files import parse_toml, read_text
from regweave.io.disk.records import LARGEST, Number, Text
from regweave.measures.landmarks import LandmarkScore
from regweave.measures.likeness import Likeness, Reference, read_reference
from regweave.measures.propagation import ClinicSection, PropagatedStructure, WholePair
from regweave.measures.scores import InverseError, PairScore

SHIPPED = "rules.toml"
CLINIC = "clinic_rules.toml"
LONGEST_SOURCE = 300
Level = Literal["fail", "look"]
LEVELS: tuple[Level, ...] = ("fail", "look")  # Limits of a rule, the graver first
LARGEST_BYTES = 100_000
LONGEST_NAME = 80
BOTH_LABELS = "overlap and volumes of structures (labels of both images: --fixed-labels, --moving-labels)"
INVERSE = "inverse (not measured)"
JACOBIAN = "Jacobian (not measured)"
LANDMARKS = "landmarks (none given: --fixed-points, --moving-points)"
TWO_CT = "comparison with another patient (two CT needed)"
CARRIED = "numbers by structure (none was carried over and measured)"
"""What a rule needs a number of, in short, and how to get it."""


@dataclass(frozen=True)
class Rule:
    """Criterion of acceptance: what it measures, in words, and whether its limits are lower ones."""

    words: str
    unit: str = ""
    least: bool = False
    brief: str = ""
    needs: str = ""  # What it needs a number of, and how to get that


OF_REGISTRATIONS: Mapping[str, Rule] = {
    "folding_percent": Rule("voxels folded", " %", needs=JACOBIAN),
    "extreme_jacobian_percent": Rule("voxels with a Jacobian below 1/5 or above 5", " %", needs=JACOBIAN),
    "least_jacobian": Rule("smallest Jacobian", least=True, needs=JACOBIAN),
    "largest_jacobian": Rule("largest Jacobian", needs=JACOBIAN),
    "inverse_inexact_percent": Rule("body voxels with an inexact inverse", " %", needs=INVERSE),
    "inverse_error_voxels": Rule("error there and back, 99th percentile", " voxels", needs=INVERSE),
    "mean_dice_drop": Rule("loss of mean Dice", needs=BOTH_LABELS),
    "structure_dice_drop": Rule("largest loss of a structure's Dice", needs=BOTH_LABELS),
    "vanished_structures": Rule("structures vanished", needs=BOTH_LABELS),
    "volume_change_percent": Rule("largest change of a structure's volume", " %", needs=BOTH_LABELS),
    "landmark_mean_mm": Rule("mean error of the landmarks", " mm", needs=LANDMARKS),
    "landmark_max_mm": Rule("largest error of a landmark", " mm", needs=LANDMARKS),
    "least_mean_dice": Rule("mean Dice", least=True, needs=BOTH_LABELS),
    "least_structure_dice": Rule("lowest Dice of a structure", least=True, needs=BOTH_LABELS),
    "surface_distance_mm": Rule("largest HD95 of a structure", " mm", needs=BOTH_LABELS),
    "likeness": Rule("likeness of the images", least=True, needs="likeness of the images (not measured)"),
    "doubtful_warnings": Rule("warnings about start or model", needs="warnings (not recorded)"),
}
"""Rules about a registration."""
OF_CONTOURS: Mapping[str, Rule] = {
    "inverse_mean_mm": Rule("mean error there and back", " mm", needs=INVERSE),
    "both_ways_voxels": Rule("mean disagreement of the registrations in both directions, in longest edges of a voxel",
                             needs="registration in both directions (--both-ways)"),
    "similarity_drop": Rule("loss of correlation between the images",
                            needs="correlation of the images (too few voxels in both)"),
    "similarity_after": Rule("correlation of the scans inside the patient after the registration", "", True,
                             needs=TWO_CT),
    "displacement_p95_mm": Rule("displacement after the start inside the patient, 95th percentile", " mm",
                                needs=TWO_CT),
    "bones_bent_mm": Rule("bending of the bones, root mean square", " mm", needs="bending of the bones (two CT, bone)"),
    "another_patient_signs": Rule("signs of another patient", needs=TWO_CT),
    "lost_structures": Rule("structures lost on the way to today", needs="contours (only `contours` carries them)"),
    "structure_pushed_percent": Rule("share of a structure that the deformation moves out of today's scan", " %", False,
                                     "moved out of the scan", CARRIED),
    "structure_outside_percent": Rule("share of a structure outside today's scan", " %", False, "outside", CARRIED),
    "structure_volume_percent": Rule("change of a structure's volume from plan to today", " %", False, "volume",
                                     CARRIED),
    "structure_least_jacobian": Rule("smallest Jacobian inside a structure", "", True, "J min", CARRIED),
    "structure_largest_jacobian": Rule("largest Jacobian inside a structure", "", False, "J max", CARRIED),
    "structure_inverse_mm": Rule("error there and back inside a structure, 95th percentile", " mm", False,
                                 "there and back", CARRIED),
    "outline_dice": Rule("Dice of the outline found in today's CT and the plan's carried outline", "", True,
                         "Dice, carried", "an outline found in today's CT (it was carried)"),
    "structure_displacement_mm": Rule("mean displacement of a structure after the start", " mm", False,
                                      "mean displacement", CARRIED),
}  # fmt: skip
"""Rules about propagated contours."""
RULES: Mapping[str, Rule] = {**OF_REGISTRATIONS, **OF_CONTOURS}  # All rules that a file may hold


@dataclass(frozen=True)
class Rules:
    """A set of acceptance criteria: limits ``look`` and ``fail`` by rule, and where each limit comes from."""

    name: Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]
    limits: dict[str, dict[Level, Number]] = field(default_factory=dict)
    sources: dict[str, Text] = field(default_factory=dict)
    reference: Reference | None = None  # good results with which the likeness compares; those of the package without

    def __post_init__(self) -> None:
        """Refuse a name that cannot be printed, rules that do not exist, and limits that contradict each other."""
        if not isinstance(self.name, str) or not 0 < len(self.name) <= LONGEST_NAME or not self.name.isprintable():
            raise ValueError(f"name must be a printable text of 1 to {LONGEST_NAME} characters")
        for rule, limits in self.limits.items():
            if rule not in RULES:
                near = difflib.get_close_matches(rule, RULES, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"unknown rule '{rule[:60]}'{meant}")
            _check_limits(rule, limits)
        for rule, text in self.sources.items():
            if not isinstance(text, str) or not 0 < len(text) <= LONGEST_SOURCE or not text.isprintable():
                raise ValueError(f"[{rule}] source must be a printable text of 1 to {LONGEST_SOURCE} characters")

    def broken(self, rule: str, value: float) -> Level | None:
        """Return the gravest limit that a value is beyond, None for none."""
        for level in LEVELS:
            limit = self.limits[rule].get(level)
            if limit is not None and (value < limit if RULES[rule].least else value > limit):
                return level
        return None

    def words(self, rule: str) -> str:
        """Describe the limits of a rule."""
        side = "below" if RULES[rule].least else "above"
        limits = self.limits[rule]
        return ", ".join(f"{level} {side} {limits[level]:g}{RULES[rule].unit}" for level in LEVELS if level in limits)

    def brief(self, rule: str, value: float, level: Level) -> str:
        """Describe briefly what breaks a limit."""
        side, unit = "below" if RULES[rule].least else "above", RULES[rule].unit
        limit = self.limits[rule][level]
        return f"{RULES[rule].brief or RULES[rule].words} {value:.3g}{unit}: {level} {side} {limit:g}{unit}"


def rule_words(rule: str) -> str:
    """Return what a rule measures, in words; its name where it is not one of ours."""
    return RULES[rule].words if rule in RULES else rule


def unchecked_words(rules: Iterable[str]) -> str:
    """Return what rules without a number need, in short, each once."""
    return ", ".join(dict.fromkeys(RULES[rule].needs if rule in RULES else rule for rule in rules))


def shipped_text(name: str = SHIPPED) -> str:
    """Return a TOML file of shipped rules: those of registrations, or those of propagated contours."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def default_rules() -> Rules:
    """Return the shipped rules."""
    return parse_rules(parse_toml(shipped_text()), SHIPPED)


@cache
def clinic_rules() -> Rules:
    """Return the shipped rules of propagated contours."""
    return parse_rules(parse_toml(shipped_text(CLINIC)), CLINIC)


def read_rules(path: str | Path) -> Rules:
    """Read acceptance criteria from a TOML file."""
    try:
        return parse_rules(parse_toml(read_text(path, LARGEST_BYTES)), str(path))
    except ValueError as error:
        raise _bad(str(path), f"it cannot be read as TOML ({str(error)[:120]})") from error


def parse_rules(content: Mapping[str, Any], source: str) -> Rules:
    """Check every key and value of a rules file; ``source`` names it in messages."""
    limits, sources = {}, {}
    beside = content.get("reference")
    if not isinstance(beside, str | None):
        raise _bad(source, f"reference must be the name of a file, found {str(beside)[:60]}")
    reference = None if beside is None else read_reference(Path(source).parent / beside)
    for rule, table in content.items():
        if rule in ("name", "reference"):
            continue
        if rule in RULES and not isinstance(table, Mapping):
            raise _bad(source, f"[{rule}] must be a table with look, fail or both")
        limits[rule] = dict(table) if isinstance(table, Mapping) else {}
        if "source" in limits[rule]:
            sources[rule] = limits[rule].pop("source")
    if not limits:
        raise _bad(source, "it holds no rule, so that everything would pass")
    try:
        return Rules(content.get("name", Path(source).stem), limits, sources, reference)
    except ValueError as error:
        raise _bad(source, str(error)) from error


def _check_limits(rule: str, limits: Mapping[Any, Any]) -> None:
    for level, value in limits.items():
        if level not in LEVELS:
            raise ValueError(f"[{rule}] has an unknown key '{str(level)[:60]}'; allowed: look, fail, source")
        known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
        if not known:
            raise ValueError(f"[{rule}] {level} must be a finite number, found {str(value)[:60]}")
    if not limits:
        raise ValueError(f"[{rule}] must be a table with look, fail or both")
    look, fail = limits.get("look"), limits.get("fail")
    if look is not None and fail is not None and ((fail > look) if RULES[rule].least else (fail < look)):
        raise ValueError(f"[{rule}] fail ({fail:g}) would be reached before look ({look:g})")


def _bad(source: str, what: str) -> UsageError:
    hint = f"start from `regweave rules > mine.toml`; rules: {', '.join(RULES)}"
    return UsageError("E177", f"'{source}' is no rules file: {what}", hint)


Word = Literal["pass", "look", "fail"]
WORDS: tuple[Word, ...] = ("fail", "look", "pass")  # Verdicts, the gravest first
Measure = tuple[float, str]  # A number, and the structure it belongs to or nothing
NONE: Measure = (math.nan, "")

DOUBTFUL = ("W210", "W215", "W216", "W238", "W247", "W248", "W253", "W256", "W260", "W261", "W262")
"""Warnings that a start was rejected, or that a model or guides may not fit: the result is to be looked at."""


def in_words(warning: str) -> str:
    """Return a warning with its code at the end."""
    code, _, text = warning.partition(": ")
    return f"{text} ({code})" if text else warning


@dataclass(frozen=True)
class Reason:
    """A rule that a registration breaks: its level, and a text with what was measured and what is allowed."""

    rule: Text
    level: Literal["look", "fail"]
    text: Text


@dataclass(frozen=True)
class Verdict:
    """Verdict of the rules on a registration: the gravest of the reasons, pass without any."""

    word: Annotated[Word, Field(alias="verdict")]
    reasons: tuple[Reason, ...] = ()  # Rules that are broken, the gravest first
    unchecked: tuple[Text, ...] = ()
    """Rules for which the registration has no number, such as those of structures where there are no labels."""
    rules: Text = ""  # Name of the rules

    @property
    def text(self) -> str:
        """The reasons in one line; empty for a pass."""
        return "; ".join(r.text for r in self.reasons)


def judge(
    score: PairScore, rules: Rules, *, regularity: Mapping[str, float] | None = None,
    inverse_error: InverseError | None = None, landmarks: LandmarkScore | None = None,
    warnings: Iterable[str] | None = None, clinic: ClinicSection | None = None, whole: WholePair | None = None,
    likeness: Likeness | None = None,
) -> Verdict:  # fmt: skip
    """Apply acceptance criteria to the measurements of a registration.

    Only structures that both label maps show can break a rule. A rule about a measurement that is not given is not
    checked. ``whole`` are both scans of a propagation, before its structures are measured.
    """
    reasons, unchecked = [], []
    doubts = [text for text in dict.fromkeys(warnings or ()) if text.startswith(DOUBTFUL)]
    measures = _of_field(regularity or {}, inverse_error, landmarks) | _of_structures(score)
    measures |= _of_propagation(clinic, whole if clinic is None else clinic.whole)
    if likeness is not None:
        measures["likeness"] = (likeness.score, "")
    if warnings is not None:
        measures["doubtful_warnings"] = (float(len(doubts)), "")
    signs_known = any(rule in rules.limits and not math.isnan(measures.get(rule, NONE)[0]) for rule in OTHER_PATIENT)
    for rule in rules.limits:
        if rule == ANOTHER_PATIENT and signs_known:
            continue  # it counts the others
        value, what = measures.get(rule, NONE)
        if math.isnan(value):
            unchecked.append(rule)
        elif level := rules.broken(rule, value):
            name = f", “{what}”" if what else ""
            texts = [f"{RULES[rule].words}: {value:.3g}{RULES[rule].unit}{name} ({rules.words(rule)})"]
            if rule == "doubtful_warnings" and doubts:
                texts = [in_words(text) for text in doubts]
            if rule == "likeness" and likeness is not None:
                texts = [f"{likeness.text} (score {value:.1f}: {rules.words(rule)})"]
            reasons += [Reason(rule, level, text) for text in texts]
    signs = [reason for reason in reasons if reason.rule in OTHER_PATIENT]
    if ANOTHER_PATIENT in rules.limits and (level := rules.broken(ANOTHER_PATIENT, len(signs))):
        text = f"another patient? {'; '.join(reason.text for reason in signs)}"
        reasons = [Reason(ANOTHER_PATIENT, level, text), *(reason for reason in reasons if reason not in signs)]
    reasons.sort(key=lambda r: WORDS.index(r.level))
    return Verdict(reasons[0].level if reasons else "pass", tuple(reasons), tuple(unchecked), rules.name)


def failed(error: str, rules: Rules) -> Verdict:
    """Return the verdict on a registration that ended with an error."""
    return Verdict("fail", (Reason("error", "fail", f"ended with an error: {error}"),), (), rules.name)


def tally(verdicts: Iterable[Verdict]) -> str:
    """Count verdicts in words."""
    words = [v.word for v in verdicts]
    text = f"{words.count('pass')} of {len(words)} passed"
    text += f", {n} to look at" if (n := words.count("look")) else ""
    return text + (f", {n} failed" if (n := words.count("fail")) else "")


def _of_field(
    regularity: Mapping[str, float], inverse: InverseError | None, landmarks: LandmarkScore | None
) -> dict[str, Measure]:
    numbers = {
        "folding_percent": 100 * regularity.get("folding_fraction", math.nan),
        "extreme_jacobian_percent": 100 * regularity.get("extreme_fraction", math.nan),
        "least_jacobian": regularity.get("min_jacobian", math.nan),
        "largest_jacobian": regularity.get("max_jacobian", math.nan),
    }
    if inverse is not None:
        numbers |= {"inverse_inexact_percent": 100 * inverse.share, "inverse_error_voxels": inverse.p99_voxels}
    if landmarks is not None and landmarks.judging:
        errors = landmarks.after_mm
        numbers |= {"landmark_mean_mm": errors["mean"], "landmark_max_mm": errors["max"]}
    return {rule: (number, "") for rule, number in numbers.items()}


def _of_structures(score: PairScore) -> dict[str, Measure]:
    counted, scored = score.counted, score.of("scored")
    lost = score.of("vanished")
    drops = [(float(np.fmax(s.dice_before, s.dice_start)) - s.dice_after, s.name) for s in counted]
    best = float(np.fmax(score.mean("dice_before"), score.mean("dice_start")))
    volumes = [(100 * abs(s.volume_after_ml / s.volume_before_ml - 1), s.name) for s in scored]
    lowest = min(counted, key=lambda s: s.dice_after, default=None)
    return {
        "mean_dice_drop": (best - score.mean(), ""),
        "structure_dice_drop": max(drops, default=NONE),
        "vanished_structures": (len(lost), ", ".join(s.name for s in lost)) if counted else NONE,
        "volume_change_percent": max(volumes, default=NONE),
        "least_mean_dice": (score.mean(), ""),
        "least_structure_dice": NONE if lowest is None else (lowest.dice_after, lowest.name),
        "surface_distance_mm": max(((s.hd95_mm, s.name) for s in scored if not math.isnan(s.hd95_mm)), default=NONE),
    }


STRUCTURE_RULES = {
    "structure_pushed_percent": "pushed_percent", "structure_outside_percent": "outside_percent",
    "structure_volume_percent": "volume_change_percent", "structure_least_jacobian": "jacobian_least",
    "structure_largest_jacobian": "jacobian_largest", "structure_inverse_mm": "inverse_p95_mm",
    "outline_dice": "outline_dice", "structure_displacement_mm": "displacement_mean_mm",
}  # fmt: skip
"""Rules about each propagated structure, and the number that each is about."""
ANOTHER_PATIENT = "another_patient_signs"
OTHER_PATIENT = ("similarity_after", "displacement_p95_mm", "bones_bent_mm")
"""Rules of two CT whose broken limits are counted as signs of another patient."""


def _of_propagation(section: ClinicSection | None, whole: WholePair | None) -> dict[str, Measure]:
    """Return the numbers of both scans, and of propagated contours those of the worst structure."""
    measures: dict[str, Measure] = {}
    if whole is not None:
        two_ct = whole.displacement_p95_mm is not None
        numbers = {
            "inverse_mean_mm": whole.inverse_mean_mm,
            "both_ways_voxels": whole.both_ways_voxels,
            "similarity_drop": _number(whole.similarity_before) - _number(whole.similarity_after),
            "similarity_after": whole.similarity_after if two_ct else None,
            "displacement_p95_mm": whole.displacement_p95_mm,
            "bones_bent_mm": whole.bones_bent_mm,
        }
        measures = {rule: (_number(number), "") for rule, number in numbers.items()}
    if section is not None:
        lost = [row.name for row in section.lost]
        measures["lost_structures"] = (len(lost), ", ".join(lost))
        for rule in STRUCTURE_RULES:
            rows = [(structure_number(row, rule), row.name) for row in section.structures]
            known = [row for row in rows if not math.isnan(row[0])]
            measures[rule] = NONE if not known else (min if RULES[rule].least else max)(known)
    return measures


def structure_number(row: PropagatedStructure, rule: str) -> float:
    """Return the number of a propagated structure that a rule limits; NaN where there is none."""
    value = _number(getattr(row, STRUCTURE_RULES[rule]))
    return abs(value) if rule == "structure_volume_percent" else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value
