"""Evaluation of tiny phantoms: rows and columns, tuning, failures, leaks, resuming."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from making import evaluation
from rich.console import Console

from made_pairs import small_settings
from phantoms import make_phantom
from regweave.cli.tables import overlap_table
from regweave.errors import RegweaveError, UsageError
from regweave.io import read_labels, write_image, write_labels
from regweave.jobs import workers
from regweave.jobs.runner import (
    FACTORS,
    REFINE_FACTORS,
    ScoringTask,
    baseline_methods,
    mean_over_pairs,
    pair_score,
    score_dice,
    tune,
)
from regweave.jobs.table import FILES, PairFiles
from regweave.jobs.workers import Outcome, on_processes
from regweave.measures.scores import PairScore, StructureScore, dice, surface_distances
from regweave.model.model import Model
from regweave.model.record import TrainingRecord
from regweave.report.evaluation import write_page
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.spatial.warp import warp_labels
from regweave.study.evaluate import COLUMNS, evaluate, summary_text
from regweave.types import LabelMap, WeightTable

pytestmark = pytest.mark.usefixtures("in_process")
BANK = [{"name": "sad", "metric": "sad"}, {"name": "mi", "metric": "mi", "stage": "levels"}]
SMALL = small_settings((48.0, 1, 1), refine=2, banks={"mr": BANK})
HEADER = "id,fixed,moving,fixed_labels,moving_labels,group"


def line(name: str, number: int, group: str) -> str:
    files = (f"{part}{number}{kind}.nii.gz" for kind in ("", "_labels") for part in ("fixed", "moving"))
    return f"{name},{','.join(files)},{group}"


def write_list(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    return path


def write_phantom(folder: Path, seed: int) -> None:
    pair = make_phantom(seed=seed, shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair
    for part in ("fixed", "moving"):
        write_image(folder / f"{part}{seed}.nii.gz", getattr(pair, part))
        write_labels(folder / f"{part}{seed}_labels.nii.gz", getattr(pair, f"{part}_labels"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two pairs to test on, one to train on; label 6 of the second pair is in the fixed image only."""
    folder = tmp_path_factory.mktemp("phantoms")
    for seed in range(3):
        write_phantom(folder, seed)
    labels = read_labels(folder / "moving1_labels.nii.gz")
    lacking = np.where(labels.data == 6, 0, labels.data).astype(np.uint8)
    write_labels(folder / "moving1_labels.nii.gz", LabelMap(lacking, labels.geometry))
    (folder / "labels.json").write_text('{"1": "brainstem", "2": "cord | x", "3": "mandible"}')
    write_list(folder / "pairs.csv", line("a", 0, "p0"), line("b", 1, "p1"))
    write_list(folder / "train.csv", line("c", 2, "p2+p9"))
    (folder / "small.toml").write_text(SMALL.toml())
    return folder


@pytest.fixture(scope="module")
def model(folder) -> Path:
    weights = WeightTable(np.array([[0.3, 0.9], [0.7, 0.1]]), ("sad", "mi"), (0, 3), 0.1)
    path = folder / "mine.json"
    Model(weights, SMALL, "mr", training=TrainingRecord(groups=("p7+p1", "p8"))).save(path)
    return path


