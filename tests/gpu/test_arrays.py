"""Arrays of a GPU: what is copied there comes back, memory is counted, wrong calls are refused."""

import numpy as np
import pytest


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_what_is_uploaded_comes_back(device, dtype):
    given = np.arange(24).reshape(2, 3, 4).astype(dtype)
    there = device.upload(given)
    back = device.download(there)
    assert there.shape == (2, 3, 4)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, given)


def test_memory_goes_back_with_the_last_part_of_an_array(device):
    free = device.queue.memory()[0]
    whole = device.upload(np.zeros((4, 1024), dtype=np.float32))
    part = whole.part(1, 3).reshaped([2048])
    del whole
    assert device.queue.memory()[0] < free
    assert part.numpy().shape == (2048,)
    del part
    assert device.queue.memory()[0] == free


def test_memory_that_is_not_there_and_other_shapes_are_refused(twin, device):
    with pytest.raises(twin.OutOfMemory, match="memory"):
        device.queue.zeros([1 << 40])
    u = device.upload(np.zeros((3, 4, 4, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="type d and 4 axes"):
        twin.warp(device.upload(np.zeros((1, 4, 4, 4))), np.eye(3, 4), u)
    with pytest.raises(ValueError, match="3, X, Y, Z"):
        twin.warp(u, np.eye(3, 4), device.upload(np.zeros((2, 4, 4, 4), dtype=np.float32)))
    with pytest.raises(ValueError, match="finite"):
        twin.warp(u, np.full((3, 4), np.nan), u)
    back = twin.Queue(0).upload(np.arange(5, dtype=np.float32)).numpy()
    np.testing.assert_array_equal(back, np.arange(5))
