"""Commands on files: facts and problems of images, and transforms in another format."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from regweave import io
from regweave.cli import options as opt
from regweave.cli.app import WIDTH, command_line
from regweave.cli.warp import require_outside
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom import parse, reg, series
from regweave.io.dicom.overview import OverviewEntry, overview
from regweave.io.disk.files import suffix_of
from regweave.io.geometry import MIN_OVERLAP
from regweave.io.images import is_dicom_folder, read_stored
from regweave.io.transforms.files import DICOM_SUFFIXES, WRITTEN_SUFFIXES, require_reference, write_linear
from regweave.io.transforms.itk import ANYWHERE
from regweave.types import Geometry, Transform

app = command_line()


@app.add("regweave check scans/*.nii.gz", "regweave check planning.nii.gz --json", "regweave check PLAN")
def check(
    files: Annotated[list[Path], typer.Argument(help="Image or label files, or DICOM folders.", show_default=False)],
    follow_links: opt.Follow = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all that is known of a file.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Check image files: header, frame, spacing, values and whether the file is whole.

    Of a DICOM folder every series, structure set, registration and dose is
    read and listed, with what would be left out.

    Two files that can be used are also compared: whether they overlap and
    are of one kind. Exit status 3 if one of them cannot be used, 4 if one does not fit into
    memory; all are listed in any case.
    """
    images = {file: io.inspect_image(file, follow_links=follow_links) for file in files if not is_dicom_folder(file)}
    folders = {file: overview(file) for file in files if file not in images}
    if as_json:
        content = [_image_facts(images[f]) if f in images else _folder_facts(f, folders[f]) for f in files]
        print(json.dumps(content, indent=1))
    else:
        texts = [_image_text(images[f], verbose=verbose) if f in images else _folder_text(f, folders[f]) for f in files]
        print(("\n\n" if verbose else "\n").join(texts))
        if len(files) == len(images) == 2 and not any(image.problems for image in images.values()):
            print(_pair_line(*images.values()))
    problems = [problem for image in images.values() for problem in image.problems]
    problems += [entry.problem for entries in folders.values() for entry in entries if entry.problem is not None]
    if problems:
        raise typer.Exit(max(problem.exit_status for problem in problems))


def _problem(problem: RegweaveError) -> dict[str, str]:
    return {"code": problem.code, "message": problem.message, "hint": problem.hint}


def _folder_facts(path: Path, entries: Sequence[OverviewEntry]) -> dict[str, Any]:
    rows = []
    for entry in entries:
        problems = [] if entry.problem is None else [_problem(entry.problem)]
        rows.append({**entry.facts, "ok": not problems, "problems": problems, "notes": list(entry.notes)})
    return {"file": str(path), "ok": all(row["ok"] for row in rows), "dicom": rows}


def _folder_text(path: Path, entries: Sequence[OverviewEntry]) -> str:
    state = "not usable as it is" if any(entry.problem for entry in entries) else "ok"
    lines = [f"{path}: {state}, DICOM"]
    for entry in entries:
        lines += [f"  {entry.what}", *(f"    {note}" for note in entry.notes)]
        if entry.problem is not None:
            lines.append(f"    error {entry.problem.code}: {entry.problem.message}\n      {entry.problem.hint}")
    return "\n".join(lines)


def _image_facts(image: io.Inspection) -> dict[str, Any]:
    problems = [_problem(p) for p in image.problems]
    return {
        "file": image.path, "ok": not problems, **image.facts, "problems": problems, "warnings": list(image.warnings),
    }  # fmt: skip


def _image_text(image: io.Inspection, *, verbose: bool) -> str:
    lines, facts = [f"{image.path}: {'not usable' if image.problems else 'ok'}"], image.facts
    if not (verbose or image.problems):
        size, spacing = ("×".join(f"{n:.3g}" for n in facts[key]) for key in ("size", "spacing_mm"))
        kind = "CT" if facts["ct"] else "not CT"
        lines[0] += f", {size}, {spacing} mm, {facts['orientation']}"
        lines[0] += f", {facts['minimum']:.4g} to {facts['maximum']:.4g}, {kind}"
    if verbose:
        flat = {**facts, **facts.get("nifti", {})}
        lines += [_line(key, _value(value)) for key, value in flat.items() if key != "nifti"]
    lines += [f"  warning {text}" for text in image.warnings]
    lines += [f"  error {p.code}: {p.message}\n    {p.hint}" for p in image.problems]
    return "\n".join(lines)


