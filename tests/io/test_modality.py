from __future__ import annotations

import numpy as np
import pytest

from regweave.errors import UsageError
from regweave.io.modality import bank_of, modality_of, with_modality
from regweave.types import Geometry, Volume

SHAPE = (24, 24, 24)
RNG = np.random.default_rng(5)


def volume(data) -> Volume:
    array = np.asarray(data, dtype=np.float32)
    return Volume(array, Geometry(array.shape, np.eye(4)))


def thorax() -> np.ndarray:
    """Air round a body of fat and muscle with a little bone."""
    data = np.full(SHAPE, -1000.0)
    data[4:20, 4:20, 4:20] = RNG.normal(-100, 15, (16, 16, 16))
    data[6:18, 6:18, 6:18] = RNG.normal(50, 20, (12, 12, 12))
    data[11:13, 11:13, 6:18] = 700
    return data


def brain() -> np.ndarray:
    data = np.zeros(SHAPE)
    data[4:20, 4:20, 4:20] = RNG.normal(600, 120, (16, 16, 16)).clip(0)
    return data


@pytest.mark.parametrize(
    "data",
    [
        thorax(),
        np.where(thorax() < -900, -2048, thorax()),  # padding outside of the field of view
        thorax().clip(-125, 275),  # cut to a window, as public sets are
        thorax()[6:18, 6:18, 4:20],  # a crop without air
    ],
    ids=["whole", "padded", "clipped", "crop"],
)
def test_ct_is_told_by_air_fat_and_tissue(data):
    assert modality_of(volume(data)) == "ct"


def spoilt() -> np.ndarray:
    data = brain()
    data[0, 0, 0] = -32768
    return data


@pytest.mark.parametrize(
    "data",
    [
        brain(),
        brain() - 1,
        spoilt(),
        brain() * 1000 - 700,  # some voxels far below any threshold, none of them air
        (brain() - brain().mean()) / brain().std(),
        RNG.normal(0, 400, SHAPE),
        thorax() + 1024,  # stored without its intercept: no longer Hounsfield units
    ],
    ids=["plain", "shifted", "one voxel", "large", "standardised", "noise", "raw"],
)
def test_everything_else_is_a_scale_of_its_own(data):
    assert modality_of(volume(data)) == "mr"


def test_what_is_stated_or_decided_holds():
    ct = volume(thorax())
    assert with_modality(ct).modality == "ct"
    assert with_modality(ct, "t1").modality == "t1"
    assert with_modality(with_modality(ct, "t1")).modality == "t1"
    with pytest.raises(UsageError) as caught:
        with_modality(ct, "xray")
    assert caught.value.code == "E175"


def test_banks():
    assert bank_of("ct", "ct") == "ct"
    assert bank_of("mr", "mr") == bank_of("t1", "t1") == bank_of("mr", "t2") == "mr"
    assert bank_of("ct", "mr") == bank_of("mr", "ct") == bank_of("t1", "t2") == bank_of("pet", "ct") == "multi"
