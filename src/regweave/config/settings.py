"""Settings of a registration: stages, banks of metrics with their members, engine and loss; presets and files of them.

Every number has a range, wider than any sensible use: a value outside it is a slip, and would end in sums that overflow
or in lattices larger than any memory.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import tomli_w
from numpy.typing import NDArray
from pydantic import Field, StrictFloat, StrictInt, ValidationError, field_validator, model_validator

from regweave import engines, losses, metrics
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import parse_toml, read_text
from regweave.io.modality import BankName
from regweave.registry import Options, Registry
from regweave.spatial.control_grid import RULES, SLACK, nearest_whole
from regweave.types import Geometry, WeightTable

Intensity = Annotated[StrictFloat, Field(ge=-1e9, le=1e9)]
PluginOptions = Annotated[dict[str, Any], Field(default_factory=dict, exclude_if=lambda given: not given)]
"""Options of a plug-in, checked by its own model; no key in records where there are none."""
NARROWEST_WINDOW = 1e-12
MOST_LEVELS = 16
LEAST_STEP = 1e-5  # labels that are closer together than this share of a control spacing are one label

Millimetres = Annotated[StrictFloat, Field(ge=1e-3, le=1e4)]
Smoothness = Annotated[StrictFloat, Field(ge=1e-9, le=1e6)]


def known(registry: Registry[Any], name: str, options: Mapping[str, Any] | None = None) -> None:
    """Require a plug-in and its options; ValueError names what is there, or the wrong option."""
    try:
        registry.options(name, options or {})
    except ValidationError as error:
        allowed = ", ".join(registry.get(name).Options.model_fields) or "none"
        problems = f"{describe_problems(error)}; options are: {allowed}"
        raise ValueError(f"options of {registry.noun} {name!r}: {problems}") from error
    except UsageError as error:
        if error.code == "E179":  # a plug-in is at fault, not the settings
            raise
        raise ValueError(f"{error.message}; {error.hint}") from error


class Member(Options):
    """One configured metric of a bank."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)
    """Name of the member in weights, reports and on the command line."""
    metric: str
    """Name of a metric: one of ``regweave.metrics`` or a plug-in. From Python also the metric itself."""
    source: Literal["image", "structures", "labels", "guides"] = Field(
        default="image", exclude_if=lambda given: given == "image"
    )
    """Compared data: the images; predicted structure maps of both; or those of the fixed image with the moving labels.
    Maps need a model, and so weight 0 until one has learned it. A run adds members that compare guides."""
    window: tuple[Intensity, Intensity] | None = None
    """Intensities mapped to [0, 1]; without it the body window for CT and percentiles for other images."""
    support: StrictInt | None = Field(default=None, ge=2, le=64)
    """Edge of the node's box in voxels; without it the level's."""
    sigma_voxels: StrictFloat = Field(default=0.0, ge=0, le=5)
    """Gaussian smoothing of both images before they are compared."""
    stage: Literal["levels", "refine", "both"] = "both"
    """Stage of the member: the discrete levels, the continuous refinement, or both if it can."""
    weight: StrictFloat = Field(default=1.0, ge=0, le=1e6)
    """Weight against the other members where a model gives none; 0 disables the member unless a model assigns it a
    weight."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the metric."""

    @field_validator("metric", mode="before")
    @classmethod
    def _add(cls, given: object) -> object:
        """Take an object or a function for a metric: it is added for this process under its own name."""
        name = str(getattr(given, "__name__", type(given).__name__)).rsplit(".", 1)[-1]
        return given if isinstance(given, str) else metrics.add(name, given)

    @model_validator(mode="after")
    def _check(self) -> Member:
        known(metrics.registry, self.metric, self.options)
        if self.window is not None and not self.window[1] - self.window[0] >= NARROWEST_WINDOW:
            raise ValueError(f"window {list(self.window)} of {self.name!r} is empty; give low < high")
        if self.stage == "refine" and self.penalty is None:
            raise ValueError(f"{self.metric!r} of {self.name!r} cannot be compared voxel by voxel; not for refine")
        if self.source != "image" and self.weight:
            raise ValueError(
                f"source {self.source!r} of {self.name!r} needs a model; give weight 0, found {self.weight:g}"
            )
        return self

    # The metric may be a module, which can be neither pickled nor copied: another process looks it up again.
    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": {k: v for k, v in state["__dict__"].items() if k in type(self).model_fields}}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Member:
        return self

    @property
    def penalty(self) -> str | None:
        """How the refinement compares voxel by voxel, as the metric has it in ``PENALTY``; None where it does not."""
        return getattr(self.implementation, "PENALTY", None)

    @cached_property
    def implementation(self) -> metrics.Metric:
        """The metric itself."""
        return metrics.get(self.metric)

    @cached_property
    def metric_options(self) -> metrics.Options:
        """Options as the metric's own model."""
        return metrics.registry.options(self.metric, self.options)


