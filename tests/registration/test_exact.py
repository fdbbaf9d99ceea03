"""Exact forces: the pulled image against scipy's splines, forces against numerical derivatives of their costs."""

import numpy as np
import pytest
from scipy import ndimage

from regweave import _core
from regweave.config.presets import preset
from regweave.config.settings import Refine
from regweave.registration.cpu import CPU
from regweave.registration.forces import forces
from regweave.types import Geometry, Image, ImagePair, Volume, WeightTable

SHAPE = (9, 8, 10)
MATRIX = np.array([[0.9, 0.1, 0.0, 0.4], [-0.05, 1.1, 0.02, -0.6], [0.0, 0.03, 0.8, 0.7]])


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((7, 9, 8)).astype(np.float32), rng.normal(size=(3, *SHAPE)).astype(np.float32)


def slow(image: np.ndarray, u: np.ndarray) -> np.ndarray:
    grid = np.stack(np.meshgrid(*(np.arange(float(n)) for n in SHAPE), indexing="ij")) + u
    places = np.tensordot(MATRIX[:, :3], grid, 1) + MATRIX[:, 3].reshape(3, 1, 1, 1)
    places = np.clip(places, 0, np.array(image.shape).reshape(3, 1, 1, 1) - 1)
    return ndimage.map_coordinates(image.astype(np.float64), places, order=3, prefilter=False, mode="nearest")


def test_the_force_is_the_derivative_of_the_pulled_image():
    image, u = drawn(0)
    np.testing.assert_allclose(_core.pulled_image(image, MATRIX, u), slow(image, u), atol=2e-6)
    image, u = drawn(2)
    rng = np.random.default_rng(3)
    slope, force = rng.normal(size=SHAPE).astype(np.float32), np.zeros_like(u)
    _core.pulled_force(image, MATRIX, u, slope, force)
    for _ in range(4):
        step = rng.normal(size=u.shape)
        there, back = (float((slope * slow(image, u + h * step)).sum()) for h in (1e-5, -1e-5))
        assert float((force * step).sum()) == pytest.approx((there - back) / 2e-5, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 1, 3), (1, 1, 1)])
def test_a_thin_image_can_be_pulled(shape):
    image = np.full(shape, 0.25, dtype=np.float32)
    np.testing.assert_allclose(_core.pulled_image(image, MATRIX, drawn(1)[1]), 0.25, atol=1e-6)


SLOPES = {
    "absolute": (_core.absolute_slope, _core.absolute_force, (0.01,)),
    "correlation": (_core.correlation_slope, _core.correlation_force, (2, 1e-4, False)),
    "squared": (_core.correlation_slope, _core.correlation_force, (2, 1e-4, True)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_slope_is_the_derivative_by_the_moved_image(name):
    of, whole, options = SLOPES[name]
    rng = np.random.default_rng(4)
    fixed, moved, weight = (rng.random(SHAPE).astype(np.float32) for _ in range(3))
    moved[0], moved[1] = 0.0, 1.0

    def cost(m: np.ndarray) -> float:
        return float(whole(fixed[None], m[None], weight, np.zeros((3, *SHAPE), dtype=np.float32), *options))

    slope = np.zeros(SHAPE, dtype=np.float32)
    assert of(fixed, moved, weight, slope, 3.0, *options) == pytest.approx(cost(moved), rel=1e-5)
    assert np.abs(slope[:2]).max() == 0  # cut by the window: no change
    for _ in range(3):
        step = rng.normal(size=SHAPE).astype(np.float32)
        step[:2] = 0
        numerical = 3.0 * (cost(moved + 1e-3 * step) - cost(moved - 1e-3 * step)) / 2e-3
        assert float((slope * step).sum()) == pytest.approx(numerical, rel=2e-2, abs=0.1)


def noisy_pair() -> ImagePair:
    rng = np.random.default_rng(5)
    geometry = Geometry((20, 18, 16), np.diag([2.0, 2.0, 3.0, 1.0]))
    still = ndimage.gaussian_filter(rng.normal(size=geometry.shape), 2) * 400
    fixed, moving = (
        Volume((still + rng.normal(0, 20, geometry.shape)).astype(np.float32), geometry, "ct") for _ in range(2)
    )
    return ImagePair(Image.of(fixed), Image.of(moving))


def mismatch(exact: bool) -> float:
    """Return how far the force is from the derivative of the cost along a smooth displacement, as a share."""
    pair, settings = noisy_pair(), preset("default")
    schedule, refine = settings.for_bank("ct"), Refine(steps=1, exact=exact)
    members = [  # a window about the noise: numerical derivatives of a small cost are rounding errors
        m.model_copy(update={"window": (-200.0, 300.0)}) for m in schedule.continuous if m.name in ("lncc3", "lncc7")
    ]
    weights = WeightTable.constant({m.name: 1.0 for m in schedule.continuous}, 0.1)
    scene = CPU.scene(pair, schedule).at(refine)
    rng = np.random.default_rng(6)
    u, step = (
        ndimage.gaussian_filter(rng.normal(size=(3, *pair.fixed.geometry.shape)), (0, 3, 3, 3)).astype(np.float32) * 8
        for _ in range(2)
    )
    terms = CPU.data_terms(scene, u, members, weights, refine)

    def cost(h: float) -> float:
        return forces(scene, terms, (u + h * step).astype(np.float32), 1e-9)[0]

    numerical = (cost(1e-2) - cost(-1e-2)) / 2e-2
    return abs(float((forces(scene, terms, u, 1e-9)[2] * step).sum()) - numerical) / abs(numerical)


def test_exact_forces_are_the_derivative_of_the_cost_and_differences_of_voxels_are_not():
    assert mismatch(exact=True) < 0.02
    assert mismatch(exact=False) > 0.1
    assert "exact" not in preset("default").refine.model_dump()
