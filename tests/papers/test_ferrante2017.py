"""The paper's experiments: splits, simulated scans, and the whole command on generated patients."""

import csv
import io
import json
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest

import regweave as rw
from phantoms import make_phantom

FOLDER = Path(__file__).parents[2] / "papers" / "ferrante2017"
STILL = {"posture_mm": 0.0, "gain": 0.0, "noise": 0.0}
SHAPE, SPACING = (44, 40, 36), np.array([3.0, 3.5, 4.0])
TINY = """
name = "tiny"
smoothness = 0.1
levels = [{ spacing_mm = 60.0, shrink = 2, steps = 1 }]
banks.ct = [{ name = "sad", metric = "sad" }, { name = "mi", metric = "mi" }, { name = "ncc", metric = "ncc" }]
"""


@pytest.fixture(scope="module")
def code():
    """Modules of the folder, which are no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import experiments
        import run as program
        import simulate

        yield SimpleNamespace(**{**vars(simulate), **vars(experiments), "main": program.main})
        sys.modules.pop("run")  # a name that others have too


def cases(code, n: int) -> list:
    return [code.Scan(f"s{i:02d}", f"s{i:02d}", Path(f"{i}.nii"), Path(f"{i}l.nii")) for i in range(n)]


def patients(rows) -> set[str]:
    return {name for row in rows for name in row["group"].split("+")}


def with_later(scans: list) -> list:
    return [*scans, *(replace(s, name=f"{s.name}_later") for s in scans)]


def test_no_patient_is_on_both_sides_of_a_split(code):
    for name, n, folds, train, test in [
        ("ibsr", 18, 6, 10, 72),
        ("ibsr", 8, 6, 10, 12),
        ("parotid-between", 18, 2, 10, 72),
        ("parotid-time", 18, 2, 10, 18),
        ("parotid-time", 4, 2, 4, 4),
    ]:
        (experiment,) = code.EXPERIMENTS[name]
        scans = with_later(cases(code, n)) if experiment.time_points else cases(code, n)
        splits = experiment.splits(scans, 0)
        assert [(len(s.train), len(s.test)) for s in splits] == [(train, test)] * folds
        for split in splits:
            assert not patients(split.train) & patients(split.test)
            for row in (*split.train, *split.test):
                assert len(patients([row])) == (1 if experiment.pairing == "within" else 2)
        assert patients(row for s in splits for row in s.test) == {s.patient for s in scans}
        assert len({tuple(row["id"] for row in s.train) for s in splits}) == folds
        assert experiment.splits(scans, 0) == splits != experiment.splits(scans, 1)
        (quick,) = experiment.limited(None, None, quick=True).splits(scans, 0)
        assert (len(quick.train), len(quick.test)) == (2, 4)


def test_each_scan_of_the_abdomen_is_left_out_once(code):
    times = [replace(s, name=f"t{i}", patient=f"t{i}") for i, s in enumerate(cases(code, 5))]
    splits = code.ABDOMEN.splits(times, 0)
    left_out = []
    for split in splits:
        assert (len(split.train), len(split.test)) == (6, 4)
        (new,) = patients(split.test) - patients(split.train)
        assert all(new in row["group"].split("+") for row in split.test)
        left_out.append(new)
    assert sorted(left_out) == ["t0", "t1", "t2", "t3", "t4"]


def test_the_table_of_the_paper(code):
    """The last column of the supplement's table is MW minus the mean of the single metrics."""
    rows = [row for organs in code.PAPER.values() for row in organs.values()]
    assert len(rows) == 8
    for *singles, mw, increment in rows:
        assert increment == pytest.approx(mw - np.mean(singles), abs=1e-3)
    for e in code.ALL:
        assert set(e.paper_organs.values()) <= set(code.PAPER[e.paper_set])
        assert set(e.paper_organs) <= set(e.classes)


@pytest.fixture(scope="module")
def scan() -> tuple[np.ndarray, np.ndarray]:
    index, labels = np.indices(SHAPE), np.zeros(SHAPE, dtype=np.uint8)
    for value, centre in ((1, (15, 20, 18)), (2, (31, 20, 18))):
        distance = (index - np.reshape(centre, (3, 1, 1, 1))) * SPACING.reshape(3, 1, 1, 1)
        labels[(distance**2).sum(axis=0) < 17.0**2] = value
    noise = 40 * np.random.default_rng(0).standard_normal(SHAPE)
    return -1000.0 + 1000 * (labels > 0) + noise, labels


