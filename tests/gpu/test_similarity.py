"""Self-similarity: the twin of the GPU against the compiled core."""

import numpy as np
import pytest

from regweave import _core
from regweave.metrics import mind


@pytest.mark.parametrize(("distance", "radius"), [(1, 1), (2, 0), (1, 3)])
def test_self_similarity_is_that_of_the_core(twin, device, rng, distance, radius):
    image = rng.random((9, 6, 8), dtype=np.float32)
    image[:3] = 0.5  # flat: the least noise decides
    pairs = np.array(mind.PAIRS, dtype=np.int32) * np.int32(distance)
    expected = _core.self_similarity(image, pairs, radius, *mind.NOISE_RANGE)
    assert expected.std() > 0.1
    found = twin.self_similarity(device.upload(image), pairs, radius, *mind.NOISE_RANGE).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5)
