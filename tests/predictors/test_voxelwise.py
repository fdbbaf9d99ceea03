"""The class predictor: its parts against loops, planted classes found, and that it is nothing but its numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from regweave import predictors
from regweave._core import perceptron_cross_entropy
from regweave._core.builds import load, usable
from regweave.io.images import read_image, read_labels
from regweave.predictors import BLUR_VOXELS, Examples, Parts, maps_from_labels, perceptron as voxelwise
from regweave.predictors._features import Sizes, WorkingGrid, features
from regweave.predictors.perceptron import Options, VoxelPredictor, fit_perceptron
from regweave.threads import kernel_threads
from regweave.types import Geometry, LabelMap, Volume

SHAPE = (26, 24, 20)
CLASSES = (0, 2, 5)


def planted(seed: int, scale: float = 100.0, affine=None) -> tuple[Volume, LabelMap]:
    """A body with a bright ball at its left and another, equally bright, at its right, and a dark rest."""
    rng = np.random.default_rng(seed)
    index = np.moveaxis(np.indices(SHAPE), 0, -1) - (np.array(SHAPE) - 1) / 2
    body = ((index / [11, 10, 9]) ** 2).sum(axis=-1) < 1
    labels = np.zeros(SHAPE, dtype=np.int16)
    for value, side in ((2, -5), (5, 5)):
        centre = np.array([side, 0, 0]) + rng.uniform(-1, 1, 3)
        labels[((index - centre) ** 2).sum(axis=-1) < 3.5**2] = value
    image = 0.4 * body + 0.4 * (labels > 0) + ndimage.gaussian_filter(rng.normal(0, 0.06, SHAPE), 0.5)
    geometry = Geometry(SHAPE, np.diag([2.0, 2.0, 2.5, 1.0]) if affine is None else affine)
    image = np.maximum(image, 0)
    return Volume((scale * image).astype(np.float32), geometry), LabelMap(labels, geometry, {2: "left", 5: "right"})


QUICK = {"samples": 2000, "steps": 30}
"""Fewer than usual: the planted classes need no more."""


@pytest.fixture(scope="module")
def training():
    volumes, labels = zip(*(planted(seed, 10.0 ** (seed % 3)) for seed in range(5)), strict=True)
    return volumes, labels


def fit(volumes, labels, classes=CLASSES, modality="mr", *, like=None, **more) -> VoxelPredictor:
    return predictors.fit("perceptron", Examples(volumes, labels, classes, modality, **more), like, **QUICK)


@pytest.fixture(scope="module")
def predictor(training) -> VoxelPredictor:
    return fit(*training)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


def test_finds_planted_classes_with_chances_whose_largest_is_the_prediction(predictor):
    volume, labels = planted(77, 1234.0)
    found = predictor.labels(volume)
    assert found.geometry is volume.geometry
    assert found.name(5) == "right"
    assert set(np.unique(found.data)) <= set(CLASSES)
    assert min(dice(found.data == c, labels.data == c) for c in CLASSES[1:]) > 0.8
    volume, _ = planted(78)
    found = predictor.maps(volume)
    shares = found.shares
    assert shares.shape == (2, *SHAPE)
    assert shares.dtype == np.float32
    assert shares.min() >= 0
    background = 1 - shares.sum(axis=0)
    assert background.min() > -1e-5
    whole = np.concatenate([background[None], shares])
    np.testing.assert_array_equal(np.array(CLASSES)[whole.argmax(axis=0)], predictor.labels(volume).data)
    np.testing.assert_array_equal(found.geometry.affine, volume.geometry.affine)
    for shape in ((9, 1, 7), (3, 3, 3)):
        image = Volume(np.zeros(shape, dtype=np.float32), Geometry(shape, np.eye(4)))
        image.data[0] = 1
        assert predictor.labels(image).data.shape == shape
        assert np.isfinite(predictor.maps(image).shares).all()


def test_maps_lie_where_the_image_does_at_any_scale_and_order(predictor):
    # Each voxel of the image was cut into 4 × 4 × 1, so its blocks are the voxels that were.
    volume, planted_labels = planted(81)
    large = replace(predictor, sizes=Sizes(2.0, 2.0))
    fine = np.ascontiguousarray(volume.data.repeat(4, axis=0).repeat(4, axis=1))
    affine = np.diag([0.5, 0.5, 2.5, 1.0])
    affine[:3, 3] = (-0.75, -0.75, 0.0)
    found, coarse = large.maps(Volume(fine, Geometry(fine.shape, affine))), large.maps(volume)
    np.testing.assert_allclose(found.geometry.affine, volume.geometry.affine)
    np.testing.assert_allclose(found.shares, coarse.shares, atol=5e-3)  # the window is from percentiles
    fine = fine[:-1]
    labels = predictor.labels(Volume(fine, Geometry(fine.shape, affine))).data
    truth = planted_labels.data.repeat(4, axis=0).repeat(4, axis=1)[:-1]
    assert min(dice(labels == c, truth == c) for c in CLASSES[1:]) > 0.75
    volume, _ = planted(80)
    data = np.ascontiguousarray(volume.data.transpose(2, 0, 1)[:, ::-1])
    affine = np.eye(4)
    affine[:3, :3] = [[0, -2.0, 0], [0, 0, 2.0], [2.5, 0, 0]]
    turned = predictor.maps(Volume(data, Geometry(data.shape, affine)))
    expected = predictor.maps(volume).shares.transpose(0, 3, 1, 2)[:, :, ::-1]
    np.testing.assert_array_equal(turned.shares, expected)
    np.testing.assert_array_equal(turned.geometry.affine, affine)


def test_maps_of_labels_are_the_share_of_each_structure_in_a_block(predictor):
    _, labels = planted(82)
    predictor = replace(predictor, sizes=Sizes(2.0, 2.0))
    fine = labels.data.repeat(4, axis=0).repeat(4, axis=1)
    fine[0, 0, 0] = 2  # one voxel of sixteen
    outline = maps_from_labels(LabelMap(fine, Geometry(fine.shape, np.diag([0.5, 0.5, 2.5, 1.0]))), predictor)
    for share, value in zip(outline.shares, (2, 5), strict=True):
        mask = (labels.data == value).astype(np.float32)
        mask[0, 0, 0] = 1 / 16 if value == 2 else 0
        expected = ndimage.gaussian_filter(mask, BLUR_VOXELS, mode="nearest", truncate=3.0)
        np.testing.assert_allclose(share, expected, atol=1e-6)
    np.testing.assert_allclose(outline.geometry.spacing_mm, [2.0, 2.0, 2.5])


def test_the_rarity_of_another_is_taken_without_holding_images_out(predictor, training, monkeypatch):
    monkeypatch.setattr(voxelwise, "_score", lambda *_: pytest.fail("scored"))
    other = replace(predictor, record={"rarity": 0.5})
    found = fit(training[0][:2], training[1][:2], like=other)
    assert found.record == {"rarity": 0.5}
    record = predictor.record  # what images held out tell
    assert set(record["dice"]) == {"2", "5"}
    assert record["n_images"] == 5
    assert record["mean_dice"] > 0.75
    assert record["accuracy"] > 0.95
    assert record["rarity"] in voxelwise.RARITY


def test_json_gives_back_the_same_predictor_or_refuses(predictor):
    content = predictor.save().to_json()
    back = predictors.load(Parts.from_json(json.loads(json.dumps(content))))
    assert back.save().to_json() == content
    assert "kind" not in content
    volume, _ = planted(79)
    np.testing.assert_array_equal(back.maps(volume).shares, predictor.maps(volume).shares)
    content = predictor.save().to_json()
    arrays = content["perceptron"]

    def load(**change):
        return predictors.load(Parts.from_json({**content, **change}))

    with pytest.raises(ValueError, match="Input should be 2 or 3"):
        load(features=0)
    with pytest.raises(ValueError, match="2 classes, but the classifier has 3"):
        load(classes=[0, 2])
    with pytest.raises(ValueError, match="do not fit"):
        load(perceptron={**arrays, "hidden_bias": arrays["hidden_bias"][1:]})
    with pytest.raises(ValueError, match=r"class_predictor\.perceptron\.hidden_bias is no array of numbers"):
        load(perceptron={**arrays, "hidden_bias": ["x"]})
    with pytest.raises(KeyError):
        load(perceptron={})
    n, fewer = len(arrays["hidden"]), {**arrays, "hidden": arrays["hidden"][1:]}
    with pytest.raises(ValueError, match=f"{n - 1} features, mr images have {n}"):
        load(perceptron=fewer)
    finer = replace(predictor, sizes=Sizes(1.0, 2.5))
    assert predictors.load(Parts.from_json(finer.save().to_json())).sizes == finer.sizes
    before = {"features": 2, "voxel_mm": 2.0}  # of earlier versions: the unit is the voxel
    content.pop("unit_mm", None)
    assert load(**before).sizes == Sizes(2.0, 2.0)
    with pytest.raises(ValueError, match="Input should be 2 or 3"):
        load(**before | {"features": 4})


def test_folds_keep_patients_whole_and_fits_repeat_or_refuse(training):
    volumes, labels = training
    found = fit(volumes[:2], labels[:2], groups=["p", "p"])  # one patient has nothing to hold out
    assert found.record == {"rarity": voxelwise.DEFAULT_RARITY}
    groups = ["a", "b", "a", "c", "d", "b", "d"]
    folds = voxelwise._folds(groups)
    assert sorted(n for _, held_out in folds for n in held_out) == list(range(7))
    for rest, held_out in folds:
        assert not {groups[n] for n in rest} & {groups[n] for n in held_out}
        assert sorted([*rest, *held_out]) == list(range(7))
    first, again, other = (fit(training[0][:2], training[1][:2], seed=seed).save().to_json() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    np.testing.assert_array_equal(voxelwise.numbers_of(np.array([0, 2, 9, 5, 2]), CLASSES), [0, 1, 0, 2, 1])
    for change, message in (
        ({"classes": (0, 2, 8)}, r"no training label map shows class \[8\]"),
        ({"classes": (2, 5)}, "give 0, the background"),
        ({"classes": (0,)}, "give 0, the background"),
        ({"groups": ["a"]}, "5 images, 5 label maps, groups: 1"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(*training, **{"classes": CLASSES, "modality": "mr", **change})


def test_blocks_of_the_working_grid_against_a_loop():
    affine = np.eye(4)
    affine[:3, :3] = [[0, 0, 1.5], [-1.0, 0, 0], [0, -3.0, 0]]
    shape = (9, 4, 7)
    grid = WorkingGrid.of(Geometry(shape, affine), 3.0)
    assert grid.factors == (2, 1, 1)
    assert grid.order == (2, 0, 1)
    assert grid.steps == (1, -1, -1)
    np.testing.assert_allclose(grid.spacing_mm, [1.5, 2.0, 3.0])
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    coarse = grid.coarse(image)
    expected = np.zeros(shape)
    for i in range(9):
        block = image[2 * (i // 2) : 2 * (i // 2) + 2]
        expected[i] = block.mean(axis=0)
    np.testing.assert_allclose(grid.fine(coarse), expected, atol=1e-6)
    # L grows with k, P against i, S against j.
    assert coarse[3, 4, 1] == pytest.approx(image[0:2, 2, 3].mean(), abs=1e-6)
    np.testing.assert_array_equal(grid.fine(np.stack([coarse, -coarse])), [grid.fine(coarse), -grid.fine(coarse)])


def test_maps_have_the_voxels_of_the_image_up_to_a_limit_and_see_as_far_as_before():
    def sizes(shape, *spacing):
        return Sizes.of([Geometry(shape, np.diag([*spacing, 1.0]))])

    assert sizes((80, 96, 80), 2.0, 2.0, 2.0) == Sizes(2.0, 3.0)
    assert sizes((256, 128, 256), 1.0, 1.5, 1.0) == Sizes(2.0, 4.0)
    assert sizes((64, 64, 10), 2.5, 2.5, 10.0) == Sizes(2.5, 2.5)
    rng = np.random.default_rng(0)
    fine = ndimage.gaussian_filter(rng.random((40, 40, 40)), 4.0).astype(np.float32)
    volume = Volume(fine, Geometry((40, 40, 40), np.diag([1.0, 1.0, 1.0, 1.0])))
    found, coarse = (features(volume, WorkingGrid.of(volume.geometry, mm), "mr", 2.0) for mm in (1, 2))
    away = slice(6, 12)  # 2 units along each axis
    inner = found[away].reshape(6, 20, 2, 20, 2, 20, 2).mean(axis=(2, 4, 6))[:, 5:-5, 5:-5, 5:-5]
    np.testing.assert_allclose(inner, coarse[away, 5:-5, 5:-5, 5:-5], atol=0.02)
    assert coarse[away].std() > 0.1


def test_features_at_a_voxel_against_their_words():
    volume, _ = planted(4)
    grid = WorkingGrid.of(volume.geometry, 2.0)
    found = features(volume, grid, "mr", 2.0)
    low, high = np.percentile(volume.data, (0.5, 99.5))
    image = ((volume.data - low) / (high - low)).clip(0, 1)
    v = (12, 9, 11)
    body = image[image > 0.1]
    assert found.shape == (45, *SHAPE)
    assert found[(0, *v)] == pytest.approx(image[v], abs=1e-5)
    assert found[(1, *v)] == pytest.approx((body < image[v]).mean(), abs=5e-3)
    step = np.array([1.0, 1.0, 0.8])
    smooth = [ndimage.gaussian_filter(image, s * step, mode="nearest", truncate=3) for s in (1, 2, 4)]
    np.testing.assert_allclose(found[2:5][(slice(None), *v)], [s[v] for s in smooth], atol=1e-5)
    slope = [smooth[0][13, 9, 11] - smooth[0][11, 9, 11], smooth[0][12, 10, 11] - smooth[0][12, 8, 11]]
    slope.append(0.8 * (smooth[0][12, 9, 12] - smooth[0][12, 9, 10]))
    assert found[(5, *v)] == pytest.approx(np.linalg.norm(slope), abs=1e-5)
    assert found[(6, *v)] == pytest.approx(smooth[0][14, 9, 11], abs=1e-5)  # 2 along L
    assert found[(15, *v)] == pytest.approx(smooth[0][12, 5, 11], abs=1e-5)  # 4 against P
    assert found[(23, *v)] == pytest.approx(smooth[1][12, 9, 5], abs=1e-5)  # 7 · 0.8 against S
    assert found[(36, *v)] == pytest.approx(smooth[2][25, 9, 11], abs=1e-5)  # 26 along L: the border
    assert found[-3:].min() < -1
    assert np.abs(found[-3:][(slice(None), *v)]).max() < 0.4


@pytest.mark.data
def test_real_hippocampi(data_root):
    folders = sorted((data_root / "msd_hippocampus").iterdir())[:9]
    volumes = [read_image(f / "image.nii.gz") for f in folders]
    labels = [read_labels(f / "labels.nii.gz") for f in folders]
    found = fit(volumes[:6], labels[:6], (0, 1, 2))
    assert found.record["mean_dice"] > 0.65
    scores = [
        dice(found.labels(v).data == c, m.data == c)
        for v, m in zip(volumes[6:], labels[6:], strict=True)
        for c in (1, 2)
    ]
    assert np.mean(scores) > 0.65


# Cross-entropy of a perceptron against plain NumPy, the same bits for any number of threads, and its fit.
def layers(f: int, h: int, c: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.3 * rng.normal(size=shape) for shape in ((f, h), (h,), (h, c), (c,))]


def rows(n: int, f: int, c: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, f)).astype(np.float32), rng.integers(0, c, n).astype(np.int32)


def slow_value(x: np.ndarray, classes: np.ndarray, parts: list[np.ndarray]) -> float:
    w, b, v, c = parts
    total = 0.0
    for row, wanted in zip(x.astype(np.float64), classes, strict=True):
        z = np.tanh(row @ w + b) @ v + c
        total += np.log(np.exp(z).sum()) - z[wanted]
    return total


@pytest.mark.parametrize("sizes", [(5, 3, 2), (7, 5, 3), (46, 48, 4), (9, 24, 11)])
@pytest.mark.parametrize("build", usable())
def test_value_and_gradient_are_those_of_the_definition(sizes, build):
    (x, classes), parts = rows(300, sizes[0], sizes[2], 1), layers(*sizes, 2)
    value, gradient = load(build).perceptron_cross_entropy(x, classes, *parts)
    assert value == pytest.approx(slow_value(x, classes, parts), rel=1e-6)
    place, step = 0, 1e-4
    for part in parts:
        for index in (0, part.size // 2, part.size - 1):
            moved = []
            for sign in (1, -1):
                changed = [p.copy() for p in parts]
                changed[[p is part for p in parts].index(True)].flat[index] += sign * step
                moved.append(slow_value(x, classes, changed))
            assert gradient[place + index] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-4, abs=2e-3)
        place += part.size
    assert place == len(gradient)


def test_large_scores_stay_finite_and_threads_change_no_bit():
    x, classes = rows(50, 4, 3, 3)
    value, gradient = perceptron_cross_entropy(1e3 * x, classes, *(1e3 * p for p in layers(4, 6, 3, 4)))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    (x, classes), parts = rows(5000, 46, 4, 5), layers(46, 48, 4, 6)
    found = []
    for n in (1, 2, 7):
        with kernel_threads(n):
            found.append(perceptron_cross_entropy(x, classes, *parts))
    assert len({value for value, _ in found}) == 1
    assert len({gradient.tobytes() for _, gradient in found}) == 1


def test_fits_divide_classes_and_heed_the_penalty():
    x = np.random.default_rng(7).normal(size=(2000, 3))
    classes = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    x = x * [1000, 0.01, 3] + [5000, 3, 5]
    found = fit_perceptron(x, classes, 2, np.random.default_rng(8), Options(hidden=12))
    guess = found.scores(x.astype(np.float32)).argmax(axis=1)
    assert (guess == classes).mean() > 0.97
    x, classes = np.random.default_rng(9).normal(size=(600, 2)), np.repeat([0, 0, 1], 200).astype(np.int32)
    found = fit_perceptron(x, classes, 2, np.random.default_rng(10), Options(hidden=4, penalty=1.0))
    assert max(np.abs(found.hidden).max(), np.abs(found.output).max()) < 1e-3
    assert np.diff(found.output_bias)[0] == pytest.approx(np.log(0.5), abs=1e-3)
