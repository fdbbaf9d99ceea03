"""The paper's experiments: splits as the paper says, and a whole run on a small fake data folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from regweave.cli import main
from regweave.config.settings import Settings
from regweave.datasets.manifest import read_pairs
from regweave.datasets.phantom import make_phantom
from regweave.errors import RegweaveError, UsageError
from regweave.io import read_image, read_labels, sha256, write_image, write_labels
from regweave.jobs.scoring import ScoringTask, score_pair
from regweave.pipeline.reading import Reading
from regweave.report.reproduce import write_page
from regweave.report.reproduce.records import Packed
from regweave.study.reproduce import ladder as reproduce_ladder
from regweave.study.reproduce import options as reproduce_options
from regweave.study.reproduce import run as module
from regweave.study.reproduce.cost import counted, told
from regweave.study.reproduce.data import TRUTH, all_scans, find_scans
from regweave.study.reproduce.experiments import ABDOMEN, EXPERIMENTS, IBSR, PAROTID_BETWEEN, PAROTID_TIME
from regweave.study.reproduce.options import MODELS, ReproduceOptions
from regweave.study.reproduce.pictures import _turned, packed
from regweave.study.reproduce.protocols import PAPER, PAPER_COLUMNS, Scan
from regweave.study.reproduce.run import reproduce
from regweave.study.reproduce.trial import PairTask, run_pair
from regweave.training.options import TrainOptions
from regweave.types import Volume

FAST = TrainOptions(C=20.0, alpha=1.0, eta=3.0, epsilon=0.1, gate=False)
TINY = Settings.model_validate(
    {
        "name": "tiny",
        "smoothness": 0.1,
        "levels": [{"spacing_mm": 60.0, "shrink": 2, "steps": 1}],
        "banks": {"ct": [{"name": name, "metric": name} for name in ("sad", "mi", "ncc", "dwt")]},
    }
)

QUICK = ReproduceOptions(config=TINY, quick=True, models=("joint",), workers=1)


def scans(n: int, prefix: str = "s") -> list[Scan]:
    return [Scan(f"{prefix}{i:02d}", f"{prefix}{i:02d}", Path(f"{i}.nii"), Path(f"{i}l.nii")) for i in range(n)]


def patients(pairs) -> set[str]:
    return {name for pair in pairs for name in pair.patients}


def test_ibsr_as_in_the_paper():
    splits = IBSR.splits(scans(18))
    assert [(s.fold, s.repetition) for s in splits] == [(f, r) for f in (1, 2) for r in (1, 2, 3)]
    for split in splits:
        assert (len(split.train), len(split.test)) == (10, 72)
        assert len({p.id for p in split.train}) == 10
        assert len(patients(split.test)) == 9
        assert not patients(split.train) & patients(split.test)
    tested = {p.id for s in splits for p in s.test}
    assert len(tested) == 144
    assert {p.id for s in splits for p in s.train} <= tested  # what trains one fold tests the other
    draws = {tuple(p.id for p in s.train) for s in splits}
    assert len(draws) == 6


def test_parotids_between_and_within_patients():
    for split in PAROTID_BETWEEN.splits(scans(9)):
        assert len(split.train) == 10
        assert len(split.test) in {12, 20}
        assert not patients(split.train) & patients(split.test)
        assert all(len(p.patients) == 2 for p in split.test)
    both = [s for scan in scans(4) for s in (scan, replace(scan, name=scan.name + "_later"))]
    splits = PAROTID_TIME.splits(both)
    assert sum(len(s.test) for s in splits) == 8  # the paper's number: 4 patients, two scans, both directions
    for split in splits:
        assert all(len(p.patients) == 1 for p in (*split.train, *split.test))
        assert not patients(split.train) & patients(split.test)
        assert patients(split.train) | patients(split.test) == {s.patient for s in both}


def test_abdomen_has_six_training_and_four_test_pairs():
    times = [replace(s, name=f"t{i}", patient=f"t{i}") for i, s in enumerate(scans(5))]
    splits = ABDOMEN.splits(times)
    assert len(splits) == 5
    left_out = set()
    for split in splits:
        assert (len(split.train), len(split.test)) == (6, 4)
        (new,) = patients(split.test) - patients(split.train)
        assert all(new in p.patients for p in split.test)
        assert not {p.id for p in split.train} & {p.id for p in split.test}
        left_out.add(new)
    assert left_out == {"t0", "t1", "t2", "t3", "t4"}
    assert len(list(combinations(range(5), 2))) == len(splits[0].train) + len(splits[0].test)


def test_a_larger_set_is_drawn_to_the_size_of_the_paper():
    """Of 52 patients 18 are used, of all their ordered pairs 72 in a fold; the same by the same seed."""
    cases = scans(52)
    chosen = PAROTID_BETWEEN.first(cases, 0)
    assert chosen == PAROTID_BETWEEN.first(cases, 0) != PAROTID_BETWEEN.first(cases, 1)
    assert len({s.patient for s in chosen}) == 18
    assert chosen == [s for s in cases if s in chosen]
    assert PAROTID_BETWEEN.first(cases[:18], 0) == cases[:18]
    assert [(len(s.train), len(s.test)) for s in PAROTID_BETWEEN.splits(chosen)] == [(10, 72)] * 2
    wider = replace(PAROTID_BETWEEN, patients=30).splits(scans(30))
    assert [len(s.test) for s in wider] == [72, 72]
    assert [len(s.test) for s in PAROTID_BETWEEN.at_most(20).splits(chosen)] == [20, 20]
    assert PAROTID_BETWEEN.at_most(100).test_pairs == 72
    assert PAROTID_BETWEEN.at_most(None) == PAROTID_BETWEEN
    assert IBSR.quick().at_most(50).test_pairs == 4
    time = [s for scan in chosen for s in (scan, replace(scan, name=scan.name + "_later"))]
    assert [(len(s.train), len(s.test)) for s in PAROTID_TIME.splits(time)] == [(10, 18)] * 2


def test_models_of_the_ladder():
    """The paper's method is always there, gates only where there is something to judge by."""
    assert list(ReproduceOptions().ladder()) == ["mw", "global", "joint", "per-class"]
    assert list(ReproduceOptions(quick=True).ladder()) == ["mw", "global", "joint"]
    assert list(ReproduceOptions(models=("search",)).ladder()) == ["mw", "search"]
    assert [name for name, o in MODELS.items() if o.gate] == ["per-class"]
    assert {o.predictor for o in MODELS.values()} == {None}
    with pytest.raises(UsageError, match=r"E192.*unknown models best.*mw, global, joint, per-class, search"):
        ReproduceOptions(models=("best",)).check()
    with pytest.raises(UsageError, match=r"E192.*--max-pairs is 0"):
        ReproduceOptions(max_pairs=0).check()
    with pytest.raises(UsageError, match=r"E192: --max-folds is 0"):
        ReproduceOptions(max_folds=0).check()
    assert [s.fold for s in IBSR.at_most(None, 1).splits(scans(18))] == [1, 1, 1]
    assert IBSR.at_most(None, 1).splits(scans(18)) == IBSR.splits(scans(18))[:3]
    assert IBSR.quick().at_most(None, 2).folds_run == 1


