"""Page of a training: curves, weights, gates, effort and data, all from the model file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regweave.io import atomic_path
from regweave.measures.statistics import patients_of
from regweave.model.model import Model, read_model
from regweave.report import _training_charts as drawn
from regweave.report._values import interval, listed, mapping, number, records, signed
from regweave.report.charts import STYLE
from regweave.report.page import Markup, document, escape, table
from regweave.study import demo_summary as story
from regweave.training.log import read_effort

LAYOUT = (
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,540px),1fr));gap:8px 24px}"
    ".verdict{font-size:1.08rem}"
)
TEST_ON_OTHERS = "The same patients chose the gates: test on others."
STAGES = {
    "read": "files are read, structures and modality settled",
    "tune": "smoothness of the uniform bank",
    "mix": "weights of the refinement's members",
    "gate": "learning on folds, registration of left-out pairs",
    "learn": "learning on all pairs",
    "predictor": "classifier for images without a mask",
}


def page_path(model: Path) -> Path:
    """Return where the page of a model lies: beside it."""
    return model.with_name(f"{model.stem}.report.html")


def write_page(model_path: str | Path) -> Path:
    """Write the page of a model beside it, ``<stem>.report.html``.

    Parameters
    ----------
    model_path : path
        Model file. The seconds of the stages are taken from ``<stem>.effort.json`` where it is there.

    Returns
    -------
    Path
        The page.
    """
    path = Path(model_path)
    back = ("index.html", "Demo") if (path.parent / story.NAME).is_file() else None
    text = page_text(path.name, read_model(path), read_effort(path), back)
    target = page_path(path)
    with atomic_path(target) as part:
        part.write_text(text, encoding="utf-8")
    return target


def page_text(name: str, model: Model, effort: Mapping[str, Any], back: tuple[str, str] | None = None) -> str:
    """Return the page of a model as HTML; ``effort`` has by stage the registrations, inferences and seconds."""
    e = model.training.to_json()
    sections = [
        _facts(model),
        _section("WeightTable", _weights(model)),
        _section("Gates", _gates(model)),
        _section("Learning curves", _curves(model)),
        _section("Surrogate loss beside the Dice of warped masks", _surrogate(model)),
        _section("Imputed against predicted", _imputed(model)),
        _section("Smoothness", drawn.smoothness(mapping(e.get("smoothness")))),
        _section("Members of the refinement", _refinement(e)),
        _section("Effort", _effort(e, effort)),
        _section("Data", _data(e)),
        _section("Settings", _settings(model)),
    ]
    return document(f"Training: {name}", "\n".join(sections), style=STYLE + LAYOUT, back=back)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content or _quiet('The model does not record this.')}</section>"


def _quiet(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _facts(model: Model) -> str:
    e, w = model.training.to_json(), model.weights
    pairs, groups = e.get("pairs"), listed(e.get("groups"))
    patients = {p for group in groups for p in patients_of(str(group))}
    facts = [f"method {e['method']}"] if "method" in e else ["written by hand"]
    facts += [f"{len(pairs)} pairs"] if isinstance(pairs, Mapping | list) else []
    facts += [f"{len(patients)} patients"] if patients else []
    seen = listed(e.get("predictor_groups"))
    facts += [f"class predictor fitted to {len(seen)} patients"] if seen else []
    facts += [f"bank {', '.join(w.members)} for {model.modality}", f"{len(w.classes)} classes"]
    facts += [
        f"smoothness {w.pairwise:.4g}",
        f"weights act at {'every level' if model.levels == 'all' else 'the finest level'}",
    ]
    return f'<p class="verdict">{_verdict(e)}</p><p class="quiet">{escape(" · ".join(facts))}</p>'


def _verdict(e: Mapping[str, Any]) -> str:
    """Say first what learning brought on left-out patients."""
    if "left_out_gain" not in e:
        return "Nothing is recorded of left-out patients."
    gain = mapping(e["left_out_gain"])
    mean, low, high = (number(gain.get(key)) for key in ("mean", "low", "high"))
    if mapping(e.get("options")).get("gate") is False:
        return "Trained without a gate: nothing is known of left-out patients."
    mixed = _mixed(mapping(e.get("refinement")))
    if math.isnan(mean):
        nothing = "Left-out patients gained nothing: the weights are uniform."
        more = "Learned columns gained nothing more: those of the levels are uniform."
        return f"{mixed}{more} {TEST_ON_OTHERS}" if mixed else nothing
    word = "good" if low > 0 else "warn"
    n = number(gain.get("n"))
    pairs = "" if math.isnan(n) else f" on {n:.0f} left-out pairs"
    return (
        f'Dice gain <strong class="{word}">{signed(mean)}</strong> by learned columns{pairs}, 95 % interval '
        f"by patient {interval(low, high)}. {mixed}{TEST_ON_OTHERS}"
    )


def _mixed(refinement: Mapping[str, Any]) -> str:
    """Say what other weights of the refinement's members brought, before the levels were learned."""
    gain = mapping(refinement.get("gain"))
    mean, low, high = (number(gain.get(key)) for key in ("mean", "low", "high"))
    if math.isnan(mean):
        return ""
    word = "good" if low > 0 else "warn"
    return (
        f'The weights of the refinement brought <strong class="{word}">{signed(mean)}</strong> Dice, 95 % interval by '
        f"patient {interval(low, high)}. "
    )


