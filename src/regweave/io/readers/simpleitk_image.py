"""SimpleITK reader: images in memory, in LPS."""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_scalar, volume_shape
from regweave.io.geometry import itk_affine, make_geometry
from regweave.io.libraries import sitk
from regweave.io.readers import ReadOptions, is_a

READS = "a SimpleITK image"
SUBJECT = "the SimpleITK image"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the type."""
    return is_a(source, "SimpleITK", "Image")


def read(source: Any, options: ReadOptions) -> Stored:
    """Take the voxels, indexed in the order of the image axes, without axes of length one beyond the third."""
    while source.GetDimension() > 3 and source.GetSize()[-1] == 1:
        source = sitk.Extract(source, [*source.GetSize()[:-1], 0])
    components = 2 if "complex" in source.GetPixelIDTypeAsString() else source.GetNumberOfComponentsPerPixel()
    require_scalar(np.dtype(float), components, SUBJECT)
    geometry = make_geometry(volume_shape(source.GetSize(), SUBJECT), itk_affine(source), SUBJECT)
    return Stored(np.array(sitk.GetArrayViewFromImage(source).T, order="C"), geometry, SUBJECT)
