"""Network as a predictor: its grid over an image, what it tells, and what a file keeps of it."""

import sys
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

from regweave import predictors
from regweave.errors import RegweaveWarning, UsageError
from regweave.measures.scores import dice
from regweave.predictors import Examples, Parts
from regweave.predictors.unet import (
    Network,
    NetworkGrid,
    NetworkPredictor,
    layer_shapes,
    likeliest,
    load,
    mirror_places,
    spared,
    strides_for,
)
from regweave.types import Geometry, LabelMap, Volume

STRIDES = ((2, 2, 1), (2, 2, 2))
TURNED = np.array([[0, -2.0, 0, 5], [0, 0, 2.0, -3], [3.0, 0, 0, 1], [0, 0, 0, 1]])
"""Axes along S, -L and P."""


def predictor(modality="mr", n_classes=3, spacing_mm=(2.0, 2.0, 3.0)) -> NetworkPredictor:
    shapes = layer_shapes(2 if modality == "ct" else 1, 8, n_classes, len(STRIDES) + 1)
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s).astype(np.float16) for n, s in shapes.items()}
    classes = (0, 4, 7, 9, 12)[:n_classes]
    return NetworkPredictor(classes, modality, spacing_mm, Network.of(arrays, STRIDES), {4: "a", 7: "b"})


def image(shape=(10, 12, 8), affine=TURNED) -> Volume:
    return Volume(np.random.default_rng(1).normal(100, 20, shape).astype(np.float32), Geometry(shape, affine))


def test_the_grid_covers_the_box_and_samples_the_image():
    given = Geometry((10, 12, 8), TURNED)  # spacing 3 along S, 2 along L, 2 along P
    grid = NetworkGrid.of(given, (1.7, 2.4, 3.7))  # about the network's voxels
    assert grid.laid.shape == (10, 12, 8)
    np.testing.assert_array_equal(grid.laid.affine, TURNED)
    grid = NetworkGrid.of(given, (4.1, 1.0, 3.0))
    assert grid.laid.shape == (10, 6, 16)
    np.testing.assert_allclose(grid.laid.spacing_mm, (3, 4, 1))
    for end in (0, 1):  # outer faces of the first and the last voxel
        faces = [g.points(np.array(g.shape) * end - 0.5) for g in (given, grid.laid)]
        np.testing.assert_allclose(*faces, atol=1e-9)
    given = Geometry((10, 12, 8), TURNED)
    grid = NetworkGrid.of(given, (4.1, 1.0, 3.0))

    def linear(points):
        return points @ (1.0, 2.0, -0.5)

    index = np.stack(np.meshgrid(*(np.arange(n) for n in given.shape), indexing="ij"), axis=-1)
    seen = grid.seen(linear(given.points(index)).astype(np.float32))
    assert seen.shape == (6, 16, 10)
    inner = np.stack(np.meshgrid(*(np.arange(n) for n in grid.laid.shape), indexing="ij"), axis=-1)
    truth = linear(grid.laid.points(inner)).transpose(1, 2, 0)[::-1]
    np.testing.assert_allclose(seen[:, 1:-1], truth[:, 1:-1], atol=1e-3)  # beyond the outer voxels it is constant
    back = grid.along_image(seen[None])[0]
    np.testing.assert_allclose(back[:, :, 1:-1], truth[::-1].transpose(2, 0, 1)[:, :, 1:-1], atol=1e-3)


def test_a_crop_is_surrounded_and_a_wide_image_warned_of():
    given = image(affine=np.diag([2.0, 2.0, 3.0, 1.0]))
    told = replace(predictor(), shape=(15, 12, 9))
    padded = np.pad(given.data, [(2, 3), (0, 0), (0, 1)], constant_values=given.data.min())
    around, _ = predictor().shares(Volume(padded, Geometry(padded.shape, given.geometry.affine)))
    shares, grid = told.shares(given)
    assert grid.laid.shape == given.data.shape
    np.testing.assert_array_equal(shares, around[:, 2:12, :, :8])
    assert not np.array_equal(shares, predictor().shares(given)[0])
    assert load(told.save()).shape == (15, 12, 9)
    usual = replace(predictor(), shape=(10, 10, 8))
    wide = image((10, 12, 20), np.diag([2.0, 2.0, 3.0, 1.0]))
    with pytest.warns(RegweaveWarning, match=r"W215.*10 × 12 × 20.*10 × 10 × 8"):
        usual.maps(wide)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usual.maps(image((10, 12, 9), np.diag([2.0, 2.0, 3.0, 1.0])))


