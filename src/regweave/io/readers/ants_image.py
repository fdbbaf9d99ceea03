"""ANTsPy reader: images in memory, in LPS."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_scalar, volume_shape
from regweave.io.readers import ReadOptions, is_a

READS = "an ANTsPy image"
SUBJECT = "the ANTsPy image"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the type."""
    return is_a(source, "ants", "ANTsImage")


def read(source: Any, options: ReadOptions) -> Stored:
    """Take the voxels; direction, spacing and origin are those of ITK."""
    data = source.numpy()
    require_scalar(data.dtype, int(source.components), SUBJECT)
    volume_shape(data.shape, SUBJECT)  # before a matrix is made of three axes
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(source.direction) * np.asarray(source.spacing)
    affine[:3, 3] = source.origin
    return Stored.of_array(data, affine, SUBJECT)
