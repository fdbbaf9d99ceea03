"""Metadata of a transform file: which way it goes, from which grid to which."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import damaged, open_file, suffix_of
from regweave.io.geometry import describe, grid_hash, make_geometry, same_voxels
from regweave.types import Direction, Ends, Geometry

FORMAT = "1"
VERSION = "regweave_format"
DIRECTIONS: dict[str, Direction] = {"fixed_to_moving": "fixed_to_moving", "moving_to_fixed": "moving_to_fixed"}
LONGEST = 1 << 14
UNCLEAR = "the note on its direction cannot be understood"


def notes_of(ends: Ends | None) -> dict[str, str]:
    """Return what is written into a file: names and texts, empty where nothing is known."""
    if ends is None:
        return {}
    notes = {VERSION: FORMAT, "direction": ends.direction}
    for end, geometry in (("start", ends.start), ("target", ends.target)):
        grid = {"size": list(geometry.shape), "index_to_lps_mm": geometry.affine[:3].tolist()}
        notes |= {f"{end}_grid": json.dumps(grid), f"{end}_grid_sha256": grid_hash(geometry)}
    series = {"start_series": ends.start_series, "target_series": ends.target_series}
    notes |= {name: text for name, text in series.items() if text}
    return notes


def ends_of(notes: Mapping[str, str], subject: str) -> Ends | None:
    """Return the ends in the notes of a file, None where it has no such notes; E102 where they are damaged."""
    if VERSION not in notes:
        return None
    if notes[VERSION] != FORMAT:
        message = f"{subject} has the format {notes[VERSION][:20]!r}, known is {FORMAT!r}"
        raise RegweaveError("E115", message, "update the program")
    if notes.get("direction") not in DIRECTIONS:
        raise damaged(subject, f"its direction is {notes.get('direction', '')[:20]!r}, allowed are {list(DIRECTIONS)}")
    start, target = (_grid(notes, end, subject) for end in ("start", "target"))
    series = [notes.get(f"{end}_series", "") for end in ("start", "target")]
    if not all(re.fullmatch(r"[0-9a-f]{0,64}", text) for text in series):
        raise damaged(subject, "the hash of its series cannot be understood")
    return Ends(DIRECTIONS[notes["direction"]], start, target, *series)


def to_line(ends: Ends | None) -> str:
    """Return the notes as one line of JSON in ASCII, for formats that have room for one text; empty for None."""
    if ends is None:
        return ""
    notes = {name: json.loads(text) if name.endswith("_grid") else text for name, text in notes_of(ends).items()}
    return json.dumps(notes)


def from_line(line: str, subject: str) -> Ends | None:
    """Return the ends in a line of `to_line`, None for an empty one."""
    if not line:
        return None
    found = _json(line, subject)
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


COMMENT = 6
"""NIfTI's code of an extension that is plain text."""
KEY = "regweave"
MARK = b"regweave "
HEADER, MOST = 348, 1 << 16


def to_comment(ends: Ends) -> bytes:
    """Return the text of the NIfTI extension."""
    return MARK + to_line(ends).encode("ascii")


def read_displacement_ends(path: Path) -> Ends | None:
    """Read the ends that the header of a displacement field states, None where it does not."""
    subject = f"'{path}'"
    name = suffix_of(path)
    line = _nifti_comment(path, subject) if name in {".nii", ".nii.gz"} else _text_field(path)
    return from_line(line, subject)


def _nifti_comment(path: Path, subject: str) -> str:
    """Walk through the extensions between header and voxels, which `from_line` bounds to some kilobytes."""
    with open_file(path) as stream:
        try:
            content = (gzip.GzipFile(fileobj=stream) if path.name.lower().endswith(".gz") else stream).read(MOST)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(subject, "its header cannot be decompressed") from error
    order = "<" if content[:4] == HEADER.to_bytes(4, "little") else ">"
    end = min(int(max(0.0, min(struct.unpack_from(f"{order}f", content, 108)[0], MOST))), len(content))
    at = HEADER + 4
    while content[HEADER : HEADER + 1] == b"\1" and at + 8 <= end:
        size, code = struct.unpack_from(f"{order}2i", content, at)
        text = content[at + 8 : at + size].rstrip(b"\0")
        if code == COMMENT and text.startswith(MARK):
            return text[len(MARK) :].decode("ascii", errors="replace")
        if size < 16:
            break
        at += size
    return ""


