"""Cross-validation by person: folds, pairs of a fold, the choice of each fold, and stored maps."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SAD = {"name": "sad", "metric": "sad"}
BENCHMARK = Path(__file__).parents[2] / "benchmark"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARK), *sys.path])


@pytest.fixture
def cohort_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of empty images: crops of seven people, hearts of six."""
    cases = {"msd_hippocampus": [f"hippocampus_{n:03d}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 11, 13)]}
    cases["acdc_mm"] = [f"patient{n:03d}_{phase}" for n in range(1, 7) for phase in ("ED", "ES")]
    for name, listed in cases.items():
        for case in listed:
            (tmp_path / name / case).mkdir(parents=True)
            (tmp_path / name / case / "image.nii.gz").touch()
    monkeypatch.setenv("REGWEAVE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cohort_folder")
def test_no_person_is_in_two_folds_and_all_folds_are_used() -> None:
    split = pairs = import_module("_pairs")
    for name in ("msd_hippocampus", "acdc_mm"):
        folds = split.folds_of(name)
        assert sorted(folds) == pairs.cases_of(name)
        of_person: dict[str, set[int]] = {}
        for case, fold in folds.items():
            of_person.setdefault(pairs.subject_of(case), set()).add(fold)
        assert all(len(found) == 1 for found in of_person.values())
        assert set(folds.values()) == set(range(5))
    assert split.folds_of("acdc_mm", 0) != split.folds_of("acdc_mm", 1)
    # Crops 2k - 1 and 2k are the two sides of one head; 2k and 2k + 1 are not.
    assert pairs.subject_of("hippocampus_003") == pairs.subject_of("hippocampus_004")
    assert pairs.subject_of("hippocampus_002") != pairs.subject_of("hippocampus_003")


@pytest.mark.usefixtures("cohort_folder")
def test_pairs_of_a_fold_stay_inside_it_and_wear_people_evenly() -> None:
    split = pairs = import_module("_pairs")
    folds = split.folds_of("msd_hippocampus")
    for fold in range(5):
        found = split.fold_pairs("msd_hippocampus", fold, 100)
        assert {folds[c] for p in found for c in (p.fixed, p.moving)} <= {fold}
        assert all(pairs.subject_of(p.fixed) != pairs.subject_of(p.moving) for p in found)
        assert found[:2] == split.fold_pairs("msd_hippocampus", fold, 2)
    hearts = [p for fold in range(5) for p in split.fold_pairs("acdc_mm", fold, 1)]
    assert all(pairs.subject_of(p.fixed) == pairs.subject_of(p.moving) for p in hearts)
    assert len({p.subject for p in hearts}) == 5


def test_pairs_use_every_person_before_one_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = import_module("_pairs")
    cases = [f"pt_{n}" for n in range(30)]
    for case in cases:
        (tmp_path / "openkbp_head_neck" / case).mkdir(parents=True)
        (tmp_path / "openkbp_head_neck" / case / "image.nii.gz").touch()
    monkeypatch.setenv("REGWEAVE_DATA", str(tmp_path))
    found = split.fold_pairs("openkbp_head_neck", 0, 6)
    used = [c for p in found for c in (p.fixed, p.moving)]
    assert sorted(used.count(c) for c in set(used)) == [2] * 6


def test_a_fold_chooses_by_the_pairs_of_the_others_alone() -> None:
    grid = import_module("crossval")
    pairs = {0: [_line("a")], 1: [_line("b")], 2: [_line("c")]}
    dice = {
        ("learned", "bold"): {"a": {"1": 0.9, "2": 0.1}, "b": {"1": 0.2, "2": 0.1}, "c": {"1": 0.3, "2": 0.1}},
        ("learned", "meek"): {"a": {"1": 0.1, "2": 0.9}, "b": {"1": 0.4, "2": 0.9}, "c": {"1": 0.4, "2": 0.9}},
        ("learned", "frail"): {"a": {"1": 0.95}, "b": {}, "c": {"1": 0.95}},
        ("uniform", "plain"): {"a": {"1": 1.0}, "b": {"1": 1.0}, "c": {"1": 1.0}},
    }
    table = grid.Table(pairs, dice, {})
    # Pair a alone speaks for "bold", and it speaks to the other folds only; "frail" failed on b.
    assert [table.best("learned", fold, ["1"]) for fold in (0, 2)] == ["meek", "bold"]
    assert table.best("learned", 1, ["1"]) == "frail"
    assert table.best("learned", 1, ["1", "2"]) == "frail"
    assert table.best("learned", 2, ["2"]) == "meek"
    assert table.means(["1"])["learned"]["meek"] == pytest.approx(0.3)


def _line(name: str, group: str = "p") -> Any:
    from regweave.jobs.table import PairFiles

    return PairFiles(name, *(Path(),) * 4, group)


def test_candidates_give_maps_the_weight_that_they_say() -> None:
    from regweave.config.settings import preset

    grid = import_module("crossval")
    schedule = preset("default").for_bank("mr")
    start = schedule.start_weights(0.05, (0, 1, 2))
    table = grid.mixed(start, schedule, grid.Mix({"outline": 8.0}, 0.5))
    of = dict(zip(table.members, table.matrix[:, 1], strict=True))
    assert of["outline"] == pytest.approx(8 * of["lncc3"])
    assert table.matrix.sum() == pytest.approx(start.matrix.sum())
    assert (table.matrix == table.matrix[:, :1]).all()
    led = grid.mixed(start, schedule, grid.Mix({"outline": 8.0}, 0.5, coarse=True))
    shares = dict(zip(led.members, led.matrix[:, 1], strict=True))
    metrics = sum(shares[m.name] for m in schedule.discrete if m.stage != "refine" and m.source == "image")
    assert shares["outline-coarse"] == pytest.approx(metrics)


def rows(gain: float) -> list[dict[str, Any]]:
    """Pairs of two people; the learned rung is better by so much in structure 1 and withheld 2 stays."""
    out = []
    for k in range(6):
        start = 0.5 + 0.02 * k
        rungs = dict.fromkeys(("default", "uniform", "single", "learned", "learned, mask"), 0.0)
        rungs |= {"learned": gain, "learned, mask": 2 * gain}
        after = {rung: {"1": start + more, "2": 0.4 + more / 2} for rung, more in rungs.items()}
        more = {
            "folding_fraction": 0.0,
            "sdlogj": 0.3,
            "seconds": 1.0,
            "assd_mm": {"1": 2.0, "2": 1.0},
            "dice_before": {"1": 0.1, "2": 0.2},
        }
        methods = {rung: {"error": None, "dice_after": d, **more} for rung, d in after.items()}
        out.append({
            "pair": f"pair{k}", "fold": k % 3, "group": f"p{k}+q{k}", "methods": methods,
            "chosen": dict.fromkeys(rungs, "x"), "segmentation": {"1": start + gain},
        })  # fmt: skip
    return out


def test_condensed_numbers_follow_the_rows() -> None:
    found = import_module("crossval").condense(rows(0.1))
    assert found["before"] == pytest.approx(0.15)
    assert found["methods"]["learned"]["mean_dice"] == pytest.approx((0.65 + 0.45) / 2)
    gain = found["differences"]["learned − uniform"]
    assert (gain["mean"], gain["better"], gain["n"]) == (pytest.approx(0.075), 6, 6)
    assert gain["low"] == pytest.approx(0.075)
    assert found["by_class"]["2"]["mean"] == pytest.approx(0.05)


def test_the_table_shows_every_set() -> None:
    report, table = import_module("crossval"), import_module("table")
    about = {"data": "no_such_set", "n_people_in_pairs": 12, "true_mm": True, "labels": {"1": "cord", "2": "lens"}}
    text = "\n".join(table.crossval_table([{**about, "withheld": {}, **report.condense(rows(0.1))}]))
    assert "| `no_such_set` | 6 | 1.50 | 1.50 |" in text
    assert "+0.050 (lens)" in text  # the structure that gains least


def stored_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold_of: Any) -> tuple[Any, Any, Any]:
    """A set of ten people whose maps are stored; returns the module, the archive and a reader of cases."""
    from regweave.io import write_image
    from regweave.types import Geometry, Volume

    folder, split = import_module("_map_folder"), import_module("_pairs")
    data = tmp_path / "data" / "mscmr_cardiac"
    rng = np.random.default_rng(0)
    affine = np.diag([-2.0, -2.0, 3.0, 1.0])  # axes along R, A, S: canonical order reverses two of them
    maps = {}
    for k in range(10):
        (data / f"mscmr_{k:02d}").mkdir(parents=True)
        volume = Volume(rng.normal(500, 90, (5, 4, 6)).astype(np.float32), Geometry((5, 4, 6), affine), "mr")
        write_image(data / f"mscmr_{k:02d}" / "image.nii.gz", volume)
        maps[f"mscmr_{k:02d}"] = rng.integers(0, 85, (3, 5, 4, 6)).astype(np.uint8)
    monkeypatch.setenv("REGWEAVE_DATA", str(tmp_path / "data"))
    for name in ("REGWEAVE_PLUGINS", "REGWEAVE_STORED_MAPS"):
        monkeypatch.setenv(name, "")  # so that what the folder sets is taken back
    folds = {f"fold_{case}": np.array(fold_of(fold)) for case, fold in split.folds_of("mscmr_cardiac").items()}
    np.savez(tmp_path / "maps.npz", **maps, **folds, classes=np.array([1, 2, 3]))
    return folder, maps, lambda case: data / case / "image.nii.gz"


def test_stored_maps_come_back_on_the_axes_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regweave import predictors
    from regweave.config.settings import Settings
    from regweave.io.geometry import Orientation
    from regweave.model.model import Model
    from regweave.predictors import Examples
    from regweave.run.read import Reading
    from regweave.types import LabelMap, Volume, WeightTable

    folder, maps, path_of = stored_folder(tmp_path, monkeypatch, lambda fold: fold)
    folder.map_folder("mscmr_cardiac", tmp_path / "maps.npz", tmp_path / "stored")
    volume = Reading().image(path_of("mscmr_04"))
    labels = LabelMap(np.zeros(volume.data.shape, dtype=np.uint8), volume.geometry)
    fitted = predictors.fit("stored_maps", Examples([volume], [labels], (0, 1, 3), "mr"))
    weights = WeightTable.constant({"sad": 1.0}, 0.1, (0, 1, 3))
    settings = Settings.model_validate(
        {"name": "s", "smoothness": 0.1, "levels": [{"spacing_mm": 9.0}], "banks": {"mr": [SAD]}}
    )
    Model(weights, settings, "mr", predictor=fitted).save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json").predictor
    shares = again.maps(volume).shares
    np.testing.assert_allclose(shares, maps["mscmr_04"][[0, 2]] / 255, atol=1e-6)
    turn = Orientation.of(volume.geometry)
    turned = Volume(turn.to_canonical(volume.data), turn.canonical, "mr")
    np.testing.assert_array_equal(again.maps(turned).shares, turn.to_canonical(shares))
    told = again.labels(volume).data
    likeliest = np.array([0, 1, 3])[np.concatenate([1 - shares.sum(0, keepdims=True), shares]).argmax(0)]
    np.testing.assert_array_equal(told, likeliest)


def test_maps_of_a_network_that_saw_the_person_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, _ = stored_folder(tmp_path, monkeypatch, lambda fold: (fold + 1) % 5)
    with pytest.raises(SystemExit, match="maps of another fold"):
        folder.map_folder("mscmr_cardiac", tmp_path / "maps.npz", tmp_path / "stored")
