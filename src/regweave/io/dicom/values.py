"""Values of a DICOM series: its slices, their common grid, its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from regweave.types import Float64Array, Identity, Volume


@dataclass(frozen=True)
class SeriesFiles:
    """Files of one series; printing it shows no identity.

    Parameters
    ----------
    modality : str
        ``CT``, ``MR``, ``PT`` …
    number : int
        How many images.
    hash : str
        Twelve hexadecimal digits by which ``series=`` chooses it.
    spacing_mm : three floats, optional
        Column, row and median slice spacing; None where they cannot be read.
    label : str
        Number, description, contrast agent and date of the series, for a person who has to choose.
    """

    modality: str
    number: int
    hash: str
    spacing_mm: tuple[float, float, float] | None
    label: str = field(repr=False)
    files: tuple[Path, ...] = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True)
class DicomSlice:
    """One image of a series.

    Parameters
    ----------
    class_uid, instance_uid : str
        Identifiers that contours refer to.
    position_mm : float array of shape (3,)
        Centre of the first pixel, LPS.
    along_mm : float
        Position along the normal of the slices.
    """

    class_uid: str = field(repr=False)
    instance_uid: str = field(repr=False)
    position_mm: Float64Array
    along_mm: float


@dataclass(frozen=True)
class SliceGrid:
    """In-plane grid that all slices of a series share.

    Parameters
    ----------
    row, column, normal : float arrays of shape (3,)
        Where the column index grows, where the row index grows, and their cross product.
    spacing_mm : two floats
        Distance of pixels along ``row`` and along ``column``.
    size : two ints
        Pixels along ``row`` and along ``column``.
    """

    row: Float64Array
    column: Float64Array
    normal: Float64Array
    spacing_mm: tuple[float, float]
    size: tuple[int, int]


@dataclass(frozen=True)
class Series:
    """An image series.

    Parameters
    ----------
    image : Volume
        Voxels on an even grid, for registration. The values of the slices themselves where these are even and straight,
        else interpolated between their true positions.
    slices : tuple of DicomSlice
        The true slices, ascending along the normal.
    grid : SliceGrid
    identity : Identity
    modality : str
        ``CT``, ``MR`` …
    exact : bool
        Whether ``image`` holds the slices as they are.
    study : mapping
        What new objects of the same study copy from its images.
    """

    image: Volume
    slices: tuple[DicomSlice, ...] = field(repr=False)
    grid: SliceGrid = field(repr=False)
    identity: Identity
    modality: str
    exact: bool = True
    study: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def frame_uid(self) -> str:
        """Frame of reference."""
        return self.identity.frame_uid
