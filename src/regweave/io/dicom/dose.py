"""RT doses on a grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regweave.io.dicom.series import Series
from regweave.types import Identity, Volume


@dataclass(frozen=True)
class Dose:
    """A dose distribution.

    Parameters
    ----------
    volume : Volume
        In ``units``.
    units : str
        ``GY`` or ``RELATIVE``.
    kind, summation : str
        Dose type and summation type, in the words of DICOM.
    frame_uid : str
    identity : Identity
    instance_uid : str
    """

    volume: Volume
    units: str
    kind: str
    summation: str
    frame_uid: str = field(repr=False)
    identity: Identity = field(default_factory=Identity)
    instance_uid: str = field(default="", repr=False)


def read_dose(path: str | Path) -> Dose:
    """Read an RT dose."""
    raise NotImplementedError


def write_dose(path: str | Path, dose: Dose, today: Series) -> None:
    """Write a dose that was warped into the frame of today's series, and say so in it."""
    raise NotImplementedError
