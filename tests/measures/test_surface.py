from __future__ import annotations

import numpy as np
import pytest

from regweave.measures import assd_mm, hd95_mm, surface_distances_mm

SPACING = np.array([0.7, 1.3, 3.0])


def border_points(mask):
    padded = np.pad(mask, 1)
    points = []
    for index in np.argwhere(mask):
        i, j, k = index + 1
        neighbours = [padded[i - 1, j, k], padded[i + 1, j, k], padded[i, j - 1, k], padded[i, j + 1, k]]
        neighbours += [padded[i, j, k - 1], padded[i, j, k + 1]]
        if not all(neighbours):
            points.append(index * SPACING)
    return np.array(points)


def brute_force(a, b):
    distance = np.linalg.norm(border_points(a)[:, None] - border_points(b)[None], axis=-1)
    return distance.min(axis=1), distance.min(axis=0)


def blobs(seed):
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(12), np.arange(10), np.arange(8), indexing="ij"), axis=-1)
    centres, radii = rng.uniform(2, 8, (2, 3)), rng.uniform(2, 4, 2)
    return [np.linalg.norm(grid - c, axis=-1) < r for c, r in zip(centres, radii, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_distances_match_brute_force(seed):
    a, b = blobs(seed)
    there, back = brute_force(a, b)
    ours = surface_distances_mm(a, b, SPACING)
    np.testing.assert_allclose(np.sort(ours[0]), np.sort(there))
    np.testing.assert_allclose(np.sort(ours[1]), np.sort(back))
    expected = max(np.percentile(there, 95), np.percentile(back, 95))
    assert hd95_mm(a, b, SPACING) == pytest.approx(expected)
    assert assd_mm(a, b, SPACING) == pytest.approx((there.mean() + back.mean()) / 2)


def test_shifted_cube_is_off_by_the_shift():
    a, b = np.zeros((2, 20, 6, 6), bool)
    a[4:10], b[6:12] = True, True
    assert hd95_mm(a, b, (2.0, 1.0, 1.0)) == pytest.approx(4.0)


def test_empty_masks_have_no_distance():
    full, empty = np.ones((3, 3, 3), bool), np.zeros((3, 3, 3), bool)
    for a, b in [(full, empty), (empty, full), (empty, empty)]:
        assert np.isnan(hd95_mm(a, b, SPACING))
        assert np.isnan(assd_mm(a, b, SPACING))
