"""Fold-free gradient descent on the control points of a free-form deformation, on a GPU.

The numbers are those of `regweave.registration.forces`; one function of the kernels does the work of each verb, so that
the host looks at the GPU once for each attempt of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np

from regweave.config.settings import Member, Refine
from regweave.registration import forces as host
from regweave.registration.forces import SMALL_DIFFERENCE, ClassWeights, stretch
from regweave.spatial.node_classes import numbers_of
from regweave.spatial.warp import encode, voxel_matrix
from regweave.types import Float32Array, Float64Array, WeightTable


def gaussian_sides(sigmas: Any, cut: float) -> list[list[float]]:
    """Weights of a Gaussian along each axis, from the voxel itself outwards; none where it is narrower than a voxel."""
    out = []
    for sigma in sigmas:
        x = np.arange(int(cut * float(sigma) + 0.5) + 1)
        side = np.exp(-0.5 / float(sigma) ** 2 * x**2) if sigma > 1e-15 else np.ones(1)
        out.append((side / (2 * side.sum() - side[0])).tolist() if sigma > 1e-15 else [])
    return out


@dataclass(frozen=True)
class Term:
    """Weighted penalty of a member: its weight at each voxel and its window.

    Where the maps of structures weigh differently, ``channels`` holds a factor for each channel, one number or one for
    each voxel; None leaves the channel out. ``sums`` keeps what depends on the fixed image alone.
    """

    member: Member
    penalty: str
    weight: Any
    radius: int
    options: Any
    channels: tuple[Any, ...] | None = None
    sums: dict[int, Any] = field(default_factory=dict)

    def add(self, kernels: Any, balance: Any, fixed: Any, moved: Any) -> None:
        """Add cost and force of a comparison of features (C, X, Y, Z)."""
        add = PENALTIES[self.penalty]
        if self.channels is None:
            add(kernels, balance, self, (fixed, moved), (0, None, 1.0))
            return
        # A penalty is a mean over channels: one by one, each counts as many times as there are.
        size = fixed.shape[0] // len(self.channels)
        for g, factor in enumerate(self.channels):
            if factor is not None:
                part = (fixed.part(g * size, (g + 1) * size), moved.part(g * size, (g + 1) * size))
                add(kernels, balance, self, part, (g * size, factor, 1 / len(self.channels)))


Features = tuple[Any, Any]
Weighed = tuple[int, Any, float]  # First channel of the features, factor of their weight, and share of the whole


def _absolute(kernels: Any, balance: Any, term: Term, features: Features, weighed: Weighed) -> None:
    _, factor, share = weighed
    kernels.absolute(balance, *features, term.weight, factor, share, SMALL_DIFFERENCE)


def _tensor(kernels: Any, balance: Any, term: Term, features: Features, weighed: Weighed) -> None:
    _, factor, share = weighed
    kernels.tensor(balance, *features, term.weight, factor, share)


def _correlation(kernels: Any, balance: Any, term: Term, features: Features, weighed: Weighed) -> None:
    first, factor, share = weighed
    n, *shape = features[0].shape
    for c in range(n):
        fixed, moved = (f.part(c, c + 1).reshaped(shape) for f in features)
        if first + c not in term.sums:
            term.sums[first + c] = kernels.local_sums(fixed, term.radius)
        window = (term.radius, term.options.variance_floor, term.options.squared)
        kernels.correlation(balance, fixed, term.sums[first + c], moved, term.weight, factor, share / n, *window)


PENALTIES: dict[str, Callable[[Any, Any, Term, Features, Weighed], None]] = {
    "absolute": _absolute,
    "correlation": _correlation,
    "tensor": _tensor,
}


@dataclass(frozen=True)
class GpuObjective:
    """Data terms of the GPU and those that the host computes; the smoothness.

    ``stiffness`` is that of each voxel, where it is not 1; ``factors`` of each component and axis make the smoothness
    isotropic in millimetres. The host computes bending, where it counts.
    """

    terms: tuple[Term, ...]
    by_host: tuple[host.DataTerm, ...]
    stiffness: Any
    factors: list[list[float]]
    bending_mm: float = 0.0


def data_terms(
    device: Any, scene: Any, u: Any, members: Sequence[Member], weights: WeightTable, settings: Refine
) -> GpuObjective:
    """Terms of the members, scaled so that a weight of one means a typical force of one at u; the host's if exact."""
    table = host.counted_once(scene.host, members, weights.select(tuple(m.name for m in members)))
    classes = VoxelWeights(device, scene, u, table, settings.class_reach_voxels)
    valid = scene.valid(u)
    terms: list[Term] = []
    left: list[Member] = []
    for member, compared in zip(members, scene.compare(members, u), strict=True):
        penalty: str = member.implementation.PENALTY  # type: ignore[attr-defined]
        if compared is None or penalty not in PENALTIES or (settings.exact and member.source == "image"):
            left.append(member)
            continue
        radius = settings.radius_voxels if member.support is None else member.support // 2
        term, balance = Term(member, penalty, valid, radius, member.metric_options), device.kernels.balance(u)
        term.add(device.kernels, balance, compared.fixed, compared.moved)
        terms.append(_weighted(device, term, classes, 1 / _typical(*device.kernels.force_moments(balance.force))))
    # All members, since their weights add up to those of the table.
    found = host.data_terms(scene.host, device.download(u), members, weights, settings).terms if left else ()
    s = stretch(scene.geometry)
    factors = [[float((s[c] / s[axis]) ** 2) for axis in range(3)] for c in range(3)]
    by_host = tuple(t for t in found if t.member in left)
    return GpuObjective(tuple(terms), by_host, classes.stiffness(), factors, settings.bending_mm)


