"""Training on tiny phantoms: what is written, what may not change it, what goes wrong."""

import json
import os
import re
import signal
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from regweave.cli import main
from regweave.errors import RegweaveError, UsageError
from regweave.io import read_image, read_labels, sha256, write_labels
from regweave.jobs import runner
from regweave.jobs.runner import FACTORS, REFINE_FACTORS, score_dice
from regweave.jobs.table import FILES, read_pairs
from regweave.learning.samples import first_steps, samples_at
from regweave.model.model import Model
from regweave.progress import TrainProgress
from regweave.report.training import write_page
from regweave.run.read import read_inputs
from regweave.run.register import register
from regweave.run.start import start_pair
from regweave.training import run as run_module
from regweave.training.columns import STRENGTHS
from regweave.training.options import TrainOptions
from regweave.training.predictor_fits import segmented_images, within
from regweave.training.run import train
from regweave.types import LabelMap, WeightTable

QUICK = TrainOptions(
    C=20.0, alpha=1.0, eta=3.0, epsilon=0.05, folds=2, predictor_options={"samples": 1000, "steps": 5}
)  # the table [train] of tiny.toml
CHILD = """
import sys
from regweave.cli import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""

pytestmark = pytest.mark.usefixtures("in_process")


@dataclass(frozen=True)
class Run:
    model: Model
    path: Path
    messages: list[TrainProgress]

    @property
    def evidence(self):
        return self.model.training.to_json()

    def said(self, stage: str) -> str:
        return "\n".join(m.message for m in self.messages if m.stage == stage)


def run(pairs: Path, path: Path, training_list, **changes) -> Run:
    options = {k: changes.pop(k) for k in [*changes] if hasattr(QUICK, k)}
    said = []
    settings = {"config": training_list.settings, "workers": 1, **changes}
    model = train(pairs, path, **vars(replace(QUICK, **options)), on_progress=said.append, **settings)
    return Run(model, path, [m for m in said if isinstance(m, TrainProgress)])


@pytest.fixture(scope="module")
def four(training_list, tmp_path_factory) -> Path:
    lines = [training_list.line(n) for n in range(4)]
    return training_list.write(tmp_path_factory.mktemp("list") / "pairs.csv", *lines)


@pytest.fixture(scope="module")
def two(training_list, tmp_path_factory) -> Path:
    return training_list.write(tmp_path_factory.mktemp("list") / "pairs.csv", *map(training_list.line, range(2)))


@pytest.fixture(scope="module")
def base(four, training_list, tmp_path_factory) -> Run:
    return run(four, tmp_path_factory.mktemp("base") / "model.json", training_list)


def test_the_model_is_all_that_is_left(base):
    assert [p.name for p in base.path.parent.iterdir()] == ["model.json"]
    found = Model.load(base.path)
    np.testing.assert_array_equal(found.weights.matrix, base.model.weights.matrix)
    assert found.weights.members == ("sad", "mi", "fine")
    assert found.weights.classes == tuple(range(7))
    assert found.class_names[3] == "mandible"
    assert found.training.to_json() == base.evidence
    predictor = found.predictor
    assert predictor.save().to_json() == base.model.predictor.save().to_json()
    assert predictor.classes == tuple(range(7))
    assert predictor.record["n_images"] == 8  # both images of each patient were held out
    # Refinement members keep their weight, and each column its sum.
    strengths = [base.evidence["strengths"].get(str(c), 1.0) for c in found.weights.classes]
    np.testing.assert_allclose(found.weights.matrix[2], np.array(strengths) / 3)
    np.testing.assert_allclose(found.weights.matrix.sum(axis=0), strengths)


def uphill(curve, values):
    """True if the curve holds some values in a row, the middle one among them, and both neighbours of the best."""
    places = [values.index(v) for v in curve]
    best = values.index(max(curve, key=curve.get))
    around = {i for i in (best - 1, best + 1) if 0 <= i < len(values)}
    row = list(range(places[0], places[-1] + 1))
    return places == row and len(values) // 2 in places and around <= set(places)


def test_smoothness_is_the_best_of_the_curve(base, training_list):
    tuned = base.evidence["smoothness"]
    curve = {row["smoothness"]: row["mean_dice"] for row in tuned["curve"]}
    assert uphill(curve, [0.1 * f for f in FACTORS])
    assert curve[tuned["smoothness"]] == max(curve.values())
    assert base.model.settings.smoothness == tuned["smoothness"]
    assert base.model.weights.pairwise == tuned["smoothness"] * base.evidence["balance"]
    assert base.model.weights.pairwise >= 0.9 * min(curve)  # no less than the uniform bank was tried with
    refine = tuned["refine"]
    start = training_list.settings.refine.smoothness
    of_refine = {row["smoothness"]: row["mean_dice"] for row in refine["curve"]}
    assert uphill(of_refine, [start * f for f in REFINE_FACTORS])
    assert of_refine[refine["smoothness"]] == max(of_refine.values())
    assert of_refine[start] == tuned["mean_dice"]
    chosen = training_list.settings.model_copy(update={"smoothness": tuned["smoothness"]})
    dice = [register(**training_list.files(n), config=chosen).summary()["mean_dice"]["after"] for n in range(4)]
    assert tuned["mean_dice"] == pytest.approx(np.mean(dice), rel=1e-12)
    chosen = chosen.with_refine_smoothness(refine["smoothness"])
    dice = [register(**training_list.files(n), config=chosen).summary()["mean_dice"]["after"] for n in range(4)]
    assert refine["mean_dice"] == pytest.approx(np.mean(dice), rel=1e-12)
    assert base.model.settings.refine.smoothness == refine["smoothness"]


def test_surrogate_and_dice_stand_side_by_side(base):
    lines = base.evidence["surrogate_and_dice"]
    assert [(line["share"], line["balance"]) for line in lines[:2]] == [(0.5, 1.0), (1.0, 1.0)]
    strengths = [line for line in lines if line["strengths"]]
    assert len(strengths) == len(STRENGTHS) * len(base.model.weights.classes)
    rest = lines[2 : len(lines) - len(strengths)]
    assert all(line["balance"] < 1 and line["dice_learned"] is None for line in rest)
    for line in lines:
        assert line["dice_uniform"] == pytest.approx(base.evidence["smoothness"]["refine"]["mean_dice"])
        assert line["strengths"] or 0 < line["surrogate_learned"] < line["surrogate_uniform"]
        assert line["dice_learned"] is None or 0 < line["dice_learned"] < 1
        assert (line["C"], line["eta"]) == (20, 3)
        assert line["gated_classes"] or line["strengths"] or line["dice_gated"] == line["dice_uniform"]
    best = max(line["dice_gated"] - line["dice_uniform"] for line in lines if not line["strengths"])
    gain = base.evidence["left_out_gain"]
    if base.evidence["strengths"]:
        assert gain["mean"] > max(best, 0)
    else:
        assert (0 if gain is None else gain["mean"]) == pytest.approx(max(best, 0), abs=1e-12)


def test_counts_page_and_what_was_trained_on(base, tmp_path):
    smoothness = base.evidence["smoothness"]
    tune, gate, collected = 4 * (len(smoothness["curve"]) + len(smoothness["refine"]["curve"])), 4 * 2, 2 + 2 + 4
    gated = 4 * sum(bool(line["gated_classes"] or line["strengths"]) for line in base.evidence["surrogate_and_dice"])
    counted = base.evidence["registrations"]
    # A gate that is open for all classes needs no new registrations.
    assert tune + gate + collected <= counted <= tune + gate + gated + collected
    assert base.evidence["inferences"] > 100
    assert f"{counted} registrations, {base.evidence['inferences']} inferences; read" in base.said("done")
    assert "seconds" not in base.path.read_text()
    path = tmp_path / "model.json"  # its page shows all that is recorded
    path.write_bytes(base.path.read_bytes())
    text = write_page(path).read_text()
    assert "The model does not record this" not in text
    assert "standard deviation over 2 folds" in text
    counted = base.evidence["stages"].values()
    assert sum(stage["registrations"] for stage in counted) == base.evidence["registrations"]
    assert sum(stage["inferences"] for stage in counted) == base.evidence["inferences"]
    assert base.evidence["groups"] == ["g0", "g1", "g2", "g3"]
    assert base.evidence["learned_on"] == [*base.evidence["pairs"]] == ["p0", "p1", "p2", "p3"]
    assert base.evidence["failed"] == base.evidence["skipped"] == {}
    # Options that do not bite leave no trace.
    assert "chosen" not in base.evidence
    assert not {"tune_pairs", "judge_pairs"} & base.evidence["options"].keys()
    assert len(base.evidence["pairs"]["p0"]["fixed"]) == 64
    for c, gate in base.evidence["gates"].items():
        k = base.model.weights.classes.index(int(c))
        strength = base.evidence["strengths"].get(c, 1.0)
        changed = not np.allclose(base.model.weights.matrix[:, k], strength / 3)
        assert gate["used"] == changed
        assert gate["n"] == 4


def test_stages_use_so_many_pairs_and_the_predictor_all(four, training_list, tmp_path):
    found = run(four, tmp_path / "m.json", training_list, tune_pairs=2, judge_pairs=3, classes=(3,))
    tuned, judged = (found.evidence["chosen"][stage] for stage in ("tune", "judge"))
    assert len(tuned) == 2
    assert len(judged) == 3
    assert set(tuned) < set(judged)
    assert found.evidence["learned_on"] == judged == sorted(judged)
    assert set(found.evidence["pairs"]) == {"p0", "p1", "p2", "p3"}  # all have been looked at: none may test the model
    assert found.model.predictor.record["n_images"] == 8
    smoothness = found.evidence["smoothness"]
    values = len(smoothness["curve"]) + len(smoothness["refine"]["curve"])
    assert found.evidence["stages"]["tune"]["registrations"] == 2 * values + 1
    assert "2 to tune and 3 to judge with of 4 pairs" in found.said("note")
    assert found.evidence["gates"]["0"]["n"] == 3


@pytest.fixture
def child(tmp_path, spawn):
    """Start ``regweave train`` in a process of its own."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return partial(spawn, sys.executable, script, "train", env={**os.environ, "PYTHONWARNINGS": "error"})


