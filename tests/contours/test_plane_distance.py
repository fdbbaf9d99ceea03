"""Signed distance of a plane's samples against distance transforms and edges one by one."""

import numpy as np
import pytest
from scipy import ndimage

from regweave.contours import BAND, even_odd, signed_distance


def to_edges(point, ring, step):
    start, end = ring * step, np.roll(ring, -1, axis=0) * step
    along = end - start
    t = np.clip(((point - start) * along).sum(axis=1) / (along**2).sum(axis=1), 0.0, 1.0)
    return np.linalg.norm(point - start - t[:, None] * along, axis=1).min()


def test_distances_are_those_of_edges_near_by_and_of_samples_far_away():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
        radius = rng.uniform(8, 20, 9)
        ring = np.stack([25 + radius * np.cos(angles), 30 + radius * np.sin(angles)], axis=1)
        size, step = (60, 50), np.array([0.7, 1.3])
        found = signed_distance(size, [ring], step)
        inside = even_odd(size, [ring])
        away = sum(ndimage.distance_transform_edt(m, (step[1], step[0])) for m in (inside, ~inside))
        near = np.array([[to_edges(np.array([u, v]) * step, ring, step) for u in range(50)] for v in range(60)])
        width = BAND * step.min()
        expected = np.where(near <= width, near, np.maximum(away - 0.5 * step.min(), width))
        np.testing.assert_allclose(found, np.where(inside, -expected, expected), rtol=1e-5, atol=1e-5)


def test_a_ring_between_samples_is_near_its_edges_and_far_elsewhere():
    ring = np.array([[4.2, 4.2], [4.6, 4.2], [4.6, 4.6]])
    found = signed_distance((9, 9), [ring], np.ones(2))
    assert found[4, 4] == pytest.approx(np.hypot(0.2, 0.2))
    assert np.isinf(found[0, 0])