@pytest.fixture(scope="module")
def found(folder, in_process, tmp_path_factory):
    """Baselines with tuned smoothness, all on two workers, which are processes."""
    out = tmp_path_factory.mktemp("out") / "new"
    options = {"config": folder / "small.toml", "baselines": True, "train_pairs": folder / "train.csv"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "on_processes", on_processes)
        return evaluate(folder / "pairs.csv", out, workers=2, **options), out, options


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_rows_columns_and_summary(found):
    _, out, _ = found
    header = (out / "results.csv").read_text().splitlines()[0]
    dice = "dice_before,dice_start,dice_after"
    assert header == f"id,method,label,{dice},hd95_mm,assd_mm,seconds,peak_mb,folding_fraction,sdlogj,state"
    rows = read_csv(out / "results.csv")
    methods = ("preset:small", "uniform", "single:sad", "single:mi")
    expected = [(i, m, str(c)) for i in "ab" for m in methods for c in range(1, 7)]
    assert [(r["id"], r["method"], r["label"]) for r in rows] == expected
    for row in rows:
        lost = (row["id"], row["label"]) == ("b", "6")
        assert (row["hd95_mm"] == "") == lost
        if lost:
            assert (row["state"], row["dice_before"], row["dice_after"]) == ("not in moving", "", "")
        else:
            assert 0 < float(row["assd_mm"]) <= float(row["hd95_mm"])
        assert float(row["seconds"]) > 0
        assert 50 < float(row["peak_mb"]) < 2000
        assert 0 <= float(row["folding_fraction"]) < 0.1
    _, out, _ = found
    text = (out / "summary.md").read_text()
    assert "2 pairs of 2 patients, 4 methods, 0 failed registrations." in text
    assert "|  | mean | 1 brainstem | 2 cord  x | 3 mandible | 4 | 5 | 6 |" in text
    assert "| pairs | 2 | 2 | 2 | 2 | 2 | 2 | 1 |" in text
    assert "| vanished | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| not scored | 1 | 0 | 0 | 0 | 0 | 0 | 1 |" in text
    assert text.count("(tuned)") == 3
    assert "## Against uniform" in text
    assert "Note" not in text


def test_numbers_are_those_of_a_plain_registration(found, folder):
    evaluation, _, _ = found
    files = {part: folder / f"{part}0.nii.gz" for part in ("fixed", "moving")}
    labels = {f"{part}_labels": folder / f"{part}0_labels.nii.gz" for part in ("fixed", "moving")}
    result = register(**files, **labels, config=SMALL, threads=2)
    fixed = read_labels(labels["fixed_labels"])
    warped = warp_labels(read_labels(labels["moving_labels"]), result.transform).data
    rows = {r["label"]: r for r in evaluation.rows() if (r["id"], r["method"]) == ("a", "preset:small")}
    for value, expected in dice(warped, fixed.data).items():
        row = rows[str(value)]
        assert row["dice_after"] == expected
        masks = (warped == value, fixed.data == value, fixed.geometry.spacing_mm)
        apart = surface_distances(*masks)
        assert (row["hd95_mm"], row["assd_mm"]) == (apart.hd95_mm, apart.mean_mm)
        assert row["sdlogj"] == result.regularity["sdlogj"]


def test_tuning(found):
    evaluation, out, _ = found
    content = json.loads((out / "results.json").read_text())
    methods = {m["name"]: m for m in content["methods"]}
    assert len(FACTORS) >= 8
    np.testing.assert_allclose(max(FACTORS) / min(FACTORS), 1000)
    assert methods["preset:small"]["tuning"] == []
    assert methods["preset:small"]["settings"]["smoothness"] == 0.1
    for name in ("uniform", "single:sad", "single:mi"):
        table = {row["smoothness"]: row["mean_dice"] for row in methods[name]["tuning"]}
        assert 3 <= len(table) <= len(FACTORS)
        assert set(table) <= {0.1 * f for f in FACTORS}
        assert 0.1 in table
        assert table[methods[name]["settings"]["smoothness"]] == max(table.values())
    assert methods["single:mi"]["settings"]["refine"]["steps"] == 0
    assert methods["single:mi"]["settings"]["banks"]["mr"][0]["stage"] == "both"
    assert [m["name"] for m in methods["single:sad"]["settings"]["banks"]["mr"]] == ["sad"]
    assert methods["single:sad"]["settings"]["refine"]["steps"] == 2
    assert content["reference"] == "uniform"
    assert content["results"][0]["scores"]["smoothness"] == 0.1
    assert len(content["pairs"][0]["inputs_sha256"]["fixed"]) == 64
    assert content["notes"] == list(evaluation.notes) == []