def test_killed_and_resumed_on_two_workers_with_rows_in_another_order(base, child, wait_for, training_list, tmp_path):
    """Bit for bit what one worker gives without interruption and without the damaged pair, which is left out."""
    whole = (training_list.folder / "moving0.nii.gz").read_bytes()
    (tmp_path / "cut.nii.gz").write_bytes(whole[:3000])
    bad = training_list.line(0, name="a-bad-one", group="g9", moving=str(tmp_path / "cut.nii.gz"))
    pairs = training_list.write(tmp_path / "pairs.csv", *(training_list.line(n) for n in (2, 0, 3, 1)), bad)
    words = (pairs, "-o", tmp_path / "m.json", "--config", training_list.folder / "tiny.toml", "--workers", 2)
    process, tasks = child(*words), tmp_path / "m.json.work" / "tasks"
    wait_for(lambda: len([*tasks.glob("*.json")]) >= 10, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 10 <= len([*tasks.glob("*.json")]) < 4 * (len(FACTORS) + len(REFINE_FACTORS))
    assert not (tmp_path / "m.json").exists()
    with pytest.raises(RegweaveError, match=r"E150.*--resume"):
        run(pairs, tmp_path / "m.json", training_list)
    process = child(*words, "--resume")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Dice gain" in out
    assert "inferences; read" in err
    assert "pair a-bad-one is left out: E102" in err
    assert str(tmp_path) not in (tmp_path / "m.json").read_text()
    found, alone = (json.loads(path.read_text()) for path in (tmp_path / "m.json", base.path))
    assert found["evidence"].pop("failed") == {"a-bad-one": "E102"}
    assert alone["evidence"].pop("failed", {}) == {}
    assert json.dumps(found) == json.dumps(alone)  # numbers to the last bit, in the same order
    left = ["child.py", "cut.nii.gz", "m.effort.json", "m.json", "m.report.html", "pairs.csv"]
    assert sorted(p.name for p in tmp_path.iterdir()) == left
    with pytest.raises(RegweaveError, match="E135: all 1 training pairs failed"):
        run(training_list.write(tmp_path / "one.csv", bad), tmp_path / "n.json", training_list, gate=False)


def without_label(training_list, number: int, label: int, path: Path) -> str:
    labels = read_labels(training_list.files(number)["moving_labels"])
    write_labels(path, LabelMap(np.where(labels.data == label, 0, labels.data).astype(np.uint8), labels.geometry))
    return training_list.line(number, moving_labels=str(path))


def test_a_pair_whose_label_maps_share_no_structure_is_left_out(training_list, tmp_path, monkeypatch):
    # It has no score: the mean of the others would be called the mean of all.
    def stop(state):
        raise RegweaveError("stop", f"{[p.id for p in state.pairs]} without {state.failed}", "")

    monkeypatch.setattr(run_module, "tune", stop)
    labels = read_labels(training_list.files(0)["moving_labels"])
    other = LabelMap(np.where(labels.data != 0, 9, 0).astype(np.uint8), labels.geometry)
    write_labels(tmp_path / "other.nii.gz", other)
    bare = training_list.line(0, name="bare", group="g9", moving_labels=str(tmp_path / "other.nii.gz"))
    pairs = training_list.write(tmp_path / "pairs.csv", bare, *(training_list.line(n) for n in range(2)))
    with pytest.raises(RegweaveError, match=r"\['p0', 'p1'\] without \{'bare': 'E131'\}"):
        run(pairs, tmp_path / "m.json", training_list, classes=tuple(range(1, 7)))


def test_a_structure_that_some_pairs_lack(training_list, tmp_path):
    lines = [without_label(training_list, n, 5, tmp_path / f"lack{n}.nii.gz") for n in (0, 1, 2)]
    pairs = training_list.write(tmp_path / "pairs.csv", *lines, training_list.line(3))
    with pytest.raises(RegweaveError, match=r"E136.*not in both maps of p0, p1, p2.*1,2,3,4,6"):
        run(pairs, tmp_path / "m.json", training_list)
    found = run(pairs, tmp_path / "m.json", training_list, classes=(5, 3), method="lssvm")
    assert found.model.weights.classes == (0, 3, 5)
    assert found.evidence["skipped"] == {"p0": [5], "p1": [5], "p2": [5]}
    assert "pair p1 does not show [5] in both label maps" in found.said("note")
    assert found.evidence["gates"]["5"]["n"] == 1  # and one pair opens no gate
    assert found.evidence["gates"]["3"]["n"] == 4
    assert not found.evidence["gates"]["5"]["used"]
    assert set(found.evidence["history"]) == {"0", "3", "5"}
    alone = training_list.write(tmp_path / "alone.csv", *lines)
    with pytest.raises(RegweaveError, match=r"E131.*\[5\]"):
        run(alone, tmp_path / "n.json", training_list, classes=(3, 5))
    with pytest.raises(RegweaveError, match=r"E131.*\[9\].*\[1, 2, 3, 4, 5, 6\]"):
        run(pairs, tmp_path / "n.json", training_list, classes=(9,))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith((".", "n."))]


