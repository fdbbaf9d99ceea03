"""Charts of a training, from what its model recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regweave.model.model import Model
from regweave.report._overlay import overlay_chart
from regweave.report._values import listed, mapping, number, records
from regweave.report.charts import bar_chart, interval_plot, line_chart
from regweave.types import Float64Array

HALF = 560.0
"""Width of a chart that shares its row."""


def class_name(model: Model, value: int) -> str:
    """Return the name of a class, or its number."""
    return model.class_names.get(value, "background" if value == 0 else str(value))


def weights(model: Model) -> str:
    """Draw the weights that are used, and those that were learned before the gates, with the spread of the folds."""
    e, w = model.training.to_json(), model.weights
    share, used = number(e.get("share")), _used(model)
    spread = _spread(model)
    of_used = spread * np.array([share * strength(model, c) if c in used else 0.0 for c in w.classes])
    charts = [
        bar_chart(
            _bars(model, w.matrix, of_used), title="Weights of the model by class", y_label="weight",
        )
    ]  # fmt: skip
    learned = _matrix(e.get("learned"), w.matrix.shape)
    if learned is not None:
        title = "Learned on all pairs, before share and gates"
        charts.append(bar_chart(_bars(model, learned, spread), title=title, y_label="weight"))
    n = len(listed(e.get("learned_by_fold")))
    note = f"Whiskers: standard deviation over {n} folds." if n > 1 else "The spread over folds is not recorded."
    return f'{_grid(charts)}<p class="quiet">{note}</p>'


def strength(model: Model, value: int) -> float:
    """Return the factor on the whole column of a class, 1 where none is recorded."""
    return model.training.strength(value)


def _used(model: Model) -> set[int]:
    return {c for c in model.weights.classes if model.training.uses_column(c)}


def _spread(model: Model) -> Float64Array:
    """Return the standard deviation of each learned weight over the folds, (M, C); NaN where there are no two."""
    shape = model.weights.matrix.shape
    found = [m for m in (_matrix(f, shape) for f in model.training.learned_by_fold) if m is not None]
    return np.std(found, axis=0, ddof=1) if len(found) > 1 else np.full(shape, np.nan)


def _matrix(value: object, shape: tuple[int, ...]) -> Float64Array | None:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return matrix if matrix.shape == shape else None


def _bars(model: Model, matrix: Float64Array, spread: Float64Array) -> dict[str, dict[str, tuple[float, float]]]:
    w = model.weights
    names = _distinct([class_name(model, c) for c in w.classes], w.classes)
    return {
        name: {m: (float(matrix[i, k]), float(spread[i, k])) for i, m in enumerate(w.members)}
        for k, name in enumerate(names)
    }


def _distinct(names: Sequence[str], values: Sequence[int]) -> list[str]:
    """Add the label value to names that come twice."""
    return [name if names.count(name) == 1 else f"{name} ({value})" for name, value in zip(names, values, strict=True)]


def gates(model: Model) -> str:
    """Draw the gain of each class with one standard error to each side, as the gate sees it."""
    found = mapping(model.training.to_json().get("gates"))
    rows = []
    for c in model.weights.classes:
        gate = mapping(found.get(str(c)))
        gain, error = number(gate.get("gain")), number(gate.get("standard_error"))
        name = f"{class_name(model, c)}: {'learned' if gate.get('used') else 'uniform'}"
        rows.append((name, gain, gain - error, gain + error))
    return interval_plot(rows, title="Gain on left-out pairs ± one standard error", x_label="Dice, learned − uniform")


def curves(model: Model) -> str:
    """Draw objective, gap and losses of each fit; for a search, the Dice of each candidate."""
    history = {_fit_name(model, k): records(v) for k, v in mapping(model.training.to_json().get("history")).items()}
    fits = {name: rows for name, rows in history.items() if rows and "objective" in rows[0]}
    searches = {name: _points(rows, "mean_dice") for name, rows in history.items() if rows and "mean_dice" in rows[0]}
    charts = []
    if searches:
        charts.append(_half(searches, "Search", "candidate", "mean Dice of training masks"))
    if fits:
        objective = {f"{name}, attained": _points(rows, "objective") for name, rows in fits.items()}
        if len(fits) == 1:  # with more, the chart of the gap alone tells how far the bounds are apart
            objective |= {f"{name}, upper bound": _points(rows, "upper") for name, rows in fits.items()}
        charts.append(_half(objective, "Objective, eq. (7)", "outer iteration", "objective"))
        gap = {name: _points(rows, "duality_gap") for name, rows in fits.items()}
        charts.append(_half(gap, "Duality gap", "outer iteration", "gap", log_y=True))
        losses = {f"{name}, predicted": _points(rows, "predicted_loss") for name, rows in fits.items()}
        losses |= {f"{name}, imputed": _points(rows, "imputed_loss") for name, rows in fits.items()}
        charts.append(_half(losses, "Loss on samples", "outer iteration", "mean loss Δ"))
        slack = {name: _points(rows, "slack_sum") for name, rows in fits.items()}
        charts.append(_half(slack, "Sum of the slacks", "outer iteration", "slack"))
    return _grid(charts)


def surrogate(lines: Sequence[Mapping[str, Any]]) -> str:
    """Draw losses and Dice of the candidates, one above the other by number."""

    def series(keys: Mapping[str, str]) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(i, number(line.get(key))) for i, line in enumerate(lines, start=1)] for name, key in keys.items()
        }

    losses = series({"before learning": "surrogate_uniform", "after": "surrogate_learned"})
    dice = series({"uniform": "dice_uniform", "learned": "dice_learned", "gated": "dice_gated"})
    return _grid(
        [
            _half(losses, "Surrogate loss of the candidates", "candidate", "mean loss Δ"),
            _half(dice, "Dice of left-out masks", "candidate", "mean Dice"),
        ]
    )


def overlays(model: Model) -> str:
    """Draw what was imputed and what is predicted, a picture for each fit."""
    found = mapping(model.training.to_json().get("overlays"))
    return _grid(
        [overlay_chart(mapping(record), title=_fit_name(model, name)) for name, record in found.items() if record]
    )


def smoothness(tuned: Mapping[str, Any]) -> str:
    """Draw the Dice of the uniform bank over the smoothness that was tried, in the levels and elsewhere."""
    parts = {"levels": tuned, **{name: mapping(part) for name, part in tuned.items() if name != "levels"}}
    return _grid([chart for name, part in parts.items() if (chart := _tuning(name, part))])


def _tuning(name: str, tuned: Mapping[str, Any]) -> str:
    rows = records(tuned.get("curve"))
    points = [(math.log10(s), number(r.get("mean_dice"))) for r in rows if (s := number(r.get("smoothness"))) > 0]
    if not points:
        return ""
    taken = number(tuned.get("smoothness"))
    title = f"Uniform bank, {name}: smoothness {taken:.4g} is taken"
    ends = [number(rows[i].get("smoothness")) for i in (0, -1)]
    note = '<p class="warn">The best value is the last one that was tried: the curve has not turned.</p>'
    chart = _half({"training pairs": points}, title, "log₁₀ smoothness", "mean Dice")
    return chart + (note if taken in ends else "")


def _fit_name(model: Model, key: object) -> str:
    """Name a fit: a class by its name, others by the method's word."""
    text = str(key)
    return (
        class_name(model, int(text))
        if text.isdecimal()
        else {"joint": "all classes", "all": "one column"}.get(text, text)
    )


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(number(row.get("number")), number(row.get(key))) for row in rows]


def _half(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, x: str, y: str, *, log_y: bool = False
) -> str:
    return line_chart(series, title=title, x_label=x, y_label=y, log_y=log_y, width=HALF)


def _grid(charts: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(f"<div>{c}</div>" for c in charts)}</div>' if charts else ""
