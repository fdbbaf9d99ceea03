"""Training stage of the refinement: member weights, smoothness, and columns by structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from regweave.datasets.folds import Fold, one_by_one
from regweave.jobs.methods import REFINE, best_of, next_values
from regweave.kernels.threads import kernel_threads
from regweave.training.candidates import PairScores, overall, tuning_record
from regweave.training.refinement.columns import weigh_by_structure
from regweave.training.refinement.members import (
    FACTORS,
    MAP_FACTORS,
    RefinementWeights,
    judge_without_mask,
    mix_refinement,
)
from regweave.training.state import Predicted, TrainingContext, Weighed
from regweave.types import WeightTable


def weigh_refinement(context: TrainingContext, state: Predicted) -> Weighed:
    """Weigh the members of the refinement, tune its smoothness again, and settle what holds without moving labels."""
    state = _with_judges(context, state)
    folds = one_by_one(state.judged) if context.options.gate else []
    found = _search_weights(context, state, folds)
    if found.gain is not None:
        state, found = _retune(context, state, found)
    if found.curves:
        found = _by_structure(context, state, found, folds)
    unmasked = state.settings.schedule(state.modality).without_label_members(found.weights)
    if (unmasked.matrix != found.weights.matrix).any():
        context.log.tell("mix", f"without moving labels: {2 * len(state.judged)} registrations")
        used = state.candidates([(found.weights, state.judged)], predicted=True)[0]
        unused = state.candidates([(unmasked, state.judged)])[0]
        found = replace(found, without_mask=judge_without_mask(used, unused, state.judged))
    return state.then(Weighed, refinement=found)


def _with_judges(context: TrainingContext, state: Predicted) -> Predicted:
    """Leave pairs out of judging for which no predictor is fitted because its kind is costly."""
    members = state.settings.schedule(state.modality).continuous
    kept = tuple(p for p in state.judged if state.candidates.predictors.judges(p))
    if len(kept) == len(state.judged) or not kept or all(m.source == "image" for m in members):
        return state
    text = f"{len(kept)} of {len(state.judged)} pairs judge weights: the patients of the others are in two parts"
    context.log.tell("note", text)
    return replace(state, judged=kept)


def _search_weights(context: TrainingContext, state: Predicted, folds: Sequence[Fold]) -> RefinementWeights:
    """Try other weights where there is a refinement; learned members only where every pair can be judged."""
    members = [m for m in state.settings.schedule(state.modality).continuous if m.stage == "refine"]
    uniform = {p.id: state.uniform[p.id] for p in state.judged}
    if not state.settings.refine.steps:
        return RefinementWeights(state.start, uniform)
    if any(m.source != "image" for m in members) and not _fitted_by_fold(context, state):
        members = [m for m in members if m.source == "image"]
        context.log.tell("note", "too few patients to judge what a predictor makes out: those members stay unused")

    def register(weights: Sequence[WeightTable]) -> list[PairScores]:
        context.log.tell("mix", f"members of the refinement: {len(weights) * len(state.judged)} registrations")
        return state.candidates([(w, state.judged) for w in weights])

    factors = {m.name: FACTORS if m.source == "image" else MAP_FACTORS for m in members}
    return mix_refinement(state.start, uniform, factors, folds, register)


def _fitted_by_fold(context: TrainingContext, state: Predicted) -> bool:
    """Fit a predictor without its patients for every pair; False where too little is left to learn from."""
    if state.predictor is None:
        return False
    with kernel_threads(context.workers):
        return all(state.candidates.predictors.without(p) is not None for p in state.judged)


def _retune(
    context: TrainingContext, state: Predicted, weighed: RefinementWeights
) -> tuple[Predicted, RefinementWeights]:
    """Tune the smoothness of the refinement once more where its members changed: other forces, other balance."""
    here = REFINE.get(state.settings)
    scores = {here: weighed.scores}
    found = {here: overall(weighed.scores)}
    while tried := next_values(REFINE.values(state.settings), found):
        for value in tried:
            context.log.tell("mix", f"smoothness of the refinement: {len(state.judged)} registrations")
            other = replace(state.candidates, settings=REFINE.set(state.settings, value))
            scores[value] = other([(weighed.weights, state.judged)])[0]
            found[value] = overall(scores[value])
        found = dict(sorted(found.items()))
    best = best_of(found)
    settings = REFINE.set(state.settings, best)
    candidates = replace(state.candidates, settings=settings)
    record = tuning_record(best, found)
    return (
        replace(state, settings=settings, candidates=candidates),
        replace(weighed, scores=scores[best], smoothness=record),
    )


def _by_structure(
    context: TrainingContext, state: Predicted, found: RefinementWeights, folds: Sequence[Fold]
) -> RefinementWeights:
    """Try columns of each structure's own, and say what each came to trust."""

    def left_out(models: Sequence[Sequence[WeightTable]]) -> list[PairScores]:
        context.log.tell("mix", f"weights by structure: {len(models) * len(folds)} registrations")
        return state.candidates.left_out(folds, models)

    def register(weights: Sequence[WeightTable]) -> list[PairScores]:
        return state.candidates([(w, state.judged) for w in weights])

    found = weigh_by_structure(found, state.judged, folds, left_out, register)
    assert found.columns is not None
    for c in state.classes:
        context.log.tell("mix", f"{state.scan.names.get(c, c)} {_trust(found.columns, str(c))}")
    return found


def _trust(columns: Mapping[str, Any], structure: str) -> str:
    """Say which factors a structure asks for, and what left-out patients made of it."""
    factors = ", ".join(f"{member} {row[structure]:g}" for member, row in columns["factors"].items())
    gate = columns["gates"].get(structure)
    if gate is None:
        return f"trusts {factors}, as all do"
    return f"trusts {factors}: {gate['gain']:+.4f} left out, {'used' if gate['used'] else 'not used'}"
