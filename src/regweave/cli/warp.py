"""Move an image, labels, points, a structure set or a dose with a transform that exists already.

A transform file takes FIXED points to MOVING points (ITK's convention).
So it brings a moving image or moving labels onto the fixed grid, and it
brings points from the fixed image to the moving one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from regweave import io, notices
from regweave.cli import options as opt
from regweave.cli.app import command_line
from regweave.contours import carry_set, volume_ml
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.dose import read_dose, write_dose
from regweave.io.dicom.parse import require_same_patient
from regweave.io.dicom.reg import read_reg, require_frames
from regweave.io.dicom.rtstruct import read_rtstruct, write_rtstruct
from regweave.io.dicom.series import Series, choose_series, read_series
from regweave.io.disk.files import suffix_of
from regweave.io.images import FORMAT_OF
from regweave.io.labels import read_name_map
from regweave.io.transforms.files import DICOM_SUFFIXES, LINEAR_SUFFIXES
from regweave.io.write import TimeSeries, write_time_series
from regweave.run.check import range_within, require_limits
from regweave.run.warp import IDENTITY, INVERSE, Space, bring, onto_grid, warp_points
from regweave.spatial.warp import Interpolation, warp_image, warp_labels
from regweave.types import Geometry, StructureSet, Transform

ReferenceOption = Annotated[
    Path, opt.of_input("--reference", "-r", help="Image whose grid the result has: the fixed image.")
]
TodayOption = Annotated[
    Path, opt.of_input("--reference", "-r", help="DICOM folder of the new series: the fixed image of the transform.")
]
TodaySeriesOption = Annotated[
    str | None, opt.of_input("--series", help="Series of REFERENCE by its hash, if it holds several.", metavar="HASH")
]
PlanSeriesOption = Annotated[
    str | None,
    opt.of_input("--planning-series", help="Series of PLANNING by its hash, if it holds several.", metavar="HASH"),
]
OtherGridOption = Annotated[
    bool, opt.of_input("--other-grid", help="Let REFERENCE be another grid in the space where the transform starts.")
]
ToOption = Annotated[
    Space | None,
    opt.of_input("--to", help="Space of the result; by default by the grids, and fixed where both are the same."),
]
MismatchOption = Annotated[
    bool, opt.of_input("--allow-id-mismatch", help="Accept objects that state different patients.")
]


class _Kinds(TyperGroup):
    """Commands by the kind of what is moved."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find a command by the first word, which names a kind and not a file."""
        kinds = self.list_commands(ctx)
        if args and args[0] not in kinds and Path(args[0]).suffix:
            message = f"'{args[0]}' is given where the kind is needed"
            hint = f"choose {', '.join(kinds)}, for example: regweave warp {kinds[0]} {args[0]} …"
            raise UsageError("E192", message, hint)
        return super().resolve_command(ctx, args)


app = command_line(help=__doc__, cls=_Kinds)


@app.add(
    "regweave warp image dose.nii.gz -t transform.h5 -r fixed.nii.gz -o new.nii",
    "regweave warp image m.nii -t field.nii -t a.mat -r f.nii -o n.nii",
    "regweave warp image m.nii -t '[a.mat,1]' -r f.nii -o n.nii",
)
def image(
    file: Annotated[Path, typer.Argument(help="Image in moving space, or a 4-D series of them.")],
    *,
    transform: opt.Chain,
    reference: ReferenceOption,
    output: opt.Output,
    target: ToOption = None,
    other_grid: OtherGridOption = False,
    overwrite: opt.Overwrite = False,
    fill: Annotated[
        float | None, opt.of_method(help="Value outside the moving image; by default -1000 for CT, else 0.")
    ] = None,
    interpolation: Annotated[
        Interpolation, opt.of_method(help="Between voxels: linear, nearest, label or bspline.", metavar="WORD")
    ] = "linear",
    nifti_frame: opt.Frame = "auto",
    nonfinite: opt.Nonfinite = "error",
    follow_links: opt.Follow = False,
    as_json: opt.Json = False,
) -> None:
    """Bring a MOVING image onto the FIXED grid; of a 4-D series every volume.

    Several -t are applied to points of the FIXED grid in the order given, as
    antsApplyTransforms does; "[FILE,1]" is the inverse of a file.
    With inverse.h5, and the moving image as REFERENCE, a FIXED image is
    brought onto the MOVING grid. A transform of this program states both
    grids, and is refused where it goes the other way.
    """
    io.require_absent(output, overwrite=overwrite)
    moved, path, value = bring(
        file, transform, reference, fill=fill, interpolation=interpolation, nonfinite=nonfinite, to=target,
        other_grid=other_grid, nifti_frame=nifti_frame, follow_links=follow_links,
    )  # fmt: skip
    if isinstance(moved, TimeSeries):
        write_time_series(output, moved)
    else:
        io.write_image(output, moved)
    _tell(f"{_direction(path, target, 'image')}, outside = {value:g}", as_json, output, fill=value)