def test_finer_image_is_averaged_over_whole_voxels_whose_class_has_the_largest_share():
    data = np.random.default_rng(0).random((8, 8, 8)).astype(np.float32)
    seen = NetworkGrid.of(Geometry((8, 8, 8), np.eye(4)), (2.0, 1.0, 4.0)).seen(data)
    np.testing.assert_allclose(seen, data.reshape(4, 2, 8, 1, 2, 4).mean(axis=(1, 3, 5)), atol=1e-6)
    numbers = np.zeros((4, 4, 4), dtype=np.int32)
    numbers[:2] = 2
    numbers[0, 0, 0] = 1
    found = NetworkGrid.of(Geometry((4, 4, 4), np.eye(4)), (2.0, 2.0, 2.0)).numbers(numbers)
    assert found.dtype == np.uint8
    assert found[0].tolist() == [[2, 2], [2, 2]]
    assert not found[1].any()
    shares = np.random.default_rng(0).integers(0, 3, (4, 50)).astype(np.float32)
    np.testing.assert_array_equal(likeliest(iter(shares)), shares.argmax(axis=0))  # the first of equals


def test_maps_and_labels_agree_and_those_of_a_finer_image_are_interpolated():
    found, volume = predictor(), image()
    maps, labels = found.maps(volume), found.labels(volume)
    assert maps.shares.shape == (2, 10, 12, 8)
    np.testing.assert_array_equal(maps.geometry.affine, volume.geometry.affine)
    whole = np.concatenate([1 - maps.shares.sum(axis=0, keepdims=True), maps.shares])
    agree = np.array(found.classes)[whole.argmax(axis=0)] == labels.data
    assert agree.mean() > 0.999
    assert labels.names == {4: "a", 7: "b"}
    found, volume = predictor(spacing_mm=(4.0, 4.0, 6.0)), image((16, 16, 16))
    labels, maps = found.labels(volume), found.maps(volume)
    assert maps.shares.shape[1:] == (8, 8, 8)
    assert labels.data.shape == (16, 16, 16)
    blocks = labels.data.reshape(8, 2, 8, 2, 8, 2)
    assert (blocks != blocks[:, :1, :, :1, :, :1]).any()  # edges are not those of the coarse voxels


def test_storage_order_of_the_axes_changes_nothing():
    found, volume = predictor(), image()
    flipped = np.eye(4)
    flipped[1, 1], flipped[1, 3] = -1, 11
    order = [2, 0, 1]
    moved = Volume(
        np.ascontiguousarray(volume.data[:, ::-1].transpose(order)),
        Geometry((8, 10, 12), (TURNED @ flipped)[:, [*order, 3]]),
    )
    np.testing.assert_array_equal(
        found.maps(moved).shares, found.maps(volume).shares[:, :, ::-1].transpose(0, *(1 + np.array(order)))
    )


