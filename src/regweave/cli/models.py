"""Commands on models: train one, list and compare them, find one that fits an image, record a domain."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regweave.cli import options as opt
from regweave.cli.app import command_line, resumable, usual
from regweave.cli.tables import short, text_table
from regweave.errors import UsageError
from regweave.io import require_absent
from regweave.jobs.workers import Cluster
from regweave.model import shipped_models
from regweave.model.model import Model, card_text, models, patients, predictor_facts, predictor_text, signed
from regweave.model.record import TrainingRecord, effort_path, write_effort
from regweave.progress import TrainingBar
from regweave.registration.initial import STRUCTURES
from regweave.report import training
from regweave.run.read import Reading
from regweave.run.resolve import misfits
from regweave.training.options import TrainJob, train_table
from regweave.training.run import train as workflow
from regweave.types import WeightTable

ModelArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Model files, or names of shipped models.", metavar="MODEL.json...", autocompletion=opt.complete_model
    ),
]

app = command_line()
group = command_line(help="List the models of the package, find one that fits an image, show or compare weights.")
app.add_typer(group, name="models")


@group.add("regweave models list", name="list")
def list_(*, as_json: opt.Json = False) -> None:
    """List the models that come with the package, one line each; `regweave models show NAME` has the card."""
    shipped = models()
    if as_json:
        content = [{"name": name, **as_dict(Path(name), model)} for name, model in shipped.items()]
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    for name, model in shipped.items():
        part, images = ("", model.modality) if model.card is None else (model.card.body_part, model.card.images)
        print(f"{name:<16}{part}: {images}")
    print("(default)       no model; `--model NAME` uses one")


@group.add("regweave models show weights.json")
def show(models: ModelArgument, *, as_json: opt.Json = False) -> None:
    """Print the card of each model, the weight of each member for each class, and the record of the training."""
    read = {path: Model.load(path) for path in models}
    content = [as_dict(path, model) for path, model in read.items()]
    cards = {path: [] if model.card is None else [card_text(str(path), model)] for path, model in read.items()}
    text = "\n\n".join("\n\n".join([*cards[path], as_text(path, model)]) for path, model in read.items())
    print(json.dumps(content, indent=1, ensure_ascii=False) if as_json else text)


@group.add("regweave models compare mine.json theirs.json")
def compare(models: ModelArgument, *, as_json: opt.Json = False) -> None:
    """Print the weights of two or more models side by side, with the differences from the first."""
    if len(models) < 2:
        raise UsageError("E192", "one model is given, comparing needs two or more", "name another MODEL.json")
    read = [Model.load(path) for path in models]
    named = {c: model.class_name(c) for model in reversed(read) for c in model.weights.classes}
    members = dict.fromkeys(m for model in read for m in model.weights.members)
    found: list[tuple[str, str | None, list[float | None]]] = [
        ("smoothness", None, [model.weights.pairwise for model in read]),
        *((named[c], m, [_weight(model, m, c) for model in read]) for c in sorted(named) for m in members),
    ]
    rows: list[dict[str, Any]] = []
    for name, member, weights in found:  # None where a model lacks a class or member
        apart = [None if weights[0] is None or w is None else w - weights[0] for w in weights[1:]]
        rows.append({"class": name, "member": member, "weights": weights, "differences": apart})
    if as_json:
        content = {"models": [str(path) for path in models], "rows": rows}
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    for number, path in enumerate(models, start=1):
        print(f"{number}  {path}")
    names = [str(n) for n in range(1, len(models) + 1)]
    header = [*names, *(f"{n}-1" for n in names[1:])]
    lines = [
        (
            f"{short(row['class'])} {short(row['member'] or '')}".strip(),
            [_cell(v) for v in row["weights"]] + signed(row["differences"]),
        )
        for row in rows
    ]
    print("\n" + text_table("class member", header, lines))


@group.add("regweave models suggest t1.nii.gz", "regweave models suggest ct.nii.gz mine.json")
def suggest(
    image: Annotated[Path, typer.Argument(help="Image to be registered.", metavar="IMAGE")],
    models: Annotated[list[Path] | None, typer.Argument(help="Own models to consider too.", metavar="MODEL...")] = None,
    *,
    as_json: opt.Json = False,
) -> None:
    """Print which models fit an image by field of view, voxels and intensities, and why others do not."""
    found = misfits([Reading().image(image)], {**shipped_models(), **{str(path): path for path in models or ()}})
    if as_json:
        print(json.dumps([{"model": name, "fits": not why, "reasons": why} for name, why in found.items()], indent=1))
        return
    for name, why in found.items():
        print(f"{name:<16}{'no: ' + '; '.join(why) if why else 'fits'}")
    if all(found.values()):
        print("(default)       no model fits; leave --model out")


def as_dict(path: Path, model: Model) -> dict[str, Any]:
    """Return the weights, the card and the evidence of a model as JSON values."""
    w = model.weights
    rows = zip(w.members, w.matrix.tolist(), strict=True)
    return {
        "file": str(path), "card": None if model.card is None else model.card.model_dump(), "modality": model.modality,
        "domain": None if model.domain is None else model.domain.model_dump(mode="json"),
        "classes": {str(c): model.class_name(c) for c in w.classes}, "members": list(w.members),
        "weights": {member: dict(zip(map(str, w.classes), row, strict=True)) for member, row in rows},
        "pairwise": w.pairwise,
        "stiffness": None if w.stiffness is None else dict(zip(map(str, w.classes), w.stiffness.tolist(), strict=True)),
        "predictor": None if model.predictor is None else predictor_facts(model.predictor),
        "evidence": model.training.to_json(),
    }  # fmt: skip


def as_text(path: Path, model: Model) -> str:
    """Format one model: the record of its training, then a line for each class."""
    w, gates, record = model.weights, model.training.gates, model.training
    decisions = {value: "learned" if gate.used else "uniform" for value, gate in gates.items()}
    header, lines = _weight_rows(model, w)
    if gates:
        header.append("gate")
        lines = [(name, [*row, decisions.get(str(c), "-")]) for (name, row), c in zip(lines, w.classes, strict=True)]
    facts = [f"{path}: weights for {model.modality}", f"smoothness   {w.pairwise:.6g}", *_trained(record)]
    if model.predictor is not None:
        facts.append(f"structures   without labels by a {predictor_text(model)}")
    if model.settings.initial == STRUCTURES:
        tried = None if record.refinement is None else record.refinement.start
        gain = "" if tried is None or tried.gain is None else f", {tried.gain:+.4f} on left-out patients"
        facts.append(f"start        structures laid on each other{gain}")
    if not model.outline_without_mask:
        facts.append("without mask members that compare the moving labels are left out")
    tables = [text_table("class", header, lines)]
    if model.weights_without_mask is not None:
        tables += ["without moving labels", text_table("class", *_weight_rows(model, model.weights_without_mask))]
    return "\n".join([*facts, "", *tables])


def _weight_rows(model: Model, w: WeightTable) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the header and the rows of a table of weights, with the stiffness where classes differ in it."""
    rows = [(model.class_name(c), [_cell(v) for v in w.matrix[:, k].tolist()]) for k, c in enumerate(w.classes)]
    if w.stiffness is None:
        return list(w.members), rows
    rows = [(name, [*cells, f"{s:.4g}"]) for (name, cells), s in zip(rows, w.stiffness.tolist(), strict=True)]
    return [*w.members, "stiffness"], rows


