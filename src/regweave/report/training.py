"""Page of a training: curves, weights, gates, effort and data, from the model file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from regweave.io import atomic_path
from regweave.io.disk.records import DEMO, INDEX
from regweave.measures.statistics import patients_of
from regweave.model.model import Model
from regweave.model.record import Candidate, GateRecord, StageCount, TrainingRecord, Tuning, read_effort
from regweave.registration.guides import FINE
from regweave.report.charts import HALF, STYLE, bar_chart, interval_plot, line_chart
from regweave.report.page import asset, render


def page_path(model: Path) -> Path:
    """Return the path of the page of a model, in the same folder."""
    return model.with_name(f"{model.stem}.report.html")


def write_page(model_path: str | Path) -> Path:
    """Write the page of a model beside it and return its path; seconds are taken from ``<stem>.effort.json``."""
    path = Path(model_path)
    back = (INDEX, "Demo") if (path.parent / DEMO).is_file() else None
    text = page_text(path.name, Model.load(path), read_effort(path), back)
    target = page_path(path)
    with atomic_path(target) as part:
        part.write_text(text, encoding="utf-8")
    return target


def page_text(name: str, model: Model, effort: Mapping[str, StageCount], back: tuple[str, str] | None = None) -> str:
    """Return the page of a model as HTML; ``effort`` has by stage the registrations, inferences and seconds."""
    record, w = model.training, model.weights
    members = () if record.refinement is None else record.refinement.members
    tuned = {"levels": record.smoothness, "refine": record.smoothness and record.smoothness.refine}
    context = {
        "back": back, "name": name, "model": model, "record": record, "recorded": record.model_fields_set,
        "class_name": model.class_name, "stages": _stages(record, effort), "timed": bool(effort),
        "patients": {patient for group in record.groups for patient in patients_of(group)},
        "charts": {  # by section; a list may be empty
            "weights": weights(model),
            "gates": [gates(model)],
            "curves": curves(model),
            "surrogate": surrogate(record.surrogate_and_dice) if record.surrogate_and_dice else [],
            "smoothness": [chart for name, of in tuned.items() if of is not None and (chart := _tuning(name, of))],
        },
        "columns": list(zip(w.classes, w.matrix.T.tolist(), strict=True)),
        "gates": [(c, record.gates.get(str(c), GateRecord())) for c in w.classes] if record.gates else [],
        "members": [(line, {p.get("factor"): p.get("mean_dice") for p in line.curve}) for line in members],
        "factors": sorted({f for line in members for p in line.curve if (f := p.get("factor")) is not None}),
    }  # fmt: skip
    return render("training.j2", context, style=STYLE + asset("training.css"))


def _stages(record: TrainingRecord, effort: Mapping[str, StageCount]) -> dict[str, StageCount]:
    counts: Mapping[str, StageCount] = record.stages or effort
    seconds = {name: of.seconds for name, of in effort.items()}
    costs = {name: of.model_copy(update={"seconds": seconds.get(name)}) for name, of in counts.items()}
    known = [s for s in seconds.values() if s is not None]
    total = sum(known) if known and len(known) == len(seconds) else None
    return {**costs, "all": StageCount(registrations=record.registrations, inferences=record.inferences, seconds=total)}


def weights(model: Model) -> list[Markup]:
    """Draw the weights that are used, and those that were learned before the gates, with the spread of the folds."""
    record, w = model.training, model.weights.lacking(FINE.name)  # guides have no part in the sums of columns
    *folds, learned = (
        np.array(rows, dtype=np.float64) if (len(rows), *{len(row) for row in rows}) == w.matrix.shape else None
        for rows in (*record.learned_by_fold, record.learned)
    )
    found = [fold for fold in folds if fold is not None]
    spread = np.std(found, axis=0, ddof=1) if len(found) > 1 else np.full(w.matrix.shape, np.nan)
    share = math.nan if record.share is None else record.share
    used = [share * record.strength(c) if record.uses_column(c) else 0.0 for c in w.classes]
    names = [model.class_name(c) for c in w.classes]  # those that come twice have the label value too
    names = [n if names.count(n) == 1 else f"{n} ({c})" for n, c in zip(names, w.classes, strict=True)]
    shown = {
        "Weights of the model by class": (w.matrix, spread * used),
        "Learned on all pairs, before share and gates": (learned, spread),
    }
    charts = []
    for title, (matrix, around) in shown.items():
        if matrix is not None:
            pairs = np.stack([matrix, around], axis=-1).tolist()
            bars = {
                name: {m: (row[k][0], row[k][1]) for m, row in zip(w.members, pairs, strict=True)}
                for k, name in enumerate(names)
            }
            charts.append(bar_chart(bars, title=title, x_label="weight"))
    return charts


def gates(model: Model) -> Markup:
    """Draw the gain of each class with one standard error to each side, as the gate sees it."""
    rows = []
    for c in model.weights.classes:
        gate = model.training.gates.get(str(c), GateRecord())
        gain, error = _figures([gate], "gain") + _figures([gate], "standard_error")
        name = f"{model.class_name(c)}: {'learned' if model.training.uses_column(c) else 'uniform'}"
        rows.append((name, gain, gain - error, gain + error))
    return interval_plot(rows, title="Gain on left-out pairs ± one standard error", x_label="Dice, learned − uniform")


def curves(model: Model) -> list[Markup]:
    """Draw objective, gap and losses of each fit."""
    words = {"joint": "all classes", "all": "one column"}
    fits = {
        model.class_name(int(key)) if key.isdecimal() else words.get(key, key): points
        for key, points in model.training.history.items()
        if points
    }
    # With more than one fit, the distance of the bounds is in the chart of the gap alone.
    bounds = {"objective": ", attained"} | ({"upper": ", upper bound"} if len(fits) == 1 else {})
    charts: dict[tuple[str, str], dict[str, str]] = {
        ("Objective, eq. (7)", "objective"): bounds,
        ("Duality gap", "gap"): {"duality_gap": ""},
        ("Loss on samples", "mean loss Δ"): {"predicted_loss": ", predicted", "imputed_loss": ", imputed"},
        ("Sum of the slacks", "slack"): {"slack_sum": ""},
    }  # fmt: skip
    return [
        line_chart(
            {
                fit + ending: list(zip(_figures(points, "number"), _figures(points, key), strict=True))
                for key, ending in lines.items()
                for fit, points in fits.items()
            },
            title=title, x_label="outer iteration", y_label=label, log_y=label == "gap", width=HALF,
        )
        for (title, label), lines in charts.items()
        if fits
    ]  # fmt: skip


def surrogate(candidates: Sequence[Candidate]) -> list[Markup]:
    """Draw losses and Dice of the candidates, one above the other by number."""
    losses = {"surrogate_uniform": "before learning", "surrogate_learned": "after"}
    dice = {"dice_uniform": "uniform", "dice_learned": "learned", "dice_gated": "gated"}
    return [
        line_chart(
            {name: list(enumerate(_figures(candidates, key), start=1)) for key, name in lines.items()},
            title=title, x_label="candidate", y_label=label, width=HALF,
        )
        for title, label, lines in (
            ("Surrogate loss of the candidates", "mean loss Δ", losses), ("Dice of left-out masks", "mean Dice", dice),
        )
    ]  # fmt: skip


def _tuning(name: str, tuned: Tuning) -> Markup:
    """Draw the Dice of the uniform bank over the smoothness that was tried; warn where the curve has not turned."""
    curve = [(at, p.get("mean_dice")) for p in tuned.curve if (at := p.get("smoothness")) is not None]
    points = [(math.log10(at), math.nan if dice is None else dice) for at, dice in curve if at > 0]
    if not points:
        return Markup()
    (taken,) = _figures([tuned], "smoothness")
    title = f"Uniform bank, {name}: smoothness {taken:.4g} is taken"
    series = {"training pairs": points}
    chart = line_chart(series, title=title, x_label="log₁₀ smoothness", y_label="mean Dice", width=HALF)
    note = Markup('<p class="warn">The best value is the last one that was tried: the curve has not turned.</p>')
    return chart + note if tuned.smoothness in (curve[0][0], curve[-1][0]) else chart


def _figures(rows: Iterable[object], key: str) -> list[float]:
    """Return a figure of each row, NaN where there is none."""
    return [float(found) for found in np.array([getattr(row, key) for row in rows], dtype=np.float64)]
