"""Metadata of a transform file: which way it goes, from which grid to which."""

import json
import re
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import damaged
from regweave.io.geometry import describe, grid_hash, make_geometry, same_voxels
from regweave.types import Direction, Ends, Geometry

FORMAT = "1"
VERSION = "regweave_format"
LONGEST = 1 << 14
UNCLEAR = "the note on its direction cannot be understood"
KEY = "regweave"  # Field of a text header with our line; in NIfTI the first word of a comment


def notes_of(ends: Ends | None) -> dict[str, str]:
    """Return what is written into a file: names and texts, empty where nothing is known."""
    if ends is None:
        return {}
    notes = {VERSION: FORMAT, "direction": ends.direction}
    for end, geometry in (("start", ends.start), ("target", ends.target)):
        grid = {"size": list(geometry.shape), "index_to_lps_mm": geometry.affine[:3].tolist()}
        notes |= {f"{end}_grid": json.dumps(grid), f"{end}_grid_sha256": grid_hash(geometry)}
    series = {"start_series": ends.start_series, "target_series": ends.target_series}
    return notes | {name: text for name, text in series.items() if text}


def ends_of(notes: Mapping[str, str], subject: str) -> Ends | None:
    """Return the ends in the notes of a file, None where it has no such notes; E102 where they are damaged."""
    if VERSION not in notes:
        return None
    if notes[VERSION] != FORMAT:
        message = f"{subject} has the format {notes[VERSION][:20]!r}, known is {FORMAT!r}"
        raise RegweaveError("E115", message, "update the program")
    direction = next((one for one in get_args(Direction) if one == notes.get("direction")), None)
    if direction is None:
        found, allowed = notes.get("direction", "")[:20], list(get_args(Direction))
        raise damaged(subject, f"its direction is {found!r}, allowed are {allowed}")
    start, target = (_grid(notes, end, subject) for end in ("start", "target"))
    series = [notes.get(f"{end}_series", "") for end in ("start", "target")]
    if not all(re.fullmatch(r"[0-9a-f]{0,64}", text) for text in series):
        raise damaged(subject, "the hash of its series cannot be understood")
    return Ends(direction, start, target, *series)


def to_line(ends: Ends | None) -> str:
    """Return the notes as one line of JSON in ASCII, for formats that have room for one text; empty for None."""
    notes = {name: json.loads(text) if name.endswith("_grid") else text for name, text in notes_of(ends).items()}
    return json.dumps(notes) if notes else ""


def from_line(line: str, subject: str) -> Ends | None:
    """Return the ends in a line of `to_line`, None for an empty one."""
    found = _json(line, subject) if line else {}
    if not isinstance(found, dict):
        raise damaged(subject, UNCLEAR)
    return ends_of({k: v if isinstance(v, str) else json.dumps(v) for k, v in found.items()}, subject)


def _json(text: str, subject: str) -> Any:
    try:
        if len(text) > LONGEST:
            raise ValueError
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(subject, UNCLEAR) from error


def _grid(notes: Mapping[str, str], end: str, subject: str) -> Geometry:
    found = _json(notes.get(f"{end}_grid", ""), subject)
    try:
        size, affine = [int(n) for n in found["size"]], np.eye(4)
        affine[:3] = np.array(found["index_to_lps_mm"], dtype=np.float64).reshape(3, 4)
        geometry = make_geometry((size[0], size[1], size[2]), affine, subject)
    except (TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
        raise damaged(subject, f"the note on its {end} grid cannot be understood") from error
    if min(size) < 1 or grid_hash(geometry) != notes.get(f"{end}_grid_sha256"):
        raise damaged(subject, f"the hash of its {end} grid is not that of the grid")
    return geometry


WORDS = {"fixed_to_moving": ("fixed", "moving"), "moving_to_fixed": ("moving", "fixed")}


def require_direction(ends: Ends | None, wanted: Direction, path: str) -> None:
    """Raise E117 where a transform maps points in the other direction; warn W212 where it states none."""
    if ends is None:
        _warn_unknown(path)
    elif ends.direction != wanted:
        start, target = WORDS[wanted]
        message = f"{_stated(ends, path)}, asked for is {start} to {target}"
        raise UsageError("E117", message, f"pass {_other(ends)} of the same result")


def require_series(ends: Ends, start: str, target: str, path: str) -> None:
    """Check that a transform was made for two series, by their hashes, where it states its own."""
    pairs = ((ends.start_series, start, "today's scan"), (ends.target_series, target, "the plan"))
    known = [(stated, given, words) for stated, given, words in pairs if stated and given]
    others = [f"{words} is {given}, stated is {stated}" for stated, given, words in known if stated != given]
    if others and len(others) == len(known):
        message = f"{path} was made for other series, perhaps of another patient: {'; '.join(others)}"
        raise RegweaveError("E144", message, "use the transform of these two series, or --init rigid")
    if others:
        notices.warn(f"W243: {path} was made for another series: {others[0]}; check that the patient is the same")


def require_reference(
    ends: Ends | None, reference: Geometry, path: str, *, space: str | None = None, other_grid: bool = False,
    whole_scan: bool = False,
) -> None:  # fmt: skip
    """Check that a transform brings an image onto a reference grid.

    ``space`` of the result is by default that of the grid; where both grids are the same, it is fixed. With
    ``other_grid`` the reference may be another grid in the space that the transform starts from. With ``whole_scan``
    the grids of the transform may be parts of the reference, or coarser: working copies of a DICOM series.
    """
    if ends is None:
        _warn_unknown(path)
        return
    at_start, at_target = same_voxels(ends.start, reference), same_voxels(ends.target, reference)
    if whole_scan and not at_start and not at_target:
        at_start, at_target = _covers(reference, ends.start), _covers(reference, ends.target)
    by_grids = space is None and at_start and not at_target
    start = WORDS[ends.direction][0]
    if (at_target and not at_start) or (not by_grids and start != (space or "fixed")):
        message = f"{_stated(ends, path)}: it brings images onto the {start} grid, and the reference is not that"
        hint = f"pass {_other(ends)} of the same result, or the {start} image with -r and --to {start}"
        raise UsageError("E117", message, hint)
    if not at_start and not other_grid:
        message = f"the reference is not the {start} grid that '{path}' starts from\n"
        message += f"  reference: {describe(reference)}\n  transform: {describe(ends.start)}"
        hint = f"name the {start} image with -r, or say --other-grid to resample on another grid in {start} space"
        raise RegweaveError("E118", message, hint)


def _covers(reference: Geometry, part: Geometry) -> bool:
    """Return whether the centres of all voxels of a grid are in the box of the reference, up to one voxel."""
    corners = np.stack(np.meshgrid(*([0, n - 1] for n in part.shape)), axis=-1).reshape(-1, 3)
    index = (part.points(corners.astype(float)) - reference.origin_mm) @ reference.direction / reference.spacing_mm
    room = np.maximum(part.spacing_mm.max() / reference.spacing_mm, 1.0)
    return bool((index >= -room).all() and (index <= np.array(reference.shape) - 1 + room).all())


def _stated(ends: Ends, path: str) -> str:
    start, target = WORDS[ends.direction]
    return f"'{path}' takes points from {start} to {target} space"


def _other(ends: Ends) -> str:
    return "inverse.h5" if ends.direction == "fixed_to_moving" else "transform.h5"


def _warn_unknown(path: str) -> None:
    notices.warn(
        f"W212: '{path}' states neither its direction nor its grids, which cannot be checked; "
        "it is taken to start in the space of the result, as ITK's resampling transforms do"
    )
