"""Landmarks in files that state their frame: .mrk.json and .fcsv of 3D Slicer, .csv with named columns."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import parse_json, parse_rows, parse_table, read_text, require_file, suffix_of, table_cell
from regweave.io.disk.outputs import atomic_path
from regweave.types import Float64Array

Row = tuple[Sequence[Any], str]
Frame = str
SIGNS = {"LPS": (1.0, 1.0, 1.0), "RAS": (-1.0, -1.0, 1.0)}
SLICER_FRAMES = {"LPS": "LPS", "RAS": "RAS", "0": "RAS", "1": "LPS"}
MARKUPS_SCHEMA = "https://raw.githubusercontent.com/Slicer/Slicer/main/Modules/Loadable/Markups/Resources/Schema/"
MARKUPS_SCHEMA += "markups-schema-v1.0.3.json#"
FCSV_COLUMNS = "id,x,y,z,ow,ox,oy,oz,vis,sel,lock,label,desc,associatedNodeID"


def read_points(path: str | Path) -> tuple[Float64Array, list[str]]:
    """Read landmarks: points (P, 3) in LPS millimetres, and a label for each, empty where the file has none.

    The file is .mrk.json or .fcsv of 3D Slicer, or .csv whose header names the frame: ``x_lps,y_lps,z_lps`` or
    ``x_ras,y_ras,z_ras``, in millimetres, with an optional column ``label``.
    """
    path = require_file(path)
    reader = _codec(path)[0]
    try:
        frame, rows = reader(read_text(path), path)
        points = np.array([position for position, _ in rows], dtype=np.float64)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise _refuse(path, f"its content does not follow the format ({reason})", "export the points again") from error
    if points.ndim != 2 or points.shape[1] != 3 or not np.isfinite(points).all():
        raise _refuse(path, "it needs at least one point of three finite numbers", "export the points again")
    return points * SIGNS[frame], [label for _, label in rows]


def read_point_pairs(fixed: str | Path, moving: str | Path) -> tuple[Float64Array, Float64Array, list[str]]:
    """Read corresponding landmarks of two images: by their labels; by order where none has a label or all have one.

    Returns fixed and moving points (P, 3) in LPS millimetres, in the order of the fixed file, and their labels. Raises
    E116 where a file cannot be read, or the two do not hold the same landmarks.
    """
    (first, names), (second, others) = read_points(fixed), read_points(moving)
    alike = len({*names, *others}) == 1
    if not alike and (sorted(names) != sorted(others) or "" in names or len(set(names)) < len(names)):
        reason = f"its labels {_some(others)} do not pair with the labels {_some(names)} of '{fixed}'"
        raise _refuse(Path(moving), reason, "give each landmark one label, the same in both files, or no labels at all")
    if len(first) != len(second):
        reason = f"it has {len(second)} points, '{fixed}' has {len(first)}"
        raise _refuse(Path(moving), reason, "give corresponding points in the same order, or with the same labels")
    if alike:
        return first, second, names
    place = {name: n for n, name in enumerate(others)}
    return first, second[[place[name] for name in names]], names


def read_guides(path: str | Path) -> list[bool] | None:
    """Return the points of a .csv file that guide, by its column ``guide`` of 1 and 0; None without that column."""
    if suffix_of(Path(path)) != ".csv":
        return None
    words = [row.get("guide") for row in parse_table(read_text(path))]
    if all(word is None for word in words):
        return None
    if wrong := [str(word) for word in words if word not in ("0", "1")]:
        raise _refuse(Path(path), f"its column guide holds {_some(wrong)}", "write 1 for points that guide, else 0")
    return [word == "1" for word in words]


def _some(labels: Sequence[str]) -> str:
    return ", ".join(repr(label[:40]) for label in labels[:8]) + (" …" if len(labels) > 8 else "")


def write_points(path: str | Path, points: Float64Array, labels: Sequence[str] | None = None) -> None:
    """Write landmarks (P, 3) in LPS millimetres; the suffix names the format.

    In .csv a label that begins as a formula does gets an apostrophe: spreadsheets would run it.
    """
    path = Path(path)
    names = list(labels) if labels is not None else [""] * len(points)
    if len(names) != len(points):
        raise UsageError("E116", f"{len(points)} points but {len(names)} labels", "give one label a point")
    rows: list[Row] = [([float(x) for x in point], name) for point, name in zip(points, names, strict=True)]
    text = _codec(path)[1](rows)
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")


def _refuse(path: Path, reason: str, hint: str) -> RegweaveError:
    return RegweaveError("E116", f"cannot use the points of '{path}': {reason}", hint)


def _codec(path: Path) -> tuple[Callable[[str, Path], tuple[Frame, list[Row]]], Callable[[list[Row]], str]]:
    if (codec := CODECS.get(suffix_of(path))) is None:
        known = ", ".join(CODECS)
        raise _refuse(path, f"the suffix '{suffix_of(path)}' is not one of {known}", "convert the points")
    return codec


def _slicer_frame(value: object, path: Path) -> Frame:
    if (frame := SLICER_FRAMES.get(str(value).upper())) is None:
        raise _refuse(path, f"its coordinate system is {value!r}, needed is LPS or RAS", "state the frame in the file")
    return frame


def _read_markups(text: str, path: Path) -> tuple[Frame, list[Row]]:
    markups = parse_json(text)["markups"]
    frames = {_slicer_frame(markup.get("coordinateSystem"), path) for markup in markups}
    if len(frames) != 1:
        raise _refuse(path, f"its lists use {len(frames)} coordinate systems", "keep the lists of one frame")
    if any(markup.get("coordinateUnits", "mm") != "mm" for markup in markups):
        raise _refuse(path, "its unit is not mm", "export the points in millimetres")
    points = [point for markup in markups for point in markup["controlPoints"]]
    if any(point.get("positionStatus", "defined") != "defined" for point in points):
        raise _refuse(path, "it holds points that were never placed", "delete them or place them")
    return frames.pop(), [(point["position"], str(point.get("label", ""))) for point in points]


def _write_markups(rows: list[Row]) -> str:
    points = [
        {"id": str(n), "label": label, "position": position, "positionStatus": "defined"}
        for n, (position, label) in enumerate(rows, start=1)
    ]
    markup = {"type": "Fiducial", "coordinateSystem": "LPS", "coordinateUnits": "mm", "controlPoints": points}
    return json.dumps({"@schema": MARKUPS_SCHEMA, "markups": [markup]}, indent=1) + "\n"


def _read_fcsv(text: str, path: Path) -> tuple[Frame, list[Row]]:
    comments = [line for line in text.splitlines() if line.startswith("#")]
    found = [re.match(r"#\s*(\w+)\s*=\s*(.+?)\s*$", line) for line in comments]
    stated = {match[1]: match[2] for match in found if match is not None}
    frame = _slicer_frame(stated.get("CoordinateSystem"), path)
    columns = stated.get("columns", FCSV_COLUMNS).split(",")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    records = [dict(zip(columns, values, strict=False)) for values in parse_rows(lines)]
    return frame, [([float(r[axis]) for axis in "xyz"], str(r.get("label", ""))) for r in records]


def _write_fcsv(rows: list[Row]) -> str:
    out = io.StringIO()
    out.write("# Markups fiducial file version = 4.11\n# CoordinateSystem = LPS\n")
    out.write(f"# columns = {FCSV_COLUMNS}\n")
    writer = csv.writer(out, lineterminator="\n")
    for n, (position, label) in enumerate(rows, start=1):
        writer.writerow([n, *map(repr, position), 0, 0, 0, 1, 1, 1, 0, label, "", ""])
    return out.getvalue()


def _read_csv(text: str, path: Path) -> tuple[Frame, list[Row]]:
    records = parse_table(text)
    columns = set(records[0]) if records else set()
    frames = [f for f in SIGNS if {f"{axis}_{f.lower()}" for axis in "xyz"} <= columns]
    if len(frames) != 1:
        hint = "name the columns x_lps,y_lps,z_lps or x_ras,y_ras,z_ras; bare x,y,z say no frame"
        raise _refuse(path, f"its columns {sorted(columns)} do not state one frame", hint)
    names = [f"{axis}_{frames[0].lower()}" for axis in "xyz"]
    return frames[0], [([float(r[name]) for name in names], str(r.get("label") or "")) for r in records]


def _write_csv(rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["x_lps", "y_lps", "z_lps", "label"])
    writer.writerows([*map(repr, position), table_cell(label)] for position, label in rows)
    return out.getvalue()


CODECS: dict[str, tuple[Callable[[str, Path], tuple[Frame, list[Row]]], Callable[[list[Row]], str]]] = {
    ".mrk.json": (_read_markups, _write_markups), ".fcsv": (_read_fcsv, _write_fcsv), ".csv": (_read_csv, _write_csv),
}  # fmt: skip
