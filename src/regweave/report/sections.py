"""Parts of a registration's page that are numbers and words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from regweave.io.modality import describe_modalities, recorded_modality
from regweave.measures.inverse import InverseError
from regweave.measures.scores import STATES, PairScore, StructureScore
from regweave.report._values import fixed
from regweave.report.overview import number
from regweave.report.page import Markup, escape, table
from regweave.report.step_chart import step_chart

COSTS = {"images, % of the first step": "data", "smoothness, %": "smoothness"}
GRADES = {
    "4": "no error seen",
    "3": "small, below a voxel",
    "2": "visible, usable with care",
    "1": "large",
    "0": "wrong",
}


WORDS = {
    "scored": "scored",
    "vanished": "✗ vanished",
    "no reference": "no fixed contour",
    "not in moving": "not in moving",
    "unknown": "one map lacks it",
}
"""What the table says of a structure."""
RAIL = Markup('<span class="drawn">0 … 1</span>')


def structure_section(rows: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of structures: measured where both label maps were given, else those that can be drawn."""
    if not drawn:
        return ""
    measured = {s.label: s for s in PairScore.read((row["label"], row) for row in rows).structures}
    header = [
        "structure", "show", "", "Dice before", "after", RAIL, "HD95 mm", "ASSD mm", "fixed ml", "moving ml",
        "warped ml", "volume change", "state",
    ]  # fmt: skip
    lines = [_structure(item, measured.get(item["label"])) for item in drawn]
    note = (
        "A structure is scored where both label maps show it, the same set before and after; one that warping loses "
        "has vanished and counts 0. HD95 and ASSD compare warped with fixed surfaces (border voxels, both directions). "
        "Volume change compares the warped structure with the moving one."
    )
    shown = table(header, lines, numeric={3, 4, 6, 7, 8, 9, 10, 11})
    return f'<h2>Structures</h2>{shown}<p class="quiet">{note}</p>'


def _structure(item: Mapping[str, Any], score: StructureScore | None) -> list[object]:
    name, label = escape(item["name"]), escape(item["label"])
    show = Markup(f'<input type="checkbox" checked data-show="{label}" aria-label="Show contours of {name}">')
    go = Markup(f'<button type="button" data-go="{label}" aria-label="Go to {name}">Go</button>')
    if score is None:
        return [item["name"], show, go, *[None] * 10]
    old, new = score.volume_before_ml, score.volume_after_ml
    change = f"{new / old - 1:+.0%}".replace("-", "−") if old > 0 else None
    volumes = [fixed(v, 2) for v in (score.volume_fixed_ml, old, new)]
    distances = [fixed(v, 2) for v in (score.hd95_mm, score.assd_mm)]
    before, after = score.dice_before, score.dice_after
    bar = _change(before, after) if score.counted else None
    return [item["name"], show, go, before, after, bar, *distances, *volumes, change, _state(score)]


def _state(score: StructureScore) -> Markup:
    kind = {"scored": "", "vanished": "bad"}.get(score.state, "quiet")
    return Markup(
        f'<span class="state {kind}" title="{escape(STATES[score.state])}">{escape(WORDS[score.state])}</span>'
    )


def _change(before: float, after: float) -> Markup:
    a, b = 6 + 108 * before, 6 + 108 * after
    kind = "better" if after >= before else "worse"
    return Markup(
        f'<svg class="change" viewBox="0 0 120 16" role="img" aria-label="Dice {before:.2f} to {after:.2f}">'
        f'<path class="rail" d="M6 8H114"/><path class="{kind}" d="M{a:.1f} 8H{b:.1f}"/>'
        f'<circle class="from" cx="{a:.1f}" cy="8" r="4"/><circle class="to" cx="{b:.1f}" cy="8" r="5"/></svg>'
    )


