"""Result of one registration: transforms, warped images, scores and provenance, and their files."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, Self
from zipfile import BadZipFile, ZipFile

import numpy as np
import pydantic as pd
from numpy.typing import ArrayLike, NDArray

from regweave import extras, io
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import MAX_ARCHIVE_BYTES, damaged, is_file, is_folder, open_file, read_json, require_memory
from regweave.io.disk.records import RESULT, Number, RecordPart, Text, Whole, checked, plain, write_record
from regweave.io.transforms.files import smallest_displacement, write_linear
from regweave.measures.landmarks import LandmarkPairs, LandmarkScore, score_landmarks
from regweave.measures.likeness import Likeness
from regweave.measures.propagation import ClinicSection
from regweave.measures.scores import InverseError, PairScore, Regularity, RoundTrip, StructureScore
from regweave.measures.verdict import Rules, Verdict, default_rules, judge
from regweave.registration.align import RefineStep, StepRecord
from regweave.run.check import Check
from regweave.run.memory import allowed_threads
from regweave.run.record import Provenance
from regweave.spatial.warp import determinant, invert, warp_image, warp_labels, warp_points
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry, ImagePair, LabelMap, NodeEvidence, Transform, Volume, WeightTable
from regweave.types.images import Float64Array

NEEDS_SURFACES = "surface_distance_mm"
FILES = {
    "warped": "warped.nii.gz", "labels": "warped_labels.nii.gz", "transform": "transform.h5", "inverse": "inverse.h5",
    "displacement": "displacement.nii.gz", "report": "report.html",
}  # fmt: skip
"""What can be chosen, and its file; ``result.json`` is always written, ``report`` has the folder ``view`` besides."""
DEFAULT = ("warped", "labels", "transform", "inverse", "report")
"""All but the displacement, which repeats the transform."""
SMALL_VOXELS = 1_000_000
"""Up to this size the displacement is written too: programs that read no ITK transform read it, and it costs little."""
NEEDED_BY_REPORT = ("warped", "labels", "transform")
LIMIT = "error_limit.nii.gz"
"""Map of the limits of the error in mm, -1 where unknown; written wherever the registration was checked."""
VIEW, NODES = "view", "nodes.npz"
"""Folder of what a page shows and the other files do not hold, and its file of the evidence of the last step."""
WHOLE_UNITS_RANGE = 2000.0
"""Images that span more than this lose nothing that is seen when they are rounded to whole numbers."""
BROKEN = OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, BadZipFile, zlib.error
"""What reading a damaged archive raises."""
KEPT = {"transform", "inverse", "warped", "warped_labels", "fixed", "fixed_labels"}
"""Parts of a saved result that are read once."""
LABEL = re.compile(r"-?[0-9]{1,20}")  # up to 64 bits


def check_outputs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of outputs in their usual order, or raise E119."""
    wanted = set(names)
    unknown = sorted(wanted - set(FILES))
    if unknown or not wanted:
        message = f"outputs {', '.join(map(repr, unknown)) or 'are missing'}, known are {', '.join(FILES)}"
        raise UsageError("E119", message, f"choose some of them; the default is {','.join(DEFAULT)}")
    lacking = [name for name in NEEDED_BY_REPORT if name not in wanted]
    if "report" in wanted and lacking:
        message = f"a report is made from {', '.join(NEEDED_BY_REPORT)}, and {', '.join(lacking)} are not to be written"
        raise UsageError("E119", message, "add them, or leave the report out")
    return tuple(name for name in FILES if name in wanted)


def parse_outputs(text: str) -> tuple[str, ...]:
    """Read names with commas between them."""
    return check_outputs(name.strip() for name in text.split(","))


