"""Page of a training: curves, weights, gates, effort and data, from the model file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from markupsafe import Markup

from regweave.io import atomic_path
from regweave.io.disk.records import DEMO, INDEX
from regweave.measures.statistics import patients_of
from regweave.model.model import Model
from regweave.model.record import Candidate, FitPoint, GateRecord, StageCount, TrainingRecord, Tuning, read_effort
from regweave.registration.guides import FINE
from regweave.report.charts import HALF, STYLE, bar_chart, interval_plot, line_chart
from regweave.report.page import asset, render
from regweave.types import Float64Array


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
    costs = {
        name: of.model_copy(update={"seconds": effort[name].seconds if name in effort else None})
        for name, of in counts.items()
    }
    seconds = [of.seconds for of in effort.values()]
    total = sum(s for s in seconds if s is not None) if seconds and None not in seconds else None
    return {**costs, "all": StageCount(registrations=record.registrations, inferences=record.inferences, seconds=total)}


Series = Mapping[str, Sequence[tuple[float, float]]]


def weights(model: Model) -> list[Markup]:
    """Draw the weights that are used, and those that were learned before the gates, with the spread of the folds."""
    model = replace(model, weights=model.weights.lacking(FINE.name))  # guides have no part in the sums of columns
    record, w = model.training, model.weights
    found = [m for m in (_matrix(f, w.matrix.shape) for f in record.learned_by_fold) if m is not None]
    spread = np.std(found, axis=0, ddof=1) if len(found) > 1 else np.full(w.matrix.shape, np.nan)
    used = [_number(record.share) * record.strength(c) if record.uses_column(c) else 0.0 for c in w.classes]
    charts = [bar_chart(_bars(model, w.matrix, spread * used), title="Weights of the model by class", x_label="weight")]
    learned = _matrix(record.learned, w.matrix.shape)
    if learned is not None:
        title = "Learned on all pairs, before share and gates"
        charts.append(bar_chart(_bars(model, learned, spread), title=title, x_label="weight"))
    return charts


def _matrix(rows: Sequence[Sequence[float | None]], shape: tuple[int, ...]) -> Float64Array | None:
    if (len(rows), *{len(row) for row in rows}) != shape:
        return None
    return np.array(rows, dtype=np.float64)


def _bars(model: Model, matrix: Float64Array, spread: Float64Array) -> dict[str, dict[str, tuple[float, float]]]:
    w = model.weights
    names = [model.class_name(c) for c in w.classes]
    return {  # names that come twice have the label value too
        name if names.count(name) == 1 else f"{name} ({w.classes[k]})": {
            m: (float(matrix[i, k]), float(spread[i, k])) for i, m in enumerate(w.members)
        }
        for k, name in enumerate(names)
    }


def gates(model: Model) -> Markup:
    """Draw the gain of each class with one standard error to each side, as the gate sees it."""
    rows = []
    for c in model.weights.classes:
        gate = model.training.gates.get(str(c))
        gain, error = (math.nan, math.nan) if gate is None else (_number(gate.gain), _number(gate.standard_error))
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
    if not fits:
        return []
    # With more than one fit, the distance of the bounds is in the chart of the gap alone.
    bounds = {"objective": ", attained", **({"upper": ", upper bound"} if len(fits) == 1 else {})}
    losses = {"predicted_loss": ", predicted", "imputed_loss": ", imputed"}
    return [
        _half(_lines(fits, **bounds), "Objective, eq. (7)", "outer iteration", "objective"),
        _half(_lines(fits, duality_gap=""), "Duality gap", "outer iteration", "gap", log_y=True),
        _half(_lines(fits, **losses), "Loss on samples", "outer iteration", "mean loss Δ"),
        _half(_lines(fits, slack_sum=""), "Sum of the slacks", "outer iteration", "slack"),
    ]


def surrogate(candidates: Sequence[Candidate]) -> list[Markup]:
    """Draw losses and Dice of the candidates, one above the other by number."""

    def series(**names: str) -> Series:
        return {name: list(enumerate(_numbers(candidates, key), start=1)) for key, name in names.items()}

    losses = series(surrogate_uniform="before learning", surrogate_learned="after")
    dice = series(dice_uniform="uniform", dice_learned="learned", dice_gated="gated")
    return [
        _half(losses, "Surrogate loss of the candidates", "candidate", "mean loss Δ"),
        _half(dice, "Dice of left-out masks", "candidate", "mean Dice"),
    ]


def _tuning(name: str, tuned: Tuning) -> Markup:
    """Draw the Dice of the uniform bank over the smoothness that was tried; warn where the curve has not turned."""
    curve = [(at, _number(p.get("mean_dice"))) for p in tuned.curve if (at := p.get("smoothness")) is not None]
    points = [(math.log10(smoothness), dice) for smoothness, dice in curve if smoothness > 0]
    if not points:
        return Markup()
    title = f"Uniform bank, {name}: smoothness {_number(tuned.smoothness):.4g} is taken"
    chart = _half({"training pairs": points}, title, "log₁₀ smoothness", "mean Dice")
    note = Markup('<p class="warn">The best value is the last one that was tried: the curve has not turned.</p>')
    return chart + note if tuned.smoothness in (curve[0][0], curve[-1][0]) else chart


def _lines(fits: Mapping[str, Sequence[FitPoint]], **names: str) -> Series:
    """Return a line for each figure and each fit; ``names`` has the text after the name of the fit."""
    return {
        fit + ending: list(zip(_numbers(points, "number"), _numbers(points, key), strict=True))
        for key, ending in names.items()
        for fit, points in fits.items()
    }


def _numbers(rows: Iterable[object], key: str) -> list[float]:
    return [_number(getattr(row, key)) for row in rows]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _half(series: Series, title: str, x: str, y: str, *, log_y: bool = False) -> Markup:
    return line_chart(series, title=title, x_label=x, y_label=y, log_y=log_y, width=HALF)
