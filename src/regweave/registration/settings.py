"""Settings of a registration: a validated model, read and written as TOML; presets are such files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regweave import inference, losses, metrics
from regweave.errors import RegweaveError, UsageError
from regweave.io.texts import parse_toml, read_text
from regweave.lattice.classes import RULES
from regweave.registration._toml import to_toml
from regweave.types import Geometry, Weights

PRESETS = "presets"


class Model(BaseModel):
    """Frozen; unknown keys are errors, and so are infinite numbers, which TOML has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Member(Model):
    """One configured metric of a bank.

    Parameters
    ----------
    name : str
        What weights, reports and the command line call it.
    metric : str
        File name in ``regweave.metrics``.
    window : (low, high), optional
        Intensities mapped to [0, 1]; without it the body window for CT and percentiles for other images.
    support : int, optional
        Edge of the node's box in voxels; without it the level's.
    sigma_voxels : float
        Gaussian smoothing of both images before they are compared.
    stage : "levels", "refine" or "both"
        Where the member takes part: the discrete levels, the continuous refinement, or both if it can.
    weight : float
        Weight against the other members where no model says better. A member of weight 0 waits for a model to use it.
    options : table
        Options of the metric.
    """

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    metric: str
    window: tuple[float, float] | None = None
    support: int | None = Field(default=None, ge=2, le=64)
    sigma_voxels: float = Field(default=0.0, ge=0, le=5)
    stage: Literal["levels", "refine", "both"] = "both"
    weight: float = Field(default=1.0, ge=0)
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check(self) -> Member:
        if self.metric not in metrics.available():
            raise ValueError(f"unknown metric {self.metric!r}; available: {', '.join(metrics.available())}")
        if self.window is not None and not self.window[0] < self.window[1]:
            raise ValueError(f"window {list(self.window)} of {self.name!r} is empty; give low < high")
        if self.stage == "refine" and not self.differentiable:
            raise ValueError(f"{self.metric!r} of {self.name!r} cannot be compared voxel by voxel; not for refine")
        if self.sees_anatomy and (self.stage != "refine" or self.weight):
            raise ValueError(
                f"{self.metric!r} of {self.name!r} needs a model that tells structures; give stage refine and weight 0"
            )
        self.metric_options()
        return self

    @property
    def differentiable(self) -> bool:
        """True if the metric says how to compare voxel by voxel, as the refinement does."""
        return hasattr(metrics.get(self.metric), "PENALTY")

    @property
    def sees_anatomy(self) -> bool:
        """True if the member compares what a model makes out in the images."""
        return metrics.sees_anatomy(self.metric)

    @property
    def sees_mask(self) -> bool:
        """True if the member compares the moving labels."""
        return self.sees_anatomy and bool(getattr(self.metric_options(), "outline", False))

    def metric_options(self) -> metrics.Options:
        """Options as the metric's own model."""
        return metrics.get(self.metric).Options.model_validate(self.options)