class Images:
    """Images and transforms of a registration: in memory, or in the ``folder`` of a result.

    A part that is a function is called when the part is used: what is `KEPT` once, the rest at each use.
    """

    transform: Transform  # fixed to moving points, and back
    inverse: Transform
    start: Transform  # fixed to moving points as initially aligned
    fixed: Volume
    fixed_labels: LabelMap | None
    before: Volume  # the moving image and labels on the fixed grid, as initially aligned
    labels_before: LabelMap | None
    warped: Volume  # the same, interpolated once from the originals by the transform
    warped_labels: LabelMap | None
    names: dict[int, str]  # name of each label; that of the fixed labels wins
    nodes: NodeEvidence | None  # evidence of the last discrete step, for the page
    limit: Volume | None  # limit of the error in mm at each fixed voxel, where the registration was checked
    usual: tuple[str, ...]  # outputs that are written by default; of a saved result those that are there
    pair: ImagePair  # what was registered, at its start; in memory alone
    labelled: bool  # whether moving labels were inputs; of a saved result alone

    def __init__(self, folder: Path | None = None, **parts: Any) -> None:
        self.folder = folder
        self._later = {name: part for name, part in parts.items() if isinstance(part, FunctionType)}
        vars(self).update({name: part for name, part in parts.items() if name not in self._later})

    def __getattr__(self, name: str) -> Any:
        """Compute or read a part."""
        later = vars(self).get("_later", {})
        if name not in later:
            raise AttributeError(name)
        found = later[name]()
        if name in KEPT:
            setattr(self, name, found)
        return found

    @classmethod
    def made(
        cls, transform: Transform, inverse: Transform, warped: Volume, warped_labels: LabelMap | None, pair: ImagePair,
        nodes: NodeEvidence | None = None, limit: Volume | None = None,
    ) -> Images:  # fmt: skip
        """Return what a registration has made, in memory."""
        fixed, moving = pair.fixed, pair.moving
        start = Transform(pair.initial_field or Field.zero(fixed.geometry), pair.initial)
        maps = [labels for labels in (warped_labels, moving.labels, fixed.labels) if labels is not None]
        names = {v: labels.name(v) for labels in maps for v in labels.values()}
        for labels in maps:
            names |= {v: name for v, name in labels.names.items() if v in names}
        small = warped.data.size <= SMALL_VOXELS
        usual = tuple(name for name in FILES if name in DEFAULT or (name == "displacement" and small))
        return cls(
            transform=transform, inverse=inverse, start=start, fixed=fixed, fixed_labels=fixed.labels, warped=warped,
            before=lambda: warp_image(moving, start, fill=io.fill_value(moving)), warped_labels=warped_labels,
            labels_before=lambda: None if moving.labels is None else warp_labels(moving.labels, start), names=names,
            nodes=nodes, limit=limit, usual=usual, pair=pair,
        )  # fmt: skip

    @classmethod
    def saved(cls, folder: Path, provenance: Provenance) -> Images:
        """Return what `regweave register` or `Result.save` wrote; label maps that were no inputs have no file."""
        inputs, start, warped_labels = provenance.inputs, provenance.start, FILES["labels"]
        labelled = "moving_labels" in inputs
        shown = f"{VIEW}/{warped_labels}"

        def transform(name: str) -> Transform:
            path = require_saved(folder, FILES[name])
            found = io.read_transform(path)
            return found if found.ends is None else io.read_transform(path, found.ends.start)

        def inverse() -> Transform:
            # It is computed where no file holds it and the transform names the grid it leads to.
            if not is_file(folder / FILES["inverse"]) and made.transform.ends is not None:
                return invert(made.transform)[0]
            return transform("inverse")

        def start_matrix() -> Transform:
            if start.field:
                message = f"'{folder}' does not hold its start: the record has no matrix of it"
                raise RegweaveError("E198", message, "register again, with the landmarks")
            return Transform(Field.zero(made.transform.field.geometry), np.array(start.matrix))

        def labels(there: bool, name: str) -> LabelMap | None:
            return io.read_labels(require_saved(folder, name)) if there else None

        def view() -> tuple[dict[int, str], tuple[str, ...]]:
            path = require_saved(folder, f"{VIEW}/view.json")
            found = read_json(path)
            names, members = found.get("names"), found.get("members")
            if not isinstance(members, list) or not isinstance(names, dict) or not all(map(LABEL.fullmatch, names)):
                raise damaged(f"'{path}'", "it does not describe a view")
            return {int(value): str(name) for value, name in names.items()}, tuple(map(str, members))

        def usual() -> tuple[str, ...]:
            there = [name for name in FILES if is_file(folder / FILES[name])]
            # No labels to show are no hindrance to a page.
            lacking = ["labels"] if not labelled and "report" in there else []
            return tuple(name for name in FILES if name in [*there, *lacking])

        made = cls(
            folder, labelled=labelled, transform=lambda: transform("transform"), inverse=inverse, start=start_matrix,
            fixed=lambda: io.read_image(require_saved(folder, f"{VIEW}/fixed.nii.gz")),  # a CT has whole units here
            fixed_labels=lambda: labels("fixed_labels" in inputs, f"{VIEW}/fixed_labels.nii.gz"),
            before=lambda: io.read_image(require_saved(folder, f"{VIEW}/moving.nii.gz")),
            labels_before=lambda: labels(labelled, f"{VIEW}/moving_labels.nii.gz"),
            warped=lambda: io.read_image(require_saved(folder, FILES["warped"])),
            warped_labels=lambda: labels(labelled, shown if is_file(folder / shown) else warped_labels),
            names=lambda: view()[0], nodes=lambda: read_nodes(folder / VIEW / NODES, view()[1]), usual=usual,
            limit=lambda: io.read_image(folder / LIMIT) if is_file(folder / LIMIT) else None,
        )  # fmt: skip
        return made

    def write(self, folder: Path, chosen: Collection[str]) -> None:
        """Write the chosen files; for a report, what it shows besides them. Those of a saved result are copied."""
        if self.folder is not None:
            self._copy(folder, chosen)
            return
        files = {name: folder / FILES[name] for name in chosen}
        if self.limit is not None:
            io.write_image(folder / LIMIT, self.limit)
        if "warped" in files:
            io.write_image(files["warped"], self.warped)
        if "labels" in files and self.warped_labels is not None:
            io.write_labels(files["labels"], self.warped_labels)
        for name in ("transform", "inverse"):
            if name in files:
                found: Transform = getattr(self, name)
                if found.field.data.any():
                    io.write_transform(files[name], found)
                else:
                    write_linear(files[name], found.affine, found.ends)
        if "displacement" in files:
            io.write_displacement(files["displacement"], smallest_displacement(self.transform), self.transform.ends)
        if "report" in files:
            # Where a structure set is written, the file of the labels has the grid of the scan.
            self._write_view(folder / VIEW, warped_labels="labels" not in files)

    def _write_view(self, target: Path, *, warped_labels: bool) -> None:
        target.mkdir()
        for name, volume in {"fixed": self.fixed, "moving": self.before}.items():
            low, high = float(volume.data.min()), float(volume.data.max())
            whole = high - low > WHOLE_UNITS_RANGE and low > -32768 and high < 32767
            io.write_image(target / f"{name}.nii.gz", volume, np.int16 if whole else None)
        labels = {"fixed_labels": self.fixed_labels, "moving_labels": self.labels_before}
        for name, found in {**labels, "warped_labels": self.warped_labels if warped_labels else None}.items():
            if found is not None:
                io.write_labels(target / f"{name}.nii.gz", found)
        nodes = self.nodes
        if nodes is not None:
            with io.atomic_path(target / NODES) as part:
                at, influence, confidence = nodes.geometry.affine, nodes.influence, nodes.confidence
                np.savez_compressed(part, affine=at, influence=influence, confidence=confidence)
        content = {"members": [] if nodes is None else list(nodes.members), "names": self.names}
        write_record(target / "view.json", content)

    def _copy(self, folder: Path, chosen: Collection[str]) -> None:
        """Copy files, and what the page is made from; the page itself is made again."""
        assert self.folder is not None
        if is_file(self.folder / LIMIT):
            shutil.copyfile(self.folder / LIMIT, folder / LIMIT)
        for name in chosen:
            if name == "report":
                shutil.copytree(require_saved(self.folder, f"{VIEW}/view.json").parent, folder / VIEW)
            elif name != "labels" or self.labelled:
                shutil.copyfile(require_saved(self.folder, FILES[name]), folder / FILES[name])


