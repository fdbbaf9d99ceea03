"""Quality assurance of propagated contours, as ``result.json`` holds it."""

from typing import Literal, Self

from pydantic import Field, StrictBool

from regweave.io.disk.records import Count, Known, Number, RecordPart, SafeName, Text, Whole
from regweave.types import LeftOut

REVIEW = "UNAPPROVED – needs review by a qualified person"
DONE_HERE = "computed here"
TESTS_SOURCE = "kinds of test: UK survey, table 1, doi 10.1259/bjr.20210001"
Flag = Literal["pass", "cut", "look", "fail"]


class PropagatedStructure(RecordPart):
    """Numbers of one propagated structure; None where there is nothing to measure."""

    number: Whole
    label: Whole | None = None
    name: Text
    type: Text
    note: Text
    found_today: StrictBool = False
    """Whether its contours were found in today's scan rather than carried; then ``outline_dice`` compares both."""
    volume_plan_ml: Known
    volume_today_ml: Known
    volume_change_percent: Known
    planes: Count
    points: Count = 0
    state: Text = ""  # How today's scan cuts the structure, which is no alarm; empty where it shows all of it
    outside_percent: Known  # Share of the plan's contour beyond today's scan
    pushed_percent: Known = None
    """Share that is beyond today's scan by the deformation, and would lie in it by the start alone."""
    centroid_shift_mm: Known = None
    displacement_mean_mm: Known = None
    displacement_max_mm: Known = None
    jacobian_least: Known = None
    jacobian_largest: Known = None
    inverse_p95_mm: Known = None
    outline_dice: Known = None
    flag: Flag
    reasons: tuple[Text, ...]


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

    # Hashes name patient and series; ``ids`` names them in clear where the user asks for it.
    status: Text = REVIEW
    patient_sha: Text
    plan_sha: Text
    today_sha: Text
    settings_sha: Text
    transform_sha256: Text = "–"
    grid_error_mm: Known = None
    structures: tuple[PropagatedStructure, ...]
    lost: tuple[LeftOut, ...]
    left_out: tuple[LeftOut, ...]
    whole: WholePair
    tests: tuple[TestKind, ...]
    tests_source: Text = TESTS_SOURCE
    names: dict[str, Text] = Field(default_factory=dict)
    files: dict[str, SafeName] = Field(default_factory=dict)
    slices_mm: tuple[Number, ...] = ()
    ids: dict[str, Text] | None = None

    @property
    def cut(self) -> list[PropagatedStructure]:
        """Structures that today's scan shows in part."""
        return [row for row in self.structures if row.state]

    def with_landmarks(self) -> Self:
        """Return the section with the test of landmarks as done."""
        tests = [one.model_copy(update={"state": DONE_HERE}) if one.kind == "E" else one for one in self.tests]
        return self.model_copy(update={"tests": tuple(tests)})
