"""Continuous refinement: gradient steps on the members that can be compared voxel by voxel.

The discrete levels give the capture range, this stage the precision. A step is a free-form deformation whose control
points move by at most 0.4 of their spacing, so it is invertible, and it is composed with what is there, so the whole
stays invertible; where interpolation would still bring a voxel near folding, the step is held back around it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from regweave import metrics, notices
from regweave.config.settings import Member, Refine, Schedule
from regweave.energy.cost_volume import Comparison
from regweave.kernels import fields, forces
from regweave.registration.penalties import PENALTIES, Penalty
from regweave.registration.scene import Scene
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.node_classes import one_hot
from regweave.spatial.pyramid import Factors, change_level, shrink_geometry
from regweave.spatial.warp import to_field
from regweave.types import Field, Float32Array, Geometry, ImagePair, WeightTable

LEAST_JACOBIAN = 0.1
"""A step may not bring a voxel's volume change below this."""
ATTEMPTS = 8
"""Times that the control points round folding voxels are held, farther each time, before the step is given up."""
REACH = 0.4
"""Largest displacement of a control point in one step, in control spacings: cubic B-splines fold beyond."""
LEAST_FORCE = 1e-3
"""Forces of this size are rounding and are not scaled up; features are in [0, 1]."""
LEAST_SIGMA_VOXELS = 0.1
"""A Gaussian narrower than this changes nothing."""
CUT = 3.0
"""Half the length of the smoothing kernel, in standard deviations."""
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.99
QUIET = 0.1
"""Control points with a gradient below this share of the typical one do not take full steps."""


@dataclass(frozen=True)
class RefineStep:
    """One gradient step: weighted cost of the data, of the smoothness, and seconds."""

    step: int
    data: float
    smoothness: float
    seconds: float


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


@dataclass(frozen=True)
class _Term:
    """How a member counts: its penalty, its weight at each voxel, and the window it looks through."""

    member: Member
    penalty: Penalty
    weight: Float32Array
    radius: int

    def cost(self, comparison: Comparison, force: Float32Array) -> float:
        options = self.member.metric_options()
        return self.penalty(comparison.fixed, comparison.moved, self.weight, force, self.radius, options)


def refine(
    pair: ImagePair,
    displacement: Float32Array,
    weights: WeightTable,
    schedule: Schedule,
    settings: Refine,
    *,
    on_step: Callable[[RefineStep], None] | None = None,
) -> Refinement:
    """Minimise the weighted costs plus the smoothness of the displacement, starting from the discrete result.

    The result is the best of all steps, so it never costs more than the start, smoothed as ``settings`` say.

    Parameters
    ----------
    pair : ImagePair
        The images; the moving label map chooses the weights at each voxel.
    displacement : float32 array of shape (3, X, Y, Z)
        Start, in voxels of the fixed image.
    weights, schedule
        As in `align`; the members of the schedule's continuous stage are used.
    settings : Refine
        Steps, smoothness and rate.
    """
    members = _used(schedule.continuous, weights)
    if settings.steps == 0 or not members:
        return _left_out(displacement, schedule, settings)
    scene = Scene.whole(pair, schedule).at(settings)
    u = change_level(displacement, (1, 1, 1), scene.factors, scene.geometry.shape)
    u = _smoothed(u, settings.start_sigma * schedule.levels_for(pair.fixed.geometry)[-1].spacing_mm, scene.geometry)
    grid = ControlGrid.every(scene.geometry.shape, settings.control_spacing(scene.geometry))
    terms = _terms(scene, u, members, weights, settings)
    factor, stretch = _units(scene.geometry)
    descent, records = _Descent(settings.rate, float(grid.spacing[0]), stretch), []
    smoothness = settings.smoothness_for(schedule.modality)
    least, best = np.inf, u
    for step in range(settings.steps + 1):
        start = time.perf_counter()
        data, smooth, force = _measure(scene, terms, u, smoothness, factor)
        if data + smooth < least:
            least, best = data + smooth, u
        if step == settings.steps:
            break
        update = descent.update(fields.ffd_adjoint(force, grid.origin, grid.spacing, grid.nodes), step)
        u = _held_back(u, update, grid)  # φ ← φ ∘ (id + δ)
        records.append(RefineStep(step, data, smooth, time.perf_counter() - start))
        if on_step is not None:
            on_step(records[-1])
    knots, u = _unfolded(best, scene.factors, pair.fixed.geometry.shape)
    return Refinement(u, tuple(records), tuple(m.name for m in members), _field(knots, pair, scene.factors))


