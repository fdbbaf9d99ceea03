"""The discrete levels on the twin: every term, every labelling and the displacement are those of the host."""

from dataclasses import replace

import numpy as np
import pytest

from phantoms import make_phantom
from regweave import metrics
from regweave.config.settings import Settings
from regweave.registration.align import align
from regweave.registration.cpu import CPU, StepSearch
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.types import Image, LabelMap, StructureMaps, WeightTable

BANK = [
    {"name": "sad", "metric": "sad"}, {"name": "soft", "metric": "sad", "sigma_voxels": 0.8, "window": [0.1, 0.7]},
    {"name": "ncc", "metric": "ncc"}, {"name": "ncc4", "metric": "ncc", "support": 4, "options": {"squared": True}},
    {"name": "mi", "metric": "mi"}, {"name": "fine", "metric": "mi", "options": {"bins": 16}},
    {"name": "dwt", "metric": "dwt"}, {"name": "gradient", "metric": "gradient"}, {"name": "ngf", "metric": "ngf"},
    {"name": "mind", "metric": "mind"},
]  # fmt: skip
LEVELS = [{"spacing_mm": 48.0, "shrink": 2, "steps": 2}, {"spacing_mm": 30.0, "steps": 2}]


def schedule(**changes) -> Settings:
    given = {"levels": LEVELS, "bank": BANK, **changes}
    bank = given.pop("bank")
    return Settings.model_validate(
        {"name": "test", "modality": "mr", "smoothness": 0.1, "banks": {"mr": bank}, **given}
    )


def weights(bank=BANK, classes=(0,)) -> WeightTable:
    return WeightTable.constant({m["name"]: 1.0 + 0.1 * i for i, m in enumerate(bank)}, 0.1, classes)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=2, shape=(20, 18, 16), spacing_mm=(8.0, 9.0, 10.0)).pair


def measured(device, pair, plan, level, u, classes=(0,)):
    scene = device.scene(pair, plan).at(level)
    grid = ControlGrid.cover(scene.geometry, level.spacing_mm, level.support)
    around = StepSearch(grid, LabelSet.cube(level.labels_per_axis, level.first_step * grid.spacing), classes, plan)
    terms, scales = device.measure(scene, device.upload(u), around, None)
    again, _ = device.measure(scene, device.upload(0.5 * u), around, scales)
    return device.terms(terms), device.terms(again)


def start(pair, plan, level, rng):
    shape = CPU.scene(pair, plan).at(level).geometry.shape
    return np.cumsum(rng.normal(0, 0.2, (3, *shape)), axis=1).astype(np.float32)


@pytest.mark.parametrize("level", [0, 1])
def test_costs_of_every_metric_are_those_of_the_host(device, pair, rng, level):
    plan = schedule()
    u = start(pair, plan, plan.levels[level], rng)
    assert {m.metric for m in plan.bank} == set(metrics.available()) & {m.metric for m in plan.bank}
    for host, found in zip(
        measured(CPU, pair, plan, plan.levels[level], u),
        measured(device, pair, plan, plan.levels[level], u),
        strict=True,
    ):
        assert host.costs.std(axis=(1, 2)).min() > 0.1
        for member, a, b in zip(plan.bank, host.costs, found.costs, strict=True):
            far = np.abs(a - b)
            # A rank at the edge of a bin may fall to either side.
            limit = np.quantile(far, 0.995) if member.metric == "mi" else far.max()
            assert limit < 3e-4 * max(1, np.abs(a).max()), member.name


def test_nodes_that_see_little_cost_nothing_and_masks_scale_the_costs(device, pair, rng):
    plan = schedule()
    u = start(pair, plan, plan.levels[1], rng)
    u[0] += np.linspace(0, 14, u.shape[1], dtype=np.float32)[:, None, None]
    (host, _), (found, _) = (measured(d, pair, plan, plan.levels[1], u) for d in (CPU, device))
    blind = (host.costs == 0).all(axis=(0, 2))
    assert 0.05 < blind.mean() < 0.9
    assert np.array_equal((found.costs == 0).all(axis=(0, 2)), blind)
    plan = schedule(bank=BANK[:3])
    u = start(pair, plan, plan.levels[0], rng)
    boxes = [np.zeros(v.data.shape, dtype=np.uint8) for v in (pair.fixed, pair.moving)]
    boxes[0][3:15, 2:14, 1:12] = 1
    boxes[1][2:17, :, 3:] = 1
    fixed, moving = (
        Image(v.data, v.geometry, v.modality, mask=LabelMap(box, v.geometry))
        for v, box in zip((pair.fixed, pair.moving), boxes, strict=True)
    )
    masked = replace(pair, fixed=fixed, moving=moving)
    for host, found in zip(
        measured(CPU, masked, plan, plan.levels[0], u), measured(device, masked, plan, plan.levels[0], u), strict=True
    ):
        np.testing.assert_allclose(found.costs, host.costs, atol=1e-3)


