"""DICOM spatial registrations, rigid and deformable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regweave.io.dicom.series import Series
from regweave.types import Float64Array, Identity, Transform


@dataclass(frozen=True)
class DicomRegistration:
    """A registration object.

    Parameters
    ----------
    transform : Transform
        Takes points of the registered frame (today) to the source frame (planning), ITK's direction.
    linear : bool
        Whether it is a matrix alone.
    registered_frame, source_frame : str
        Frames of reference.
    identity : Identity
    """

    transform: Transform
    linear: bool
    registered_frame: str = field(repr=False)
    source_frame: str = field(repr=False)
    identity: Identity = field(default_factory=Identity)


def read_reg(path: str | Path) -> DicomRegistration:
    """Read a Spatial Registration or a Deformable Spatial Registration."""
    raise NotImplementedError


def write_reg_deformable(
    path: str | Path, transform: Transform, today: Series, planning: Series, *, spacing_mm: float = 5.0
) -> float:
    """Write a transform from today to planning; return the largest error of its grid in millimetres."""
    raise NotImplementedError


def write_reg_rigid(path: str | Path, matrix: Float64Array, today: Series, planning: Series) -> None:
    """Write a rigid matrix that takes points of today to planning, as the inverse that DICOM stores."""
    raise NotImplementedError
