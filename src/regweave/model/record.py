"""Training record of a model: data, effort, candidates tried and their gains.

The JSON of a model file holds it under ``evidence``. Parts that are missing are empty here; a part of another kind is
an error of the file, because a model may come from a stranger. Keys that are not known are kept as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from regweave.errors import RegweaveError
from regweave.io.disk.files import sha256
from regweave.io.disk.outputs import atomic_path
from regweave.io.disk.records import Count, Known, RecordPart, Text, read_record


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite)]
"""A number; None, null in JSON, where it could not be computed."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class ModelCard(BaseModel):
    """Model card: what a model is for, in words.

    Parameters
    ----------
    images : str
        Kind of images.
    body_part, field_of_view, voxels : str, optional
        Part of the body, what the images show of it, and the sizes of their voxels.
    data, data_licence : str, optional
        Where the training images come from, and their licence.
    licence : str, optional
        Licence of the model file itself: its weights and the parameters of its predictor.
    gain : str, optional
        Gain in Dice over the preset alone, and with which labels it was measured.
    made : str, optional
        Date of the model.
    avoid : str, optional
        When not to use the model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=1000)

    images: str
    body_part: str | None = None
    field_of_view: str | None = None
    voxels: str | None = None
    data: str | None = None
    data_licence: str | None = None
    licence: str | None = None
    gain: str | None = None
    made: str | None = None
    avoid: str | None = None


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


class TunedPoint(_Part):
    """Mean Dice at one smoothness."""

    smoothness: Number = None
    mean_dice: Number = None


class Tuning(_Part):
    """Smoothness that was taken, and the mean Dice at each value tried."""

    smoothness: Number = None
    curve: tuple[TunedPoint, ...] = ()
    mean_dice: Number = None


class SmoothnessRecord(Tuning):
    """Tuning of the discrete levels, then of the refinement."""

    refine: Tuning | None = None


class FactorPoint(_Part):
    """Mean Dice at one weight of a member."""

    factor: Number = None
    mean_dice: Number = None


class MemberTrial(_Part):
    """Line search over the weight of one member of the refinement."""

    member: str = ""
    curve: tuple[FactorPoint, ...] = ()
    before: Number = None
    used: Number = None
    gain: Number = None
    standard_error: Number = None
    n: int | None = None


class RefinementColumns(_Part):
    """Factors of the refinement's members that each structure asked for, and what it gained by them."""

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
    """Kind of predictor that was taken, and what left-out images said of each kind."""

    kind: str = ""
    left_out: dict[str, LeftOutDice] = {}


class StageCount(_Part):
    """Registrations and inferences of one stage of training."""

    registrations: int | None = None
    inferences: int | None = None


class TrainingRecord(_Part):
    """Training record: what a model was trained on, what was tried, and what it gained.

    Parameters
    ----------
    method : str, optional
        Training method; None for a model that was written by hand.
    device : str
        What registered; on a GPU numbers may differ in the last places.
    groups, predictor_groups : tuples of str
        Patients that weights and predictor were trained on, ``p07`` or ``p07+p11``.
    pairs : mapping
        SHA-256 of the files of each pair, by column.
    chosen : mapping
        Ids of the pairs that smoothness was tuned with (``tune``) and weights were tried, judged and learned with
        (``judge``), where these are not all.
    failed, skipped : mappings
        Code of the error of pairs that were left out; structures that a pair does not show.
    stages : mapping
        Effort of each stage.
    options, hyper : mappings
        Options of the training, and the hyper-parameters that were taken.
    smoothness : SmoothnessRecord, optional
        Tuning of the uniform bank.
    share, balance, strengths
        Way from the uniform bank to the learned weights, factor on its smoothness, factors on columns by class.
    gates : mapping
        Decision for the column of each class.
    left_out_gain : Gain, optional
        None where nothing learned is used; see ``judged``.
    learned, learned_by_fold
        Weights before share and gates, (M, C), on all pairs and on each fold.
    history : mapping
        Learning curve of each fit.
    predictor : PredictorChoice, optional
        What left-out patients said of the kinds of predictors, where they were asked.
    """

    regweave: str | None = None
    method: str | None = None
    device: str = "cpu"
    groups: tuple[str, ...] = ()
    pairs: dict[str, dict[str, str]] = {}
    chosen: dict[str, tuple[str, ...]] = {}
    failed: dict[str, str] = {}
    skipped: dict[str, tuple[int, ...]] = {}
    registrations: int | None = None
    inferences: int | None = None
    stages: dict[str, StageCount] = {}
    options: dict[str, Any] = {}
    learned_on: tuple[str, ...] = ()
    smoothness: SmoothnessRecord | None = None
    refinement: RefinementRecord | None = None
    surrogate_and_dice: tuple[Candidate, ...] = ()
    hyper: dict[str, Any] = {}
    share: Number = None
    balance: Number = None
    strengths: dict[str, float] = {}
    gates: dict[str, GateRecord] = {}
    left_out_gain: Gain | None = None
    learned: tuple[tuple[Number, ...], ...] = ()
    learned_by_fold: tuple[tuple[tuple[Number, ...], ...], ...] = ()
    history: dict[str, tuple[FitPoint, ...]] = {}
    predictor_groups: tuple[str, ...] = ()
    predictor: PredictorChoice | None = None

    @property
    def judged(self) -> bool:
        """True if left-out patients were looked at, whatever they gained."""
        return "left_out_gain" in self.model_fields_set

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Groups of patients that either the weights or the predictor have seen."""
        return (*self.groups, *self.predictor_groups)

    def to_json(self) -> dict[str, Any]:
        """Return what was recorded, and nothing else, as JSON values.

        Examples
        --------
        >>> TrainingRecord(groups=("p07+p11",)).to_json()
        {'groups': ['p07+p11']}
        """
        return self.model_dump(mode="json", exclude_unset=True)

    def without(self, *keys: str) -> TrainingRecord:
        """Return the record without some of its parts."""
        return TrainingRecord.model_validate({k: v for k, v in self.to_json().items() if k not in keys})

    def with_parts(self, **parts: Any) -> TrainingRecord:
        """Return the record with some of its parts replaced or added."""
        return TrainingRecord.model_validate({**self.to_json(), **parts})

    def strength(self, value: int) -> float:
        """Return the factor on the whole column of a class, 1 where none is recorded."""
        return self.strengths.get(str(value), 1.0)

    def uses_column(self, value: int) -> bool:
        """Tell whether the learned column of a class is used."""
        return str(value) in self.gates and self.gates[str(value)].used


class StageCost(RecordPart):
    """Registrations, inferences and seconds of one stage."""

    registrations: Count | None = None
    inferences: Count | None = None
    seconds: Known = None


class _EffortRecord(RecordPart):
    model_sha256: Text
    stages: dict[str, StageCost] = Field(default_factory=dict)


def effort_path(model: Path) -> Path:
    """Return where the cost of a training is kept: beside the model, which does not depend on the machine."""
    return model.with_name(f"{model.stem}.effort.json")


def write_effort(model: Path, stages: Mapping[str, Mapping[str, float]]) -> None:
    """Write what the stages have cost beside a model, bound to it by its hash."""
    content = {"model_sha256": sha256(model), "stages": stages}
    with atomic_path(effort_path(model)) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_effort(model: Path) -> dict[str, StageCost]:
    """Return what the stages have cost; empty where no file says it, or it speaks of another model."""
    try:
        found = read_record(_EffortRecord, effort_path(model))
    except RegweaveError:
        return {}
    return found.stages if found.model_sha256 == sha256(model) else {}
