"""Series of volumes in one 4-D NIfTI file, such as those of functional MR."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import RegweaveError, UsageError
from regweave.io import nifti
from regweave.io.disk.files import is_file, suffix_of
from regweave.io.images import as_path
from regweave.io.nifti import NiftiFrame
from regweave.io.stored import Stored, constant_error, nonfinite_error
from regweave.io.write import nibabel_image, save_nifti
from regweave.types import Geometry, Volume


@dataclass(frozen=True)
class TimeSeries:
    """Volumes on one grid, and the time from one to the next, in the unit that the file states with ``unit``."""

    volumes: Sequence[Volume]
    step: float = 1.0
    unit: str = "sec"

    @property
    def geometry(self) -> Geometry:
        """Grid of all volumes."""
        return self.volumes[0].geometry

    def __len__(self) -> int:
        return len(self.volumes)


def is_time_series(source: Any) -> bool:
    """Return whether a source is a NIfTI file with several volumes."""
    path = as_path(source)
    if path is None or suffix_of(path) not in nifti.SUFFIXES or not is_file(path):
        return isinstance(source, TimeSeries)
    shape = nifti.read_header(path).shape
    return len(shape) > 3 and shape[3] > 1 and all(n == 1 for n in shape[4:])


def read_time_series(source: Any, nifti_frame: NiftiFrame = "auto") -> TimeSeries:
    """Read a 4-D NIfTI file; every volume is checked as an image is.

    Raises
    ------
    RegweaveError
        E103 where there is one volume or another format, and what reading an image raises.
    """
    if isinstance(source, TimeSeries):
        return source
    if not is_time_series(source):
        message = f"'{source}' is no series of volumes in a NIfTI file"
        raise RegweaveError("E103", message, "give a 4-D file (.nii, .nii.gz)")
    head = nifti.read_header(Path(source))
    geometry = nifti.place(head.header, head.shape[:3], head.dtype, head.subject, nifti_frame)
    voxels = head.read_voxels().reshape(*geometry.shape, -1)
    volumes = []
    for n in range(voxels.shape[3]):
        stored = Stored(voxels[..., n], geometry, f"volume {n} of {head.subject}", head.scaling)
        data = stored.intensities()
        if (problem := nonfinite_error(data, stored.subject) or constant_error(data, stored)) is not None:
            raise problem
        volumes.append(Volume(data, geometry))
    return TimeSeries(tuple(volumes), float(head.header["pixdim"][4]), head.header.get_xyzt_units()[1])


def write_time_series(path: str | Path, series: TimeSeries) -> None:
    """Write a 4-D NIfTI file in float32, or raise E152 for another format."""
    path = Path(path)
    if suffix_of(path) not in nifti.SUFFIXES:
        raise UsageError("E152", f"cannot write the series '{path}'", "choose .nii or .nii.gz")
    image = nibabel_image(np.stack([volume.data for volume in series.volumes], axis=-1), series.geometry)
    image.header.set_xyzt_units("mm", series.unit)
    image.header["pixdim"][4] = series.step
    save_nifti(path, image)