@app.add("regweave warp labels organs.nii.gz -t transform.h5 -r f.nii.gz -o new.nii")
def labels(
    file: Annotated[Path, typer.Argument(help="Label map in moving space.")],
    *,
    transform: opt.Chain,
    reference: ReferenceOption,
    output: opt.Output,
    target: ToOption = None,
    other_grid: OtherGridOption = False,
    overwrite: opt.Overwrite = False,
    label_names: opt.LabelNames = None,
    nifti_frame: opt.Frame = "auto",
    follow_links: opt.Follow = False,
    as_json: opt.Json = False,
) -> None:
    """Bring MOVING labels onto the FIXED grid; values and type of the labels are kept.

    With inverse.h5, and the moving image as REFERENCE, FIXED labels are
    brought onto the MOVING grid.
    """
    io.require_absent(output, overwrite=overwrite)
    moving = io.read_labels(file, names_path=label_names, nifti_frame=nifti_frame, follow_links=follow_links)
    path = onto_grid(
        transform, reference, to=target, other_grid=other_grid, nifti_frame=nifti_frame, follow_links=follow_links
    )
    warped = warp_labels(moving, path)
    io.write_labels(output, warped)
    gone = sorted(set(moving.values()) - set(warped.values()))
    text = f"{_direction(path, target, 'labels')}, {len(warped.values())} labels"
    known = {str(v): moving.name(v) for v in moving.values()}
    _tell(text, as_json, output, labels=[int(v) for v in warped.values()], lost=[int(v) for v in gone], names=known)
    if gone:
        names = ", ".join(moving.name(value) for value in gone)
        typer.echo(f"warning W203: labels without a voxel in the result: {names}", err=True)


@app.add(
    "regweave warp points marks.csv -t transform.h5 -o moved.csv",
    "regweave warp points m.csv --from moving --to fixed -t inverse.h5 -o f.csv",
)
def points(
    file: Annotated[Path, typer.Argument(help="Points (.mrk.json, .fcsv, .csv) in the space named by --from.")],
    *,
    transform: opt.Transform,
    output: opt.Output,
    reference: Annotated[
        Path | None,
        opt.of_input("--reference", "-r", help="Grid to sample a transform on that has none (e.g. B-spline)."),
    ] = None,
    source: Annotated[Space, opt.of_input("--from", help="Space of the points in FILE.")] = "fixed",
    target: Annotated[Space, opt.of_input("--to", help="Space of the points in OUTPUT.")] = "moving",
    overwrite: opt.Overwrite = False,
    nifti_frame: opt.Frame = "auto",
    follow_links: opt.Follow = False,
    as_json: opt.Json = False,
) -> None:
    """Bring points from the FIXED image to the MOVING one, or back.

    The transform file is applied without inversion. That of a registration
    maps fixed points to moving points. For the other way, give --from moving
    --to fixed and inverse.h5 of the same result.
    """
    io.require_absent(output, overwrite=overwrite)
    if source == target:
        raise UsageError("E117", f"points are to go from {source} to {target}", "name two different spaces")
    where, names = io.read_points(file)
    moved = warp_points(
        where, transform, source=source, reference=reference, nifti_frame=nifti_frame, follow_links=follow_links
    )
    io.write_points(output, moved, names)
    text = f"{len(names)} points, from {source} to {target} space, LPS mm"
    _tell(text, as_json, output, points=len(names), source=source, target=target)


def _tell(text: str, as_json: bool, output: Path, **facts: object) -> None:
    content = json.dumps({"output": str(output), **facts}, ensure_ascii=False)
    print(content if as_json else f"wrote {output}: {text}")


def _direction(transform: Transform, space: Space | None, what: str) -> str:
    """Return which image was brought to which grid."""
    back = space == "moving" if transform.ends is None else transform.ends.direction == "moving_to_fixed"
    return f"fixed {what} on the moving grid" if back else f"moving {what} on the fixed grid"


