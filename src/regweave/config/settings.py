"""Settings of a registration: a validated model, read and written as TOML; presets are such files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from regweave import engines, losses, metrics
from regweave.config.member import Member, PluginOptions, describe_problems, known
from regweave.config.stages import MOST_LEVELS, Level, Refine, Smoothness, StrictModel, within_image
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.text import parse_toml, read_text
from regweave.io.modality import BankName
from regweave.registry import Options
from regweave.spatial.node_classes import RULES
from regweave.types import Geometry, WeightTable

__all__ = [
    "Level",
    "Refine",
    "Schedule",
    "Settings",
    "load",
    "parse",
    "preset",
    "preset_names",
    "validate",
    "within_image",
]

PRESETS = "presets"
MOST_MEMBERS = 32
BANKS = {"ct": "CT", "mr": "images on a scale of their own", "multi": "pairs of two modalities"}
Levels = Annotated[tuple[Level, ...], Field(min_length=1, max_length=MOST_LEVELS)]
Bank = Annotated[tuple["Member", ...], Field(min_length=1, max_length=MOST_MEMBERS)]
ReferenceMm = Annotated[float, Field(ge=1.0, le=1e5)]


class Schedule(StrictModel):
    """All that the coarse-to-fine loop needs besides images and weights."""

    levels: Levels
    reference_mm: ReferenceMm | None = None
    bank: Bank
    modality: BankName = "mr"
    engine: str = "trws"
    class_rule: str = "foreground"
    class_at: Literal["displaced", "anchored"] = "anchored"
    class_reach: float = Field(default=1.0, ge=1, le=8)
    pairwise: Literal["fluid", "elastic"] = "fluid"
    loss: str = "dice"
    engine_options: PluginOptions
    loss_options: PluginOptions

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        known(engines.registry, self.engine, self.engine_options)
        known(losses.registry, self.loss, self.loss_options)
        if self.class_rule not in RULES:
            raise ValueError(f"unknown class_rule {self.class_rule!r}; available: {', '.join(sorted(RULES))}")
        names = [m.name for m in self.bank]
        if len(set(names)) < len(names):
            raise ValueError(f"members of a bank need different names; found {names}")
        if not any(m.weight for m in self.discrete):
            raise ValueError("no member of the bank takes part in the levels; give one stage levels or both")
        return self

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
        return tuple(m for m in self.bank if m.stage != "levels" and m.differentiable)

    def for_levels(self, *tables: WeightTable | None) -> Schedule:
        """Return the schedule of the discrete levels alone, with the members that some table gives a say.

        Members that compare images stay without a weight too: what the learner sees of them may give them one. Those
        that compare structure maps can only be measured where there are maps, and a weight is what asks for these.
        """
        found = {m for w in tables if w is not None for m, row in zip(w.members, w.matrix, strict=True) if row.any()}
        bank = tuple(m for m in self.discrete if m.source == "image" or m.name in found)
        return self.model_copy(update={"bank": bank})

    def compares_maps(self, weights: WeightTable) -> bool:
        """Tell whether a member that has a weight compares what a model makes out in the images."""
        learned = [m.name for m in self.bank if m.source != "image"]
        return bool(weights.matrix[weights.rows(learned)].any())

    def without_label_members(self, weights: WeightTable) -> WeightTable:
        """Give the weight of members that compare the moving labels to the others of their stage, if any has one."""
        for stage in ("levels", "refine", "both"):
            alike = [m for m in self.bank if m.stage == stage]
            masked = [m.name for m in alike if m.source == "labels"]
            if masked:
                weights = weights.without(masked, heirs=[m.name for m in alike])
        return weights

    def without_map_members(self, weights: WeightTable) -> WeightTable:
        """Give the weight of all members that compare structure maps to the others of their stage.

        Where a class leaves the others nothing, the table is that of the bank before anything is learned.
        """
        found = weights
        for stage in ("levels", "refine", "both"):
            alike = [m for m in self.bank if m.stage == stage]
            learned = [m.name for m in alike if m.source != "image"]
            if learned:
                found = found.without(learned, heirs=[m.name for m in alike])
        return self.start_weights(weights.pairwise, weights.classes) if self.compares_maps(found) else found

    def start_weights(self, smoothness: float, classes: tuple[int, ...] = (0,)) -> WeightTable:
        """W before anything is learned: the same for all classes, adding up to one."""
        return WeightTable.constant({m.name: m.weight for m in self.bank}, smoothness, classes)

    def levels_for(self, geometry: Geometry) -> tuple[Level, ...]:
        """Levels of an image: with ``reference_mm``, a shorter image gets proportionally smaller control spacings."""
        if self.reference_mm is None:
            return self.levels
        longest = float((geometry.spacing_mm * geometry.shape).max())
        return tuple(level.scaled(min(1.0, longest / self.reference_mm)) for level in self.levels)


class Settings(StrictModel):
    """One registration's settings, as in a preset file.

    Parameters
    ----------
    name : str
        What results call the settings.
    initial : str
        Initial alignment: a method of ``--init``, or a transform file.
    modality : "auto", "ct", "mr" or "multi"
        What both images are, and so the bank that is used; "auto" lets the images decide.
    smoothness : float
        Weight of the pairwise term against weights that add up to one.
    engine : str
        Inference engine of the levels.
    class_rule : str
        How the class of a node follows from the labels in its support.
    class_at : "displaced" or "anchored"
        Where those labels are looked up: at each displacement, or where the node is.
    class_reach : float
        Edge of the box in which the classes of a node are counted, in supports: above 1, nodes just outside an organ,
        whose border they see, use its column too.
    pairwise : "fluid" or "elastic"
        Whether smoothness is asked of each step or of the whole displacement.
    loss : str
        Loss between label maps that training lowers.
    engine_options, loss_options : tables
        Options of the engine, ``max_iter`` or ``tol`` say, and of the loss.
    levels : list of Level
        Discrete levels, coarse to fine.
    reference_mm : float, optional
        Length of image that the control spacings are meant for; a shorter one, a crop round a small organ say, gets
        proportionally smaller spacings.
    refine : Refine
        The continuous stage.
    banks : table
        Metrics for CT, for images on a scale of their own (``mr``) and for pairs of two modalities (``multi``).
    """

    name: str = Field(min_length=1, max_length=200)
    initial: str = "none"
    modality: Literal["auto", "ct", "mr", "multi"] = "auto"
    smoothness: Smoothness
    engine: str = "trws"
    class_rule: str = "foreground"
    class_at: Literal["displaced", "anchored"] = "anchored"
    class_reach: float = Field(default=1.0, ge=1, le=8)
    pairwise: Literal["fluid", "elastic"] = "fluid"
    loss: str = "dice"
    engine_options: PluginOptions
    loss_options: PluginOptions
    levels: Levels
    reference_mm: ReferenceMm | None = None
    refine: Refine = Refine()
    banks: dict[BankName, Bank]

    @model_validator(mode="after")
    def _check(self) -> Settings:
        for modality in self.banks:
            self.schedule(modality)
        return self

    def schedule(self, modality: BankName) -> Schedule:
        """Return the coarse-to-fine schedule with the bank of a modality."""
        if modality not in self.banks:
            raise UsageError(
                "E183",
                f"settings {self.name!r} have no bank for {BANKS[modality]}",
                f"use --preset default, or add [[banks.{modality}]]",
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
            engine_options=self.engine_options,
            loss_options=self.loss_options,
        )

    def with_refine_smoothness(self, value: float) -> Settings:
        """Return the same settings with one smoothness of the refinement for all modalities."""
        refine = self.refine.model_copy(update={"smoothness": value, "smoothness_ct": None, "smoothness_multi": None})
        return self.model_copy(update={"refine": refine})

    def with_refinement_of_preset(self) -> Settings:
        """Return the same settings with the refinement's smoothness of the preset that they are named after, if any."""
        if self.name not in preset_names():
            return self
        own = preset(self.name).refine
        names = ("smoothness", "smoothness_ct", "smoothness_multi")
        return self.model_copy(
            update={"refine": self.refine.model_copy(update={name: getattr(own, name) for name in names})}
        )

    def plugins(self) -> dict[str, dict[str, str | None]]:
        """Plug-ins that the settings name and that do not come with the package, with what is known of each."""
        named = [(metrics.registry, m.metric) for bank in self.banks.values() for m in bank]
        named += [(engines.registry, self.engine), (losses.registry, self.loss)]
        found = {f"{registry.kind}/{name}": registry.origin(name) for registry, name in named}
        return {name: origin.record() for name, origin in found.items() if origin.place != "regweave"}

    def toml(self) -> str:
        """Write the settings as TOML; reading it back gives the same settings."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


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
        message = f"settings in {source}: {describe_problems(error)}"
        raise UsageError("E185", message, "correct the named keys") from error
