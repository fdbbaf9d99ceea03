"""Result of one registration: transforms, warped images, scores and provenance."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from regweave import extras
from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io import atomic_path, fill_value, prepare_output, read_image, read_labels, require_absent
from regweave.io.disk.records import this_program, write_record
from regweave.io.disk.text import parse_json, read_text
from regweave.measures.deformation import InverseError
from regweave.measures.landmarks import LandmarkPairs, LandmarkScore, score_landmarks
from regweave.measures.propagation import ClinicSection
from regweave.measures.scores import PairScore, StructureScore
from regweave.measures.verdict import Rules, Verdict, default_rules, judge
from regweave.registration.align import StepRecord
from regweave.registration.refine import RefineStep
from regweave.run import images as outputs
from regweave.run.images import OutputImages
from regweave.run.memory import allowed_threads
from regweave.run.record import RunRecord
from regweave.run.resolve import ClassesFrom
from regweave.spatial.deformation import determinant
from regweave.spatial.warp import warp_image, warp_labels, warp_points
from regweave.threads import kernel_threads
from regweave.types import Float64Array, LabelMap, Transform, Volume, WeightTable

if TYPE_CHECKING:
    from regweave.run.saved import SavedImages

SCHEMA = 3
"""Layout of ``result.json``; in 3 Dice before is as loaded, and the start and the model have what was used."""
RECORD = "result.json"
NEEDS_SURFACES = "surface_distance_mm"


@dataclass(frozen=True, repr=False)
class Result:
    """Result of one registration.

    Parameters
    ----------
    images : OutputImages or SavedImages
        Transforms and images, in memory or read from a saved folder when they are asked for.
    score : PairScore
        State, Dice and volumes of each structure; empty unless both label maps were given.
    steps, refinement
        Record of the discrete steps, with energy and lower bound, and of the gradient steps.
    regularity, inverse_consistency_mm : mapping
        Folding, SDlogJ, Jacobians; mean, 95th percentile and maximum of the inverse error.
    inverse_error : InverseError, optional
        What the inverse leaves inside the body; None in a folder of before it was measured.
    seconds : mapping
        Wall time of each stage; `write` adds that of the files and of the page.
    classes_from : "labels", "predicted" or "none"
        What told the classes that chose the weights.
    sources : mapping
        Path of each input that was a file.
    record : RunRecord, optional
        What ran: start, model, modality, structures, and the rest of the call.
    rules : Rules
        Acceptance criteria of the verdict; `dataclasses.replace` gives the result others.
    program : mapping
        Versions of the program that made the result.
    landmarks : LandmarkScore, optional
        Target registration errors, where landmarks were given.
    clinic : ClinicSection, optional
        Quality assurance of contours that were propagated with it.
    """

    images: OutputImages | SavedImages
    score: PairScore
    steps: Sequence[StepRecord]
    refinement: Sequence[RefineStep]
    regularity: Mapping[str, float]
    inverse_consistency_mm: Mapping[str, float]
    inverse_error: InverseError | None
    seconds: Mapping[str, float]
    peak_memory_mb: float
    warnings: Sequence[str]
    weights: WeightTable
    settings: Settings
    modality: str
    hashes: Mapping[str, str]
    threads: int
    classes_from: ClassesFrom = "none"
    sources: Mapping[str, str] = field(default_factory=dict)
    record: RunRecord | None = None
    rules: Rules = field(default_factory=default_rules)
    program: Mapping[str, Any] = field(default_factory=this_program)
    landmarks: LandmarkScore | None = None
    clinic: ClinicSection | None = None

    def __repr__(self) -> str:
        means, verdict = self.mean_dice, self.verdict
        dice = f"Dice {means['before']:.3f} → {means['after']:.3f}, " if means else ""
        lines = [
            self._title(),
            f"  {verdict.word}, {dice}{self.regularity['folding_fraction']:.3%} folded, "
            f"{sum(self.seconds.values()):.1f} s",
        ]
        if self.warnings:
            codes = ", ".join(dict.fromkeys(text.partition(":")[0] for text in self.warnings))
            lines.append(f"  {len(self.warnings)} warnings: {codes}")
        return "\n".join(lines)

    @property
    def device(self) -> str:
        """What computed: ``cpu``, or ``cuda:N``."""
        return "cpu" if self.record is None else self.record.device

    def _title(self) -> str:
        return "Registration" + ("" if self.record is None else f" · {self.record.headline()}")

    def _repr_html_(self) -> str:
        from regweave.report.card import card  # noqa: PLC0415 (pages stand above results)

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

    @property
    def dice(self) -> dict[int, dict[str, Any]]:
        """Name, state and Dice by label: ``before``, as loaded, after the ``start``, and ``after``; NaN for none."""
        return {
            s.label: {
                "name": s.name, "state": s.state, "before": s.dice_before, "start": s.dice_start,
                "after": s.dice_after,
            }
            for s in self.score.structures
        }  # fmt: skip

    @property
    def mean_dice(self) -> dict[str, float]:
        """Mean Dice ``before``, ``start`` and ``after`` over the same structures; empty where none counts."""
        return self.score.means()

    def with_command(self, words: Sequence[str]) -> Result:
        """Return the result with the command line that made it in its record."""
        return self if self.record is None else replace(self, record=replace(self.record, command=tuple(words)))

    def with_landmarks(self, points: LandmarkPairs) -> Result:
        """Return the result with the errors of corresponding landmarks; `LandmarkPairs.read` reads files and arrays."""
        images = self.images
        score = score_landmarks(points.fixed, points.moving, points.names, images.start, self.transform, self.inverse)
        clinic = None if self.clinic is None else self.clinic.with_landmarks()
        return replace(self, landmarks=replace(score, sha256=points.sha256), clinic=clinic)

    def structures(self) -> list[dict[str, Any]]:
        """State, Dice, distances of surfaces and volumes of each structure; the distances are measured when asked."""
        return [s.record() for s in self._with_surfaces.structures]

    @cached_property
    def _with_surfaces(self) -> PairScore:
        if all(not math.isnan(s.hd95_mm) for s in self.score.of("scored")):
            return self.score
        fixed, warped = self.images.fixed_labels, self.warped_labels
        if fixed is None or warped is None:
            return self.score
        return self.score.with_surfaces(fixed, warped, self.images.labels_before)

    @property
    def verdict(self) -> Verdict:
        """Pass, look or fail by the rules, with the reasons."""
        score = self._with_surfaces if NEEDS_SURFACES in self.rules.limits else self.score
        return judge({**self._numbers(), "warnings": self.warnings}, score, self.rules)

    def _numbers(self) -> dict[str, Any]:
        inverse = {} if self.inverse_error is None else {"inverse_error": self.inverse_error.record()}
        clinic = {} if self.clinic is None else {"clinic": self.clinic.model_dump()}
        marks = {} if self.landmarks is None else {"landmarks": self.landmarks.record()}
        there = {"inverse_consistency_mm": dict(self.inverse_consistency_mm)}
        return {**self.regularity, **there, **inverse, **clinic, **marks}

    def summary(self) -> dict[str, Any]:
        """Everything but the images; ``result.json`` has `structures` besides."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.record(),
            "rules": self.rules.record(),
            "dice": {str(v): dict(row) for v, row in self.dice.items()},
            "mean_dice": self.mean_dice,
            "steps": [asdict(s) for s in self.steps],
            "refinement": [asdict(s) for s in self.refinement],
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            "peak_memory_mb": self.peak_memory_mb,
            **self._numbers(),
            "warnings": list(self.warnings),
            "weights": self.weights.to_json(),
            "provenance": {
                **self.program,
                "threads": self.threads,
                **({} if self.record is None else self.record.content()),
                "classes_from": self.classes_from,
                "inputs_sha256": dict(self.hashes),
                "settings": self.settings.model_dump(mode="json"),
                "plugins": self.settings.plugins(),
            },
        }

    def warp(self, image: Any, *, fill: float | None = None) -> Volume:
        """Bring another image of the moving space, such as a dose, onto the fixed grid; ``fill`` lies outside it."""
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
        return pandas.DataFrame(self.structures(), columns=list(StructureScore(0, "", "scored").record()))

    def plot(self) -> Any:
        """Draw the middle planes before and after as a matplotlib figure: fixed cyan, moving orange, agreement grey."""
        from regweave.report.card import figure  # noqa: PLC0415 (pages stand above results)

        return figure(self._title(), self.fixed, self.images.before, self.warped, self.summary())

    def thumbnail(self) -> bytes:
        """Small PNG of the axial plane: fixed blue, warped orange, agreement grey."""
        from regweave.report.card import thumbnail  # noqa: PLC0415 (pages stand above results)

        return thumbnail(self.fixed, self.warped)

    def report(self, path: str | Path, *, overwrite: bool = False, page_detail: str = "normal") -> Path:
        """Write the page of the result as one file that needs no other."""
        with _python_words():
            claim = require_absent(path, overwrite=overwrite)
        with tempfile.TemporaryDirectory() as folder, claim.writing(), atomic_path(path) as part:
            self.write(Path(folder), (*outputs.NEEDED_BY_REPORT, "report"), page_detail=page_detail)
            shutil.copyfile(Path(folder) / outputs.FILES["report"], part)
        return Path(path)

    def show(self) -> None:
        """Show the page below the cell of a notebook, or in the browser."""
        from regweave.report.card import show  # noqa: PLC0415 (pages stand above results)

        show(self.report(Path(tempfile.mkdtemp(prefix="regweave-")) / outputs.FILES["report"]))

    def write(
        self,
        folder: Path,
        write: Sequence[str] | None = None,
        *,
        page_detail: str = "normal",
        there: Sequence[str] = (),
    ) -> Result:
        """Write the chosen files, but for those ``there``, ``result.json`` and the page into an existing folder.

        Returns the result with the seconds that this took.
        """
        chosen = self.images.usual_outputs() if write is None else outputs.check_outputs(write)
        done = self.write_files(folder, chosen, there=there)
        return done.write_page(folder, page_detail) if "report" in chosen else done

    def write_files(self, folder: Path, chosen: Sequence[str], *, there: Sequence[str] = ()) -> Result:
        """Write the chosen files but the page; return the result with its surfaces measured and the seconds added."""
        began = time.perf_counter()
        shown = {name: "/".join(Path(path).parts[-2:]) for name, path in self.sources.items()}
        with kernel_threads(self._threads_here):
            self.images.write(folder, [name for name in chosen if name not in there], shown)
            scored = replace(self, score=self._with_surfaces)
        # A copy of a saved result keeps the seconds of the run.
        done = replace(scored, seconds={"files": time.perf_counter() - began, **self.seconds})
        write_record(folder / RECORD, {**done.summary(), "structures": done.structures()})
        return done

    def write_page(self, folder: Path, detail: str = "normal") -> Result:
        """Make the page from the files that `write_files` wrote, and add its seconds to page, record and result."""
        from regweave.report.registration import write_page  # noqa: PLC0415 (pages stand above results)

        with kernel_threads(self._threads_here):
            write_page(folder, detail=detail, began=None if "page" in self.seconds else time.perf_counter())
        seconds = parse_json(read_text(folder / RECORD))["seconds"]
        return replace(self, seconds={name: value for name, value in seconds.items() if name != "total"})

    @property
    def _threads_here(self) -> int:
        """As many threads as the registration used, on this machine."""
        return min(self.threads, allowed_threads())

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        write: Sequence[str] | None = None,
        page_detail: str = "normal",
    ) -> None:
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