@app.add("regweave warp rtstruct plan.dcm --planning PLAN -t T.h5 -r TODAY -o new.dcm")
def rtstruct(
    file: Annotated[Path, typer.Argument(help="RT structure set drawn on the planning series.")],
    *,
    planning: Annotated[Path, opt.of_input(help="DICOM folder of the planning series.")],
    transform: opt.Transform,
    reference: TodayOption,
    output: opt.Output,
    overwrite: opt.Overwrite = False,
    structures: Annotated[
        str | None, opt.of_input(help="Only these structures, with commas between them.", metavar="NAMES")
    ] = None,
    name_map: Annotated[Path | None, opt.of_input(help='New names: JSON {"old": "new"}, or TSV.')] = None,
    planning_series: PlanSeriesOption = None,
    series: TodaySeriesOption = None,
    target: ToOption = None,
    other_grid: OtherGridOption = False,
    allow_id_mismatch: MismatchOption = False,
    as_json: opt.Json = False,
) -> None:
    """Bring planning contours onto the slices of a new series.

    Structures go as shapes, not as voxels. The result is a new, unapproved
    set of the new series. What is left out is listed.
    """
    require_dicom_name(output)
    io.require_absent(output, overwrite=overwrite)
    require_outside(output, planning, reference)
    names = {} if name_map is None else read_name_map(name_map)
    plan, today = read_series(planning, planning_series), read_series(reference, series)
    found = read_rtstruct(file, plan, allow_id_mismatch=allow_id_mismatch)
    if not allow_id_mismatch:
        require_same_patient(plan.identity, today.identity, f"'{planning}' and '{reference}'")
    chosen = _selected(found, structures, str(file))
    with _frames_checked(transform, today, plan.frame_uid, f"'{planning}'"):
        path = onto_grid(transform, today.image.geometry, to=target, other_grid=other_grid, whole_scan=True)
    moved = carry_set(chosen, plan, path, today)
    write_rtstruct(output, moved, today, source=found, names=names)
    rows = [
        {
            "name": names.get(one.name, one.name),
            "contours": len(one.contours),
            "points": len(one.points),
            "volume_ml": round(volume_ml(one, today), 3),
        }
        for one in moved.structures
    ]
    left = [{"name": one.name, "reason": one.reason} for one in moved.left_out]
    lines = [f"{len(rows)} structures, not approved"]
    lines += [f"  {row['name']:<24} {row['contours']:4} contours {row['volume_ml']:10.2f} ml" for row in rows]
    lines += [f"  left out: {one['name']}: {one['reason']}" for one in left]
    _tell("\n".join(lines), as_json, output, structures=rows, left_out=left)


def _selected(found: StructureSet, names: str | None, subject: str) -> StructureSet:
    if names is None:
        return found
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    missing = [name for name in wanted if found.named(name) is None]
    if missing or not wanted:
        known = ", ".join(one.name for one in found.structures)
        message = f"'{subject}' has no structure {', '.join(map(repr, missing)) or 'of an empty name'} with contours"
        raise UsageError("E165", message, f"choose some of: {known}")
    return replace(found, structures=tuple(one for one in found.structures if one.name in wanted))


