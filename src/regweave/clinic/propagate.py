"""Contours of a planning scan brought onto today's: read, start, register, carry, measure, write."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from regweave import contours, notices
from regweave.clinic import structures as st
from regweave.clinic.scans import Scan, ScanLike, find_start, label_map, prepare, read_scans
from regweave.config.settings import Member, Settings, preset
from regweave.errors import RegweaveError
from regweave.io import prepare_output, sha256, write_labels
from regweave.io.dicom import parse, reg
from regweave.io.dicom.rtstruct import read_rtstruct, write_rtstruct
from regweave.io.dicom.series import Series, series_by_place
from regweave.io.labels import read_name_map
from regweave.measures import landmarks, propagation, verdict
from regweave.model.model import Model
from regweave.options import called, described, option
from regweave.progress import Progress, StagedBar
from regweave.registration import devices
from regweave.run import memory
from regweave.run.job import POINTS
from regweave.run.register import register
from regweave.run.result import FILES, Images, Result
from regweave.run.rigid import names_of
from regweave.spatial.voxels import shrink_geometry
from regweave.spatial.warp import invert, warp_labels
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry, LabelMap, LeftOut, Structure, StructureSet, Transform

LEVELS_SMOOTHNESS = 0.5
SMOOTHNESS, BENDING_MM = 0.1, 24.0
EXACT: dict[str, Any] = {"exact": True, "rate": 0.1, "smoothness_ct": 0.02}
"""Of two CT without a model; exact forces are larger, so that the same smoothness is a smaller number."""
SMOOTHNESS_MR = 0.5  # For all but CT; less lets the little that a phantom in MR shows be torn apart
CONTROL_MM = 8.0
ONE_STAGE = {"finest_mm": None, "finest_steps": 0, "finest_smoothness": None}
TISSUE = (
    Member(name="tissue", metric="sad", stage="refine"),
    Member(name="soft-tissue", metric="sad", stage="refine", window=(-150.0, 250.0)),
)
"""Hounsfield numbers, constant in one patient: they identify an organ of even density better than its texture."""
STEPS = (24, 80)
STEP_VOXELS = 60_000_000  # Voxels times steps that the refinement may take


def intra_patient_settings(
    geometry: Geometry, base: Settings | None = None, *, tissue: bool = True, modality: str | None = "ct"
) -> Settings:
    """Return the default preset for two scans of one patient, or the settings of a model with its refinement.

    Tissue of one patient deforms more smoothly than two people differ. The refinement penalises bending more than
    stretching, which would shrink every true deformation, and has control points 8 mm apart. Small structures need many
    steps; a large scan gets fewer, which bounds its time.

    Without a model the levels penalise the whole displacement, ten times as much as between people. Otherwise the noise
    of a scanner moves a uniform region, even after a correct start. Their members weigh the same: where self-similarity
    counts more, as between people, follow-ups lose .003 Dice. The refinement compares Hounsfield numbers too, unless
    ``tissue`` is false: mapped values are not as exact. Of two CT without a model the refinement follows the exact
    derivative of smooth images; other pairs were not tested with it.
    """
    own: dict[str, Any] = {}
    if base is None:
        base = preset("default")
        even = (
            m.model_copy(update={"weight": 1.0}) if m.stage == "levels" and m.source == "image" else m
            for m in base.banks["ct"]
        )
        banks = {**base.banks, "ct": (*even, *(TISSUE if tissue else ()))}
        own = {"smoothness": LEVELS_SMOOTHNESS, "pairwise": "elastic", "banks": banks}
    # One stage at most of the size of an image that is not shrunken: its steps are what a clinic has time for.
    base = base.model_copy(update={"refine": base.refine.model_copy(update=ONE_STAGE)})
    voxels = prod(shrink_geometry(geometry, base.refine.factors(geometry)).shape)
    steps = max(STEPS[0], min(STEPS[1], STEP_VOXELS // voxels))
    chosen: dict[str, Any] = {
        "smoothness": SMOOTHNESS_MR, "smoothness_ct": SMOOTHNESS, "bending_mm": BENDING_MM, "spacing_mm": CONTROL_MM,
        "steps": steps,
    }  # fmt: skip
    if own and tissue and modality == "ct":
        chosen |= EXACT
    refine = base.refine.model_copy(update=chosen)
    return base.model_copy(update={"name": f"{base.name} for one patient", "refine": refine, **own})


RTSTRUCT, REG = "rtstruct.dcm", "registration.dcm"
GUIDED = "guided by its contour on today's scan: that it agrees with this contour proves nothing"
WRITTEN = ("warped", "labels", "transform", "report")
"""Outputs of the registration that a propagation writes: the page is made from them."""
OF_LABELS = ("W203", "W214")
"""Warnings of label voxels, which here only guide: volumes and missing structures are reported by structure."""
MOST_PUSHED = 10.0
"""A structure without a contour today is lost where the deformation moves more than this share out, in percent."""
MODEL_HINTS = {
    "E130": "give structures the model's names with --name-map, choose with --structures, or leave --model out",
    "E172": "leave --model out, or use a model for such scans",
}
"""Next steps where a model does not fit, in the words of this command."""
STAGES = {
    "series": ("reading the series", 0.05),
    "start": ("patient and start", 0.28),
    "register": ("registration", 0.37),
    "contours": ("contours and their numbers", 0.18),
    "files": ("files and page", 0.12),
}
"""Stages of a propagation, their names for users and their shares of the time."""
OnStage = Callable[[str, str, float], None]  # Takes the stage, its words, and the share of the work that is done


class _Stages:
    """Progress of a propagation: its stages, their seconds, and the registration's own steps as one fraction."""

    def __init__(self, on_stage: OnStage) -> None:
        self._on_stage, self._stage = on_stage, ""
        self.part, self.parts = 0, 1
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def begin(self, stage: str, parts: int = 1) -> None:
        """Begin a stage."""
        self.end()
        self._stage, self.parts = stage, parts
        self.inside("", 0.0)

    def end(self) -> None:
        """Add the seconds of the present stage, which ends."""
        if self._stage:
            now = time.perf_counter()
            self.seconds[self._stage], self._since = now - self._since, now

    def inside(self, detail: str, share: float) -> None:
        """Report the share of the present stage that is done."""
        names, (words, length) = list(STAGES), STAGES[self._stage]
        before = sum(STAGES[name][1] for name in names[: names.index(self._stage)])
        self._on_stage(self._stage, f"{words}: {detail}" if detail else words, before + share * length)

    def step(self, progress: Progress) -> None:
        """Report a step of the registration."""
        if progress.stage != "begin":
            counted = f"{progress.done}/{progress.total}" if progress.total else progress.message
            words = f"{counted} of {self.part + 1}/{self.parts}" if self.parts > 1 else counted
            self.inside(words, (self.part + progress.fraction) / self.parts)


