"""Cost volumes with a block for each node: the bits of the plain kernels, at the border and wherever labels reach."""

import numpy as np
import pytest

from regweave import _core
from regweave.metrics import mind


def searched(twin, device, shape, size, offsets, nodes=3):
    starts = [np.linspace(0, n - s, nodes).round().astype(np.int32) for n, s in zip(shape, size, strict=True)]
    return twin.Search(device.queue, shape, starts, size, offsets)


CASES = {
    "cube": ((5, 5, 5), [[-1.3, 0.0, 1.3]] * 3),
    "box": ((4, 6, 3), [[-2.0, 0.4], [-0.2, 0.0, 0.1, 3.7], [1.5]]),
    "far": ((4, 4, 4), [[-40.0, 0.0, 40.0], [-1.0, 1.0], [-6.5, 6.5]]),
    "haar": ((8, 4, 4), [[-0.7, 0.7], [0.3], [-1.1, 0.0, 1.1]]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("metric", ["sad", "ngf", "ncc", "mi", "dwt"])
def test_blocks_give_the_bits_of_threads(twin, device, rng, metric, case):
    size, offsets = CASES[case]
    if metric == "dwt" and any(n % 4 for n in size):
        size = (4, 4, 4)
    shape, channels = (11, 9, 10), 3 if metric == "ngf" else 1
    fixed, moved = (device.upload(rng.random((channels, *shape), dtype=np.float32)) for _ in range(2))
    table = np.array([n * np.log(max(n, 1)) for n in range(np.prod(size) + 1)], dtype=np.float32)
    extra = {"ncc": (1e-4, True), "mi": (8, device.upload(table))}.get(metric, ())
    search, found = searched(twin, device, shape, size, offsets), []
    for plain in (False, True):
        out = device.queue.empty((search.n_nodes, search.n_labels))
        getattr(twin, f"{metric}_costs")(search, fixed, moved, out, *extra, plain)
        found.append(out.numpy())
    assert np.isfinite(found[1]).all()
    assert found[1].std() > 0
    assert np.array_equal(*found)


# Self-similarity: the twin of the GPU against the compiled core.
@pytest.mark.parametrize(("distance", "radius"), [(1, 1), (2, 0), (1, 3)])
def test_self_similarity_is_that_of_the_core(twin, device, rng, distance, radius):
    image = rng.random((9, 6, 8), dtype=np.float32)
    image[:3] = 0.5  # flat: the least noise decides
    pairs = np.array(mind.PAIRS, dtype=np.int32) * np.int32(distance)
    expected = _core.self_similarity(image, pairs, radius, *mind.NOISE_RANGE)
    assert expected.std() > 0.1
    found = twin.self_similarity(device.upload(image), pairs, radius, *mind.NOISE_RANGE).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5)
