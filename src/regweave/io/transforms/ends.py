"""Metadata of a transform file: which way it goes, from which grid to which."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from regweave.errors import RegweaveError
from regweave.io.disk.files import damaged
from regweave.io.geometry import make_geometry
from regweave.io.grids import grid_hash
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
    """Return the ends that the notes of a file tell, None where it has none of ours; E102 where they are spoilt."""
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
    """Return the ends that a line of `to_line` tells, None for an empty one."""
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
