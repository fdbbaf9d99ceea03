"""Records of a model: its file, its card, and its training with all candidates and their gains.

A model file may come from a stranger: every number has a range, and a part of another kind is an error. In the training
record missing parts are empty, and unknown keys are kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    ValidationError,
    field_validator,
)

from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io.disk.files import read_json, sha256
from regweave.io.disk.outputs import atomic_path
from regweave.io.modality import BankName
from regweave.model.domain import Domain
from regweave.types import WeightTable

FORMAT: Final = "regweave-model"
VERSION: Final = 1
Levels = Literal["all", "finest"]  # levels with learned weights: all, or the last one and the refinement
LABEL = re.compile("0|[1-9][0-9]{0,18}")
LARGEST_LABEL = 2**63 - 1
MOST_CLASSES = 4096
MOST_MEMBERS = 32


def _label(key: Any) -> Any:
    if isinstance(key, str) and not LABEL.fullmatch(key):
        raise ValueError(f"found {key[:40]!r}, allowed: whole numbers from 0 to {LARGEST_LABEL}")
    return key


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Label = Annotated[int, BeforeValidator(_label), Field(le=LARGEST_LABEL)]
Name = Annotated[str, Field(max_length=200)]
Weight = Annotated[float, Field(strict=True, ge=-1e6, le=1e6)]
"""Weight of a term of an energy; sums over all nodes and labels stay finite."""
Stiffness = Annotated[float, Field(strict=True, ge=1e-3, le=1e3)]  # factor on the smoothness of a class


Number = Annotated[float | None, BeforeValidator(_finite)]
"""A number; None, null in JSON, where it could not be computed."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class ModelCard(BaseModel):
    """Model card: purpose and origin of a model in words."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=1000)

    images: str
    body_part: str | None = None
    field_of_view: str | None = None
    voxels: str | None = None  # part of the body, what the images show of it, and the sizes of their voxels
    data: str | None = None
    data_licence: str | None = None  # where the training images come from, and their licence
    licence: str | None = None  # licence of the model file itself: its weights and the parameters of its predictor
    gain: str | None = None  # gain in Dice over the preset alone, and with which labels it was measured
    made: str | None = None
    avoid: str | None = None  # when not to use the model


class Gain(_Part):
    """Mean gain in Dice on left-out pairs, with the 95 % interval of the mean."""

    mean: Number = None
    low: Number = None
    high: Number = None
    n: int | None = None


class GateRecord(_Part):
    """Gain of one choice on left-out pairs, its standard error, and the decision."""

    gain: Number = None
    standard_error: Number = None
    n: int | None = None
    used: bool = False


class Tuning(_Part):
    """Smoothness that was taken, and the mean Dice at each value tried."""

    smoothness: Number = None
    curve: tuple[Mapping[str, Number], ...] = ()  # `smoothness` and `mean_dice`
    mean_dice: Number = None


class SmoothnessRecord(Tuning):
    """Tuning of the discrete levels, then of the refinement."""

    refine: Tuning | None = None


class MemberTrial(_Part):
    """Line search over the weight of one member of the refinement."""

    member: str = ""
    curve: tuple[Mapping[str, Number], ...] = ()  # `factor` and `mean_dice`
    before: Number = None
    used: Number = None
    gain: Number = None
    standard_error: Number = None
    n: int | None = None


class RefinementColumns(_Part):
    """Preferred factors of the refinement's members by structure, and the gain by them."""

    factors: dict[str, dict[str, Number]] = {}
    share: Number = None
    gates: dict[str, GateRecord] = {}
    gain: Gain | None = None


class BackgroundTrial(_Part):
    """Change of known structures by a background left to the images."""

    change: Number = None
    n: int | None = None
    used: bool = False


class StartTrial(_Part):
    """Gain of left-out patients by a start from structures, and the start used."""

    before: str = ""
    used: str = ""
    gain: Number = None
    standard_error: Number = None
    n: int | None = None


class RefinementRecord(_Part):
    """Weights tried for the members of the refinement, and what they gained."""

    members: tuple[MemberTrial, ...] = ()
    gain: Gain | None = None
    smoothness: Tuning | None = None
    without_mask: WithoutMask | None = None
    columns: RefinementColumns | None = None
    background: BackgroundTrial | None = None
    start: StartTrial | None = None


class OwnWeights(RefinementRecord):
    """Search without moving labels, the mean Dice of its weights, and whether they are used."""

    mean_dice: Number = None
    used: bool = False


