"""What lies outside an image."""

from __future__ import annotations

from regweave.io.modality import with_modality
from regweave.types import Volume

OUTSIDE_HU = -1000.0


def fill_value(volume: Volume) -> float:
    """Return the value for points outside an image: −1000 (air) for CT, 0 for everything else."""
    return OUTSIDE_HU if with_modality(volume).modality == "ct" else 0.0