def test_resuming_changes_no_byte_and_workers_no_number(found, folder, tmp_path):
    evaluation, out, options = found
    files = {p.name: p.read_bytes() for p in out.glob("*.*")}
    assert set(files) == {".regweave-result", "results.csv", "results.json", "summary.md"}
    with pytest.raises(RegweaveError, match=r"E150.*--resume"):
        evaluate(folder / "pairs.csv", out, **options)
    seen = []
    evaluate(folder / "pairs.csv", out, resume=True, on_progress=seen.append, **options)
    assert {p.name: p.read_bytes() for p in out.glob("*.*")} == files
    assert all(p.key == "" for p in seen)  # nothing ran
    alone = evaluate(folder / "pairs.csv", tmp_path / "out", workers=1, **options)
    measured = {"seconds", "peak_mb"}
    strip = lambda rows: [{k: v for k, v in row.items() if k not in measured} for row in rows]  # noqa: E731
    assert strip(alone.rows()) == strip(evaluation.rows())


def test_model_leak_and_its_permission(folder, model, tmp_path):
    with pytest.raises(RegweaveError, match="E133: 1 of 2 test patients were trained on: p1"):
        evaluate(folder / "pairs.csv", tmp_path / "out", models=[model])
    record = TrainingRecord(groups=("p7",), predictor_groups=("p0", "p7"))  # of the class predictor alone
    replace(Model.load(model), training=record).save(tmp_path / "seen.json")
    with pytest.raises(RegweaveError, match="E133: 1 of 2 test patients were trained on: p0"):
        evaluate(folder / "pairs.csv", tmp_path / "out", models=[tmp_path / "seen.json"])
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "mine.json").write_bytes(model.read_bytes())
    with pytest.raises(UsageError, match="E192"):  # two models of one name
        evaluate(folder / "pairs.csv", tmp_path / "out", models=[model, tmp_path / "again/mine.json"], allow_leak=True)
    options = {"config": folder / "small.toml", "baselines": True, "train_pairs": folder / "pairs.csv"}
    with pytest.raises(RegweaveError, match="E133: 2 of 2"):  # nor are pairs tested that tuned a baseline
        evaluate(folder / "pairs.csv", tmp_path / "out", **options)
    with pytest.raises(UsageError, match=r"E192.*--baselines"):
        evaluate(folder / "pairs.csv", tmp_path / "out", train_pairs=folder / "train.csv")
    assert not (tmp_path / "out").exists()
    other = tmp_path / "mine.json"
    replace(Model.load(model), modality="ct").save(other)
    options = {"config": folder / "small.toml", "baselines": True, "allow_leak": True}
    found = evaluate(folder / "pairs.csv", tmp_path / "out", models=[other], **options)
    assert [m.name for m in found.methods] == ["uniform", "single:sad", "single:mi", "model:mine"]
    text = (tmp_path / "out" / "summary.md").read_text()
    assert "1 test patients were trained on (p1)" in text
    assert "no training pairs were given" in text
    # The model is for another modality: its rows are there, without numbers.
    rows = [r for r in found.rows() if r["method"] == "model:mine"]
    assert [r["label"] for r in rows] == [str(c) for c in range(1, 7)] * 2
    assert all(r[name] is None for r in rows for name in COLUMNS[3:])
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    errors = [r["error"] for r in content["results"] if r["method"] == "model:mine"]
    assert all(error.startswith("E172: the model was trained on CT; the fixed image is MR") for error in errors)
    assert "- model:mine: no pair in common with uniform." in text
    assert "- `model:mine/a`: E172" in text


def test_a_damaged_pair_is_a_row_and_a_global_model_bears_its_name(folder, tmp_path):
    (folder / "cut.nii.gz").write_bytes((folder / "moving0.nii.gz").read_bytes()[:3000])
    bad = line("bad", 0, "p5").replace("moving0.nii.gz", "cut.nii.gz")
    pairs = write_list(folder / "damaged.csv", bad, line("good", 0, "p0"))
    weights = WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1, tuple(range(7)))
    Model(weights, SMALL, "mr").save(tmp_path / "global.json")
    found = evaluate(pairs, tmp_path / "out", models=[tmp_path / "global.json"], workers=1)
    first, *rest = read_csv(tmp_path / "out" / "results.csv")
    assert [first[c] for c in COLUMNS] == ["bad", "global", *[""] * 11]
    assert [r["id"] for r in rest] == ["good"] * 6
    assert [(row.method, row.id) for row in found.failures] == [("global", "bad")]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["results"][0]["error"].startswith("E102")
    assert content["results"][0]["scores"] is None
    assert "1 failed registration." in (tmp_path / "out" / "summary.md").read_text()