def _pair_line(fixed: io.Inspection, moving: io.Inspection) -> str:
    """Return whether two images can be registered, by their headers and histograms."""
    overlap = io.overlap_fraction(_geometry(fixed.facts), _geometry(moving.facts), np.eye(4))
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
    """Return one fact; a long value goes below its name."""
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


@app.add(
    "regweave convert result/transform.h5 -o field.nii.gz",
    "regweave convert affine.tfm -o field.nii.gz -r fixed.nii.gz",
    "regweave convert REG.dcm -o transform.h5",
    "regweave convert transform.h5 -o REG.dcm -r TODAY --planning PLAN",
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
        opt.of_input("--reference", "-r", help="Image whose grid the field has; needed if TRANSFORM has none."),
    ] = None,
    planning: Annotated[
        Path | None,
        opt.of_input(help="DICOM folder of the moving series, for .dcm; that of the fixed one is REFERENCE."),
    ] = None,
    overwrite: opt.Overwrite = False,
    follow_links: opt.Follow = False,
    as_json: opt.Json = False,
) -> None:
    """Write a transform in another format; the suffix of OUTPUT names it.

    A displacement field holds the whole map, its affine part included. So
    does a deformable DICOM registration, on a grid of 2 to 5 mm; a linear
    transform becomes a rigid one.
    """
    io.require_absent(output, overwrite=overwrite)
    if suffix_of(output) in DICOM_SUFFIXES:
        direction, content = "fixed_to_moving", _write_dicom(transform, output, reference, planning)
    else:
        grid = None if reference is None else read_stored(reference, "auto", follow_links=follow_links).geometry
        read = io.read_transform(transform, grid, follow_links=follow_links)
        direction = "fixed_to_moving" if read.ends is None else read.ends.direction
        # With a grid, the field is written on that grid.
        content = _write_transform(read if grid is None else replace(read, knots=None), transform, output)
    convention = CONVENTIONS[direction]
    if as_json:
        facts = {"transform": str(transform), "output": str(output), "content": content, "convention": convention}
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print(f"read  {transform}\n      {convention}\nwrote {output}: {content}\n      {convention}")


def _write_transform(transform: Transform, source: Path, output: Path) -> str:
    """Write a transform by the suffix of the output, and return what the file holds."""
    suffix, linear = suffix_of(output), transform.field.geometry is ANYWHERE
    if suffix == ".mat" and not linear:
        message = f"'{output}' would be a .mat, which holds a matrix alone; '{source}' has a displacement field"
        raise UsageError("E152", message, "write the whole transform as .h5 or .tfm, or its displacements as .nii.gz")
    if linear and suffix not in {*WRITTEN_SUFFIXES, ".mat"}:
        message = f"'{source}' is linear and has no grid for a displacement field"
        raise RegweaveError("E115", message, "name the fixed image with --reference")
    if linear:
        write_linear(output, transform.affine, transform.ends)
        return "affine matrix"
    if suffix in WRITTEN_SUFFIXES:
        io.write_transform(output, transform)
        return "composite: displacement field first, then affine"
    io.write_displacement(output, io.total_displacement(transform), transform.ends)
    return "displacement in float32, affine included"


def _write_dicom(transform: Path, output: Path, today: Path | None, planning: Path | None) -> str:
    """Write a registration object between two series, and return what it holds."""
    if today is None or planning is None:
        message = "a DICOM registration names two series"
        hint = "name the folder of the fixed one with --reference, the other with --planning"
        raise UsageError("E192", message, hint)
    require_outside(output, today, planning)
    fixed, moving = series.read_series(today), series.read_series(planning)
    parse.require_same_patient(fixed.identity, moving.identity, f"'{today}' and '{planning}'")
    found = io.read_transform(transform)
    if transform.suffix.lower() not in DICOM_SUFFIXES:
        require_reference(found.ends, fixed.image.geometry, str(transform))
    if found.field.geometry is ANYWHERE:
        reg.write_reg_rigid(output, found.affine, fixed, moving)
        return "matrix from the moving to the fixed frame, as DICOM stores it"
    error = reg.write_reg_deformable(output, found, fixed, moving)
    return f"deformable registration, its grid at most {error:.3f} mm from the transform"