def test_splits_follow_the_seed_alone():
    a, b, c = (IBSR.splits(scans(8), seed) for seed in (0, 0, 1))
    assert a == b != c
    quick = IBSR.quick().splits(scans(8))
    assert [(len(s.train), len(s.test)) for s in quick] == [(2, 4)]
    assert not patients(quick[0].train) & patients(quick[0].test)


def test_the_table_of_the_paper():
    """Figures and last column of the supplement's table; the latter is MW minus the mean of the single metrics."""
    assert PAPER_COLUMNS == ("SAD", "MI", "NCC", "DWT", "MW", "increment")
    assert PAPER["RT Parotids"]["Parotl"] == (0.756, 0.760, 0.750, 0.757, 0.788, 0.033)
    assert PAPER["RT Abdominal"]["Sigmoid"] == (0.429, 0.423, 0.432, 0.426, 0.497, 0.070)
    assert PAPER["IBSR"]["CSF"] == (0.447, 0.520, 0.543, 0.527, 0.546, 0.037)
    rows = [row for organs in PAPER.values() for row in organs.values()]
    assert len(rows) == 8
    for *singles, mw, increment in rows:
        assert increment == pytest.approx(mw - np.mean(singles), abs=1e-3)


def test_organs_of_the_paper_are_named():
    for protocol in EXPERIMENTS["all"]:
        assert set(protocol.paper_organs.values()) <= set(PAPER[protocol.paper_set])
        assert set(protocol.paper_organs) <= set(protocol.classes)
        assert protocol.differences
        assert protocol.source


