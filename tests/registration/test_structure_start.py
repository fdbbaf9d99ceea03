"""The start from structure maps lays structures on each other, without folds, and against a slow reference."""

from dataclasses import replace

import numpy as np
import pytest

from regweave.errors import RegweaveWarning
from regweave.registration import landmarks as structures
from regweave.spatial.warp import warp_points
from regweave.types import Geometry, Image, ImagePair, StructureMaps, Transform

GRID = Geometry((30, 24, 20), np.diag([3.0, 3.0, 4.0, 1.0]))
CENTRES = np.array([[20.0, 20, 20], [70, 20, 30], [45, 55, 50], [20, 50, 60]])


def places(geometry: Geometry) -> np.ndarray:
    return geometry.points(np.stack(np.meshgrid(*map(np.arange, geometry.shape), indexing="ij"), axis=-1).astype(float))


def balls(centres: np.ndarray, radius: float = 11.0) -> StructureMaps:
    """Soft balls, one a structure."""
    apart = np.sqrt(((places(GRID) - centres[:, None, None, None]) ** 2).sum(axis=-1))
    shares = np.clip((radius - apart) / 3 + 0.5, 0, 1).astype(np.float32)
    return StructureMaps(shares, GRID, tuple(range(1, len(centres) + 1)))


def pair(fixed: StructureMaps, moving: StructureMaps) -> ImagePair:
    still = np.zeros(GRID.shape, dtype=np.float32)
    return ImagePair(Image(still, GRID, maps=fixed), Image(still, GRID, maps=moving))


def moved(found: ImagePair, points: np.ndarray) -> np.ndarray:
    shifted = points + (warp_points(points, Transform(found.initial_field)) - points if found.initial_field else 0)
    return shifted @ found.initial[:3, :3].T + found.initial[:3, 3]


def test_landmarks_affine_and_displacement_are_those_written_out(monkeypatch):
    maps = balls(CENTRES)
    maps.shares[0, -2:, -2:, -2:] = 1  # a false island elsewhere
    points, found = structures.landmarks_of(maps)
    assert found.all()
    np.testing.assert_allclose(points[:, 0], CENTRES, atol=0.6)
    spread = points[:, 1:4] - points[:, :1]
    np.testing.assert_allclose(spread, np.broadcast_to(np.eye(3) * 11 / np.sqrt(5), (4, 3, 3)), atol=1.0)
    rng = np.random.default_rng(1)
    turned = np.array([[0, 3.0, 0, 5], [-2, 0, 0, 70], [0, 0, 4, -3], [0, 0, 0, 1]])
    grid = Geometry((9, 8, 7), turned)
    points, vectors, reach = grid.points(rng.uniform(0, 7, (6, 3))), rng.normal(size=(6, 3)), 9.0
    found = structures.smooth_displacement(points, vectors, grid, reach)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-((a - b) ** 2).sum() / (2 * reach**2)))

    among = np.array([[kernel(a, b) for b in points] for a in points])
    weights = np.linalg.solve(among + structures.NOISE * np.eye(6), vectors)
    for index in ((0, 0, 0), (4, 7, 2), (8, 3, 6)):
        here = grid.points(np.array(index, dtype=float))
        slow = sum(w * kernel(here, p) for w, p in zip(weights, points, strict=True))
        np.testing.assert_allclose(found[:, *index], slow, atol=1e-5)
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 80, (21, 3))
    truth = np.eye(4)
    truth[:3] += rng.normal(0, 0.1, (3, 4))
    there = points @ truth[:3, :3].T + truth[:3, 3]
    monkeypatch.setattr(structures, "STIFF", 0.0)
    np.testing.assert_allclose(structures.fitted_affine(points, there), truth, atol=1e-9)


def test_structures_come_to_lie_on_each_other_without_folds():
    there = CENTRES + np.array([[14.0, 0, 0], [-8, 10, 0], [0, -12, 12], [8, 0, -14]])
    given = pair(balls(CENTRES), balls(there))
    found = structures.started_from_structures(given)
    before = np.linalg.norm(CENTRES - there, axis=1)
    after = np.linalg.norm(moved(found, CENTRES) - there, axis=1)
    assert (after < 0.4 * before).all()
    jacobian = np.eye(3) + np.moveaxis(
        np.stack(
            [np.stack(np.gradient(c)) for c in found.initial_field.data / np.array([3, 3, 4])[:, None, None, None]]
        ),
        (0, 1),
        (-2, -1),
    )
    assert np.linalg.det(jacobian).min() > 0
    assert given.initial_field is None
    drawn = balls(CENTRES + 9)
    given = pair(balls(CENTRES), balls(CENTRES))
    given = given.with_moving(label_maps=drawn)
    found = structures.started_from_structures(given)
    np.testing.assert_allclose(moved(found, CENTRES) - CENTRES, 9, atol=1.5)


def test_wild_fits_and_too_few_structures_are_not_followed():
    crossed = CENTRES[[1, 0, 3, 2]]  # structures change places: no smooth map without folds does that
    found = structures.composed_displacement(CENTRES, crossed, GRID)
    along = found.data / np.array([3, 3, 4])[:, None, None, None]
    slopes = np.stack([np.stack(np.gradient(c)) for c in along])
    assert np.linalg.det(np.eye(3) + np.moveaxis(slopes, (0, 1), (-2, -1))).min() > 0
    squeezed = CENTRES.mean(axis=0) + 0.3 * (CENTRES - CENTRES.mean(axis=0))
    given = pair(balls(CENTRES, 12.0), balls(squeezed, 7.0))
    with pytest.warns(RegweaveWarning, match="W210: start from structures rejected"):
        found = structures.started_from_structures(given)
    assert found is given
    for empty in [(1, 2, 3), (0, 1, 2, 3)]:
        fixed = balls(CENTRES)
        shares = fixed.shares.copy()
        shares[list(empty)] = 0.2  # nothing that is likely
        given = pair(replace(fixed, shares=shares), fixed)
        with pytest.warns(RegweaveWarning, match="W210: .* rejected .structures found in both images"):
            found = structures.started_from_structures(given)
        assert found is given
