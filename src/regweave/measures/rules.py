"""Acceptance criteria of a registration, as a TOML file that a department can edit."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from regweave.errors import UsageError
from regweave.io.disk.texts import parse_toml, read_text

SHIPPED = "rules.toml"
CLINIC = "clinic_rules.toml"
LONGEST_SOURCE = 300
LEVELS = ("fail", "look")
"""Limits of a rule, the graver first."""
LARGEST_BYTES = 100_000
LONGEST_NAME = 80


BOTH_LABELS = "overlap and volumes of structures (labels of both images: --fixed-labels, --moving-labels)"
INVERSE = "inverse (not measured: made by an earlier version)"
JACOBIAN = "Jacobian (not measured: made by an earlier version)"
LANDMARKS = "landmarks (none given: --fixed-points, --moving-points)"
TWO_CT = "comparison with another patient (two CT needed)"
CARRIED = "numbers by structure (none was carried over and measured)"
"""What a rule needs a number of, in short, and how to get it."""


@dataclass(frozen=True)
class Rule:
    """Criterion of acceptance: what it measures, in words, and on which side of its limits a value must stay.

    ``needs`` names what there must be for it to be checked, and how to get that.
    """

    words: str
    unit: str = ""
    least: bool = False
    brief: str = ""
    needs: str = ""


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
    "doubtful_warnings": Rule("warnings about start or model", needs="warnings (not recorded)"),
}
"""Rules about a registration."""
OF_CONTOURS: Mapping[str, Rule] = {
    "inverse_mean_mm": Rule("mean error there and back", " mm", needs=INVERSE),
    "both_ways_voxels": Rule(
        "mean disagreement of the registrations in both directions, in longest edges of a voxel",
        needs="registration in both directions (--both-ways)",
    ),
    "similarity_drop": Rule(
        "loss of correlation between the images", needs="correlation of the images (too few voxels in both)"
    ),
    "similarity_after": Rule(
        "correlation of the scans inside the patient after the registration", least=True, needs=TWO_CT
    ),
    "displacement_p95_mm": Rule(
        "displacement after the start inside the patient, 95th percentile", " mm", needs=TWO_CT
    ),
    "bones_bent_mm": Rule("bending of the bones, root mean square", " mm", needs="bending of the bones (two CT, bone)"),
    "another_patient_signs": Rule("signs of another patient", needs=TWO_CT),
    "lost_structures": Rule("structures lost on the way to today", needs="contours (only `contours` carries them)"),
    "structure_pushed_percent": Rule(
        "share of a structure that the deformation moves out of today's scan",
        " %",
        brief="moved out of the scan",
        needs=CARRIED,
    ),
    "structure_outside_percent": Rule(
        "share of a structure outside today's scan", " %", brief="outside", needs=CARRIED
    ),
    "structure_volume_percent": Rule(
        "change of a structure's volume from plan to today", " %", brief="volume", needs=CARRIED
    ),
    "structure_least_jacobian": Rule("smallest Jacobian inside a structure", least=True, brief="J min", needs=CARRIED),
    "structure_largest_jacobian": Rule("largest Jacobian inside a structure", brief="J max", needs=CARRIED),
    "structure_inverse_mm": Rule(
        "error there and back inside a structure, 95th percentile", " mm", brief="there and back", needs=CARRIED
    ),
    "outline_dice": Rule(
        "Dice of the outline found in today's CT and the plan's carried outline",
        least=True,
        brief="Dice, carried",
        needs="an outline found in today's CT (it was carried)",
    ),
    "structure_displacement_mm": Rule(
        "mean displacement of a structure after the start", " mm", brief="mean displacement", needs=CARRIED
    ),
}
"""Rules about propagated contours."""
RULES: Mapping[str, Rule] = {**OF_REGISTRATIONS, **OF_CONTOURS}
"""All rules that a file may hold."""


@dataclass(frozen=True)
class Rules:
    """A set of acceptance criteria: limits ``look`` and ``fail`` by rule, and where each limit comes from.

    Examples
    --------
    >>> default_rules().limits["vanished_structures"]
    {'fail': 0.0}
    """

    name: str
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def broken(self, rule: str, value: float) -> str | None:
        """Return the gravest limit that a value lies beyond, None for none."""
        for level in LEVELS:
            limit = self.limits[rule].get(level)
            if limit is not None and (value < limit if RULES[rule].least else value > limit):
                return level
        return None

    def words(self, rule: str) -> str:
        """Say the limits of a rule.

        Examples
        --------
        >>> default_rules().words("folding_percent")
        'fail above 0.1 %, look above 0 %'
        """
        side = "below" if RULES[rule].least else "above"
        limits = self.limits[rule]
        return ", ".join(f"{level} {side} {limits[level]:g}{RULES[rule].unit}" for level in LEVELS if level in limits)

    def brief(self, rule: str, value: float, level: str) -> str:
        """Say in few words what breaks a limit.

        Examples
        --------
        >>> clinic_rules().brief("structure_volume_percent", 31.2, "look")
        'volume 31.2 %: look above 25 %'
        """
        side, unit = "below" if RULES[rule].least else "above", RULES[rule].unit
        limit = self.limits[rule][level]
        return f"{RULES[rule].brief or RULES[rule].words} {value:.3g}{unit}: {level} {side} {limit:g}{unit}"

    def record(self) -> dict[str, Any]:
        """Return the rules as JSON values, for the record of a result."""
        limits = {rule: dict(of) for rule, of in self.limits.items()}
        return {"name": self.name, "limits": limits, **({"sources": dict(self.sources)} if self.sources else {})}


def rule_words(rule: str) -> str:
    """Return what a rule measures, in words; its name where it is not one of ours."""
    return RULES[rule].words if rule in RULES else rule


def unchecked_words(rules: Iterable[str]) -> str:
    """Return what rules without a number need, in short, each once.

    Examples
    --------
    >>> unchecked_words(["landmark_mean_mm", "landmark_max_mm", "both_ways_voxels"])
    'landmarks (none given: --fixed-points, --moving-points), registration in both directions (--both-ways)'
    """
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
    """Read acceptance criteria from a TOML file.

    Parameters
    ----------
    path : path
        File as ``regweave rules`` prints it.

    Raises
    ------
    RegweaveError
        E101 where there is no such file, E114 where it is too long, E177 where it holds anything but rules.
    """
    try:
        return parse_rules(parse_toml(read_text(path, LARGEST_BYTES)), str(path))
    except ValueError as error:
        raise _bad(str(path), f"it cannot be read as TOML ({str(error)[:120]})") from error


def parse_rules(content: Mapping[str, Any], source: str) -> Rules:
    """Check every key and value of a rules file; ``source`` names it in messages."""
    name = content.get("name", Path(source).stem)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise _bad(source, f"name must be a printable text of 1 to {LONGEST_NAME} characters")
    limits, sources = {}, {}
    for rule, table in content.items():
        if rule == "name":
            continue
        if rule not in RULES:
            near = difflib.get_close_matches(rule, RULES, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise _bad(source, f"unknown rule '{rule[:60]}'{meant}")
        limits[rule] = _limits(source, rule, table)
        if "source" in table:
            sources[rule] = str(table["source"])
    if not limits:
        raise _bad(source, "it holds no rule, so that everything would pass")
    return Rules(name, limits, sources)


def _limits(source: str, rule: str, table: object) -> dict[str, float]:
    if not isinstance(table, Mapping) or not table:
        raise _bad(source, f"[{rule}] must be a table with look, fail or both")
    for key, value in table.items():
        if key == "source":
            if not isinstance(value, str) or not 0 < len(value) <= LONGEST_SOURCE or not value.isprintable():
                raise _bad(source, f"[{rule}] source must be a printable text of 1 to {LONGEST_SOURCE} characters")
            continue
        if key not in LEVELS:
            raise _bad(source, f"[{rule}] has an unknown key '{str(key)[:60]}'; allowed: look, fail, source")
        known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        if not known or not math.isfinite(value):
            raise _bad(source, f"[{rule}] {key} must be a finite number, found {str(value)[:60]}")
    limits = {level: float(table[level]) for level in LEVELS if level in table}
    if not limits:
        raise _bad(source, f"[{rule}] must be a table with look, fail or both")
    if len(limits) == 2:
        look, fail = limits["look"], limits["fail"]
        if (fail > look) if RULES[rule].least else (fail < look):
            raise _bad(source, f"[{rule}] fail ({fail:g}) would be reached before look ({look:g})")
    return limits


def _bad(source: str, what: str) -> UsageError:
    hint = f"start from `regweave rules > mine.toml`; rules: {', '.join(RULES)}"
    return UsageError("E177", f"'{source}' is no rules file: {what}", hint)
