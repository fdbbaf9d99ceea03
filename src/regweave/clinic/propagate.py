"""Propagation of contours: from two series and a structure set to contours on today's slices with their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.clinic.inputs import Scans, Sources, read_scans
from regweave.clinic.quality import RegisteredPair, flagged, outline_row, outside_share, section_of, structure_row
from regweave.clinic.scans import PreparedScans, WorkingScan, label_map, prepare
from regweave.clinic.settings import intra_patient_settings
from regweave.clinic.stages import OnStage, Teller
from regweave.clinic.start import BothWays, Start, find_start, run_back
from regweave.clinic.structures import (
    choose,
    find_outline,
    is_outline,
    plane_of,
    require_names,
    rigid_pair,
    rigid_reason,
    rigid_row,
)
from regweave.contours import Shape, carry, draw_labels, label_values, shape_of
from regweave.errors import RegweaveError
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.verdict import Rules, clinic_rules
from regweave.model.model import Model
from regweave.registration import devices
from regweave.run.images import OutputImages
from regweave.run.memory import allowed_threads
from regweave.run.register import register
from regweave.run.result import Result
from regweave.spatial.warp import warp_labels
from regweave.threads import kernel_threads
from regweave.types import Field, LabelMap, LeftOut, Structure, StructureSet, Transform

OF_LABELS = ("W203", "W214")
"""Warnings of label voxels, which here only guide: volumes and what no scan shows are told by structure."""
MOST_OUTSIDE = 0.99
MOST_PUSHED = 10.0
"""A structure without a contour today is lost where the deformation moves more than this share out, in percent."""
MODEL_HINTS = {
    "E130": "give structures the model's names with --name-map, choose with --structures, or leave --model out",
    "E172": "leave --model out, or use a model for such scans",
}
"""Next steps where a model does not fit, in the words of this command."""


@dataclass(frozen=True)
class ContoursRequest:
    """One propagation as it is asked for.

    Parameters
    ----------
    sources : Sources
        Scans and structure set.
    structures : sequence of str, optional
        Names of the structures that are wanted; by default all but those made from a dose.
    model : path, name or Model, optional
    init : str, path, Transform or matrix
        Start.
    rules : Rules
    landmarks : LandmarkPairs, optional
        Points today and their partners in the plan.
    carry_outline : bool
        Carry the patient's outline, never contour it in today's CT.
    both_ways : bool
        Register the other way too, and measure how well the two agree.
    names : mapping
        New names of structures, by which a model and other programs know them.
    threads, device : optional
        As in `regweave.register`.
    """

    sources: Sources
    structures: Sequence[str] | None = None
    model: str | Path | Model | None = None
    init: Any = "rigid"
    rules: Rules = field(default_factory=clinic_rules)
    landmarks: LandmarkPairs | None = None
    carry_outline: bool = False
    both_ways: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    device: str | None = None


@dataclass(frozen=True)
class Propagation:
    """Contours on today's scan, with the registration behind them.

    Parameters
    ----------
    scans : Scans
        Both series, and the structures of the plan.
    structures : StructureSet
        The structures on today's slices; ``left_out`` names everything that is not there.
    result : Result
        The registration on working copies, with the quality assurance under ``clinic``.
    start : Start
    labels : LabelMap
        The structures as labels on the grid of today's scan; where two overlap the smaller one is seen.
    names : mapping
        New names of structures in files.
    """

    scans: Scans
    structures: StructureSet
    result: Result
    start: Start
    labels: LabelMap = field(repr=False)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def transform(self) -> Transform:
        """Takes points of today to points of the plan."""
        return self.result.transform

    @property
    def quality(self) -> Mapping[str, Any]:
        """Numbers by structure and of the whole, as ``result.json`` has them."""
        assert self.result.clinic is not None
        return self.result.clinic


def propagate(request: ContoursRequest, on_stage: OnStage | None = None) -> Propagation:
    """Bring the contours of a plan onto today's scan.

    Parameters
    ----------
    request : ContoursRequest
    on_stage : callable, optional
        Called as the work goes on.
    """
    with kernel_threads(allowed_threads(request.threads)):
        return _propagated(request, Teller(on_stage))


def _propagated(request: ContoursRequest, tell: Teller) -> Propagation:
    devices.get(request.device)  # what is not there is told before anything is read
    request = replace(request, model=None if request.model is None else _loaded(request.model))
    with notices.collected() as caught:
        tell.begin("series")
        scans = read_scans(request.sources)
        choice = choose(scans.planned, request.structures)
        require_names((*choice.carried, *choice.outlines), request.names)
        tell.begin("start")
        ready = prepare(scans, lambda words, share: tell.inside(words, 0.45 * share))
        scans, today, plan = ready.scans, ready.today, ready.plan
        start = find_start(request.init, scans, today, plan)
        notes, anew = dict(choice.notes), {}
        for one in choice.outlines:
            skin, notes[one.number] = find_outline(one, ready, carry=request.carry_outline)
            if skin is not None:
                anew[one.number] = skin
        tell.inside("structures of the plan", 0.85)
        chosen = {one.number for one in (*choice.carried, *choice.outlines)} - set(anew)
        shapes = [shape_of(one, scans.plan) for one in scans.planned.structures if one.number in chosen]
        values = label_values(scans.planned.structures)
        organs = [shape for shape in shapes if not is_outline(shape.structure)]
        labels = label_map(organs, plan.image.geometry, values, request.names)
        tell.begin("register")
        result, back = _registered(request, ready, labels, start, tell)
        tell.begin("contours")
        found = RegisteredPair.of(result.transform, result.inverse, scans.plan, scans.today, today.seen)
        drawn, rows, lost, left_out = [], [], [], list(choice.left_out)
        for n, shape in enumerate(shapes):
            tell.inside(shape.structure.name, n / len(shapes))
            one, row = _moved(shape, found, ready, notes.get(shape.structure.number, ""))
            if one.contours or len(one.points):
                drawn.append(one)
                rows.append(row)
            elif _is_absent(row):
                left_out.append(_absent(row))
            else:
                lost.append(_lost(row))
        for planned in choice.outlines:
            if planned.number in anew:
                drawn.append(anew[planned.number])
                rows.append(outline_row(planned, drawn[-1], found, notes[planned.number]))
        on_today = draw_labels(drawn, scans.today, values, request.names)
    section = section_of(ready, start, result, back)
    section |= {
        "structures": [
            flagged(row | {"label": values[row["number"]]}, request.rules, section["whole"]) for row in rows
        ],
        "lost": [{"name": one.name, "reason": one.reason} for one in lost],
        "left_out": [{"name": one.name, "reason": one.reason} for one in left_out],
    }
    structures = replace(
        scans.planned, structures=tuple(drawn), frame_uid=scans.today.frame_uid, identity=scans.today.identity,
        left_out=(*left_out, *lost),
    )  # fmt: skip
    shown = warp_labels(on_today, Transform(Field.zero(today.image.geometry)))
    tell.end()
    rest = {"rest of the registration": tell.seconds.pop("register") - sum(result.seconds.values())}
    judged = replace(
        result,
        seconds={**tell.seconds, **result.seconds, **rest},
        images=_of_series(result, scans, shown),
        clinic=section,
        rules=request.rules,
        warnings=tuple(text for text in caught if not text.startswith(OF_LABELS)),
    )
    judged = judged if request.landmarks is None else judged.with_landmarks(request.landmarks)
    return Propagation(scans, structures, judged, start, on_today, request.names)


def _of_series(result: Result, scans: Scans, shown: LabelMap) -> OutputImages:
    """Return the images with today's labels, and with both series stated in the transforms."""
    assert isinstance(result.images, OutputImages)
    assert result.transform.ends is not None
    today, plan = scans.today.identity.series_hash, scans.plan.identity.series_hash
    ends = replace(result.transform.ends, start_series=today, target_series=plan)
    there, back = replace(result.transform, ends=ends), replace(result.inverse, ends=ends.turned())
    return replace(result.images, warped_labels=shown, transform=there, inverse=back)


