"""When the error of an inverse deserves a word, and what counts as the body."""

import numpy as np
import pytest

from regweave.measures.deformation import InverseError
from regweave.spatial.voxels import body_mask
from regweave.types import Geometry, LabelMap, Volume

SHAPE = (20, 20, 20)
BODY = np.zeros(SHAPE, dtype=bool)
BODY[5:15, 5:15, 5:15] = True


def error(residual=None, back=None, spacing_mm=2.0):
    nothing = np.zeros(SHAPE, dtype=np.float32)
    left = InverseError.of_residual(nothing if residual is None else residual, BODY)
    return left.with_round_trip(nothing if back is None else back, BODY, spacing_mm)


def inexact(n, size_mm=0.6, start=(5, 5)):
    residual = np.zeros(SHAPE, dtype=np.float32)
    residual[start[0], start[1], 5 : 5 + n] = size_mm
    return residual


def test_what_deserves_a_warning():
    assert not error(inexact(1)).notable
    assert error(inexact(2)).notable
    found = error(inexact(10, start=(0, 0)))
    assert (found.inexact_voxels, found.notable) == (0, False)
    found = error(back=np.full(SHAPE, np.nan, dtype=np.float32))
    assert found.notable
    assert "no voxel of the fixed body" in found.words()
    residual = inexact(3)
    residual[5, 5, 7] = 0.8
    text = error(residual).words()
    assert "3 voxels of the body (0.30%), at most 0.8 mm, near voxel (5, 5, 7)" in text


@pytest.mark.parametrize(("back_mm", "notable"), [(1.9, False), (2.1, True)])
def test_an_error_of_more_than_a_voxel_there_and_back_is_notable(back_mm, notable):
    back = np.where(BODY, np.float32(back_mm), np.float32(0.0))
    assert error(back=back).notable == notable


def scan(data):
    return Volume(data.astype(np.float32), Geometry(data.shape, np.eye(4)))


def test_what_is_body():
    ct = np.full(SHAPE, -1000.0)
    ct[3:17, 3:17, :] = 40.0
    ct[8:12, 8:12, :] = -850.0  # a lung that the scan cuts at both ends
    mask = body_mask(scan(ct))
    assert mask[3:17, 3:17].all()
    assert mask.sum() == 14 * 14 * 20
    image = np.zeros(SHAPE)
    image[2:6, 2:6, 2:6] = 100.0
    marked = np.zeros(SHAPE, dtype=np.uint8)
    marked[15, 15, 15] = 3
    mask = body_mask(scan(image), LabelMap(marked, Geometry(SHAPE, np.eye(4))))
    assert mask.sum() == 65
    rng = np.random.default_rng(0)
    image = rng.normal(0.0, 5.0, SHAPE)
    image[5:15, 5:15, 5:15] += 100.0
    mask = body_mask(scan(image))
    np.testing.assert_array_equal(mask, BODY)
    assert body_mask(scan(np.ones(SHAPE))).all()