def test_an_organ_gets_the_planned_volume(code, scan):
    for factor in [0.6, 1.8]:
        plan = code.ChangePlan((code.OrganChange(1, volume=(factor, factor)),), **STILL)
        _, labels, moved = code.second_scan(*scan, SPACING, plan, 3)
        # Soft masks: voxels of a label map are too coarse to show a border that moves by a millimetre.
        volume = {c: code.warp(scan[1] == c, moved).sum() / (scan[1] == c).sum() for c in (1, 2)}
        assert volume == {1: pytest.approx(factor, rel=0.05), 2: pytest.approx(1.0, rel=0.02)}
        jacobian = code.jacobian(moved)
        assert jacobian[labels == 1].mean() == pytest.approx(1 / factor, rel=0.12)
        assert np.median(np.abs(jacobian[scan[1] == 2] - 1)) < 0.03


def test_no_plan_folds(code, scan):
    organs = tuple(code.OrganChange(c, volume=(0.2, 4.0), motion_mm=60.0) for c in (1, 2))
    *_, moved = code.second_scan(*scan, SPACING, code.ChangePlan(organs, posture_mm=80.0), 0)
    assert code.jacobian(moved).min() >= code.MIN_JACOBIAN > 0
    assert np.linalg.norm(moved * SPACING.reshape(3, 1, 1, 1), axis=0).max() > 5