def test_saved_and_loaded_it_tells_the_same_and_what_does_not_fit_is_refused():
    for modality in ("ct", "mr"):
        found, volume = predictor(modality), image()
        parts = found.save()
        again = predictors.load(Parts.from_json(parts.to_json(arrays=False), parts.arrays))
        assert all(array.dtype == np.float16 for array in parts.arrays.values())
        np.testing.assert_array_equal(again.maps(volume).shares, found.maps(volume).shares)
        assert again.save().identity() == parts.identity()
    parts = predictor().save()
    for change, said in (
        ({"input": 99}, "Input should be 1"), ({"classes": [0, 4]}, "2 classes, but the network has 3"),
        ({"ignored": [1]}, "3 classes, but the network has 2"), ({"ignored": [9]}, "ignored outputs are"),
        ({"modality": "ct"}, "1 channels does not read 'ct'"), ({"modality": "xx"}, "Input should be 'ct' or 'mr'"),
        ({"spacing_mm": [1.0, float("nan"), 1.0]}, "finite number"), ({"spacing_mm": [1.0, 1.0]}, "Field required"),
        ({"strides": [[2, 2, 9], [2, 2, 2]]}, "less than or equal to 2"),
        ({"strides": [[2, 2, 2]]}, "no layer of a U-Net of 2 scales"), ({"mirrored": [0, 1]}, "change places"),
        ({"mirrored": [1, 2, 0]}, "change places"), ({"mirrored": [0, 1, 3]}, "change places"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            load(replace(parts, fields={**parts.fields, **change}))


def test_ignored_outputs_become_background():
    whole, volume = predictor(n_classes=5), image()
    every = whole.maps(volume).shares
    some = replace(whole, classes=(0, 4, 12), ignored=(2, 3))
    np.testing.assert_array_equal(some.maps(volume).shares, every[[0, 3]])
    likely = np.concatenate([1 - every[[0, 3]].sum(axis=0, keepdims=True), every[[0, 3]]]).argmax(axis=0)
    assert (some.labels(volume).data == np.array([0, 4, 12])[likely]).mean() > 0.999
    assert load(some.save()).save().identity() == some.save().identity()


def ball(seed: int, shape=(16, 16, 12)) -> tuple[Volume, LabelMap]:
    """A bright ball somewhere in a noisy image."""
    rng = np.random.default_rng(seed)
    index = np.moveaxis(np.indices(shape), 0, -1)
    inside = ((index - (np.array(shape) / 2 + rng.uniform(-2, 2, 3))) ** 2).sum(axis=-1) < 16
    geometry = Geometry(shape, TURNED)
    data = 100 * inside + rng.normal(50, 10, shape)
    return Volume(data.astype(np.float32), geometry), LabelMap(inside.astype(np.int32) * 4, geometry, {4: "ball"})


def examples() -> Examples:
    volumes, maps = zip(*(ball(seed) for seed in range(3)), strict=True)
    return Examples(volumes, maps, (0, 4), "mr")


QUICK = {"width": 8, "steps": 40, "device": "cpu"}


@dataclass(frozen=True)
class Fit:
    examples: Examples
    told: list[tuple[int, int, float]]
    predictor: NetworkPredictor


@pytest.fixture(scope="module")
def fit(tmp_path_factory) -> Fit:
    pytest.importorskip("torch")
    told: list[tuple[int, int, float]] = []
    kept = tmp_path_factory.mktemp("fit") / "kept.safetensors"
    known = replace(examples(), checkpoint=kept, tell=lambda *seen: told.append(seen))
    return Fit(known, told, predictors.fit("unet", known, **QUICK))


def test_trained_network_finds_the_structure_in_another_image(fit):
    (volume, truth), found = ball(9), fit.predictor
    labels = found.labels(volume)
    assert dice(labels, truth)[4] > 0.8
    assert labels.names == {4: "ball"}
    assert found.spacing_mm == (2.0, 2.0, 3.0)
    assert found.network.strides == strides_for((2.0, 2.0, 3.0), (16, 12, 16))
    other = replace(found, spacing_mm=(4.0, 4.0, 6.0))  # another fitted like it has its voxels and strides
    again = predictors.fit("unet", examples(), other, **{**QUICK, "steps": 1})
    assert again.spacing_mm == other.spacing_mm
    assert again.network.strides == other.network.strides


def test_fit_tells_where_it_is_and_goes_on_from_where_it_was(fit):
    assert [(step, steps) for step, steps, _ in fit.told] == [(10, 40), (20, 40), (30, 40), (40, 40)]
    fit.told.clear()
    again = predictors.fit("unet", fit.examples, **QUICK)
    assert fit.told == []  # all steps are done
    assert again.save().identity() == fit.predictor.save().identity()
    with pytest.raises(ValueError, match=r"no training label map shows class \[3\]"):
        predictors.fit("unet", replace(examples(), classes=(0, 4, 3)))


def test_patients_are_spared_whole():
    groups = [f"p{n % 17}" for n in range(120)]
    found = spared(groups, 3)
    assert {groups[n] for n in found}.isdisjoint(groups[n] for n in range(120) if n not in found)
    assert len({groups[n] for n in found}) == 1
    assert spared(groups[:99], 3) == ()
    assert len({spared(groups, seed) for seed in range(20)}) > 5


def test_training_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("regweave.extras.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"E158.*training a network needs the package torch") as caught:
        predictors.fit("unet", examples())
    assert 'pip install "regweave[net]"' in str(caught.value)


def test_sides_go_by_name_and_a_mirrored_network_tells_both_alike():
    found = replace(predictor(), names={4: "left x", 7: "right x"}, mirrored=(0, 2, 1))
    volume = image(affine=np.diag([2.0, 2.0, 3.0, 1.0]))
    other = Volume(np.ascontiguousarray(volume.data[::-1]), volume.geometry)
    here, there = found.maps(volume).shares, found.maps(other).shares
    np.testing.assert_allclose(here, there[::-1, ::-1], atol=1e-6)
    one_way = replace(found, mirrored=()).maps(volume).shares
    assert np.abs(here - one_way).max() > 1e-3
    assert load(found.save()).mirrored == (0, 2, 1)
    names = {1: "Parotid_L", 2: "brainstem", 3: "RightParotid", 5: "cord"}
    assert mirror_places((0, 1, 2, 3, 5), names) == (0, 3, 2, 1, 4)
    with pytest.raises(UsageError, match=r"E194.*no counterpart"):
        mirror_places((0, 1, 2), names)
