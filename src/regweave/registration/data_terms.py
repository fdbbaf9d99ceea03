"""Voxelwise data terms of the refinement: penalties, weight maps, forces.

A metric names its penalty in ``PENALTY``; the force is the derivative of the cost by a small displacement of the
moved image, (3, X, Y, Z), computed analytically by the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regweave import _core
from regweave.config.member import Member
from regweave.config.settings import Refine
from regweave.energy.cost_volume import Comparison
from regweave.registration.class_weights import ClassWeights, stretch
from regweave.registration.exact import SMALL_DIFFERENCE, exact_forces, has_slope
from regweave.registration.scene import Scene
from regweave.types import Float32Array, Geometry, WeightTable

LEAST_FORCE = 1e-3
"""Forces of this size are rounding and are not scaled up; features are in [0, 1]."""

Penalty = Callable[[Float32Array, Float32Array, Float32Array, Float32Array, int, Any], float]


def absolute(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    """Sum over voxels of weight × mean over channels of √(d² + ε²) − ε."""
    return _core.absolute_force(fixed, moved, weight, force, SMALL_DIFFERENCE)


def correlation(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    """Sum over voxels of weight × mean over channels of (1 − correlation, or its square, in that radius)."""
    settings = (radius, options.variance_floor, options.squared)
    share = weight if len(fixed) == 1 else weight * np.float32(1 / len(fixed))
    channels = zip(fixed[:, None], moved[:, None], strict=True)
    return float(sum(_core.correlation_force(f, m, share, force, *settings) for f, m in channels))


def tensor(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    """Sum over voxels of weight × ½ |ff' − mm'|²."""
    return _core.tensor_force(fixed, moved, weight, force)


PENALTIES: dict[str, Penalty] = {"absolute": absolute, "correlation": correlation, "tensor": tensor}


@dataclass(frozen=True)
class DataTerm:
    """Weighted penalty of a member: its weight at each voxel and its window.

    Where the maps of structures weigh differently, ``channels`` holds a factor for each channel, (G, 1, 1, 1), or
    for each of its voxels, (G, X, Y, Z).
    """

    member: Member
    penalty: Penalty
    weight: Float32Array
    radius: int
    channels: Float32Array | None = None

    def cost(self, comparison: Comparison, force: Float32Array) -> float:
        """Cost of a comparison; its derivative is added to ``force``."""
        options = self.member.metric_options
        if self.channels is None:
            return self.penalty(comparison.fixed, comparison.moved, self.weight, force, self.radius, options)
        # A penalty is a mean over channels: one by one, each counts as many times as there are.
        n = len(self.channels)
        parts = zip(np.split(comparison.fixed, n), np.split(comparison.moved, n), self.channels, strict=True)
        return sum(
            self.penalty(fixed, moved, self.weight * (factor / n), force, self.radius, options)
            for fixed, moved, factor in parts
            if factor.any()
        )


@dataclass(frozen=True)
class Objective:
    """Data terms, the stiffness of each voxel, (X, Y, Z), where it is not 1, and the length that weighs bending."""

    terms: tuple[DataTerm, ...]
    stiffness: Float32Array | None = None
    bending_mm: float = 0.0


def data_terms(
    scene: Scene, u: Float32Array, members: Sequence[Member], weights: WeightTable, settings: Refine
) -> Objective:
    """Terms of the members, scaled so that a weight of one means a typical force of one at u."""
    table = counted_once(scene, members, weights.select(tuple(m.name for m in members)))
    classes = ClassWeights(scene, u, table, settings.class_reach_voxels)
    valid = scene.valid(u)
    out = []
    for comparison, member in zip(scene.compare(members, u), members, strict=True):
        penalty = PENALTIES[member.implementation.PENALTY]  # type: ignore[attr-defined]
        radius = settings.radius_voxels if member.support is None else member.support // 2
        force = _core.zero_field(scene.geometry.shape)
        term = DataTerm(member, penalty, valid, radius)
        _cost(scene, [(term, comparison)], u, force)
        out.append(_weighted(term, classes, u, np.float32(1 / _typical(force))))
    return Objective(tuple(out), classes.stiffness(), settings.bending_mm)


def _weighted(term: DataTerm, classes: ClassWeights, u: Float32Array, scale: np.float32) -> DataTerm:
    """Give a term of weight 1 the weights of its member, on its scale."""
    if term.member.source == "image":
        return replace(term, weight=classes.of_voxels(term.member) * term.weight * scale)
    found = classes.of_structures(term.member)
    if (found == found[0]).all():
        return replace(term, weight=found[0] * term.weight * scale)
    channels = classes.scene.maps(term.member.source, u).weigh(found)
    return replace(term, weight=term.weight * scale, channels=channels)


def forces(scene: Scene, objective: Objective, u: Float32Array, smoothness: float) -> tuple[float, float, Float32Array]:
    """Cost of the data, weighted cost of the smoothness, and the force of both, at u.

    The moving image is pulled through u as a whole: pulling what an earlier step has pulled blurs it a second time.
    """
    force = _core.zero_field(scene.geometry.shape)
    # Isotropic in millimetres on an anisotropic grid.
    s = stretch(scene.geometry)
    factor = [[smoothness * float((s[c] / s[axis]) ** 2) for axis in range(3)] for c in range(3)]
    if objective.stiffness is None:
        smooth = _core.diffusion_force(u, force, factor)
    else:
        smooth = _core.stiff_diffusion_force(u, objective.stiffness, force, factor)
    if objective.bending_mm:
        smooth += bending(u, force, scene.geometry, smoothness, objective.bending_mm)
    return host_forces(scene, objective.terms, u, force), smooth, force


def bending(u: Float32Array, force: Float32Array, geometry: Geometry, smoothness: float, length_mm: float) -> float:
    """Weighted squared second derivatives of u, isotropic in millimetres; their force is added."""
    s, voxel_mm = stretch(geometry), float(np.exp(np.log(geometry.spacing_mm).mean()))
    weight = smoothness * (length_mm / voxel_mm) ** 2
    factor = [[[weight * float(s[c] / (s[a] * s[b])) ** 2 for b in range(3)] for a in range(3)] for c in range(3)]
    return _core.bending_force(u, force, factor)


def host_forces(scene: Scene, terms: Sequence[DataTerm], u: Float32Array, force: Float32Array) -> float:
    """Cost of some terms at u, by the host; their force is added: the way of a penalty that a device lacks."""
    comparisons = scene.compare([t.member for t in terms], u)
    return _cost(scene, list(zip(terms, comparisons, strict=True)), u, force)


def _cost(scene: Scene, compared: Sequence[tuple[DataTerm, Comparison]], u: Float32Array, force: Float32Array) -> float:
    exact = [one for one in compared if has_slope(scene, one[0].member)]
    cost = sum(t.cost(c, force) for t, c in compared if not has_slope(scene, t.member))
    return cost + exact_forces(scene, exact, u, force) if exact else cost


def counted_once(scene: Scene, members: Sequence[Member], weights: WeightTable) -> WeightTable:
    """Scale each member by its `independent_share`; the columns keep their sums."""
    own = np.array([scene.independent_share(m) for m in members])
    return weights if (own == 1).all() else weights.scale(own[:, None])


def _typical(force: Float32Array) -> float:
    """Root mean square of the force over voxels, each voxel weighted by its own square: flat regions do not count."""
    return max(float(np.sqrt(_core.mean_square_force(force))), LEAST_FORCE)
