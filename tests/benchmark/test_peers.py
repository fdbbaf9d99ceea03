"""The comparison with peers: the split, the judge, and the frame of each peer's field."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from regweave.io import write_image
from regweave.types import Geometry, Volume

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmark"
ADAPTERS = ("ants_syn", "convex_adam", "greedy_ncc", "sitk_demons", "regweave_own")

FAKE = """
import os, time
import numpy as np

def run(fixed_path, moving_path, setting, threads):
    if "exit" in setting:
        os._exit(setting["exit"])
    time.sleep(setting.get("sleep", 0.0))
    if "message" in setting:
        raise ValueError(setting["message"])
    assert os.environ["OMP_NUM_THREADS"] == str(threads)
    return np.load(setting["field"]), 0.25
"""


@pytest.fixture(autouse=True)
def benchmark_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK))


@pytest.fixture(scope="module")
def case() -> Iterator[tuple[Any, Any]]:
    """A phantom as the methods get it, and the field that maps it exactly."""
    sys.path.insert(0, str(BENCHMARK))
    run, pairs = import_module("peers"), import_module("_pairs")
    from phantoms import make_phantom

    with run.case_of(pairs.PairName(pairs.PHANTOM, "seed_5", "seed_5"), "none") as ready:
        yield ready, make_phantom(5, pairs.PHANTOM_SHAPE, pairs.PHANTOM_SPACING_MM).true_field.data
    sys.path.remove(str(BENCHMARK))


def fake_method(settings: dict[str, Any]) -> Any:
    methods = import_module("peers")
    return methods.Method("fake", "fake_peer.run", {"only": settings}, sys.executable, "1", "code")


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[Any, Any]) -> Any:
    (tmp_path / "fake_peer.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = import_module("peers")

    def with_settings(timeout_s: float = 60.0, **settings: Any) -> Any:
        return run.measure(fake_method(settings), "only", case[0], 2, timeout_s)

    def with_field(field: Any) -> Any:
        np.save(tmp_path / "known.npy", field)
        return with_settings(field=str(tmp_path / "known.npy"))

    with_settings.field = with_field  # type: ignore[attr-defined]
    return with_settings


def start_scores(case: Any) -> Any:
    return import_module("peers").judge_field(case, np.zeros((3, *case.pair.fixed.geometry.shape)))


def mean_dice(row: Any) -> float:
    return float(np.mean(list(row["dice"].values())))


def test_true_field_scores_high_and_its_opposite_low(measure: Any, case: tuple[Any, Any]) -> None:
    ready, truth = case
    right, wrong = measure.field(truth), measure.field(-truth)
    before = mean_dice(start_scores(ready))
    assert right["error"] is None
    assert mean_dice(right) > 0.9 > before > mean_dice(wrong)
    assert max(right["hd95_mm"].values()) <= 4.3  # √2 voxels: labels are warped to the nearest voxel
    assert right["folding_fraction"] == 0
    assert right["sdlogj"] > 0.01


def test_zero_field_gives_the_scores_of_the_start_and_folds_are_counted(measure, case):
    ready, truth = case
    row, start = measure.field(np.zeros_like(truth)), start_scores(ready)
    assert all(row[key] == start[key] for key in ("dice", "hd95_mm", "folding_fraction", "sdlogj"))
    assert row["seconds"] == 0.25
    assert row["wall_seconds"] > row["cpu_seconds"] / 2 > 0
    assert 5 < row["peak_memory_mb"] < 2000
    field = np.zeros_like(case[1])
    field[0, 30:34] = np.array([30.0, 10.0, -10.0, -30.0]).reshape(4, 1, 1)
    assert 0 < measure.field(field)["folding_fraction"] < 0.1


def test_failures_are_rows(measure, case):
    for settings, words in [
        ({"message": "no memory left"}, "ValueError: no memory left"),
        ({"exit": 3}, "process ended with status 3"),
        ({"sleep": 30.0, "timeout_s": 0.5}, "not finished after 0.5 s"),
    ]:
        assert words in measure(**settings)["error"]
    truth = case[1]
    assert "shape" in measure.field(truth[:, :-1])["error"]
    assert "not finite" in measure.field(np.where(truth > 1, np.nan, truth))["error"]
    run = methods = import_module("peers")
    absent = methods.Method("x", "x", {"a": {}}, "no-python", "none", "", "not installable: no wheel")
    assert run.measure(absent, "a", case[0], 2, 60.0) == {"error": "not installable: no wheel"}


def test_choice_of_a_setting_prefers_no_failures_then_dice() -> None:
    report = import_module("peers")
    row = {"seconds": 1.0, "folding_fraction": 0.0, "error": None}
    good, fair = ({**row, "dice": {"1": d, "2": None}} for d in (0.9, 0.7))
    scores = {
        "fails": report.tuning_score([good, {"error": "gone"}]),
        "fair": report.tuning_score([fair, fair]),
        "mixed": report.tuning_score([fair, good]),
        "dead": report.tuning_score([{"error": "gone"}, {"error": "gone"}]),
    }
    assert report.best(scores) == "mixed"
    assert scores["fails"]["errors"] == ["gone"]


def test_table_has_a_row_for_each_method_and_names_failures(case: tuple[Any, Any]) -> None:
    report, table = import_module("peers"), import_module("table")
    scores = start_scores(case[0])
    ours = [{**scores, "error": None, "subject": s, "seconds": 2.0, "wall_seconds": 3.0} for s in "ab"]
    slow = [{**ours[0], "seconds": 6.0}, {"error": "broke", "subject": "b"}]
    methods = {n: {"version": "1", "summary": report.summarise(r, ours, 0)} for n, r in (("regweave:default", ours), ("slow", slow))}  # fmt: skip  # noqa: E501
    result = {"data": "set", "test_pairs": ["y", "z"], "methods": methods}
    lines = table.short_table([result])
    assert any(line.startswith("| `slow` |") and "6.0 s (1 of 2 failed)" in line for line in lines)
    assert "`set`, 2 pairs" in lines[2]


def test_split_keeps_patients_apart_and_a_larger_limit_adds_pairs() -> None:
    split = pairs = import_module("_pairs")
    training, test = split.patients(pairs.PHANTOM)
    assert not set(training) & set(test)
    assert sorted(training + test) == pairs.cases_of(pairs.PHANTOM)
    few, all_of_them = split.test_pairs(pairs.PHANTOM, 2), split.test_pairs(pairs.PHANTOM, None)
    assert all_of_them[:2] == few
    assert {p.fixed for p in all_of_them} == set(test)


def test_rows_outlive_a_stop_and_failures_are_tried_again(tmp_path: Path) -> None:
    rows, path = import_module("_common").Rows, tmp_path / "rows.jsonl"
    first = rows(path)
    assert first.get(("a", 1), lambda: {"dice": {3: 0.5}, "lost": float("nan")}) == {"dice": {"3": 0.5}, "lost": None}
    assert first.get(("b",), lambda: {"error": "gone"})["error"] == "gone"
    path.write_text(path.read_text() + '{"dice": {"3"')
    again = rows(path)
    assert ("b",) not in again
    assert again.get(("b",), lambda: {"dice": 0.7}) == {"dice": 0.7}
    assert rows(path).all() == [{"dice": {"3": 0.5}, "lost": None}, {"dice": 0.7}]


@pytest.mark.parametrize("n", [1, 2, 12, 20, 380])
def test_stride_visits_all_pairs_once(n: int) -> None:
    step = import_module("_pairs").stride(n)
    assert sorted(k * step % n for k in range(n)) == list(range(n))


@pytest.mark.data
def test_lists_of_pairs_can_be_read_and_do_not_leak(data_root, tmp_path):
    for name in ["acdc_cardiac", "openkbp_head_neck"]:
        from regweave.jobs.table import check_leak, read_pairs

        split = import_module("_pairs")
        lists = []
        for pairs in (split.training_pairs(name, 6), split.test_pairs(name, None)):
            split.write_csv(pairs, tmp_path / "pairs.csv")
            lists.append(read_pairs(tmp_path / "pairs.csv"))
        assert len(lists[0]) == 6
        assert check_leak(*([p.group for p in pairs] for pairs in lists)) == ()
        n_patients = {len(p.patients) for p in lists[1]}
        assert n_patients == {1 if name == "acdc_cardiac" else 2}


SHAPE = (40, 44, 36)
SHIFT_VOXELS = np.array([2.0, -1.5, 1.0])


def shifted_body(texture: Any, shift: Any) -> tuple[Any, Any]:
    """A textured ellipsoid, moved by a shift in voxels; and where it is."""
    q = np.indices(SHAPE).astype(float) - np.reshape(shift, (3, 1, 1, 1))
    centre, radii = (np.reshape(v, (3, 1, 1, 1)) for v in ((20, 22, 18), (13, 14, 11)))
    body = 1 / (1 + np.exp(12 * (np.sqrt((((q - centre) / radii) ** 2).sum(0)) - 1)))
    return (body * (400 + 60 * ndimage.map_coordinates(texture, q + 10, order=3))).astype(np.float32), body > 0.9


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Folder with two images on a turned, flipped and uneven grid; the true shift in LPS millimetres; the body."""
    folder = tmp_path_factory.mktemp("shift")
    noise = ndimage.gaussian_filter(np.random.default_rng(0).standard_normal((60, 64, 56)), 2.5)
    texture = noise / noise.std()
    turn = np.array([[np.cos(0.2), -np.sin(0.2), 0.0], [np.sin(0.2), np.cos(0.2), 0.0], [0.0, 0.0, 1.0]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([2.0, -1.8, 2.5])
    affine[:3, 3] = (-10.0, 20.0, 30.0)
    geometry = Geometry(SHAPE, affine)
    fixed, inside = shifted_body(texture, np.zeros(3))
    moving, _ = shifted_body(texture, SHIFT_VOXELS)
    write_image(folder / "fixed.nii.gz", Volume(fixed, geometry))
    write_image(folder / "moving.nii.gz", Volume(moving, geometry))
    return folder, affine[:3, :3] @ SHIFT_VOXELS, inside


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_known_shift_is_recovered_in_lps_millimetres(adapter: str, shifted: tuple[Path, Any, Any]) -> None:
    run = import_module("peers")
    chosen = next(m for m in run.choose_methods(list(run.PEERS), [], [1]) if m.adapter.endswith(adapter))
    if chosen.missing is not None:
        pytest.skip(chosen.missing)
    folder, truth, inside = shifted
    images, field = (folder / "fixed.nii.gz", folder / "moving.nii.gz"), folder / "field.npy"
    setting = next(iter(chosen.settings.values()))
    row = run.run_adapter(chosen.python, chosen.adapter, *images, field, setting, 2, 600.0)
    assert row["error"] is None
    found = np.load(field)[:, inside].mean(axis=1)
    # Every component has its sign and most of its size; some methods stop early by their defaults.
    np.testing.assert_allclose(found, truth, atol=0.35 * float(np.abs(truth).max()))


def test_pages_of_results_are_those_of_the_files() -> None:
    table = import_module("table")
    written = table.evidence(table.load_results())
    assert table.PAGE.read_text(encoding="utf-8") == written, "run python benchmark/table.py"
    assert "<!--" not in written