def test_the_seed_chooses_the_scan_and_organs_that_are_absent_stay(code, scan):
    plan = code.ChangePlan((code.OrganChange(1, volume=(0.7, 0.9), contrast=10.0),))
    a, b, c = (code.second_scan(*scan, SPACING, plan, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not np.array_equal(a[2], c[2])
    absent = code.ChangePlan((code.OrganChange(9, volume=(0.5, 0.5)),), **STILL)
    _, labels, moved = code.second_scan(*scan, SPACING, absent, 0)
    np.testing.assert_array_equal(labels, scan[1])
    np.testing.assert_allclose(moved, 0, atol=1e-9)
    organs = tuple(code.OrganChange(c, volume=(0.7, 0.7), graded=True) for c in (1, 2))
    jacobian = code.jacobian(code.second_scan(*scan, SPACING, code.ChangePlan(organs, **STILL), 0)[2])
    near, far = jacobian[19:22, 18:22, 16:20].mean(), jacobian[9:12, 18:22, 16:20].mean()
    assert near > far > 1


def run(code, folder: Path, *words: str) -> SimpleNamespace:
    """Run the command in this process; a message at its end counts as its error text."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err):
        warnings.simplefilter("ignore")
        try:
            status = code.main([*words, "--data", str(folder / "data"), "-o", str(folder / "out")])
        except SystemExit as end:
            status = end.code
    text = status if isinstance(status, str) else ""
    return SimpleNamespace(returncode=1 if text else status, stdout=out.getvalue(), stderr=err.getvalue() + text)


@pytest.fixture(scope="module")
def finished(code, tmp_path_factory, in_process) -> SimpleNamespace:
    """A quick run on four phantoms as CT, with parotids of the set's labels."""
    folder = tmp_path_factory.mktemp("ferrante2017")
    (folder / "tiny.toml").write_text(TINY)
    for seed in range(4):
        pair = make_phantom(seed=seed, shape=(16, 16, 16), spacing_mm=(11.0, 11.0, 11.0)).pair
        case = folder / "data" / "openkbp_head_neck" / f"pt_{seed}"
        case.mkdir(parents=True)
        affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ pair.moving.geometry.affine
        share, labels = pair.moving.data / pair.moving.data.max(), pair.moving_labels.data
        ct = np.where(share < 0.05, -1000, 330 * share - 120).astype(np.float32)
        parotids = np.select([labels == 4, labels == 5], [1, 2], 0).astype(np.uint8)
        nib.save(nib.Nifti1Image(ct, affine), case / "image.nii.gz")
        nib.save(nib.Nifti1Image(parotids, affine), case / "labels.nii.gz")
    words = ("parotid-time", "--quick", "--workers", "1", "--config", str(folder / "tiny.toml"))
    done = run(code, folder, *words)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=folder, words=words, out=folder / "out")


def test_what_a_run_writes(finished):
    content = json.loads((finished.out / "reproduce.json").read_text())
    (e,) = content["experiments"]
    assert list(e["dice"]) == [
        "before", "single:sad", "single:mi", "single:ncc", "uniform", "global", "model:mw", "model:joint"
    ]  # fmt: skip
    assert {len(values) for by_label in e["dice"].values() for values in by_label.values()} == {4}
    assert e["failed"] == []
    mean = {m: np.mean(by_label["1"]) for m, by_label in e["dice"].items()}
    gain = next(row for row in e["gains"] if row["label"] == "1")
    singles = [m for m in mean if m.startswith("single:")]
    assert gain["singles"][0] == pytest.approx(mean["model:mw"] - np.mean([mean[m] for m in singles]))
    assert gain["best_single"] == max(singles, key=mean.__getitem__)
    assert gain["uniform"][0] == pytest.approx(mean["model:mw"] - mean["uniform"])
    assert [sum(share for share, _ in row.values()) for row in e["weights"].values()] == pytest.approx([1, 1, 1])
    summary = (finished.out / "summary.md").read_text()
    assert "It is no evidence" in summary
    assert f"| left parotid | ours | {mean['before']:.3f} | {mean['single:sad']:.3f} |" in summary
    assert "| Parotl | paper | – | 0.756 | 0.760 | 0.750 | 0.788 | +0.033 |" in summary
    assert (finished.out / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_lists_have_no_patient_on_both_sides_and_name_the_pairs(finished):
    folder = finished.out / "lists" / "parotid-time"
    lists = {part: (folder / f"fold1-draw1-{part}.csv").read_text().splitlines() for part in ("train", "test")}
    rows = {part: list(csv.DictReader(lines)) for part, lines in lists.items()}
    assert not patients(rows["train"]) & patients(rows["test"])
    (e,) = json.loads((finished.out / "reproduce.json").read_text())["experiments"]
    assert [row["id"] for row in rows["test"]] == e["splits"][0]["test"]


@pytest.mark.filterwarnings("ignore:W212")  # a transform of our own, without the grids that it connects
def test_the_known_deformation_takes_the_simulated_scan_to_the_original(finished):
    scan, case = finished.out / "scans" / "parotid-time" / "pt_0_later", finished.folder / "data" / "openkbp_head_neck"
    warped = rw.warp_labels(case / "pt_0" / "labels.nii.gz", scan / "truth.h5", scan / "labels.nii.gz")
    np.testing.assert_array_equal(warped.data, np.asarray(nib.load(scan / "labels.nii.gz").dataobj))


def test_a_run_is_continued_and_gives_the_same(code, finished):
    before = (finished.out / "reproduce.json").read_bytes()
    (finished.out / "reproduce.json").unlink()
    (finished.out / "models" / "parotid-time" / "fold1-draw1" / "joint.key").unlink()  # as if stopped before its end
    done = run(code, finished.folder, *finished.words, "--resume")
    assert done.returncode == 0, done.stderr
    assert "training joint" in done.stdout
    assert "training mw" not in done.stdout
    assert (finished.out / "reproduce.json").read_bytes() == before


def test_wrong_calls_are_refused(code, finished):
    for words, message in [
        ((), "is not empty"),
        (("--resume", "--seed", "1"), "no run with these arguments"),
        (("--max-pairs", "0"), "must be 1 or more"),
    ]:
        done = run(code, finished.folder, *finished.words, *words)
        assert (done.returncode != 0, message in done.stderr) == (True, True), done.stderr


def test_a_set_that_is_missing_is_named(tmp_path):
    words = ("ibsr", "--data", tmp_path / "data", "-o", tmp_path / "out")
    done = subprocess.run([sys.executable, FOLDER / "run.py", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "IBSR brain MR" in done.stderr
    assert "found 0" in done.stderr
    assert not (tmp_path / "out").exists()