def _refinement(e: Mapping[str, Any]) -> str:
    if "refinement" not in e:
        return ""
    lines = records(mapping(e["refinement"]).get("members"))
    if not lines:
        return _quiet("Not weighed: there is no refinement, it has one member alone, or training had no gate.")
    factors = sorted({number(row.get("factor")) for line in lines for row in records(line.get("curve"))})
    rows = []
    for line in lines:
        curve = {number(row.get("factor")): number(row.get("mean_dice")) for row in records(line.get("curve"))}
        before, used = number(line.get("before")), number(line.get("used"))
        word = Markup(f'<span class="good">{used:g}</span>') if used != before else f"{used:g}"
        gain, error = number(line.get("gain")), number(line.get("standard_error"))
        tried = [curve.get(f, math.nan) for f in factors]
        rows.append([str(line.get("member")), f"{before:g}", *tried, signed(gain), signed(error).lstrip("+"), word])
    header = ["member", "before", *(f"Dice at {f:g}" for f in factors), "gain left out", "standard error", "used"]
    text = (
        "Weights of the refinement's members against each other, one after the other, with the mean Dice of all "
        "training pairs. The gain is that of left-out pairs when each fold takes the weight that is best on its own "
        "training pairs; above two standard errors the best weight is used."
    )
    return _quiet(text) + table(header, rows, numeric=range(1, len(header)))


def _weights(model: Model) -> str:
    w = model.weights
    header = ["class", *w.members, "sum"]
    rows = [
        [drawn.class_name(model, c), *map(float, w.matrix[:, k]), float(w.matrix[:, k].sum())]
        for k, c in enumerate(w.classes)
    ]
    body = table(header, rows, numeric=range(1, len(header)))
    return f"{drawn.weights(model)}<details><summary>Table of the weights used</summary>{body}</details>"


def _gates(model: Model) -> str:
    gates = model.training.to_json().get("gates", {})
    if not gates:
        return ""
    rows = []
    for c in model.weights.classes:
        gate = mapping(gates.get(str(c)))
        gain, error = number(gate.get("gain")), number(gate.get("standard_error"))
        n, used = number(gate.get("n")), gate.get("used")
        decision = Markup('<span class="good">learned</span>') if used else "uniform"
        factor = f"{drawn.strength(model, c):g}"
        rows.append([drawn.class_name(model, c), signed(gain), signed(error).lstrip("+"), n_text(n), decision, factor])
    rule = (
        "A class keeps its learned column if the Dice of really warped left-out masks rose by more than one standard "
        "error, that is, if its whole line lies right of zero. The background is judged by the mean over all "
        "structures."
    )
    e = model.training.to_json()
    share, balance = number(e.get("share")), number(e.get("balance"))
    chosen = (
        f"Share of the way from the uniform bank {share:g}, factor on its smoothness {balance:g}; the strength is a "
        "factor on the whole column of a class."
    )
    header = ["class", "gain", "standard error", "left-out pairs", "column", "strength"]
    return _quiet(rule) + drawn.gates(model) + table(header, rows, numeric=(1, 2, 3, 5)) + _quiet(chosen)


def n_text(value: float) -> str:
    """Return a count as text."""
    return "–" if math.isnan(value) else f"{value:.0f}"


def _curves(model: Model) -> str:
    found = drawn.curves(model)
    if not found:
        return ""
    words = (
        "Iteration 0 is the uniform bank. The duality gap is the width of the interval in which inference proves the "
        "true objective to lie. Predicted is the loss of what the weights find, imputed that of the deformations they "
        "are taught with."
    )
    return _quiet(words) + found


