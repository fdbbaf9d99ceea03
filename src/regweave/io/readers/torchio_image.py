"""TorchIO reader: ScalarImage and LabelMap in memory, in RAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_scalar
from regweave.io.geometry import ras_to_lps
from regweave.io.readers import ReadOptions, is_a

READS = "a TorchIO image"
SUBJECT = "the TorchIO image"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the type; a Subject holds several images and is none."""
    return is_a(source, "torchio", "Image")


def read(source: Any, options: ReadOptions) -> Stored:
    """Take the one channel of a (1, X, Y, Z) tensor."""
    data = np.asarray(source.data)
    require_scalar(data.dtype, data.shape[0], SUBJECT)
    return Stored.of_array(data[0], ras_to_lps(source.affine), SUBJECT)
