"""Move an image, a label map or points with a transform that exists already.

A transform file takes FIXED points to MOVING points (ITK's convention).
So it brings a moving image or moving labels onto the fixed grid, and it
brings points from the fixed image to the moving one.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.options import FrameOption, JsonOption, NonFiniteOption
from regweave.deformation import warp_image, warp_labels, warp_points
from regweave.errors import UsageError
from regweave.io import (
    fill_value,
    read_image,
    read_labels,
    read_points,
    read_transform,
    require_absent,
    write_image,
    write_labels,
    write_points,
)
from regweave.io.images import read_stored
from regweave.io.nifti_frame import NiftiFrame
from regweave.io.transforms import ANYWHERE
from regweave.types import Field, Geometry, Transform

TransformOption = Annotated[
    str,
    typer.Option("--transform", "-t", help="Transform file (.h5, .tfm, .nii.gz …), or the word identity."),
]
ReferenceOption = Annotated[
    Path, typer.Option("--reference", "-r", help="Image on whose grid the result lies: the fixed image.")
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")]


class Space(StrEnum):
    """The two images that a transform connects."""

    FIXED = "fixed"
    MOVING = "moving"


def image(
    file: Annotated[Path, typer.Argument(help="Image in moving space.")],
    *,
    transform: TransformOption,
    reference: ReferenceOption,
    output: OutputOption,
    overwrite: OverwriteOption = False,
    fill: Annotated[
        float | None,
        typer.Option(help="Value outside the moving image; by default -1000 for CT (minimum below -500), else 0."),
    ] = None,
    nifti_frame: FrameOption = "auto",
    nonfinite: NonFiniteOption = "error",
    as_json: JsonOption = False,
) -> None:
    """Bring a MOVING image onto the FIXED grid by trilinear interpolation."""
    claim = require_absent(output, overwrite=overwrite)
    moving = read_image(file, nifti_frame=nifti_frame, nonfinite=nonfinite)
    path = _load(transform, _grid(reference, nifti_frame))
    value = fill_value(moving) if fill is None else fill
    with claim.writing():
        write_image(output, warp_image(moving, path, fill=value))
    _tell(f"moving image on the fixed grid, outside = {value:g}", as_json, output, fill=value)


def labels(
    file: Annotated[Path, typer.Argument(help="Label map in moving space.")],
    *,
    transform: TransformOption,
    reference: ReferenceOption,
    output: OutputOption,
    overwrite: OverwriteOption = False,
    nifti_frame: FrameOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Bring MOVING labels onto the FIXED grid; values and type of the labels are kept."""
    claim = require_absent(output, overwrite=overwrite)
    moving = read_labels(file, nifti_frame=nifti_frame)
    warped = warp_labels(moving, _load(transform, _grid(reference, nifti_frame)))
    with claim.writing():
        write_labels(output, warped)
    gone = sorted(set(moving.values()) - set(warped.values()))
    text = f"moving labels on the fixed grid, {len(warped.values())} labels"
    _tell(text, as_json, output, labels=[int(v) for v in warped.values()], lost=[int(v) for v in gone])
    if gone:
        names = ", ".join(moving.name(value) for value in gone)
        typer.echo(f"warning W203: labels without a voxel in the result: {names}", err=True)


def points(
    file: Annotated[Path, typer.Argument(help="Points (.mrk.json, .fcsv, .csv) in the space named by --from.")],
    *,
    transform: TransformOption,
    output: OutputOption,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", help="Grid to sample a transform on that has none (e.g. B-spline)."),
    ] = None,
    source: Annotated[Space, typer.Option("--from", help="Space of the points in FILE.")] = Space.FIXED,
    target: Annotated[Space, typer.Option("--to", help="Space of the points in OUTPUT.")] = Space.MOVING,
    overwrite: OverwriteOption = False,
    nifti_frame: FrameOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Bring points from the FIXED image to the MOVING one, or back.

    The transform file is applied as it is stored. That of a registration
    takes fixed points to moving points; to go from moving to fixed, say
    --from moving --to fixed and pass inverse.h5 of the same result.
    """
    claim = require_absent(output, overwrite=overwrite)
    _require_direction(transform, source, target)
    where, names = read_points(file)
    grid = None if reference is None else _grid(reference, nifti_frame)
    with claim.writing():
        write_points(output, warp_points(where, _load(transform, grid)), names)
    text = f"{len(names)} points, from {source} to {target} space, LPS mm"
    _tell(text, as_json, output, points=len(names), source=str(source), target=str(target))


def _tell(text: str, as_json: bool, output: Path, **facts: object) -> None:
    """Say what was written, in a line or as JSON."""
    content = json.dumps({"output": str(output), **facts}, ensure_ascii=False)
    print(content if as_json else f"wrote {output}: {text}")


def _grid(reference: Path, frame: NiftiFrame) -> Geometry:
    return read_stored(reference, frame).geometry


def _load(transform: str, grid: Geometry | None) -> Transform:
    if transform == "identity":
        return Transform(Field.zero(grid or ANYWHERE))
    return read_transform(transform, grid)


def _require_direction(transform: str, source: Space, target: Space) -> None:
    """Refuse a file whose name says that it goes the other way."""
    if source == target:
        raise UsageError("E117", f"points are to go from {source} to {target}", "name two different spaces")
    backward = Path(transform).name.startswith("inverse")
    if backward == (source == Space.MOVING):
        return
    stored = "moving to fixed" if backward else "fixed to moving"
    message = f"'{transform}' takes points from {stored} space, asked for is {source} to {target}"
    other = "the forward transform" if backward else "inverse.h5"
    raise UsageError("E117", message, f"pass {other} of the same result")
