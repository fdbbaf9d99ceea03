"""Training samples of a pair: the cached terms of one level, and the minimisation on them.

Ψ and Δ of a sample are divided by the same number, the nodes where a label can lose anything, so that margins and
energies have the same scale on every grid.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regweave import engines
from regweave.config.settings import Settings
from regweave.energy import joint_features, loss_of, solve
from regweave.registration import devices
from regweave.registration.align import Step, align
from regweave.types import Energy, Float64Array, ImagePair, IntArray, Solution, Terms, WeightTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """The terms of one pair at one level."""

    pair_id: str  # name of the pair in the training set
    level: int  # level of the schedule, 0 the coarsest
    terms: Terms  # costs (M, N, L) float32, shares (N, C) or (N, L, C), loss (N, L)
    scale: int  # number of nodes where a label can lose anything, |V_c|; Ψ and Δ are divided by it

    @property
    def key(self) -> tuple[str, int]:
        """Place in a sorted training set."""
        return (self.pair_id, self.level)

    @property
    def shape(self) -> tuple[int, int]:
        """Members and classes, (M, C)."""
        return (self.terms.costs.shape[0], self.terms.shares.shape[-1])


@dataclass(frozen=True)
class Labelling:
    """A labelling of a sample with its certificate, all on the sample's scale.

    No labelling has w·Ψ + coefficient·Δ below ``lower_bound`` (minus infinity where the engine gives none).
    """

    labels: IntArray
    psi: Float64Array
    delta: float
    value: float
    lower_bound: float


@dataclass(frozen=True)
class Task:
    """One minimisation: of w·Ψ + coefficient·Δ on a sample, never worse than ``init``.

    ``max_iter`` limits the engine's iterations; without it the engine's own limit holds. Without ``proof`` the lower
    bound may be loose.
    """

    sample: Sample
    w: Float64Array
    coefficient: float
    engine: str | engines.Solver
    init: IntArray | None = None
    max_iter: int | None = None
    proof: bool = True


def infer(task: Task) -> Labelling:
    """Minimise w·Ψ(D) + coefficient·Δ(D): predict (0), impute (+η, eq. 9) or violate (−1, eq. 11).

    All three are `regweave.energy.solve`, the minimisation by which `align` registers.
    """
    sample = task.sample
    weights = WeightTable.from_vector(task.w, ("",) * sample.shape[0], tuple(range(sample.shape[1])))
    constant = 0.0

    def minimise(energy: Energy) -> Solution:
        # Engines stop at a gap relative to the energy: without its constant part, the same stop is a smaller gap.
        nonlocal constant
        least = energy.unary.min(axis=1)
        constant = float(least.sum())
        reduced = replace(energy, unary=energy.unary - least[:, None])
        return engines.solver(task.engine)(reduced, task.init, task.max_iter, proof=task.proof)

    solution = solve(sample.terms, weights, minimise, task.coefficient, tie_break=0.0)
    features, loss = psi(sample, solution.labels), delta(sample, solution.labels)
    value = float((task.w * features).sum()) + task.coefficient * loss
    bound = (solution.lower_bound + constant) / sample.scale
    return Labelling(solution.labels, features, loss, value, min(bound, value))


def psi(sample: Sample, labels: IntArray) -> Float64Array:
    """Ψ of a labelling, (M·C + 1,), in the order of `WeightTable.as_vector`."""
    return joint_features(sample.terms, labels) / sample.scale


def delta(sample: Sample, labels: IntArray) -> float:
    """Δ of a labelling: its loss per node that can lose."""
    return loss_of(sample.terms, labels) / sample.scale


def can_lose(terms: Terms) -> NDArray[np.bool_]:
    """V_c: nodes with a loss for some label, (N,)."""
    if terms.loss is None:
        raise ValueError("these terms hold no loss; give both label maps")
    return np.asarray((terms.loss != 0).any(axis=1))


def restrict(terms: Terms) -> Terms:
    """Keep costs and loss on V_c only and give all nodes one class: the terms of eqs. (4) to (6)."""
    kept = can_lose(terms)
    shares = np.ones((len(kept), 1), dtype=np.float32)
    return replace(terms, costs=terms.costs * kept[:, None].astype(np.float32), shares=shares)


def first_steps(
    pair: ImagePair, weights: WeightTable, schedule: Settings, coarse: WeightTable | None = None, device: str = "cpu"
) -> list[Step]:
    """Take each level's first step along the trajectory of some weights, as in `align`.

    No sample is taken after the first step of the last level, so the loop ends there.
    """
    last = schedule.levels[-1].model_copy(update={"steps": 1})
    shorter = schedule.model_copy(update={"levels": (*schedule.levels[:-1], last)})
    steps: list[Step] = []
    align(
        pair, weights, shorter, coarse=coarse, device=devices.get(device),
        on_step=lambda s: steps.append(s) if s.step == 0 else None,
    )  # fmt: skip
    return steps


def samples_at(
    pair_id: str, steps: Sequence[Step], structures: Sequence[int] | None, *, one_class: bool = False
) -> list[Sample]:
    """Make the samples of some structures from the first steps of a pair, one for each level where a label can lose.

    The steps of `first_steps` serve any structures, because the loss has no part in the trajectory; without a choice
    all structures of the moving labels count. ``one_class`` restricts the terms to their nodes, to learn one column.
    """
    samples = []
    for step in steps:
        terms = replace(step.terms, loss=step.loss(structures))
        n_nodes = int(can_lose(terms).sum())
        if n_nodes == 0:
            logger.warning("pair %s has no loss at level %d for any label; the sample is left out", pair_id, step.level)
            continue
        samples.append(Sample(pair_id, step.level, restrict(terms) if one_class else terms, n_nodes))
    return samples