def _trained(record: TrainingRecord) -> list[str]:
    """Return the facts of a training as lines; the gates are a column of the table."""
    refinement = record.refinement
    facts = [record.method] if record.method else []
    facts += [f"{len(record.pairs)} pairs"] if record.pairs else []
    facts += [f"{len(patients(record.groups))} patients"] if record.groups else []
    lines = [f"trained      {', '.join(facts)}"] if facts else []
    if record.predictor_groups:
        lines.append(f"predictor    fitted to {len(record.predictor_groups)} patients")
    columns, guides = (None if one is None else one.columns for one in (refinement, record.guides))
    gains = {
        "refinement": None if refinement is None else refinement.gain,
        "by structure": None if columns is None else columns.gain,
        "guides": None if guides is None else guides.gain,
        "Dice gain": record.left_out_gain,
    }
    for title, gain in gains.items():
        if gain is not None:
            mean, low, high = signed([gain.mean, gain.low, gain.high])
            lines.append(f"{title:12} {mean} on left-out patients, 95 % interval [{low}, {high}]")
    if record.left_out_gain is None and record.judged:
        lines.append("Dice gain    none on left-out patients: the columns of the levels are uniform")
    return lines


def _weight(model: Model, member: str, value: int) -> float | None:
    w = model.weights
    if member not in w.members or value not in w.classes:
        return None
    return float(w.matrix[w.members.index(member), w.classes.index(value)])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


CLUSTER = ("tls_ca", "tls_cert", "tls_key", "wait_for_workers")
OTHERS = (*CLUSTER, "metrics", "loss", "nifti_frame", "nonfinite", "follow_links")
"""Keys of the table ``[train]`` beside the options of a training."""
TYPED = (
    "pairs", "output", "preset", "config", "method", "classes", "folds", "predictor", "workers", "scheduler", "device",
    "resume", "overwrite", "label_names", "fixed_modality", "moving_modality",
)  # fmt: skip
"""Options of a training that the command line has."""


@app.add(
    "regweave train train.csv -o weights.json",
    "regweave train train.csv -o weights.json --classes 1,2 --workers 8",
    "regweave train train.csv -o weights.json --resume",
    "regweave train train.csv -o weights.zip --predictor auto",
    cls=usual("output resume overwrite preset config method classes folds label_names predictor workers device quiet"),
)
@partial(opt.from_fields, only=TYPED)
def train(
    job: TrainJob,
    *,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML page.")] = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learn weights of metrics by structure, from masks alone; write a model and its page.

    A learned weight is used, structure by structure, only where it raised the
    Dice of warped masks of patients that were left out. The list has the
    columns id, fixed, moving, fixed_labels and moving_labels. Optional:
    group (the patients of a pair, with + between them), fixed_mask and
    moving_mask (regions that count). The table ``train`` of the settings has
    more options; `regweave presets show default` prints all.
    """
    shown, output = TrainingBar(lines=True, shown=not quiet), Path(str(job.output))
    beside = [] if no_report else [effort_path(output), training.page_path(output)]
    for path in beside:
        require_absent(path, overwrite=job.overwrite)
    options = train_table(None if job.config is None else Path(str(job.config)), OTHERS)
    secured = {name: options.pop(name) for name in CLUSTER if name in options} | {"scheduler": job.scheduler}
    cluster = Cluster(**secured).asked()
    typed = {name: getattr(job, name) for name in TYPED} | {"classes": opt.parse_values(job.classes)}
    options |= {name: value for name, value in typed.items() if value is not None} | {"scheduler": cluster}
    with resumable(), shown:
        model = workflow(**options, on_progress=shown)
    if not no_report:
        write_effort(output, shown.stages)
        page = training.write_page(output)
        if not quiet:
            print(f"page {page}", file=sys.stderr)
    if as_json:
        print(json.dumps(as_dict(output, model), indent=1, ensure_ascii=False))
    elif not quiet:
        print(as_text(output, model))
