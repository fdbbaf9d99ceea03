"""``regweave check``: facts and problems of image files."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from regweave.cli.help import WIDTH, command_line, examples
from regweave.cli.options import FollowOption, JsonOption
from regweave.errors import EXIT_OK
from regweave.io import Inspection, inspect_image, overlap_fraction
from regweave.io.dicom.overview import OverviewEntry, overview
from regweave.io.geometry import MIN_OVERLAP
from regweave.io.images import is_dicom_folder
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