def require_saved(folder: Path, name: str) -> Path:
    """Return the path of a file of a saved result, or raise E198."""
    path = folder / name
    if is_file(path):
        return path
    message = f"'{folder}' has no {name}: the result was written without it"
    raise RegweaveError("E198", message, "register again with all outputs; see --write, or save(write=…)")


def read_nodes(path: Path, members: tuple[str, ...]) -> NodeEvidence | None:
    """Read the evidence of the last discrete step, where there is any."""
    if not is_file(path):
        return None
    try:
        affine, influence, confidence = read_arrays(path, ("affine", "influence", "confidence"))
        if confidence.ndim != 3 or 0 in confidence.shape or influence.shape != (len(members), *confidence.shape):
            raise ValueError(f"arrays of shapes {influence.shape} and {confidence.shape}")
        if any(a.dtype.kind != "f" or not np.isfinite(a).all() for a in (affine, influence, confidence)):
            raise ValueError("an array holds something else than finite numbers")
        if affine.shape != (4, 4) or not 0 < abs(np.linalg.det(affine)) < np.inf or affine[3].tolist() != [0, 0, 0, 1]:
            raise ValueError("its matrix places no grid")
    except ValueError as error:
        raise damaged(f"'{path}'", f"it does not hold the maps of a result ({error})") from error
    x, y, z = confidence.shape
    return NodeEvidence(Geometry((x, y, z), affine), members, influence, confidence)


