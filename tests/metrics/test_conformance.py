"""Every metric keeps the same promises; a new file in regweave.metrics is tested by being there."""

from types import SimpleNamespace

import numpy as np
import pytest
import pywt

from regweave import metrics
from regweave.errors import UsageError
from regweave.metrics import dwt, mi, mind, ncc, sad
from regweave.spatial.control_grid import LabelSet
from regweave.study import conformance
from regweave.study.conformance import grid_of, smooth_image


@pytest.fixture(params=metrics.available())
def metric(request):
    return metrics.get(request.param)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda c: c.__name__)
def test_every_metric_passes(metric, check):
    check(metric)


BAD = {
    "volume_equals_cost": {"volume": lambda f, m, grid, offsets, o: 1 + sad.volume(f, m, grid, offsets, o)},
    "minimum_at_the_planted_shift": {"volume": lambda f, m, grid, offsets, o: -sad.volume(f, m, grid, offsets, o)},
    "equal_images_cost_nothing": {"volume": lambda f, m, grid, offsets, o: 1 + sad.volume(f, m, grid, offsets, o)},
    "same_bits_for_any_thread_count": {
        "volume": lambda f, m, grid, offsets, o: sad.volume(f, m, grid, offsets, o) + f.__iadd__(1).mean()
    },
    "flat_images_are_finite": {
        "volume": lambda f, m, grid, offsets, o: sad.volume(f, m, grid, offsets, o) + np.float32("nan")
    },
}


@pytest.mark.parametrize("check", BAD)
def test_a_metric_that_breaks_a_promise_is_found(check):
    bad = SimpleNamespace(**{n: getattr(sad, n) for n in ("Options", "features", "cost", "volume")} | BAD[check])
    with pytest.raises(AssertionError):
        getattr(conformance, check)(bad)


def test_a_plug_in_is_checked_from_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "metrics").mkdir()
    source = "from regweave.metrics.sad import Options, cost, features\n\ndef volume(*_):\n    raise ValueError('no')\n"
    (tmp_path / "metrics" / "broken.py").write_text(source)
    monkeypatch.setenv("REGWEAVE_PLUGINS", str(tmp_path))
    assert conformance.main(["sad"]) == 0
    assert conformance.main(["broken"]) == 1
    assert "ValueError: no" in capsys.readouterr().out


def test_correlation_of_channels_contrast_and_bins():
    options, grid = ncc.Options(), grid_of((20, 18, 23))
    fixed, moved = (np.stack([smooth_image(s), smooth_image(s + 1) ** 2]) for s in (10, 20))
    labels = LabelSet.cube(3, np.full(3, 0.7))
    both = ncc.volume(fixed, moved, grid, labels.offsets, options)
    each = [ncc.volume(fixed[c : c + 1], moved[c : c + 1], grid, labels.offsets, options) for c in (0, 1)]
    np.testing.assert_array_equal(both, np.mean(each, axis=0, dtype=np.float32))
    np.testing.assert_allclose(ncc.cost(fixed, moved, grid, options), both[:, 13], atol=2e-5)
    assert not np.allclose(each[0], each[1])
    moved = smooth_image(9)
    ranks = mi.prepare(moved), mi.prepare(np.sqrt(moved))
    assert np.abs(ranks[0] - ranks[1]).max() < 0.02
    small, large = grid_of((40, 40, 40), support=8), grid_of((40, 40, 40), support=16)
    assert mi.n_bins(small, mi.Options()) == 8
    assert mi.n_bins(large, mi.Options()) == 16
    image = smooth_image(10)
    a, b = (mind.features(i, mind.Options()) for i in (image, 1 - image))
    assert np.abs(a - b).max() < 1e-4
    assert a.shape == (12, *image.shape)
    with pytest.raises(
        UsageError, match=r"unknown metric 'nnc'; did you mean ncc\? available: dwt, gradient, mi, .*ncc.*sad"
    ):
        metrics.get("nnc")


def test_dwt_and_mind_equal_their_definitions():
    fixed, moved = smooth_image(7), smooth_image(8)
    grid = grid_of(fixed.shape, support=8)
    costs = dwt.volume(fixed[None], moved[None], grid, LabelSet.cube(1, np.ones(3)).offsets, dwt.Options())[:, 0]
    wide = dwt.wavelet_support(grid)
    assert wide.support == (8, 8, 8)
    for node, (a, b) in enumerate(zip(wide.patches(fixed), wide.patches(moved), strict=True)):
        flat, _ = pywt.coeffs_to_array(pywt.wavedecn(b - a, "haar", mode="periodization", level=2))
        assert costs[node] == pytest.approx(np.abs(flat).mean(), abs=1e-5)
    image = smooth_image(11, (9, 8, 7))
    options = mind.Options(distance_voxels=2, radius_voxels=1)
    inside = np.array(image.shape) - 1
    distances = np.zeros((12, *image.shape))
    for c, (p, q) in enumerate(mind.PAIRS):
        for v in np.ndindex(image.shape):
            cube = [w for w in np.ndindex(3, 3, 3) if all(0 <= v[a] + w[a] - 1 <= inside[a] for a in range(3))]
            voxels = np.array([[v[a] + w[a] - 1 for a in range(3)] for w in cube])
            first, second = (image[tuple((voxels + 2 * np.array(o)).clip(0, inside).T)] for o in (p, q))
            distances[c][v] = ((first - second) ** 2).mean()
    distances -= distances.min(axis=0)
    noise = distances.mean(axis=0)
    noise = noise.clip(0.001 * noise.mean(), 1000 * noise.mean())
    assert np.abs(mind.features(image, options) - np.exp(-distances / noise)).max() < 1e-4