def test_chosen_structures_are_all_that_counts(training_list, four, tmp_path):
    """Labels that are not chosen are background, in tuning and in every trial."""
    found = run(four, tmp_path / "m.json", training_list, classes=(3,), gate=False)
    chosen = found.evidence["smoothness"]
    settings = training_list.settings.model_copy(update={"smoothness": chosen["smoothness"]})

    def alone(path: Path) -> LabelMap:
        labels = read_labels(path)
        return LabelMap(np.where(labels.data == 3, 3, 0), labels.geometry)

    dice = []
    for n in range(4):
        files = training_list.files(n)
        images = {part: files[part] for part in ("fixed", "moving")}
        masks = {name: alone(path) for name, path in files.items() if name.endswith("labels")}
        dice.append(register(**images, **masks, config=settings).dice[3]["after"])
    assert chosen["mean_dice"] == pytest.approx(np.mean(dice), rel=1e-12)
    assert found.model.predictor.classes == (0, 3)


def test_withheld_structures_are_background_like_those_not_chosen(two, training_list, tmp_path):
    kept = run(two, tmp_path / "kept.json", training_list, withhold=(1, 2, 5, 6), gate=False, method="global")
    chosen = run(two, tmp_path / "chosen.json", training_list, classes=(3, 4), gate=False, method="global")
    assert kept.model.weights.classes == (0, 3, 4)
    assert kept.model.predictor.classes == (0, 3, 4)
    np.testing.assert_array_equal(kept.model.weights.matrix, chosen.model.weights.matrix)
    assert kept.evidence["smoothness"] == chosen.evidence["smoothness"]
    assert kept.evidence["options"]["withhold"] == [1, 2, 5, 6]
    with pytest.raises(RegweaveError, match=r"E131.*\[9\]"):
        run(two, tmp_path / "n.json", training_list, withhold=(9,))


