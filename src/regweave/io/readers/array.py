"""Array reader: a tuple of voxels and a RAS affine, as nibabel has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.io.formats.stored import Stored
from regweave.io.geometry import ras_to_lps
from regweave.io.readers import ReadOptions

READS = "(array, affine) with nibabel's RAS affine"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the type; an array alone does not say where it lies."""
    return isinstance(source, tuple) and len(source) == 2


def read(source: Any, options: ReadOptions) -> Stored:
    """Take voxels [i, j, k] of any array library that NumPy understands."""
    voxels, affine = source
    return Stored.of_array(np.asanyarray(voxels), ras_to_lps(affine), "the array")
