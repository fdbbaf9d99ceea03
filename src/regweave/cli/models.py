"""Show what models have learned, as tables of class and member."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from regweave.cli.app import command_line, examples
from regweave.cli.options import JsonOption, complete_model
from regweave.cli.tables import short, text_table
from regweave.errors import UsageError
from regweave.model.model import Model, models, patients, predictor_facts, predictor_text, signed
from regweave.model.record import Gain, GateRecord, TrainingRecord
from regweave.registration.initial import STRUCTURES

ModelArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Model files, or names of shipped models.", metavar="MODEL.json...", autocompletion=complete_model
    ),
]

app = command_line(help=__doc__)


@app.command("list", epilog=examples("regweave weights list"))
def list_(*, as_json: JsonOption = False) -> None:
    """Show the cards of the models that come with the package; `--model NAME` uses one."""
    shipped = models()
    if as_json:
        print(
            json.dumps([{"name": n, **as_dict(Path(n), m)} for n, m in shipped.items()], indent=1, ensure_ascii=False)
        )
        return
    print(shipped)


@app.command(epilog=examples("regweave weights show weights.json"))
def show(models: ModelArgument, *, as_json: JsonOption = False) -> None:
    """Print the weight of each member for each class, and what training recorded."""
    read = {path: Model.load(path) for path in models}
    if as_json:
        print(json.dumps([as_dict(path, model) for path, model in read.items()], indent=1, ensure_ascii=False))
        return
    print("\n\n".join(as_text(path, model) for path, model in read.items()))


@app.command(epilog=examples("regweave weights compare mine.json theirs.json"))
def compare(models: ModelArgument, *, as_json: JsonOption = False) -> None:
    """Print the weights of two or more models side by side, with the differences from the first."""
    if len(models) < 2:
        raise UsageError("E192", "one model is given, comparing needs two or more", "name another MODEL.json")
    read = [Model.load(path) for path in models]
    rows = _compared(read)
    if as_json:
        content = {"models": [str(path) for path in models], "rows": rows}
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    for number, path in enumerate(models, start=1):
        print(f"{number}  {path}")
    names = [str(n) for n in range(1, len(models) + 1)]
    header = [*names, *(f"{n}-1" for n in names[1:])]
    lines = [(_row_title(row), [_cell(v) for v in row["weights"]] + signed(row["differences"])) for row in rows]
    print("\n" + text_table("class member", header, lines))


def as_dict(path: Path, model: Model) -> dict[str, Any]:
    """Return what a program may want to know of a model, as JSON values."""
    w = model.weights
    return {
        "file": str(path),
        "card": None if model.card is None else model.card.model_dump(),
        "modality": model.modality,
        "classes": {str(c): model.class_name(c) for c in w.classes},
        "members": list(w.members),
        "weights": {m: dict(zip(map(str, w.classes), row.tolist(), strict=True)) for m, row in _members(model)},
        "pairwise": w.pairwise,
        "stiffness": None if w.stiffness is None else dict(zip(map(str, w.classes), w.stiffness.tolist(), strict=True)),
        "predictor": None if model.predictor is None else predictor_facts(model.predictor),
        "evidence": model.training.to_json(),
    }


def as_text(path: Path, model: Model) -> str:
    """Lay out one model: what training recorded, then a line for each class."""
    w = model.weights
    gates = model.training.gates
    header, lines = list(w.members), []
    for k, value in enumerate(w.classes):
        lines.append((model.class_name(value), [_cell(v) for v in w.matrix[:, k].tolist()]))
    if w.stiffness is not None:
        header.append("stiffness")
        lines = [(name, [*cells, f"{s:.4g}"]) for (name, cells), s in zip(lines, w.stiffness, strict=True)]
    if gates:
        header.append("gate")
        lines = [(name, [*cells, _decision(gates, c)]) for (name, cells), c in zip(lines, w.classes, strict=True)]
    facts = [f"{path}: weights for {model.modality}", f"smoothness   {w.pairwise:.6g}", *_trained(model.training)]
    if model.predictor is not None:
        facts.append(f"structures   without labels by a {predictor_text(model)}")
    if model.settings.initial == STRUCTURES:
        facts.append("start        structures laid on each other" + _gained_by_start(model.training))
    if not model.outline_without_mask:
        facts.append("without mask members that compare the moving labels are left out")
    tables = [text_table("class", header, lines)]
    blind = model.weights_without_mask
    if blind is not None:
        stiff = [] if blind.stiffness is None else ["stiffness"]
        table = blind.matrix if blind.stiffness is None else np.vstack([blind.matrix, blind.stiffness])
        rows = [(model.class_name(c), [_cell(v) for v in table[:, k].tolist()]) for k, c in enumerate(blind.classes)]
        tables += ["without moving labels", text_table("class", [*blind.members, *stiff], rows)]
    return "\n".join([*facts, "", *tables])


def _gained_by_start(record: TrainingRecord) -> str:
    tried = None if record.refinement is None else record.refinement.start
    return "" if tried is None or tried.gain is None else f", {tried.gain:+.4f} on left-out patients"


def _trained(record: TrainingRecord) -> list[str]:
    """Tell what training recorded; the gates become a column of the table."""
    facts = [record.method] if record.method else []
    facts += [f"{len(record.pairs)} pairs"] if record.pairs else []
    facts += [f"{len(patients(record.groups))} patients"] if record.groups else []
    lines = [f"trained      {', '.join(facts)}"] if facts else []
    if record.predictor_groups:
        lines.append(f"predictor    fitted to {len(record.predictor_groups)} patients")
    if record.refinement is not None and record.refinement.gain is not None:
        lines.append(_gain("refinement", record.refinement.gain))
    columns = None if record.refinement is None else record.refinement.columns
    if columns is not None and columns.gain is not None:
        lines.append(_gain("by structure", columns.gain))
    if record.left_out_gain is not None:
        lines.append(_gain("Dice gain", record.left_out_gain))
    elif record.judged:
        lines.append("Dice gain    none on left-out patients: the columns of the levels are uniform")
    return lines


def _gain(title: str, gain: Gain) -> str:
    mean, low, high = signed([gain.mean, gain.low, gain.high])
    return f"{title:12} {mean} on left-out patients, 95 % interval [{low}, {high}]"


def _decision(gates: Mapping[str, GateRecord], value: int) -> str:
    gate = gates.get(str(value))
    return "-" if gate is None else "learned" if gate.used else "uniform"


def _compared(models: Sequence[Model]) -> list[dict[str, Any]]:
    """Weights by class and member, None where a model lacks either, and the differences from the first model."""
    names = {c: model.class_name(c) for model in reversed(models) for c in model.weights.classes}
    members = list(dict.fromkeys(m for model in models for m in model.weights.members))
    rows = [_difference_row("smoothness", None, [model.weights.pairwise for model in models])]
    rows += [
        _difference_row(names[c], member, [_weight(model, member, c) for model in models])
        for c in sorted(names)
        for member in members
    ]
    return rows


def _difference_row(name: str, member: str | None, weights: Sequence[float | None]) -> dict[str, Any]:
    first = weights[0]
    differences = [None if first is None or w is None else w - first for w in weights[1:]]
    return {"class": name, "member": member, "weights": list(weights), "differences": differences}


def _weight(model: Model, member: str, value: int) -> float | None:
    w = model.weights
    if member not in w.members or value not in w.classes:
        return None
    return float(w.matrix[w.members.index(member), w.classes.index(value)])


def _members(model: Model) -> list[tuple[str, Any]]:
    return list(zip(model.weights.members, model.weights.matrix, strict=True))


def _row_title(row: Mapping[str, Any]) -> str:
    return row["class"] if row["member"] is None else f"{short(row['class'])} {short(row['member'])}"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
