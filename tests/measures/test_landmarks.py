import numpy as np
import pytest

from regweave.errors import RegweaveError, RegweaveWarning
from regweave.io.points import write_points
from regweave.measures.landmarks import (
    LandmarkPairs,
    LandmarkScore,
    inverted_points,
    score_landmarks,
    target_registration_errors_mm,
)
from regweave.spatial.warp import warp_points
from regweave.types import Field, Geometry, Transform


def linear_field():
    """u(p) = 0.1·(p_y, p_z, p_x) on a grid of 2 mm voxels with an offset origin."""
    affine = np.array([[2.0, 0, 0, -5], [0, 2, 0, 3], [0, 0, 2, 1], [0, 0, 0, 1]])
    grid = Geometry((12, 11, 10), affine)
    p = grid.points(np.moveaxis(np.indices(grid.shape), 0, -1).astype(np.float64))
    return Field(np.ascontiguousarray(np.moveaxis(0.1 * p[..., [1, 2, 0]], -1, 0), dtype=np.float32), grid)


def test_landmarks_before_and_after_against_a_loop():
    rng = np.random.default_rng(0)
    fixed = rng.uniform([-4, 4, 2], [15, 20, 17], (40, 3))
    moving = fixed + rng.normal(size=fixed.shape)
    affine = np.eye(4)
    affine[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    affine[:3, 3] = [1, 2, 3]
    errors = target_registration_errors_mm(fixed, moving, Transform(linear_field(), affine))
    expected = []
    for (x, y, z), q in zip(fixed, moving, strict=True):
        warped = np.array([x + 0.1 * y, y + 0.1 * z, z + 0.1 * x])
        there = np.array([-warped[1] + 1, warped[0] + 2, warped[2] + 3])
        expected.append(np.sqrt(((there - q) ** 2).sum()))
    np.testing.assert_allclose(errors, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(1, 3\)"):
        target_registration_errors_mm([[0, 0, 0], [1, 1, 1]], [[0, 0, 0]], Transform(linear_field()))
    # A start of nothing and a transform that is right for the first landmark and 2 mm off for the second.
    fixed = np.array([[4.0, 5, 6], [10, 10, 10]])
    moving = fixed + np.array([[3.0, 0, 0], [5.0, 0, 0]])
    score = score_landmarks(fixed, moving, ["carina", ""], shift((0, 0, 0)), shift((3, 0, 0)), shift((-3, 0, 0)))
    assert [point.name for point in score.points] == ["carina", "2"]
    errors = [(point.before_mm, point.after_mm) for point in score.points]
    np.testing.assert_allclose(errors, [(3.0, 0.0), (5.0, 2.0)], atol=1e-6)
    assert score.after_mm == pytest.approx({"mean": 1.0, "p95": 1.9, "max": 2.0})
    np.testing.assert_allclose([point.start_mm for point in score.points], moving)
    np.testing.assert_allclose([point.warped_mm for point in score.points], moving - [3.0, 0, 0], atol=1e-6)
    assert "mean 4.00 → 1.00 mm, largest 5.00 → 2.00 mm" in score.words()
    assert LandmarkScore.model_validate(score.content()) == score
    start = Transform(linear_field(), np.diag([1.0, 1.0, 1.0, 1.0]))
    points = np.array([[0.0, 12.0, 8.0], [5.0, 15.0, 12.0]])
    np.testing.assert_allclose(inverted_points(warp_points(points, start), start), points, atol=1e-3)
    with pytest.warns(RegweaveWarning, match="W218: landmarks far lie outside"):
        score_landmarks([[-9.0, 5, 5]], [[0.0, 0, 0]], ["far"], *(shift((0, 0, 0)),) * 3)


def shift(mm, grid=None):
    grid = grid or Geometry((20, 20, 20), np.eye(4))
    data = np.broadcast_to(np.array(mm, dtype=np.float32)[:, None, None, None], (3, *grid.shape))
    return Transform(Field(np.ascontiguousarray(data), grid))


def test_landmark_files_meet_by_label_or_by_order_or_are_refused(tmp_path):
    points = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    write_points(tmp_path / "f.csv", points, ["a", "b", "c"])
    write_points(tmp_path / "m.mrk.json", points[::-1] + 1, ["c", "b", "a"])
    pairs = LandmarkPairs.read(tmp_path / "f.csv", tmp_path / "m.mrk.json")
    np.testing.assert_allclose(pairs.moving, points + 1)
    assert list(pairs.names) == ["a", "b", "c"]
    assert len(pairs.sha256["fixed_points"]) == 64
    for names in (None, ["F"] * 3):  # no label, or one for all: the order counts
        write_points(tmp_path / "one.csv", points, names)
        write_points(tmp_path / "two.fcsv", points + 2, names)
        np.testing.assert_allclose(LandmarkPairs.read(tmp_path / "one.csv", tmp_path / "two.fcsv").moving, points + 2)
    for names, others in [
        ("a-c-", "c-a-"), ("abcd", "DCBA"), ("abcd", "----"), ("abcd", "abca"), ("aabb", "aabb"), ("abc-", "abc-"),
        ("abcd", "abc"), ("aaaa", "bbbb"),
    ]:  # fmt: skip
        for file, labels in (("f.csv", names), ("m.csv", others)):
            points = np.arange(3.0 * len(labels)).reshape(-1, 3)
            write_points(tmp_path / file, points, [label.strip("-") for label in labels])
        shown = [", ".join(repr(label.strip("-")) for label in labels) for labels in (others, names)]
        with pytest.raises(RegweaveError, match=f"E116.*its labels {shown[0]} do not pair with the labels {shown[1]}"):
            LandmarkPairs.read(tmp_path / "f.csv", tmp_path / "m.csv")
    for wrong in ["fewer", "other labels", "one alone", "shapes"]:
        points = np.arange(6.0).reshape(2, 3)
        first, second = tmp_path / "f.csv", tmp_path / "m.csv"
        write_points(first, points, ["a", "b"])
        write_points(second, points[:1] if wrong == "fewer" else points, ["x"] if wrong == "fewer" else ["a", "z"])
        given = {"one alone": (first, None), "shapes": (points, points[:1])}.get(wrong, (first, second))
        with pytest.raises(RegweaveError, match="E116"):
            LandmarkPairs.read(*given)
