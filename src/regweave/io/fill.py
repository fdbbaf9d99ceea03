"""What lies outside an image."""

from __future__ import annotations

from regweave.types import Volume

CT_MINIMUM = -500.0
AIR_HU = -1000.0


def fill_value(volume: Volume) -> float:
    """Return the value for points outside an image: −1000 (air) for CT, 0 for everything else.

    An image counts as CT when its minimum is below −500: no other modality in use has such values.
    """
    return AIR_HU if float(volume.data.min()) < CT_MINIMUM else 0.0
