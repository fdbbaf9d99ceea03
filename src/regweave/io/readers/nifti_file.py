"""NIfTI reader: .nii and .nii.gz files."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from regweave.io.formats import nifti
from regweave.io.formats.nifti_frame import NiftiFrame, nifti_affine, read_frames, require_voxel_size
from regweave.io.formats.stored import Stored
from regweave.io.formats.validate import require_scalar, volume_shape
from regweave.io.geometry import make_geometry
from regweave.io.readers import ReadOptions
from regweave.types import Geometry

READS = "NIfTI"
SUFFIXES = nifti.SUFFIXES
GZIP_WINDOW = 31
"""zlib's code for a gzip stream of any window."""


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the size of the header and the mark of the format, behind gzip or not."""
    if head.startswith(nifti.GZIP_MARK):
        try:
            head = zlib.decompressobj(GZIP_WINDOW).decompress(head, nifti.LONGEST_HEADER)
        except zlib.error:
            return False
    return nifti.has_mark(head)


def files(source: Path, options: ReadOptions) -> tuple[Path, ...]:
    """Return the file itself."""
    return (source,)


def read(source: Path, options: ReadOptions) -> Stored:
    """Read a file; what its header forbids is refused before voxels are read."""
    head = nifti.read_header(source)
    geometry = place(head.header, head.shape, head.dtype, head.subject, options.nifti_frame)
    voxels = head.read_voxels().reshape(geometry.shape, order="F")
    return Stored(voxels, geometry, head.subject, head.scaling, _facts(head, geometry))


def place(
    header: Any, shape: tuple[int, ...], dtype: np.dtype[Any], subject: str, frame: NiftiFrame = "auto"
) -> Geometry:
    """Check that a NIfTI header is that of a scalar volume, and place it."""
    require_scalar(dtype, 1, subject)
    nifti.require_intensity(header, subject)
    grid = volume_shape(shape, subject)
    geometry = make_geometry(grid, nifti_affine(header, grid, subject, frame), subject)
    require_voxel_size(header, geometry, subject, frame)
    return geometry


def _facts(head: nifti.NiftiHeader, geometry: Geometry) -> dict[str, Any]:
    frames = read_frames(head.header, geometry.shape, head.subject)
    codes = {
        "version": 1 if int(head.header["sizeof_hdr"]) == 348 else 2,
        "qform_code": frames.qform_code,
        "sform_code": frames.sform_code,
        "q_s_distance_mm": frames.distance_mm,
        "scl_slope": head.scaling[0],
        "scl_inter": head.scaling[1],
    }
    return {"nifti": codes}
