"""Stages of a registration: coarse-to-fine levels of control points, then gradient descent on a fine grid.

Every number has a range, wider than any sensible use: what lies outside is a slip, and would end in sums that overflow,
in lattices that no machine holds, or in nothing at all.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from regweave.io.modality import BankName
from regweave.spatial.control_grid import nearest_whole
from regweave.types import Geometry

MOST_LEVELS = 16
LEAST_STEP = 1e-5
"""Labels that lie closer together than this share of a control spacing are one label."""

Millimetres = Annotated[float, Field(ge=1e-3, le=1e4)]
Smoothness = Annotated[float, Field(ge=1e-9, le=1e6)]


class StrictModel(BaseModel):
    """Validated frozen settings: unknown keys are errors, and so are infinite numbers, which TOML has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Level(StrictModel):
    """One level of the pyramid.

    Parameters
    ----------
    spacing_mm : float
        Distance of the control points.
    shrink : int
        Voxels of the level are cubes of this many voxels of the image; used where ``voxels_per_spacing`` is not given.
    voxels_per_spacing : float, optional
        Resolution of the level: each axis is shrunk by the whole factor that comes nearest to this.
    support : int, optional
        Edge of a node's box in voxels; None means one control spacing.
    labels_per_axis : int
        3 gives 27 labels, 5 gives 125.
    steps : int
        Refinement steps, each with a finer label set around the current estimate.
    first_step, step_decay : float
        Distance of neighbouring labels in control spacings at the first step, and its factor from step to step.
    """

    spacing_mm: Millimetres
    shrink: int = Field(default=1, ge=1, le=16)
    voxels_per_spacing: float | None = Field(default=None, ge=2, le=64)
    support: int | None = Field(default=None, ge=2, le=64)
    labels_per_axis: Literal[3, 5, 7] = 3
    steps: int = Field(default=5, ge=1, le=20)
    first_step: float = Field(default=0.2, ge=1e-3, le=1)
    step_decay: float = Field(default=0.66, ge=0.1, le=1)

    @model_validator(mode="after")
    def _check(self) -> Level:
        reach = self.first_step * (self.labels_per_axis // 2)
        if reach > 0.4 + 1e-9:
            raise ValueError(
                f"labels reach {reach:.2f} control spacings; at most 0.4 keeps every step invertible, lower first_step"
            )
        last = self.first_step * self.step_decay ** (self.steps - 1)
        if last < LEAST_STEP:
            raise ValueError(
                f"labels of the last step are {last:.1e} control spacings apart; allowed is {LEAST_STEP} or more, "
                "take fewer steps or a larger step_decay"
            )
        return self

    def scaled(self, factor: float) -> Level:
        """Return the same level with another control spacing."""
        return self.model_copy(update={"spacing_mm": self.spacing_mm * factor})

    def factors(self, geometry: Geometry) -> tuple[int, int, int]:
        """Whole factors by which the level shrinks the axes of an image; at least four voxels are left."""
        if self.voxels_per_spacing is None:
            wanted = np.full(3, self.shrink)
        else:
            wanted = nearest_whole(self.spacing_mm / self.voxels_per_spacing / geometry.spacing_mm)
        return within_image(wanted, geometry)


def within_image(wanted: NDArray[Any], geometry: Geometry) -> tuple[int, int, int]:
    """Shrink factors, at least 1, that leave at least four voxels along each axis."""
    x, y, z = (int(max(1, min(f, n // 4))) for f, n in zip(wanted, geometry.shape, strict=True))
    return x, y, z


class Refine(StrictModel):
    """The continuous stage after the discrete levels; ``steps = 0`` leaves it out.

    Parameters
    ----------
    steps : int
        Gradient steps.
    max_voxels : int
        Larger images are shrunk, along their finest axes first, until they have no more voxels than this.
    spacing_voxels : float
        Distance of the control points of one step, in those voxels.
    spacing_mm : float, optional
        The same in millimetres, at least one voxel; takes the place of ``spacing_voxels``.
    smoothness : float
        Weight of the squared gradient of the displacement against costs whose typical force is 1.
    smoothness_ct, smoothness_multi : float, optional
        The same for CT, and for a pair of two modalities, where it differs.
    bending_mm : float
        Length over which a bend costs as much as a stretch: the squared second derivatives of the displacement, times
        this length squared, are added to its squared gradient. Tissue that only stretches then costs little.
    rate : float
        Length of a step, in control spacings, where the gradient is steady.
    radius_voxels : int
        Half the window of local correlation, for members without a support of their own.
    exact : bool
        See both images as cubic B-splines of their voxels, through the windows then, and follow the derivative of that.
        Else windowed images are interpolated linearly, and the force is made of differences between neighbouring
        voxels, which is quicker.
    start_sigma : float
        The result of the levels is smoothed by a Gaussian of this many control spacings of the last level before the
        first step: what the control grid could not decide is left to the steps.
    class_reach_voxels : float
        Background within this distance of a structure, in voxels whose edge is the geometric mean of their axes', uses
        the column of that structure: the force of an image lives on both sides of a border.
    """

    steps: int = Field(default=0, ge=0, le=1000)
    max_voxels: int = Field(default=2_500_000, ge=1000, le=2**31 - 1)
    spacing_voxels: float = Field(default=2.0, ge=1, le=16)
    spacing_mm: Millimetres | None = None
    smoothness: Smoothness = 0.5
    smoothness_ct: Smoothness | None = None
    smoothness_multi: Smoothness | None = None
    bending_mm: float = Field(default=0.0, ge=0, le=1e4, exclude_if=lambda given: given == 0)
    exact: bool = Field(default=False, exclude_if=lambda given: not given)
    rate: float = Field(default=0.15, ge=1e-4, le=0.4)
    radius_voxels: int = Field(default=2, ge=1, le=16)
    start_sigma: float = Field(default=0.0, ge=0, le=4)
    class_reach_voxels: float = Field(default=0.0, ge=0, le=16, exclude_if=lambda given: given == 0)

    def control_spacing(self, geometry: Geometry) -> float:
        """Distance of the control points on a grid, in its voxels, whose edge is the geometric mean of their axes'."""
        if self.spacing_mm is None:
            return self.spacing_voxels
        return max(1.0, self.spacing_mm / float(np.exp(np.log(geometry.spacing_mm).mean())))

    def smoothness_for(self, bank: BankName) -> float:
        """Smoothness of a pair that a bank compares."""
        own = {"ct": self.smoothness_ct, "multi": self.smoothness_multi}.get(bank)
        return self.smoothness if own is None else own

    def factors(self, geometry: Geometry) -> tuple[int, int, int]:
        """Whole factors by which the stage shrinks the axes of an image."""
        voxel_mm = float(geometry.spacing_mm.min())
        while True:
            factors = within_image(nearest_whole(voxel_mm / geometry.spacing_mm), geometry)
            if np.prod(-(-np.array(geometry.shape) // np.array(factors))) <= self.max_voxels:
                return factors
            voxel_mm *= 1.1
