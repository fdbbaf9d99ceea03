"""The right model for the right image, and structures by name."""

import json
from dataclasses import replace

import numpy as np
import pytest

from made_pairs import NCC, SAD, bare, small_settings, write_pair
from phantoms import make_phantom
from regweave import notices
from regweave.cli import main
from regweave.errors import RegweaveError, RegweaveWarning, UsageError
from regweave.io import read_image, read_labels
from regweave.io.labels import StructureMatch
from regweave.io.modality import modality_of
from regweave.jobs.table import PairFiles, in_one_numbering
from regweave.model.model import Model
from regweave.run import register as workflow
from regweave.run.read import Reading
from regweave.run.resolve import Recipe, doubt_volumes
from regweave.training.run import choose_bank, scan
from regweave.types import Image, ImagePair, LabelMap, StructureMaps, Volume, WeightTable

BANK = [SAD, NCC]
MULTI = [{"name": "mi", "metric": "mi", "stage": "levels"}, {"name": "ngf", "metric": "ngf"}]
SMALL = small_settings((48.0, 1, 3), (24.0, 1, 3), refine=5, banks={"mr": BANK, "ct": BANK, "multi": MULTI})


def register(fixed, moving, **given):
    return workflow.register(bare(fixed), bare(moving), **given)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=4, shape=(28, 28, 28), spacing_mm=(7.0, 7.0, 7.0)).pair


def as_ct(image: Volume) -> Volume:
    """The same body on the Hounsfield scale, its contrast turned round, in air."""
    share = (image.data - image.data.min()) / np.ptp(image.data)
    return Volume(np.where(share < 0.05, -1000, 250 - 330 * share).astype(np.float32), image.geometry)


def model_for(modality: str, classes=(0, 1, 2), names=None) -> Model:
    matrix = np.linspace(0.2, 0.8, len(classes))
    weights = WeightTable(np.stack([matrix, 1 - matrix]), ("sad", "ncc"), classes, 0.1)
    return Model(weights, SMALL, modality, names or {})


def test_a_model_of_another_modality_is_refused(pair):
    with pytest.raises(RegweaveError) as caught:
        register(pair.fixed, pair.moving, model=model_for("ct"))
    assert caught.value.code == "E172"
    assert "trained on CT" in caught.value.message
    assert "hippocampus-t1" in caught.value.hint  # a shipped model that would fit
    assert "fixed_modality" in caught.value.hint
    register(pair.fixed, pair.moving, moving_labels=named_as(pair, (1, 2)), model=model_for("mr"))


def test_what_is_stated_decides(pair):
    stated = Reading(fixed_modality="ct", moving_modality="ct")
    labels = named_as(pair, (1, 2))
    found = register(pair.fixed, pair.moving, moving_labels=labels, model=model_for("ct"), **vars(stated))
    assert found.provenance.modality.model_dump() == {"fixed": "ct", "moving": "ct", "bank": "ct"}
    with pytest.raises(RegweaveError, match="E172"):
        register(pair.fixed, pair.moving, model=model_for("mr"), **vars(stated))
    with pytest.raises(UsageError, match="E175"):
        register(pair.fixed, pair.moving, config=SMALL, fixed_modality="x-ray")
    found = register(pair.fixed, pair.moving, config=SMALL, fixed_modality="t1", moving_modality="t2")
    assert found.provenance.modality.bank == "multi"


def test_two_modalities_have_a_bank_of_their_own(pair):
    moving = as_ct(pair.moving)
    labels = {"fixed_labels": pair.fixed_labels, "moving_labels": pair.moving_labels}
    found = register(pair.fixed, moving, config=SMALL, **labels)
    assert found.provenance.modality.model_dump() == {"fixed": "mr", "moving": "ct", "bank": "multi"}
    assert found.provenance.headline().startswith("CT to MR")
    assert found.weights.members == ("mi", "ngf")
    after = found.summary()["mean_dice"]["after"]
    assert after > found.summary()["mean_dice"]["before"] + 0.02
    # One window for both, as if they were of one modality, is worse.
    same = Reading(fixed_modality="mr", moving_modality="mr")
    assert register(pair.fixed, moving, config=SMALL, **vars(same), **labels).summary()["mean_dice"]["after"] < after
    with pytest.raises(RegweaveError, match="E172"):
        register(pair.fixed, moving, model=model_for("ct"))


