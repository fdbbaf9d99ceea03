"""Modality of an image, told from its histogram: Hounsfield units of CT, or a scale of its own.

Decided once, when an image is read; a user who knows better says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from regweave.errors import UsageError
from regweave.types import Float32Array, Modality, Volume

Stated = Literal["auto", "ct", "mr", "t1", "t2", "pd", "flair", "pet", "us"]
"""What a user says of an image; ``auto`` leaves it to the histogram."""
BankName = Literal["ct", "mr", "multi"]
"""Which metrics compare two images: both CT, both on one scale of their own, or two modalities."""

LOWEST_TISSUE_HU = -100.0
"""The minimum of a CT is fat or less, even where it was cut to a window."""
TISSUE_HU = (-200.0, 300.0)
AIR_HU = (-1100.0, -500.0)
HIGHEST_HU = 4100.0
"""Twelve bits end at 3071 or 4095; what lies above is no CT number."""
NEGATIVE_SHARE = 0.02
TISSUE_SHARE = 0.05
WATER_HU = (-20.0, 300.0)
AIR_SHARE = 0.01
TISSUE_SHARE_WITHOUT_AIR = 0.5
OUTSIDE_HU = -1000.0
STRAY_SHARE = 0.001
"""Share of the voxels that may lie outside the scale: metal, and damage."""


def modality_of(volume: Volume) -> Modality:
    """Tell CT from any other modality by the shares of air, fat and tissue on the Hounsfield scale.

    Parameters
    ----------
    volume : Volume
        Its own ``modality`` is not looked at.

    Returns
    -------
    "ct" or "mr"
        ``mr`` stands for every scale on which numbers mean nothing by themselves.

    Examples
    --------
    >>> from regweave.types import Geometry
    >>> data = np.repeat(np.float32([-1000.0, -80.0, 40.0, 60.0]), 16).reshape(4, 4, 4)
    >>> modality_of(Volume(data, Geometry((4, 4, 4), np.eye(4))))
    'ct'
    """
    values = volume.data
    low = float(values.min())
    if low > LOWEST_TISSUE_HU:
        return "mr"
    padding = _share(values, -np.inf, AIR_HU[0]) - (float((values == low).mean()) if low < AIR_HU[0] else 0.0)
    if _share(values, HIGHEST_HU, np.inf) > STRAY_SHARE or padding > STRAY_SHARE:
        return "mr"
    tissue, air = _share(values, *TISSUE_HU), _share(values, -np.inf, AIR_HU[1])
    if _share(values, -np.inf, WATER_HU[0]) < NEGATIVE_SHARE or _share(values, *WATER_HU) < TISSUE_SHARE:
        return "mr"
    return "ct" if air >= AIR_SHARE or tissue >= TISSUE_SHARE_WITHOUT_AIR else "mr"


def _share(values: Float32Array, low: float, high: float) -> float:
    return float(np.count_nonzero((values > low) & (values < high)) / values.size)


def with_modality(volume: Volume, stated: Stated = "auto") -> Volume:
    """Return the image with its modality: as stated, as it was decided before, or as its histogram tells it."""
    if stated == "auto":
        return volume if volume.modality is not None else replace(volume, modality=modality_of(volume))
    if stated not in get_args(Modality):
        raise UsageError("E175", f"unknown modality {stated!r}", f"choose auto, {', '.join(get_args(Modality))}")
    return replace(volume, modality=stated)


def fill_value(volume: Volume) -> float:
    """Return the value for points outside an image: −1000 (air) for CT, 0 for everything else."""
    return OUTSIDE_HU if with_modality(volume).modality == "ct" else 0.0


def bank_of(fixed: Modality, moving: Modality) -> BankName:
    """Return which metrics compare two modalities; ``mr``, of which no more is said, goes with any scale but CT's.

    Examples
    --------
    >>> bank_of("ct", "ct"), bank_of("t1", "mr"), bank_of("t1", "t2"), bank_of("ct", "mr")
    ('ct', 'mr', 'multi', 'multi')
    """
    if fixed == moving:
        return "ct" if fixed == "ct" else "mr"
    return "mr" if "mr" in (fixed, moving) and "ct" not in (fixed, moving) else "multi"


def recorded_modality(value: object) -> dict[str, str]:
    """Return the modality of a record: ``fixed``, ``moving`` and ``bank``; earlier records hold one word for all.

    Examples
    --------
    >>> recorded_modality("ct")
    {'fixed': 'ct', 'moving': 'ct', 'bank': 'ct'}
    """
    found = value if isinstance(value, dict) else dict.fromkeys(("fixed", "moving", "bank"), value)
    return {name: str(found.get(name, "mr")) for name in ("fixed", "moving", "bank")}


def describe_modalities(fixed: str, moving: str) -> str:
    """Say it as people do: ``CT``, or ``CT to MR`` where the two differ.

    Examples
    --------
    >>> describe_modalities("ct", "mr"), describe_modalities("mr", "mr")
    ('MR to CT', 'MR')
    """
    shown: Sequence[str] = [{"flair": "FLAIR"}.get(m, m.upper()) for m in (moving, fixed)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
