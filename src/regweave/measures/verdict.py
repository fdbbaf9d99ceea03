"""Verdict on a registration: acceptance criteria applied to its measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from regweave.measures.rules import RULES, Rules
from regweave.measures.scores import PairScore, StructureScore

Word = Literal["pass", "look", "fail"]
WORDS: tuple[Word, ...] = ("fail", "look", "pass")
"""Verdicts, the gravest first."""
Measure = tuple[float, str]
"""A number, and the structure it belongs to or nothing."""
NONE: Measure = (math.nan, "")

DOUBTFUL = ("W210", "W215", "W216", "W238", "W247", "W248")
"""Warnings that a start was rejected or that a model may not fit: the result is to be looked at."""


def in_words(warning: str) -> str:
    """Return a warning with its code at the end.

    Examples
    --------
    >>> in_words("W203: label 4 vanished")
    'label 4 vanished (W203)'
    """
    code, _, text = warning.partition(": ")
    return f"{text} ({code})" if text else warning


@dataclass(frozen=True)
class Reason:
    """A rule that a registration breaks: ``level`` is look or fail, ``text`` says what was found and allowed."""

    rule: str
    level: Word
    text: str


@dataclass(frozen=True)
class Verdict:
    """Verdict of the rules on a registration.

    Parameters
    ----------
    word : "pass", "look" or "fail"
        The gravest of the reasons, pass without any.
    reasons : tuple of Reason
        Rules that are broken, the gravest first.
    unchecked : tuple of str
        Rules for which the registration has no number, such as those of structures where there are no labels.
    rules : str
        Name of the rules.
    """

    word: Word
    reasons: tuple[Reason, ...] = ()
    unchecked: tuple[str, ...] = ()
    rules: str = ""

    @property
    def text(self) -> str:
        """The reasons in one line; empty for a pass."""
        return "; ".join(r.text for r in self.reasons)

    def record(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        reasons = [{"rule": r.rule, "level": r.level, "text": r.text} for r in self.reasons]
        return {"verdict": self.word, "reasons": reasons, "unchecked": list(self.unchecked), "rules": self.rules}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `record` wrote."""
        reasons = tuple(Reason(r["rule"], r["level"], r["text"]) for r in row["reasons"])
        return cls(row["verdict"], reasons, tuple(row["unchecked"]), row["rules"])


def judge(numbers: Mapping[str, Any], score: PairScore, rules: Rules) -> Verdict:
    """Apply acceptance criteria to a registration.

    Parameters
    ----------
    numbers : mapping
        ``folding_fraction``, ``extreme_fraction``, ``min_jacobian``, ``max_jacobian``, ``inverse_error``,
        ``landmarks``, ``warnings`` and ``clinic`` as ``result.json`` has them; what is not there is not checked.
    score : PairScore
        The structures. Only those that both label maps show can break a rule.
    rules : Rules
        The criteria.

    Examples
    --------
    >>> from regweave.measures.rules import default_rules
    >>> judge({"folding_fraction": 0.002}, PairScore(), default_rules()).text
    'voxels folded: 0.2 % (fail above 0.1 %, look above 0 %)'
    """
    reasons, unchecked = [], []
    doubts = [text for text in dict.fromkeys(numbers.get("warnings", ())) if text.startswith(DOUBTFUL)]
    found = {**_of_field(numbers), **_of_structures(score), **_of_clinic(numbers.get("clinic"))}
    if "warnings" in numbers:
        found["doubtful_warnings"] = (float(len(doubts)), "")
    signs_known = any(rule in rules.limits and not math.isnan(found.get(rule, NONE)[0]) for rule in OTHER_PATIENT)
    for rule in rules.limits:
        if rule == ANOTHER_PATIENT and signs_known:
            continue  # it counts the others
        value, what = found.get(rule, NONE)
        if math.isnan(value):
            unchecked.append(rule)
        elif level := rules.broken(rule, value):
            name = f", “{what}”" if what else ""
            texts = [f"{RULES[rule].words}: {value:.3g}{RULES[rule].unit}{name} ({rules.words(rule)})"]
            if rule == "doubtful_warnings" and doubts:
                texts = [in_words(text) for text in doubts]
            reasons += [Reason(rule, "fail" if level == "fail" else "look", text) for text in texts]
    signs = [reason for reason in reasons if reason.rule in OTHER_PATIENT]
    if ANOTHER_PATIENT in rules.limits and (level := rules.broken(ANOTHER_PATIENT, len(signs))):
        text = f"another patient? {'; '.join(reason.text for reason in signs)}"
        one = Reason(ANOTHER_PATIENT, "fail" if level == "fail" else "look", text)
        reasons = [one, *(reason for reason in reasons if reason not in signs)]
    reasons.sort(key=lambda r: WORDS.index(r.level))
    return Verdict(reasons[0].level if reasons else "pass", tuple(reasons), tuple(unchecked), rules.name)


def failed(error: str, rules: Rules) -> Verdict:
    """Return the verdict on a registration that ended with an error."""
    return Verdict("fail", (Reason("error", "fail", f"ended with an error: {error}"),), (), rules.name)


