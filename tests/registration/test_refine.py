"""The continuous stage: it lowers its cost, keeps what is right, never folds."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import ndimage

from phantoms import make_phantom
from regweave import _core, register
from regweave.config.settings import Refine, Settings, preset, preset_names
from regweave.errors import RegweaveWarning
from regweave.registration.align import Refinement, align, refine, warn_if_left_out
from regweave.registration.cpu import unfolded
from regweave.spatial.voxels import change_level
from regweave.spatial.warp import determinant, to_field
from regweave.threads import kernel_threads
from regweave.types import Geometry, Image, ImagePair, Volume, WeightTable

SHAPE = (32, 32, 32)
SETTINGS = Refine(steps=15, smoothness=0.3)
BANKS = {
    "sad": ({"name": "sad", "metric": "sad"},), "ncc": ({"name": "ncc", "metric": "ncc"},),
    "squared": ({"name": "ncc", "metric": "ncc", "support": 5, "options": {"squared": True}},),
    "mind": ({"name": "mind", "metric": "mind"},), "gradient": ({"name": "gradient", "metric": "gradient"},),
    "mixed": ({"name": "sad", "metric": "sad"}, {"name": "ncc", "metric": "ncc", "support": 7}),
}  # fmt: skip


def schedule(bank: str = "sad", **changes) -> Settings:
    levels = ({"spacing_mm": 48.0, "shrink": 2, "steps": 3},)
    return Settings.model_validate(
        {"name": "test", "modality": "mr", "smoothness": 0.1, "levels": levels, "banks": {"mr": BANKS[bank]}, **changes}
    )


def uniform(s: Settings) -> WeightTable:
    return WeightTable.constant(dict.fromkeys(tuple(m.name for m in s.bank), 1.0), 0.1)


def run(pair: ImagePair, bank: str = "sad", settings: Refine = SETTINGS, start=None) -> Refinement:
    s = schedule(bank)
    u = np.zeros((3, *pair.fixed.geometry.shape), dtype=np.float32) if start is None else start
    return refine(pair, u, uniform(s), s, settings)


def totals(result: Refinement) -> list[float]:
    return [s.data + s.smoothness for s in result.steps]


@pytest.fixture(scope="module")
def pair() -> ImagePair:
    return make_phantom(seed=1, shape=SHAPE, spacing_mm=(6.0, 6.0, 6.0), max_displacement_mm=9.0).pair


@pytest.fixture(scope="module")
def shifted(pair) -> ImagePair:
    """One image twice, 0.6 of a voxel apart."""
    affine = pair.moving.geometry.affine.copy()
    affine[:3, 3] += (3.6, 0.0, 0.0)
    return ImagePair(pair.moving, Image(pair.moving.data, Geometry(SHAPE, affine)))


@pytest.mark.parametrize("name", preset_names())
def test_identical_images_stay_where_they_are_under_every_preset(pair, name):
    settings = preset(name)
    s = settings.for_bank("mr")
    same = ImagePair(pair.fixed, pair.fixed)
    w = s.start_weights(settings.smoothness)
    aligned = align(same, w, s)
    assert np.abs(aligned.displacement).max() == 0
    found = refine(same, aligned.displacement, w, s, settings.refine)
    assert np.abs(found.displacement).max() < 0.01


@pytest.mark.parametrize("bank", BANKS)
def test_cost_falls_and_a_small_shift_is_recovered(pair, shifted, bank):
    assert np.abs(run(ImagePair(pair.fixed, pair.fixed), bank).displacement).max() < 0.01
    found = run(shifted, bank)
    costs = totals(found)
    assert len(costs) == SETTINGS.steps
    assert min(costs[-3:]) < 0.9 * costs[0]
    body = shifted.fixed.data > 150
    error = np.linalg.norm(found.displacement - np.array([0.6, 0, 0])[:, None, None, None], axis=0)[body]
    assert error.mean() < 0.3


def test_cost_falls_with_the_same_bits_and_worse_steps_are_not_taken(pair):
    for bank in ("mixed", "squared", "mind"):
        costs = totals(run(pair, bank))
        assert costs[-1] < costs[0]
        assert np.diff(costs).max() < 0.05 * (costs[0] - costs[-1])  # no more than ripples
    # Long steps against a stiff smoothness: every later step costs more, so the start is kept.
    found = run(pair, "sad", Refine(steps=3, rate=0.3, smoothness=1e4))
    costs = totals(found)
    assert min(costs[1:]) > costs[0]
    assert np.abs(found.displacement).max() == 0
    results = []
    for n in (1, 2, 3, 2):
        with kernel_threads(n):
            results.append(run(pair, "mixed", Refine(steps=6)))
    for other in results[1:]:
        assert np.array_equal(other.displacement, results[0].displacement)
        assert totals(other) == totals(results[0])
    # Control points are held round a fold, farther at each attempt, and all others go on moving.
    found = run(pair, "sad", Refine(steps=60, rate=0.3, smoothness=1e-6, spacing_voxels=1))
    assert _core.jacobian(found.displacement).min() > 0
    costs = totals(found)
    assert min(costs) < 0.97 * min(costs[:15])
    assert all(a != b for a, b in itertools.pairwise(costs))


@pytest.mark.parametrize("smoothness", [1e-6, 0.3])
@pytest.mark.parametrize("bank", ["sad", "squared"])
def test_nothing_folds(pair, bank, smoothness):
    strong = Refine(steps=40, rate=0.3, smoothness=smoothness, spacing_voxels=1.5)
    s = schedule(bank)
    start = align(pair, dataclasses.replace(uniform(s), pairwise=1e-6), s).displacement
    found = run(pair, bank, strong, start)
    assert np.abs(found.displacement - start).max() > 1
    assert determinant(to_field(found.displacement, pair.fixed.geometry)).min() > 0


def test_coarser_grids_and_smoothness_in_millimetres(pair):
    small = Refine(steps=10, max_voxels=16**3)
    assert small.factors(pair.fixed.geometry) == (2, 2, 2)
    found = run(pair, "mixed", small)
    assert found.displacement.shape == (3, *SHAPE)
    assert totals(found)[-1] < totals(found)[0]
    thick = Geometry((200, 160, 30), np.diag([1.0, 1.0, 5.0, 1.0]))
    for limit in (2_500_000, 300_000, 20_000):
        f = np.array(Refine(max_voxels=limit).factors(thick))
        assert np.prod(-(-np.array(thick.shape) // f)) <= limit
        assert f[2] <= f[0] == f[1]
    pair = make_phantom(seed=2, shape=(24, 20, 16), spacing_mm=(3.0, 4.0, 8.0)).pair
    rng = np.random.default_rng(0)
    u = ndimage.gaussian_filter(rng.normal(size=(3, 24, 20, 16)), (0, 3, 3, 2)).astype(np.float32)
    found = run(pair, "sad", Refine(steps=1, smoothness=0.7, max_voxels=10_000), start=u)
    spacing = pair.fixed.geometry.spacing_mm
    mm = u.astype(np.float64) * spacing[:, None, None, None]
    slopes = sum(((np.diff(mm, axis=1 + axis) / spacing[axis]) ** 2).sum() for axis in range(3))
    assert found.steps[0].smoothness == pytest.approx(0.7 * 0.5 * slopes, rel=1e-4)


def test_members_without_a_weight_or_that_cannot_be_compared_are_left_out(pair):
    told = []
    s = schedule()
    found = refine(pair, np.zeros((3, *SHAPE), np.float32), uniform(s), s, Refine(steps=4), on_step=told.append)
    assert [t.step for t in told] == [0, 1, 2, 3]
    assert tuple(told) == tuple(found.steps)
    assert found.members == ("sad",)
    s = schedule("mixed")
    w = dataclasses.replace(uniform(s), matrix=np.array([[1.0], [0.0]]))
    found = refine(pair, np.zeros((3, *SHAPE), np.float32), w, s, SETTINGS)
    alone = run(pair, "sad")
    assert found.members == ("sad",)
    assert np.array_equal(found.displacement, alone.displacement)
    s = schedule(banks={"mr": [{"name": "mi", "metric": "mi"}]})
    start = np.random.default_rng(0).random((3, *SHAPE)).astype(np.float32)
    with pytest.warns(RegweaveWarning, match=r"W206: refinement left out: none of the members mi"):
        warn_if_left_out(s, WeightTable.constant({"mi": 1.0}, 0.1), Refine(steps=5))
    warn_if_left_out(s, WeightTable.constant({"mi": 1.0}, 0.1), Refine(steps=0))  # asked for: no warning
    found = refine(pair, start, WeightTable.constant({"mi": 1.0}, 0.1), s, Refine(steps=5))
    assert np.array_equal(found.displacement, start)
    assert found.steps == ()
    bank = ({"name": "sad", "metric": "sad"}, {"name": "early", "metric": "mind", "stage": "levels"})
    s = schedule(banks={"mr": bank})
    w = WeightTable(np.array([[0.4], [0.6]]), ("sad", "early"), (0,), 0.1)
    zero = np.zeros((3, *SHAPE), dtype=np.float32)
    found = refine(pair, zero, w, s, Refine(steps=4))
    alone = run(pair, "sad", Refine(steps=4))
    assert found.members == ("sad",)
    np.testing.assert_allclose(found.displacement, alone.displacement, atol=1e-5)


def test_class_weights_act_where_the_moving_mask_is(pair):
    """A column of zeros takes the data term away inside its organ."""
    s = schedule("sad")
    zero = np.zeros((3, *SHAPE), dtype=np.float32)
    even = WeightTable(np.array([[1.0, 1.0]]), ("sad",), (0, 3), 0.1)
    blind = WeightTable(np.array([[1.0, 0.0]]), ("sad",), (0, 3), 0.1)
    a, b, c = (
        refine(pair, zero, w, s, Refine(steps=6))
        for w in (even, blind, WeightTable.constant(dict.fromkeys(("sad",), 1.0), 0.1))
    )
    np.testing.assert_allclose(a.displacement, c.displacement, atol=1e-5)
    assert b.steps[0].data < a.steps[0].data
    assert not np.array_equal(a.displacement, b.displacement)


def test_starts_are_smoothed_without_folds(pair):
    u = np.random.default_rng(3).normal(scale=0.3, size=(3, *SHAPE)).astype(np.float32)
    u = ndimage.gaussian_filter(u, (0, 1, 1, 1))
    sigma = 0.25 * 48.0 / 6.0  # share of the spacing of the schedule's only level, in voxels of 6 mm
    by_hand = np.stack([ndimage.gaussian_filter(c, sigma, mode="nearest", truncate=3.0) for c in u])
    asked, wanted = (
        run(pair, settings=Refine(steps=3, start_sigma=share), start=start)
        for share, start in ((0.25, u), (0, by_hand))
    )
    np.testing.assert_allclose(asked.displacement, wanted.displacement, atol=1e-6)
    assert not np.array_equal(asked.displacement, run(pair, settings=Refine(steps=3), start=u).displacement)
    # A strong swirl is invertible, its average over a wide window is not.
    x = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij")).astype(np.float64) - 15.5
    angle = 2.0 * np.log1p((x[0] ** 2 + x[1] ** 2) / 120)
    u = np.zeros((3, *SHAPE), dtype=np.float32)
    u[0] = np.cos(angle) * x[0] - np.sin(angle) * x[1] - x[0]
    u[1] = np.sin(angle) * x[0] + np.cos(angle) * x[1] - x[1]
    wide = np.stack([ndimage.gaussian_filter(c, 2.0, mode="nearest", truncate=3.0) for c in u])
    assert _core.jacobian(u).min() > 0.1
    assert _core.jacobian(wide).min() < 0
    found = run(pair, settings=Refine(steps=1, start_sigma=0.25), start=u)
    assert _core.jacobian(found.displacement).min() > 0


def test_cost_is_that_of_the_moving_image_pulled_once(pair):
    """Pulling what an earlier step has pulled would blur it, and the cost would be another."""
    five, six = (run(pair, "sad", Refine(steps=n, smoothness=0.3)) for n in (5, 6))

    def by_hand(u):
        views = []
        for image in (pair.fixed.data, pair.moving.data):
            low, high = np.percentile(image, (0.5, 99.5))
            views.append(((image - low) / (high - low)).clip(0, 1))
        at = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij")) + u - 0.5  # the moving grid begins 3 mm later
        d = ndimage.map_coordinates(views[1], at, order=1, mode="nearest") - views[0]
        return float((np.sqrt(d**2 + 1e-4) - 0.01).sum())

    start, end = np.zeros_like(five.displacement), five.displacement
    assert np.abs(end).max() > 0.5
    assert totals(six)[5] == min(totals(six))  # so that this is where five steps end
    assert six.steps[5].data / six.steps[0].data == pytest.approx(by_hand(end) / by_hand(start), rel=1e-4)


def test_voxels_that_fold_on_the_finer_grid_alone_are_smoothed():
    """Two coarse voxels that nearly meet pass central differences, and fold between them once the grid is finer."""
    coarse = np.zeros((3, 12, 12, 12), dtype=np.float32)
    coarse[0, 5], coarse[0, 6] = 0.9, -0.9
    fine = change_level(coarse, (2, 2, 2), (1, 1, 1), (24, 24, 24))
    assert _core.jacobian(coarse).min() > 0
    assert _core.jacobian(fine).min() < 0
    knots, repaired = unfolded(coarse, (2, 2, 2), (24, 24, 24))
    assert _core.jacobian(repaired).min() > 0
    assert np.array_equal(repaired[:, :4], fine[:, :4])
    assert np.array_equal(change_level(knots, (2, 2, 2), (1, 1, 1), (24, 24, 24)), repaired)
    assert unfolded(knots, (2, 2, 2), (24, 24, 24))[0] is knots
    same = unfolded(repaired, (1, 1, 1), (24, 24, 24))
    assert same[0] is repaired
    assert same[1] is repaired


def lung(shape=(40, 40, 32)) -> tuple[ImagePair, np.ndarray]:
    """Return two CT of vessels in air, one moved by a known smooth displacement, and that displacement in voxels."""
    rng = np.random.default_rng(3)
    grid = Geometry(shape, np.diag([2.0, 2.0, 2.0, 1.0]))
    noise = ndimage.gaussian_filter(rng.normal(size=shape), 0.8)
    vessels = np.where(noise > np.quantile(noise, 0.85), -500.0, -850.0)
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    body = x**2 + y**2 + 0.2 * z**2 > 0.8
    moving = np.where(body, 40.0, ndimage.gaussian_filter(vessels, 0.5))
    bell = np.exp(-4 * (x**2 + y**2 + z**2))
    u = 0.6 * np.stack([0.8 * bell, -0.6 * bell, 2.2 * bell])
    fixed = ndimage.map_coordinates(moving, np.indices(shape) + u, order=1, mode="nearest")
    images = (Image(a.astype(np.float32), grid, "ct") for a in (fixed, moving))
    return ImagePair(*images), u


def error_in_voxels(found: Refinement, u: np.ndarray) -> float:
    """Mean distance from the true displacement where that is more than half a voxel."""
    moved = np.sqrt((u**2).sum(axis=0)) > 0.5
    return float(np.sqrt(((found.displacement - u) ** 2).sum(axis=0))[moved].mean())


def refined(pair: ImagePair, settings: Settings) -> Refinement:
    s = settings.for_bank("ct")
    return refine(pair, np.zeros((3, *pair.fixed.geometry.shape), np.float32), s.start_weights(0.1), s, s.refine)


def test_a_large_ct_is_refined_a_second_time_at_fine_voxels():
    pair, u = lung()
    default = preset("default")
    members = tuple(m.model_copy(update={"window": None}) for m in default.banks["ct"])
    assert error_in_voxels(refined(pair, default), u) < 0.15
    assert error_in_voxels(refined(pair, default.model_copy(update={"banks": {"ct": members}})), u) > 0.7
    pair, u = lung()
    small = preset("default").refine.model_copy(update={"max_voxels": 8000})
    factors = [stage.factors(pair.fixed.geometry) for stage in small.stages(pair.fixed.geometry, "ct")]
    assert factors == [(2, 2, 2), (1, 1, 1)]
    settings = preset("default").model_copy(update={"refine": small})
    once = settings.model_copy(update={"refine": small.model_copy(update={"finest_mm": None, "finest_steps": 0})})
    coarse, fine = refined(pair, once), refined(pair, settings)
    assert [s.step for s in fine.steps] == list(range(len(fine.steps)))
    assert len(fine.steps) > len(coarse.steps) == once.refine.steps
    assert coarse.knots is not None
    assert fine.knots is None
    assert error_in_voxels(fine, u) < 0.3 < 0.6 < error_in_voxels(coarse, u)
    for bank, voxel_mm, n, stages in (
        ("mr", 1.0, 200, 1), ("ct", 1.0, 64, 1), ("ct", 1.0, 300, 2), ("ct", 2.5, 200, 2), ("ct", 0.4, 136, 1),
    ):  # fmt: skip
        grid = Geometry((n, n, n), np.diag([voxel_mm] * 3 + [1.0]))
        found = preset("default").refine.stages(grid, bank)
        assert len(found) == stages
        assert (found[-1].factors(grid) * np.array(voxel_mm)).max() <= max(2.0, voxel_mm) or stages == 1
        assert found[0].factors(grid) == preset("default").refine.factors(grid)


# Control spacings of many voxels: the supports of the published settings on images of 0.3 mm.
def test_published_settings_on_voxels_of_a_third_of_a_millimetre():
    rng = np.random.default_rng(1)
    geometry = Geometry((84, 84, 84), np.diag([0.3, 0.3, 0.3, 1.0]))
    scene = ndimage.gaussian_filter(rng.random((100, 84, 84)).astype(np.float32), 5)
    scene = 100 * (scene - scene.min()) / np.ptp(scene)
    settings = preset("paper")
    one_step = [level.model_copy(update={"steps": 1}) for level in settings.levels]
    quick = settings.model_copy(update={"levels": tuple(one_step)})
    # 16 voxels are 4.8 mm, close to the 5 mm that the labels of the second level have.
    result = register(Volume(scene[16:].copy(), geometry), Volume(scene[:84].copy(), geometry), config=quick)
    inside = result.transform.field.data[:, 20:64, 20:64, 20:64].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(inside, [4.8, 0.0, 0.0], atol=0.6)
    assert result.provenance.device == "cpu"
