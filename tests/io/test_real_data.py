"""Real files, read by us and by nibabel."""

import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from regweave.io import check_same_grid, inspect_image, read_image, read_labels

DATA = os.environ.get("REGWEAVE_DATA")
SETS = ["ibsr18_64", "openkbp_head_neck", "acdc_cardiac", "msd_hippocampus", "totalseg_abdomen"]


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="REGWEAVE_DATA is not set")
@pytest.mark.parametrize("name", SETS)
def test_first_case_of_each_set(name):
    folder = min(path.parent for path in (Path(DATA) / name).glob("*/image.nii.gz"))
    volume = read_image(folder / "image.nii.gz")
    other = nib.load(folder / "image.nii.gz")
    np.testing.assert_array_equal(volume.data, other.get_fdata(dtype=np.float32))
    np.testing.assert_allclose(np.diag([-1, -1, 1, 1]) @ volume.geometry.affine, other.affine, atol=1e-6)
    labels = read_labels(folder / "labels.nii.gz")
    assert check_same_grid(volume.geometry, labels.geometry, folder / "labels.nii.gz") is volume.geometry
    assert labels.values()
    assert inspect_image(folder / "image.nii.gz").problems == ()
