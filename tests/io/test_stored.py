"""Voxels as files hold them: any order in memory, type and scaling give the same intensities."""

import numpy as np
import pytest

from regweave.io.stored import Stored
from regweave.types import Geometry

SHAPE = (7, 5, 6)


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f4", ">f8", "u1"])
@pytest.mark.parametrize("scaling", [(1.0, 0.0), (0.37, -12.5)])
def test_intensities_do_not_depend_on_the_order_in_memory(dtype, scaling):
    data = np.random.default_rng(0).integers(0, 200, SHAPE).astype(dtype)
    expected = (data.astype(np.float64) * scaling[0] + scaling[1]).astype(np.float32)
    strided = np.empty((7, 10, 6), dtype=dtype)
    strided[:, ::2] = data
    for stored in (np.ascontiguousarray(data), np.asfortranarray(data), strided[:, ::2]):
        found = Stored(stored, Geometry(SHAPE, np.eye(4)), "a file", scaling=scaling).intensities()
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected)
