"""Pydantic schemas of ``result.json`` and of the ``results.json`` of an evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from regweave.io.disk.records import Count, Known, Number, RecordPart, SafeName, Text, Value
from regweave.io.disk.text import shown
from regweave.jobs.batch_record import Because
from regweave.measures.propagation import ClinicSection
from regweave.measures.scores import PairScore, State


class StructureNumbers(RecordPart):
    """Scores of one structure, as `StructureScore.record` writes them: what has no name here is a number."""

    name: Text
    state: State | None = None
    missing: bool | None = None
    __pydantic_extra__: dict[str, Known]


class LabelledStructure(StructureNumbers):
    """Scores of one structure in ``result.json``; those of ``results.json`` stand under their label."""

    label: int


class DiscreteStep(RecordPart):
    """One discrete step."""

    step: Count
    spacing_mm: Number
    n_nodes: Count
    n_labels: Count
    energy: Number
    lower_bound: Known
    gap: Known
    iterations: Count
    seconds: dict[str, Number]


class Gradient(RecordPart):
    """One step of the refinement."""

    data: Number
    smoothness: Number


class WeightColumns(RecordPart):
    """Weights of members in classes."""

    members: list[Text]
    classes: list[int]
    matrix: list[list[Number]]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.matrix) != len(self.members) or any(len(row) != len(self.classes) for row in self.matrix):
            raise ValueError("a row for each member and a column for each class are needed")
        return self


class RecordedWeights(WeightColumns):
    """All weights of a registration."""

    pairwise: Number


class BankMember(RecordPart):
    """A member of a bank."""

    name: Text
    stage: Text


class RecordedSettings(RecordPart):
    """Name and banks of the settings; all of them are printed."""

    name: Text
    banks: dict[str, list[BankMember]]


class Provenance(RecordPart):
    """Inputs, versions and settings."""

    regweave: Text
    python: Text
    dependencies: dict[str, Text]
    platform: Text
    threads: Count
    modality: Text | dict[str, Any] | None = None
    start: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    classes_from: Text
    inputs_sha256: dict[str, Text]
    settings: RecordedSettings

    @model_validator(mode="after")
    def _named(self) -> Self:
        start, model = self.start or {"requested": "", "used": ""}, self.model or {"name": "", "used": ""}
        words = [start.get("requested"), start.get("used"), model.get("name"), model.get("used")]
        words += [start["file"]] if start.get("file") is not None else []
        if not all(isinstance(word, str) for word in words) or not isinstance(model.get("class_names", {}), dict):
            raise ValueError("start and model need what was requested and what was used, as texts")
        return self


class There(RecordPart):
    """Error after going there and back."""

    mean: Known
    p95: Known
    max: Known


class Inexact(RecordPart):
    """Error of the inverse inside the body."""

    inexact_voxels: Count
    body_voxels: Count
    inexact_fraction: Number
    largest_mm: Number
    voxel: Annotated[list[Count], Field(min_length=3, max_length=3)]
    p99_mm: Known
    p99_voxels: Known


class Judged(RecordPart):
    """A verdict."""

    verdict: Literal["pass", "look", "fail"]
    reasons: list[Because]
    unchecked: list[Text]
    rules: Text


class Total(RecordPart):
    """Seconds of each stage, and of all."""

    total: Number
    __pydantic_extra__: dict[str, Number]


Point = Annotated[list[Number], Field(min_length=3, max_length=3)]


class LandmarkError(RecordPart):
    """A landmark in both images, its partner in the fixed one, and its errors."""

    name: Text
    fixed_mm: Point
    moving_mm: Point
    start_mm: Point
    warped_mm: Point
    before_mm: Number
    after_mm: Number


class LandmarkErrors(RecordPart):
    """Target registration errors."""

    before_mm: There
    after_mm: There
    points: Annotated[list[LandmarkError], Field(min_length=1)]


class RulesOfRecord(RecordPart):
    """Limits by rule, and where they come from."""

    name: Text
    limits: dict[str, dict[str, Number]]
    sources: dict[str, Text] = Field(default_factory=dict)


class ResultRecord(RecordPart):
    """``result.json``."""

    structures: list[LabelledStructure]
    steps: list[DiscreteStep]
    refinement: list[Gradient]
    seconds: Total
    peak_memory_mb: Number
    warnings: list[Text]
    weights: RecordedWeights
    folding_fraction: Known
    extreme_fraction: Known = None
    low_fraction: Known = None
    high_fraction: Known = None
    sdlogj: Known
    sdlogj_l2r: Known
    min_jacobian: Known
    max_jacobian: Known
    jacobian_p1: Known = None
    jacobian_p99: Known = None
    inverse_consistency_mm: There
    inverse_error: Inexact | None = None
    verdict: Judged | None = None
    landmarks: LandmarkErrors | None = None
    clinic: ClinicSection | None = None
    rules: RulesOfRecord | None = None
    provenance: Provenance

    @property
    def score(self) -> PairScore:
        """State and Dice of each structure."""
        return PairScore.read((row.label, row.model_dump()) for row in self.structures)


class PairScores(RecordPart):
    """Scores of a pair with a method."""

    labels: Annotated[dict[Value, StructureNumbers], Field(min_length=1)]
    seconds: Known = None
    peak_mb: Known = None
    folding_fraction: Known = None
    sdlogj: Known = None
    smoothness: Known = None
    warnings: list[Text] = Field(default_factory=list)
    inverse_error: Inexact | None = None

    @property
    def score(self) -> PairScore:
        """State and Dice of each structure."""
        return PairScore.read((int(label), row.model_dump()) for label, row in self.labels.items())


class PairResult(RecordPart):
    """One registration of an evaluation."""

    id: SafeName
    method: Text
    error: Text | None
    verdict: Judged | None = None
    scores: PairScores | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.error is None and self.scores is None:
            raise ValueError(f"no scores of {self.id} with {shown(self.method)}")
        return self


class PairInputs(RecordPart):
    """Hashes of the files of a pair."""

    id: Text
    group: Text | None = None
    inputs_sha256: dict[str, Text] = Field(default_factory=dict)


class Difference(RecordPart):
    """A method against the reference."""

    method: Text
    label: Text | None
    mean: Known
    low: Known
    high: Known
    n: Count
    better: Count
    worse: Count
    equal: Count


class Named(RecordPart):
    """A method of an evaluation."""

    name: Text


class Limits(RecordPart):
    """Limits of one rule."""

    look: Number | None = None
    fail: Number | None = None


class Criteria(RecordPart):
    """Rules by which an evaluation was judged."""

    name: Text
    limits: dict[str, Limits]


class EvaluationRecord(RecordPart):
    """``results.json``."""

    rules: Criteria | None = None
    results: Annotated[list[PairResult], Field(min_length=1)]
    reference: Text
    withheld: list[int] = Field(default_factory=list)
    comparison: list[Difference] = Field(default_factory=list)
    methods: list[Named] = Field(default_factory=list)
    pairs: list[PairInputs] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        methods = {row.method for row in self.results}
        if len({(row.id, row.method) for row in self.results}) < len(self.results):
            raise ValueError("a pair stands twice with one method")
        for what, name in (("reference", self.reference), *(("comparison", row.method) for row in self.comparison)):
            if name not in methods:
                raise ValueError(f"{what} names the method {shown(name)}, which has no results")
        return self
