"""Schemas of ``result.json`` and ``results.json``: what a page needs of a record, checked before a page is made.

A folder may come from a stranger. What is read is refused as a whole where a part is of another kind than regweave
writes; parts that no page shows are let through.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regweave.errors import RegweaveError
from regweave.io.disk.output_names import SAFE_ID
from regweave.io.disk.texts import shown

KINDS = {
    "list_type": "a list is needed",
    "model_type": "a table is needed",
    "dict_type": "a table is needed",
    "float_type": "a number is needed",
    "int_type": "a whole number is needed",
    "string_type": "a text is needed",
    "missing": "it is missing",
    "string_pattern_mismatch": "the name is not one that regweave gives",
}
"""Plain words for what does not fit."""
LARGEST = 1e100
"""Beyond this a number is none that a registration measures, and no axis can hold it."""

Text = Annotated[str, Field(max_length=10_000)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Known = Number | None
Value = Annotated[str, Field(pattern=r"^-?[0-9]{1,20}$")]
SafeName = Annotated[str, Field(pattern=f"^{SAFE_ID.pattern}$", max_length=200)]
"""A name that becomes part of a file's name: it leads nowhere else."""


class Part(BaseModel):
    """A table of a record; JSON has one kind of number, and nothing else is converted."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class Structure(Part):
    """Scores of one structure; those of ``results.json`` stand under their label."""

    name: Text
    state: Literal["scored", "vanished", "no reference", "not in moving", "unknown"] | None = None
    dice_before: Known = None
    dice_after: Known = None
    hd95_mm: Known = None
    assd_mm: Known = None
    volume_fixed_ml: Known = None
    volume_before_ml: Known = None
    volume_after_ml: Known = None


class LabelledStructure(Structure):
    """Scores of one structure in ``result.json``."""

    label: int


class Step(Part):
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


class Gradient(Part):
    """One step of the refinement."""

    data: Number
    smoothness: Number


class Columns(Part):
    """Weights of members in classes."""

    members: list[Text]
    classes: list[int]
    matrix: list[list[Number]]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.matrix) != len(self.members) or any(len(row) != len(self.classes) for row in self.matrix):
            raise ValueError("a row for each member and a column for each class are needed")
        return self


class Table(Columns):
    """All weights of a registration."""

    pairwise: Number


class Member(Part):
    """A member of a bank."""

    name: Text
    stage: Text


class Settings(Part):
    """Settings as the page reads them; all of them are printed."""

    name: Text
    banks: dict[str, list[Member]]


class Provenance(Part):
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
    settings: Settings


class There(Part):
    """Error after going there and back."""

    mean: Known
    p95: Known
    max: Known


class Inexact(Part):
    """Error of the inverse inside the body."""

    inexact_voxels: Count
    body_voxels: Count
    inexact_fraction: Number
    largest_mm: Number
    voxel: Annotated[list[Count], Field(min_length=3, max_length=3)]
    p99_mm: Known
    p99_voxels: Known


class Because(Part):
    """A broken rule."""

    rule: Text
    level: Literal["look", "fail"]
    text: Text


class Judged(Part):
    """A verdict."""

    verdict: Literal["pass", "look", "fail"]
    reasons: list[Because]
    unchecked: list[Text]
    rules: Text


class Total(Part):
    """Seconds of each stage, and of all."""

    total: Number
    __pydantic_extra__: dict[str, Number]


class ResultRecord(Part):
    """``result.json``."""

    structures: list[LabelledStructure]
    steps: list[Step]
    refinement: list[Gradient]
    seconds: Total
    peak_memory_mb: Number
    warnings: list[Text]
    weights: Table
    folding_fraction: Known
    extreme_fraction: Known = None
    sdlogj: Known
    sdlogj_l2r: Known
    min_jacobian: Known
    max_jacobian: Known
    inverse_consistency_mm: There
    inverse_error: Inexact | None = None
    verdict: Judged | None = None
    provenance: Provenance


class PairScores(Part):
    """Scores of a pair with a method."""

    labels: Annotated[dict[Value, Structure], Field(min_length=1)]
    seconds: Known = None
    peak_mb: Known = None
    folding_fraction: Known = None
    sdlogj: Known = None
    smoothness: Known = None
    warnings: list[Text] = []
    inverse_error: Inexact | None = None


class PairResult(Part):
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


class Difference(Part):
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


class Named(Part):
    """A method of an evaluation."""

    name: Text


class Limits(Part):
    """Limits of one rule."""

    look: Number | None = None
    fail: Number | None = None


class Criteria(Part):
    """Rules by which an evaluation was judged."""

    name: Text
    limits: dict[str, Limits]


class EvaluationRecord(Part):
    """``results.json``."""

    rules: Criteria | None = None
    results: Annotated[list[PairResult], Field(min_length=1)]
    reference: Text
    comparison: list[Difference] = []
    methods: list[Named] = []
    notes: list[Text] = []

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        methods = {row.method for row in self.results}
        if len({(row.id, row.method) for row in self.results}) < len(self.results):
            raise ValueError("a pair stands twice with one method")
        for what, name in (("reference", self.reference), *(("comparison", row.method) for row in self.comparison)):
            if name not in methods:
                raise ValueError(f"{what} names the method {shown(name)}, which has no results")
        return self


def checked(kind: type[Part], content: Mapping[str, Any], path: Path, *, defaults: bool = True) -> dict[str, Any]:
    """Check the content of a record against its schema; ``defaults`` adds what may be left out.

    Raises
    ------
    RegweaveError
        E178 with the first place that does not fit.
    """
    try:
        return kind.model_validate(content).model_dump(exclude_unset=not defaults)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=True)[0]
        place = ".".join(map(str, first["loc"]))[:80] or "it"
        text = KINDS.get(first["type"], first["msg"].removeprefix("Value error, "))
        found = "" if first["type"] in {"missing", "value_error"} else f", found {shown(first['input'])}"
        more = f" ({error.error_count()} faults in all)" if error.error_count() > 1 else ""
        message = f"'{path}' is not a record that regweave wrote: {place}: {text}{found}{more}"
        raise RegweaveError(
            "E178", message, "report on the folder as it was written, or make the result again"
        ) from error