@pytest.fixture(scope="module")
def fake_data(tmp_path_factory) -> Path:
    """Phantoms as CT under the names of the real sets."""
    root = tmp_path_factory.mktemp("data")
    for seed in range(4):
        pair = make_phantom(seed=seed, shape=(16, 16, 16), spacing_mm=(11.0, 11.0, 11.0)).pair
        folder = root / "openkbp_head_neck" / f"pt_{seed}"
        folder.mkdir(parents=True)
        share = pair.moving.data / pair.moving.data.max()
        ct = np.where(share < 0.05, -1000, 330 * share - 120).astype(np.float32)
        write_image(folder / "image.nii.gz", Volume(ct, pair.moving.geometry))
        write_labels(folder / "labels.nii.gz", replace(pair.moving_labels, data=_renamed(pair.moving_labels.data)))
    return root


def _renamed(data):
    """Parotids are 4 and 5 in the phantom, 1 and 2 in the set."""
    return np.select([data == 4, data == 5], [1, 2], 0).astype(np.uint8)


@pytest.fixture(scope="module")
def fast(in_process):
    methods = {"mw": "lssvm", "joint": "lssvm-joint"}
    models = {name: replace(FAST, method=method, predictor=None) for name, method in methods.items()}
    in_process.setattr(reproduce_options, "MODELS", {**MODELS, **models})
    in_process.setattr(module, "EXPERIMENTS", {**EXPERIMENTS, "parotid": (PAROTID_TIME,)})
    return in_process


@pytest.fixture(scope="module")
def finished(fake_data, tmp_path_factory, fast) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("out") / "run"
    content = reproduce("parotid", fake_data, folder, QUICK, on_experiment=write_page)
    return folder, content


def test_what_a_run_writes(finished):
    folder, content = finished
    assert json.loads((folder / "reproduce.json").read_text()) == content
    assert {p.name for p in folder.iterdir()} == {
        ".regweave-result", "cost.json", "reproduce.json", "pictures.json", "report.html", "summary.md",
            "figures", "lists", "models", "scans", "work",
    }  # fmt: skip
    assert [e["name"] for e in content["experiments"]] == ["parotid-time"]
    for e in content["experiments"]:
        assert e["methods"][:5] == ["single:sad", "single:mi", "single:ncc", "single:dwt", "uniform"]
        assert e["methods"][5:] == ["model:mw", "model:joint"]
        assert len(e["results"]) == 7 * sum(len(s["test"]) for s in e["splits"])
        assert all(r["error"] is None for r in e["results"])
        for run in e["runs"]:
            if "weights" in run:
                assert run["weights"]["members"] == ["sad", "mi", "ncc", "dwt"]
                assert run["weights"]["classes"] == [0, 1, 2]
            else:
                assert 3 <= len(run["tuning"]) <= 9
                best = max(run["tuning"], key=lambda row: (row["mean_dice"], row["smoothness"]))
                assert run["smoothness"] == best["smoothness"]
    assert (content["max_pairs"], content["models"]) == (None, ["mw", "joint"])
    (time,) = content["experiments"]
    assert time["rules"] == {"patients": 18, "test_pairs": 4, "initial": None}
    assert time["cases_found"] == 4
    assert set(time["truth_error_mm"]) == set(time["methods"])
    assert all(row["1"]["before"] > 0 for row in time["truth_error_mm"].values())