def optimisation_section(record: Mapping[str, Any]) -> str:
    """Return energy and gap of each discrete step, and the cost of the refinement."""
    steps, refinement = record["steps"], record["refinement"]
    levels = [f"{s['spacing_mm']:.3g} mm" for s in steps]
    energies = step_chart(
        "Energy of each discrete step, relative to the first of its level",
        [("energy, % of the level's first", _relative([s["energy"] for s in steps], levels))],
        groups=levels,
    )
    gaps = [100 * s["gap"] for s in steps if s["gap"] is not None]
    solver = f"Solver: within {max(gaps):.3f} % of its own optimum (says nothing about anatomy)." if gaps else ""
    shown = step_chart(
        "Gap of the solver at each discrete step", [("gap, %", gaps)],
        groups=levels if len(gaps) == len(levels) else (), from_zero=True,
    )  # fmt: skip
    costs = [(name, _relative([r[key] for r in refinement])) for name, key in COSTS.items()]
    refined = step_chart("Cost of each gradient step, relative to the first", costs)
    rows = [
        [f"{s['spacing_mm']:.3g} mm, step {s['step'] + 1}", s["n_nodes"], s["n_labels"], f"{s['energy']:.4f}",
         "none" if s["lower_bound"] is None else f"{s['lower_bound']:.4f}", number(s["gap"], ".4%"), s["iterations"],
         f"{sum(s['seconds'].values()):.2f}"]
        for s in steps
    ]  # fmt: skip
    header = ["discrete step", "nodes", "labels", "energy", "lower bound", "gap", "iterations", "seconds"]
    numbers = table(header, rows, numeric=set(range(1, 8)))
    return (
        "<h2>Optimisation</h2><p>No deformation of the control grid within a step has an energy below its lower bound; "
        "the gap is how far the one found may be from the best, relative to its energy. Energies can be compared "
        "within a level at best: each step measures its costs anew, around the deformation so far.</p>"
        '<div class="columns">'
        f"<div><h3>Energy</h3>{energies}</div><div><h3>Gap of the solver, %</h3>{shown}</div>"
        + (f"<div><h3>Refinement</h3>{refined}</div>" if refined else "")
        + f"</div><details><summary>Numbers of each step</summary>{numbers}</details>"
        + f'<p class="quiet">{solver}</p>'
    )


def field_section(record: Mapping[str, Any]) -> str:
    """Return folding, Jacobians and inverse consistency."""
    inverse = record["inverse_consistency_mm"]
    rows = [
        ["voxels folded (J ≤ 0)", number(record["folding_fraction"], ".4%")],
        ["smallest and largest Jacobian", f"{number(record['min_jacobian'])} and {number(record['max_jacobian'])}"],
        ["voxels with a Jacobian below 1/5 or above 5", number(record["extreme_fraction"], ".4%")],
        ["standard deviation of log J", number(record["sdlogj"])],
        ["the same by the formula of Learn2Reg", number(record["sdlogj_l2r"])],
        ["there and back: mean", f"{number(inverse['mean'], '.3f')} mm"],
        ["there and back: 95th percentile", f"{number(inverse['p95'], '.3f')} mm"],
        ["there and back: largest", f"{number(inverse['max'], '.3f')} mm"],
    ]
    found = record["inverse_error"]
    words = "" if found is None else InverseError.read(found).words()
    exact = f"<p>{escape(words[:1].upper() + words[1:])}.</p>" if words else ""
    return (
        "<h2>Deformation</h2>"
        + table(["measure", "value"], rows, numeric={1})
        + exact
        + '<p class="quiet">The Jacobian is that of the map from fixed to moving points, without the affine start: '
        "above 1 the moving tissue is the larger, and shrinks when it is warped.</p>"
    )


