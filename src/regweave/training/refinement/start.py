"""Start of the registrations: the structures laid on each other, where left-out patients gain by it.

Between two people a structure may lie farther from its place than the levels search. A model whose predictor tells
structures can begin with them; whether that pays is a question of the data, and left-out patients answer it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regweave.datasets.folds import Fold
from regweave.registration.initial import METHODS, STRUCTURES
from regweave.training.candidates import CHOSEN_ERRORS, Gate, PairScores, gain_interval, gains_over
from regweave.training.refinement.members import RefinementWeights
from regweave.training.state import Predicted, TrainingContext


def may_lay(state: Predicted) -> bool:
    """Tell whether a start from structures can be tried: the settings name another method, not a file."""
    return state.settings.initial in METHODS and state.settings.initial != STRUCTURES


def starting(state: Predicted, initial: str) -> Predicted:
    """Return the state with another start of its registrations."""
    settings = state.settings.model_copy(update={"initial": initial})
    return replace(state, settings=settings, candidates=replace(state.candidates, settings=settings))


def lay_structures(
    context: TrainingContext,
    state: Predicted,
    found: RefinementWeights,
    uniform: PairScores,
    folds: Sequence[Fold],
) -> tuple[Predicted, RefinementWeights]:
    """Try a start from structures with the weights that were found; it must gain by two standard errors.

    Parameters
    ----------
    context : TrainingContext
        Log.
    state : Predicted
        Pairs, settings and candidates.
    found : RefinementWeights
        Weights of the refinement and their scores.
    uniform : PairScores
        Scores of the bank before learning, over which gains count.
    folds : sequence of Fold
        Splits by patient.
    """
    laid = starting(state, STRUCTURES)
    context.log.tell("mix", f"start from structures: {len(state.judged)} registrations")
    scores = laid.candidates([(found.weights, state.judged)])[0]
    gate = Gate.of_patients(gains_over(found.scores, scores, state.judged), state.judged, CHOSEN_ERRORS)
    record: dict[str, Any] = {
        "before": state.settings.initial,
        "used": STRUCTURES if gate.open else state.settings.initial,
        "gain": gate.gain,
        "standard_error": gate.standard_error,
        "n": gate.n,
    }
    context.log.tell("mix", f"start from structures {gate.gain:+.4f}, {'used' if gate.open else 'not used'}")
    if not gate.open:
        return state, replace(found, start=record)
    return laid, replace(found, scores=scores, start=record, gain=gain_interval(uniform, scores, folds))


def as_started(before: Predicted, after: Predicted) -> Predicted:
    """Return a state with the start of another one, and the scores of its bank from there without moving labels."""
    if after.settings.initial == before.settings.initial:
        return before
    state = starting(before, after.settings.initial)
    scores = state.candidates([(before.start, before.judged)], predicted=True)[0]
    return replace(state, uniform={**before.uniform, **scores})
