import itertools

import numpy as np
import pytest

from regweave._core import distance_to_surface, surface_net
from regweave.measures.scores import surface_distances
from regweave.threads import kernel_threads

SPACING = np.array([0.7, 1.3, 3.0])


def ball(centre, radius, shape=(26, 24, 22), spacing=(1.0, 1.0, 1.0)):
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1)
    return np.linalg.norm((grid - centre) * spacing, axis=-1) < radius


def blobs(seed):
    rng = np.random.default_rng(seed)
    return [ball(c, r, (12, 10, 8)) for c, r in zip(rng.uniform(2, 8, (2, 3)), rng.uniform(2, 4, 2), strict=True)]


def slow_net(mask):
    """Vertices by cell and the quads of crossed edges, one cell and one edge after the other."""
    padded = np.pad(mask, 1)
    vertex = {}
    for cell in np.ndindex(*(n - 1 for n in padded.shape)):
        crossed = []
        for corner in itertools.product((0, 1), repeat=3):
            for axis in range(3):
                if corner[axis] == 0:
                    start = np.array(cell) + corner
                    end = start + np.eye(3, dtype=int)[axis]
                    if padded[tuple(start)] != padded[tuple(end)]:
                        crossed.append((start + end) / 2)
        if crossed:
            vertex[cell] = (np.mean(crossed, axis=0) - 1) * SPACING
    quads = []
    for start in np.ndindex(*padded.shape):
        for axis in range(3):
            end = tuple(np.array(start) + np.eye(3, dtype=int)[axis])
            if end[axis] < padded.shape[axis] and padded[start] != padded[end]:
                one, two = (np.eye(3, dtype=int)[other] for other in range(3) if other != axis)
                around = (start, start - one, start - one - two, start - two)
                quads.append([vertex[tuple(np.array(c))] for c in around])
    return [tri for q in quads for tri in ((q[0], q[1], q[2]), (q[0], q[2], q[3]))]


def slow_distance(point, triangle):
    """Smallest distance to a fine raster of a triangle."""
    s = np.linspace(0, 1, 61)
    u, v = np.meshgrid(s, s)
    keep = u + v <= 1 + 1e-9
    a, b, c = triangle
    places = a + u[keep][:, None] * (b - a) + v[keep][:, None] * (c - a)
    return np.linalg.norm(places - point, axis=1).min()


def to_triangles(points, triangles):
    """Distance of each point (…, 3) to a triangle (…, 3, 3)."""
    sides = np.roll(triangles, -1, axis=-2) - triangles
    normal = np.cross(sides[..., 0, :], sides[..., 1, :])
    from_corners = points[..., None, :] - triangles
    outwards = np.cross(sides, normal[..., None, :])
    within = ((outwards * from_corners).sum(axis=-1) <= 0).all(axis=-1)
    along = (from_corners * sides).sum(axis=-1) / (sides**2).sum(axis=-1)
    rest = from_corners - np.clip(along, 0.0, 1.0)[..., None] * sides
    to_plane = (from_corners[..., 0, :] * normal).sum(axis=-1) ** 2 / (normal**2).sum(axis=-1)
    return np.sqrt(np.where(within, to_plane, (rest**2).sum(axis=-1).min(axis=-1)))


def test_net_and_distances_are_those_of_loops():
    for seed in range(2):
        mask = blobs(seed)[0]
        found = surface_net(mask.view(np.uint8), tuple(SPACING))
        np.testing.assert_allclose(
            np.sort(found.reshape(-1, 9), axis=0), np.sort(np.reshape(slow_net(mask), (-1, 9)), axis=0)
        )
    for seed in range(4):
        a, b = blobs(seed)
        found = surface_distances(a, b, SPACING)
        one, two = (np.array(slow_net(m)) for m in (a, b))
        there = to_triangles(one.mean(axis=1)[:, None], two[None]).min(axis=1)
        np.testing.assert_allclose(np.sort(found.there[0]), np.sort(there), atol=1e-9)
        area = np.linalg.norm(np.cross(one[:, 1] - one[:, 0], one[:, 2] - one[:, 0]), axis=1) / 2
        assert found.there[1].sum() == pytest.approx(area.sum())
    rng = np.random.default_rng(3)
    points, triangles = rng.normal(size=(60, 3)), rng.normal(size=(60, 3, 3))
    slow = np.array([slow_distance(p, t) for p, t in zip(points, triangles, strict=True)])
    found = np.array([distance_to_surface(p[None], t[None])[0] for p, t in zip(points, triangles, strict=True)])
    np.testing.assert_allclose(found, slow, atol=0.05)
    assert (found <= slow + 1e-12).all()
    np.testing.assert_allclose(found, to_triangles(points, triangles), atol=1e-12)