def _weighted(device: Any, term: Term, classes: VoxelWeights, scale: float) -> Term:
    """Give a term of weight 1 the weights of its member, on its scale."""
    if term.member.source == "image":
        return replace(term, weight=classes.of_voxels(term.member, term.weight, scale))
    found = classes.of_structures(term.member)
    if (found == found[0]).all():
        return replace(term, weight=classes.constant(found[0], term.weight, scale))
    factors = classes.of_channels(term.member, found)
    channels = tuple(device.upload(f) if f.any() else None for f in factors)
    return replace(term, weight=classes.constant(np.float32(1), term.weight, scale), channels=channels)


def forces(device: Any, scene: Any, objective: GpuObjective, u: Any, smoothness: float) -> tuple[float, float, Any]:
    """Cost of the data, weighted cost of the smoothness, and the force of both, at u."""
    balance = device.kernels.diffusion(u, objective.stiffness, objective.factors, smoothness)
    for term, found in zip(objective.terms, scene.compare([t.member for t in objective.terms], u), strict=True):
        term.add(device.kernels, balance, found.fixed, found.moved)
    extra = bent = 0.0
    if objective.by_host or objective.bending_mm:
        there = device.download(u)
        force: Float32Array = np.zeros_like(there)
        extra = host.host_forces(scene.host, objective.by_host, there, force)
        if objective.bending_mm:
            bent = host.bending(there, force, scene.geometry, smoothness, objective.bending_mm)
        device.kernels.add_force(balance, device.upload(force))
    data, smooth = balance.totals()
    return data + extra, smoothness * smooth + bent, balance.force


def _typical(second: float, fourth: float) -> float:
    """Typical size of a force from the sums of its second and fourth powers, as `data_terms._typical` of the host."""
    return max(sqrt(fourth / max(second, 1e-30)), host.LEAST_FORCE)


NOWHERE = np.zeros((3, 0, 0, 0), dtype=np.float32)  # In place of a displacement, for weights that do not depend on it


@dataclass(frozen=True)
class VoxelWeights:
    """Weights W at the voxels of a scene; see `regweave.registration.forces.ClassWeights`."""

    device: Any
    scene: Any
    u: Any
    table: WeightTable
    reach: float

    @cached_property
    def numbers(self) -> Any:
        """Column of each voxel, (X, Y, Z)."""
        pair, upload = self.scene.host.pair, self.device.upload
        codes, table = encode(pair.moving_labels.data)
        known = np.array(self.table.classes if table is None else np.arange(len(table)), dtype=np.int64)
        number = numbers_of(known if table is None else table, self.table.classes)
        fits = np.abs(known) < 2**31
        matrix = voxel_matrix(self.scene.geometry, pair.moving_labels.geometry, pair.initial)
        fill = int(numbers_of(np.zeros(1, dtype=np.int64), self.table.classes)[0])
        columns = (upload(known[fits].astype(np.int32)), upload(number[fits]))
        found = self.device.kernels.warp_numbers(upload(codes), matrix, self.u, *columns, fill)
        return found if self.reach == 0 else self.device.kernels.spread(found, self.reach, stretch(self.scene.geometry))

    def of_voxels(self, member: Member, valid: Any, scale: float) -> Any:
        """Weight of a member that compares images at each voxel, times those of the scene and a scale."""
        values = self._row(member)
        if self._one_value(values):
            return self.constant(values[0], valid, scale)
        return self.device.kernels.lay(self.numbers, self.device.upload(values), valid, scale)

    def constant(self, value: np.float32, valid: Any, scale: float) -> Any:
        """One weight for all voxels, times those of the scene and a scale."""
        return self.device.kernels.lay(None, self.device.upload(np.array([value], dtype=np.float32)), valid, scale)

    def of_structures(self, member: Member) -> Float32Array:
        """Weight of the map of each structure, (K,), for a member that compares structure maps."""
        return ClassWeights(self.scene.host, NOWHERE, self.table, self.reach).of_structures(member)

    def of_channels(self, member: Member, weights: Float32Array) -> list[Float32Array]:
        """Turn weights of structures (K,) into factors of each channel, (1, 1, 1), or of its voxels, (X, Y, Z)."""
        found = self.scene.maps(member.source, self.u).weigh(weights)
        return [np.ascontiguousarray(f) for f in found]

    def stiffness(self) -> Any:
        """Factor of the smoothness at each voxel, (X, Y, Z); None where it is 1 everywhere."""
        if self.table.stiffness is None:
            return None
        values = self.table.stiffness.astype(np.float32)
        if self._one_value(values):
            return self.device.upload(np.full(self.scene.geometry.shape, values[0], dtype=np.float32))
        return self.device.kernels.look_up(self.numbers, self.device.upload(values))

    def _row(self, member: Member) -> Float32Array:
        matrix: Float64Array = self.table.matrix
        return np.ascontiguousarray(matrix[self.table.members.index(member.name)], dtype=np.float32)

    def _one_value(self, values: Float32Array) -> bool:
        return self.scene.host.pair.moving_labels is None or bool((values == values[0]).all())
