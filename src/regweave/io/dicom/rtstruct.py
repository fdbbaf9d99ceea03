"""RT structure sets: read against the series on which they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from regweave.io.dicom.series import Series
from regweave.types import StructureSet


def read_rtstruct(path: str | Path, series: Series) -> StructureSet:
    """Read a structure set drawn on a series; what cannot be taken is listed as left out."""
    raise NotImplementedError


def write_rtstruct(
    path: str | Path,
    structures: StructureSet,
    series: Series,
    *,
    source: StructureSet,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write structures drawn on ``series`` as a new, unapproved set; ``source`` becomes its predecessor."""
    raise NotImplementedError
