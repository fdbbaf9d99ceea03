"""Rows of the quality assurance of propagated contours, for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regweave.measures.propagation import ClinicSection

FLAGS = ("fail", "look", "cut", "pass")


def clinic_rows(
    section: ClinicSection | None, drawn: Sequence[Mapping[str, Any]], *, by_flag: bool = True
) -> list[dict[str, Any]]:
    """Return the structures of a new set with name in the file, label, and colour where the viewer draws them."""
    if section is None:
        return []
    colours = {row["label"]: row["colour"] for row in drawn}
    rows = []
    for row in section.structures:
        label = row.number if row.label is None else row.label
        name = section.names.get(row.name, row.name)
        rows.append({"label": label, "name": name, "colour": colours.get(label, ""), "row": row})
    return sorted(rows, key=lambda r: FLAGS.index(r["row"].flag)) if by_flag else rows
