import numpy as np
import pytest
from scipy import ndimage

from phantoms import MIN_JACOBIAN, PhantomPair, make_phantom
from regweave.types import Geometry


def grid_points(geometry: Geometry) -> np.ndarray:
    index = np.moveaxis(np.indices(geometry.shape), 0, -1).astype(np.float64)
    return np.moveaxis(geometry.points(index), -1, 0)


def pull(data: np.ndarray, geometry: Geometry, points: np.ndarray, order: int) -> np.ndarray:
    inverse = np.linalg.inv(geometry.affine)
    index = np.tensordot(inverse[:3, :3], points, 1) + inverse[:3, 3].reshape(3, 1, 1, 1)
    return ndimage.map_coordinates(data, index, order=order, mode="nearest")


def dice(a: np.ndarray, b: np.ndarray, value: int) -> float:
    return 2.0 * np.sum((a == value) & (b == value)) / (np.sum(a == value) + np.sum(b == value))


def mean_dice(phantom: PhantomPair, displacement: np.ndarray | float) -> float:
    fixed, moving = phantom.pair.fixed_labels, phantom.pair.moving_labels
    assert fixed is not None
    assert moving is not None
    points = grid_points(fixed.geometry) + displacement
    pulled = pull(moving.data, moving.geometry, points, order=0)
    return float(np.mean([dice(fixed.data, pulled, value) for value in fixed.values()]))


def test_same_seed_same_bits_other_seed_other_images() -> None:
    a, b, c = (make_phantom(seed, (24, 22, 20), (8.0, 9.0, 10.0)) for seed in (3, 3, 4))
    np.testing.assert_allclose(a.pair.fixed.geometry.spacing_mm, (8.0, 9.0, 10.0))
    for pick in (
        lambda p: p.pair.fixed.data, lambda p: p.pair.moving.data, lambda p: p.pair.fixed_labels.data,
        lambda p: p.true_field.data,
    ):  # fmt: skip
        np.testing.assert_array_equal(pick(a), pick(b))
        assert not np.array_equal(pick(a), pick(c))


def test_true_field_is_smooth_invertible_and_carries_the_labels():
    for seed in range(2):
        field = make_phantom(seed, (32, 32, 32), (6.0, 6.0, 6.0), max_displacement_mm=18.0).true_field
        u = field.data.astype(np.float64)
        assert np.sqrt((u**2).sum(0)).max() == pytest.approx(18.0, rel=1e-5)
        # Volume of the image of each voxel cell, by its three edges: a reference without np.gradient.
        points = grid_points(field.geometry) + u
        corner = points[:, :-1, :-1, :-1]
        edges = np.stack([points[:, 1:, :-1, :-1], points[:, :-1, 1:, :-1], points[:, :-1, :-1, 1:]]) - corner
        volume = np.linalg.det(np.moveaxis(edges, (0, 1), (-2, -1))) / 6.0**3
        assert volume.min() > 0.9 * MIN_JACOBIAN
    # A strong deformation is widened until it is invertible.
    u = make_phantom(0, (32, 32, 32), (6.0, 6.0, 6.0), max_displacement_mm=40.0).true_field.data.astype(np.float64)
    gradient = np.stack([np.stack(np.gradient(component, 6.0)) for component in u])
    jacobian = np.linalg.det(np.moveaxis(gradient, (0, 1), (-2, -1)) + np.eye(3))
    assert jacobian.min() > MIN_JACOBIAN
    phantom = make_phantom(1)
    u = phantom.true_field.data
    assert 0.5 < mean_dice(phantom, 0.0) < 0.75
    assert mean_dice(phantom, u) > 0.9
    assert mean_dice(phantom, -u) < mean_dice(phantom, 0.0)