@dataclass(frozen=True, kw_only=True)
class ContoursJob:
    """Request of a propagation."""

    plan: ScanLike = field(kw_only=False, metadata=described(
        "Planning scan and its structure set: a folder, a .txt list of files, or a .csv list of patients. In Python "
        "also a list of files or a `Series`, but no list of patients; nothing is ever written there.", typed=Path,
    ))  # fmt: skip
    today: ScanLike = field(kw_only=False, metadata=described(
        "Today's scan: a folder or a .txt list of files. In Python also a list of files or a `Series`.",
        typed=Path | None, absent=None,
    ))  # fmt: skip
    rtstruct: str | Path | StructureSet | None = option(
        None, "Structure set, if not the one in the folder of the plan.", panel="Input", typed=Path | None
    )
    structures: str | Sequence[str] | None = option(
        None, "Names to carry, with commas; by default all but those made from a dose.", panel="Input",
        typed=str | None, metavar="NAMES",
    )  # fmt: skip
    series: Sequence[str] | None = option(
        None, "Image series by its hash, where a folder holds several; two are of the plan and of today.",
        panel="Input", typed=list[str] | None, metavar="HASH",
    )  # fmt: skip
    model: str | Path | Model | None = option(
        None, "Weights per structure: a file, or a shipped model's name.", panel="Method", typed=Path | None,
        complete="model",
    )  # fmt: skip
    init: str | Path | Transform | ArrayLike = option(
        "rigid", "Start: rigid, affine, moments, none, a REG object, or a transform from today to the plan. In Python "
        "also a matrix. One that makes things worse is refused.", panel="Method", typed=str,
    )  # fmt: skip
    name_map: str | Path | Mapping[str, str] | None = option(
        None, "New names of structures in files, and for a model: lines OLD,NEW or JSON.", panel="Input",
        typed=Path | None,
    )  # fmt: skip
    guide: str | Path | StructureSet | None = option(
        None, "Structure set drawn on today's scan, whose structures guide where the plan has the same names.",
        panel="Input", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    fixed_points: str | Path | ArrayLike | None = option(
        None, "Landmarks on today's scan. A file, or LPS millimetres of shape (P, 3).", panel="Input",
        typed=Path | None,
    )  # fmt: skip
    moving_points: str | Path | ArrayLike | None = option(
        None, "The same landmarks on the planning scan.", panel="Input", typed=Path | None
    )
    guide_points: float | None = option(
        None, "Let the landmarks guide, with their accuracy in mm.", panel="Input", metavar="MM"
    )
    rigid: str | Sequence[str] | None = option(
        None, "Structures that stay rigid, with commas, or bones; FIXATION always does.", panel="Method",
        typed=str | None, metavar="NAMES",
    )  # fmt: skip
    carry_external: bool = option(False, "Carry the patient's outline, never contour it in today's CT.", panel="Method")
    both_ways: bool = option(
        False, "Register the other way too and measure how well both agree; twice the time.", panel="Method"
    )
    check: bool = option(False, "Repeat the registration, and map the likely error; four more runs.", panel="Method")
    rules: str | Path | verdict.Rules | None = option(
        None, "Rules for pass, look and fail, TOML; see `regweave rules --clinic`.", panel="Method",
        typed=Path | None, metavar="FILE",
    )  # fmt: skip
    show_ids: bool = option(False, "Name patient and folders in record and page; by default hashes only.")
    allow_id_mismatch: bool = option(False, "Take scans that state different patients.", panel="Input")
    threads: int | None = option(None, "Threads; the result is the same for any number.", panel="Machine")
    device: str | None = option(None, "What computes: cpu (default), cuda, cuda:N, or auto.", panel="Machine")
    progress: bool = option(True, "Show a bar on a terminal and in a notebook.", typed=None)
    on_stage: OnStage | None = option(
        None, "Function that gets stage, words and share of the work, in place of the bar.", typed=None
    )


@dataclass(frozen=True)
class Propagation:
    """Contours on today's scan, with the registration behind them.

    ``plan`` and ``today`` are the series, ``planned`` the structures of the plan and ``structures`` those of today;
    ``structures.left_out`` lists all that is missing. ``labels`` are on the grid of today's scan, the smaller structure
    on top; ``result`` is the registration of the working copies, ``names`` are new names in files.
    """

    plan: Series
    today: Series
    planned: StructureSet
    structures: StructureSet
    result: Result
    labels: LabelMap = field(repr=False)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def transform(self) -> Transform:
        """Takes points of today to points of the plan."""
        return self.result.transform

    @property
    def quality(self) -> propagation.ClinicSection:
        """Numbers by structure and of the whole, as ``result.json`` has them."""
        assert self.result.clinic is not None
        return self.result.clinic


@called(ContoursJob)
def propagate_contours(job: ContoursJob) -> Propagation:
    """Bring the contours of a planning scan onto today's scan.

    Returns
    -------
    Propagation
        ``structures`` on today's slices, ``quality`` by structure, ``result`` of the registration.

    Raises
    ------
    RegweaveError
        E160 other frames, E161 several series, E162 different patients, E165 nothing drawn, E167 a start that makes
        things worse, E192 more than two series named, E128 nothing that can guide, and the errors of reading.
    """
    judged_by = (
        verdict.read_rules(job.rules) if isinstance(job.rules, str | Path) else job.rules or verdict.clinic_rules()
    )
    marks = {name: v for name in (*POINTS, "guide_points") if (v := getattr(job, name)) is not None}
    points = landmarks.LandmarkPairs.read(job.fixed_points, job.moving_points) if marks else None
    names = read_name_map(job.name_map) if isinstance(job.name_map, str | Path) else job.name_map or {}
    bar = StagedBar(shown=job.progress and job.on_stage is None)
    with bar, kernel_threads(memory.allowed_threads(job.threads)):
        stages = _Stages(job.on_stage or bar.stage)
        devices.get(job.device)  # a device that is missing is refused before anything is read
        model = Model.load(job.model) if isinstance(job.model, str | Path) else job.model
        with notices.collected() as caught:
            stages.begin("series")
            plan, today, planned = read_scans(
                job.plan, job.today, job.rtstruct, series=series_by_place(tuple(job.series or ()), job.plan),
                allow_id_mismatch=job.allow_id_mismatch,
            )  # fmt: skip
            tissue, outlines, left_out = st.choose(planned, job.structures)
            st.require_names((*tissue, *outlines), names)

            stages.begin("start")
            then, now = prepare(plan, today, lambda words, share: stages.inside(words, 0.45 * share))
            start = find_start(job.init, now, then)
            found = {one.number: st.find_outline(one, now, then, only_carry=job.carry_external) for one in outlines}
            skins = {number: skin for number, (skin, _) in found.items() if skin is not None}
            notes = {one.number: st.note_of(one) for one in tissue} | {
                number: note for number, (_, note) in found.items()
            }
            stages.inside("structures of the plan", 0.85)
            to_carry = {one.number for one in (*tissue, *outlines)} - set(skins)
            shapes = [contours.shape_of(one, then.series) for one in planned.structures if one.number in to_carry]
            values = contours.label_values(planned.structures)
            labels = label_map(
                [s for s in shapes if not st.is_outline(s.structure)], then.image.geometry, values, names
            )

            stages.begin("register", parts=2 if job.both_ways else 1)
            options = {"model": model, "threads": job.threads, "device": job.device, "on_progress": stages.step}
            ours = options | {"check": job.check} | ({} if job.guide_points is None else marks)
            ours |= {"rigid": _stiff(job.rigid, tissue, labels, values, names)} | _guides(job, now, names)
            result = _registered(now, then, start.transform, labels if labels.data.any() else None, ours)
            agreement = _other_way(now, then, start.transform, result, stages, options) if job.both_ways else None

            stages.begin("contours")
            pair = st.Pair(then, now, result.transform, result.inverse)
            whole = st.whole_pair(pair, start, result, agreement)
            drawn, rows, gone = _on_today(
                shapes, pair, notes, {n for n, v in values.items() if v in result.guided}, stages
            )
            for one in outlines:
                if one.number in skins:
                    drawn.append(skins[one.number])
                    rows.append(st.outline_row(one, drawn[-1], pair, notes[one.number]))
            left_out += [_left_out(row) for row in gone if is_absent(row)]
            lost = [_left_out(row) for row in gone if not is_absent(row)]
            on_today = contours.draw_labels(drawn, now.series, values, names)
        who = now.series.identity
        ids = {
            "patient_id": who.patient_id, "patient_name": who.patient_name, "birth_date": who.birth_date,
            "plan": str(job.plan), "today": str(job.today),
        } if job.show_ids else None  # fmt: skip
        section = propagation.ClinicSection(
            patient_sha=who.patient_hash, plan_sha=then.series.identity.series_hash, today_sha=who.series_hash,
            settings_sha=_settings_sha(result), whole=whole, tests=st.kinds_done(both_ways=job.both_ways), ids=ids,
            structures=tuple(st.flagged(r.model_copy(update={"label": values[r.number]}), judged_by, whole)
                             for r in rows),
            lost=tuple(lost), left_out=tuple(left_out),
        )  # fmt: skip
        stages.end()
        rest = {"rest of the registration": stages.seconds.pop("register") - sum(result.seconds.values())}
        result = result.model_copy(
            update={
                "seconds": {**stages.seconds, **result.seconds, **rest},
                "images": _of_series(result, pair, on_today),
                "clinic": section,
                "rules": judged_by,
                "warnings": tuple(text for text in caught if not text.startswith(OF_LABELS)),
            }
        )
        result = result if points is None else result.with_landmarks(points)
        new_set = replace(
            planned, structures=tuple(drawn), frame_uid=now.series.frame_uid, identity=who, left_out=(*left_out, *lost)
        )
        return Propagation(then.series, now.series, planned, new_set, result, on_today, names)


def _stiff(
    asked: str | Sequence[str] | None, tissue: Sequence[Structure], labels: LabelMap, values: Mapping[int, int],
    names: Mapping[str, str],
) -> list[str] | None:  # fmt: skip
    """Return names of structures that stay rigid: those asked for, and fixation devices that the copy shows."""
    shown = set(labels.values())
    devices = [one.name for one in tissue if one.kind == "FIXATION" and values[one.number] in shown]
    found = [*(() if asked is None or asked == () else names_of(asked)), *devices]
    return [names.get(name, name) for name in found] or None


def _guides(job: ContoursJob, today: Scan, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the labels of a structure set of today's scan, and that they guide; nothing without one."""
    guide = job.guide
    if guide is None:
        return {}
    if not isinstance(guide, StructureSet):
        guide = read_rtstruct(guide, today.series, allow_id_mismatch=job.allow_id_mismatch)
    shapes = [contours.shape_of(one, today.series) for one in guide.structures if not st.is_outline(one)]
    labels = label_map(shapes, today.image.geometry, contours.label_values(guide.structures), names)
    return {"fixed_labels": labels, "guide": True}


def _registered(today: Scan, plan: Scan, start: Transform, labels: LabelMap | None, options: dict[str, Any]) -> Result:
    """Register the plan to today, with errors of a model in the words of this command."""
    try:
        with notices.muted(OF_LABELS[0]), notices.muted(OF_LABELS[1]):
            return _one_way(today, plan, start, not today.mapped, {"moving_labels": labels, **options})
    except RegweaveError as error:
        if error.code not in MODEL_HINTS:
            raise
        message = error.message.replace("the moving labels", "the plan")
        raise type(error)(error.code, message, MODEL_HINTS[error.code]) from error


def _other_way(
    today: Scan, plan: Scan, start: Transform, result: Result, stages: _Stages, options: dict[str, Any]
) -> dict[str, float | None]:
    """Register today to the plan, from the inverse of the same start, and measure how well both agree."""
    stages.part = 1
    turned, _ = invert(start, plan.image.geometry)
    with notices.unheard():  # no contour comes from the second registration
        back = _one_way(plan, today, turned, not today.mapped, options).transform
    return st.both_ways_numbers(result.transform, back, today)


def _one_way(fixed: Scan, moving: Scan, start: Transform, in_hu: bool, options: dict[str, Any]) -> Result:
    base = None if options["model"] is None else options["model"].settings
    return register(
        fixed.image, moving.image, fixed_mask=fixed.region, moving_mask=moving.region, init=start, progress=False,
        config=intra_patient_settings(fixed.image.geometry, base, tissue=in_hu, modality=fixed.image.modality),
        **options,
    )  # fmt: skip


def _on_today(
    shapes: Sequence[contours.Shape], pair: st.Pair, notes: Mapping[int, str], guided: Collection[int], stages: _Stages
) -> tuple[list[Structure], list[propagation.PropagatedStructure], list[propagation.PropagatedStructure]]:
    """Carry all shapes; return the structures with their rows, and the rows of those with nothing on today's slices."""
    drawn, rows, gone = [], [], []
    for n, shape in enumerate(shapes):
        number = shape.structure.number
        stages.inside(shape.structure.name, n / len(shapes))
        one, row = st.carried(shape, pair, "; ".join(filter(None, (notes[number], GUIDED if number in guided else ""))))
        if one.contours or len(one.points):
            drawn.append(one)
            rows.append(row)
        else:
            gone.append(row)
    return drawn, rows, gone


def is_absent(row: propagation.PropagatedStructure) -> bool:
    """Whether a structure is outside today's scan already by the start, so that the deformation lost nothing."""
    return bool(row.outside_percent) and (row.pushed_percent or 0.0) <= MOST_PUSHED


def _left_out(row: propagation.PropagatedStructure) -> LeftOut:
    share, pushed = row.outside_percent, row.pushed_percent
    if is_absent(row):
        return LeftOut(row.name, f"not in today's scan: {share:.0f} % of its contour lies beyond it")
    where = f"{share:.0f} % of it lies outside today's scan" if share else "no slice of today cuts it"
    moved = f", {pushed:.0f} % by the deformation alone" if share else ""
    return LeftOut(row.name, f"no contour today: {where}{moved}")


def _settings_sha(result: Result) -> str:
    settings = json.dumps(result.provenance.settings.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _of_series(result: Result, pair: st.Pair, labels: LabelMap) -> Images:
    """Return the images with today's labels, and with both series stated in the transforms."""
    images = result.images
    assert result.transform.ends is not None
    shown = warp_labels(labels, Transform(Field.zero(pair.today.image.geometry)))
    today, plan = (one.series.identity.series_hash for one in (pair.today, pair.plan))
    ends = replace(result.transform.ends, start_series=today, target_series=plan)
    there, back = replace(result.transform, ends=ends), replace(result.inverse, ends=ends.turned())
    return Images.made(there, back, images.warped, shown, images.pair, images.nodes, images.limit)


def write_contours(job: ContoursJob, output: str | Path, *, overwrite: bool = False) -> Propagation:
    """Propagate contours and write all files into a new folder, which appears when it is complete."""
    where = Path(output).absolute()
    for source in (one for one in (job.plan, job.today) if not isinstance(one, Series)):
        files = parse.files_in(source)
        folders = [Path(str(source)).absolute()] if files is None else [path.absolute().parent for path in files]
        if {where, *where.parents} & set(folders):
            message = f"the output '{output}' lies in the folder of an input"
            raise RegweaveError("E168", message, "choose another -o: folders of inputs are never written to")
    with prepare_output(output, overwrite=overwrite) as folder:
        done = propagate_contours(**vars(job))
        if job.on_stage is not None:
            job.on_stage("files", "files and page", 0.88)
        return _write_files(folder, done)


def _write_files(folder: Path, done: Propagation) -> Propagation:
    """Write all files of a propagation into an existing folder; return it with the hashes of what was written."""
    began, names = time.perf_counter(), dict(done.names)
    remarks = {
        row.number: f"regweave: {row.flag.upper()} {'; '.join(row.reasons)}"
        for row in done.quality.structures
        if row.flag != "pass"
    }
    write_rtstruct(folder / RTSTRUCT, done.structures, done.today, source=done.planned, names=names, remarks=remarks)
    error_mm = reg.write_reg_deformable(folder / REG, done.transform, done.today, done.plan)
    done.result.images.write(folder, ["transform"])
    write_labels(folder / FILES["labels"], done.labels)
    written = {
        "transform_sha256": sha256(folder / FILES["transform"]),
        "grid_error_mm": error_mm,
        "names": {old: new for old, new in names.items() if done.structures.named(old) is not None},
        "slices_mm": tuple(one.along_mm for one in done.today.slices),
        "files": {
            "structure set": RTSTRUCT,
            "registration": REG,
            "transform": FILES["transform"],
            "labels, one structure a voxel: the smallest where several overlap": FILES["labels"],
        },
    }
    seconds = {**done.result.seconds, "objects": time.perf_counter() - began}
    result = done.result.model_copy(update={"clinic": done.quality.model_copy(update=written), "seconds": seconds})
    return replace(done, result=result.write(folder, WRITTEN, there=["transform", "labels"]))
