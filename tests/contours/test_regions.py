"""Regions of many rings and of rings of many points."""

import numpy as np
import pytest
import shapely

from regweave.contours import even_odd, region_of, rings_of


def test_a_region_is_what_lies_in_an_odd_number_of_rings():
    """Against one ring after the other, and against counting at points."""
    for count in [1, 2, 3, 4, 7, 40]:
        rng = np.random.default_rng(count)
        square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        rings = [rng.uniform(0, 20, 2) + rng.uniform(2, 12, 2) * square for _ in range(count)]
        region, expected = region_of(rings), shapely.Polygon()
        for ring in rings:
            expected = expected.symmetric_difference(shapely.Polygon(ring))
        assert region.symmetric_difference(expected).area < 1e-3 * expected.length  # slits are closed
        u, v = np.meshgrid(np.arange(34), np.arange(34))
        counted = sum(shapely.contains_xy(shapely.Polygon(ring), u, v).astype(int) for ring in rings) % 2 == 1
        np.testing.assert_array_equal(even_odd((34, 34), rings), counted)


def test_a_ring_of_many_points_is_thinned_by_less_than_it_was_rounded():
    for count in [1000, 100_000]:
        turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
        region = region_of([np.round(6 * np.stack([np.cos(turn), np.sin(turn)], axis=1), 3)])
        assert region.area == pytest.approx(36 * np.pi, rel=1e-3)
        assert sum(map(len, rings_of(region))) <= 20_000