def _registered(
    request: ContoursRequest, ready: PreparedScans, labels: LabelMap, start: Start, tell: Teller
) -> tuple[Result, BothWays | None]:
    """Register the plan to today, and where it is asked for today to the plan."""
    working, tissue = (ready.today, ready.plan), ready.mapped is None
    tell.parts = 2 if request.both_ways else 1
    try:
        with notices.muted(OF_LABELS[0]), notices.muted(OF_LABELS[1]):
            result = _one_way(
                request, working, start.transform, tell, labels if labels.data.any() else None, tissue=tissue
            )
    except RegweaveError as error:
        if error.code not in MODEL_HINTS:
            raise
        message = error.message.replace("the moving labels", "the plan")
        raise type(error)(error.code, message, MODEL_HINTS[error.code]) from error
    if not request.both_ways:
        return result, None
    tell.part = 1
    with notices.unheard():  # no contour comes from the second registration
        other = run_back(
            result.transform, start.transform, working,
            lambda fixed, moving, init: _one_way(
                request, (fixed, moving), init, tell, None, tissue=tissue
            ).transform,
        )  # fmt: skip
    return result, other


def _one_way(
    request: ContoursRequest,
    working: tuple[WorkingScan, WorkingScan],
    start: Transform,
    tell: Teller,
    labels: LabelMap | None,
    *,
    tissue: bool,
) -> Result:
    fixed, moving = working
    model = request.model
    assert model is None or isinstance(model, Model)
    settings = intra_patient_settings(
        fixed.image.geometry,
        None if model is None else model.settings,
        tissue=tissue,
        modality=fixed.image.modality,
    )
    return register(
        fixed.image,
        moving.image,
        moving_labels=labels,
        fixed_mask=fixed.region,
        moving_mask=moving.region,
        model=model,
        config=settings,
        init=start,
        threads=request.threads,
        device=request.device,
        on_progress=tell.step,
        keep_view=True,
    )


