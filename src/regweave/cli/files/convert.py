"""``regweave convert``: a transform in another file format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples, input_option
from regweave.cli.options import FollowOption, JsonOption
from regweave.errors import RegweaveError
from regweave.io import (
    read_transform,
    require_absent,
    total_displacement,
    write_displacement,
    write_linear,
    write_transform,
)
from regweave.io.disk.files import suffix_of
from regweave.io.images import read_stored
from regweave.io.transforms.files import WRITTEN_SUFFIXES
from regweave.io.transforms.memory import ANYWHERE

CONVENTIONS = {
    "fixed_to_moving": "fixed points to moving points, LPS mm (ITK resampling)",
    "moving_to_fixed": "moving points to fixed points, LPS mm",
}

app = command_line()


@app.command(
    epilog=examples(
        "regweave convert result/transform.h5 -o field.nii.gz",
        "regweave convert affine.tfm -o field.nii.gz -r fixed.nii.gz",
    )
)
def convert(
    transform: Annotated[Path, typer.Argument(help="Transform file to read.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help=".h5 or .tfm: ITK transform; .nii.gz, .nii, .nrrd or .mha: displacement field.",
        ),
    ],
    reference: Annotated[
        Path | None,
        input_option("--reference", "-r", help="Image on whose grid a field lies; needed if TRANSFORM has none."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")] = False,
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a transform in another format; the suffix of OUTPUT names it.

    A displacement field holds the whole map, its affine part included.
    """
    claim = require_absent(output, overwrite=overwrite)
    grid = None if reference is None else read_stored(reference, "auto", follow_links=follow_links).geometry
    found = read_transform(transform, grid, follow_links=follow_links)
    if grid is not None:
        found = replace(found, knots=None)  # a field is asked for on this grid
    convention = CONVENTIONS["fixed_to_moving" if found.ends is None else found.ends.direction]
    linear = found.field.geometry is ANYWHERE
    if suffix_of(output) in WRITTEN_SUFFIXES and linear:
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
    if as_json:
        facts = {"transform": str(transform), "output": str(output), "content": content, "convention": convention}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    print(f"read  {transform}")
    print(f"      {convention}")
    print(f"wrote {output}: {content}")
    print(f"      {convention}")