@pytest.mark.parametrize(("method", "levels"), [("lssvm", "finest"), ("lssvm-joint", "all"), ("global", "finest")])
def test_every_method(two, method, levels, training_list, tmp_path):
    options = {"method": method, "levels": levels, "gate": False, "classes": (3, 4), "epsilon": 0.01}
    found = run(two, tmp_path / "m.json", training_list, **options)
    assert found.model.levels == levels
    matrix = found.model.weights.matrix
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    assert (matrix != 1 / 3).any()
    assert (method == "global") == bool((matrix == matrix[:, :1]).all())
    curves = {"lssvm": {"0", "3", "4"}, "lssvm-joint": {"joint"}, "global": {"all"}}
    assert set(found.evidence["history"]) == curves[method]


@pytest.mark.parametrize(
    "bank",
    [
        [{"name": "mi", "metric": "mi"}],
        [{"name": "sad", "metric": "sad", "stage": "levels"}, {"name": "ncc", "metric": "ncc"}],
    ],
    ids=["one member without refinement", "two members, one refined"],
)
def test_any_bank(two, bank, training_list, tmp_path):
    content = training_list.settings.model_dump(mode="json") | {"banks": {"mr": bank}}
    content["refine"]["steps"] = len(bank) - 1
    settings = type(training_list.settings).model_validate(content)
    found = run(two, tmp_path / "m.json", training_list, config=settings, classes=(3,))
    assert found.model.weights.members == tuple(m["name"] for m in bank)
    strengths = [found.evidence["strengths"].get(str(c), 1.0) for c in (0, 3)]
    np.testing.assert_allclose(found.model.weights.matrix.sum(axis=0), strengths)


