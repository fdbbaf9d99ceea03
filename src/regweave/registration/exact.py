"""Exact forces: costs of the pulled image with the derivative of its interpolation by the displacement.

The forces of `data_terms` are differences of the pulled image between neighbouring voxels. Where an image changes from
voxel to voxel these are not the derivative of its interpolation, and a descent along them ends where they vanish, not
where the cost is least. The derivative of a linear interpolation is no cure: it follows the noise, which is least half
way between voxels, and goes there wherever nothing else decides. So the images are cubic B-splines here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from regweave import _core
from regweave.config.member import Member
from regweave.energy.cost_volume import Comparison
from regweave.registration.scene import Scene, view_of
from regweave.types import Float32Array

Slope = Callable[[Float32Array, Float32Array, Float32Array, Float32Array, float, int, Any], float]


def absolute(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, slope: Float32Array, scale: float, radius: int,
    options: Any,
) -> float:  # fmt: skip
    """Add the derivative of `data_terms.absolute` by the moved image; return the cost."""
    return _core.absolute_slope(fixed, moved, weight, slope, scale, SMALL_DIFFERENCE)


def correlation(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, slope: Float32Array, scale: float, radius: int,
    options: Any,
) -> float:  # fmt: skip
    """Add the derivative of `data_terms.correlation` by the moved image; return the cost."""
    settings = (scale, radius, options.variance_floor, options.squared)
    return _core.correlation_slope(fixed, moved, weight, slope, *settings)


SMALL_DIFFERENCE = 0.01
"""Differences of features in [0, 1] below this are penalised quadratically."""
SLOPES: dict[str, Slope] = {"sad": absolute, "ncc": correlation}
"""By metric whose features are the windowed intensities themselves."""


class SlopedTerm(Protocol):
    """Protocol of a data term: its member, its weight at each voxel (X, Y, Z), and its window."""

    @property
    def member(self) -> Member:
        """Member of the bank."""

    @property
    def weight(self) -> Float32Array:
        """Weight at each voxel."""

    @property
    def radius(self) -> int:
        """Half the window of local correlation."""


def has_slope(scene: Scene, member: Member) -> bool:
    """Tell whether the force of a member is exact in a scene."""
    return scene.late and member.source == "image" and member.metric in SLOPES and view_of(member).plain


def exact_forces(
    scene: Scene, compared: Sequence[tuple[SlopedTerm, Comparison]], u: Float32Array, force: Float32Array
) -> float:
    """Cost of terms at u; their force, by the derivative of the interpolation, is added.

    Parameters
    ----------
    scene : Scene
    compared : sequence of (term, Comparison)
        Terms of members that have a slope, with their features at u.
    u, force : float32 arrays of shape (3, X, Y, Z)
    """
    slope = np.zeros(u.shape[1:], dtype=np.float32)
    cost = 0.0
    for term, features in compared:
        low, high = scene.moving_channels.window(view_of(term.member))
        of, options = SLOPES[term.member.metric], term.member.metric_options
        images = (features.fixed[0], features.moved[0])
        cost += of(*images, term.weight, slope, 1 / (high - low), term.radius, options)
    _core.pulled_force(scene.moving_channels.raw(scene.moving_factors), scene.matrix, u, slope, force)
    return cost