def test_output_folder_of_others_is_left_alone(folder, tmp_path):
    (tmp_path / "mine.txt").touch()
    for resume in (False, True):
        with pytest.raises(RegweaveError, match="E150"):
            evaluate(folder / "pairs.csv", tmp_path, config=SMALL, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(RegweaveError, match="E150"):
        evaluate(folder / "pairs.csv", tmp_path / "mine.txt", config=SMALL)


def test_comparison_means_and_the_worst():
    base = [0.5 + 0.01 * k for k in range(8)]
    values = {
        "model:bad": [v - 0.1 - 0.01 * (k % 2) for k, v in enumerate(base)],
        "uniform": base,
        "model:good": [v + 0.1 for v in base],
        "model:same": [v + 0.01 * (-1) ** k for k, v in enumerate(base)],
    }
    found = evaluation(values, failed={("model:good", "d")}, notes=["mind this"])
    rows = {(r.method, r.label): r for r in found.comparison}
    assert len(rows) == 6
    good = rows["model:good", None]
    assert (good.n, good.better, good.worse) == (7, 7, 0)
    np.testing.assert_allclose([good.mean, good.low, good.high], 0.1)
    text = summary_text(found)
    assert "- model:bad is worse than uniform: -0.1050 [" in text
    assert "- model:good is better than uniform: +0.1000 [" in text
    assert "- model:same is not told apart from uniform: +0.0000 [" in text
    assert "**Note.** mind this" in text
    assert "1 failed registration." in text
    found = evaluation({"uniform": [0.8, 0.0, None]})
    np.testing.assert_array_equal(found.dice("uniform", "4"), [0.8, 0.0, np.nan])
    np.testing.assert_array_equal(found.dice("uniform"), [0.8, 0.0, np.nan])
    alone, scored = StructureScore(1, "a", "no reference"), StructureScore(2, "b", "scored", dice_after=0.5)
    lone, other = PairScore((alone,)), PairScore((scored,))
    assert PairScore((alone, scored)).mean() == 0.5
    assert math.isnan(PairScore().mean())
    assert mean_over_pairs([lone, other]) == 0.5
    assert math.isnan(mean_over_pairs([lone]))
    text = summary_text(found)
    assert "| uniform | 0.400 | 0.400 |" in text
    assert "| vanished | 1 | 1 |" in text
    assert "| not scored | 1 | 1 |" in text
    dice = {"uniform": [0.1, 0.2, 0.3, 0.4], "model": [0.9, 0.9, 0.5, 0.5]}
    found = evaluation(dice, failed={("model", "b")})
    assert [row.id for row in found.worst(2)] == ["c", "d"]
    assert [row.id for row in found.worst(9)] == ["c", "d", "a"]
    assert found.worst(0) == []
    dice, guessed = {"model": [0.9, 0.5], "model+predicted": [0.1, 0.8]}, {"predicted_classes": True}
    both = evaluation(dice, methods={"model+predicted": guessed})
    assert (both.shown, [row.id for row in both.worst(1)]) == ("model", ["b"])
    assert evaluation(dice, methods=dict.fromkeys(dice, guessed)).shown == "model+predicted"


def test_page_terminal_and_evaluation_have_one_mean(folder):
    """The same pair, of which one label map lacks a structure, through every door."""
    files = [folder / line("", 1, "").split(",")[k] for k in range(1, 5)]
    named = dict(zip(FILES, files, strict=True))
    scores = score_dice(ScoringTask(named, {name: str(path) for name, path in named.items()}, Reading(), SMALL))
    result = register(*files[:2], fixed_labels=files[2], moving_labels=files[3], config=SMALL)
    expected = result.mean_dice["after"]
    assert pair_score(scores).mean() == expected
    assert result.summary()["mean_dice"]["after"] == expected
    console = Console(width=80, file=io.StringIO())
    console.print(overlap_table(result.score, plain=True))
    (mean,) = (line.split() for line in console.file.getvalue().splitlines() if line.split()[:1] == ["mean"])
    assert [mean[1], mean[-1]] == [f"{result.mean_dice['before']:.3f}", f"{expected:.3f}"]
    assert "not in moving" in console.file.getvalue()


def test_tuning_goes_uphill_leaves_out_pairs_that_fail_and_prefers_the_smoother_of_equals():
    (method, *_) = baseline_methods(SMALL, "mr")
    pairs = [PairFiles(name, *[Path("x")] * 4, name) for name in ("good", "bad")]
    start, asked = SMALL.smoothness, []

    def run(plan):
        asked.append({(c.settings.smoothness, c.settings.refine.smoothness) for _, c, _ in plan})
        assert len({key for key, _, _ in plan}) == len(plan) == 2 * len(asked[-1])
        outcomes = []
        for key, candidate, pair in plan:
            s, r = candidate.settings.smoothness / start, candidate.settings.refine.smoothness
            dice = (0.7 if 1 <= s <= 6 else 0.6) + 0.1 * (r > SMALL.refine.smoothness)
            failed = pair.id == "bad" and s < 0.5
            value = {"structures": [{"label": 1, "name": "x", "state": "scored", "dice_after": dice}]}
            outcomes.append(Outcome(key, None, "E102") if failed else Outcome(key, value))
        return outcomes

    (tuned,) = tune([method], pairs, run)
    # 0.4, 1 and 2.4 times the start; then 5.6, as good; then 13, worse, where it ends
    assert tuned.tuning == {start * f: pytest.approx(0.7 if 1 <= f <= 6 else 0.6) for f in FACTORS[3:8]}
    assert tuned.settings.smoothness == start * FACTORS[6]
    assert [len(a) for a in asked] == [3, 1, 1, 3, 1, 1]
    assert tuned.settings.refine.smoothness == SMALL.refine.smoothness * max(REFINE_FACTORS)
    (kept,) = tune([method], pairs[1:], lambda plan: [Outcome(key, None, "E102") for key, _, _ in plan])
    assert kept == method


def test_withheld_structures_have_a_mean_of_their_own(folder, model, tmp_path):
    """They are scored, but neither counted in the mean nor allowed to choose a smoothness."""
    options = {"models": [model], "baselines": True, "train_pairs": folder / "train.csv", "workers": 1}
    with pytest.raises(UsageError, match=r"E192.*\[3\].*withhold = \[3\]"):
        evaluate(folder / "pairs.csv", tmp_path / "no", withhold=(3,), allow_leak=True, **options)
    with pytest.raises(UsageError, match=r"E192.*\[4\]"):
        evaluate(folder / "pairs.csv", tmp_path / "no", withhold=(4,), classes=(1, 3), allow_leak=True, **options)
    out = tmp_path / "out"
    found = evaluate(folder / "pairs.csv", out, withhold=(1, 2), allow_leak=True, **options)
    uniform = found.reference
    by_label = {label: found.dice(uniform, label) for label in found.labels}
    np.testing.assert_allclose(found.dice(uniform, "withheld"), np.mean([by_label["1"], by_label["2"]], axis=0))
    np.testing.assert_allclose(found.dice(uniform), np.nanmean([by_label[k] for k in "3456"], axis=0))
    kept = evaluate(folder / "pairs.csv", tmp_path / "kept", classes=(3, 4, 5, 6), allow_leak=True, **options)
    tuned = [[point["mean_dice"] for point in of.methods[0].tuning] for of in (found, kept)]
    assert tuned[0] == pytest.approx(tuned[1])
    rows = {(r["method"], r["label"]): r for r in json.loads((out / "results.json").read_text())["comparison"]}
    difference = found.dice("model:mine", "withheld") - found.dice(uniform, "withheld")
    assert rows["model:mine", "withheld"]["mean"] == pytest.approx(difference.mean())
    summary = (out / "summary.md").read_text()
    assert "| mean | withheld | 1 brainstem" in summary
    assert "Structures 1, 2 were withheld" in summary
    shown = " ".join(write_page(out).read_text().split())
    before = float(np.mean(found.dice(uniform, "withheld", "dice_before")))
    assert f'<th scope="row">withheld</th><td class="number">{before:.3f}</td>' in shown
