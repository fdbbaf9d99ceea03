"""Head of a registration's page: what was asked for, the verdict with its reasons, and the numbers looked at first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regweave.io.modality import describe_modalities, recorded_modality
from regweave.measures.rules import RULES, Rules, default_rules
from regweave.measures.scores import PairScore
from regweave.measures.verdict import Verdict, judge
from regweave.report.page import escape

MARKS = {"pass": "✓ pass", "look": "● look closer", "fail": "✗ fail"}
"""Words of a verdict, each with a sign so that no one needs the colour."""
KINDS = {"pass": "good", "look": "warn", "fail": "bad"}


def pair_score(record: Mapping[str, Any]) -> PairScore:
    """Return the scores of the structures that a record of any version holds."""
    return PairScore.read((row["label"], row) for row in record["structures"])


def verdict_of(record: Mapping[str, Any], rules: Rules | None) -> Verdict:
    """Return the verdict that a record holds, or that of other rules; an old record is judged by the shipped ones."""
    stored = record.get("verdict")
    if rules is None and stored is not None:
        return Verdict.read(stored)
    return judge(record, pair_score(record), rules or default_rules())


def subtitle(provenance: Mapping[str, Any]) -> str:
    """Return what was asked for, in one line: modality, start, model, whatever of it the record tells."""
    modality, start, model = (provenance.get(key) for key in ("modality", "start", "model"))
    sides = recorded_modality(modality)
    words = [describe_modalities(sides["fixed"], sides["moving"])] if modality else []
    if isinstance(start, Mapping) and start.get("method"):
        words.append({"none": "no start", "file": "start from a file"}.get(s := str(start["method"]), f"{s} start"))
    if isinstance(model, Mapping) and model.get("name"):
        words.append(f"model {model['name']}")
    elif start is not None:  # a record that tells the start would tell the model too
        words.append("no model")
    words.append(f"settings {provenance['settings']['name']}")
    return " · ".join(filter(None, words))


def verdict_banner(verdict: Verdict) -> str:
    """Return the verdict with the reason of each rule that is broken, and what could not be checked."""
    reasons = "".join(
        f'<li><span class="{KINDS[r.level]}">{escape(r.level)}</span> {escape(r.text)}</li>' for r in verdict.reasons
    )
    notes = [f"By the rules “{verdict.rules}”."]
    if not verdict.reasons:
        notes.insert(0, "No rule is broken." if not verdict.unchecked else "No rule is broken that could be checked.")
    if verdict.unchecked:
        missing = [RULES[rule].words if rule in RULES else rule for rule in verdict.unchecked]
        notes.append(f"Not checked, for want of a number: {', '.join(missing)}.")
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return (
        f'<section class="verdict {KINDS[verdict.word]}-edge" aria-label="Verdict">'
        f'<b class="{KINDS[verdict.word]}">{escape(MARKS[verdict.word])}</b>{listed}'
        f'<p class="quiet">{escape(" ".join(notes))}</p></section>'
    )


def summary_cards(record: Mapping[str, Any]) -> str:
    """Return the numbers that are looked at first, and the warnings."""
    score = pair_score(record)
    dice, none = score.means(), "no structure in both" if score.structures else "no labels"
    vanished, others = len(score.of("vanished")), len(score.structures) - len(score.counted)
    lost = f"{vanished} of {len(score.counted)}"
    jacobian = " … ".join(number(record[key], ".2f") for key in ("min_jacobian", "max_jacobian"))
    cards = [
        ("mean Dice, before → after", f"{dice['before']:.3f} → {dice['after']:.3f}" if dice else none),
        ("vanished" + (f" ({others} not scored)" if others else ""), lost if score.structures else "no labels"),
        ("voxels folded", number(record["folding_fraction"], ".3%")),
        ("Jacobian, least … largest", jacobian),
        ("there and back, 95 %", f"{number(record['inverse_consistency_mm']['p95'], '.2f')} mm"),
        ("time", f"{number(record['seconds']['total'], '.1f')} s"),
    ]
    shown = "".join(f"<div><span>{escape(name)}</span><b>{escape(value)}</b></div>" for name, value in cards)
    notes = "".join(f'<p class="warn">Warning {escape(text)}</p>' for text in record["warnings"])
    return f'<div class="cards">{shown}</div>{notes}'


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number as text, a dash for none."""
    return "–" if value is None else format(value, form)
