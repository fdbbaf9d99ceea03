"""Coarse-to-fine discrete registration: the only loop over levels in the program."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.io.disk.records import Count, Measured, Number
from regweave.registration.cpu import CPU, Device, DeviceArray, StepSearch
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.spatial.warp import to_voxels
from regweave.types import Float32Array, ImagePair, Solution, Terms, WeightTable


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