class Level(Model):
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

    spacing_mm: float = Field(gt=0)
    shrink: int = Field(default=1, ge=1, le=16)
    voxels_per_spacing: float | None = Field(default=None, ge=2)
    support: int | None = Field(default=None, ge=2, le=64)
    labels_per_axis: Literal[3, 5, 7] = 3
    steps: int = Field(default=5, ge=1, le=20)
    first_step: float = Field(default=0.2, gt=0)
    step_decay: float = Field(default=0.66, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Level:
        reach = self.first_step * (self.labels_per_axis // 2)
        if reach > 0.4 + 1e-9:
            raise ValueError(
                f"labels reach {reach:.2f} control spacings; at most 0.4 keeps every step invertible, lower first_step"
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
            wanted = np.rint(self.spacing_mm / self.voxels_per_spacing / geometry.spacing_mm)
        return within_image(wanted, geometry)


def within_image(wanted: NDArray[Any], geometry: Geometry) -> tuple[int, int, int]:
    """Shrink factors, at least 1, that leave at least four voxels along each axis."""
    x, y, z = (int(max(1, min(f, n // 4))) for f, n in zip(wanted, geometry.shape, strict=True))
    return x, y, z


class Refine(Model):
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
    smoothness_ct : float, optional
        The same for CT, where it differs.
    rate : float
        Length of a step, in control spacings, where the gradient is steady.
    radius_voxels : int
        Half the window of local correlation, for members without a support of their own.
    start_sigma : float
        The result of the levels is smoothed by a Gaussian of this many control spacings of the last level before the
        first step: what the control grid could not decide is left to the steps.
    """

    steps: int = Field(default=0, ge=0, le=1000)
    max_voxels: int = Field(default=2_500_000, ge=1000)
    spacing_voxels: float = Field(default=2.0, ge=1, le=16)
    spacing_mm: float | None = Field(default=None, gt=0)
    smoothness: float = Field(default=0.5, gt=0)
    smoothness_ct: float | None = Field(default=None, gt=0)
    rate: float = Field(default=0.15, gt=0, le=0.4)
    radius_voxels: int = Field(default=2, ge=1, le=16)
    start_sigma: float = Field(default=0.0, ge=0, le=4)

    def control_spacing(self, geometry: Geometry) -> float:
        """Distance of the control points on a grid, in its voxels, whose edge is the geometric mean of their axes'."""
        if self.spacing_mm is None:
            return self.spacing_voxels
        return max(1.0, self.spacing_mm / float(np.exp(np.log(geometry.spacing_mm).mean())))

    def smoothness_for(self, modality: Literal["ct", "mr"]) -> float:
        """Smoothness for images of a modality."""
        return self.smoothness_ct if modality == "ct" and self.smoothness_ct is not None else self.smoothness

    def factors(self, geometry: Geometry) -> tuple[int, int, int]:
        """Whole factors by which the stage shrinks the axes of an image."""
        voxel_mm = float(geometry.spacing_mm.min())
        while True:
            factors = within_image(np.rint(voxel_mm / geometry.spacing_mm), geometry)
            if np.prod(-(-np.array(geometry.shape) // np.array(factors))) <= self.max_voxels:
                return factors
            voxel_mm *= 1.1


class Schedule(Model):
    """All that the coarse-to-fine loop needs besides images and weights."""

    levels: tuple[Level, ...] = Field(min_length=1)
    reference_mm: float | None = Field(default=None, gt=0)
    bank: tuple[Member, ...] = Field(min_length=1)
    modality: Literal["ct", "mr"] = "mr"
    engine: str = "trws"
    class_rule: str = "foreground"
    class_at: Literal["displaced", "anchored"] = "anchored"
    class_reach: float = Field(default=1.0, ge=1, le=8)
    pairwise: Literal["fluid", "elastic"] = "fluid"
    loss: str = "dice"
    loss_classes: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        choices = (
            ("engine", self.engine, inference.available()),
            ("class_rule", self.class_rule, sorted(RULES)),
            ("loss", self.loss, losses.available()),
        )
        for what, value, allowed in choices:
            if value not in allowed:
                raise ValueError(f"unknown {what} {value!r}; available: {', '.join(allowed)}")
        names = [m.name for m in self.bank]
        if len(set(names)) < len(names):
            raise ValueError(f"members of a bank need different names; found {names}")
        if not any(m.weight for m in self.discrete):
            raise ValueError("no member of the bank takes part in the levels; give one stage levels or both")
        return self

    @property
    def discrete(self) -> tuple[Member, ...]:
        """Members of the discrete levels."""
        return tuple(m for m in self.bank if m.stage != "refine")

    @property
    def continuous(self) -> tuple[Member, ...]:
        """Members of the refinement."""
        return tuple(m for m in self.bank if m.stage != "levels" and m.differentiable)

    def needs_anatomy(self, weights: Weights) -> bool:
        """Tell whether a member that has a weight compares what a model makes out in the images."""
        learned = [m.name for m in self.bank if m.sees_anatomy]
        return bool(weights.matrix[[weights.members.index(name) for name in learned]].any())

    def without_mask(self, weights: Weights) -> Weights:
        """Give the weight of members that compare the moving labels to the others of the refinement, if any has one."""
        refine = [weights.members.index(m.name) for m in self.bank if m.stage == "refine"]
        masked = [weights.members.index(m.name) for m in self.bank if m.sees_mask]
        matrix = weights.matrix.copy()
        matrix[masked] = 0
        total, rest = weights.matrix[refine].sum(axis=0), matrix[refine].sum(axis=0)
        if not rest.all():
            return weights
        matrix[refine] *= total / rest
        return Weights(matrix, weights.members, weights.classes, weights.pairwise)

    def start_weights(self, smoothness: float, classes: tuple[int, ...] = (0,)) -> Weights:
        """W before anything is learned: the same for all classes, adding up to one."""
        given = np.array([m.weight for m in self.bank], dtype=np.float64)
        matrix = np.repeat((given / given.sum())[:, None], len(classes), axis=1)
        return Weights(matrix, tuple(m.name for m in self.bank), classes, smoothness)

    def levels_for(self, geometry: Geometry) -> tuple[Level, ...]:
        """Levels of an image: with ``reference_mm``, a shorter image gets proportionally smaller control spacings."""
        if self.reference_mm is None:
            return self.levels
        longest = float((geometry.spacing_mm * geometry.shape).max())
        return tuple(level.scaled(min(1.0, longest / self.reference_mm)) for level in self.levels)


class Settings(Model):
    """One registration's settings, as in a preset file.

    ``banks`` holds a bank for each modality; the images decide which one is used, unless ``modality`` says so.
    ``class_reach`` is the edge of the box in which the classes of a node are counted, in supports: above 1, nodes just
    outside an organ, whose border they see, use its column too.
    ``reference_mm`` is the length of image that the control spacings are meant for; a shorter one, a crop round a
    small organ say, gets proportionally smaller spacings.
    """

    name: str
    initial: str = "none"
    modality: Literal["auto", "ct", "mr"] = "auto"
    smoothness: float = Field(gt=0, description="weight of the pairwise term against weights that add up to one")
    engine: str = "trws"
    class_rule: str = "foreground"
    class_at: Literal["displaced", "anchored"] = "anchored"
    class_reach: float = Field(default=1.0, ge=1, le=8)
    pairwise: Literal["fluid", "elastic"] = "fluid"
    loss: str = "dice"
    levels: tuple[Level, ...] = Field(min_length=1)
    reference_mm: float | None = Field(default=None, gt=0)
    refine: Refine = Refine()
    banks: dict[Literal["ct", "mr"], tuple[Member, ...]]

    @model_validator(mode="after")
    def _check(self) -> Settings:
        for modality in self.banks:
            self.schedule(modality)
        return self

    def schedule(self, modality: Literal["ct", "mr"]) -> Schedule:
        """Return the coarse-to-fine schedule with the bank of a modality."""
        if modality not in self.banks:
            raise UsageError(
                "E183", f"settings {self.name!r} have no bank for {modality!r}", f"add [[banks.{modality}]]"
            )
        return Schedule(
            levels=self.levels,
            reference_mm=self.reference_mm,
            bank=self.banks[modality],
            modality=modality,
            engine=self.engine,
            class_rule=self.class_rule,
            class_at=self.class_at,
            class_reach=self.class_reach,
            pairwise=self.pairwise,
            loss=self.loss,
        )

    def with_refine_smoothness(self, value: float) -> Settings:
        """Return the same settings with one smoothness of the refinement for all modalities."""
        refine = self.refine.model_copy(update={"smoothness": value, "smoothness_ct": None})
        return self.model_copy(update={"refine": refine})

    def toml(self) -> str:
        """Write the settings as TOML; reading it back gives the same settings."""
        return to_toml(self.model_dump(mode="json", exclude_none=True))


def preset_names() -> list[str]:
    """Names of the presets, each frozen by its version."""
    folder = resources.files(__package__).joinpath(PRESETS)
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def preset(name: str) -> Settings:
    """Return a preset; a name without a version takes the newest."""
    names = preset_names()
    versions = [n for n in names if n.split("@")[0] == name]
    chosen = name if name in names else max(versions, key=lambda n: int(n.split("@")[1]), default="")
    if not chosen:
        raise UsageError("E184", f"unknown preset {name!r}", f"available: {', '.join(names)}")
    text = resources.files(__package__).joinpath(PRESETS, f"{chosen}.toml").read_text(encoding="utf-8")
    return parse(text, chosen)


def load(path: Path) -> Settings:
    """Read settings from a TOML file."""
    try:
        text = read_text(path)
    except RegweaveError as error:
        raise UsageError(error.code, error.message, error.hint) from error
    except UnicodeDecodeError as error:
        raise UsageError("E185", f"{path} is not TOML: it is not UTF-8", "save it as UTF-8 text") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Settings:
    """Read settings from TOML text."""
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise UsageError("E185", f"{source} is not TOML: {error}", "start from `regweave presets show`") from error
    return validate(content, source)


def validate(content: Mapping[str, Any], source: str) -> Settings:
    """Check settings; every problem is named with its place."""
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        found = [f"{'.'.join(str(p) for p in e['loc']) or 'settings'}: {e['msg']}" for e in error.errors()]
        raise UsageError("E185", f"settings in {source}: {'; '.join(found)}", "correct the named keys") from error


def plain_member(metric: str) -> Member:
    """Return a metric with its default options as the member of its own name."""
    metrics.get(metric)
    return Member(name=metric, metric=metric)