def _surrogate(model: Model) -> str:
    lines = records(model.training.to_json().get("surrogate_and_dice"))
    if not lines:
        return ""
    keys = ("C", "alpha", "eta", "share", "balance")
    scores = ("surrogate_uniform", "surrogate_learned", "dice_uniform", "dice_learned", "dice_gated")
    rows = []
    for i, line in enumerate(lines, start=1):
        numbers = [number(line.get(key)) for key in keys]
        classes = _names(model, listed(line.get("gated_classes")))
        factors = ", ".join(f"{_name(model, c)} × {f}" for c, f in mapping(line.get("strengths")).items()) or "–"
        rows.append([i, *(f"{v:g}" for v in numbers), *(number(line.get(key)) for key in scores), classes, factors])
    header = [
        "candidate",
        *keys,
        "loss before",
        "loss after",
        "Dice uniform",
        "Dice learned",
        "Dice gated",
        "open gates",
        "strengths",
    ]
    text = (
        "Loss on samples before and after learning, and the Dice of left-out masks after real registrations. A loss "
        "that falls while Dice does not rise is the common way in which learning fails."
    )
    return _quiet(text) + drawn.surrogate(lines) + table(header, rows, numeric=range(1, 11))


def _names(model: Model, classes: Sequence[object]) -> str:
    """Name classes; all of them is a word."""
    if len(classes) == len(model.weights.classes):
        return "all"
    return ", ".join(_name(model, c) for c in classes) or "none"


def _name(model: Model, value: object) -> str:
    text = str(value)
    return drawn.class_name(model, int(text)) if text.isdecimal() else text


def _imputed(model: Model) -> str:
    found = drawn.overlays(model)
    if not found:
        return ""
    text = (
        "Displacements of nodes of one training pair at the finest level, in the slice where most can be lost. Where "
        "the two lines part, the weights do not find what the masks ask for. No image and no contour is stored in a "
        "model."
    )
    return _quiet(text) + found


def _effort(e: Mapping[str, Any], effort: Mapping[str, Any]) -> str:
    counted = mapping(e.get("stages"))
    names = list(counted) or list(effort)
    rows: list[list[object]] = []
    for name in names:
        row, timed = mapping(counted.get(name)), mapping(effort.get(name))
        row = row or timed
        seconds = number(timed.get("seconds"))
        counts = [n_text(number(row.get(key))) for key in ("registrations", "inferences")]
        rows.append([name, STAGES.get(name, ""), *counts, "–" if math.isnan(seconds) else f"{seconds:.1f}"])
    total = [n_text(number(e.get(key))) for key in ("registrations", "inferences")]
    times = [number(mapping(t).get("seconds")) for t in effort.values()]
    rows.append(["all", "", *total, f"{sum(times):.1f}" if times and not any(map(math.isnan, times)) else "–"])
    note = "" if effort else _quiet("The seconds depend on the machine: they lie beside the model, not in it.")
    return table(["stage", "what", "registrations", "inferences", "seconds"], rows, numeric=(2, 3, 4)) + note


def _data(e: Mapping[str, Any]) -> str:
    learned_on = {str(name) for name in listed(e.get("learned_on"))}
    rows = []
    columns = ("fixed", "moving", "fixed_labels", "moving_labels")
    pairs = mapping(e.get("pairs"))
    for name, hashes in pairs.items():
        cells = [Markup(f"<code>{escape(str(mapping(hashes).get(c, '–'))[:12])}</code>") for c in columns]
        rows.append([name, "yes" if name in learned_on else "no", *cells])
    if not rows:
        return ""
    failed = [f"{name}: {code}" for name, code in mapping(e.get("failed")).items()]
    skipped = [f"{name}: {classes}" for name, classes in mapping(e.get("skipped")).items()]
    notes = [_quiet(f"Left out: {'; '.join(failed)}.")] if failed else []
    notes += [_quiet(f"Structures skipped: {'; '.join(skipped)}.")] if skipped else []
    title = "First 12 digits of the SHA-256 of each file; the model holds all 64."
    body = table(["pair", "learned from", *columns], rows, caption=title)
    return f"<details><summary>{len(rows)} pairs and the hashes of their files</summary>{body}</details>" + "".join(
        notes
    )


def _settings(model: Model) -> str:
    e = model.training.to_json()
    parts = {"Options of the training": e.get("options"), "Hyper-parameters taken": e.get("hyper")}
    parts["Settings of the registration"] = model.settings.model_dump(mode="json")
    return "".join(
        f"<details><summary>{escape(title)}</summary><pre>{escape(json.dumps(content, indent=1, ensure_ascii=False))}"
        "</pre></details>"
        for title, content in parts.items()
        if content is not None
    )
