"""Structures of both label maps guide: from the options to the record, and what must not be taken for guides."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest

import regweave as rw
from made_pairs import small_settings, write_pair
from phantoms import make_phantom
from regweave import notices
from regweave.cli import main
from regweave.config.settings import Refine
from regweave.errors import RegweaveError, RegweaveWarning, UsageError
from regweave.run.start import asked_guides
from regweave.types import Geometry, LabelMap, Volume

WHOLE = ["brainstem", "cord", "mandible", "left parotid", "right parotid"]
"""Structures of the phantom that its grid does not cut."""
PARTS = {"brainstem": 1, "cord": 2, "mandible": 3, "left parotid": 4, "right parotid": 5, "airway": 6}


BANK = [{"name": "lncc", "metric": "ncc", "support": 5, "options": {"squared": True}}]
REFINE = {"steps": 24, "rate": 0.3, "spacing_mm": 2.0, "smoothness": 0.05}
BANKS = {"mr": BANK, "multi": BANK}
SMALL = small_settings((48.0, 2, 3), smoothness=0.05, banks=BANKS).model_copy(update={"refine": Refine(**REFINE)})


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=3, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0)).pair


def run(pair, fixed_labels=None, moving_labels=None, **options):
    return rw.register(
        pair.fixed, pair.moving, progress=False, config=options.pop("config", SMALL),
        fixed_labels=fixed_labels or pair.fixed_labels, moving_labels=moving_labels or pair.moving_labels, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(pair):
    return run(pair)


@pytest.fixture(scope="module")
def guided(pair):
    with notices.unheard():
        return run(pair, guide=WHOLE)


@pytest.fixture(scope="module")
def files(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guides")
    write_pair(folder, pair)
    (folder / "labels.json").write_text(json.dumps(pair.moving_labels.names))
    return folder


def without(labels: LabelMap, *values: int) -> LabelMap:
    return replace(labels, data=np.where(np.isin(labels.data, values), 0, labels.data))


def after(result, label: int) -> float:
    return next(s.dice_after for s in result.score.structures if s.label == label)


def test_guided_structures_meet_and_the_others_are_scored_as_ever(plain, guided, pair):
    assert guided.guided
    for label in guided.guided:
        assert after(guided, label) > max(0.9, after(plain, label) - 0.001)
    assert guided.regularity["folding_fraction"] == 0
    others = [s for s in guided.score.counted if s.label not in guided.guided]
    assert guided.mean_dice.get("after", math.nan) == pytest.approx(
        np.mean([s.dice_after for s in others]) if others else math.nan, nan_ok=True
    )
    summary = guided.summary()
    assert summary["guided_mean_dice"]["after"] > 0.9
    assert [row.get("guided", False) for row in guided.dice.values()] == [n in guided.guided for n in guided.dice]
    assert "guided_mean_dice" not in plain.summary()
    assert "guides" not in plain.summary()["provenance"]
    result = run(pair, guide=["brainstem", "Parotid_L"])
    assert set(result.guided) == {PARTS["brainstem"], PARTS["left parotid"]}
    judged = [s.label for s in result.score.among(result.guided, inside=False).counted]
    assert PARTS["mandible"] in judged
    assert PARTS["brainstem"] not in judged
    assert after(result, PARTS["mandible"]) > after(plain, PARTS["mandible"]) - 0.02


def test_weight_of_a_structure_draws_it_closer(pair):
    light, heavy = (run(pair, guide={"brainstem": w, "mandible": 1.0}) for w in (0.02, 4.0))
    assert after(heavy, PARTS["brainstem"]) > after(light, PARTS["brainstem"]) + 0.01


def test_contours_alone_use_no_image(pair):
    alone = run(pair, guide=WHOLE, guide_only=True)
    other = Volume(pair.moving.data[::-1].copy(), pair.moving.geometry, pair.moving.modality)
    again = rw.register(
        pair.fixed, other, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, guide=WHOLE,
        guide_only=True, config=SMALL, progress=False,
    )  # fmt: skip
    assert alone.provenance.guides.only
    np.testing.assert_array_equal(alone.transform.field.data, again.transform.field.data)


def test_two_modalities_are_guided_too(pair, plain):
    moving = Volume(1000 - pair.moving.data, pair.moving.geometry, "t2")
    fixed = replace(pair.fixed, modality="t1")
    with notices.unheard():
        result = rw.register(
            fixed, moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, guide=WHOLE,
            fixed_modality="t1", moving_modality="t2", config=SMALL, progress=False,
        )  # fmt: skip
    assert result.provenance.modality.bank == "multi"
    assert all(after(result, label) > max(0.9, after(plain, label) - 0.001) for label in result.guided)


def test_same_bits_for_any_number_of_threads(pair, guided):
    with notices.unheard():
        other = run(pair, guide=WHOLE, threads=1)
    np.testing.assert_array_equal(guided.transform.field.data, other.transform.field.data)


def test_a_structure_missing_on_one_side_is_as_if_it_were_not_there(pair):
    lacking = without(pair.fixed_labels, PARTS["mandible"])
    with pytest.warns(RegweaveWarning, match=r"W252: structures do not guide .*mandible: the fixed labels do not show"):
        result = run(pair, fixed_labels=lacking, guide=WHOLE)
    assert result.provenance.guides.left_out["mandible"] == "the fixed labels do not show it"
    with notices.unheard():
        never = run(pair, lacking, without(pair.moving_labels, PARTS["mandible"]), guide=True)
    np.testing.assert_array_equal(result.transform.field.data, never.transform.field.data)


def exchanged(labels: LabelMap, a: str, b: str) -> LabelMap:
    data = labels.data.copy()
    data[labels.data == PARTS[a]], data[labels.data == PARTS[b]] = PARTS[b], PARTS[a]
    return replace(labels, data=data)


def test_exchanged_structures_are_refused_unless_insisted_on(pair):
    swapped = exchanged(pair.moving_labels, "left parotid", "right parotid")
    with pytest.warns(RegweaveWarning, match="W253: left parotid and right parotid seem to be exchanged"):
        refused = run(pair, moving_labels=swapped, guide=WHOLE)
    assert {PARTS["left parotid"], PARTS["right parotid"]}.isdisjoint(refused.guided)
    assert refused.verdict.word != "pass"
    with notices.unheard():
        forced = run(pair, moving_labels=swapped, guide=WHOLE, guide_anyway=True)
    assert any("exchanged in one of the label maps" in text for text in forced.warnings)
    assert {PARTS["left parotid"], PARTS["right parotid"]} <= set(forced.guided)


def test_what_names_no_structure_is_refused(pair):
    for guide, words in [
        (["liver"], "no label map has 'liver'"),
        (["cord", "SpinalCord"], "names of one structure twice"),
        ({"cord": -1}, "cord=-1"),
        ({"cord": math.nan}, "cord=nan"),
        ({"cord": math.inf}, "cord=inf"),
        ({"cord": 0}, "cord=0"),
        ({"cord": 1e9}, "cord=1e[+]09"),
        ({"cord": "heavy"}, "'heavy' is not a number"),
        ({"cord": None}, "None is not a number"),
        ({3: 1.0}, "a name is missing"),
        ([], "a name is missing"),
        ({}, "a name is missing"),
        ("", "a name is missing"),
        ("cord,,airway", "a name is missing"),
        ("cord;cord", "given twice"),
        (3, "found a int"),
        (None, "found a NoneType"),
    ]:
        with pytest.raises(UsageError, match=words) as error:
            run(pair, guide=guide)
        assert error.value.code == "E128"


def test_what_cannot_guide_is_refused(pair):
    empty = replace(pair.fixed_labels, data=np.zeros_like(pair.fixed_labels.data))
    with pytest.raises(RegweaveError, match="E131"):
        run(pair, fixed_labels=empty, guide=WHOLE)
    whole = replace(pair.fixed_labels, data=np.ones_like(pair.fixed_labels.data))
    with pytest.raises(RegweaveError, match="E128: no structure can guide"):
        run(pair, fixed_labels=whole, guide=["brainstem"])
    moved = pair.fixed_labels.geometry.affine.copy()
    moved[:3, 3] += 3.0
    elsewhere = replace(pair.fixed_labels, geometry=Geometry(pair.fixed.geometry.shape, moved))
    with pytest.raises(RegweaveError, match="E112"):
        run(pair, fixed_labels=elsewhere, guide=WHOLE)
    settings = SMALL.model_copy(update={"refine": Refine()})
    with pytest.raises(UsageError, match=r"E128: .* no refinement"):
        run(pair, guide=WHOLE, config=settings)
    fixed, moving = (Volume(one.data, one.geometry, one.modality) for one in (pair.fixed, pair.moving))
    for name in ("fixed_labels", "moving_labels"):
        given = {"fixed_labels": pair.fixed_labels, "moving_labels": pair.moving_labels, name: None}
        with pytest.raises(UsageError, match=f"E128: .*--{name.replace('_', '-')} are missing"):
            rw.register(fixed, moving, guide=True, progress=False, **given)


def test_words_of_a_cell():
    assert asked_guides("all") == asked_guides(" Yes ") == {}
    assert asked_guides("no") is asked_guides(False) is None
    assert asked_guides(False, only=True) == {}
    assert asked_guides("liver=2, left kidney") == {"liver": 2.0, "left kidney": 1.0}


def test_command_names_guides_and_repeats_them(files, capsys):
    labels = ["--fixed-labels", files / "fixed_labels.nii.gz", "--moving-labels", files / "moving_labels.nii.gz"]
    call = ["register", files / "fixed.nii.gz", files / "moving.nii.gz", *labels, "-o", files / "one"]
    (files / "small.toml").write_text(SMALL.toml())
    more = ["--config", files / "small.toml", "--guide-names", "brainstem,parotid_left=2"]
    assert main([str(word) for word in [*call, *more]]) == 0
    out = capsys.readouterr().out
    assert "guides      2 structures" in out
    assert "mean of guides" in out
    assert main(["register", "--from", str(files / "one/result.json"), "-o", str(files / "two"), "--quiet"]) == 0
    first, second = (json.loads((files / n / "result.json").read_text()) for n in ("one", "two"))
    assert first["provenance"]["guides"] == second["provenance"]["guides"]
    assert first["provenance"]["call"]["guide"] == {"brainstem": 1.0, "parotid_left": 2.0}
    assert first["dice"] == second["dice"]
    page = (files / "one/report.html").read_text()
    assert "Dice of guides: no proof" in page
    assert "Their Dice proves nothing" in page
    assert rw.load(files / "one").guided == tuple(map(int, first["provenance"]["guides"]["weights"]))


@pytest.mark.usefixtures("in_process")
def test_a_column_of_a_list_guides(files):
    row = {n: f"{n}.nii.gz" for n in ("fixed", "moving", "fixed_labels", "moving_labels")}
    with (files / "pairs.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ("id", *row, "guide"))
        writer.writeheader()
        writer.writerows([{"id": "a", **row, "guide": "brainstem;cord"}, {"id": "b", **row, "guide": ""}])
    listed = rw.batch(files / "pairs.csv", files / "batch", workers=1, config=SMALL)
    assert "brainstem" in listed["a"].provenance.guides.names.values()
    assert set(listed["a"].provenance.call.guide) == {"brainstem", "cord"}
    assert listed["b"].provenance.guides is None
    bad = [{"id": "a", **{n: files / f for n, f in row.items()}, "guide": "cord=-2"}]
    with pytest.raises(UsageError, match="E128"):
        rw.batch(bad, files / "batch2", workers=1, config=SMALL)