def test_memory_limit(training_list, four, tmp_path):
    options = {"gate": False, "classes": (3,)}
    found = run(four, tmp_path / "m.json", training_list, max_memory_mb=1e-3, **options)
    assert len(found.evidence["learned_on"]) == 1
    assert "1 of 4 pairs are learned from: the samples of all exceed 0.001 MB" in found.said("note")
    again = run(four, tmp_path / "n.json", training_list, max_pairs=1, **options)
    assert again.evidence["learned_on"] == found.evidence["learned_on"]
    np.testing.assert_array_equal(again.model.weights.matrix, found.model.weights.matrix)
    # What the samples of a pair really take decides.
    pair = start_pair(read_inputs(**training_list.files(0)), "none")
    schedule = training_list.settings.for_bank("mr")
    schedule = schedule.with_bank(schedule.discrete)
    weights = WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1, (0, 3))
    samples = samples_at("p", first_steps(pair, weights, schedule), (3,))
    arrays = [array for s in samples[1:] for array in (s.terms.costs, s.terms.shares, s.terms.loss)]
    fits = 2.5 * sum(array.nbytes for array in arrays) / 2**20
    two = run(four, tmp_path / "finest.json", training_list, max_memory_mb=fits, levels="finest", **options)
    assert len(two.evidence["learned_on"]) == 2
    others = {tuple(within([1.0] * 4, 2.5, np.random.default_rng(seed))) for seed in range(20)}
    assert {len(chosen) for chosen in others} == {2}
    assert len(others) == 6
    assert within([5.0, 9.0], 1.0, np.random.default_rng(0)) in ([0], [1])


def test_a_failure_after_tuning_names_the_pair_and_keeps_the_work(two, training_list, tmp_path, in_process):
    def break_trials(task):
        if task.model is not None and "fixed1" in str(task.files["fixed"]):
            raise RegweaveError("E104", "suddenly bad", "look")
        return score_dice(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "score_dice", break_trials)
        with pytest.raises(RegweaveError, match=r"E135: training pairs failed: p1: E104: suddenly bad"):
            run(two, tmp_path / "m.json", training_list, classes=(3,))
    assert not (tmp_path / "m.json").exists()
    assert (tmp_path / "m.json.work" / "tasks").is_dir()