class WithoutMask(GateRecord):
    """Gain of comparing predicted labels where no moving labels are given.

    ``mean_dice`` is that of the better way; ``own`` are weights that were searched without moving labels.
    """

    mean_dice: Number = None
    own: OwnWeights | None = None


class Candidate(_Part):
    """One setting of the learner: surrogate loss on samples beside Dice of left-out masks."""

    C: Number = None
    alpha: Number = None
    eta: Number = None
    share: Number = None
    balance: Number = None
    strengths: dict[str, float] = {}
    surrogate_uniform: Number = None
    surrogate_learned: Number = None
    dice_uniform: Number = None
    dice_learned: Number = None
    dice_gated: Number = None
    gated_classes: tuple[int, ...] = ()


class FitPoint(_Part):
    """One outer iteration of a fit."""

    number: int | None = None
    objective: Number = None
    duality_gap: Number = None
    upper: Number = None
    slack_sum: Number = None
    predicted_loss: Number = None
    imputed_loss: Number = None
    certified_epsilon: Number = None


class LeftOutDice(_Part):
    """Dice of a predictor's segmentations of left-out images, by class and on average."""

    dice: dict[str, Number] = {}
    mean_dice: Number = None
    n_images: int | None = None


class PredictorChoice(_Part):
    """Chosen kind of predictor, and the result of each kind on left-out images."""

    kind: str = ""
    left_out: dict[str, LeftOutDice] = {}


class StageCount(_Part):
    """Registrations and inferences of one stage of training, and its seconds, which no model contains."""

    registrations: int | None = None
    inferences: int | None = None
    seconds: Number = None


class TrainingRecord(_Part):
    """Training record: what a model was trained on, what was tried, and what it gained."""

    regweave: str | None = None
    method: str | None = None  # training method; None for a model that was written by hand
    device: str = "cpu"  # device of the registrations; on a GPU numbers may differ in the last places
    groups: tuple[str, ...] = ()
    pairs: dict[str, dict[str, str]] = {}  # SHA-256 of the files of each pair, by column
    chosen: dict[str, tuple[str, ...]] = {}
    """Ids of the pairs that smoothness was tuned with (``tune``) and weights were tried, judged and learned with
    (``judge``), where these are not all."""
    failed: dict[str, str] = {}
    skipped: dict[str, tuple[int, ...]] = {}
    """Code of the error of pairs that were left out; structures that a pair does not show."""
    registrations: int | None = None
    inferences: int | None = None
    stages: dict[str, StageCount] = Field(default_factory=dict)
    options: dict[str, Any] = {}
    learned_on: tuple[str, ...] = ()
    smoothness: SmoothnessRecord | None = None  # tuning of the uniform bank
    refinement: RefinementRecord | None = None
    guides: RefinementRecord | None = None  # weights tried for structures that guide
    surrogate_and_dice: tuple[Candidate, ...] = ()
    hyper: dict[str, Any] = {}  # options of the training, and the hyper-parameters that were taken
    share: Number = None
    balance: Number = None
    strengths: dict[str, float] = {}
    """Way from the uniform bank to the learned weights, factor on its smoothness, factors on columns by class."""
    gates: dict[str, GateRecord] = {}  # decision for the column of each class
    left_out_gain: Gain | None = None  # None where nothing learned is used; see `judged`
    learned: tuple[tuple[Number, ...], ...] = ()
    learned_by_fold: tuple[tuple[tuple[Number, ...], ...], ...] = ()
    """Weights before share and gates, (M, C), on all pairs and on each fold."""
    history: dict[str, tuple[FitPoint, ...]] = {}  # learning curve of each fit
    predictor_groups: tuple[str, ...] = ()  # patients that weights and predictor were trained on, `p07` or `p07+p11`
    predictor: PredictorChoice | None = None
    """Results of the kinds of predictors on left-out patients, where there were several."""

    @property
    def judged(self) -> bool:
        """True if the training was evaluated on left-out patients."""
        return "left_out_gain" in self.model_fields_set

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Groups of patients in the training of the weights or of the predictor."""
        return (*self.groups, *self.predictor_groups)

    def to_json(self) -> dict[str, Any]:
        """Return what was recorded, and nothing else, as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True)

    def strength(self, value: int) -> float:
        """Return the factor on the whole column of a class, 1 where none is recorded."""
        return self.strengths.get(str(value), 1.0)

    def uses_column(self, value: int) -> bool:
        """Return whether the learned column of a class is used."""
        return str(value) in self.gates and self.gates[str(value)].used


