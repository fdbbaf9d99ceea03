"""Training stage of the refinement: weights with the moving labels, and weights without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from regweave.datasets.folds import one_by_one
from regweave.jobs.methods import REFINE
from regweave.kernels.threads import kernel_threads
from regweave.training.candidates import overall
from regweave.training.refinement.members import RefinementWeights, judge_without_mask
from regweave.training.refinement.search import RefinementSearch
from regweave.training.refinement.start import as_started
from regweave.training.state import Predicted, TrainingContext, Weighed
from regweave.types import WeightTable


def weigh_refinement(context: TrainingContext, state: Predicted) -> Weighed:
    """Weigh the members that compare maps and those of the refinement, and settle what holds without moving labels."""
    state = _with_judges(context, state)
    folds = one_by_one(state.judged) if context.options.gate else []
    maps = bool(folds) and _judged_by_fold(context, state)
    before = state
    state, found = RefinementSearch(context, before, folds, maps).run()
    _tell_trust(context, state, found)
    unmasked = state.settings.schedule(state.modality).without_label_members(found.weights)
    if (unmasked.matrix != found.weights.matrix).any():
        blind = RefinementSearch(context, as_started(before, state), folds, maps, predicted=True)
        found = _without_mask(blind, state, found)
    return state.then(Weighed, refinement=found)


def _with_judges(context: TrainingContext, state: Predicted) -> Predicted:
    """Leave pairs out of judging for which no predictor is fitted because its kind is costly."""
    members = state.settings.schedule(state.modality).bank
    kept = tuple(p for p in state.judged if state.candidates.predictors.judges(p))
    if len(kept) == len(state.judged) or not kept or all(m.source == "image" for m in members):
        return state
    text = f"{len(kept)} of {len(state.judged)} pairs judge weights: the patients of the others are in two parts"
    context.log.tell("note", text)
    return replace(state, judged=kept)


def _judged_by_fold(context: TrainingContext, state: Predicted) -> bool:
    """Fit a predictor without its patients for every pair, where a member compares maps; False where none can be."""
    compared = any(m.source != "image" for m in state.settings.schedule(state.modality).bank)
    if not compared or not state.settings.refine.steps:
        return False
    if state.predictor is not None:
        with kernel_threads(context.workers):
            if all(state.candidates.predictors.without(p) is not None for p in state.judged):
                return True
    context.log.tell("note", "too few patients to judge what a predictor makes out: those members stay unused")
    return False


def _without_mask(search: RefinementSearch, state: Predicted, found: RefinementWeights) -> RefinementWeights:
    """Search once more as if there were no moving labels; the better of that and of the weights with them is used."""
    context, pairs = search.context, state.judged
    context.log.tell("mix", f"without moving labels: {2 * len(pairs)} registrations")
    kept = state.settings.schedule(state.modality).without_label_members(found.weights)
    used = state.candidates([(found.weights, pairs)], predicted=True)[0]
    unused = state.candidates([(kept, pairs)], predicted=True)[0]
    judged = judge_without_mask(used, unused, pairs)
    fallback = used if judged["used"] else unused
    _, own = search.run()
    own_used = own.gain is not None and overall(own.scores) > overall(fallback)
    record = {**judged, "mean_dice": overall(fallback)}
    if own.gain is not None:
        record["own"] = {**own.record(), "mean_dice": overall(own.scores), "used": own_used}
    if own_used:
        context.log.tell("mix", f"without moving labels other weights: {overall(own.scores) - overall(fallback):+.4f}")
    blind = _in_settings(own.weights, search.state, state) if own_used else None
    return replace(found, without_mask=record, blind=blind)


def _in_settings(weights: WeightTable, before: Predicted, after: Predicted) -> WeightTable:
    """Return weights whose stiffness counts from the smoothness of other settings."""
    stiffness = np.ones(len(weights.classes)) if weights.stiffness is None else weights.stiffness
    return replace(weights, stiffness=stiffness * (REFINE.get(before.settings) / REFINE.get(after.settings)))


def _tell_trust(context: TrainingContext, state: Predicted, found: RefinementWeights) -> None:
    """Say what each structure came to trust."""
    for c in state.classes if found.columns is not None else ():
        context.log.tell("mix", f"{state.scan.names.get(c, c)} {_trust(found.columns or {}, str(c))}")


def _trust(columns: Mapping[str, Any], structure: str) -> str:
    """Say which factors a structure asks for, and what left-out patients made of it."""
    factors = ", ".join(f"{member} {row[structure]:g}" for member, row in columns["factors"].items())
    gate = columns["gates"].get(structure)
    if gate is None:
        return f"trusts {factors}, as all do"
    return f"trusts {factors}: {gate['gain']:+.4f} left out, {'used' if gate['used'] else 'not used'}"
