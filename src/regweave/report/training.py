"""Page of a training: curves, weights, gates, effort and data, from the model file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from regweave.io import atomic_path
from regweave.io.records.effort import StageCost, read_effort
from regweave.io.records.folders import DEMO, INDEX
from regweave.measures.statistics import patients_of
from regweave.model.model import Model
from regweave.model.record import GateRecord, StageCount, TrainingRecord
from regweave.report.charts import STYLE
from regweave.report.charts import training as charts
from regweave.report.page import asset, render


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
    back = (INDEX, "Demo") if (path.parent / DEMO).is_file() else None
    text = page_text(path.name, Model.load(path), read_effort(path), back)
    target = page_path(path)
    with atomic_path(target) as part:
        part.write_text(text, encoding="utf-8")
    return target


def page_text(name: str, model: Model, effort: Mapping[str, StageCost], back: tuple[str, str] | None = None) -> str:
    """Return the page of a model as HTML; ``effort`` has by stage the registrations, inferences and seconds."""
    record, w = model.training, model.weights
    members = () if record.refinement is None else record.refinement.members
    context = {
        "back": back,
        "name": name,
        "model": model,
        "record": record,
        "recorded": record.model_fields_set,
        "class_name": partial(charts.class_name, model),
        "patients": {patient for group in record.groups for patient in patients_of(group)},
        "charts": charts.of_model(model),
        "columns": list(zip(w.classes, w.matrix.T.tolist(), strict=True)),
        "gates": [(c, record.gates.get(str(c), GateRecord())) for c in w.classes] if record.gates else [],
        "members": [(line, {p.factor: p.mean_dice for p in line.curve}) for line in members],
        "factors": sorted({p.factor for line in members for p in line.curve if p.factor is not None}),
        "stages": _stages(record, effort),
        "timed": bool(effort),
    }
    return render("training.j2", context, style=STYLE + asset("training.css"))


def _stages(record: TrainingRecord, effort: Mapping[str, StageCost]) -> dict[str, StageCost]:
    """Return the counts and seconds of each stage, and of all together."""
    counts: Mapping[str, StageCount | StageCost] = record.stages or effort
    costs = {
        name: StageCost(
            registrations=of.registrations,
            inferences=of.inferences,
            seconds=effort[name].seconds if name in effort else None,
        )
        for name, of in counts.items()
    }
    seconds = [of.seconds for of in effort.values()]
    total = sum(s for s in seconds if s is not None) if seconds and None not in seconds else None
    return {**costs, "all": StageCost(registrations=record.registrations, inferences=record.inferences, seconds=total)}
