"""Coarse-to-fine discrete registration: the only loop over levels in the program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regweave import losses
from regweave.config.settings import Level, Schedule
from regweave.energy.assemble import assemble
from regweave.energy.cost_volume import cost_volume, fit_scales
from regweave.kernels import costs, fields
from regweave.registration.scene import Scene
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.label_set import LabelSet
from regweave.spatial.node_classes import RULES, one_hot
from regweave.spatial.pyramid import change_level
from regweave.spatial.warp import to_voxels
from regweave.types import (
    Float32Array,
    Float64Array,
    Geometry,
    ImagePair,
    IntArray,
    Solution,
    Terms,
    WeightTable,
)

VALID_SHARE = 0.25
"""Nodes with less than this fraction of valid voxels in their support get zero unary cost."""


@dataclass(frozen=True)
class Step:
    """One refinement step, with its evidence.

    ``terms`` and ``solution`` are what a learner needs; they are not kept by `align`. ``grid`` lies on ``geometry``,
    the fixed image's grid at this level.
    """

    level: int
    step: int
    spacing_mm: float
    terms: Terms
    solution: Solution
    seconds: Mapping[str, float]
    grid: ControlGrid
    geometry: Geometry


@dataclass(frozen=True)
class StepRecord:
    """Record of a step: its certificate and its cost."""

    level: int
    step: int
    spacing_mm: float
    n_nodes: int
    n_labels: int
    energy: float
    lower_bound: float
    gap: float
    iterations: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Alignment:
    """Result of the discrete levels: a displacement in voxels of the fixed image (3, X, Y, Z), and the record."""

    displacement: Float32Array
    steps: Sequence[StepRecord]


def align(
    pair: ImagePair,
    weights: WeightTable,
    schedule: Schedule,
    *,
    coarse: WeightTable | None = None,
    on_step: Callable[[Step], None] | None = None,
    with_loss: bool = False,
) -> Alignment:
    """Minimise w·Ψ(x, D), eq. (2), over deformations D, coarse to fine.

    Parameters
    ----------
    pair : ImagePair
        Images, and label maps where classes or the loss need them.
    weights : WeightTable
        W and the pairwise weight; its rows are the members of the schedule's bank, of which those of the discrete
        levels are used.
    schedule : Schedule
        Levels, bank, engine and class rule.
    coarse : WeightTable, optional
        Weights of all levels but the last, where these differ.
    on_step : callable, optional
        Called with every `Step`.
    with_loss : bool
        Measure the loss of every label too, for a learner that looks at the terms.
    """
    _check(pair, (weights, coarse or weights), schedule, with_loss)
    names = tuple(m.name for m in schedule.discrete)
    fine, coarse = weights.select(names), (coarse or weights).select(names)
    scene = Scene.whole(pair, schedule)
    minimize = schedule.solver
    u, records = _start(pair), []
    for number, level in enumerate(schedule.levels_for(pair.fixed.geometry)):
        weights = fine if number == len(schedule.levels) - 1 else coarse
        coarser, scene = scene, scene.at(level)
        u = change_level(u, coarser.factors, scene.factors, scene.geometry.shape)
        grid = ControlGrid.cover(scene.geometry, level.spacing_mm, level.support)
        scales = None
        for step in range(level.steps):
            clock = _Clock()
            labels = label_set(level, grid, step)
            terms, scales = measure(scene, u, grid, labels, weights, schedule, scales, with_loss)
            clock.lap("costs")
            solution = minimize(assemble(terms, weights))
            clock.lap("inference")
            u = fields.compose(u, increment(grid, labels, solution.labels))  # φ ← φ ∘ (id + d)
            clock.lap("compose")
            done = Step(number, step, level.spacing_mm, terms, solution, clock.laps, grid, scene.geometry)
            records.append(_record(done))
            if on_step is not None:
                on_step(done)
    u = change_level(u, scene.factors, (1, 1, 1), pair.fixed.geometry.shape)
    return Alignment(u, tuple(records))


def label_set(level: Level, grid: ControlGrid, step: int) -> LabelSet:
    """Labels of a step: the range shrinks from step to step."""
    return LabelSet.cube(level.labels_per_axis, level.first_step * level.step_decay**step * grid.spacing)


def increment(grid: ControlGrid, labels: LabelSet, chosen: IntArray) -> Float32Array:
    """Dense displacement in voxels of the free-form deformation whose control points took these labels."""
    coefficients = labels.vectors[chosen].T.reshape(3, *grid.nodes).astype(np.float32)
    return np.asarray(
        fields.ffd(np.ascontiguousarray(coefficients), tuple(grid.origin), tuple(grid.spacing), grid.image_shape)
    )


def measure(
    scene: Scene,
    u: Float32Array,
    grid: ControlGrid,
    labels: LabelSet,
    weights: WeightTable,
    schedule: Schedule,
    scales: Float64Array | None,
    needs_loss: bool,
) -> tuple[Terms, Float64Array]:
    """Cost volumes, class shares and loss around the current estimate u."""
    costs = cost_volume(scene.compare(schedule.discrete, u), grid, labels)
    if scales is None:
        scales = fit_scales(costs)
    costs *= (1 / scales).astype(np.float32)[:, None, None]
    valid = scene.valid(u)
    if not valid.all():
        costs[:, grid.pool(valid) < VALID_SHARE] = 0
    terms = Terms(
        costs=costs,
        shares=_class_shares(scene, u, grid, labels, weights, schedule),
        shape=grid.nodes,
        offsets=labels.in_units_of(grid.spacing),
        loss=_loss(scene, u, grid, labels, schedule) if needs_loss else None,
        base=_node_displacements(u, grid) if schedule.pairwise == "elastic" else None,
    )
    return terms, scales


def _class_shares(
    scene: Scene, u: Float32Array, grid: ControlGrid, labels: LabelSet, weights: WeightTable, schedule: Schedule
) -> Float32Array:
    """Columns of W that each node uses, (N, C), or each label of it, (N, L, C)."""
    if scene.pair.moving_labels is None or len(weights.classes) == 1:
        shares = np.zeros((grid.n_nodes, len(weights.classes)), dtype=np.float32)
        shares[:, 0] = 1
        return shares
    rule = RULES[schedule.class_rule]
    masks = one_hot(scene.moved_labels(u), weights.classes)
    box = grid.with_support(tuple(round(edge * schedule.class_reach) for edge in grid.support))
    if schedule.class_at == "anchored":
        return rule(box.pool(masks).T)
    displaced = [costs.mean_volume(m[None], m[None], *box.support_arguments, *labels.offsets) for m in masks]
    return rule(np.stack(displaced, axis=-1))


def _loss(scene: Scene, u: Float32Array, grid: ControlGrid, labels: LabelSet, schedule: Schedule) -> Float32Array:
    moving, fixed = scene.moved_labels(u), scene.fixed_labels()
    assert scene.pair.moving_labels is not None
    chosen = schedule.loss_classes or scene.pair.moving_labels.values()
    classes = (0, *(c for c in chosen if c != 0))
    fixed_masks, moving_masks = (one_hot(labelled, classes)[1:] for labelled in (fixed, moving))
    return losses.get(schedule.loss).volume(fixed_masks, moving_masks, grid, labels.offsets, schedule.loss_settings)


def _node_displacements(u: Float32Array, grid: ControlGrid) -> Float64Array:
    """Displacement that each node has so far, in control spacings, (N, 3)."""
    at_nodes = fields.resample_field(u, grid.nodes, grid.spacing, grid.origin)
    return np.asarray(at_nodes.reshape(3, -1).T / grid.spacing, dtype=np.float64)


def _start(pair: ImagePair) -> Float32Array:
    if pair.initial_field is None:
        return np.zeros((3, *pair.fixed.geometry.shape), dtype=np.float32)
    return to_voxels(pair.initial_field)


def _check(pair: ImagePair, weights: Sequence[WeightTable], schedule: Schedule, needs_loss: bool) -> None:
    names = tuple(m.name for m in schedule.bank)
    for given in weights:
        if given.members != names:
            raise ValueError(
                f"weights are for members {list(given.members)}, the bank has {list(names)}; use the same bank"
            )
    if needs_loss and (pair.fixed_labels is None or pair.moving_labels is None):
        raise ValueError("the loss compares two label maps; give fixed_labels and moving_labels")


def _record(step: Step) -> StepRecord:
    solution = step.solution
    _, n_nodes, n_labels = step.terms.costs.shape
    return StepRecord(
        level=step.level,
        step=step.step,
        spacing_mm=step.spacing_mm,
        n_nodes=n_nodes,
        n_labels=n_labels,
        energy=solution.energy,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        iterations=solution.iterations,
        seconds=dict(step.seconds),
    )


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now
