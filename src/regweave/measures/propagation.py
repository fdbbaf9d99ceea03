"""Quality assurance of propagated contours, as ``result.json`` holds it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from regweave.io.disk.records import Count, Known, Number, RecordPart, SafeName, Text


class PropagatedStructure(RecordPart):
    """Numbers of one propagated structure."""

    number: int
    label: int | None = None
    name: Text
    type: Text
    note: Text
    volume_plan_ml: Known
    volume_today_ml: Known
    volume_change_percent: Known
    centroid_shift_mm: Known
    displacement_mean_mm: Known
    displacement_max_mm: Known
    jacobian_least: Known
    jacobian_largest: Known
    inverse_p95_mm: Known
    planes: Count
    outside_percent: Known
    pushed_percent: Known = None
    state: Text = ""
    flag: Literal["pass", "cut", "look", "fail"]
    reasons: list[Text]


class NotCarried(RecordPart):
    """A structure that is not in the set, and why."""

    name: Text
    reason: Text


class WholePair(RecordPart):
    """Numbers of both scans and the whole transform."""

    plan: Text
    today: Text
    frames: Text
    overlap_percent: Known
    today_values: Text = "taken from the file"
    field_of_view: Text = "whole patient"
    missing_ends: Text = ""
    bones_bent_mm: Known = None
    displacement_p95_mm: Known = None
    start: Text
    similarity_headers: Known
    similarity_before: Known
    similarity_after: Known
    folding_percent: Known
    inverse_mean_mm: Known
    inverse_p95_mm: Known
    inverse_max_mm: Known
    both_ways_mean_mm: Known = None
    both_ways_p95_mm: Known = None
    both_ways_max_mm: Known = None
    both_ways_voxels: Known = None


class TestKind(RecordPart):
    """A kind of test, and whether it was done."""

    kind: Text
    what: Text
    state: Text

    @property
    def not_done(self) -> bool:
        """Whether nothing of the kind was done."""
        return self.state.startswith("not done")


class ClinicSection(RecordPart):
    """Quality assurance of propagated contours."""

    status: Text
    patient_sha: Text
    plan_sha: Text
    today_sha: Text
    settings_sha: Text
    transform_sha256: Text = "–"
    grid_error_mm: Known = None
    structures: list[PropagatedStructure]
    lost: list[NotCarried]
    left_out: list[NotCarried]
    whole: WholePair
    tests: list[TestKind]
    tests_source: Text
    names: dict[str, Text] = Field(default_factory=dict)
    files: dict[str, SafeName] = Field(default_factory=dict)
    slices_mm: list[Number] = Field(default_factory=list)
    ids: dict[str, Text] | None = None

    @property
    def cut(self) -> list[PropagatedStructure]:
        """Structures that today's scan shows in part."""
        return [row for row in self.structures if row.state]