def test_each_image_has_its_own_window_and_fill(pair):
    found = register(as_ct(pair.fixed), pair.moving, config=SMALL)
    assert found.warped.data.min() >= 0  # outside a moving MR is 0, whatever the fixed image is
    back = register(pair.fixed, as_ct(pair.moving), config=SMALL)
    assert back.warped.data.min() == pytest.approx(-1000, abs=0.01)


def renumbered(labels: LabelMap, to: dict[int, int]) -> LabelMap:
    data = np.zeros_like(labels.data)
    for old, new in to.items():
        data[labels.data == old] = new
    return LabelMap(data, labels.geometry, {to[v]: n for v, n in labels.names.items() if v in to})


def test_fixed_and_moving_labels_meet_by_name_whatever_their_numbers(pair):
    names = {0: "background", 1: pair.moving_labels.names[1].upper(), 2: pair.moving_labels.names[2]}
    model = model_for("mr", names=names)
    plain = register(pair.fixed, pair.moving, moving_labels=pair.moving_labels, model=model)
    other = renumbered(pair.moving_labels, {1: 40, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5})
    found = register(pair.fixed, pair.moving, moving_labels=other, model=model)
    np.testing.assert_array_equal(found.transform.field.data, plain.transform.field.data)
    assert found.provenance.structures.classes == {1: 2, 40: 1}
    assert set(found.warped_labels.values()) == {40, 1, 2, 3, 4, 5}  # labels stay labels
    with notices.muted():  # labels and model differ in number
        bare = register(pair.fixed, pair.moving, moving_labels=replace(other, names={}), model=model)
    assert bare.provenance.structures.matched_by == "number"
    assert not np.array_equal(bare.transform.field.data, plain.transform.field.data)
    labels = {"moving_labels": pair.moving_labels, "fixed_labels": pair.fixed_labels}
    plain = register(pair.fixed, pair.moving, config=SMALL, **labels).summary()["mean_dice"]
    labels["fixed_labels"] = renumbered(pair.fixed_labels, {1: 6, 2: 5, 3: 4, 4: 3, 5: 2, 6: 1})
    assert register(pair.fixed, pair.moving, config=SMALL, **labels).summary()["mean_dice"] == plain


def test_structures_that_a_model_does_not_know_ride_along(pair):
    with pytest.warns(RegweaveWarning, match="W247"):
        found = register(pair.fixed, pair.moving, moving_labels=pair.moving_labels, model=model_for("mr"))
    assert found.provenance.structures.unknown == (3, 4, 5, 6)
    assert "weights of the background" in found.provenance.structures.words()
    assert set(found.warped_labels.values()) == set(pair.moving_labels.values())
    # As if they had no label at all.
    known = replace(pair.moving_labels, data=np.where(pair.moving_labels.data > 2, 0, pair.moving_labels.data))
    alone = register(pair.fixed, pair.moving, moving_labels=known, model=model_for("mr"))
    np.testing.assert_array_equal(found.transform.field.data, alone.transform.field.data)


@pytest.fixture
def listed(pair, tmp_path):
    """Two pairs whose label files number the same structures differently, each with its names beside it."""
    out = []
    for k, to in enumerate(({v: v for v in range(1, 7)}, {1: 2, 2: 1, 3: 4, 4: 3, 5: 6, 6: 5})):
        folder = tmp_path / f"p{k}"
        folder.mkdir()
        moving = renumbered(pair.moving_labels, to)
        fixed = replace(pair.fixed, labels=renumbered(pair.fixed_labels, to))
        image = pair.moving if k == 0 else as_ct(pair.moving)
        files = write_pair(folder, ImagePair(fixed, Image.of(image, moving)))
        (folder / "labels.json").write_text(json.dumps({str(v): n for v, n in moving.names.items()}))
        out.append(PairFiles(f"p{k}", *files.values(), f"p{k}"))
    return out


