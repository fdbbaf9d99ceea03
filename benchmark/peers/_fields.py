"""What the adapters share: files in, and a displacement field out, as (3, X, Y, Z) in LPS millimetres."""

from pathlib import Path
from typing import Any

import numpy as np


def read_image(path: str) -> Any:
    """Read a file as a SimpleITK image of 32-bit floats."""
    import SimpleITK as sitk  # noqa: N813 (its usual name)

    return sitk.ReadImage(path, sitk.sitkFloat32)


def on_grid_of(fixed: Any, moving: Any) -> Any:
    """Resample the moving image on the fixed grid by the headers alone; outside it has its smallest value."""
    import SimpleITK as sitk  # noqa: N813

    lowest = float(sitk.GetArrayViewFromImage(moving).min())
    return sitk.Resample(moving, fixed, sitk.Transform(), sitk.sitkLinear, lowest)


def from_itk(vectors: Any) -> Any:
    """Turn ITK's (Z, Y, X, 3) in LPS millimetres into (3, X, Y, Z)."""
    return np.asarray(vectors).transpose(3, 2, 1, 0)


def write(path: str, field: Any) -> None:
    """Write a field as an array of 32-bit floats."""
    np.save(Path(path), np.ascontiguousarray(field, dtype=np.float32))
