"""MONAI reader: MetaTensor in memory, in RAS unless its metadata say LPS."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_scalar
from regweave.io.geometry import ras_to_lps
from regweave.io.readers import ReadOptions, is_a

READS = "a MONAI MetaTensor"
SUBJECT = "the MetaTensor"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the type."""
    return is_a(source, "monai", "MetaTensor")


def read(source: Any, options: ReadOptions) -> Stored:
    """Take an (X, Y, Z) tensor, or the one channel of a (1, X, Y, Z) tensor, from whatever device it is on."""
    data = np.asarray(source.array)
    if data.ndim == 4:
        require_scalar(data.dtype, data.shape[0], SUBJECT)
        data = data[0]
    affine = np.asarray(source.affine, dtype=np.float64)
    return Stored.of_array(data, affine if source.meta.get("space") == "LPS" else ras_to_lps(affine), SUBJECT)
