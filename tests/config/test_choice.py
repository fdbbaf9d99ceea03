"""Settings of a run: members chosen by hand take part in every stage that they can."""

from __future__ import annotations

import pytest

from regweave.config.choice import _by_hand, choose_settings


def stages(metrics, preset="default"):
    bank = choose_settings(preset, None, None, dict.fromkeys(metrics, 1.0)).banks["mr"]
    return {member.name: member.stage for member in bank}


@pytest.mark.parametrize("preset", ["default@2", "default@6", "paper@1"])
def test_metrics_by_hand_are_refined_by(preset):
    """A preset that leaves the refinement to other members must not leave it to none."""
    assert all(stage != "levels" for stage in stages(["sad", "ncc", "gradient"], preset).values())


def test_where_a_member_of_the_refinement_is_among_them_the_others_keep_their_part():
    bank = {m.name: m for m in choose_settings("default@6", None, None, None).banks["mr"]}
    chosen = [bank["ncc"], bank["lncc7"]]
    assert [m.stage for m in _by_hand(chosen)] == [m.stage for m in chosen] == ["levels", "refine"]


def test_what_cannot_be_compared_voxel_by_voxel_stays_in_the_levels():
    found = stages(["mi", "sad"])
    assert found == {"mi": "levels", "sad": "both"}
    assert stages(["mi"]) == {"mi": "levels"}
