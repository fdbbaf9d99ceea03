"""Commands on files: facts and problems of images, and transforms in another format."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from regweave.cli.app import WIDTH, command_line, examples
from regweave.cli.options import FollowOption, JsonOption, input_option
from regweave.cli.warp import require_outside
from regweave.errors import EXIT_OK, RegweaveError, UsageError
from regweave.io import (
    Claim,
    Inspection,
    inspect_image,
    overlap_fraction,
    read_transform,
    require_absent,
    total_displacement,
    write_displacement,
    write_linear,
    write_transform,
)
from regweave.io.dicom.overview import OverviewEntry, overview
from regweave.io.dicom.parse import require_same_patient
from regweave.io.dicom.reg import write_reg_deformable, write_reg_rigid
from regweave.io.dicom.series import read_series
from regweave.io.disk.files import suffix_of
from regweave.io.geometry import MIN_OVERLAP
from regweave.io.images import is_dicom_folder, read_stored
from regweave.io.transforms.ends import require_reference
from regweave.io.transforms.files import DICOM_SUFFIXES, WRITTEN_SUFFIXES
from regweave.io.transforms.itk import ANYWHERE
from regweave.types import Geometry

app = command_line()


@app.command(
    epilog=examples("regweave check scans/*.nii.gz", "regweave check planning.nii.gz --json", "regweave check PLAN")
)
def check(
    files: Annotated[list[Path], typer.Argument(help="Image or label files, or DICOM folders.", show_default=False)],
    follow_links: FollowOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all that is known of a file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check image files: header, frame, spacing, values and whether the file is whole.

    Of a DICOM folder every series, structure set, registration and dose is
    read and listed, with what would be left out.

    Two files that can be used are also compared: whether they overlap and
    are of one kind. Exit status 3 if one of them cannot be used, 4 if one does not fit into
    memory; all are listed in any case.
    """
    if any(is_dicom_folder(file) for file in files):
        _check_dicom(files, follow_links=follow_links, as_json=as_json)
        return
    found = [inspect_image(file, follow_links=follow_links) for file in files]
    if as_json:
        print(json.dumps([_as_dict(one) for one in found], indent=1))
    else:
        print(("\n\n" if verbose else "\n").join(_as_text(one, verbose=verbose) for one in found))
        if len(found) == 2 and not any(one.problems for one in found):
            print(_pair_line(*found))
    status = max((problem.exit_status for one in found for problem in one.problems), default=EXIT_OK)
    if status != EXIT_OK:
        raise typer.Exit(status)


def _check_dicom(files: list[Path], *, follow_links: bool, as_json: bool) -> None:
    """List what DICOM folders hold, and inspect the other files as always."""
    status, content = EXIT_OK, []
    for path in files:
        if not is_dicom_folder(path):
            one = inspect_image(path, follow_links=follow_links)
            content.append((_as_dict(one), _as_text(one, verbose=False)))
            problems = list(one.problems)
        else:
            entries = overview(path)
            problems = [entry.problem for entry in entries if entry.problem is not None]
            content.append((_dicom_dict(path, entries), _dicom_text(path, entries)))
        status = max([status, *(problem.exit_status for problem in problems)])
    print(json.dumps([facts for facts, _ in content], indent=1) if as_json else "\n".join(text for _, text in content))
    if status != EXIT_OK:
        raise typer.Exit(status)


def _dicom_dict(path: Path, entries: Sequence[OverviewEntry]) -> dict[str, Any]:
    rows = []
    for one in entries:
        found = one.problem
        problems = [] if found is None else [{"code": found.code, "message": found.message, "hint": found.hint}]
        rows.append({**one.facts, "ok": not problems, "problems": problems, "notes": list(one.notes)})
    return {"file": str(path), "ok": all(row["ok"] for row in rows), "dicom": rows}


def _dicom_text(path: Path, entries: Sequence[OverviewEntry]) -> str:
    state = "not usable as it is" if any(one.problem for one in entries) else "ok"
    lines = [f"{path}: {state}, DICOM"]
    for one in entries:
        lines.append(f"  {one.what}")
        lines += [f"    {note}" for note in one.notes]
        if one.problem is not None:
            lines.append(f"    error {one.problem.code}: {one.problem.message}\n      {one.problem.hint}")
    return "\n".join(lines)


def _as_dict(one: Inspection) -> dict[str, Any]:
    problems = [{"code": p.code, "message": p.message, "hint": p.hint} for p in one.problems]
    return {
        "file": one.path,
        "ok": not problems,
        **one.facts,
        "problems": problems,
        "warnings": list(one.warnings),
    }


def _as_text(one: Inspection, *, verbose: bool) -> str:
    state = "not usable" if one.problems else "ok"
    lines = [f"{one.path}: {state}" if verbose or one.problems else f"{one.path}: ok, {_in_short(one.facts)}"]
    if verbose:
        flat = {**one.facts, **one.facts.get("nifti", {})}
        lines += [_line(key, _value(value)) for key, value in flat.items() if key != "nifti"]
    lines += [f"  warning {text}" for text in one.warnings]
    lines += [f"  error {p.code}: {p.message}\n    {p.hint}" for p in one.problems]
    return "\n".join(lines)


def _in_short(facts: Mapping[str, Any]) -> str:
    size, spacing = ("×".join(f"{n:.3g}" for n in facts[key]) for key in ("size", "spacing_mm"))
    kind = "CT" if facts["ct"] else "not CT"
    return f"{size}, {spacing} mm, {facts['orientation']}, {facts['minimum']:.4g} to {facts['maximum']:.4g}, {kind}"


def _pair_line(fixed: Inspection, moving: Inspection) -> str:
    """Say whether two images will register, as far as headers and histograms tell."""
    overlap = overlap_fraction(_geometry(fixed.facts), _geometry(moving.facts), np.eye(4))
    if overlap < MIN_OVERLAP:
        return f"pair: they overlap by {overlap:.0%} of the smaller one: register with --init moments"
    kinds = "both CT" if fixed.facts["ct"] and moving.facts["ct"] else "neither is CT"
    if fixed.facts["ct"] != moving.facts["ct"]:
        kinds = "one is CT, the other not: metrics for two modalities would be used"
    return f"pair: can be registered, overlap {overlap:.0%} of the smaller one, {kinds}"


def _geometry(facts: Mapping[str, Any]) -> Geometry:
    affine = np.eye(4)
    affine[:3, :3] = np.array(facts["direction_lps"]) * facts["spacing_mm"]
    affine[:3, 3] = facts["origin_mm_lps"]
    x, y, z = facts["size"]
    return Geometry((x, y, z), affine)


def _line(key: str, value: str) -> str:
    """One fact; what does not fit beside its name goes below."""
    line = f"  {key:<17}{value}"
    if len(line) <= WIDTH:
        return line
    below = textwrap.fill(value, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    return f"  {key}\n{below}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)


CONVENTIONS = {
    "fixed_to_moving": "fixed points to moving points, LPS mm (ITK resampling)",
    "moving_to_fixed": "moving points to fixed points, LPS mm",
}


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
