"""The coarse-to-fine loop: planted truth, its evidence, and the same bits always."""

import dataclasses

import numpy as np
import pytest
from scipy import ndimage

from phantoms import make_phantom
from regweave import _core
from regweave.config.settings import Settings
from regweave.energy import loss_of
from regweave.measures.scores import dice
from regweave.registration.align import Alignment, align
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.warp import determinant, to_field, warp_labels
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry, Image, ImagePair, LabelMap, Transform, Volume, WeightTable

LEVELS = ({"spacing_mm": 48.0, "shrink": 2, "steps": 3}, {"spacing_mm": 24.0, "shrink": 1, "steps": 2})
BANK = ({"name": "sad", "metric": "sad"}, {"name": "ncc", "metric": "ncc"})
MEMBERS = ("sad", "ncc")


def schedule(**changes) -> Settings:
    given = {"levels": LEVELS, "bank": BANK, **changes}
    bank = given.pop("bank")
    return Settings.model_validate(
        {"name": "test", "modality": "mr", "smoothness": 0.1, "banks": {"mr": bank}, **given}
    )


def weights(pairwise: float = 0.1, classes: tuple[int, ...] = (0,)) -> WeightTable:
    return WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), pairwise, classes)


@pytest.fixture(scope="module")
def pair() -> ImagePair:
    return make_phantom(seed=1, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0)).pair


@pytest.fixture(scope="module")
def registered(pair) -> Alignment:
    return align(pair, weights(), schedule())


def moved_by(volume: Volume, shift_mm) -> Image:
    """The same content at another place: point p of the one is point p + shift of the other."""
    affine = volume.geometry.affine.copy()
    affine[:3, 3] += shift_mm
    return Image(volume.data, Geometry(volume.geometry.shape, affine))


def mean_dice(pair: ImagePair, alignment: Alignment) -> float:
    field = to_field(alignment.displacement, pair.fixed.geometry)
    warped = warp_labels(pair.moving_labels, Transform(field, pair.initial))
    return float(np.mean(list(dice(warped, pair.fixed_labels).values())))


def test_identical_images_stay_where_they_are(pair):
    for bank in (MEMBERS, ("mi",), ("dwt",), ("gradient",), ("mind",)):
        members = [{"name": m, "metric": m} for m in bank]
        w = WeightTable.constant(dict.fromkeys(bank, 1.0), 0.1)
        found = align(ImagePair(pair.fixed, pair.fixed), w, schedule(bank=members))
        assert np.abs(found.displacement).max() == 0, bank


def test_known_shifts_and_deformations_are_recovered(pair):
    for shift_mm in ((9.0, -6.0, 3.0), (-12.0, 4.5, -10.5)):
        truth = np.array(shift_mm) / pair.moving.geometry.spacing_mm
        found = align(ImagePair(pair.moving, moved_by(pair.moving, shift_mm)), weights(), schedule())
        error = np.linalg.norm(found.displacement - truth[:, None, None, None], axis=0)[pair.moving.data > 150]
        assert np.linalg.norm(truth) > 1.5
        assert error.mean() < 0.5
    # On one grid: voxel (i, j, k) of the fixed image shows what the moving one has at (i + 1, j − 2, k + 1).
    big = make_phantom(seed=1, shape=(36, 36, 36), spacing_mm=(6.0, 6.0, 6.0)).pair.moving.data
    geometry = Geometry((32, 32, 32), np.diag([6.0, 6.0, 6.0, 1.0]))
    fixed = np.ascontiguousarray(big[3:35, 0:32, 3:35])
    moving = np.ascontiguousarray(big[2:34, 2:34, 2:34])
    found = align(ImagePair(Image(fixed, geometry), Image(moving, geometry)), weights(), schedule())
    body = fixed > 150
    error = np.linalg.norm(found.displacement - np.array([1.0, -2.0, 1.0])[:, None, None, None], axis=0)
    assert error[body].mean() < 0.5
    phantom = make_phantom(seed=1, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0))
    pair = phantom.pair
    # The labels as images: the phantom's contrast changes from organ to organ, its anatomy does not.
    look = {"fixed": pair.fixed_labels, "moving": pair.moving_labels}
    images = {k: Image((m.data > 0).astype(np.float32) * (1 + m.data), m.geometry) for k, m in look.items()}
    found = align(dataclasses.replace(pair, **images), weights(), schedule())
    truth = phantom.true_field.data
    error = np.linalg.norm(to_field(found.displacement, pair.fixed.geometry).data - truth, axis=0)
    organs = pair.fixed_labels.data > 0
    assert error[organs].mean() < 0.6 * np.linalg.norm(truth, axis=0)[organs].mean()


