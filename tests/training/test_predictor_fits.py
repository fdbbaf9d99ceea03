"""Fits of predictors: computed once, kept, and never of the patients that they judge."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from regweave import predictors
from regweave.io import image_sha256
from regweave.jobs.table import PairFiles
from regweave.predictors import Choice
from regweave.run.read import Reading
from regweave.training.predictor_fits import COSTLY_PARTS, Predictors, SegmentedImage

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def images(training_list) -> list[SegmentedImage]:
    out = []
    for n in range(4):
        files = training_list.files(n)
        for part in ("fixed", "moving"):
            both = files[part], files[f"{part}_labels"]
            geometry = Reading().image(both[0]).geometry
            hashes = tuple(image_sha256(path) for path in both)
            out.append(SegmentedImage(*both, geometry, frozenset({f"g{n}"}), hashes))
    return out


@pytest.fixture
def fits(images, tmp_path) -> Predictors:
    pairs = [PairFiles(f"p{n}", *["x"] * 4, f"g{n}") for n in range(4)]
    quick = Choice("perceptron", {"samples": 1000, "steps": 5})
    return Predictors(images, pairs, quick, tuple(range(7)), "mr", Reading(), store=tmp_path / "store")


@pytest.fixture
def fitted(monkeypatch) -> list:
    """What was really fitted: the examples, one for each fit."""
    calls, fit = [], predictors.fit

    def counted(kind, examples, like, **options):
        calls.append(examples)
        return fit(kind, examples, like, **options)

    monkeypatch.setattr(predictors, "fit", counted)
    return calls


def test_the_same_fit_is_taken_from_the_store_and_a_damaged_one_made_again(images, fits, fitted, caplog):
    first = fits.fit(images, None)
    again = replace(fits).fit(images, None)
    assert len(fitted) == 1
    assert again.save().identity() == first.save().identity()
    volume = Reading().image(images[0].image)
    np.testing.assert_array_equal(again.maps(volume).shares, first.maps(volume).shares)
    (file,) = fits.store.iterdir()
    assert file.suffix == ".zip"
    file.write_bytes(file.read_bytes()[:200])
    assert fits.fit(images, None).save().identity() == first.save().identity()
    assert len(fitted) == 2
    assert "damaged" in caplog.text


def test_other_images_patients_seed_or_options_are_other_fits(images, fits, fitted):
    first = fits.fit(images, None)
    fits.fit(images[:-1], None)
    changed = replace(images[0], sha256=("0" * 64, images[0].sha256[1]))
    fits.fit([changed, *images[1:]], None)
    fits.fit([replace(images[0], patients=frozenset({"other"})), *images[1:]], None)
    replace(fits, seed=1).fit(images, None)
    replace(fits, kind=Choice("perceptron", {"samples": 1000, "steps": 5, "hidden": 8})).fit(images, None)
    fits.fit(images, first)
    assert len(fitted) == 7


def test_a_long_fit_has_a_place_for_where_it_stands_and_says_so(images, fits, monkeypatch):
    told, fit = [], predictors.fit

    def slow(kind, examples, like, **options):
        examples.checkpoint.parent.mkdir(exist_ok=True)
        examples.checkpoint.write_bytes(b"half-way")
        examples.tell(3, 10, 0.25)
        return fit(kind, examples, like, **options)

    monkeypatch.setattr(predictors, "fit", slow)
    replace(fits, tell=told.append).fit(images, None)
    assert told == ["perceptron: 8 images", "perceptron: step 3 of 10, loss 0.2500"]
    assert [p.suffix for p in fits.store.iterdir()] == [".zip"]  # what is finished needs it no more


def test_held_out_images_are_segmented_without_their_patients(fits, fitted):
    found = fits
    told = found.left_out()
    assert told.n_images == 8
    assert 0 < told.mean_dice < 1
    assert len(fitted) == 1 + 4  # the whole one, and one without each patient
    assert all(len(e.volumes) == 6 for e in fitted[1:])
    assert found.left_out() == told
    assert len(fitted) == 5


def test_costly_fits_are_few_and_pairs_across_parts_have_none(images):
    fitted = []

    class Costly(Predictors):
        def fit(self, chosen, like):
            fitted.append({name for image in chosen for name in image.patients})
            return SimpleNamespace()

    geometry = images[0].geometry
    people = [f"p{n}" for n in range(12)]
    listed = [SegmentedImage("x", "y", geometry, frozenset({p})) for p in (*people, "stranger")]
    pairs = [PairFiles(f"{a}{b}", *["x"] * 4, f"{a}+{b}") for a, b in zip(people[::2], people[1::2], strict=True)]
    found = Costly(listed, pairs, SimpleNamespace(costly=True), (0, 1), "mr", Reading())
    for pair in pairs:
        assert found.judges(pair)
        assert found.without(pair) is not None
    assert len(fitted) == 1 + COSTLY_PARTS
    assert all("stranger" in names for names in fitted)  # in no pair that is judged: never left out
    for pair in pairs:
        assert any(names.isdisjoint(pair.patients) for names in fitted[1:])
    far = next(p for p in people if found._part[p] != found._part["p0"])
    across = PairFiles("q", *["x"] * 4, f"p0+{far}")
    assert not found.judges(across)
    assert found.without(across) is None
    assert len(fitted) == 1 + COSTLY_PARTS