def describe_problems(error: ValidationError) -> str:
    """Every problem with its place, what is allowed and, for a number, what was found; the first ten of many."""
    errors = error.errors()
    # A list whose only item is wrong is also called too short.
    places = {e["loc"][: n + 1] for e in errors for n in range(len(e["loc"]) - 1)}
    errors = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in places)]
    told = []
    for e in errors[:10]:
        found = f", found {e['input']!r}" if isinstance(e["input"], float | int) else ""
        place = ".".join(str(p)[:40] for p in e["loc"])
        told.append(f"{place + ': ' if place else ''}{e['msg'].removeprefix('Value error, ')}{found}")
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


class Level(Options):
    """One level of the pyramid."""

    spacing_mm: Millimetres
    """Distance of the control points."""
    shrink: StrictInt = Field(default=1, ge=1, le=16)
    """Edge of the level's voxels in those of the image; used where ``voxels_per_spacing`` is not given."""
    voxels_per_spacing: StrictFloat | None = Field(default=None, ge=2, le=64)
    """Resolution of the level: each axis is shrunk by the whole factor that comes nearest to this."""
    support: StrictInt | None = Field(default=None, ge=2, le=64)
    """Edge of a node's box in voxels; None means one control spacing."""
    labels_per_axis: Literal[3, 5, 7] = 3
    """3 gives 27 labels, 5 gives 125."""
    steps: StrictInt = Field(default=5, ge=1, le=20)
    """Refinement steps, each with a finer label set around the current estimate."""
    first_step: StrictFloat = Field(default=0.2, ge=1e-3, le=1)
    """Distance of neighbouring labels in control spacings at the first step."""
    step_decay: StrictFloat = Field(default=0.66, ge=0.1, le=1)
    """Factor of the distance of the labels from step to step."""

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