def test_starts_are_where_it_begins_and_steps_are_composed(pair):
    shift_mm = np.array([9.0, -6.0, 3.0])
    moving = moved_by(pair.fixed, shift_mm)
    start = np.eye(4)
    start[:3, 3] = shift_mm
    from_affine = align(ImagePair(pair.fixed, moving, initial=start), weights(), schedule())
    assert np.abs(from_affine.displacement).max() == 0
    field = np.broadcast_to(shift_mm.astype(np.float32)[:, None, None, None], (3, 32, 32, 32)).copy()
    given = ImagePair(pair.fixed, moving, initial_field=Field(field, pair.fixed.geometry))
    from_field = align(given, weights(), schedule())
    np.testing.assert_allclose(from_field.displacement, field / 6.0, atol=1e-3)
    # φ ← φ ∘ (id + d): the new displacement at x is d(x) + u(x + d(x)).
    x = np.indices((32, 32, 32)) / 31.0
    u = np.stack([2 * np.sin(5 * x[1]), 1.5 * np.cos(4 * x[2]), 2 * x[0] ** 2]).astype(np.float32)
    start = dataclasses.replace(pair, initial_field=to_field(u, pair.fixed.geometry))
    seen = []
    found = align(start, weights(), schedule(levels=[{"spacing_mm": 30.0, "steps": 1}]), on_step=seen.append)
    align(start, weights(), schedule(levels=[{"spacing_mm": 30.0}], pairwise="elastic"), on_step=seen.append)
    grid = ControlGrid.cover(pair.fixed.geometry, 30.0)
    vectors = np.stack(np.meshgrid(*seen[0].terms.offsets, indexing="ij"), axis=-1).reshape(-1, 3) * grid.spacing
    coefficients = vectors[seen[0].solution.labels].T.reshape(3, *grid.nodes).astype(np.float32)
    d = _core.ffd(coefficients, grid.origin, grid.spacing, (32, 32, 32))
    assert np.abs(d).max() > 0.5
    there = np.indices((32, 32, 32)) + d
    expected = d + np.stack([ndimage.map_coordinates(c, there, order=1, mode="nearest") for c in u])
    np.testing.assert_allclose(found.displacement, expected, atol=1e-4)
    # Elastic smoothness counts what the nodes have so far.
    axes = [grid.origin[a] + np.arange(grid.nodes[a]) * grid.spacing[a] for a in range(3)]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"))
    at_nodes = [ndimage.map_coordinates(c, nodes, order=1, mode="nearest").ravel() for c in u]
    np.testing.assert_allclose(seen[1].terms.base, np.stack(at_nodes, axis=-1) / grid.spacing, atol=1e-4)


def test_neither_loss_nor_threads_change_the_result(pair, registered):
    seen = []
    found = align(pair, weights(), schedule(), on_step=seen.append)
    assert np.array_equal(found.displacement, registered.displacement)
    for s in seen:
        assert 0 <= loss_of(dataclasses.replace(s.terms, loss=s.loss()), s.solution.labels) <= len(s.solution.labels)
    # The structures that count are those asked for, else all of the moving mask.
    seen = []
    align(pair, weights(), schedule(), on_step=seen.append)
    every, one, listed, absent = (seen[0].loss(chosen) for chosen in (None, (3,), (1, 2, 3, 4, 5, 6), (99,)))
    assert np.array_equal(every, listed)
    assert not np.array_equal(every, one)
    assert np.abs(absent).max() == 0
    keep = [LabelMap(np.where(m.data == 3, 3, 0), m.geometry) for m in (pair.fixed_labels, pair.moving_labels)]
    only = pair.with_fixed(labels=keep[0]).with_moving(labels=keep[1])
    again = []
    align(only, weights(), schedule(), on_step=again.append)
    assert np.array_equal(again[0].loss(), one)
    w = WeightTable(np.array([[0.2, 0.9], [0.8, 0.1]]), MEMBERS, (0, 3), 0.1)
    results = []
    for n in (1, 2, 3):
        with kernel_threads(n):
            results.append(align(pair, w, schedule(class_at="displaced", pairwise="elastic")).displacement)
            assert np.array_equal(align(pair, weights(), schedule()).displacement, registered.displacement)
    assert all(np.array_equal(results[0], r) for r in results[1:])


@pytest.mark.parametrize("engine", ["trws", "fastpd", "icm"])
@pytest.mark.parametrize("pairwise", ["fluid", "elastic"])
def test_every_step_brings_its_certificate(pair, engine, pairwise):
    seen = []
    found = align(pair, weights(), schedule(engine=engine, pairwise=pairwise), on_step=seen.append)
    assert [(s.level, s.step) for s in found.steps] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert [s.spacing_mm for s in found.steps] == [48.0] * 3 + [24.0] * 2
    for record, step in zip(found.steps, seen, strict=True):
        assert record.lower_bound <= record.energy + 1e-9
        assert record.energy == step.solution.energy
        assert record.n_labels == 27
        assert record.n_nodes == int(np.prod(step.terms.shape))
        assert set(record.seconds) == {"costs", "inference", "compose"}
        assert (step.terms.base is None) == (pairwise == "fluid")
        if engine == "trws":
            assert record.gap < 0.01
    assert mean_dice(pair, found) > 0.1


