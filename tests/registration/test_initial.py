import warnings
from itertools import permutations

import numpy as np
import pytest
from scipy import ndimage

from regweave.errors import RegweaveWarning, UsageError
from regweave.io import read_image, read_labels
from regweave.measures.scores import dice
from regweave.registration.initial import PyramidLevel, coarser, initial_affine
from regweave.spatial.warp import warp_labels
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry, Transform, Volume

GRID = Geometry((48, 40, 36), np.diag([3.0, 3.5, 4.0, 1.0]))


def turned(angles):
    cx, cy, cz = np.cos(angles)
    sx, sy, sz = np.sin(angles)
    rx = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    ry = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    rz = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return rz @ ry @ rx


def head(geometry, to_head, *, invert=False):
    """Render an ellipsoid with a nose and unequal cavities, defined in millimetres, on any grid.

    Affine maps turn an ellipsoid into itself, so it is the rest that fixes the rotation.
    """
    index = np.argwhere(np.ones(geometry.shape)).astype(float)
    p = geometry.points(index) @ to_head[:3, :3].T + to_head[:3, 3]

    def ball(centre, radii):
        return np.clip(12 * (1 - np.linalg.norm((p - centre) / radii, axis=1)), 0, 1)

    value = np.maximum(ball([0, 0, 0], [46, 52, 42]), ball([8, -48, -12], [14, 18, 12]))
    value -= 0.5 * ball([14, 10, 5], [14, 26, 16]) + 0.3 * ball([-18, -15, -8], [18, 12, 20])
    if invert:
        value = np.where(value > 0.05, 1.3 - value, 0)
    return Volume(value.reshape(geometry.shape).astype(np.float32), geometry)


@pytest.fixture(scope="module")
def planted():
    """A pair and the map between them: 15 degrees, 10 % of scale, shear and a far origin."""
    to_head = np.eye(4)
    to_head[:3, 3] = -GRID.points((np.array(GRID.shape) - 1) / 2)
    truth = np.eye(4)
    truth[:3, :3] = turned([0.26, -0.1, 0.15]) @ np.diag([1.1, 0.93, 1.05])
    truth[0, 1] += 0.04
    truth[:3, 3] = [900.0, -400.0, 250.0]
    affine = np.eye(4)
    affine[:3, :3] = turned([0.1, 0.2, -0.1]) * [3.2, 3.0, 3.0]
    centre = truth @ [*GRID.points((np.array(GRID.shape) - 1) / 2), 1]
    affine[:3, 3] = centre[:3] - affine[:3, :3] @ [25, 22, 24]
    moving_grid = Geometry((52, 46, 50), affine)
    return head(GRID, to_head), (moving_grid, to_head @ np.linalg.inv(truth)), truth


def error_mm(found, truth):
    corners = np.concatenate([GRID.corners_mm(), np.ones((8, 1))], axis=1)
    middle = (corners + corners.mean(axis=0)) / 2  # the head's own box: half the grid
    return np.linalg.norm(middle @ (found - truth).T, axis=1).max()


def test_planted_motions_are_recovered_within_a_voxel(planted):
    for invert, tolerance_mm in [(False, 1.0), (True, 3.0)]:
        fixed, moving, truth = planted
        found = initial_affine(fixed, head(*moving, invert=invert), "affine")
        assert error_mm(found, truth) < tolerance_mm
    for shift_mm in [(4.0, -6.0, 5.0), (700.0, -300.0, 120.0)]:
        fixed, moving, truth = planted_rigid(np.array(shift_mm))
        found = initial_affine(fixed, moving, "rigid")
        np.testing.assert_allclose(found[:3, :3] @ found[:3, :3].T, np.eye(3), atol=1e-9)
        assert error_mm(found, truth) < 1.0


def planted_rigid(shift_mm):
    """A pair and the rigid map between them: 8 degrees, and a shift of the couch."""
    to_head, truth = np.eye(4), np.eye(4)
    to_head[:3, 3] = -GRID.points((np.array(GRID.shape) - 1) / 2)
    truth[:3, :3] = turned([0.1, -0.08, 0.05])
    centre = -to_head[:3, 3]
    truth[:3, 3] = centre - truth[:3, :3] @ centre + shift_mm
    grid = Geometry((52, 46, 50), np.array([[3.2, 0, 0, -5], [0, 3.0, 0, 3], [0, 0, 3.0, -4], [0, 0, 0, 1.0]]))
    affine = grid.affine.copy()
    affine[:3, 3] += shift_mm
    return head(GRID, to_head), head(Geometry(grid.shape, affine), to_head @ np.linalg.inv(truth)), truth


