"""Settings of a run: members chosen by hand take part in every stage that they can."""

import pytest

from regweave.config.presets import _by_hand, choose_settings, metric_weights, preset
from regweave.errors import UsageError
from regweave.training.options import TrainSetup


def stages(metrics, name="default"):
    bank = choose_settings(name, None, None, dict.fromkeys(metrics, 1.0)).banks["mr"]
    return {member.name: member.stage for member in bank}


@pytest.mark.parametrize("name", ["default@1", "paper@1"])
def test_metrics_by_hand_are_refined_by(name):
    """A preset that leaves the refinement to other members must not leave it to none."""
    assert all(stage != "levels" for stage in stages(["sad", "ncc", "gradient"], name).values())


def test_where_a_member_of_the_refinement_is_among_them_the_others_keep_their_part():
    bank = {m.name: m for m in choose_settings("default@1", None, None, None).banks["mr"]}
    chosen = [bank["ncc"], bank["lncc7"]]
    assert [m.stage for m in _by_hand(chosen)] == [m.stage for m in chosen] == ["levels", "refine"]


def test_what_cannot_be_compared_voxel_by_voxel_stays_in_the_levels():
    found = stages(["mi", "sad"])
    assert found == {"mi": "levels", "sad": "both"}
    assert stages(["mi"]) == {"mi": "levels"}


@pytest.mark.parametrize("given", [{"ncc": 1, "lncc3": 1}, ["ncc", "lncc3"], ["ncc=1", "lncc3=1.0"]])
def test_metrics_by_hand_are_those_of_the_bank_that_knows_them(given):
    """The bank of two modalities has no lncc3: a pair of one modality does not need it."""
    weights = metric_weights(given)
    assert weights == {"ncc": 1.0, "lncc3": 1.0}
    chosen = choose_settings("default", None, None, weights)
    whole = {m.name: m for m in preset("default").for_bank("mr").bank}
    assert [m.name for m in chosen.for_bank("mr").bank] == ["ncc", "lncc3"]
    assert chosen.for_bank("mr").bank[1].metric_options == whole["lncc3"].metric_options
    with pytest.raises(UsageError, match="E183"):
        chosen.for_bank("multi")
    with pytest.raises(UsageError, match="E181"):
        choose_settings("default", None, None, {"ncc": 1.0, "lncc33": 1.0})
    with pytest.raises(UsageError, match=r"E181: unknown metric 'mutualinfo'") as caught:
        choose_settings("default", None, None, metric_weights(["mutualinfo"]))
    assert "did you mean mi? mi: Mutual information" in caught.value.hint


@pytest.mark.parametrize("given", [["ncc=much"], ["ncc="], {"ncc": "much"}, ["ncc", "ncc=2"]])
def test_weights_that_are_none_have_a_code(given):
    with pytest.raises(UsageError, match="E188"):
        metric_weights(given)


def test_training_takes_the_same_forms():
    listed, mapped = TrainSetup(metrics=["ncc=0.5", "mi"]), TrainSetup(metrics={"ncc": 0.5, "mi": 1.0})
    assert listed.settings == mapped.settings
