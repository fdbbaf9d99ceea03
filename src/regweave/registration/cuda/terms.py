"""Voxelwise data terms of the refinement on a GPU: penalties, weight maps, forces.

The terms are those of `regweave.registration.data_terms`. A penalty or a feature that has no kernel here is computed by
the host, and its force is uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np

from regweave.config.member import Member
from regweave.config.settings import Refine
from regweave.registration import data_terms as host
from regweave.registration.class_weights import stretch
from regweave.registration.cuda.weights import LaidWeights
from regweave.registration.exact import SMALL_DIFFERENCE
from regweave.types import Float32Array, WeightTable


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
Weighed = tuple[int, Any, float]
"""First channel of the features, factor of their weight, and share of the whole."""


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
    classes = LaidWeights(device, scene, u, table, settings.class_reach_voxels)
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


def _weighted(device: Any, term: Term, classes: LaidWeights, scale: float) -> Term:
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