def _loaded(model: str | Path | Model) -> Model:
    return model if isinstance(model, Model) else Model.load(model)


def _moved(shape: Shape, found: RegisteredPair, ready: PreparedScans, note: str) -> tuple[Structure, dict[str, Any]]:
    """Carry or move a structure and measure it; of one that today's field of view does not show nothing is drawn."""
    one, start = shape.structure, found.transform.affine
    reason = "" if is_outline(one) else rigid_reason(shape, ready.plan)
    if reason:
        found, note = rigid_pair(shape, found, ready.today), "; ".join(filter(None, (note, reason)))
    moved = carry(shape, found.transform, found.today)
    if found.seen is not None and moved.contours and outside_share(one, found) > MOST_OUTSIDE:
        moved = replace(moved, contours=())
    if not reason and (empty := _empty_slices(ready) & {c.image for c in moved.contours}):
        moved = replace(moved, contours=tuple(c for c in moved.contours if c.image not in empty))
        note = "; ".join(filter(None, (note, f"not drawn on {len(empty)} slices that show no patient")))
    return moved, rigid_row(shape, moved, found, start, note) if reason else structure_row(shape, moved, found, note)


def _empty_slices(ready: PreparedScans) -> set[int | None]:
    """Return the slices of today's CT that show no patient: a resampled scan may end so."""
    today, body = ready.today.image.geometry, ready.today.body
    if body is None:
        return set()
    planes = [plane_of(today, one.position_mm) for one in ready.scans.today.slices]
    return {k for k, plane in enumerate(planes) if plane is not None and not body[..., plane].any()}


def _lost(row: Mapping[str, Any]) -> LeftOut:
    share, pushed = row["outside_percent"], row["pushed_percent"]
    where = f"{share:.0f} % of it lies outside today's scan" if share else "no slice of today cuts it"
    moved = f", {pushed:.0f} % by the deformation alone" if share else ""
    return LeftOut(row["name"], f"no contour today: {where}{moved}")


def _is_absent(row: Mapping[str, Any]) -> bool:
    """Whether today's scan does not show a structure without contours, so that the deformation has lost nothing."""
    return bool(row["outside_percent"]) and row["pushed_percent"] <= MOST_PUSHED


def _absent(row: Mapping[str, Any]) -> LeftOut:
    return LeftOut(row["name"], f"not in today's scan: {row['outside_percent']:.0f} % of its contour lies beyond it")
