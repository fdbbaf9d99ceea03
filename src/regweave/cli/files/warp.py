"""Move an image, labels, points, a structure set or a dose with a transform that exists already.

A transform file takes FIXED points to MOVING points (ITK's convention).
So it brings a moving image or moving labels onto the fixed grid, and it
brings points from the fixed image to the moving one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from regweave.cli.files import warp_dicom
from regweave.cli.help import command_line, examples, input_option, method_option
from regweave.cli.options import (
    FollowOption,
    FrameOption,
    JsonOption,
    LabelNamesOption,
    NonFiniteOption,
    OutputOption,
    OverwriteOption,
    TransformOption,
)
from regweave.errors import UsageError
from regweave.io import (
    fill_value,
    read_image,
    read_labels,
    read_points,
    require_absent,
    write_image,
    write_labels,
    write_points,
)
from regweave.run.warp import Space, onto_grid, warp_points
from regweave.spatial import warp_image, warp_labels
from regweave.types import Transform

ReferenceOption = Annotated[
    Path, input_option("--reference", "-r", help="Image on whose grid the result lies: the fixed image.")
]
OtherGridOption = Annotated[
    bool,
    input_option("--other-grid", help="Let REFERENCE be another grid in the space where the transform starts."),
]
ToOption = Annotated[
    Space | None,
    input_option("--to", help="Space of the result; by default the grids tell, and fixed where both are the same."),
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


@app.command(epilog=examples("regweave warp image dose.nii.gz -t transform.h5 -r fixed.nii.gz -o new.nii"))
def image(
    file: Annotated[Path, typer.Argument(help="Image in moving space.")],
    *,
    transform: TransformOption,
    reference: ReferenceOption,
    output: OutputOption,
    target: ToOption = None,
    other_grid: OtherGridOption = False,
    overwrite: OverwriteOption = False,
    fill: Annotated[
        float | None,
        method_option(help="Value outside the moving image; by default -1000 for CT, else 0."),
    ] = None,
    nifti_frame: FrameOption = "auto",
    nonfinite: NonFiniteOption = "error",
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a MOVING image onto the FIXED grid by trilinear interpolation.

    With inverse.h5, and the moving image as REFERENCE, a FIXED image is
    brought onto the MOVING grid. A transform of this program states both
    grids, and is refused where it goes the other way.
    """
    claim = require_absent(output, overwrite=overwrite)
    moving = read_image(file, nifti_frame=nifti_frame, nonfinite=nonfinite, follow_links=follow_links)
    path = onto_grid(
        transform, reference, to=target, other_grid=other_grid, nifti_frame=nifti_frame, follow_links=follow_links
    )
    value = fill_value(moving) if fill is None else fill
    with claim.writing():
        write_image(output, warp_image(moving, path, fill=value))
    _tell(f"{_names(path, target, 'image')}, outside = {value:g}", as_json, output, fill=value)


@app.command(epilog=examples("regweave warp labels organs.nii.gz -t transform.h5 -r f.nii.gz -o new.nii"))
def labels(
    file: Annotated[Path, typer.Argument(help="Label map in moving space.")],
    *,
    transform: TransformOption,
    reference: ReferenceOption,
    output: OutputOption,
    target: ToOption = None,
    other_grid: OtherGridOption = False,
    overwrite: OverwriteOption = False,
    label_names: LabelNamesOption = None,
    nifti_frame: FrameOption = "auto",
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring MOVING labels onto the FIXED grid; values and type of the labels are kept.

    With inverse.h5, and the moving image as REFERENCE, FIXED labels are
    brought onto the MOVING grid.
    """
    claim = require_absent(output, overwrite=overwrite)
    moving = read_labels(file, names_path=label_names, nifti_frame=nifti_frame, follow_links=follow_links)
    path = onto_grid(
        transform, reference, to=target, other_grid=other_grid, nifti_frame=nifti_frame, follow_links=follow_links
    )
    warped = warp_labels(moving, path)
    with claim.writing():
        write_labels(output, warped)
    gone = sorted(set(moving.values()) - set(warped.values()))
    text = f"{_names(path, target, 'labels')}, {len(warped.values())} labels"
    known = {str(v): moving.name(v) for v in moving.values()}
    _tell(text, as_json, output, labels=[int(v) for v in warped.values()], lost=[int(v) for v in gone], names=known)
    if gone:
        names = ", ".join(moving.name(value) for value in gone)
        typer.echo(f"warning W203: labels without a voxel in the result: {names}", err=True)


@app.command(
    epilog=examples(
        "regweave warp points marks.csv -t transform.h5 -o moved.csv",
        "regweave warp points m.csv --from moving --to fixed -t inverse.h5 -o f.csv",
    )
)
def points(
    file: Annotated[Path, typer.Argument(help="Points (.mrk.json, .fcsv, .csv) in the space named by --from.")],
    *,
    transform: TransformOption,
    output: OutputOption,
    reference: Annotated[
        Path | None,
        input_option("--reference", "-r", help="Grid to sample a transform on that has none (e.g. B-spline)."),
    ] = None,
    source: Annotated[Space, input_option("--from", help="Space of the points in FILE.")] = "fixed",
    target: Annotated[Space, input_option("--to", help="Space of the points in OUTPUT.")] = "moving",
    overwrite: OverwriteOption = False,
    nifti_frame: FrameOption = "auto",
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring points from the FIXED image to the MOVING one, or back.

    The transform file is applied as it is stored. That of a registration
    takes fixed points to moving points; to go from moving to fixed, say
    --from moving --to fixed and pass inverse.h5 of the same result.
    """
    claim = require_absent(output, overwrite=overwrite)
    if source == target:
        raise UsageError("E117", f"points are to go from {source} to {target}", "name two different spaces")
    where, names = read_points(file)
    moved = warp_points(
        where, transform, source=source, reference=reference, nifti_frame=nifti_frame, follow_links=follow_links
    )
    with claim.writing():
        write_points(output, moved, names)
    text = f"{len(names)} points, from {source} to {target} space, LPS mm"
    _tell(text, as_json, output, points=len(names), source=source, target=target)


app.command(epilog=examples("regweave warp rtstruct plan.dcm --planning PLAN -t T.h5 -r TODAY -o new.dcm"))(
    warp_dicom.rtstruct
)
app.command(epilog=examples("regweave warp dose dose.dcm -t transform.h5 -r TODAY -o new.dcm"))(warp_dicom.dose)


def _tell(text: str, as_json: bool, output: Path, **facts: object) -> None:
    """Say what was written, in a line or as JSON."""
    content = json.dumps({"output": str(output), **facts}, ensure_ascii=False)
    print(content if as_json else f"wrote {output}: {text}")


def _names(transform: Transform, space: Space | None, what: str) -> str:
    """Say which image was brought to which grid."""
    back = space == "moving" if transform.ends is None else transform.ends.direction == "moving_to_fixed"
    return f"fixed {what} on the moving grid" if back else f"moving {what} on the fixed grid"
