"""Maps are rigid inside parts, without folds, and nearly as they were elsewhere; against slow references."""

import numpy as np
import pytest
from scipy import ndimage, sparse
from scipy.sparse.linalg import spsolve

from regweave.spatial import rigid
from regweave.spatial.rigid import faded, keep_rigid, motions_of, rigid_fit
from regweave.spatial.warp import determinant, inverse_errors_mm, invert, warp_labels, warp_points
from regweave.types import Field, Geometry, LabelMap, Transform

FIXED = Geometry((36, 32, 24), np.array([[0, 3.0, 0, 5], [-3, 0, 0, 110], [0, 0, 4, -3], [0, 0, 0, 1]]))
MOVING = Geometry((40, 44, 30), np.array([[2.5, 0, 0, 0], [0, 2.5, 0, 0], [0, 0, 3, -2], [0, 0, 0, 1]]))


def places(grid):
    return grid.points(np.moveaxis(np.indices(grid.shape), 0, -1).astype(float))


def bent(amplitude=3.0):
    """A map that bends everything, with a start that turns and shifts."""
    p = places(FIXED)
    u = amplitude * np.stack([np.sin(p[..., 1] / 14), np.sin(p[..., 2] / 11), np.cos(p[..., 0] / 13)])
    affine = np.eye(4)
    affine[:3, :3] = [[np.cos(0.05), -np.sin(0.05), 0], [np.sin(0.05), np.cos(0.05), 0], [0, 0, 1]]
    affine[:3, 3] = [1.0, -2, 1]
    return Transform(Field(u.astype(np.float32), FIXED), affine)


def bars(*boxes):
    data = np.zeros(MOVING.shape, dtype=np.int32)
    for n, box in enumerate(boxes, start=1):
        data[tuple(slice(*side) for side in box)] = n
    return LabelMap(data, MOVING)


TWO = bars(((8, 28), (12, 16), (10, 14)), ((8, 28), (26, 30), (12, 16)))


def not_rigid_mm(transform, parts, value):
    """Largest distance from the best rigid motion over the voxels that show a part, and over its own voxels.

    Of these count those that the fixed image shows and that the numerical inverse reaches, nearly all.
    """
    back, grid = invert(transform, parts.geometry), transform.field.geometry
    own = warp_points(places(parts.geometry)[parts.data == value], back[0])
    reached = back[1][parts.data == value] < 0.01
    assert reached.mean() > 0.98
    within = ((grid.index(own) >= 0) & (grid.index(own) <= np.array(grid.shape) - 1)).all(axis=1)
    shown = places(grid)[warp_labels(parts, transform).data == value]
    out = []
    for points in (shown, own[reached & within]):
        there = warp_points(points, transform)
        motion = rigid_fit(points, there)
        out.append(np.linalg.norm(points @ motion[:3, :3].T + motion[:3, 3] - there, axis=1).max())
    return max(out)


def test_a_rigid_fit_is_that_of_least_squares_and_a_rigid_map_stays():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 3)) * 10
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    found = rigid_fit(points, points @ turn.T + [1.0, 2, 3])
    np.testing.assert_allclose(found[:3, :3], turn, atol=1e-9)
    np.testing.assert_allclose(found[:3, 3], [1, 2, 3], atol=1e-9)
    mirrored = rigid_fit(points, points * [1, 1, -1])
    assert np.linalg.det(mirrored[:3, :3]) == pytest.approx(1.0)
    still = Transform(Field.zero(FIXED), bent().affine)
    after, was, _ = keep_rigid(still, TWO)
    assert max(was.values()) < 1e-5
    np.testing.assert_allclose(after.field.data, 0, atol=1e-4)