def test_a_list_is_numbered_by_name_and_several_kinds_are_refused(listed, pair):
    reading = in_one_numbering(Reading(), listed)
    maps = [reading.labels(p.moving_labels, pair.moving.geometry) for p in listed]
    np.testing.assert_array_equal(maps[0].data, maps[1].data)
    assert Reading.from_json(json.loads(json.dumps(reading.to_json()))) == reading
    with pytest.raises(RegweaveError) as caught:
        choose_bank(scan(listed, in_one_numbering(Reading(), listed)))
    assert caught.value.code == "E172"
    assert "p0" in caught.value.message
    assert "p1" in caught.value.message
    assert choose_bank(scan(listed, Reading(moving_modality="mr"))) == "mr"


def test_the_first_line_says_what_runs(listed, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL.toml())
    words = ["register", listed[1].fixed, listed[1].moving, "-o", tmp_path / "out", "--config", tmp_path / "small.toml"]
    assert main([str(w) for w in (*words, "--init", "moments")]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "CT to MR · start moments · no model"


@pytest.mark.data
def test_ct_and_mr_of_the_abdomen_share_four_organs(data_root):
    """Two people, two modalities, two numberings: the organs come together, and by name."""
    ct, mr = data_root / "btcv_abdomen" / "btcv_0003", data_root / "chaos_mr_abdomen" / "chaos_02"
    organs = {1: "liver", 2: "right kidney", 3: "left kidney", 4: "spleen"}
    fixed_labels = replace(read_labels(mr / "labels.nii.gz"), names=organs)
    moving_labels = read_labels(ct / "labels.nii.gz", names_path=data_root / "btcv_abdomen" / "labels.json")
    with notices.muted():
        found = register(
            mr / "image.nii.gz", ct / "image.nii.gz", fixed_labels=fixed_labels, moving_labels=moving_labels
        )
    assert found.provenance.modality.model_dump() == {"fixed": "mr", "moving": "ct", "bank": "multi"}
    rows = {row["name"]: row for row in found.dice.values()}
    scored = {name: row for name, row in rows.items() if row["state"] == "scored"}
    assert set(scored) == set(organs.values())
    mean = found.summary()["mean_dice"]
    assert mean["after"] > mean["before"] + 0.1
    assert scored["liver"]["after"] > 0.6


@pytest.mark.data
def test_modality_of_real_images(data_root):
    for name, modality in [
        ("openkbp_head_neck", "ct"),
        ("btcv_abdomen", "ct"),
        ("totalseg_abdomen", "ct"),
        ("chaos_mr_abdomen", "mr"),
        ("ibsr18_64", "mr"),
        ("msd_hippocampus", "mr"),
        ("acdc_mm", "mr"),
        ("mscmr_cardiac", "mr"),
        ("lpba40_80", "mr"),
        ("fvb_mouse_brain", "mr"),
    ]:
        for path in sorted((data_root / name).glob("*/image.nii.gz"))[:4]:
            assert modality_of(read_image(path)) == modality, path.parent.name


def test_labels_without_names_keep_their_numbers_and_doubts_are_told(pair):
    """A model's names are shown as the model's; another set of labels, or none that it knows, is warned of."""
    names = {0: "background", 1: "CSF", 2: "GM"}
    bare = replace(pair.moving_labels, names={})
    with notices.muted(), notices.collected() as texts:
        found = register(pair.fixed, pair.moving, moving_labels=bare, model=model_for("mr", names=names))
    assert found.provenance.structures.names[1] == "1 (model: CSF)"
    assert found.provenance.structures.names[3] == "3"
    assert [t for t in texts if t.startswith("W247") and "6 moving labels, 2 of the model (1 CSF, 2 GM)" in t]
    far = replace(bare, data=np.where(bare.data > 0, bare.data.astype(np.uint16) + 100, 0).astype(np.uint16))
    with notices.muted(), notices.collected() as texts:
        found = register(pair.fixed, pair.moving, moving_labels=far, model=model_for("mr", names=names))
    assert [t for t in texts if t.startswith("W248") and "leave the model out" in t]
    assert found.provenance.structures.words().startswith("0 of 6 known to the model")
    two = replace(bare, data=np.where(bare.data > 2, 0, bare.data))
    with notices.muted(), notices.collected() as texts:
        register(pair.fixed, pair.moving, moving_labels=two, model=model_for("mr", names=names))
    assert not [t for t in texts if t.startswith(("W247", "W248"))]


def test_volumes_of_another_size_than_the_model_segments_are_told(pair):
    """Equal numbers are no proof: a label far larger than the class of its number belongs to something else."""
    bare = replace(pair.moving_labels, data=np.where(pair.moving_labels.data > 2, 0, pair.moving_labels.data), names={})
    geometry = bare.geometry
    small = np.stack([(bare.data == 1), (bare.data == 2) & (np.indices(bare.data.shape)[0] < 0)]).astype(np.float32)
    recipe = Recipe(SMALL, SMALL.for_bank("mr"), model_for("mr").weights, model=model_for("mr"))
    for shares, warned in ((small, True), (np.stack([bare.data == 1, bare.data == 2]).astype(np.float32), False)):
        moving = replace(Image.of(pair.moving, bare), maps=StructureMaps(shares, geometry, (1, 2)))
        seen = ImagePair(Image.of(pair.fixed), moving, np.eye(4))
        with notices.muted(), notices.collected() as texts:
            doubt_volumes(seen, replace(recipe, match=StructureMatch("number", {1: 1, 2: 2}, ())))
        assert [t.startswith("W247") and "label 2 has" in t for t in texts] == [True] * warned


def test_label_maps_without_anything_in_common_and_fixed_labels_alone(pair):
    bare = [replace(labels, names={}) for labels in (pair.fixed_labels, pair.moving_labels)]
    other = replace(bare[0], data=np.where(bare[0].data > 0, bare[0].data + 20, 0))
    with pytest.raises(RegweaveError, match=r"E126.*neither a name nor a number"):
        register(pair.fixed, pair.moving, config=SMALL, fixed_labels=other, moving_labels=bare[1])
    with notices.muted(), notices.collected() as texts:
        register(pair.fixed, pair.moving, config=SMALL, fixed_labels=pair.fixed_labels)
    assert [t for t in texts if t.startswith("W249: nothing is scored") and "moving labels are missing" in t]


def test_the_record_has_how_much_of_a_model_was_used(pair):
    """Without labels or a predictor nothing chooses columns; a background as before learning is no model at all."""
    whole = register(pair.fixed, pair.moving, moving_labels=named_as(pair, (1, 2)), model=model_for("mr")).provenance
    with pytest.warns(RegweaveWarning, match="W262: the model chooses no weights"):
        found = register(pair.fixed, pair.moving, model=model_for("mr"))
    part = found.provenance
    assert any("W262" in reason.text for reason in found.verdict.reasons)
    plain = model_for("mr")
    even = replace(
        plain, weights=replace(plain.weights, matrix=np.column_stack([[0.5, 0.5], *plain.weights.matrix.T[1:]]))
    )
    with notices.muted():
        none = register(pair.fixed, pair.moving, model=even).provenance
    assert [r.model.used for r in (whole, part, none)] == ["all", "part", "none"]
    assert whole.model.reason == ""
    assert "no moving labels" in part.model.reason
    assert part.headline().endswith("model in memory used in part")
    assert none.headline().endswith("model in memory not used")


def named_as(pair, kept):
    return replace(
        pair.moving_labels, data=np.where(np.isin(pair.moving_labels.data, kept), pair.moving_labels.data, 0)
    )