def test_refusals(training_list, four, base, tmp_path, monkeypatch):
    def options(**changes):
        return {**vars(replace(QUICK, **changes)), "config": training_list.settings}

    def nothing(*_args, **_options):
        raise AssertionError("a registration was started")

    monkeypatch.setattr(runner, "run_tasks", nothing)
    out = tmp_path / "m.json"
    for changes in (
        {"method": "svm"}, {"levels": "some"}, {"C": -1.0}, {"eta": float("nan")}, {"epsilon": 0.0}, {"rounds": 0},
        {"folds": 1}, {"classes": ()}, {"classes": (0, 1)}, {"max_pairs": 0}, {"max_memory_mb": 0.0},
        {"tune_pairs": 0}, {"judge_pairs": 1}, {"refinement_learner": "gradient"}, {"structure_start": "affine"},
        {"withhold": (0,)}, {"classes": (1, 2), "withhold": (2,)},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="E194"):
            train(four, out, **options(**changes))
    two = training_list.write(tmp_path / "two.csv", *(training_list.line(n, group="same") for n in range(2)))
    with pytest.raises(RegweaveError, match="E134"):
        train(two, out, **options())
    (tmp_path / "short.csv").write_text("id,fixed,moving,fixed_labels\n")
    with pytest.raises(RegweaveError, match=r"E132.*moving_labels"):
        train(tmp_path / "short.csv", out, **options())
    with pytest.raises(RegweaveError, match=r"E150.*--overwrite"):
        train(four, base.path, **options())
    with pytest.raises(UsageError, match="E185"):
        train(four, out, **options(), loss="nothing")
    with pytest.raises(RegweaveError, match="E153"):
        train(four, tmp_path / "no" / "m.json", **options())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["short.csv", "two.csv"]


def test_a_file_that_appears_during_training_stays_and_the_model_is_kept_beside_it(
    training_list, tmp_path, monkeypatch
):
    model, learn = tmp_path / "m.json", run_module.fit_model

    def fit(*args):
        found = learn(*args)
        model.write_text("mine")
        return found

    monkeypatch.setattr(run_module, "fit_model", fit)
    pairs = training_list.write(tmp_path / "two.csv", *(training_list.line(n) for n in range(2)))
    with pytest.raises(RegweaveError, match=r"E154.*kept as") as caught:
        run(pairs, model, training_list, classes=(3,), gate=False, method="global")
    kept = Path(re.search(r"kept as '(.*)'", str(caught.value))[1])
    assert model.read_text() == "mine"
    assert Model.load(kept).weights.classes == (0, 3)


def test_command_line(two, training_list, tmp_path, capsys):
    text = (training_list.folder / "tiny.toml").read_text()
    table = 'levels = "finest"\nmetrics = ["sad", "ncc"]\nloss = "voxel"\ngate = false\nmax_memory_mb = 100'
    (tmp_path / "mine.toml").write_text(f"{text}\n{table}\n")
    where = ["train", str(two), "-o", str(tmp_path / "m.json"), "--config", str(tmp_path / "mine.toml")]
    assert main([*where, "--classes", "3,x"]) == main([*where, "--method", "svm"]) == 2
    assert "error E194: options of the training: method" in capsys.readouterr().err
    (tmp_path / "wrong.toml").write_text(f"{text}\nfold = 3\n")
    assert main([*where[:-1], str(tmp_path / "wrong.toml")]) == 2
    assert "fold: Unexpected" in capsys.readouterr().err
    words = ["--classes", "3", "--workers", "1"]
    (tmp_path / "m.report.html").write_text("mine")  # nor is a file beside the model replaced
    assert main([*where, *words]) == 3
    assert "E150: output" in capsys.readouterr().err
    assert (tmp_path / "m.report.html").read_text() == "mine"
    (tmp_path / "m.report.html").unlink()
    assert main([*where, *words]) == 0
    captured = capsys.readouterr()
    assert "class" in captured.out
    assert "done: " in captured.err
    model = Model.load(tmp_path / "m.json")
    assert (model.levels, model.weights.members, model.settings.loss) == ("finest", ("sad", "ncc"), "voxel")
    assert model.training.options["max_memory_mb"] == 100
    assert main([*where, *words]) == 3
    assert "E150" in capsys.readouterr().err
    assert main([*where, *words, "--overwrite", "--quiet", "--method", "global"]) == 0
    assert capsys.readouterr() == ("", "")
    assert (
        Model.load(tmp_path / "m.json").training.options["method"] == "global"
    )  # the command line comes before the table