class Refine(Options):
    """The continuous stage after the discrete levels; ``steps = 0`` disables it."""

    steps: StrictInt = Field(default=0, ge=0, le=1000)
    """Gradient steps."""
    max_voxels: StrictInt = Field(default=2_500_000, ge=1000, le=2**31 - 1)
    """Larger images are shrunk to at most so many voxels, along their finest axes first."""
    finest_mm: Millimetres | None = Field(default=None, exclude_if=lambda given: given is None)
    """A CT that was shrunken is refined again, with voxels up to this wide, or those of the image."""
    finest_steps: StrictInt = Field(default=0, ge=0, le=1000, exclude_if=lambda given: not given)
    """Gradient steps of that second stage."""
    finest_smoothness: Smoothness | None = Field(default=None, exclude_if=lambda given: given is None)
    """Its smoothness, where it differs."""
    spacing_voxels: StrictFloat = Field(default=2.0, ge=1, le=16)
    """Distance of the control points of one step, in those voxels."""
    spacing_mm: Millimetres | None = None
    """The same in millimetres, at least one voxel; takes the place of ``spacing_voxels``."""
    smoothness: Smoothness = 0.5
    """Weight of the squared gradient of the displacement against costs whose typical force is 1."""
    smoothness_ct: Smoothness | None = None
    """The same for CT, where it differs."""
    smoothness_multi: Smoothness | None = None
    """The same for a pair of two modalities, where it differs."""
    bending_mm: StrictFloat = Field(default=0.0, ge=0, le=1e4, exclude_if=lambda given: given == 0)
    """Length over which a bend costs as much as a stretch. The squared second derivatives, times its square, are added
    to the squared gradient."""
    exact: bool = Field(default=False, exclude_if=lambda given: not given)
    """Interpolate both images as cubic B-splines, and use the exact derivative. Else interpolation is linear and forces
    are differences of neighbouring voxels."""
    rate: StrictFloat = Field(default=0.15, ge=1e-4, le=0.4)
    """Length of a step, in control spacings, where the gradient is steady."""
    radius_voxels: StrictInt = Field(default=2, ge=1, le=16)
    """Half the window of local correlation, for members without their own support."""
    start_sigma: StrictFloat = Field(default=0.0, ge=0, le=4)
    """Gaussian smoothing of the result of the levels before the first step, in control spacings of the last level."""
    class_reach_voxels: StrictFloat = Field(default=0.0, ge=0, le=16, exclude_if=lambda given: given == 0)
    """Background within this distance of a structure uses its column; in voxels, whose edge is the geometric mean of
    their axes'."""

    @model_validator(mode="after")
    def _check(self) -> Refine:
        if (self.finest_mm is None) != (self.finest_steps == 0):
            raise ValueError("finest_mm and finest_steps belong together; give both or neither")
        return self

    def control_spacing(self, geometry: Geometry) -> float:
        """Distance of the control points on a grid, in its voxels, whose edge is the geometric mean of their axes'."""
        if self.spacing_mm is None:
            return self.spacing_voxels
        return max(1.0, self.spacing_mm / float(np.exp(np.log(geometry.spacing_mm).mean())))

    def stages(self, geometry: Geometry, bank: BankName) -> tuple[Refine, ...]:
        """Return the stage, and where a CT has been shrunken for it by more than ``finest_mm`` asks for, the second.

        The first one brings large motion home at little cost; the second one finds what only fine voxels show.
        """
        first = self.model_copy(update={"finest_mm": None, "finest_steps": 0})
        if bank != "ct" or self.finest_mm is None or not (self.steps and self.finest_steps):
            return (first,)
        smoothness = self.finest_smoothness or self.smoothness_for(bank)
        changes = {"steps": self.finest_steps, "finest_steps": 0, "smoothness_ct": smoothness, "start_sigma": 0.0}
        second = self.model_copy(update=changes)
        return (first, second) if prod(second.factors(geometry)) < prod(first.factors(geometry)) else (first,)

    def smoothness_for(self, bank: BankName) -> float:
        """Smoothness of a pair that a bank compares."""
        own = {"ct": self.smoothness_ct, "multi": self.smoothness_multi}.get(bank)
        return self.smoothness if own is None else own

    def factors(self, geometry: Geometry) -> tuple[int, int, int]:
        """Whole factors by which the stage shrinks the axes of an image."""
        if self.finest_mm is not None and not self.finest_steps:
            return within_image(np.floor(self.finest_mm / geometry.spacing_mm + SLACK), geometry)
        voxel_mm = float(geometry.spacing_mm.min())
        while True:
            factors = within_image(nearest_whole(voxel_mm / geometry.spacing_mm), geometry)
            if np.prod(-(-np.array(geometry.shape) // np.array(factors))) <= self.max_voxels:
                return factors
            voxel_mm *= 1.1


MOST_MEMBERS = 32
BANKS = {"ct": "CT", "mr": "images on a scale of their own", "multi": "pairs of two modalities"}
Levels = Annotated[tuple[Level, ...], Field(min_length=1, max_length=MOST_LEVELS)]
Bank = Annotated[tuple[Member, ...], Field(min_length=1, max_length=MOST_MEMBERS)]
NOT_IN_LEVELS = {"name", "initial", "smoothness", "refine"}  # fields that the discrete levels do not use


class Settings(Options):
    """One registration's settings, as in a preset file; `for_bank` restricts them to the metrics of one modality."""

    name: str = Field(min_length=1, max_length=200)
    """Name of the settings in results."""
    initial: str = "none"
    """Initial alignment: a method of ``--init``, or a transform file."""
    modality: Literal["auto", "ct", "mr", "multi"] = "auto"
    """Modality of both images, which selects the bank; "auto" detects it from the images."""
    smoothness: Smoothness
    """Weight of the pairwise term against weights that add up to one."""
    engine: str = "trws"
    """Inference engine of the levels."""
    class_rule: str = "foreground"
    """How the class of a node follows from the labels in its support."""
    class_at: Literal["displaced", "anchored"] = "anchored"
    """Where those labels are looked up: at each displacement, or where the node is."""
    class_reach: StrictFloat = Field(default=1.0, ge=1, le=8)
    """Edge of the box in which the classes of a node are counted, in supports. Above 1, nodes just outside an organ use
    its column too."""
    pairwise: Literal["fluid", "elastic"] = "fluid"
    """Whether smoothness is required of each step or of the whole displacement."""
    loss: str = "dice"
    """Loss between label maps that training lowers."""
    engine_options: PluginOptions
    """Options of the engine, ``max_iter`` or ``tol`` for example."""
    loss_options: PluginOptions
    """Options of the loss."""
    levels: Levels
    """Discrete levels, coarse to fine."""
    reference_mm: Annotated[StrictFloat, Field(ge=1.0, le=1e5)] | None = None
    """Length of image that the control spacings are meant for; a shorter one gets proportionally smaller spacings."""
    refine: Refine = Refine()
    """The continuous stage."""
    banks: dict[BankName, Bank]
    """Metrics for CT, for images on a scale of their own (``mr``) and for pairs of two modalities (``multi``)."""

    @model_validator(mode="after")
    def _check(self) -> Settings:
        known(engines.registry, self.engine, self.engine_options)
        known(losses.registry, self.loss, self.loss_options)
        spacings = [level.spacing_mm for level in self.levels]
        if spacings != sorted(spacings, reverse=True):
            raise ValueError(f"levels go from coarse to fine, found spacing_mm {spacings}")
        if self.class_rule not in RULES:
            raise ValueError(f"unknown class_rule {self.class_rule!r}; available: {', '.join(sorted(RULES))}")
        for bank in self.banks.values():
            names = [m.name for m in bank]
            if len(set(names)) < len(names):
                raise ValueError(f"members of a bank need different names; found {names}")
            if not any(m.weight for m in bank if m.stage != "refine"):
                raise ValueError("no member of the bank takes part in the levels; give one stage levels or both")
        return self

    def for_bank(self, modality: BankName) -> Settings:
        """Return the settings with the bank of one modality alone: the schedule of a registration."""
        if modality not in self.banks:
            raise UsageError(
                "E183",
                f"settings {self.name!r} have no bank for {BANKS[modality]}",
                f"use --preset default, or add [[banks.{modality}]]",
            )
        return self.model_copy(update={"modality": modality, "banks": {modality: self.banks[modality]}})

    @property
    def bank_name(self) -> BankName:
        """Modality that `for_bank` has selected."""
        if self.modality == "auto":
            raise ValueError("these settings have several banks; select one with for_bank")
        return self.modality

    @property
    def bank(self) -> tuple[Member, ...]:
        """Members of the bank that `for_bank` has selected."""
        return self.banks[self.bank_name]

    def with_bank(self, members: tuple[Member, ...]) -> Self:
        """Return the same settings with other members in the selected bank."""
        return self.model_copy(update={"banks": {self.bank_name: members}})

    def levels_key(self) -> str:
        """JSON of what the discrete levels depend on, for keys of cached results."""
        return self.with_bank(self.discrete).model_dump_json(exclude=NOT_IN_LEVELS)

    @property
    def solver(self) -> engines.Solver:
        """The engine with its options."""
        return engines.solver(self.engine, **self.engine_options)

    def without_proof(self) -> Self:
        """Return the same steps without work that only tightens the lower bounds: the result stays the same."""
        options = self.solver.options.without_proof()
        return self.model_copy(update={"engine_options": options.model_dump()})

    @property
    def loss_settings(self) -> Options:
        """Options of the loss as its own model."""
        return losses.registry.options(self.loss, self.loss_options)

    @property
    def discrete(self) -> tuple[Member, ...]:
        """Members of the discrete levels."""
        return tuple(m for m in self.bank if m.stage != "refine")

    @property
    def continuous(self) -> tuple[Member, ...]:
        """Members of the refinement."""
        return tuple(m for m in self.bank if m.stage != "levels" and m.penalty is not None)

    def for_levels(self, *tables: WeightTable | None) -> Settings:
        """Return the settings with the members of the discrete levels that compare images or have a weight in a table.

        Members that compare images stay without a weight too: what the learner sees of them may give them one. Those
        that compare structure maps can only be measured where there are maps, and a weight is what asks for these.
        """
        found = {m for w in tables if w is not None for m, row in zip(w.members, w.matrix, strict=True) if row.any()}
        bank = tuple(m for m in self.discrete if m.source == "image" or m.name in found)
        return self.with_bank(bank)

    def compares_maps(self, weights: WeightTable) -> bool:
        """Return whether a member that has a weight compares structure maps that a model predicts."""
        learned = [m.name for m in self.bank if m.source in ("structures", "labels")]
        return bool(weights.matrix[weights.rows(learned)].any())

    def without_label_members(self, weights: WeightTable) -> WeightTable:
        """Give the weight of members that compare the moving labels to the others of their stage, if any has one."""
        return self._without(weights, ("labels",))

    def without_map_members(self, weights: WeightTable) -> WeightTable:
        """Give the weight of all members that compare structure maps to the others of their stage.

        Where a class leaves the others nothing, the table is that of the bank before anything is learned.
        """
        found = self._without(weights, ("structures", "labels", "guides"))
        return self.start_weights(weights.pairwise, weights.classes) if self.compares_maps(found) else found

    def _without(self, weights: WeightTable, sources: tuple[str, ...]) -> WeightTable:
        for stage in ("levels", "refine", "both"):
            alike = [m for m in self.bank if m.stage == stage]
            if left := [m.name for m in alike if m.source in sources]:
                weights = weights.without(left, heirs=[m.name for m in alike])
        return weights

    def start_weights(self, smoothness: float, classes: tuple[int, ...] = (0,)) -> WeightTable:
        """W before anything is learned: the same for all classes, adding up to one."""
        return WeightTable.constant({m.name: m.weight for m in self.bank}, smoothness, classes)

    def levels_for(self, geometry: Geometry) -> tuple[Level, ...]:
        """Levels of an image: with ``reference_mm``, a shorter image gets proportionally smaller control spacings."""
        if self.reference_mm is None:
            return self.levels
        factor = min(1.0, geometry.longest_mm / self.reference_mm)
        return tuple(level.model_copy(update={"spacing_mm": level.spacing_mm * factor}) for level in self.levels)

    def with_refine_smoothness(self, value: float) -> Settings:
        """Return the same settings with one smoothness of the refinement for all modalities."""
        refine = self.refine.model_copy(update={"smoothness": value, "smoothness_ct": None, "smoothness_multi": None})
        return self.model_copy(update={"refine": refine})

    def plugins(self) -> dict[str, dict[str, str | None]]:
        """Plug-ins that the settings name and that do not come with the package, with what is known of each."""
        named: list[tuple[Registry[Any], str]] = [
            (metrics.registry, m.metric) for bank in self.banks.values() for m in bank
        ]
        named += [(engines.registry, self.engine), (losses.registry, self.loss)]
        found = {f"{registry.kind}/{name}": registry.origin(name) for registry, name in named}
        return {name: origin.record() for name, origin in found.items() if origin.place != "regweave"}

    def toml(self) -> str:
        """Write the settings as TOML; reading it back gives the same settings."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


PRESETS = "presets"  # folder of the preset files beside this module
COMMANDS = ("register", "train")  # commands with a table of options in a settings file
Metrics = Mapping[str, float] | Sequence[str]
"""Members (or metrics) by hand: weights by name, or names, each alone or as ``name=weight``."""


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
        newest = sorted({n.split("@")[0] for n in names})
        near = difflib.get_close_matches(name[:100], [*newest, *names], n=1, cutoff=0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        hint = f"{guess}available: {', '.join(newest)} (the newest versions); {', '.join(names)}"
        raise UsageError("E184", f"unknown preset {name!r}", hint)
    text = resources.files(__package__).joinpath(PRESETS, f"{chosen}.toml").read_text(encoding="utf-8")
    return parse(text, chosen)


def load(path: Path) -> Settings:
    """Read settings from a TOML file."""
    return parse(_text(path), str(path))


def read_table(path: Path | None, name: str) -> dict[str, Any]:
    """Return the table of a settings file with the options of a command; empty without a file or a table."""
    return {} if path is None else dict(_content(_text(path), str(path)).get(name, {}))


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except RegweaveError as error:
        raise UsageError(error.code, error.message, error.hint) from error
    except UnicodeDecodeError as error:
        raise UsageError("E185", f"{path} is not TOML: it is not UTF-8", "save it as UTF-8 text") from error


def parse(text: str, source: str) -> Settings:
    """Read settings from TOML text without its tables of commands; those of the default preset if nothing is left."""
    content = _content(text, source)
    own = {name: value for name, value in content.items() if name not in COMMANDS}
    return validate(own, source) if own or not content else preset("default")


def _content(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UsageError("E185", f"{source} is not TOML: {error}", "start from `regweave presets show`") from error


def validate(content: Mapping[str, Any], source: str) -> Settings:
    """Check settings; every problem is named with its place."""
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        message = f"settings in {source}: {describe_problems(error)}"
        raise UsageError("E185", message, "correct the named keys") from error


def with_refinement_of_preset(settings: Settings) -> Settings:
    """Return settings with the refinement's smoothness of the preset that they are named after, if any."""
    if settings.name not in preset_names():
        return settings
    own = preset(settings.name).refine
    smoothness = {name: getattr(own, name) for name in ("smoothness", "smoothness_ct", "smoothness_multi")}
    return settings.model_copy(update={"refine": settings.refine.model_copy(update=smoothness)})


def metric_weights(given: Metrics | None, code: str = "E188", what: str = "metric") -> dict[str, float] | None:
    """Return weights by name, of metrics or of something else; a name without a weight counts one.

    Raises E188, or another code, for what is no weight, or a name given twice.
    """
    if not given:
        return None
    listed: list[tuple[str, Any]]
    if isinstance(given, Mapping):
        listed = list(given.items())
    else:
        parts = [str(text).partition("=") for text in ([given] if isinstance(given, str) else given)]
        listed = [(name, weight if sign else 1.0) for name, sign, weight in parts]
    found: dict[str, float] = {}
    for name, weight in listed:
        try:
            number = float(weight)
        except (TypeError, ValueError) as error:
            raise UsageError(code, f"{what} {name!r}: {weight!r} is not a number", "write NAME=0.5") from error
        if name in found:
            raise UsageError(code, f"the {what} {name!r} is given twice", "give each name once")
        found[name] = number
    return found


def choose_settings(
    name: str, config: str | Path | Settings | None, engine: str | None, members: Mapping[str, float] | None
) -> Settings:
    """Return a preset or the settings of a file, with the engine or the bank replaced where asked."""
    if isinstance(config, Settings):
        chosen = config
    elif config is not None:
        chosen = load(Path(config))
    else:
        chosen = preset(name)
    changes: dict[str, Any] = {}
    if engine is not None:
        engines.get(engine)
        changes["engine"] = engine
    if members:
        changes["banks"] = _banks(chosen, members)
    if not changes:
        return chosen
    return validate({**chosen.model_dump(), **changes}, "the command line")


def _banks(chosen: Settings, members: Iterable[str]) -> dict[str, Any]:
    """Return the banks with all members, or with metrics of their names; a pair needs one of them alone."""
    found: dict[str, Any] = {}
    problem: UsageError | None = None
    for modality, bank in chosen.banks.items():
        try:
            found[modality] = [m.model_dump() for m in _by_hand([_member(name, bank) for name in members])]
        except UsageError as error:
            problem = problem or error
    if problem is not None and not found:
        raise problem
    return found


def _by_hand(members: Sequence[Member]) -> Sequence[Member]:
    """Let members take part in the refinement where none would: a preset gives that part to others of its bank."""
    if any(m.stage != "levels" and m.penalty for m in members):
        return members
    return [m.model_copy(update={"stage": "both"}) if m.penalty else m for m in members]


def _member(name: str, bank: tuple[Member, ...]) -> Member:
    """Return the member of that name in the bank, or the metric of that name with its default options."""
    for member in bank:
        if member.name == name and member.source != "image":
            message = f"the metric {name} compares what a model makes out in the images, and there is none"
            raise UsageError("E188", message, "give --model instead, or another metric")
        if member.name == name:
            return member.model_copy(update={"weight": 1.0})
    metrics.get(name)
    return Member(name=name, metric=name)
