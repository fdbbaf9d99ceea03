"""Result of one registration: transforms, warped images, scores and provenance."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    computed_field,
    model_validator,
)

from regweave import extras
from regweave.errors import RegweaveError
from regweave.io import atomic_path, fill_value, prepare_output, read_image, read_labels, require_absent
from regweave.io.disk.files import is_folder, read_json
from regweave.io.disk.records import RESULT, Number, RecordPart, Text, Whole, checked, plain, write_record
from regweave.measures.landmarks import LandmarkPairs, LandmarkScore, score_landmarks
from regweave.measures.likeness import Likeness
from regweave.measures.propagation import ClinicSection
from regweave.measures.scores import InverseError, PairScore, Regularity, RoundTrip, StructureScore
from regweave.measures.verdict import Rules, Verdict, default_rules, judge
from regweave.registration.align import RefineStep, StepRecord
from regweave.run import images as outputs
from regweave.run.check import Check
from regweave.run.images import OutputImages, SavedImages
from regweave.run.memory import allowed_threads
from regweave.run.record import Provenance
from regweave.spatial.warp import determinant, warp_image, warp_labels, warp_points
from regweave.threads import kernel_threads
from regweave.types import Float64Array, LabelMap, Transform, Volume, WeightTable

NEEDS_SURFACES = "surface_distance_mm"


def _weights(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    return WeightTable.from_json(WeightRows.model_validate(given).content())


class WeightRows(RecordPart):
    """Weight table as JSON holds it: a row for each member, a column for each class."""

    members: tuple[Text, ...]
    classes: tuple[Whole, ...]
    matrix: tuple[tuple[Number, ...], ...]
    pairwise: Number
    stiffness: tuple[Number, ...] | None = Field(default=None, exclude_if=lambda given: given is None)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        n = len(self.classes)
        if len(self.matrix) != len(self.members) or any(len(row) != n for row in self.matrix) or not n:
            raise ValueError("a row for each member and a column for each class are needed")
        if self.stiffness is not None and len(self.stiffness) != n:
            raise ValueError("a stiffness for each class is needed")
        return self


# Parts of commands; completion offers neither these nor what every record has.
INNER = {
    "guided_score", "judged_score", "release_images", "with_command", "with_surfaces", "write_files", "write_page",
}  # fmt: skip


class Result(RecordPart):
    """Result of one registration: its images and transforms, and all that ``result.json`` holds.

    Parameters
    ----------
    images : OutputImages or SavedImages
        Transforms and images, in memory or read from a saved folder when they are first used; not in the JSON.
    score : PairScore
        State, Dice and volumes of each structure; empty unless both label maps were given.
    steps, refinement
        Discrete steps, with energy and lower bound, and gradient steps.
    regularity, inverse_consistency_mm : mapping
        Folding, SDlogJ, Jacobians; mean, 95th percentile and maximum of the inverse error.
    inverse_error : InverseError
        Residual of the inverse inside the body.
    likeness : Likeness, optional
        Score without labels of the fixed image, and what it is made of.
    seconds : mapping
        Wall time of each stage; `write` adds that of the files and of the page.
    weights : WeightTable
        Weights of the members by class.
    landmarks : LandmarkScore, optional
        Target registration errors, if landmarks were given.
    rigid_mm : mapping
        Structures that were kept rigid, and how far from rigid they were found: root mean square.
    check : Check, optional
        There-and-back run and repetitions, if they were asked for.
    clinic : ClinicSection, optional
        Quality assurance of contours that were propagated with it.
    rules : Rules
        Acceptance criteria of the verdict; ``model_copy(update={"rules": …})`` gives the result others.
    provenance : Provenance
        What ran: versions, inputs, start, model, settings, and the rest of the call.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, arbitrary_types_allowed=True)

    score: PairScore = Field(alias="structures")
    steps: tuple[StepRecord, ...]
    refinement: tuple[RefineStep, ...]
    regularity: Regularity
    inverse_consistency_mm: RoundTrip
    inverse_error: InverseError
    likeness: Likeness | None = None
    seconds: Annotated[
        dict[str, Number], AfterValidator(lambda found: {k: v for k, v in found.items() if k != "total"}),
        PlainSerializer(lambda found: {**found, "total": sum(found.values())}),
    ]  # fmt: skip
    peak_memory_mb: Number
    warnings: tuple[Text, ...]
    weights: Annotated[InstanceOf[WeightTable], BeforeValidator(_weights), PlainSerializer(WeightTable.to_json)]
    landmarks: LandmarkScore | None = None
    rigid_mm: dict[str, Number] = Field(default_factory=dict, exclude_if=lambda found: not found)
    check: Check | None = None
    clinic: ClinicSection | None = None
    rules: Rules = Field(default_factory=default_rules)
    provenance: Provenance
    images: InstanceOf[OutputImages] | InstanceOf[SavedImages] = Field(
        default_factory=lambda read: SavedImages(Path(), read["provenance"]), exclude=True, repr=False
    )  # `load` names the folder

    def __repr__(self) -> str:
        means, verdict = self.mean_dice, self.verdict
        dice = f"Dice {means['before']:.3f} → {means['after']:.3f}, " if means else ""
        folded, seconds = self.regularity["folding_fraction"], sum(self.seconds.values())
        lines = [self._title(), f"  {verdict.word}, {dice}{folded:.3%} folded, {seconds:.1f} s"]
        if self.warnings:
            codes = ", ".join(dict.fromkeys(text.partition(":")[0] for text in self.warnings))
            lines.append(f"  {len(self.warnings)} warnings: {codes}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return repr(self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {*dir(RecordPart)} - INNER)

    def _title(self) -> str:
        return f"Registration · {self.provenance.headline()}"

    def _repr_html_(self) -> str:
        from regweave.report.pictures import card  # noqa: PLC0415 (pages stand above results)

        return card(self._title(), self.fixed, self.images.before, self.warped, self.summary())

    @property
    def fixed(self) -> Volume:
        """The fixed image."""
        return self.images.fixed

    @property
    def transform(self) -> Transform:
        """Takes fixed points to moving points: it brings moving images onto the fixed grid."""
        return self.images.transform

    @property
    def inverse(self) -> Transform:
        """Takes moving points to fixed points."""
        return self.images.inverse

    @property
    def warped(self) -> Volume:
        """The moving image on the fixed grid."""
        return self.images.warped

    @property
    def warped_labels(self) -> LabelMap | None:
        """The moving labels on the fixed grid, where there were any."""
        return self.images.warped_labels

    @computed_field  # type: ignore[prop-decorator]
    @property
    def dice(self) -> dict[int, dict[str, Any]]:
        """Name, state and Dice by label: ``before``, as loaded, after the ``start``, and ``after``; NaN for none."""
        return {
            s.label: {
                "name": s.name, "state": s.state, "before": s.dice_before, "start": s.dice_start,
                "after": s.dice_after, **({"guided": True} if s.label in self.guided else {}),
            }
            for s in self.score.structures
        }  # fmt: skip

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mean_dice(self) -> dict[str, float]:
        """Mean Dice ``before``, ``start`` and ``after`` over the same structures; empty where none counts.

        Structures that guided are left out: their overlap proves nothing.
        """
        return self.judged_score.means()

    @property
    def guided(self) -> tuple[int, ...]:
        """Labels that guided the registration."""
        guides = self.provenance.guides
        return () if guides is None else tuple(guides.weights)

    @property
    def judged_score(self) -> PairScore:
        """Scores of the structures that did not guide."""
        return self.score.among(self.guided, inside=False) if self.guided else self.score

    @property
    def guided_score(self) -> PairScore:
        """Scores of the structures that guided."""
        return self.score.among(self.guided, inside=True)

    def with_command(self, words: Sequence[str]) -> Result:
        """Return the result with the command line that made it in its provenance."""
        return self.model_copy(update={"provenance": self.provenance.model_copy(update={"command": tuple(words)})})

    def with_landmarks(self, points: LandmarkPairs) -> Result:
        """Return the result with the errors of corresponding landmarks; `LandmarkPairs.read` reads files and arrays."""
        images, clinic = self.images, self.clinic
        guided = {} if self.landmarks is None else {p.fixed_mm: p.guides for p in self.landmarks.points}
        guides = points.guides or [guided.get(tuple(at), False) for at in points.fixed.tolist()]
        by = images.start, self.transform, self.inverse
        score = score_landmarks(points.fixed, points.moving, points.names, *by, guides)
        clinic = clinic.with_landmarks() if clinic is not None and score.judging else clinic
        score = score.model_copy(update={"sha256": dict(points.sha256)})
        return self.model_copy(update={"landmarks": score, "clinic": clinic})

    def structures(self) -> list[dict[str, Any]]:
        """State, Dice, distances of surfaces and volumes of each structure; the distances are measured when needed."""
        return self.with_surfaces.rows()

    @cached_property
    def with_surfaces(self) -> PairScore:
        """The score with the distances of surfaces, which are measured once."""
        if all(not math.isnan(s.hd95_mm) for s in self.score.of("scored")):
            return self.score
        try:
            fixed, warped, start = self.images.fixed_labels, self.warped_labels, self.images.labels_before
        except RegweaveError as error:
            if error.code != "E198":
                raise
            return self.score  # saved without a page or labels: nothing is left to measure
        return self.score if fixed is None or warped is None else self.score.with_surfaces(fixed, warped, start)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """Pass, look or fail by the rules, with the reasons."""
        score = self._score_of_rules
        return judge(
            score.among(self.guided, inside=False) if self.guided else score, self.rules,
            regularity=self.regularity, inverse_error=self.inverse_error, landmarks=self.landmarks,
            warnings=self.warnings, clinic=self.clinic, likeness=self.likeness,
        )  # fmt: skip

    @property
    def _score_of_rules(self) -> PairScore:
        return self.with_surfaces if NEEDS_SURFACES in self.rules.limits else self.score

    def summary(self) -> dict[str, Any]:
        """Return the content of ``result.json``; distances of surfaces are there once they are measured."""
        found = self.content()
        guided = {"guided_mean_dice": plain(self.guided_score.means())} if self.guided else {}
        return {name: found[name] for name in ("verdict", "rules", "dice", "mean_dice")} | guided | found

    def warp(self, image: Any, *, fill: float | None = None) -> Volume:
        """Bring another image of the moving space, such as a dose, onto the fixed grid; ``fill`` is outside it."""
        moving = read_image(image)
        return warp_image(moving, self.transform, fill=fill_value(moving) if fill is None else fill)

    def warp_labels(self, labels: Any) -> LabelMap:
        """Bring another segmentation of the moving space onto the fixed grid."""
        return warp_labels(read_labels(labels), self.transform)

    def warp_points(self, points_mm: ArrayLike, *, inverse: bool = False) -> Float64Array:
        """Take points (..., 3) in LPS millimetres from fixed to moving space, or back with ``inverse``."""
        return warp_points(np.asarray(points_mm, dtype=np.float64), self.inverse if inverse else self.transform)

    def jacobian(self) -> Volume:
        """Jacobian determinant of the deformation on the fixed grid, without the affine start: 1 is no change."""
        return Volume(determinant(self.transform.field), self.transform.field.geometry)

    def table(self) -> Any:
        """Structures as a pandas table, one a row."""
        pandas = extras.load("pandas", "notebook", "a table")
        return pandas.DataFrame(self.structures(), columns=[f.name for f in fields(StructureScore)])

    def plot(self) -> Any:
        """Draw the middle planes before and after as a matplotlib figure: fixed cyan, moving orange, agreement grey."""
        from regweave.report.pictures import figure  # noqa: PLC0415 (pages stand above results)

        return figure(self._title(), self.fixed, self.images.before, self.warped, self.summary())

    def thumbnail(self) -> bytes:
        """Small PNG of the axial plane: fixed blue, warped orange, agreement grey."""
        from regweave.report.pictures import thumbnail  # noqa: PLC0415 (pages stand above results)

        return thumbnail(self.fixed, self.warped, (self.images.fixed_labels, self.warped_labels))

    def report(self, path: str | Path, *, overwrite: bool = False, page_detail: str = "normal") -> Path:
        """Write the page of the result as one file that needs no other."""
        with _python_words():
            require_absent(path, overwrite=overwrite)
        with tempfile.TemporaryDirectory() as folder, atomic_path(path) as part:
            done = self.write_files(Path(folder), outputs.NEEDED_BY_REPORT)  # a sign-off names their hashes
            done.write_page(Path(folder), page_detail)
            shutil.copyfile(Path(folder) / outputs.FILES["report"], part)
        return Path(path)

    def show(self) -> None:
        """Show the page below the cell of a notebook, or in the browser."""
        from regweave.report.pictures import show  # noqa: PLC0415 (pages stand above results)

        show(self.report(Path(tempfile.mkdtemp(prefix="regweave-")) / outputs.FILES["report"]))

    def write(
        self, folder: Path, write: Sequence[str] | None = None, *, page_detail: str = "normal",
        there: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        """Write the chosen files, but for those ``there``, ``result.json`` and the page into an existing folder.

        Returns the result with the seconds that this took.
        """
        chosen = self.images.usual_outputs() if write is None else outputs.check_outputs(write)
        done = self.write_files(folder, chosen, there=there)
        return done.write_page(folder, page_detail) if "report" in chosen else done

    def write_files(self, folder: Path, chosen: Sequence[str], *, there: Sequence[str] = ()) -> Result:
        """Write the chosen files but the page; return the result with the seconds added."""
        began = time.perf_counter()
        with kernel_threads(self._threads_here):
            self.images.write(folder, [name for name in chosen if name not in there])
            score = self._score_of_rules
        # A copy of a saved result keeps the seconds of the run.
        seconds = {"files": time.perf_counter() - began, **self.seconds}
        done = self.model_copy(update={"score": score, "seconds": seconds})
        write_record(folder / RESULT, done.summary())
        return done

    def write_page(self, folder: Path, detail: str = "normal") -> Result:
        """Write the page, and add its seconds to page, record and result."""
        from regweave.report.registration import draw  # noqa: PLC0415 (pages stand above results)

        with kernel_threads(self._threads_here):
            return draw(self, folder, detail)

    def release_images(self, folder: Path) -> Result:
        """Return the result without its images in memory: they are read from its folder when they are used."""
        return self.model_copy(update={"images": SavedImages(folder, self.provenance)})

    @property
    def _threads_here(self) -> int:
        """As many threads as the registration used, on this machine."""
        return min(self.provenance.threads, allowed_threads())

    def save(
        self, folder: str | Path, *, overwrite: bool = False, write: Sequence[str] | None = None,
        page_detail: str = "normal",
    ) -> None:  # fmt: skip
        """Write files into a new folder, which appears when it is complete; `regweave.load` opens it again.

        Parameters
        ----------
        folder : path
        overwrite : bool
            Replace an earlier result.
        write : sequence of str, optional
            Some of warped, labels, transform, inverse, displacement, report; ``result.json`` is always there. By
            default all, but the displacement of images up to a million voxels only.
        page_detail : "small", "normal" or "full"
            Voxels that the page shows: 0.6 or 4 million, or all up to 64 million.
        """
        with _python_words(), prepare_output(folder, overwrite=overwrite) as part:
            self.write(part, write, page_detail=page_detail)


@contextmanager
def _python_words() -> Iterator[None]:
    """Name arguments where an error of an output names options."""
    try:
        yield
    except RegweaveError as error:
        hint = error.hint.replace("--overwrite", "overwrite=True").replace("another -o", "another name")
        raise type(error)(error.code, error.message, hint) from error


def load(folder: str | Path) -> Result:
    """Open the folder of a registration.

    Parameters
    ----------
    folder : path
        What ``regweave register -o`` or `Result.save` wrote, or its ``result.json``.

    Returns
    -------
    Result
        With the same numbers; images and transforms are read when they are first used.

    Raises
    ------
    RegweaveError
        E101 where there is no such result, E102 or E178 where ``result.json`` is not what the program writes; E198 and
        E102, at the first use, where an image was not written or is damaged.
    """
    path = Path(folder) / RESULT if is_folder(folder) else Path(folder)
    return checked(Result, read_json(path), path).release_images(path.parent)