def test_a_rigid_fit_that_turns_the_patient_over_is_refused(monkeypatch):
    fixed, moving, _ = planted_rigid(np.array([4.0, -6.0, 5.0]))
    upside = np.diag([-1.0, -1.0, 1.0, 1.0])
    np.testing.assert_array_equal(initial_affine(fixed, fixed, "rigid"), np.eye(4))  # nothing is gained
    monkeypatch.setattr(PyramidLevel, "fit", lambda self, affine, rigid: upside)
    monkeypatch.setattr(PyramidLevel, "cost", lambda self, affine: 0.1 if affine is upside else 0.5)
    with pytest.warns(RegweaveWarning, match=r"W216.*180 degrees"):
        found = initial_affine(fixed, moving, "rigid")
    np.testing.assert_array_equal(found, np.eye(4))


def test_headers_centres_and_single_slices(planted):
    fixed, moving, truth = planted
    found = initial_affine(fixed, head(*moving), "moments")
    np.testing.assert_array_equal(found[:3, :3], np.eye(3))
    assert error_mm(found, truth) < 30.0
    assert error_mm(np.eye(4), truth) > 900.0
    fixed, _, _ = planted
    np.testing.assert_array_equal(initial_affine(fixed, fixed, "none"), np.eye(4))
    fixed, moving = (np.full(GRID.shape, -1024, np.float32) for _ in range(2))
    fixed[10:30, 10:30, 8:24], moving[14:34, 7:27, 10:26] = 40.0, 40.0
    fixed[15:20, 15:20, 12:15], moving[19:24, 12:17, 14:17] = 900.0, 900.0
    found = initial_affine(Volume(fixed, GRID), Volume(moving, GRID), "moments")
    np.testing.assert_allclose(found[:3, 3], [4 * 3.0, -3 * 3.5, 2 * 4.0], atol=1e-3)
    image = Volume(np.zeros((4, 4, 4), np.float32), Geometry((4, 4, 4), np.eye(4)))
    with pytest.raises(UsageError, match=r"'similarity'.*affine, moments, none, rigid"):
        initial_affine(image, image, "similarity")
    rng = np.random.default_rng(1)
    grid = Geometry((60, 50, 1), np.eye(4))
    picture = ndimage.gaussian_filter(rng.normal(size=(60, 50)), 4)
    window = np.hanning(60)[:, None] * np.hanning(50)
    data = ((picture - picture.min()) * window)[..., None].astype(np.float32)
    moved = np.roll(data, (3, -2), axis=(0, 1))
    found = initial_affine(Volume(data, grid), Volume(moved, grid), "affine")
    np.testing.assert_allclose(found[:2, 3] + found[:2, :2] @ [30, 25] - [30, 25], [3, -2], atol=0.3)
    np.testing.assert_allclose(found[2], [0, 0, 1, 0], atol=1e-6)


def test_the_thread_count_does_not_change_a_bit(planted):
    fixed, moving, _ = planted
    image = head(*moving)
    found = []
    for n in (1, 2, 3):
        with kernel_threads(n):
            found.append(initial_affine(fixed, image, "affine").tobytes())
    assert found[0] == found[1] == found[2]


def test_fits_never_cost_more_than_their_start_and_absurd_ones_are_rejected_aloud(planted, monkeypatch):
    fixed, moving, _ = planted
    image = head(*moving)
    level = PyramidLevel(*(coarser(v, 1.0) for v in (fixed, image)))
    rng = np.random.default_rng(0)
    moments = initial_affine(fixed, image, "moments")
    for _ in range(3):
        start = moments.copy()
        start[:3] += rng.normal(scale=[0.1, 0.1, 0.1, 8.0], size=(3, 4))
        assert level.cost(level.fit(start, max_iter=3)) <= level.cost(start)
    # Noise that has no affine keeps the centres.
    flat = Volume(np.zeros(GRID.shape, np.float32), GRID)
    noise = Volume(ndimage.gaussian_filter(rng.normal(size=GRID.shape), 2).astype(np.float32), GRID)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = initial_affine(noise, flat, "affine")
    np.testing.assert_array_equal(found[:3, :3], np.eye(3))
    assert all(issubclass(w.category, RegweaveWarning) for w in caught)
    monkeypatch.setattr(PyramidLevel, "fit", lambda self, affine: affine @ np.diag([0.3, 0.3, 0.3, 1.0]))
    with pytest.warns(RegweaveWarning, match="W210"):
        found = initial_affine(fixed, image, "affine")
    np.testing.assert_array_equal(found, moments)


@pytest.mark.data
def test_brains_overlap_more_after_the_affine_fit(data_root):
    scores = {"none": [], "affine": []}
    for a, b in permutations(("IBSR_01", "IBSR_05"), 2):
        (fixed, fixed_labels), (moving, labels) = (
            (read_image(folder / "image.nii.gz"), read_labels(folder / "labels.nii.gz"))
            for folder in (data_root / "ibsr18_64" / c for c in (a, b))
        )
        for method, rows in scores.items():
            transform = Transform(Field.zero(fixed.geometry), initial_affine(fixed, moving, method))
            rows.append(list(dice(fixed_labels, warp_labels(labels, transform), [2, 3]).values()))
    gain = np.mean(scores["affine"], axis=0) - np.mean(scores["none"], axis=0)
    assert (gain > 0.02).all()
