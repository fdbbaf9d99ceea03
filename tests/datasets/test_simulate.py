"""Simulated second time points: known deformation, no folds, organs that change as planned."""

from __future__ import annotations

import numpy as np
import pytest

from regweave.datasets.simulate import MIN_JACOBIAN, ChangePlan, OrganChange, between, second_time_point
from regweave.spatial import determinant, warp_image, warp_labels, warp_points
from regweave.types import Field, Geometry, LabelMap, Transform, Volume

STILL = {"posture_mm": 0.0, "gain": 0.0, "noise": 0.0}
SHAPE, SPACING = (44, 40, 36), np.array([3.0, 3.5, 4.0])


def turned_geometry() -> Geometry:
    """Axes that are permuted and flipped against LPS, so that voxels and millimetres cannot be confused."""
    affine = np.eye(4)
    affine[:3, :3] = np.array([[0, -1, 0], [1, 0, 0], [0, 0, -1]]) @ np.diag(SPACING)
    affine[:3, 3] = (70.0, -50.0, 90.0)
    return Geometry(SHAPE, affine)


@pytest.fixture(scope="module")
def scan() -> tuple[Volume, LabelMap]:
    geometry = turned_geometry()
    index = np.indices(SHAPE)
    labels = np.zeros(SHAPE, dtype=np.uint8)
    for value, centre in ((1, (15, 20, 18)), (2, (31, 20, 18))):
        distance = (index - np.reshape(centre, (3, 1, 1, 1))) * SPACING.reshape(3, 1, 1, 1)
        labels[(distance**2).sum(axis=0) < 17.0**2] = value
    rng = np.random.default_rng(0)
    data = -1000.0 + 1000 * (labels > 0) + 40 * rng.standard_normal(SHAPE)
    return Volume(data.astype(np.float32), geometry), LabelMap(labels, geometry, {1: "a", 2: "b"})


@pytest.mark.parametrize("factor", [0.6, 0.8, 1.3, 1.8])
def test_an_organ_gets_the_volume_that_was_planned(scan, factor):
    made = second_time_point(*scan, ChangePlan((OrganChange(1, volume=(factor, factor)),), **STILL), seed=3)
    # Soft masks: voxels of a label map are too coarse to see a border move by a millimetre.
    volume = {}
    for c in (1, 2):
        mask = Volume((scan[1].data == c).astype(np.float32), scan[1].geometry)
        volume[c] = float(warp_image(mask, Transform(made.field)).data.sum() / mask.data.sum())
    assert volume[1] == pytest.approx(factor, rel=0.05)
    assert volume[2] == pytest.approx(1.0, rel=0.02)
    assert made.strength == 1.0
    # Divergence lies in the organ: inside the map from new to old stretches by 1/factor, elsewhere not at all.
    jacobian = determinant(made.field)
    inside = made.labels.data == 1
    assert jacobian[inside].mean() == pytest.approx(1 / factor, rel=0.12)
    assert np.median(np.abs(jacobian[scan[1].data == 2] - 1)) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_folds(scan, seed):
    wild = ChangePlan(
        (OrganChange(1, volume=(0.2, 4.0), motion_mm=60.0), OrganChange(2, volume=(0.2, 4.0), motion_mm=60.0)),
        posture_mm=80.0,
    )
    made = second_time_point(*scan, wild, seed)
    assert float(determinant(made.field).min()) >= MIN_JACOBIAN > 0
    assert 0 < made.strength <= 1
    mild = second_time_point(*scan, ChangePlan((OrganChange(1, volume=(0.7, 0.9)),)), seed)
    assert mild.strength == 1.0


def test_motion_keeps_volumes(scan):
    made = second_time_point(*scan, ChangePlan((OrganChange(1, motion_mm=9.0),), gain=0.0, noise=0.0), seed=1)
    moved = np.linalg.norm(made.field.data, axis=0)
    assert moved.max() > 5.0
    inner = determinant(made.field)[4:-4, 4:-4, 4:-4]
    assert np.abs(np.log(inner)).mean() < 0.02


def test_the_field_takes_the_new_scan_to_the_original(scan):
    plan = ChangePlan((OrganChange(1, volume=(0.7, 0.8)),), posture_mm=14.0, gain=0.0, noise=0.0)
    made = second_time_point(*scan, plan, seed=5)
    np.testing.assert_array_equal(warp_labels(scan[1], Transform(made.field)).data, made.labels.data)
    again = warp_image(scan[0], Transform(made.field), fill=-1000.0).data
    inner = (slice(4, -4),) * 3
    assert np.corrcoef(again[inner].ravel(), made.image.data[inner].ravel())[0, 1] > 0.99
    still = np.corrcoef(scan[0].data[inner].ravel(), made.image.data[inner].ravel())[0, 1]
    assert still < 0.95


def test_the_seed_is_all_that_is_random(scan):
    plan = ChangePlan((OrganChange(1, volume=(0.7, 0.9), contrast=10.0),))
    a, b, c = (second_time_point(*scan, plan, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.image.data, b.image.data)
    np.testing.assert_array_equal(a.field.data, b.field.data)
    assert not np.array_equal(a.field.data, c.field.data)


def test_look_changes_as_planned(scan):
    noisy = second_time_point(*scan, ChangePlan((), posture_mm=0.0, gain=0.0, noise=20.0), seed=2)
    difference = noisy.image.data - scan[0].data
    assert difference.std() == pytest.approx(20.0, rel=0.02)
    brighter = second_time_point(*scan, ChangePlan((OrganChange(1, contrast=50.0),), **STILL), seed=2)
    change = brighter.image.data - scan[0].data
    assert abs(change[scan[1].data == 1].mean()) > 5 * abs(change[scan[1].data == 2].mean())


def test_an_organ_that_is_not_there_is_left_out(scan):
    made = second_time_point(*scan, ChangePlan((OrganChange(9, volume=(0.5, 0.5)),), **STILL), seed=0)
    np.testing.assert_array_equal(made.labels.data, scan[1].data)
    np.testing.assert_allclose(made.field.data, 0, atol=1e-6)


def test_graded_shrinkage_is_strongest_towards_the_other_organ(scan):
    plan = ChangePlan(tuple(OrganChange(c, volume=(0.7, 0.7), graded=True) for c in (1, 2)), **STILL)
    jacobian = determinant(second_time_point(*scan, plan, seed=0).field)
    near, far = jacobian[19:22, 18:22, 16:20].mean(), jacobian[9:12, 18:22, 16:20].mean()
    assert near > far > 1


def test_between_two_time_points(scan):
    plan = ChangePlan((OrganChange(1, volume=(0.7, 0.9)),), posture_mm=14.0)
    a, b = (second_time_point(*scan, plan, seed) for seed in (1, 2))
    w, zero = between(a.field, b.field), Field.zero(scan[0].geometry)
    inner = (slice(6, -6),) * 3
    points = np.moveaxis(np.indices(SHAPE), 0, -1)[inner].reshape(-1, 3).astype(float)
    p = scan[0].geometry.points(points)
    there = warp_points(warp_points(p, Transform(w)), Transform(b.field))
    error = np.linalg.norm(there - warp_points(p, Transform(a.field)), axis=-1)
    assert error.max() < 1.0
    assert error.mean() < 0.05
    assert np.abs(w.data).max() > 5
    np.testing.assert_allclose(between(a.field, zero).data, a.field.data, atol=1e-2)