def test_weights_at_the_finest_level_leave_the_others_alone(training_list):
    members, classes = ("sad", "mi", "fine"), tuple(range(7))
    content = training_list.settings
    steep = WeightTable(np.tile([[0.9], [0.05], [0.05]], (1, 7)), members, classes, 0.1)
    models = {
        "uniform": Model(WeightTable.constant(dict.fromkeys(members, 1.0), 0.1, classes), content, "mr"),
        "all": Model(steep, content, "mr"),
        "finest": Model(steep, content, "mr", levels="finest"),
    }
    energies = {
        name: [s.energy for s in register(**training_list.files(0), model=m).steps] for name, m in models.items()
    }
    assert energies["finest"][0] == energies["uniform"][0] != energies["all"][0]
    assert energies["finest"][1] != energies["uniform"][1]


def test_each_image_once_with_its_patient(training_list, tmp_path):
    (tmp_path / "copy.nii.gz").write_bytes(training_list.files(2)["moving"].read_bytes())
    lines = [
        training_list.line(0, "a", "x+y"), training_list.line(1, "b", "y+z", moving="moving0.nii.gz"),
        training_list.line(2, "c", "u+v"), training_list.line(3, "d", "u+w", moving=str(tmp_path / "copy.nii.gz")),
    ]  # fmt: skip
    listed = read_pairs(training_list.write(tmp_path / "pairs.csv", *lines))
    found = segmented_images(
        listed, lambda p: {name: sha256(getattr(p, name)) for name in FILES}, lambda p: {"fixed": p.id, "moving": p.id}
    )
    # Moving images first; a fixed image that one pair has may show either of its patients.
    assert [(i.image.name, i.labels.name, i.geometry, "+".join(sorted(i.patients))) for i in found] == [
        ("moving0.nii.gz", "moving0_labels.nii.gz", "a", "y"),
        ("moving2.nii.gz", "moving2_labels.nii.gz", "c", "u"),
        ("fixed0.nii.gz", "fixed0_labels.nii.gz", "a", "x+y"),
        ("fixed1.nii.gz", "fixed1_labels.nii.gz", "b", "y+z"),
        ("fixed2.nii.gz", "fixed2_labels.nii.gz", "c", "u+v"),
        ("fixed3.nii.gz", "fixed3_labels.nii.gz", "d", "u+w"),
    ]


def test_images_in_memory_give_the_model_of_their_files(training_list, tmp_path):
    options = replace(QUICK, classes=(3,), gate=False, method="global")
    common = {**vars(options), "config": training_list.settings, "workers": 1}
    lines = [training_list.line(n, f"pair{n}", f"pair{n}") for n in range(2)]
    filed = train(training_list.write(tmp_path / "pairs.csv", *lines), **common)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pairs.csv"]
    names = ("fixed", "moving", "fixed_labels", "moving_labels")
    pairs = [
        tuple((read_labels if name.endswith("labels") else read_image)(training_list.files(n)[name]) for name in names)
        for n in range(2)
    ]
    model = train(pairs, tmp_path / "m.json", **common)
    np.testing.assert_array_equal(model.weights.matrix, filed.weights.matrix)
    assert model.predictor.save().to_json() == filed.predictor.save().to_json()
    assert model.class_names == filed.class_names == {0: "background", 3: "mandible"}
    records = ({**m.training.to_json(), "pairs": None} for m in (model, filed))
    assert next(records) == next(records)
    with pytest.raises(UsageError, match=r"E194.*cannot be continued"):
        train(pairs, tmp_path / "n.json", resume=True, **common)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.json", "pairs.csv"]
