"""Likeness of registered images: its numbers against slow ones, its place among good results, and hostile inputs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from phantoms import make_phantom
from regweave.errors import RegweaveError
from regweave.measures.likeness import (
    SHARES,
    SIDE,
    Likeness,
    _spread,
    likeness_of,
    measure,
    own_reference,
    place,
    read_reference,
    shipped_reference,
    standard,
    word_of,
)
from regweave.measures.scores import PairScore
from regweave.measures.verdict import default_rules, judge, read_rules
from regweave.run.register import register
from regweave.spatial.warp import PART
from regweave.types import Field, Geometry, Image, ImagePair, LabelMap, Transform, Volume

GRID = Geometry((20, 18, 16), np.diag([2.0, 2.0, 3.0, 1.0]))


def textured(seed=0, kind="mr"):
    rng = np.random.default_rng(seed)
    data = rng.random(GRID.shape).astype(np.float32) * 100
    return Image(data, GRID, kind)


def labelled(**more):
    data = np.zeros(GRID.shape, dtype=np.int16)
    data[4:12, 4:12, 4:12] = 1
    data[13:17, 5:12, 3:13] = 7
    return LabelMap(data, GRID, {1: "liver", 7: "spleen"})


def measured(fixed, warped, labels=None, same=True, moving=None):
    pair = ImagePair(fixed, moving or replace(fixed, data=warped.data))
    return measure(pair, Transform(Field.zero(GRID)), warped, labels, same=same)


def test_numbers_of_the_same_image_and_of_two_modalities():
    one = textured()
    whole, structures = measured(one, Volume(one.data, GRID, "mr"), labelled())
    assert whole["correlation"] == pytest.approx(1)
    assert whole["inside"] == whole["blocks"] == whole["moved"] == 0
    assert whole["contour"] > 0.99
    assert sorted(structures) == [1, 7]
    one = textured(3, "t1")
    turned = Volume(100 - one.data, GRID, "t2")
    whole, _ = measured(one, turned, labelled(), same=False, moving=Image(turned.data, GRID, "t2"))
    assert whole["correlation"] > 0.99
    assert whole["contour"] > 0.95
    assert whole["inside"] < 0.1
    assert measured(one, turned, moving=Image(turned.data, GRID, "mr"))[0]["correlation"] < -0.9
    chosen = np.random.default_rng(0).random((3, PART)) < 0.3
    every = np.flatnonzero(chosen)
    assert np.array_equal(_spread(chosen, 1000), every[:: -(-every.size // 1000) | 1])
    assert _spread(chosen & False, 1000).size == 0


def test_numbers_are_those_of_a_slow_reference():
    """On a small image every voxel is a sample: histograms, correlation and patches can be had one by one."""
    one, other, labels = textured(1), textured(2), labelled()
    mixed = Volume((0.6 * one.data + 0.4 * other.data).astype(np.float32), GRID, "mr")
    whole, structures = measured(one, mixed, labels)

    def window(data):
        low, high = np.percentile(data, (0.5, 99.5))
        return np.clip((data - low) / (high - low), 0, 1)

    f, w = window(one.data), window(mixed.data)
    body = (f > f.mean()) | (w > w.mean())
    assert whole["correlation"] == pytest.approx(np.corrcoef(f[body], w[body])[0, 1], abs=2e-3)
    for value in (1, 7):
        within = labels.data == value
        apart = stats.wasserstein_distance(f[within], w[within]) / f[body].std()
        assert structures[value]["inside"] == pytest.approx(apart, rel=0.02, abs=0.002)
        local = []
        for x, y, z in np.argwhere(within):
            near = [
                (x + dx, y + dy, z + dz)
                for dx, dy, dz in np.eye(3, dtype=int).tolist() + (-np.eye(3, dtype=int)).tolist()
            ]
            if all(labels.data[p] == value for p in near):
                continue
            box = tuple(np.clip(np.arange(c - 2, c + 3), 0, n - 1) for c, n in zip((x, y, z), GRID.shape, strict=True))
            a, b = (v[np.ix_(*box)].ravel() for v in (f, w))
            cov = ((a - a.mean()) * (b - b.mean())).mean()
            local.append((cov + 1e-4) / np.sqrt((a.var() + 1e-4) * (b.var() + 1e-4)))
        assert structures[value]["contour"] == pytest.approx(np.mean(local), abs=1e-3)


def test_other_anatomy_ranks_below_a_good_result():
    made = make_phantom(seed=1, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0)).pair
    good = ImagePair(replace(made.fixed, modality="mr"), replace(made.moving, modality="mr"))
    still = Transform(Field.zero(good.fixed.geometry))
    alike = likeness_of(good, still, Volume(good.fixed.data, good.fixed.geometry, "mr"), good.fixed_labels, "mr")
    turned = Volume(np.ascontiguousarray(good.fixed.data[::-1, :, ::-1]), good.fixed.geometry, "mr")
    other = likeness_of(good, still, turned, good.fixed_labels, "mr")
    assert alike.word == "alike"
    assert other.score < alike.score
    assert other.word == "not the same anatomy"
    assert "of good results" in other.text
    verdict = judge(PairScore(), default_rules(), likeness=other)
    assert verdict.word == "fail"
    assert verdict.reasons[0].text.startswith("not the same anatomy: images correlate")


def test_scores_have_the_limits_of_the_rules_and_the_middle_of_good_results():
    limits = default_rules().limits["likeness"]
    assert [word_of(limits["look"]), word_of(limits["look"] - 1e-9)] == ["alike", "doubtful"]
    assert [word_of(limits["fail"]), word_of(limits["fail"] - 1e-9)] == ["doubtful", "not the same anatomy"]
    for kind in shipped_reference().kinds.values():
        for name, scale in kind.quantiles.items():
            middle, worst = scale[SHARES.index(0.5)], scale[0]
            assert standard(middle, scale, name) == 0
            assert standard(worst, scale, name) <= 0
            assert (worst <= middle) == (SIDE[name] > 0) or worst == middle
    found = place({"correlation": 0.0}, {}, {}, "mr")
    assert found.word == "not the same anatomy"
    assert Likeness.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("spoil", ["constant", "nan", "mask", "one voxel", "beside", "no labels", "huge"])
def test_odd_images_have_finite_numbers(spoil):
    one, other, labels = textured(4), textured(5), labelled()
    warped, transform, moving = Volume(other.data, GRID, "mr"), Transform(Field.zero(GRID)), other
    if spoil == "constant":
        warped = Volume(np.full(GRID.shape, 7, np.float32), GRID, "mr")
        moving = replace(other, data=warped.data)
    elif spoil == "nan":
        data = one.data.copy()
        data[:3] = np.nan
        mask = np.ones(GRID.shape, np.uint8)
        mask[:3] = 0
        one = Image(data, GRID, "mr", mask=LabelMap(mask, GRID))
    elif spoil == "mask":
        mask = np.zeros(GRID.shape, np.uint8)
        mask[3, 3, 3] = 1
        one = replace(one, mask=LabelMap(mask, GRID))
    elif spoil == "one voxel":
        data = np.zeros(GRID.shape, np.int16)
        data[0, 0, 0], data[5, 5, 5] = 3, 2**14
        labels = LabelMap(data, GRID)
    elif spoil == "beside":
        far = np.eye(4)
        far[0, 3] = 1e6
        transform = Transform(Field.zero(GRID), far)
    elif spoil == "no labels":
        labels = LabelMap(np.zeros(GRID.shape, np.int16), GRID)
    else:
        warped = Volume(other.data * np.float32(1e30), GRID, "mr")
        moving = replace(other, data=warped.data)
    found = likeness_of(ImagePair(one, moving), transform, warped, labels, "mr")
    assert np.isfinite([found.score, *found.numbers.values()]).all()
    assert found.word != "alike"
    assert all(row.label not in (3, 2**14) for row in found.structures)


def test_a_reference_of_a_department_is_read_checked_and_placed_by(tmp_path):
    own = shipped_reference().model_copy(update={"name": "ours"})
    path = tmp_path / "ours.json"
    path.write_text(own.model_dump_json())
    assert read_reference(path) == own
    content = json.loads(path.read_text())
    content["kinds"]["ct"]["quantiles"]["contour"][3] = 2.0
    path.write_text(json.dumps(content))
    with pytest.raises(RegweaveError, match=r"E178.*contour needs 17 ordered quantiles"):
        read_reference(path)
    content["kinds"]["ct"]["quantiles"]["contour"] = [float("nan")] * 17
    path.write_text(json.dumps(content))
    with pytest.raises(RegweaveError, match="E1"):
        read_reference(path)
    only = shipped_reference().model_copy(update={"name": "ours", "kinds": {"ct": shipped_reference().kinds["ct"]}})
    numbers = {"correlation": 0.5}
    assert place(numbers, {}, {}, "ct", only).reference == "ours"
    assert place(numbers, {}, {}, "mr", only).reference == shipped_reference().name


def good_result(k, kind="mr"):
    rng = np.random.default_rng(k)
    whole = {"correlation": 0.7 + 0.02 * rng.random(), "inside": 0.5, "contour": 0.6 + 0.02 * rng.random(),
             "blocks": 0.6, "edges": 0.6, "moved": 0.1, "turned": -0.2, "covered": 1.0}  # fmt: skip
    return place(whole, {1: {"inside": 0.5, "contour": 0.6 + 0.02 * rng.random()}}, {1: "liver"}, kind)


def test_own_good_results_become_a_reference_for_the_rules_of_a_department(tmp_path):
    # Results that are worse than those of the package are alike where they are usual.
    good = [good_result(k) for k in range(40)]
    assert np.mean([one.word == "alike" for one in good]) == 0
    own = own_reference(good, "ours")
    assert list(own.kinds) == ["mr"]
    placed = [place(one.numbers, {1: vars(one.structures[0])}, {}, "mr", own) for one in good]
    assert np.mean([one.word == "alike" for one in placed]) >= 0.9
    (tmp_path / "likeness.json").write_text(own.model_dump_json())
    (tmp_path / "mine.toml").write_text('name = "ours"\nreference = "likeness.json"\n[likeness]\nlook = -1.0\n')
    assert read_rules(tmp_path / "mine.toml").reference == own
    (tmp_path / "mine.toml").write_text("reference = 3\n[likeness]\nlook = -1.0\n")
    with pytest.raises(RegweaveError, match=r"E177.*reference must be the name of a file"):
        read_rules(tmp_path / "mine.toml")
    with pytest.raises(RegweaveError, match=r"E134.*11 good results are too few"):
        own_reference(good[:11], "ours")
    pair = make_phantom(seed=1, shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    own = shipped_reference().model_copy(update={"name": "ours"})
    rules = replace(default_rules(), reference=own)
    assert register(pair.fixed, pair.moving, rules=rules, progress=False).likeness.reference == "ours"


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2)])
def test_an_image_that_is_mirrored_or_turned_is_named(axes):
    made = make_phantom(seed=1, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0)).pair
    data = made.fixed.data.copy()
    data[18:24, 18:24, 18:24] = 2 * data.max()
    fixed = replace(made.fixed, data=data, modality="mr")
    for flipped in ((), axes):
        moving = replace(fixed, data=np.ascontiguousarray(np.flip(data, flipped)))
        still = Transform(Field.zero(fixed.geometry))
        found = likeness_of(ImagePair(fixed, moving), still, Volume(moving.data, moving.geometry, "mr"), None, "mr")
        assert (found.numbers["turned"] > 0.05) == bool(flipped)
        assert ("mirrored or turned" in found.text) == bool(flipped)
