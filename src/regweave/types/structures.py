"""Structures as drawn outlines: closed polygons on planes, and points, in LPS millimetres."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from regweave.types.images import Float64Array

OutlineKind = Literal["CLOSED_PLANAR", "POINT", "OPEN_PLANAR", "OPEN_NONPLANAR"]
Colour = tuple[int, int, int]
PALETTE: tuple[Colour, ...] = (
    (255, 136, 0), (34, 204, 255), (255, 238, 0), (221, 17, 153), (136, 255, 221), (17, 102, 255), (255, 153, 153),
    (170, 255, 153), (187, 85, 85), (51, 153, 255), (0, 221, 221), (204, 85, 34),
)  # fmt: skip
"""Colours of structures without one, chosen to be as far apart as twelve colours can be for normal, deuteranope and
protanope sight at once; further structures begin again."""


@dataclass(frozen=True, repr=False)
class Identity:
    """Identity of a patient, a study and a series; printing it shows a hash alone."""

    patient_id: str = ""  # As the objects state them, empty where they do not
    patient_name: str = ""
    birth_date: str = ""
    sex: str = ""
    study_uid: str = ""  # Unique identifiers of study, series and frame of reference
    series_uid: str = ""
    frame_uid: str = ""

    @property
    def patient_hash(self) -> str:
        """Twelve hexadecimal digits that link records of one patient without a name."""
        return _digest(self.patient_id, self.patient_name.upper())

    @property
    def series_hash(self) -> str:
        """Twelve hexadecimal digits that link records of one series."""
        return _digest(self.series_uid)

    def __repr__(self) -> str:
        """Hashes alone."""
        return f"Identity(patient {self.patient_hash}, series {self.series_hash})"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(("regweave", *parts)).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, repr=False)
class Contour:
    """One outline on one plane."""

    points_mm: Float64Array  # LPS millimetres; the first point is not repeated, (n, 3)
    kind: OutlineKind = "CLOSED_PLANAR"  # Geometric type in the words of DICOM
    image: int | None = None  # Its slice of the series

    def __repr__(self) -> str:
        """Type, number of points and slice."""
        return f"Contour({self.kind}, {len(self.points_mm)} points, slice {self.image})"


@dataclass(frozen=True, repr=False)
class Structure:
    """A named structure."""

    number: int  # ROI number
    name: str
    kind: str = ""  # Interpreted type, ``PTV``, ``ORGAN`` …, empty where unknown
    colour: Colour | None = None
    contours: tuple[Contour, ...] = ()  # Closed polygons; several on one plane enclose by the even-odd rule
    points: Float64Array = field(default_factory=lambda: np.zeros((0, 3)))  # Isocentres and markers, (k, 3)

    @property
    def drawn_mm(self) -> Float64Array:
        """Points of all contours, then the points alone, shape (n, 3)."""
        return np.concatenate([*(one.points_mm for one in self.contours), self.points])

    def __repr__(self) -> str:
        """Name, type and how much is drawn."""
        kind = f", {self.kind}" if self.kind else ""
        return f"Structure({self.number} {self.name!r}{kind}, {len(self.contours)} contours, {len(self.points)} points)"


@dataclass(frozen=True)
class LeftOut:
    """A structure, or a part of one, that was not taken, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class StructureSet:
    """Structures drawn on one series."""

    structures: tuple[Structure, ...]
    label: str = field(default="", repr=False)  # Label of the set
    frame_uid: str = field(default="", repr=False)  # Frame of reference of all points
    identity: Identity = field(default_factory=Identity)
    left_out: tuple[LeftOut, ...] = ()  # What the file holds and the set does not
    instance_uid: str = field(default="", repr=False)
    """Identifier of the object that the set was read from; later sets name it as their predecessor."""

    def named(self, name: str) -> Structure | None:
        """Return the structure of a name, None where there is none."""
        return next((one for one in self.structures if one.name == name), None)
