"""``regweave convert``: a transform in another file format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.files.warp_dicom import require_outside
from regweave.cli.help import command_line, examples, input_option
from regweave.cli.options import FollowOption, JsonOption
from regweave.errors import RegweaveError, UsageError
from regweave.io import (
    Claim,
    read_transform,
    require_absent,
    total_displacement,
    write_displacement,
    write_linear,
    write_transform,
)
from regweave.io.dicom.parse import require_same_patient
from regweave.io.dicom.reg import write_reg_deformable, write_reg_rigid
from regweave.io.dicom.series import read_series
from regweave.io.disk.files import suffix_of
from regweave.io.images import read_stored
from regweave.io.transforms.ends import require_reference
from regweave.io.transforms.files import DICOM_SUFFIXES, WRITTEN_SUFFIXES
from regweave.io.transforms.itk import ANYWHERE

CONVENTIONS = {
    "fixed_to_moving": "fixed points to moving points, LPS mm (ITK resampling)",
    "moving_to_fixed": "moving points to fixed points, LPS mm",
}

app = command_line()


@app.command(
    epilog=examples(
        "regweave convert result/transform.h5 -o field.nii.gz",
        "regweave convert affine.tfm -o field.nii.gz -r fixed.nii.gz",
        "regweave convert REG.dcm -o transform.h5",
        "regweave convert transform.h5 -o REG.dcm -r TODAY --planning PLAN",
    )
)
def convert(
    transform: Annotated[Path, typer.Argument(help="Transform file to read.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help=".h5 or .tfm: ITK transform; .mat: a linear one; .nii.gz, .nii, .nrrd or .mha: field; .dcm: DICOM.",
        ),
    ],
    reference: Annotated[
        Path | None,
        input_option("--reference", "-r", help="Image on whose grid a field lies; needed if TRANSFORM has none."),
    ] = None,
    planning: Annotated[
        Path | None,
        input_option(help="DICOM folder of the moving series, for .dcm; that of the fixed one is REFERENCE."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")] = False,
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a transform in another format; the suffix of OUTPUT names it.

    A displacement field holds the whole map, its affine part included. So
    does a deformable DICOM registration, on a grid of 2 to 5 mm; a linear
    transform becomes a rigid one.
    """
    claim = require_absent(output, overwrite=overwrite)
    if suffix_of(output) in DICOM_SUFFIXES:
        content = _write_dicom(claim, transform, output, reference, planning)
        _tell(transform, output, content, CONVENTIONS["fixed_to_moving"], as_json=as_json)
        return
    grid = None if reference is None else read_stored(reference, "auto", follow_links=follow_links).geometry
    found = read_transform(transform, grid, follow_links=follow_links)
    if grid is not None:
        found = replace(found, knots=None)  # a field is asked for on this grid
    convention = CONVENTIONS["fixed_to_moving" if found.ends is None else found.ends.direction]
    linear = found.field.geometry is ANYWHERE
    if suffix_of(output) == ".mat" and not linear:
        message = f"'{output}' would be a .mat, which holds a matrix alone; '{transform}' has a displacement field"
        raise UsageError("E152", message, "write the whole transform as .h5 or .tfm, or its displacements as .nii.gz")
    if suffix_of(output) in {*WRITTEN_SUFFIXES, ".mat"} and linear:
        with claim.writing():
            write_linear(output, found.affine, found.ends)
        content = "affine matrix"
    elif suffix_of(output) in WRITTEN_SUFFIXES:
        with claim.writing():
            write_transform(output, found)
        content = "composite: displacement field first, then affine"
    elif linear:
        message = f"'{transform}' is linear and has no grid for a displacement field"
        raise RegweaveError("E115", message, "name the fixed image with --reference")
    else:
        with claim.writing():
            write_displacement(output, total_displacement(found), found.ends)
        content = "displacement in float32, affine included"
    _tell(transform, output, content, convention, as_json=as_json)


def _write_dicom(claim: Claim, transform: Path, output: Path, today: Path | None, planning: Path | None) -> str:
    """Write a registration object between two series; return what it holds."""
    if today is None or planning is None:
        message = "a DICOM registration names two series"
        raise UsageError(
            "E192", message, "name the folder of the fixed one with --reference, the other with --planning"
        )
    require_outside(output, today, planning)
    fixed, moving = read_series(today), read_series(planning)
    require_same_patient(fixed.identity, moving.identity, f"'{today}' and '{planning}'")
    found = read_transform(transform)
    if transform.suffix.lower() not in DICOM_SUFFIXES:
        require_reference(found.ends, fixed.image.geometry, str(transform))
    with claim.writing():
        if found.field.geometry is ANYWHERE:
            write_reg_rigid(output, found.affine, fixed, moving)
            return "matrix from the moving to the fixed frame, as DICOM stores it"
        error = write_reg_deformable(output, found, fixed, moving)
    return f"deformable registration, its grid at most {error:.3f} mm from the transform"


def _tell(transform: Path, output: Path, content: str, convention: str, *, as_json: bool) -> None:
    if as_json:
        facts = {"transform": str(transform), "output": str(output), "content": content, "convention": convention}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    print(f"read  {transform}")
    print(f"      {convention}")
    print(f"wrote {output}: {content}")
    print(f"      {convention}")