@app.add("regweave warp dose dose.dcm -t transform.h5 -r TODAY -o new.dcm")
def dose(
    file: Annotated[Path, typer.Argument(help="RT dose of the plan.")],
    *,
    transform: opt.Transform,
    reference: TodayOption,
    output: opt.Output,
    overwrite: opt.Overwrite = False,
    planning: Annotated[
        Path | None, opt.of_input(help="DICOM folder of the planning series: the dose must be in its frame.")
    ] = None,
    planning_series: PlanSeriesOption = None,
    series: TodaySeriesOption = None,
    target: ToOption = None,
    other_grid: OtherGridOption = False,
    limit: Annotated[
        Path | None,
        opt.of_input(help="Map error_limit.nii.gz of the registration: write the range of dose at each point too."),
    ] = None,
    allow_id_mismatch: MismatchOption = False,
    as_json: opt.Json = False,
) -> None:
    """Bring a planned dose into the space of a new series.

    The result has about the spacing of the dose, in whole voxels of the new
    series. It is 0 outside of the dose, and marked as warped. The frame of
    reference of the dose is checked against PLANNING, and against a transform
    that is a DICOM registration; an ITK transform states none. With --limit,
    OUTPUT_low and OUTPUT_high have the least and the largest dose within the
    limit of the error.
    """
    require_dicom_name(output)
    io.require_absent(output, overwrite=overwrite)
    ends = [] if limit is None else [output.with_name(f"{output.stem}_{end}{output.suffix}") for end in ("low", "high")]
    for end in ends:
        io.require_absent(end, overwrite=overwrite)
    limits = None
    if limit is not None:
        require_limits(limits := io.read_image(limit), limit)
    require_outside(output, reference, *([] if planning is None else [planning]))
    found, today = read_dose(file), read_series(reference, series)
    if not allow_id_mismatch:
        require_same_patient(found.identity, today.identity, f"'{file}' and '{reference}'")
    if planning is not None:
        frame = choose_series(planning, planning_series).identity.frame_uid
        if found.frame_uid and frame and found.frame_uid != frame:
            message = f"the dose '{file}' lies in another frame of reference than the series of '{planning}'"
            raise RegweaveError("E160", message, "give the series that the dose was planned on")
    with _frames_checked(transform, today, found.frame_uid, f"'{file}'"):
        path = onto_grid(transform, today.image.geometry, to=target, other_grid=other_grid, whole_scan=True)
    if limits is not None and limit is not None and path.ends is not None:
        io.check_same_grid(path.ends.start, limits.geometry, limit)
    grid = _dose_grid(today.image.geometry, found.volume.geometry)
    warped = warp_image(found.volume, io.read_transform(path, grid), fill=0.0)
    write_dose(output, replace(found, volume=warped), today)
    if limits is not None:
        for end, volume in zip(ends, range_within(warped, limits), strict=True):
            write_dose(end, replace(found, volume=volume), today)
    low, high = float(warped.data.min()), float(warped.data.max())
    span = f"{low:.4g} to" if low < 0 else "at most"
    text = f"{grid.summary}, {span} {high:.4g} {found.units}"
    if ends:
        text += f"; least and largest dose within the limit: {ends[0].name}, {ends[1].name}"
    _tell(text, as_json, output, largest_before=float(found.volume.data.max()), smallest=low, largest=high)


@contextmanager
def _frames_checked(transform: str, today: Series, frame: str, subject: str) -> Iterator[None]:
    """Raise E160 where frames of reference are stated and a transform cannot join them.

    A DICOM registration has to be of today's frame and of the plan's; the identity holds within one frame alone.
    Frames give the direction: inside the block W212, that it is unknown, is muted.
    """
    if INVERSE.fullmatch(transform):
        message = f"-t is {transform}, and contours and doses take a transform itself"
        raise UsageError("E192", message, "pass a file of the inverse, such as inverse.h5")
    if transform == IDENTITY and today.frame_uid and frame and today.frame_uid != frame:
        message = f"the identity joins nothing: {subject} and the reference have different frames of reference"
        raise RegweaveError("E160", message, "pass the registration of the two series with -t")
    stated = suffix_of(Path(transform)) in DICOM_SUFFIXES and today.frame_uid and frame
    if stated:
        require_frames(read_reg(transform), today.frame_uid, frame, f"'{transform}'")
    with notices.muted("W212") if stated else nullcontext():
        yield


def _dose_grid(today: Geometry, dose: Geometry) -> Geometry:
    """Return a grid over today's image with about the spacing of the dose."""
    steps = np.maximum(np.rint(dose.spacing_mm.mean() / today.spacing_mm), 1).astype(int)
    shape = np.maximum((np.array(today.shape) - 1) // steps + 1, 4)
    affine = today.affine.copy()
    affine[:3, :3] = today.affine[:3, :3] * steps
    x, y, z = shape.tolist()
    return Geometry((x, y, z), affine)


def require_dicom_name(output: Path) -> None:
    """Raise E152 for the suffix of another format; DICOM files need none."""
    suffix = suffix_of(output)
    if suffix not in DICOM_SUFFIXES and suffix in (*FORMAT_OF, *LINEAR_SUFFIXES, ".json", ".csv"):
        raise UsageError("E152", f"'{output}' would be a DICOM object, and its suffix is '{suffix}'", "name it .dcm")


def require_outside(output: Path, *inputs: Path) -> None:
    """Raise E168 for an output in a folder of inputs, which are never written to."""
    for folder in inputs:
        if folder.is_dir() and output.absolute().resolve().is_relative_to(folder.resolve()):
            message = f"the output '{output}' lies in the folder of an input, '{folder}'"
            raise RegweaveError("E168", message, "choose another -o: folders of inputs are never written to")