@pytest.mark.parametrize("at", ["anchored", "displaced"])
@pytest.mark.parametrize("rule", ["count", "foreground", "share"])
def test_class_shares_follow_the_rule(device, pair, rng, at, rule):
    plan = schedule(bank=BANK[:1], class_rule=rule, class_at=at, class_reach=1.5)
    blocks = rng.choice([0, 0, 3, 7, 9], (4, 4, 4)).repeat(5, 0).repeat(5, 1).repeat(4, 2)[:20, :18, :16]
    labels, classes = LabelMap(blocks.astype(np.int32), pair.moving.geometry), (0, 7, 3)
    pair = replace(pair, moving=replace(pair.moving, labels=labels))
    u = start(pair, plan, plan.levels[1], rng)
    (host, _), (found, _) = (measured(d, pair, plan, plan.levels[1], u, classes) for d in (CPU, device))
    assert host.shares.shape == found.shares.shape
    assert 0.02 < host.shares[..., 1:].sum(axis=-1).mean() < 0.98
    # Two classes of equal shares are told apart by rounding.
    assert (np.abs(found.shares - host.shares).max(axis=-1) > 1e-6).mean() < 0.01


def test_structure_maps_and_metrics_without_a_kernel(device, pair, rng, monkeypatch):
    bank = [*BANK[:1], {"name": "shapes", "metric": "sad", "source": "structures", "weight": 0.0}]
    plan = schedule(bank=bank)
    shares = [rng.random((4, *v.data.shape), dtype=np.float32) for v in (pair.fixed, pair.moving)]
    images = [
        Image(v.data, v.geometry, v.modality, maps=StructureMaps(s, v.geometry, (1, 2, 3, 4)))
        for v, s in zip((pair.fixed, pair.moving), shares, strict=True)
    ]
    mapped = replace(pair, fixed=images[0], moving=images[1])
    u = start(pair, plan, plan.levels[1], rng)
    (host, _), (found, _) = (measured(d, mapped, plan, plan.levels[1], u) for d in (CPU, device))
    np.testing.assert_allclose(found.costs, host.costs, atol=1e-3)

    def squared(fixed, moved, grid):
        return grid.pool(((fixed - moved) ** 2).sum(axis=0))

    name = metrics.add("squared_for_gpu", squared)
    monkeypatch.setitem(metrics.registry._added, name, metrics.registry._added.pop(name))  # removed at the end
    plan = schedule(bank=[{"name": "own", "metric": name}, *BANK[:2]])
    u = start(pair, plan, plan.levels[0], rng)
    (host, _), (found, _) = (measured(d, pair, plan, plan.levels[0], u) for d in (CPU, device))
    np.testing.assert_allclose(found.costs, host.costs, atol=1e-3)


@pytest.mark.parametrize("pairwise", ["fluid", "elastic"])
def test_levels_end_where_those_of_the_host_end(device, pair, pairwise):
    plan, seen = schedule(pairwise=pairwise, bank=BANK[:4], engine_options={"max_iter": 4, "tol": 0.0}), {}
    for d in (CPU, device):
        steps = []
        seen[d.name] = (align(pair, weights(BANK[:4]), plan, on_step=steps.append, device=d), steps)
    (host, by_host), (found, by_twin) = seen.values()
    assert np.abs(host.displacement).max() > 1
    np.testing.assert_allclose(found.displacement, host.displacement, atol=2e-3)
    for a, b in zip(by_host, by_twin, strict=True):
        assert np.array_equal(a.solution.labels, b.solution.labels)
        assert b.solution.energy == pytest.approx(a.solution.energy, rel=1e-4)
        assert b.solution.lower_bound <= b.solution.energy
        assert (a.n_nodes, a.iterations) == (b.n_nodes, b.iterations)


def test_other_engines_run_on_the_host(device, pair):
    plan = schedule(engine="icm", bank=BANK[:2])
    results = [align(pair, weights(BANK[:2]), plan, device=d).displacement for d in (CPU, device)]
    np.testing.assert_allclose(results[1], results[0], atol=2e-3)
