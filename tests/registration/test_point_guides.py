"""Maps are drawn to landmarks as far as their accuracy allows, against the regression written out, without folds."""

import numpy as np
import pytest

from regweave.errors import RegweaveWarning, UsageError
from regweave.registration import landmarks as point_guides
from regweave.registration.landmarks import PointGuides, contradicting, drawn, likeliest
from regweave.spatial.warp import determinant, resample, warp_points
from regweave.types import Field, Geometry, Image, ImagePair, Transform

GRID = Geometry((30, 24, 20), np.array([[0, 3.0, 0, 5], [-3, 0, 0, 70], [0, 0, 4, -3], [0, 0, 0, 1]]))
REACHES = [90.0 * share for share in point_guides.REACHES]


def points_in(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return GRID.points(rng.uniform(3, np.array(GRID.shape) - 4.0, (n, 3)))


def smooth(points: np.ndarray, amplitude: float = 6.0) -> np.ndarray:
    return amplitude * np.sin(points[:, [1, 2, 0]] / 25.0)


def test_a_small_displacement_is_the_regression_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    points, vectors = points_in(7), np.random.default_rng(1).normal(size=(7, 3)) * 0.4
    reach, size, accuracy = 15.0, 2.0, 0.5
    monkeypatch.setattr(point_guides, "likeliest", lambda *_: (reach, size))
    found = drawn(Field.zero(GRID), points, points + vectors, accuracy, [])

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return size**2 * float(np.exp(-((a - b) ** 2).sum() / (2 * reach**2)))

    among = np.array([[kernel(a, b) for b in points] for a in points])
    weights = np.linalg.solve(among + accuracy**2 * np.eye(7), vectors)
    for index in ((0, 0, 0), (14, 7, 12), (28, 13, 6)):
        here = GRID.points(np.array(index, dtype=float))
        slow = sum(w * kernel(here, p) for w, p in zip(weights, points, strict=True))
        np.testing.assert_allclose(found.data[:, *index], slow, atol=0.03)


def test_reach_and_size_are_the_likeliest() -> None:
    """Against the logarithm of the normal density of all numbers, with its full covariance."""
    points = points_in(12)
    vectors = smooth(points)
    reach, size = likeliest(points, vectors, 0.3, REACHES)

    def cost(reach: float, size: float) -> float:
        apart = ((points[:, None] - points[None]) ** 2).sum(-1)
        covariance = size**2 * np.exp(-apart / (2 * reach**2)) + 0.3**2 * np.eye(12)
        return float(3 * np.linalg.slogdet(covariance)[1] + np.trace(vectors.T @ np.linalg.inv(covariance) @ vectors))

    assert cost(reach, size) == pytest.approx(min(cost(r, s) for r in REACHES for s in point_guides.SIZES_MM))


def test_points_are_met_as_far_as_their_accuracy_and_folds_allow():
    points, others = points_in(60), points_in(20, seed=5)
    found = Transform(drawn(Field.zero(GRID), points, points + smooth(points), 0.1, REACHES))
    assert np.linalg.norm(warp_points(points, found) - points - smooth(points), axis=1).max() < 0.3
    left = np.linalg.norm(warp_points(others, found) - others - smooth(others), axis=1)
    assert left.mean() < 0.25 * np.linalg.norm(smooth(others), axis=1).mean()
    points, noise = points_in(15), np.random.default_rng(2).normal(size=(15, 3))
    found = drawn(Field.zero(GRID), points, points + noise, 1.0, REACHES)
    assert np.abs(found.data).max() < 0.5 * np.abs(noise).max()
    exact = drawn(Field.zero(GRID), points, points + noise, 0.05, REACHES)
    assert np.abs(exact.data).max() > 0.7 * np.abs(noise).max()
    points = np.array([[20.0, 20, 20], [24, 20, 20], [20.0, 20, 20]])
    targets = points + np.array([[12.0, 0, 0], [-12, 0, 0], [0, 9, 0]])
    found = drawn(Field.zero(GRID), points, targets, 0.01, REACHES)
    assert float(determinant(found).min()) >= point_guides.LEAST_VOLUME
    assert np.isfinite(found.data).all()
    still = Image(np.zeros(GRID.shape, dtype=np.float32), GRID)
    points = points_in(12)
    started = PointGuides(points, points + smooth(points), 0.2, list("abcdefghijkl")).start(ImagePair(still, still))
    assert started.initial_field is not None
    left = warp_points(points, Transform(started.initial_field)) - points - smooth(points)
    assert np.linalg.norm(left, axis=1).mean() < 0.3


def test_an_affine_part_and_knots_are_kept() -> None:
    affine = np.eye(4)
    affine[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    affine[:3, 3] = [1, 2, 3]
    coarse = Field.zero(Geometry((15, 12, 10), GRID.affine @ np.diag([2.0, 2, 2, 1])))
    points = points_in(8)
    moving = warp_points(points + smooth(points), Transform(Field.zero(GRID), affine))
    found = PointGuides(points, moving, 0.1, list("abcdefgh")).draw(Transform(Field.zero(GRID), affine, knots=coarse))
    assert np.linalg.norm(warp_points(points, found) - moving, axis=1).max() < 0.3
    assert found.knots is not None
    np.testing.assert_array_equal(found.field.data, resample(found.knots, GRID).data)
    np.testing.assert_array_equal(found.affine, affine)


def test_points_that_contradict_or_do_not_guide_are_named():
    for n in [8, 21]:
        points = points_in(n)
        vectors = smooth(points)
        assert contradicting(points, vectors, 1.0, REACHES) == {}
        vectors[3] += [0, 30.0, 0]
        found = contradicting(points, vectors, 1.0, REACHES)
        assert list(found) == [3]
        assert found[3] == pytest.approx(30.0, abs=6)
        assert contradicting(points[:5], vectors[:5], 1.0, REACHES) == {}  # too few to judge by
    still = Image(np.zeros(GRID.shape, dtype=np.float32), GRID)
    pair = ImagePair(still, still)
    points = points_in(14)
    moving = points + smooth(points, 3.0)
    points[0] += [0, 0, 500.0]
    moving[4] += [25.0, 0, 0]
    names = list("abcdefghijklmn")
    with pytest.warns(RegweaveWarning, match=r"W220: landmarks that do not guide: a \(outside an image\), e \(2\d"):
        guides, used = PointGuides.of(points, moving, names, 1.0, pair)
    assert np.flatnonzero(~used).tolist() == [0, 4]
    assert len(guides.fixed) == 12
    with pytest.raises(UsageError, match="E116: none of the 14 landmarks"):
        PointGuides.of(points + 1000, moving, names, 1.0, pair)
    with pytest.raises(UsageError, match="E116: 520 landmarks are to guide, at most 500"):
        PointGuides.of(np.tile(points[1:], (40, 1)), np.tile(points[1:], (40, 1)), names * 40, 1.0, pair)
    points = points_in(9)
    moving = points + 0.3
    moving[2] += [0, 12.0, 0]
    with pytest.warns(RegweaveWarning, match=r"W227: .*: c \(12.3 mm\); look at them"):
        found = PointGuides(points, moving, 0.1, list("abcdefghi")).draw(Transform(Field.zero(GRID)))
    assert np.linalg.norm(warp_points(points[2:3], found) - moving[2]) < 0.5
