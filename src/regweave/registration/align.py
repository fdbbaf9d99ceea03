"""The two loops of a registration: coarse-to-fine discrete levels, the only loop over levels, and the refinement.

The discrete levels give the capture range, the refinement the precision: gradient descent on voxelwise data terms and
smoothness. A step is a free-form deformation whose control points move by at most 0.4 of their spacing, so it is
invertible, and it is composed with what is there, so the whole stays invertible; where interpolation would still bring
a voxel near folding, the step is held back around it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regweave import notices
from regweave.config.settings import Member, Refine, Settings
from regweave.io.disk.records import Count, Measured, Number
from regweave.registration.cpu import CPU, Device, DeviceArray, StepSearch
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.spatial.voxels import shrink_geometry
from regweave.spatial.warp import to_field, to_voxels
from regweave.types import Field, Float32Array, ImagePair, Solution, Terms, WeightTable


@dataclass(frozen=True)
class StepRecord:
    """Record of a step: its certificate and its cost."""

    level: Count
    step: Count
    spacing_mm: Number
    n_nodes: Count
    n_labels: Count
    energy: Number
    lower_bound: Measured
    gap: Measured
    iterations: Count
    seconds: Mapping[str, Number]


@dataclass(frozen=True)
class Step(StepRecord):
    """One refinement step, with its evidence: what a learner needs; `align` does not keep it."""

    terms: Terms
    solution: Solution
    device: Device
    scene: Any  # the pair at this level
    u: DeviceArray  # displacement before the step
    around: StepSearch

    def loss(self, structures: Sequence[int] | None = None) -> Float32Array:
        """Loss (N, L) of some structures, or of all that the moving labels show; the loop itself has no use for it."""
        return np.asarray(self.device.loss(self.scene, self.u, self.around, structures))


@dataclass(frozen=True)
class Alignment:
    """Result of the discrete levels: a displacement in voxels of the fixed image (3, X, Y, Z), and the record."""

    displacement: Float32Array
    steps: Sequence[StepRecord]


def align(
    pair: ImagePair, weights: WeightTable, schedule: Settings, *, coarse: WeightTable | None = None,
    on_step: Callable[[Step], None] | None = None, device: Device = CPU,
) -> Alignment:  # fmt: skip
    """Minimise w·Ψ(x, D), eq. (2), over deformations D, coarse to fine.

    The rows of ``weights`` are the members of the schedule's bank, of which those of the discrete levels are used;
    ``coarse`` are the weights of all levels but the last, where these differ. ``on_step`` is called with every `Step`;
    its costs are those of the members of `Settings.for_levels`.
    """
    names = tuple(m.name for m in schedule.bank)
    for members in (weights.members, (coarse or weights).members):
        if members != names:
            raise ValueError(f"weights are for members {list(members)}, the bank has {list(names)}; use the same bank")
    schedule = schedule.for_levels(weights, coarse)
    names = tuple(m.name for m in schedule.bank)
    fine, coarse = weights.select(names), (coarse or weights).select(names)
    scene, records = device.scene(pair, schedule), list[StepRecord]()
    u = None if pair.initial_field is None else device.upload(to_voxels(pair.initial_field))
    for number, level in enumerate(schedule.levels_for(pair.fixed.geometry)):
        weights = fine if number == len(schedule.levels) - 1 else coarse
        coarser, scene = scene, scene.at(level)
        if u is None:
            u = device.upload(np.zeros((3, *scene.geometry.shape), dtype=np.float32))
        else:
            u = device.change_level(u, coarser.factors, scene.factors, scene.geometry.shape)
        grid = ControlGrid.cover(scene.geometry, level.spacing_mm, level.support)
        scales = None
        for step in range(level.steps):
            times = [time.perf_counter()]
            reach = level.first_step * level.step_decay**step * grid.spacing  # shrinks from step to step
            around = StepSearch(grid, LabelSet.cube(level.labels_per_axis, reach), weights.classes, schedule)
            terms, scales = device.measure(scene, u, around, scales)
            times.append(time.perf_counter())
            solution = device.minimize(terms, weights, schedule)
            times.append(time.perf_counter())
            before, u = u, device.compose(u, around, solution.labels)  # φ ← φ ∘ (id + d)
            times.append(time.perf_counter())
            seconds = dict(zip(("costs", "inference", "compose"), np.diff(times).tolist(), strict=True))
            record = StepRecord(
                number, step, level.spacing_mm, grid.n_nodes, around.labels.n_labels, solution.energy,
                solution.lower_bound, solution.gap, solution.iterations, seconds,
            )  # fmt: skip
            records.append(record)
            if on_step is not None:
                found = replace(solution, labels=device.download(solution.labels))
                bare = scene.at(level)  # without the features of the metrics
                evidence = {"device": device, "scene": bare, "u": before, "around": around}
                on_step(Step(**vars(record), terms=device.terms(terms), solution=found, **evidence))
    u = device.change_level(u, scene.factors, (1, 1, 1), pair.fixed.geometry.shape)
    return Alignment(device.download(u), tuple(records))


@dataclass(frozen=True)
class RefineStep:
    """One gradient step: weighted cost of the data, of the smoothness, and seconds."""

    step: Count
    data: Number
    smoothness: Number
    seconds: Number


@dataclass(frozen=True)
class Refinement:
    """Result of the stage: a displacement in voxels of the fixed image (3, X, Y, Z), and the record.

    Where the image was shrunken, ``knots`` is the same displacement on the grid of the steps, which ``displacement`` is
    the trilinear interpolation of.
    """

    displacement: Float32Array
    steps: Sequence[RefineStep]
    members: tuple[str, ...]
    knots: Field | None = None


def refine(
    pair: ImagePair, displacement: Float32Array, weights: WeightTable, schedule: Settings, settings: Refine, *,
    on_step: Callable[[RefineStep], None] | None = None, device: Device = CPU,
) -> Refinement:  # fmt: skip
    """Minimise the weighted costs plus the smoothness of the displacement, starting from the discrete result.

    The result of a stage is the best of its steps, so it never costs more than the start, smoothed by ``settings``.
    ``displacement`` (3, X, Y, Z) is in voxels of the fixed image; the moving label map chooses the weights at each
    voxel, of the members of the schedule's continuous stage. A large CT is refined in two stages, see `Refine.stages`.
    ``on_step`` is called with every `RefineStep`.
    """
    members = _used(schedule.continuous, weights)
    if settings.steps == 0 or not members:
        return Refinement(displacement, (), ())  # `warn_if_left_out` has named the reason
    image = device.scene(pair, schedule)
    u, factors = device.upload(displacement), (1, 1, 1)
    records: list[RefineStep] = []
    for stage in settings.stages(pair.fixed.geometry, schedule.bank_name):
        if records:  # interpolated on the grid of the image, where folds between coarser knots are smoothed
            u, factors = device.unfolded(u, factors, pair.fixed.geometry.shape)[1], (1, 1, 1)
        scene = image.at(stage)
        u = device.change_level(u, factors, scene.factors, scene.geometry.shape)
        factors = scene.factors
        sigma_mm = stage.start_sigma * schedule.levels_for(pair.fixed.geometry)[-1].spacing_mm
        u = device.smoothed(u, sigma_mm, scene.geometry)
        grid = ControlGrid.every(scene.geometry.shape, stage.control_spacing(scene.geometry))
        terms = device.data_terms(scene, u, members, weights, stage)
        descent, smoothness = device.descent(stage, grid, scene.geometry), stage.smoothness_for(schedule.bank_name)
        least, best = np.inf, u
        for step in range(stage.steps + 1):
            start = time.perf_counter()
            data, smooth, force = device.forces(scene, terms, u, smoothness)
            if data + smooth < least:
                least, best = data + smooth, u
            if step == stage.steps:
                break
            u = device.held_back(u, descent.update(force), grid)  # φ ← φ ∘ (id + δ)
            records.append(RefineStep(len(records), data, smooth, time.perf_counter() - start))
            if on_step is not None:
                on_step(records[-1])
        u = best
    knots, u = (device.download(a) for a in device.unfolded(u, factors, pair.fixed.geometry.shape))
    whole = factors == (1, 1, 1)
    field = None if whole else to_field(knots, shrink_geometry(pair.fixed.geometry, factors))
    return Refinement(u, tuple(records), tuple(m.name for m in members), field)


def _used(members: Sequence[Member], weights: WeightTable) -> tuple[Member, ...]:
    """Members that some class gives a weight."""
    matrix = weights.select(tuple(m.name for m in members)).matrix
    return tuple(m for m, row in zip(members, matrix, strict=True) if row.any())


def warn_if_left_out(schedule: Settings, weights: WeightTable, settings: Refine) -> None:
    """Warn with W206 where `refine` would have no member to work with, before time is spent on the levels."""
    if settings.steps and not _used(schedule.continuous, weights):
        names = ", ".join(m.name for m in schedule.bank)
        notices.warn(
            f"W206: refinement left out: none of the members {names} has a weight and can be compared voxel by voxel; "
            "add one of absolute or correlation kind (sad, ncc, gradient, mind, ngf)"
        )
