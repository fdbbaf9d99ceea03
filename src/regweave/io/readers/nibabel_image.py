"""nibabel reader: images in memory, in RAS."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_unmasked
from regweave.io.geometry import ras_to_lps
from regweave.io.readers import ReadOptions, is_a, nifti_file

READS = "a nibabel image"
SUBJECT = "the nibabel image"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the type: any image of nibabel with an affine."""
    return is_a(source, "nibabel", "SpatialImage")


def read(source: Any, options: ReadOptions) -> Stored:
    """Take the voxels, which nibabel has scaled; a NIfTI header is checked as that of a file is."""
    data = np.asanyarray(source.dataobj)
    require_unmasked(data, SUBJECT)
    if not is_a(source, "nibabel", "Nifti1Pair"):
        return Stored.of_array(data, ras_to_lps(source.affine), SUBJECT)
    geometry = nifti_file.place(source.header, data.shape, data.dtype, SUBJECT, options.nifti_frame)
    return Stored(data.reshape(geometry.shape), geometry, SUBJECT)