def test_parts_are_rigid_and_nothing_folds():
    before = bent()
    after, was, folding = keep_rigid(before, TWO)
    assert folding == set()
    assert min(was.values()) > 0.5
    for value in (1, 2):
        assert not_rigid_mm(before, TWO, value) > 1.0
        assert not_rigid_mm(after, TWO, value) < 0.02
    assert float(determinant(after.field).min()) > 0
    np.testing.assert_array_equal(after.affine, before.affine)
    back = invert(after, MOVING)[0]
    assert np.nanmean(inverse_errors_mm(after, back)) < 0.1
    # A motion is the best fit of what was found there, and far away nothing changes.
    apart = ndimage.distance_transform_edt(warp_labels(TWO, after).data == 0, sampling=FIXED.spacing_mm)
    change = np.linalg.norm(after.field.data - before.field.data, axis=0)
    assert change[apart > 35].max() < 0.02
    motion = motions_of(before, TWO)[0][1]
    points = places(FIXED)[warp_labels(TWO, after).data == 1]
    np.testing.assert_allclose(warp_points(points, after), points @ motion[:3, :3].T + motion[:3, 3], atol=1e-3)


def test_parts_at_the_border_or_that_touch_and_strong_bending():
    parts = bars(((34, 40), (0, 6), (0, 30)), ((20, 22), (20, 22), (15, 17)), ((0, 3), (0, 3), (0, 30)))
    after, was, folding = keep_rigid(bent(), parts)
    assert set(was) == {1, 2}  # the fixed image does not show the third
    assert folding == set()
    assert np.isfinite(after.field.data).all()
    assert not_rigid_mm(after, parts, 1) < 0.02
    assert float(determinant(after.field).min()) > 0
    after, _, folding = keep_rigid(bent(6.0), TWO)
    assert folding == set()
    assert float(determinant(after.field).min()) >= rigid.LEAST_VOLUME
    for value in (1, 2):
        assert not_rigid_mm(after, TWO, value) < 0.02
    parts = bars(((8, 28), (18, 22), (10, 16)), ((8, 28), (22, 26), (10, 16)))
    after, _, folding = keep_rigid(bent(), parts)
    assert folding == set()
    assert float(determinant(after.field).min()) >= rigid.LEAST_VOLUME
    for value in (1, 2):
        points = places(FIXED)[warp_labels(parts, after).data == value]
        there = warp_points(points, after)
        motion = rigid_fit(points, there)
        np.testing.assert_allclose(points @ motion[:3, :3].T + motion[:3, 3], there, atol=0.02)


def test_motions_that_tear_tissue_are_given_up(monkeypatch):
    """Two bars that exchange their places."""
    one, other = np.eye(4), np.eye(4)
    one[1, 3], other[1, 3] = -35.0, 35.0
    monkeypatch.setattr(rigid, "motions_of", lambda *_: ({1: one, 2: other}, {1: 1.0, 2: 1.0}))
    coarse = Geometry((18, 16, 12), FIXED.affine @ np.diag([2.0, 2.0, 2.0, 1.0]))
    after, _, folding = keep_rigid(Transform(Field.zero(coarse)), TWO)
    assert folding
    assert float(determinant(after.field).min()) > 0


def test_a_membrane_is_the_solution_of_its_equation():
    """Against the sparse system solved directly: known values, no flux through the faces, and a fade."""
    grid = Geometry((14, 12, 10), np.diag([3.0, 3.0, 4.0, 1.0]))
    known = np.zeros(grid.shape, dtype=bool)
    known[3:6, 4:7, 2:8], known[10, 9, 4:6] = True, True
    values = np.random.default_rng(0).uniform(1, 3, grid.shape).astype(np.float32)
    fade = 12.0
    number = np.arange(known.size).reshape(known.shape)
    system, right = sparse.lil_matrix((known.size, known.size)), np.zeros(known.size)
    for index in np.ndindex(known.shape):
        at = number[index]
        system[at, at] = 1.0
        if known[index]:
            right[at] = values[index]
            continue
        system[at, at] = 1 / fade**2
        for axis, mm in enumerate(grid.spacing_mm):
            for way in (-1, 1):
                near = list(index)
                near[axis] += way
                if 0 <= near[axis] < known.shape[axis]:
                    system[at, at] += 1 / mm**2
                    system[at, number[tuple(near)]] -= 1 / mm**2
    slow = spsolve(system.tocsr(), right).reshape(known.shape)
    found = faded(np.stack([values] * 3), known, grid, fade)[1]
    np.testing.assert_array_equal(found[known], values[known])
    assert np.abs(found - slow).max() < 0.25  # of 3; the relaxation ends before it is exact
    assert np.abs(found - slow).mean() < 0.1