def weights_section(record: Mapping[str, Any], names: Mapping[int, str], parts: Mapping[str, float]) -> str:
    """Return the weights of each class, and how much of the image each member decides."""
    w, provenance = record["weights"], record["provenance"]
    bank = recorded_modality(provenance["modality"])["bank"]
    stages = {m["name"]: m["stage"] for m in provenance["settings"]["banks"].get(bank, [])}
    classes = ["background" if c == 0 else names.get(c, str(c)) for c in w["classes"]]
    if len(classes) == 1:
        classes = ["everywhere"]
    header = ["member", "used in", *(f"weight: {c}" for c in classes), "decides, of voxels"]
    rows = [
        [m, stages.get(m, "–"), *(f"{v:.3f}" for v in values), number(parts.get(m), ".1%")]
        for m, values in zip(w["members"], w["matrix"], strict=True)
    ]
    told = {"labels": "the moving labels", "predicted": "the model's class predictor, from the moving image"}
    chosen = told.get(provenance["classes_from"], "nowhere: one set of weights serves all tissue")
    return (
        "<h2>Which metric decides where</h2>"
        "<p>The map “deciding metric” shows, for the last discrete step, the member of the bank whose weighted and "
        "scaled cost differs most between the possible displacements of a control point (standard deviation over "
        "labels); what is equal for all displacements decides nothing. Values between control points are interpolated. "
        "The number at the cross-hair is that member's share of the sum over all members. The map “confidence” is the "
        "distance, in units of the energy, from a control point's best displacement to its second best by the images "
        "alone, before smoothness; 0 is a tie. The refinement that follows uses its own members.</p>"
        + table(header, rows, numeric=set(range(2, len(header))))
        + f"<p>Pairwise weight {number(w['pairwise'], '.4g')}. The class of each point comes from {escape(chosen)}.</p>"
    )


def provenance_section(record: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Return inputs with hashes, versions and settings."""
    p = record["provenance"]
    modality = recorded_modality(p["modality"])
    shown = describe_modalities(modality["fixed"], modality["moving"])
    inputs = [[key, sources.get(key, "in memory"), Markup(f"<code>{escape(h)}</code>")]
              for key, h in p["inputs_sha256"].items()]  # fmt: skip
    versions = [["regweave", p["regweave"]], ["python", p["python"]], *p["dependencies"].items()]
    versions += [["platform", p["platform"]], ["threads", p["threads"]], ["modality", shown]]
    versions += [[f"seconds: {k}", f"{v:.2f}"] for k, v in record["seconds"].items()]
    versions += [["peak memory", f"{record['peak_memory_mb']:.0f} MB"]]
    name = escape(p["settings"]["name"])
    settings = escape(json.dumps(p["settings"], indent=2, ensure_ascii=False))
    return (
        "<h2>Record</h2>"
        + table(["input", "file", "SHA-256"], inputs)
        + f"<details><summary>Versions, time, memory</summary>{table(['what', 'value'], versions)}</details>"
        + f"<details><summary>Settings “{name}”</summary><pre>{settings}</pre></details>"
    )


def signoff_section(structures: Sequence[Mapping[str, Any]]) -> str:
    """Return the fields that a reader fills; the script of the page writes them as TSV."""
    options = '<option value="">not graded</option>' + "".join(
        f'<option value="{grade}">{grade} · {escape(text)}</option>' for grade, text in GRADES.items()
    )
    rows = [
        [s["name"], Markup(f'<select name="grade-{n}" aria-label="Grade of {escape(s["name"])}">{options}</select>')]
        for n, s in enumerate(structures)
    ]
    return (
        '<h2>Sign-off</h2><p class="quiet">Nothing is stored in the page: export before closing it.</p>'
        f'<form id="signoff">{table(["structure", "grade"], rows)}'
        '<div class="fields"><label>Name <input name="reviewer" autocomplete="off"></label>'
        '<label>Date <input name="date" type="date"></label>'
        '<label class="long">Comment <input name="comment" autocomplete="off"></label>'
        '<button type="submit">Export TSV</button></div></form>'
        '<textarea id="tsv" readonly hidden aria-label="Exported table"></textarea>'
    )


def _relative(values: Sequence[float], groups: Sequence[str] = ()) -> list[float]:
    """Percent of the first value, or of the first of each group."""
    out: list[float] = []
    first = 1.0
    for i, value in enumerate(values):
        if i == 0 or (groups and groups[i] != groups[i - 1]):
            first = abs(value) or 1.0
        out.append(100 * value / first)
    return out