class TableRecord(BaseModel):
    """Weight table in a model file, with rows by member and class."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    pairwise: Annotated[Weight, Field(ge=0)]
    weights: Annotated[dict[Name, dict[Label, Weight]], Field(max_length=MOST_MEMBERS)]
    stiffness: Annotated[dict[Label, Stiffness], Field(max_length=MOST_CLASSES)] | None = Field(
        default=None, exclude_if=lambda given: given is None
    )

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
        if not any(any(row.values()) for row in weights.values()):
            raise ValueError("all weights are 0")
        return weights

    @classmethod
    def of(cls, w: WeightTable, **parts: Any) -> Self:
        """Return the record of a table, with other parts of the file."""
        rows = zip(w.members, w.matrix.tolist(), strict=True)
        stiffness = None if w.stiffness is None else dict(zip(w.classes, w.stiffness.tolist(), strict=True))
        weights = {member: dict(zip(w.classes, row, strict=True)) for member, row in rows}
        return cls(pairwise=w.pairwise, weights=weights, stiffness=stiffness, **parts)

    def table(self, classes: tuple[int, ...]) -> WeightTable:
        """Return the table of some classes; the stiffness of a class without one is 1."""
        unknown = sorted((self.stiffness or {}).keys() - {*classes})
        if unknown:
            raise ValueError(f"stiffness has the class {unknown[0]}, allowed: {', '.join(map(str, classes[:10]))}")
        for member, row in self.weights.items():
            for c in classes:
                if c not in row:
                    raise ValueError(f"weights.{member[:40]} has no number for class {c}")
        matrix = np.array([[row[c] for c in classes] for row in self.weights.values()], dtype=np.float64)
        stiffness = None if self.stiffness is None else np.array([self.stiffness.get(c, 1.0) for c in classes])
        return WeightTable(matrix, tuple(self.weights), classes, self.pairwise, stiffness)


class _Head(BaseModel):
    """First keys of a model file."""

    format: Literal["regweave-model"] = FORMAT
    version: Literal[1] = VERSION
    card: Annotated[ModelCard, PlainSerializer(lambda card: card.model_dump(exclude_none=True))] | None = Field(
        default=None, exclude_if=lambda given: given is None
    )
    plugins: dict[str, Any] = Field(default={}, exclude_if=lambda given: not given)
    modality: BankName
    classes: Annotated[dict[Label, Name], Field(max_length=MOST_CLASSES)]

    @field_validator("classes")
    @classmethod
    def _background(cls, classes: dict[int, str]) -> dict[int, str]:
        if 0 not in classes:
            raise ValueError("classes must hold 0, the background")
        return classes


class ModelFile(TableRecord, _Head):
    """Content of a model file, the fields of `_Head` first; the predictor is written apart, at the end of the file."""

    without_mask: TableRecord | None = Field(default=None, exclude_if=lambda given: given is None)
    levels: Levels = "all"
    outline_without_mask: StrictBool = True
    scales: None = None
    settings: Settings
    evidence: Annotated[TrainingRecord, PlainSerializer(TrainingRecord.to_json)] = TrainingRecord()
    domain: Domain | None = Field(default=None, exclude_if=lambda given: given is None)
    class_predictor: Annotated[dict[str, Any], Field(max_length=MOST_MEMBERS)] | None = Field(
        default=None, exclude=True
    )


def effort_path(model: Path) -> Path:
    """Return the file of the cost of a training, beside the model, which does not depend on the machine."""
    return model.with_name(f"{model.stem}.effort.json")


def write_effort(model: Path, stages: Mapping[str, Mapping[str, float]]) -> None:
    """Write the cost of the stages beside a model, bound to it by its hash."""
    content = {"model_sha256": sha256(model), "stages": stages}
    with atomic_path(effort_path(model)) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_effort(model: Path) -> dict[str, StageCount]:
    """Return the cost of the stages; empty where there is no file of this model."""
    try:
        content = read_json(effort_path(model))
        stages = {name: StageCount.model_validate(of) for name, of in content.get("stages", {}).items()}
    except (RegweaveError, ValidationError, AttributeError):
        return {}
    return stages if content.get("model_sha256") == sha256(model) else {}