def read_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Read arrays by name from what `numpy.savez_compressed` wrote.

    E101 is no regular file, E102 a damaged archive or another one, E140 more than the machine has memory for.
    """
    subject = f"'{path}'"
    with open_file(path) as stream:
        try:
            with ZipFile(stream) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > MAX_ARCHIVE_BYTES:
                raise ValueError(f"it says that it holds {size} bytes, allowed are {MAX_ARCHIVE_BYTES}")
            require_memory(2 * size, subject)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as stored:
                return [stored[name] for name in names]
        except BROKEN as error:
            raise damaged(subject, f"it does not hold the arrays {', '.join(names)} ({error})") from error


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
    stiffness: tuple[Number, ...] | None = pd.Field(default=None, exclude_if=lambda given: given is None)

    @pd.model_validator(mode="after")
    def _fits(self) -> Self:
        n = len(self.classes)
        if len(self.matrix) != len(self.members) or any(len(row) != n for row in self.matrix) or not n:
            raise ValueError("a row for each member and a column for each class are needed")
        if self.stiffness is not None and len(self.stiffness) != n:
            raise ValueError("a stiffness for each class is needed")
        return self


# Parts of commands; completion offers neither these nor what every record has.
INNER = {"guided_score", "with_surfaces"}


class Result(RecordPart):
    """Result of one registration: its images and transforms, and all that ``result.json`` holds.

    Parameters
    ----------
    images : Images
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

    model_config = pd.ConfigDict(validate_by_name=True, validate_by_alias=True, arbitrary_types_allowed=True)

    score: PairScore = pd.Field(alias="structures")
    steps: tuple[StepRecord, ...]
    refinement: tuple[RefineStep, ...]
    regularity: Regularity
    inverse_consistency_mm: RoundTrip
    inverse_error: InverseError
    likeness: Likeness | None = None
    seconds: Annotated[
        dict[str, Number], pd.AfterValidator(lambda found: {k: v for k, v in found.items() if k != "total"}),
        pd.PlainSerializer(lambda found: {**found, "total": sum(found.values())}),
    ]  # fmt: skip
    peak_memory_mb: Number
    warnings: tuple[Text, ...]
    weights: Annotated[
        pd.InstanceOf[WeightTable], pd.BeforeValidator(_weights), pd.PlainSerializer(WeightTable.to_json)
    ]
    landmarks: LandmarkScore | None = None
    rigid_mm: dict[str, Number] = pd.Field(default_factory=dict, exclude_if=lambda found: not found)
    check: Check | None = None
    clinic: ClinicSection | None = None
    rules: Rules = pd.Field(default_factory=default_rules)
    provenance: Provenance
    images: pd.InstanceOf[Images] = pd.Field(
        default_factory=lambda read: Images.saved(Path(), read["provenance"]), exclude=True, repr=False
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

    @pd.computed_field  # type: ignore[prop-decorator]
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

    @pd.computed_field  # type: ignore[prop-decorator]
    @property
    def mean_dice(self) -> dict[str, float]:
        """Mean Dice ``before``, ``start`` and ``after`` over the same structures; empty where none counts.

        Structures that guided are left out: their overlap proves nothing.
        """
        return self.score.among(self.guided, inside=False).means()

    @property
    def guided(self) -> tuple[int, ...]:
        """Labels that guided the registration."""
        guides = self.provenance.guides
        return () if guides is None else tuple(guides.weights)

    @property
    def guided_score(self) -> PairScore:
        """Scores of the structures that guided."""
        return self.score.among(self.guided, inside=True)

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
            images = self.images
            fixed, warped, start = images.fixed_labels, images.warped_labels, images.labels_before
        except RegweaveError as error:
            if error.code != "E198":
                raise
            return self.score  # saved without a page or labels: nothing is left to measure
        return self.score if fixed is None or warped is None else self.score.with_surfaces(fixed, warped, start)

    @pd.computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """Pass, look or fail by the rules, with the reasons."""
        score = self.with_surfaces if NEEDS_SURFACES in self.rules.limits else self.score
        return judge(
            score.among(self.guided, inside=False), self.rules,
            regularity=self.regularity, inverse_error=self.inverse_error, landmarks=self.landmarks,
            warnings=self.warnings, clinic=self.clinic, likeness=self.likeness,
        )  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return the content of ``result.json``; distances of surfaces are there once they are measured."""
        found = self.content()
        guided = {"guided_mean_dice": plain(self.guided_score.means())} if self.guided else {}
        return {name: found[name] for name in ("verdict", "rules", "dice", "mean_dice")} | guided | found

    def warp(self, image: Any, *, fill: float | None = None) -> Volume:
        """Bring another image of the moving space, such as a dose, onto the fixed grid; ``fill`` is outside it."""
        moving = io.read_image(image)
        return warp_image(moving, self.transform, fill=io.fill_value(moving) if fill is None else fill)

    def warp_labels(self, labels: Any) -> LabelMap:
        """Bring another segmentation of the moving space onto the fixed grid."""
        return warp_labels(io.read_labels(labels), self.transform)

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
            io.require_absent(path, overwrite=overwrite)
        with tempfile.TemporaryDirectory() as folder, io.atomic_path(path) as part:
            named = (*NEEDED_BY_REPORT, "report")  # a sign-off names their hashes
            self.write(Path(folder), named, page_detail=page_detail, there=["report"])
            shutil.copyfile(Path(folder) / FILES["report"], part)
        return Path(path)

    def show(self) -> None:
        """Show the page below the cell of a notebook, or in the browser."""
        from regweave.report.pictures import show  # noqa: PLC0415 (pages stand above results)

        show(self.report(Path(tempfile.mkdtemp(prefix="regweave-")) / FILES["report"]))

    def write(
        self, folder: Path, write: Sequence[str] | None = None, *, page_detail: str = "normal",
        there: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        """Write the chosen files, but for those ``there``, ``result.json`` and the page into an existing folder.

        Returns the result with the seconds that this took.
        """
        chosen = self.images.usual if write is None else check_outputs(write)
        began = time.perf_counter()
        with kernel_threads(min(self.provenance.threads, allowed_threads())):
            self.images.write(folder, [name for name in chosen if name not in there])
            score = self.with_surfaces if NEEDS_SURFACES in self.rules.limits else self.score
        # A copy of a saved result keeps the seconds of the run.
        seconds = {"files": time.perf_counter() - began, **self.seconds}
        done = self.model_copy(update={"score": score, "seconds": seconds})
        write_record(folder / RESULT, done.summary())
        if "report" not in chosen:
            return done
        from regweave.report.registration import draw  # noqa: PLC0415 (pages stand above results)

        return draw(done, folder, page_detail)

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
        with _python_words(), io.prepare_output(folder, overwrite=overwrite) as part:
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
    found = checked(Result, read_json(path), path)
    return found.model_copy(update={"images": Images.saved(path.parent, found.provenance)})