def _used(members: Sequence[Member], weights: WeightTable) -> tuple[Member, ...]:
    """Members that some class gives a weight."""
    matrix = weights.select(tuple(m.name for m in members)).matrix
    return tuple(m for m, row in zip(members, matrix, strict=True) if row.any())


def _smoothed(u: Float32Array, sigma_mm: float, geometry: Geometry) -> Float32Array:
    """Smooth the start; less so where that would fold, which an average of displacements can, though it hardly does."""
    if sigma_mm == 0:
        return u
    least = min(LEAST_JACOBIAN, float(fields.jacobian(u).min()))
    while sigma_mm > LEAST_SIGMA_VOXELS * geometry.spacing_mm.min():
        sigma = sigma_mm / geometry.spacing_mm
        out = np.stack([ndimage.gaussian_filter(c, sigma, mode="nearest", truncate=CUT) for c in u])
        if fields.jacobian(out).min() >= least:
            return out
        sigma_mm /= 2
    return u


def _unfolded(knots: Float32Array, factors: Factors, shape: tuple[int, int, int]) -> tuple[Float32Array, Float32Array]:
    """Bring the displacement to the grid of the image, smoothed where it folds there though not on that of the steps.

    Upsampling can create folds that central differences on the coarse grid do not see. The knots are smoothed, not
    the voxels of the image, so that the fine displacement is the interpolation of the knots everywhere.

    Returns
    -------
    knots, displacement : float32 arrays of shape (3, X, Y, Z)
        In voxels of the shrunken grid, and of the image.
    """
    u = change_level(knots, factors, (1, 1, 1), shape)
    for _ in range(ATTEMPTS):
        folding = np.argwhere(fields.jacobian(u) <= 0)
        if len(folding) == 0:
            break
        mask = np.zeros(knots.shape[1:], dtype=bool)
        mask[tuple((folding // factors).T)] = True
        near = ndimage.binary_dilation(mask, iterations=2)
        knots = knots.copy()
        for box in ndimage.find_objects(ndimage.label(near)[0]):
            wide = tuple(slice(max(0, s.start - 3), s.stop + 3) for s in box)
            part, inside = knots[:, *wide], near[wide]
            part[:, inside] = ndimage.gaussian_filter(part, (0, 1, 1, 1), mode="nearest", truncate=CUT)[:, inside]
        u = change_level(knots, factors, (1, 1, 1), shape)
    return knots, u


def _field(knots: Float32Array, pair: ImagePair, factors: Factors) -> Field | None:
    """Return the knots as a field in millimetres; None where the image was not shrunken."""
    return None if factors == (1, 1, 1) else to_field(knots, shrink_geometry(pair.fixed.geometry, factors))


def _measure(
    scene: Scene, terms: Sequence[_Term], u: Float32Array, smoothness: float, factor: list[list[float]]
) -> tuple[float, float, Float32Array]:
    """Cost of the data, weighted cost of the smoothness, and the force of both, at u.

    The moving image is pulled through u as a whole: pulling what an earlier step has pulled blurs it a second time.
    """
    force = np.zeros_like(u)
    smooth = smoothness * forces.diffusion_force(u, force, factor)
    force *= np.float32(smoothness)
    comparisons = scene.compare([t.member for t in terms], u)
    return sum(t.cost(c, force) for t, c in zip(terms, comparisons, strict=True)), smooth, force


def _left_out(displacement: Float32Array, schedule: Schedule, settings: Refine) -> Refinement:
    if settings.steps:
        names = ", ".join(m.name for m in schedule.bank)
        notices.warn(
            f"W206: refinement left out: none of the members {names} has a weight and can be compared voxel by voxel; "
            "add one of absolute or correlation kind (sad, ncc, gradient, mind, ngf)"
        )
    return Refinement(displacement, (), ())


def _terms(
    scene: Scene, u: Float32Array, members: Sequence[Member], weights: WeightTable, settings: Refine
) -> list[_Term]:
    """Weight map of each member, scaled so that a weight of one means a typical force of one at the start."""
    maps = _weight_maps(scene, u, _counted_once(scene, members, weights.select(tuple(m.name for m in members))))
    valid = scene.valid(u)
    out = []
    for comparison, member, weight in zip(scene.compare(members, u), members, maps, strict=True):
        penalty = PENALTIES[metrics.get(member.metric).PENALTY]  # type: ignore[attr-defined]
        radius = settings.radius_voxels if member.support is None else member.support // 2
        force = np.zeros_like(u)
        _Term(member, penalty, valid, radius).cost(comparison, force)
        scaled = weight * valid * np.float32(1 / _typical(force))
        out.append(_Term(member, penalty, np.ascontiguousarray(scaled), radius))
    return out


def _counted_once(scene: Scene, members: Sequence[Member], weights: WeightTable) -> WeightTable:
    """Scale each member by the independent share of its voxels and restore the sums of the columns."""
    own = np.array([scene.independent_share(m) for m in members])
    if (own == 1).all():
        return weights
    return weights.scale(own[:, None])


def _typical(force: Float32Array) -> float:
    """Root mean square of the force over voxels, each voxel weighted by its own square: flat regions do not count."""
    squares = (force.astype(np.float64) ** 2).sum(axis=0)
    return max(float(np.sqrt((squares**2).sum() / max(squares.sum(), 1e-30))), LEAST_FORCE)


def _weight_maps(scene: Scene, u: Float32Array, weights: WeightTable) -> list[Float32Array]:
    """Weight of each member at each voxel: the column of W of the class that the moving mask has there."""
    if scene.pair.moving_labels is None or len(weights.classes) == 1:
        return [np.full(scene.geometry.shape, row[0], dtype=np.float32) for row in weights.matrix]
    masks = one_hot(scene.moved_labels(u), weights.classes)
    return [np.tensordot(row.astype(np.float32), masks, axes=1) for row in weights.matrix]


def _units(geometry: Geometry) -> tuple[list[list[float]], Float32Array]:
    """Weights that make the smoothness and the steps isotropic in millimetres on an anisotropic grid."""
    s = geometry.spacing_mm / np.exp(np.log(geometry.spacing_mm).mean())
    factor = [[float((s[c] / s[axis]) ** 2) for axis in range(3)] for c in range(3)]
    return factor, s.astype(np.float32)[:, None, None, None]


class _Descent:
    """Steps with momentum, their length set by each control point's own recent gradients (Kingma and Ba 2015).

    The second moment is that of the whole vector, so that the direction is kept.
    """

    def __init__(self, rate: float, spacing: float, stretch: Float32Array) -> None:
        self._length, self._reach, self._stretch = rate * spacing, REACH * spacing, stretch
        self._first: Any = 0.0
        self._second: Any = 0.0

    def update(self, gradient: Float32Array, step: int) -> Float32Array:
        """Displacement of the control points, in voxels, bounded so that the step is invertible."""
        g = gradient / self._stretch
        squared = (g.astype(np.float64) ** 2).sum(axis=0, keepdims=True)
        self._first = FIRST_MOMENT * self._first + (1 - FIRST_MOMENT) * g
        self._second = SECOND_MOMENT * self._second + (1 - SECOND_MOMENT) * squared
        mean = self._first / (1 - FIRST_MOMENT ** (step + 1))
        length = np.sqrt(self._second / (1 - SECOND_MOMENT ** (step + 1)))
        d = -self._length * mean / (length + QUIET * np.sqrt(squared.mean()) + 1e-12)
        return np.asarray((d / self._stretch).clip(-self._reach, self._reach), dtype=np.float32)


def _held_back(u: Float32Array, update: Float32Array, grid: ControlGrid) -> Float32Array:
    """Return u ∘ (id + δ), where δ is the free-form deformation of the update.

    Control points near a voxel that the step would bring below the least Jacobian are left where they are.
    """
    before = None
    for attempt in range(ATTEMPTS):
        delta = fields.ffd(update, grid.origin, grid.spacing, grid.image_shape)
        composed = np.asarray(fields.compose(u, delta))
        jacobian = fields.jacobian(composed)
        folding = jacobian < LEAST_JACOBIAN
        if not folding.any():
            return composed
        if before is None:
            before = fields.jacobian(u)
        folding &= jacobian < before
        if not folding.any():
            return composed
        folding = ndimage.binary_dilation(folding, iterations=attempt + 1)  # the differences reach one voxel
        near = fields.ffd_adjoint(folding[None].astype(np.float32), grid.origin, grid.spacing, grid.nodes) > 0
        update = np.where(near, np.float32(0), update)
    return u