def test_lists_can_be_used_again(finished):
    folder, content = finished
    pairs = read_pairs(folder / "lists" / "parotid-time" / "fold1-repetition1-test.csv")
    assert [p.id for p in pairs] == content["experiments"][0]["splits"][0]["test"]


def test_gains_are_those_of_the_results(finished):
    for e in finished[1]["experiments"]:
        means = {
            m: np.mean([r["labels"]["1"]["dice_after"] for r in e["results"] if r["method"] == m]) for m in e["methods"]
        }
        singles = [m for m in e["methods"] if m.startswith("single:")]
        rows = {row["over"]: row for row in e["gains"] if row["label"] == "1"}
        mine = means["model:mw"]
        assert rows["mean of single metrics"]["mean"] == pytest.approx(mine - np.mean([means[m] for m in singles]))
        best = max(singles, key=means.__getitem__)
        assert rows[best]["best_single"]
        assert rows[best]["mean"] == pytest.approx(mine - means[best])
        assert rows["uniform"]["mean"] == pytest.approx(mine - means["uniform"])


def test_a_finished_run_is_not_run_again(finished, fake_data, fast, monkeypatch):
    folder, content = finished
    before = (folder / "reproduce.json").read_bytes()
    monkeypatch.setattr(reproduce_ladder, "fit_model", None)
    assert reproduce("parotid", fake_data, folder, QUICK, resume=True) == content
    assert (folder / "reproduce.json").read_bytes() == before


def test_cost_adds_up_over_calls_and_counts_workers(tmp_path):
    with counted(tmp_path, "ibsr"):
        _burn(0.2)
    first = _cost(tmp_path)["ibsr"]
    assert 0.1 <= first < 5.0
    with pytest.raises(KeyboardInterrupt), counted(tmp_path, "ibsr"):
        _burn_in_a_child_and_stop()
    with counted(tmp_path, "abdomen"):
        pass
    assert _cost(tmp_path)["ibsr"] >= first + 0.4  # that of the child that has ended
    assert _cost(tmp_path)["abdomen"] < 0.1
    assert told(tmp_path).startswith(f"{sum(_cost(tmp_path).values()):,.0f} CPU-seconds: ibsr ")
    assert told(tmp_path / "none") == ""


BURN = "import time\nwhile time.process_time() < 0.5: pass"


def _burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _burn_in_a_child_and_stop():
    subprocess.run([sys.executable, "-c", BURN], check=True)
    raise KeyboardInterrupt


def _cost(folder):
    return json.loads((folder / "cost.json").read_text(encoding="utf-8"))["cpu_seconds"]


def test_a_run_says_what_it_cost(finished):
    folder, content = finished
    assert _cost(folder).keys() == {e["name"] for e in content["experiments"]}
    assert all(used > 0 for used in _cost(folder).values())


def test_a_stopped_run_goes_on_and_gives_the_same(finished, fake_data, tmp_path, fast):
    n = 0

    def stop(_):
        nonlocal n
        n += 1
        if n == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("parotid", fake_data, tmp_path / "run", QUICK, on_progress=stop)
    content = reproduce("parotid", fake_data, tmp_path / "run", QUICK, resume=True)
    expected = dict(finished[1])
    assert content.pop("timing").keys() == expected.pop("timing").keys()
    assert _without_hashes(content) == _without_hashes(expected)


def _without_hashes(content):
    """Drop the hashes of model files, which name the folder of their pairs nowhere but hold counts of this run."""
    text = json.loads(json.dumps(content))
    for e in text["experiments"]:
        for run in e["runs"]:
            run.pop("sha256", None)
    return text