def tally(verdicts: Iterable[Verdict]) -> str:
    """Count verdicts in words.

    Examples
    --------
    >>> tally([Verdict("pass"), Verdict("pass"), Verdict("look")])
    '2 of 3 passed, 1 to look at'
    >>> tally([Verdict("pass")] * 24)
    '24 of 24 passed'
    """
    words = [v.word for v in verdicts]
    text = f"{words.count('pass')} of {len(words)} passed"
    text += f", {n} to look at" if (n := words.count("look")) else ""
    return text + (f", {n} failed" if (n := words.count("fail")) else "")


def _of_field(numbers: Mapping[str, Any]) -> dict[str, Measure]:
    inverse = numbers.get("inverse_error")
    inverse = inverse if isinstance(inverse, Mapping) else {}
    marks = (numbers.get("landmarks") or {}).get("after_mm", {})
    return {
        "landmark_mean_mm": (_number(marks.get("mean")), ""),
        "landmark_max_mm": (_number(marks.get("max")), ""),
        "folding_percent": (100 * _number(numbers.get("folding_fraction")), ""),
        "extreme_jacobian_percent": (100 * _number(numbers.get("extreme_fraction")), ""),
        "least_jacobian": (_number(numbers.get("min_jacobian")), ""),
        "largest_jacobian": (_number(numbers.get("max_jacobian")), ""),
        "inverse_inexact_percent": (100 * _number(inverse.get("inexact_fraction")), ""),
        "inverse_error_voxels": (_number(inverse.get("p99_voxels")), ""),
    }


def _of_structures(score: PairScore) -> dict[str, Measure]:
    counted, scored = score.counted, score.of("scored")
    lost = score.of("vanished")
    drops = [(float(np.fmax(s.dice_before, s.dice_start)) - s.dice_after, s.name) for s in counted]
    best = float(np.fmax(score.mean("dice_before"), score.mean("dice_start")))
    lowest = min(counted, key=lambda s: s.dice_after, default=None)
    return {
        "mean_dice_drop": (best - score.mean(), ""),
        "structure_dice_drop": max(drops, default=NONE),
        "vanished_structures": (len(lost), ", ".join(s.name for s in lost)) if counted else NONE,
        "volume_change_percent": max((_volume_change(s) for s in scored), default=NONE),
        "least_mean_dice": (score.mean(), ""),
        "least_structure_dice": NONE if lowest is None else (lowest.dice_after, lowest.name),
        "surface_distance_mm": max(((s.hd95_mm, s.name) for s in scored if not math.isnan(s.hd95_mm)), default=NONE),
    }


STRUCTURE_RULES = {
    "structure_pushed_percent": "pushed_percent",
    "structure_outside_percent": "outside_percent",
    "structure_volume_percent": "volume_change_percent",
    "structure_least_jacobian": "jacobian_least",
    "structure_largest_jacobian": "jacobian_largest",
    "structure_inverse_mm": "inverse_p95_mm",
    "outline_dice": "outline_dice",
    "structure_displacement_mm": "displacement_mean_mm",
}
"""Rules about each propagated structure, and the number that each is about."""


ANOTHER_PATIENT = "another_patient_signs"
OTHER_PATIENT = ("similarity_after", "displacement_p95_mm", "bones_bent_mm")
"""Rules of two CT whose broken limits are counted as signs of another patient."""


def _of_clinic(section: object) -> dict[str, Measure]:
    """Take the numbers of propagated contours; of those by structure the worst."""
    if not isinstance(section, Mapping):
        return {}
    whole = section.get("whole") or {}
    lost = [row["name"] for row in section.get("lost", ())]
    two_ct = whole.get("displacement_p95_mm") is not None
    found: dict[str, Measure] = {
        "inverse_mean_mm": (_number(whole.get("inverse_mean_mm")), ""),
        "both_ways_voxels": (_number(whole.get("both_ways_voxels")), ""),
        "similarity_drop": (_number(whole.get("similarity_before")) - _number(whole.get("similarity_after")), ""),
        "lost_structures": (len(lost), ", ".join(lost)),
        "similarity_after": (_number(whole.get("similarity_after") if two_ct else None), ""),
        "displacement_p95_mm": (_number(whole.get("displacement_p95_mm")), ""),
        "bones_bent_mm": (_number(whole.get("bones_bent_mm")), ""),
    }
    for rule in STRUCTURE_RULES:
        rows = [(structure_number(row, rule), row["name"]) for row in section.get("structures", ())]
        known = [row for row in rows if not math.isnan(row[0])]
        found[rule] = NONE if not known else (min if RULES[rule].least else max)(known)
    return found


def structure_number(row: Mapping[str, Any], rule: str) -> float:
    """Return what a rule by structure looks at in a row of the quality assurance; NaN where there is none."""
    value = _number(row.get(STRUCTURE_RULES[rule]))
    return abs(value) if rule == "structure_volume_percent" else value


def _volume_change(s: StructureScore) -> Measure:
    return 100 * abs(s.volume_after_ml / s.volume_before_ml - 1), s.name


def _number(value: object) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else math.nan  # type: ignore[arg-type]