def _text_field(path: Path) -> str:
    """Find our line in the text that NRRD and MetaImage files begin with."""
    with open_file(path) as stream:
        head = stream.read(MOST)
    for line in head.split(b"\n")[:200]:
        name, _, value = line.strip().partition(b"=")
        if name.rstrip(b" :") == KEY.encode("ascii"):
            return value.strip().decode("ascii", errors="replace")
        if not name or name.strip() == b"ElementDataFile":  # the voxels begin
            break
    return ""


WORDS: dict[Direction, tuple[str, str]] = {
    "fixed_to_moving": ("fixed", "moving"),
    "moving_to_fixed": ("moving", "fixed"),
}


def require_direction(ends: Ends | None, wanted: Direction, path: str) -> None:
    """Raise E117 where a transform maps points in the other direction; warn W212 where it states none."""
    if ends is None:
        _say_unknown(path)
    elif ends.direction != wanted:
        start, target = WORDS[wanted]
        message = f"{_stated(ends, path)}, asked for is {start} to {target}"
        raise UsageError("E117", message, f"pass {_other(ends)} of the same result")


def require_series(ends: Ends, start: str, target: str, path: str) -> None:
    """Check that a transform was made for two series, by their hashes, where it states its own.

    Raises E144 where it was made for two other series, warns W243 where one of the two is another.
    """
    pairs = ((ends.start_series, start, "today's scan"), (ends.target_series, target, "the plan"))
    known = [(stated, given, words) for stated, given, words in pairs if stated and given]
    others = [f"{words} is {given}, stated is {stated}" for stated, given, words in known if stated != given]
    if others and len(others) == len(known):
        message = f"{path} was made for other series, perhaps of another patient: {'; '.join(others)}"
        raise RegweaveError("E144", message, "use the transform of these two series, or --init rigid")
    if others:
        notices.warn(f"W243: {path} was made for another series: {others[0]}; check that the patient is the same")


def require_reference(
    ends: Ends | None,
    reference: Geometry,
    path: str,
    *,
    space: str | None = None,
    other_grid: bool = False,
    whole_scan: bool = False,
) -> None:
    """Check that a transform brings an image onto a reference grid.

    ``space`` of the result is by default that of the grid; where both grids are the same, it is fixed. With
    ``other_grid`` the reference may be another grid in the space that the transform starts from. With ``whole_scan``
    the grids of the transform may be parts of the reference, or coarser: working copies of a DICOM series.

    Raises E117 where the transform goes the other way, E118 where the reference is neither of its grids.
    """
    if ends is None:
        _say_unknown(path)
        return
    at_start, at_target = same_voxels(ends.start, reference), same_voxels(ends.target, reference)
    if whole_scan and not at_start and not at_target:
        at_start, at_target = _covers(reference, ends.start), _covers(reference, ends.target)
    told_by_grids = space is None and at_start and not at_target
    start = WORDS[ends.direction][0]
    if (at_target and not at_start) or (not told_by_grids and start != (space or "fixed")):
        message = f"{_stated(ends, path)}: it brings images onto the {start} grid, and the reference is not that"
        hint = f"pass {_other(ends)} of the same result, or the {start} image with -r and --to {start}"
        raise UsageError("E117", message, hint)
    if not at_start and not other_grid:
        message = (
            f"the reference is not the {start} grid that '{path}' starts from\n"
            f"  reference: {describe(reference)}\n  transform: {describe(ends.start)}"
        )
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


def _say_unknown(path: str) -> None:
    notices.warn(
        f"W212: '{path}' does not state which way it goes and between which grids, so that nobody can check it; "
        "it is taken to start in the space of the result, as ITK's resampling transforms do"
    )
