"""Settings: presets that load and are what they claim, TOML there and back, mistakes named."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from regweave import engines, losses, metrics
from regweave.config import settings as presets
from regweave.config.settings import (
    Level,
    Refine,
    Settings,
    _by_hand,
    choose_settings,
    load,
    metric_weights,
    parse,
    preset,
    preset_names,
    validate,
)
from regweave.errors import UsageError
from regweave.spatial.control_grid import RULES
from regweave.training.options import TrainSetup
from regweave.types import Geometry

MINIMAL = {
    "name": "mine", "smoothness": 0.2, "levels": [{"spacing_mm": 20.0}],
    "banks": {"mr": [{"name": "a", "metric": "sad"}]},
}  # fmt: skip


def changed(**changes) -> dict:
    return {**MINIMAL, **changes}


def problem(content: dict) -> str:
    with pytest.raises(UsageError) as caught:
        validate(content, "mine.toml")
    assert caught.value.code == "E185"
    assert caught.value.exit_status == 2
    assert "mine.toml" in caught.value.message
    return caught.value.message


def test_every_preset_loads_and_knows_its_name(tmp_path):
    for name in preset_names():
        found = preset(name)
        assert found.name == name
        assert set(found.banks) == {"ct", "mr", "multi"}
        for modality in found.banks:
            schedule = found.for_bank(modality)
            assert schedule.bank_name == modality
            assert schedule.bank == found.banks[modality]
            assert schedule.levels == found.levels
            assert schedule.discrete
    for name in preset_names():
        found = preset(name)
        assert parse(found.toml(), "text") == found
        (tmp_path / "s.toml").write_text(found.toml(), encoding="utf-8")
        assert load(tmp_path / "s.toml") == found
    folder = Path(presets.__file__).parent / "presets"
    assert sorted(p.stem for p in folder.glob("*.toml")) == preset_names()
    for path in folder.glob("*.toml"):
        assert load(path) == preset(path.stem)


def test_toml_keeps_everything_that_can_be_set():
    member = {
        "name": "odd-Name_1", "metric": "ngf", "window": [-100.5, 1e-7], "support": 5, "sigma_voxels": 1.25,
        "stage": "refine", "options": {"sigma_voxels": 0.0, "edge": 2.5e-3},
    }  # fmt: skip
    level = {"spacing_mm": 1e-3, "shrink": 3, "support": 4, "labels_per_axis": 5, "steps": 2, "first_step": 0.1}
    content = changed(
        name='say "hi" \\ there\n\tµ', modality="ct", reference_mm=150.0, initial="moments", engine="icm",
        class_rule="share", class_at="displaced", pairwise="elastic", loss="voxel",
        levels=[{"spacing_mm": 9.0, "voxels_per_spacing": 5.5, "step_decay": 1.0}, level],
        refine={"steps": 7, "rate": 0.25, "smoothness": 2.0, "max_voxels": 5000},
        banks={"ct": [member, {"name": "n", "metric": "ncc", "options": {"squared": True}}]},
    )  # fmt: skip
    found = validate(content, "x")
    assert parse(found.toml(), "text") == found
    assert tomllib.loads(found.toml())["banks"]["ct"][0]["options"] == member["options"]


def test_names_of_presets(tmp_path, monkeypatch):
    assert preset("paper") == preset("paper@1")
    for version in (1, 2, 10):
        text = parse(preset("paper@1").toml(), "x").model_copy(update={"name": f"p@{version}"}).toml()
        (tmp_path / f"p@{version}.toml").write_text(text)
    monkeypatch.setattr(presets, "PRESETS", str(tmp_path))
    assert preset("p").name == "p@10"
    assert preset("p@2").name == "p@2"
    for name in ["", "papr", "paper@2", "paper@", "@1", "../paper@1", "default.toml"]:
        with pytest.raises(UsageError) as caught:
            preset(name)
        assert caught.value.code == "E184"
        for known in preset_names():
            assert known in caught.value.hint


def test_paper_is_the_paper():
    """Supplement, section 1: two levels of five steps, 125 labels, 25 mm, FastPD, four metrics, class by count."""
    paper = preset("paper@1")
    assert [(v.spacing_mm, v.steps, v.labels_per_axis**3, v.shrink) for v in paper.levels] == [
        (50.0, 5, 125, 2),
        (25.0, 5, 125, 1),
    ]
    for level in paper.levels:
        assert (level.first_step, level.step_decay) == (0.2, 0.66)
        assert level.support is None  # a box of one control spacing
        assert level.voxels_per_spacing is None
    assert (paper.engine, paper.class_rule, paper.class_at) == ("fastpd", "count", "displaced")
    assert (paper.pairwise, paper.loss, paper.reference_mm) == ("fluid", "dice", None)
    assert paper.refine.steps == 0
    for bank in (paper.banks["ct"], paper.banks["mr"]):
        assert [(m.name, m.metric) for m in bank] == [(m, m) for m in ("sad", "mi", "ncc", "dwt")]
        assert all(m.support is None and m.window is None and not m.options for m in bank)


def test_mistakes_are_named():
    for content, place in [
        (changed(smothness=0.1), "smothness"),
        (changed(levels=[{"spacing_mm": 5.0, "stepps": 2}]), "levels.0.stepps"),
        (changed(refine={"step": 3}), "refine.step"),
        (changed(banks={"mr": [{"name": "a", "metric": "sad", "widow": [0, 1]}]}), "banks.mr.0.widow"),
        (changed(banks={"mr": [{"name": "a", "metric": "ncc", "options": {"ceiling": 1}}]}), "ceiling"),
        (changed(banks={"pet": [{"name": "a", "metric": "sad"}]}), "banks.pet"),
        ({k: v for k, v in MINIMAL.items() if k != "smoothness"}, "smoothness"),
        ({k: v for k, v in MINIMAL.items() if k != "levels"}, "levels"),
    ]:
        assert place in problem(content)
    for content, text in [
        (changed(smoothness=0), "smoothness"), (changed(smoothness="a lot"), "smoothness"),
        (changed(smoothness=float("inf")), "smoothness"), (changed(smoothness=float("nan")), "smoothness"),
        (changed(levels=[{"spacing_mm": float("inf")}]), "levels.0.spacing_mm"),
        (changed(banks={"mr": [{"name": "a", "metric": "sad", "window": [float("-inf"), 0]}]}), "window"),
        (changed(banks={"mr": [{"name": "a", "metric": "ngf", "options": {"edge": float("inf")}}]}), "edge"),
        (changed(levels=[]), "levels"), (changed(levels=[{"spacing_mm": -5.0}]), "levels.0.spacing_mm"),
        (changed(levels=[{"spacing_mm": 5.0, "labels_per_axis": 4}]), "labels_per_axis"),
        (changed(levels=[{"spacing_mm": 5.0, "steps": 0}]), "steps"),
        (changed(levels=[{"spacing_mm": 5.0, "first_step": 0.5}]), "at most 0.4 keeps every step invertible"),
        (changed(levels=[{"spacing_mm": 5.0, "labels_per_axis": 5, "first_step": 0.21}]), "0.42 control spacings"),
        (changed(levels=[{"spacing_mm": 5.0, "step_decay": 1.5}]), "step_decay"),
        (changed(refine={"rate": 0.9}), "refine.rate"), (changed(pairwise="rubber"), "pairwise"),
        (changed(class_at="here"), "class_at"), (changed(modality="pet"), "modality"),
        (changed(banks={"mr": []}), "bank"),
        (changed(banks={"mr": [{"name": "1 a", "metric": "sad"}]}), "banks.mr.0.name"),
        (changed(banks={"mr": [{"name": "a", "metric": "sad", "window": [5, 5]}]}), "give low < high"),
        (changed(banks={"mr": [{"name": "a", "metric": "sad"}] * 2}), "different names"),
        (changed(banks={"mr": [{"name": "a", "metric": "mi", "stage": "refine"}]}), "voxel by voxel"),
        (changed(banks={"mr": [{"name": "a", "metric": "sad", "stage": "refine"}]}), "takes part in the levels"),
        (changed(banks={"mr": [{"name": "a", "metric": "ncc", "options": {"variance_floor": 0}}]}), "variance_floor"),
    ]:  # fmt: skip
        assert text in problem(content)
    for content, listed in [
        (
            changed(engine="trvs"),
            f"unknown engine 'trvs'; did you mean trws? available: {', '.join(engines.available())}",
        ),
        (changed(class_rule="vote"), f"unknown class_rule 'vote'; available: {', '.join(sorted(RULES))}"),
        (changed(loss="dise"), f"unknown loss 'dise'; did you mean dice? available: {', '.join(losses.available())}"),
        (
            changed(banks={"mr": [{"name": "a", "metric": "nnc"}]}),
            f"unknown metric 'nnc'; did you mean ncc? available: {', '.join(metrics.available())}",
        ),
    ]:
        assert listed in problem(content)
    text = problem(changed(smothness=1, pairwise="rubber"))
    assert "smothness" in text
    assert "pairwise" in text


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(UsageError, match=r"E101.*none\.toml"):
        load(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="E101"):
        load(tmp_path)
    (tmp_path / "bad.toml").write_text("name = [")
    with pytest.raises(UsageError, match=r"E185.*bad\.toml is not TOML"):
        load(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(UsageError, match=r"E185.*latin\.toml"):
        load(tmp_path / "latin.toml")


def test_members_by_stage_weights_and_banks():
    bank = [
        {"name": "both", "metric": "sad"},
        {"name": "early", "metric": "ncc", "stage": "levels"},
        {"name": "late", "metric": "mind", "stage": "refine"},
        {"name": "mi", "metric": "mi"},
    ]
    s = validate(changed(levels=[{"spacing_mm": 5.0}], banks={"mr": bank}), "x").for_bank("mr")
    assert [m.name for m in s.discrete] == ["both", "early", "mi"]
    assert [m.name for m in s.continuous] == ["both", "late"]
    bank = [
        {"name": "a", "metric": "sad"},
        {"name": "b", "metric": "ncc", "weight": 3.0},
        {"name": "waits", "metric": "ngf", "stage": "refine", "weight": 0.0},
    ]
    s = validate(changed(banks={"mr": bank}), "x").for_bank("mr")
    w = s.start_weights(0.2, (0, 4))
    assert w.matrix.tolist() == [[0.25, 0.25], [0.75, 0.75], [0.0, 0.0]]
    assert (w.members, w.classes, w.pairwise) == (("a", "b", "waits"), (0, 4), 0.2)
    bank = [{"name": "a", "metric": "sad", "weight": 0.0}, {"name": "b", "metric": "ncc", "stage": "refine"}]
    assert "no member of the bank takes part in the levels" in problem(changed(banks={"mr": bank}))
    with pytest.raises(UsageError, match=r"E183.*'mine'.*no bank for CT.*banks\.ct"):
        validate(MINIMAL, "x").for_bank("ct")
    found = validate(MINIMAL, "x")
    with pytest.raises(ValidationError):
        found.smoothness = 3.0
    assert isinstance(found, Settings)


def test_levels_and_control_spacings_of_an_image():
    s = validate(changed(levels=[{"spacing_mm": 40.0}], reference_mm=200.0), "x")
    for length, expected in ((400, 40.0), (200, 40.0), (100, 20.0), (50, 10.0)):
        geometry = Geometry((length, length // 2, length // 2), np.eye(4))
        assert s.levels_for(geometry)[0].spacing_mm == pytest.approx(expected, rel=0.02)
    assert s.model_copy(update={"reference_mm": None}).levels_for(geometry)[0].spacing_mm == 40.0
    geometry = Geometry((100, 100, 30), np.diag([1.0, 1.0, 3.0, 1.0]))
    assert Level(spacing_mm=12.0, shrink=2).factors(geometry) == (2, 2, 2)
    assert Level(spacing_mm=12.0, voxels_per_spacing=4.0).factors(geometry) == (3, 3, 1)
    assert Level(spacing_mm=60.0, voxels_per_spacing=6.0).factors(geometry) == (10, 10, 3)
    assert Level(spacing_mm=600.0, shrink=16).factors(geometry) == (16, 16, 7)  # four voxels are left
    assert Refine(max_voxels=300_000).factors(geometry) == (1, 1, 1)
    for settings, voxel_mm, expected in [
        (Refine(spacing_voxels=3.0), (1, 1, 1), 3.0), (Refine(spacing_mm=2.0), (1, 1, 1), 2.0),
        (Refine(spacing_mm=2.0), (0.5, 2, 1), 2.0), (Refine(spacing_mm=2.0), (3.5, 3.5, 3.5), 1.0),
    ]:  # fmt: skip
        geometry = Geometry((20, 20, 20), np.diag([*voxel_mm, 1.0]))
        assert settings.control_spacing(geometry) == pytest.approx(expected)


# Settings of a run: members chosen by hand take part in every stage that they can.
def stages(metrics, name="default"):
    bank = choose_settings(name, None, None, dict.fromkeys(metrics, 1.0)).banks["mr"]
    return {member.name: member.stage for member in bank}


def test_metrics_by_hand_take_part_in_every_stage_that_they_can():
    # A preset that leaves the refinement to other members must not leave it to none.
    for name in ["default@1", "paper@1"]:
        assert all(stage != "levels" for stage in stages(["sad", "ncc", "gradient"], name).values())
    bank = {m.name: m for m in choose_settings("default@1", None, None, None).banks["mr"]}
    chosen = [bank["ncc"], bank["lncc7"]]
    assert [m.stage for m in _by_hand(chosen)] == [m.stage for m in chosen] == ["levels", "refine"]
    found = stages(["mi", "sad"])
    assert found == {"mi": "levels", "sad": "both"}
    assert stages(["mi"]) == {"mi": "levels"}


def test_metrics_by_hand_are_those_of_the_bank_that_knows_them():
    # The bank of two modalities has no lncc3: a pair of one modality does not need it.
    for given in [{"ncc": 1, "lncc3": 1}, ["ncc", "lncc3"], ["ncc=1", "lncc3=1.0"]]:
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
    for given in [["ncc=much"], ["ncc="], {"ncc": "much"}, ["ncc", "ncc=2"]]:
        with pytest.raises(UsageError, match="E188"):
            metric_weights(given)
    listed, mapped = TrainSetup(metrics=["ncc=0.5", "mi"]), TrainSetup(metrics={"ncc": 0.5, "mi": 1.0})
    assert listed.settings == mapped.settings