def test_class_weights_change_the_result(pair):
    w = WeightTable(np.array([[0.0, 1.0], [1.0, 0.0]]), MEMBERS, (0, 3), 0.1)
    results = {}
    for rule in ("count", "foreground", "share"):
        for at in ("anchored", "displaced"):
            found = align(pair, w, schedule(class_rule=rule, class_at=at))
            results[rule, at] = found.displacement
    same_columns = align(pair, weights(classes=(0, 3)), schedule(class_rule="share"))
    one_column = align(pair, weights(), schedule())
    np.testing.assert_allclose(same_columns.displacement, one_column.displacement, atol=1e-4)
    for key, u in results.items():
        assert not np.array_equal(u, one_column.displacement) or key[0] == "count", key
    assert not np.array_equal(results["share", "anchored"], results["share", "displaced"])
    assert not np.array_equal(results["share", "anchored"], results["foreground", "anchored"])
    # Shares follow the moving mask.
    seen = []
    w = weights(classes=(0, 3))
    align(pair, w, schedule(class_rule="share"), on_step=seen.append)
    align(pair, w, schedule(class_rule="share", class_at="displaced"), on_step=seen.append)
    anchored, displaced = seen[0].terms.shares, seen[5].terms.shares
    assert displaced.shape == (*anchored.shape[:1], 27, 2)
    np.testing.assert_allclose(displaced[:, 13], anchored, atol=1e-5)  # label 13 does not move
    np.testing.assert_allclose(anchored.sum(axis=1), 1.0, atol=1e-5)
    assert anchored[:, 1].max() > 0
    align(pair.with_moving(labels=None), w, schedule(), on_step=seen.append)
    assert (seen[10].terms.shares == [1, 0]).all()


def test_nodes_outside_the_moving_image_have_no_opinion(pair):
    far = moved_by(pair.fixed, (150.0, 0.0, 0.0))
    seen = []
    align(ImagePair(pair.fixed, far), weights(), schedule(), on_step=seen.append)
    costs = seen[0].terms.costs.reshape(2, *seen[0].terms.shape, 27)
    assert (costs[:, 0] == 0).all()
    assert (costs[:, -1] > 0).any()
    seen = []
    align(pair, weights(), schedule(), on_step=seen.append)
    for step in seen:
        for offsets in step.terms.offsets:
            np.testing.assert_allclose(offsets, np.array([-1, 0, 1]) * 0.2 * 0.66**step.step)


@pytest.mark.parametrize("smoothness", [1e-6, 0.1])
def test_nothing_folds(pair, smoothness):
    strong = [{"spacing_mm": 30.0, "labels_per_axis": 5, "steps": 4, "step_decay": 1.0}]
    found = align(pair, weights(smoothness), schedule(levels=strong))
    assert np.abs(found.displacement).max() > 1
    assert determinant(to_field(found.displacement, pair.fixed.geometry)).min() > 0


def test_what_does_not_fit_is_refused_and_arguments_are_left_alone(pair, registered):
    with pytest.raises(ValueError, match=r"members \['sad', 'mi'\], the bank has \['sad', 'ncc'\]"):
        align(pair, WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1), schedule())
    with pytest.raises(ValueError, match="members"):
        align(pair, WeightTable.constant(dict.fromkeys(("ncc", "sad"), 1.0), 0.1), schedule())
    unlabelled = pair.with_fixed(labels=None)
    with pytest.raises(ValueError, match="give fixed_labels and moving_labels"):
        align(unlabelled, weights(), schedule(), on_step=lambda step: step.loss())
    copies = [v.data.copy() for v in (pair.fixed, pair.moving, pair.fixed_labels, pair.moving_labels)]
    align(pair, weights(), schedule(), on_step=lambda step: step.loss())
    for before, now in zip(copies, (pair.fixed, pair.moving, pair.fixed_labels, pair.moving_labels), strict=True):
        assert np.array_equal(before, now.data)
    bank = (*BANK, {"name": "late", "metric": "mind", "stage": "refine"})
    w = WeightTable(np.array([[0.25], [0.25], [0.5]]), (*MEMBERS, "late"), (0,), 0.1)
    found = align(pair, w, schedule(bank=bank))
    assert np.array_equal(found.displacement, registered.displacement)
    # Labels beyond 32 bits choose their weights.
    labels, big = pair.moving_labels, 3_000_000_000
    changed = np.where(labels.data == 3, np.uint32(big), labels.data.astype(np.uint32))
    w = WeightTable(np.array([[0.5, 1.0], [0.5, 0.0]]), MEMBERS, (0, 3), 0.1)
    relabelled = pair.with_moving(labels=LabelMap(changed, labels.geometry))
    found = align(relabelled, dataclasses.replace(w, classes=(0, big)), schedule()).displacement
    assert np.array_equal(found, align(pair, w, schedule()).displacement)
