"""Continuous refinement: gradient descent on voxelwise data terms and smoothness.

The discrete levels give the capture range, this stage the precision. A step is a free-form deformation whose control
points move by at most 0.4 of their spacing, so it is invertible, and it is composed with what is there, so the whole
stays invertible; where interpolation would still bring a voxel near folding, the step is held back around it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from regweave import notices
from regweave.config.settings import Member, Refine, Settings
from regweave.io.disk.records import Count, Number
from regweave.registration.cpu import CPU, Device
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.voxels import shrink_geometry
from regweave.spatial.warp import to_field
from regweave.types import Field, Float32Array, ImagePair, WeightTable


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