@pytest.mark.slow
def test_all_of_the_ladder_with_gates(fake_data, tmp_path, in_process, monkeypatch):
    """The abdominal protocol in full but for its folds, on phantoms."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "totalseg_abdomen").symlink_to(fake_data / "openkbp_head_neck")
    options = {name: replace(o, epsilon=0.1, alpha=1.0) for name, o in MODELS.items()}
    monkeypatch.setattr(reproduce_options, "MODELS", {**options, "search": replace(options["search"], budget=30)})
    protocol = replace(ABDOMEN, folds_run=2, classes={1: "left", 2: "right"}, paper_organs={})
    monkeypatch.setattr(module, "EXPERIMENTS", {"abdomen": (protocol,), "between": (PAROTID_BETWEEN,)})
    content = reproduce(
        "abdomen", tmp_path / "data", tmp_path / "out", replace(QUICK, quick=False, models=tuple(MODELS))
    )
    (found,) = content["experiments"]
    assert [m for m in found["methods"] if m.startswith("model:")] == [
        "model:mw", "model:global", "model:joint", "model:per-class", "model:search"
    ]  # fmt: skip
    assert [(len(s["train"]), len(s["test"])) for s in found["splits"]] == [(6, 4)] * 2
    assert all(bool(run["gates"]) == (run["method"] == "model:per-class") for run in found["runs"] if "gates" in run)
    write_page(tmp_path / "out")
    assert "learned per class, gated" in (tmp_path / "out" / "summary.md").read_text()


def test_a_start_of_an_experiment_holds_for_every_method(fake_data, tmp_path, fast, monkeypatch):
    """Between patients there is no truth; with a start by moments the overlap before is another one."""
    before = {}
    for number, case in enumerate(find_scans(PAROTID_BETWEEN, fake_data)):
        folder = tmp_path / "data" / PAROTID_BETWEEN.data_set / case.name
        folder.mkdir(parents=True)
        image, labels = read_image(case.image), read_labels(case.labels)
        affine = image.geometry.affine.copy()
        affine[0, 3] += 15.0 * number
        moved = replace(image.geometry, affine=affine)
        write_image(folder / "image.nii.gz", Volume(image.data, moved))
        write_labels(folder / "labels.nii.gz", replace(labels, geometry=moved))
    for initial in (None, "moments"):
        protocol = replace(PAROTID_BETWEEN, initial=initial)
        monkeypatch.setattr(module, "EXPERIMENTS", {"between": (protocol,)})
        content = reproduce(
            "between", tmp_path / "data", tmp_path / str(initial), replace(QUICK, models=(), max_pairs=1)
        )
        (found,) = content["experiments"]
        assert found["truth_error_mm"] is None
        assert found["rules"]["initial"] == initial
        assert len(found["splits"][0]["test"]) == 1
        before[initial] = {row["labels"]["1"]["dice_before"] for row in found["results"]}
        assert len(before[initial]) == 1
    assert max(before[None]) < min(before["moments"])
    assert content["settings"]["initial"] == "none"


def test_a_test_is_scored_as_an_evaluation_does(fake_data):
    first, second = find_scans(PAROTID_BETWEEN, fake_data)[:2]
    files = {"fixed": first.image, "moving": second.image, "fixed_labels": first.labels, "moving_labels": second.labels}
    reading = Reading(classes=(1, 2))
    hashes = {name: sha256(path) for name, path in files.items()}
    found = run_pair(PairTask(files, hashes, reading, TINY, None, None, picture=True))
    expected = score_pair(ScoringTask(files, hashes, reading, TINY))
    assert found["labels"] == expected["labels"]
    assert found["sdlogj"] == expected["sdlogj"]
    assert found["seconds"] > 0
    assert list(found["views"]) == ["axial", "coronal"]
    again = run_pair(PairTask(files, hashes, reading, TINY, None, (None, None), picture=False))
    assert again["views"] == {}
    assert {row["before"] for row in again["error_mm"].values()} == {0.0}


def test_pictures_hold_the_slices(finished):
    pictures = json.loads((finished[0] / "pictures.json").read_text())
    views = pictures["parotid-time"]["shown"]["model:mw"]
    assert list(views) == ["axial", "coronal"]
    masks = Packed.model_validate(views["axial"]["fixed"]["labels"]).array()
    assert masks.shape == (16, 16)
    assert masks.any()
    assert len(pictures["parotid-time"]["samples"]) == 3


def test_slices_are_turned_as_a_radiologist_looks():
    """Front up, the patient's left to the right, whatever the axes of the file."""
    pair = make_phantom(shape=(20, 20, 20), spacing_mm=(9.0, 9.0, 9.0)).pair
    geometry = pair.moving.geometry
    marked = np.zeros(geometry.shape)
    marked[17, 2, 10] = 1  # x to the left, y to the back: this is left front
    for flips, order in (((1, 1, 1), (0, 1, 2)), ((-1, 1, -1), (0, 1, 2)), ((1, -1, 1), (2, 0, 1))):
        affine = geometry.affine[:, [*order, 3]].copy()
        affine[:3, :3] *= np.array(flips)
        data = np.flip(marked.transpose(order), [i for i, f in enumerate(flips) if f < 0])
        turned = replace(geometry, affine=affine)
        axis = order.index(2)
        place = int(np.argwhere(data)[0][axis])
        assert np.argwhere(_turned(data, turned, axis, place)).tolist() == [[2, 17]]


