"""Pydantic schemas of ``reproduce.json`` and ``pictures.json``."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from regweave.io.records.schema import Count, Known, Number, RecordPart, SafeName, Text, Value
from regweave.measures.scores import PairScore
from regweave.report.records import Difference, Named, WeightColumns

LARGEST_PICTURE = 4000
"""Pixels along a side of a picture."""
PIXEL_MM = 0.9
"""Size of a pixel of a picture; slices are enlarged to it."""


class Scored(RecordPart):
    """Scores of one structure of a test pair."""

    state: Text | None = None
    dice_before: Known
    dice_after: Known


class Tested(RecordPart):
    """One registration of a test pair."""

    method: Text
    error: Text | None
    labels: dict[Value, Scored] = Field(default_factory=dict)
    folding_fraction: Known = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.error is None and not {"labels", "folding_fraction"} <= self.model_fields_set:
            raise ValueError("a registration without an error needs labels and folding_fraction")
        return self

    @property
    def score(self) -> PairScore:
        """State and Dice of each structure."""
        return PairScore.read((int(label), row.model_dump()) for label, row in self.labels.items())


class Tried(RecordPart):
    """A smoothness that was tried."""

    smoothness: Number


class Run(RecordPart):
    """Smoothness and weights of one method, learned on one split."""

    method: Text
    smoothness: Number
    tuning: list[Tried] = Field(default_factory=list)
    weights: WeightColumns | None = None
    registrations: Count | None = None
    inferences: Count | None = None


class SplitRecord(RecordPart):
    """Pairs of one split."""

    fold: Count
    repetition: Count
    train: list[Text]
    test: list[Text]


class Published(RecordPart):
    """A row of the paper's table."""

    SAD: Number
    MI: Number
    NCC: Number
    DWT: Number
    MW: Number
    increment: Number


class GainRecord(RecordPart):
    """Gain of the paper's method over a rival."""

    label: Text | None
    over: Text
    mean: Known
    low: Known
    high: Known
    best_single: bool


class Distance(RecordPart):
    """Distance to the known deformation."""

    before: Number
    after: Number


class DrawRules(RecordPart):
    """Draws of an experiment from a larger set, and the start of its registrations."""

    patients: Count
    test_pairs: Count | None
    initial: Text | None


class ExperimentRecord(RecordPart):
    """One experiment of a reproduction."""

    name: SafeName
    title: Text
    paper_set: Text
    classes: dict[Value, Text]
    paper_organs: dict[str, Text]
    paper: dict[str, Published]
    differences: list[Text]
    source: Text
    overlay: bool
    rules: DrawRules | None = None
    cases: list[Text]
    cases_found: Count | None = None
    methods: list[Text]
    splits: Annotated[list[SplitRecord], Field(min_length=1)]
    runs: list[Run]
    results: list[Tested]
    comparison: list[Difference]
    gains: list[GainRecord]
    truth_error_mm: dict[str, dict[str, Distance]] | None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not {*self.paper_organs.values()} <= self.paper.keys():
            raise ValueError("paper_organs names an organ that paper lacks")
        if "model:mw" not in self.methods or not {*self.methods} <= {run.method for run in self.runs}:
            raise ValueError("methods and runs do not agree, or model:mw is not among them")
        learned = [run.weights for run in self.runs if run.method == "model:mw"]
        if any(w is None or (w.members, w.classes) != (learned[0].members, learned[0].classes) for w in learned):  # type: ignore[union-attr]
            raise ValueError("the weights of model:mw differ in their members or classes")
        intervals = [(row.low, row.high) for row in self.comparison] + [(row.low, row.high) for row in self.gains]
        if any((low is None) != (high is None) for low, high in intervals):
            raise ValueError("an interval has one end only")
        if len({frozenset(of) for of in (self.truth_error_mm or {}).values()}) > 1:
            raise ValueError("truth_error_mm has other structures for other methods")
        return self


class ReproduceRecord(RecordPart):
    """``reproduce.json``."""

    quick: bool
    seed: int
    max_pairs: Count | None = None
    max_folds: Count | None = None
    settings: Named
    experiments: Annotated[list[ExperimentRecord], Field(min_length=1)]
    timing: dict[str, dict[str, Number]]


class Packed(RecordPart):
    """A small array."""

    shape: Annotated[list[Annotated[int, Field(ge=1, le=LARGEST_PICTURE)]], Field(min_length=2, max_length=2)]
    dtype: Literal["<f4", "<f8", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "|b1"]
    data: str

    @model_validator(mode="after")
    def _whole(self) -> Self:
        try:
            raw = base64.b64decode(self.data, validate=True)
        except binascii.Error as error:
            raise ValueError("data is no base64") from error
        if len(raw) != self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize:
            raise ValueError(f"{len(raw)} bytes do not fill an array of shape {self.shape}")
        if not np.isfinite(np.frombuffer(raw, np.dtype(self.dtype)).astype(np.float64)).all():
            raise ValueError("a pixel is not a finite number")
        return self

    def array(self) -> NDArray[Any]:
        """Return the array that was packed."""
        return np.frombuffer(base64.b64decode(self.data), np.dtype(self.dtype)).reshape(self.shape)


class Slice(RecordPart):
    """A slice of an image, enlarged to pixels of one size."""

    image: Packed
    pixel_mm: Annotated[list[Annotated[float, Field(gt=0.0, le=1000.0)]], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _require_small(self.image, self.pixel_mm)
        return self


class Layer(RecordPart):
    """Image and labels of a slice."""

    image: Packed
    labels: Packed


class Cut(RecordPart):
    """A slice of fixed image, and of the moving one before and after registration."""

    pixel_mm: Annotated[list[Annotated[float, Field(gt=0.0, le=1000.0)]], Field(min_length=2, max_length=2)]
    fixed: Layer
    before: Layer
    after: Layer

    @model_validator(mode="after")
    def _fits(self) -> Self:
        shapes = {tuple(p.shape) for of in (self.fixed, self.before, self.after) for p in (of.image, of.labels)}
        if len(shapes) > 1:
            raise ValueError("the arrays of a slice differ in shape")
        _require_small(self.fixed.image, self.pixel_mm)
        return self


class Looks(RecordPart):
    """Pictures of one experiment."""

    pair: Text
    shown: dict[str, dict[SafeName, Cut]]
    samples: dict[SafeName, Slice]

    @model_validator(mode="after")
    def _same(self) -> Self:
        if len({frozenset(views) for views in self.shown.values()}) > 1:
            raise ValueError("methods are shown in different views")
        if self.shown and "model:mw" not in self.shown:
            raise ValueError("model:mw is not shown")
        return self


class PicturesRecord(RecordPart):
    """``pictures.json``: by experiment; each is checked as `Looks`."""

    __pydantic_extra__: dict[str, Looks]

    @property
    def looks(self) -> dict[str, Looks]:
        """Pictures by experiment."""
        return self.__pydantic_extra__


def _require_small(image: Packed, pixel_mm: list[float]) -> None:
    sides = [n * mm / PIXEL_MM for n, mm in zip(image.shape, pixel_mm, strict=True)]
    if not 1.0 <= min(sides) <= max(sides) <= LARGEST_PICTURE:
        raise ValueError(f"a picture of {sides[0]:.4g} × {sides[1]:.4g} pixels, allowed are 1 to {LARGEST_PICTURE}")