def test_the_nearest_triangle_is_found_among_all():
    rng = np.random.default_rng(4)
    points = np.concatenate([rng.normal(size=(700, 3)), 30 * rng.normal(size=(300, 3))])
    corners = rng.normal(size=(900, 1, 3)) + 0.1 * rng.normal(size=(900, 3, 3))
    corners[:50, 1] = corners[:50, 0]  # triangles without an area
    found = distance_to_surface(points, corners)
    with np.errstate(invalid="ignore", divide="ignore"):
        slow = np.nanmin(to_triangles(points[:, None], corners[None, 50:]), axis=1)
        edges = np.linalg.norm(points[:, None] - corners[None, :50, 0], axis=-1).min(axis=1)
    assert (found <= np.minimum(slow, edges) + 1e-12).all()
    whole = corners[50:]
    np.testing.assert_allclose(distance_to_surface(points, whole), slow, atol=1e-12)
    with kernel_threads(3):
        assert distance_to_surface(points, corners).tobytes() == found.tobytes()


def test_formulas_larger_directions_and_empty_masks():
    # Mean over a sphere of the distance to one shifted by s is about s / 2; border voxels know 0 and 1 alone.
    for shift in (0.25, 0.5):
        found = surface_distances(ball((13, 12, 11), 8.0), ball((13 + shift, 12, 11), 8.0), np.ones(3))
        assert found.mean_mm == pytest.approx(shift / 2, abs=0.08)
        assert found.hd95_mm < 1.0
    found = surface_distances(ball((13, 12, 11), 5.0), ball((13, 12, 11), 7.5), np.ones(3))
    assert found.mean_mm == pytest.approx(2.5, abs=0.12)
    assert found.hd95_mm == pytest.approx(2.5, abs=0.5)  # a ball of five voxels is not round
    assert found.dice(1.5) == 0.0
    assert found.dice(3.5) == 1.0
    fine = ball((26, 12, 11), 8.0, (52, 24, 22), (0.5, 1.0, 1.0))
    found = surface_distances(fine, fine, (0.5, 1.0, 1.0))
    assert found.there[1].sum() == pytest.approx(4 * np.pi * 64, rel=0.08)
    a, b = np.zeros((2, 20, 6, 6), bool)
    a[4:10], b[6:12] = True, True
    assert surface_distances(a, b, (2.0, 1.0, 1.0)).hd95_mm == pytest.approx(4.0)
    # Two slabs that share one face: half of the two large faces lies within the tolerance.
    a, b = np.zeros((2, 12, 40, 40), bool)
    a[2:4, 2:38, 2:38], b[2:8, 2:38, 2:38] = True, True
    found = surface_distances(a, b, np.ones(3))
    assert found.dice(0.5) == pytest.approx(0.5, abs=0.08)
    assert found.dice(5.0) == 1.0
    small, large = ball((13, 12, 11), 3.0), ball((13, 12, 11), 3.0)
    large[20:24, 10:14, 9:13] = True  # an island that the other lacks
    found = surface_distances(small, large, np.ones(3))
    assert found.there[0].max() == pytest.approx(0.0, abs=1e-9)
    assert found.hd95_mm > 4.0
    assert surface_distances(large, small, np.ones(3)).hd95_mm == pytest.approx(found.hd95_mm)
    full, empty = np.ones((3, 3, 3), bool), np.zeros((3, 3, 3), bool)
    for a, b in [(full, empty), (empty, full), (empty, empty)]:
        found = surface_distances(a, b, SPACING)
        assert np.isnan([found.hd95_mm, found.mean_mm, found.dice(2.0)]).all()