def test_packing():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(Packed.model_validate(json.loads(json.dumps(packed(values)))).array(), values)


def test_simulated_scans_are_made_once(fake_data, tmp_path):
    said: list[str] = []
    made = all_scans(PAROTID_TIME, fake_data, tmp_path, 0, said.append)
    assert len(said) == 4
    assert len(made) == 8
    assert all((s.image.parent / TRUTH).is_file() for s in made[4:])
    first = made[4].image.read_bytes()
    assert all_scans(PAROTID_TIME, fake_data, tmp_path, 0, said.append) == made
    assert len(said) == 4
    all_scans(PAROTID_TIME, fake_data, tmp_path, 1, said.append)
    assert len(said) == 8
    assert made[4].image.read_bytes() != first
    assert read_image(made[4].image).data.min() >= -1024


def test_a_set_that_is_not_there(fake_data, tmp_path, capsys):
    with pytest.raises(RegweaveError, match=r"E137: .*ibsr18_64.*no such folder.*docs/reproduce.md"):
        reproduce("all", fake_data, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "few" / "ibsr18_64" / "one").mkdir(parents=True)
    with pytest.raises(RegweaveError, match="found 0 cases"):
        find_scans(IBSR, tmp_path / "few")
    assert main(["reproduce", "ibsr", "--data", str(fake_data), "-o", str(tmp_path / "out")]) == 3
    assert "error E137" in capsys.readouterr().err


def test_wrong_calls(fake_data, tmp_path, finished):
    with pytest.raises(UsageError, match=r"E192.*unknown experiment 'brain'.*ibsr, parotid, abdomen, all"):
        reproduce("brain", fake_data, tmp_path / "out")
    with pytest.raises(RegweaveError, match=r"E150.*--resume"):
        reproduce("parotid", fake_data, finished[0], ReproduceOptions(config=TINY))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RegweaveError, match=r"E150.*something else"):
        reproduce("parotid", fake_data, tmp_path / "other", ReproduceOptions(config=TINY), resume=True)


def test_the_command(fake_data, tmp_path, finished, fast, capsys):
    (tmp_path / "tiny.toml").write_text(TINY.toml())
    words = ["--config", str(tmp_path / "tiny.toml"), "--quick", "--resume", "--workers", "1"]
    assert main(["reproduce", "parotid", "--data", str(fake_data), "-o", str(finished[0]), *words]) == 0
    out, err = capsys.readouterr()
    assert "Reproduction of Ferrante et al. 2017" in out
    assert "Fast look" in out
    assert "parotid-time: " in err


def test_ctrl_c_says_how_to_go_on(fake_data, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "reproduce", interrupted)
    assert main(["reproduce", "parotid", "--data", str(fake_data), "-o", str(tmp_path / "out")]) == 5
    assert "--resume" in capsys.readouterr().err
