"""Domain of a model: images like its training images fit, others are named before the network runs."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

from made_pairs import small_settings
from phantoms import make_phantom
from regweave import notices
from regweave.cli import main
from regweave.errors import RegweaveError, RegweaveWarning
from regweave.io import write_image
from regweave.model.domain import BLOCKS, Domain, ImageFacts
from regweave.model.model import Model
from regweave.run import resolve
from regweave.run.register import register
from regweave.run.resolve import overlaps
from regweave.types import Geometry, LabelMap, Volume, WeightTable

BANK = [{"name": "sad", "metric": "sad"}, {"name": "ncc", "metric": "ncc"}]
MULTI = [{"name": "mi", "metric": "mi"}, {"name": "ngf", "metric": "ngf"}]
SMALL = small_settings((48.0, 1, 1), refine=1, banks={"mr": BANK, "ct": BANK, "multi": MULTI})


@cache
def phantom(seed):
    pair = make_phantom(seed=seed, shape=(28, 28, 28), spacing_mm=(7.0, 7.0, 7.0)).pair
    return Volume(pair.fixed.data, pair.fixed.geometry, "mr"), pair.fixed_labels


@cache
def domain(n=6):
    return Domain.over([ImageFacts.of(*phantom(seed)) for seed in range(n)], "mr")


def scaled(data, image, *times):
    """Another image with voxels so many times as large."""
    grid = Geometry(data.shape, image.geometry.affine @ np.diag([*times, 1.0]))
    return Volume(np.ascontiguousarray(data), grid, "mr")


def elsewhere(image):
    """The corner of the grid in the middle of the body."""
    return Volume(np.roll(image.data, (14, 14, 14), axis=(0, 1, 2)), image.geometry, "mr")


def model(made=None):
    return Model(WeightTable(np.array([[0.4], [0.6]]), ("sad", "ncc"), (0,), 0.1), SMALL, "mr", domain=made)


def test_blocks_are_the_means_of_a_slow_reference_whatever_padding_and_axes():
    data = np.random.default_rng(1).random((13, 20, 9)).astype(np.float32)
    facts = ImageFacts.of(Volume(data, Geometry(data.shape, np.diag([2.0, 3.0, 5.0, 1.0])), "mr"))
    low, high = np.percentile(data, (0.5, 99.5))
    shares = np.clip((data - low) / (high - low), 0, 1)
    cuts = [np.arange(BLOCKS + 1) * n // BLOCKS for n in data.shape]
    slow = [
        shares[cuts[0][i] : cuts[0][i + 1], cuts[1][j] : cuts[1][j + 1], cuts[2][k] : cuts[2][k + 1]].mean()
        for i in range(BLOCKS) for j in range(BLOCKS) for k in range(BLOCKS)
    ]  # fmt: skip
    assert_allclose(facts.pattern, slow, atol=1e-5)
    assert facts.extent_mm.tolist() == [26.0, 60.0, 45.0]
    assert facts.histogram.sum() == pytest.approx(1)
    image, labels = phantom(1)
    inner = ImageFacts.of(image, labels)
    grid = Geometry((34, 28, 28), image.geometry.affine)
    padded = np.full(grid.shape, image.data.min(), np.float32)
    padded[3:31] = image.data
    assert_allclose(ImageFacts.of(Volume(padded, grid, "mr")).pattern, inner.pattern, atol=0.02)
    turned = np.diag([-1.0, 1.0, 1.0, 1.0])
    turned[0, 3] = image.data.shape[0] - 1
    stored = Geometry(image.geometry.shape, image.geometry.affine @ turned)
    flipped = ImageFacts.of(Volume(np.ascontiguousarray(image.data[::-1]), stored, "mr"))
    assert_allclose(flipped.pattern, inner.pattern, atol=1e-6)


def test_images_of_the_same_kind_fit_and_others_are_named():
    made = domain()
    assert [made.misfits(ImageFacts.of(*phantom(seed))) for seed in range(20, 26)] == [[]] * 6
    assert made.odd_volumes(ImageFacts.of(*phantom(30)).volumes_ml, {}) == []
    for change, says in [
        (lambda v: scaled(v.data, v, 3, 3, 3), "mm left to"), (lambda v: scaled(v.data, v, 0.1, 1, 1), "mm left to"),
        (elsewhere, "another part or position"), (lambda v: scaled(v.data.max() - v.data, v, 1, 1, 1), "histogram"),
        (lambda v: scaled(v.data[::7, ::7, ::7], v, 7, 7, 7), "voxels measure"),
    ]:  # fmt: skip
        found = domain().misfits(ImageFacts.of(change(phantom(9)[0])))
        assert any(says in text for text in found), found
    for data in [np.zeros((4, 4, 4)), np.eye(4)[None].repeat(4, 0), np.full((1, 1, 900), 3.0)]:
        image = Volume(data.astype(np.float32), Geometry(data.shape, np.eye(4)), "mr")
        assert domain().misfits(ImageFacts.of(image))


def test_a_domain_travels_with_its_model_and_damage_is_refused(tmp_path):
    made = domain()
    model(made).save(tmp_path / "m.json")
    assert Model.load(tmp_path / "m.json").domain == made
    content = json.loads((tmp_path / "m.json").read_text())
    for key, value in (
        ("pattern", [1.0]), ("histogram", ["a"]), ("extent_mm", [[2, 1]] * 3), ("images", -1),
        ("volumes_ml", {"1": [3, 1]}),
        ("pattern_alike", None), ("spacing_mm", [[1]] * 3),
    ):  # fmt: skip
        (tmp_path / "bad.json").write_text(json.dumps({**content, "domain": {**content["domain"], key: value}}))
        with pytest.raises(RegweaveError, match="E170"):
            Model.load(tmp_path / "bad.json")


def test_a_registration_names_an_image_outside_and_passes_no_more():
    (fixed, _), (moving, _) = phantom(3), phantom(4)
    with notices.collected() as warned:
        register(fixed, moving, model=model(domain()), progress=False)
        register(fixed, moving, model=model(), progress=False)  # a model without a record warns of nothing
    assert not [text for text in warned if text.startswith("W260")]
    turned = elsewhere(moving)
    with pytest.warns(RegweaveWarning, match=r"W260: the moving image .* another part or position"):
        found = register(fixed, turned, model=model(domain()), progress=False)
    assert found.verdict.word != "pass"
    assert any("W260" in reason.text for reason in found.verdict.reasons)


def test_auto_takes_the_model_that_fits_or_none(tmp_path, monkeypatch, capsys):
    (fixed, _), (moving, _) = phantom(3), phantom(4)
    fits, other = tmp_path / "fits.json", tmp_path / "bare.json"
    model(domain()).save(fits)
    model().save(other)
    monkeypatch.setattr(resolve, "shipped_models", lambda: {"bare": other, "fits": fits})
    done = register(fixed, moving, model="auto", progress=False)
    assert done.provenance.model.name == "fits.json"
    monkeypatch.setattr(resolve, "shipped_models", lambda: {"bare": other})
    assert register(fixed, moving, model="auto", config=SMALL, progress=False).provenance.model is None
    path, why = resolve.fitting([fixed, moving])
    assert path is None
    assert "bare: it has no record of its training images" in why
    write_image(tmp_path / "i.nii.gz", fixed)
    assert main(["models", "suggest", str(tmp_path / "i.nii.gz"), str(fits), "--json"]) == 0
    rows = {row["model"]: row["fits"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"head-neck-ct": False, "hippocampus-t1": False, str(fits): True}


def test_overlap_of_a_segmentation_with_given_labels():
    image, labels = phantom(2)
    assert set(overlaps(labels, labels).values()) == {1.0}
    data = np.zeros((14, 14, 14), np.int16)
    coarse = Geometry((14, 14, 14), image.geometry.affine @ np.diag([2, 2, 2, 1.0]))
    assert set(overlaps(LabelMap(data, coarse), labels).values()) == {0.0}
    moved = replace(labels, data=np.roll(labels.data, 3, axis=0))
    shared = overlaps(labels, moved)
    for c in labels.values():
        a, b = labels.data == c, moved.data == c
        assert shared[c] == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()))
