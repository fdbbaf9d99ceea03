"""``regweave register``, ``plan`` and ``presets`` from outside: files, messages, exit statuses, nothing half done."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from made_pairs import NCC, SAD, small_settings, write_pair
from phantoms import make_phantom
from regweave.cli import main
from regweave.config.settings import Settings, parse, preset, preset_names
from regweave.errors import RegweaveError
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.io.transforms.files import write_linear
from regweave.model.model import Model
from regweave.run.register import register
from regweave.types import Geometry, LabelMap, Volume, WeightTable

SETTINGS = small_settings((48.0, 2, 2), (24.0, 1, 1), refine=4, banks={"mr": [SAD, NCC], "ct": [SAD]})
FILES = {"warped.nii.gz", "warped_labels.nii.gz", "transform.h5", "inverse.h5", "displacement.nii.gz", "result.json"}
FILES |= {"report.html", "view", ".regweave-result"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with two images, their labels and small settings; not to be written to."""
    folder = tmp_path_factory.mktemp("inputs")
    pair = make_phantom(seed=1, shape=(32, 32, 32), spacing_mm=(6.0, 6.0, 6.0)).pair
    write_pair(folder, pair)
    (folder / "labels.json").write_text(json.dumps({"3": "mandible", "4": "left parotid"}))
    (folder / "small.toml").write_text(SETTINGS.toml())
    model(folder)
    return folder


@pytest.fixture
def call(inputs, tmp_path, capsys):
    """Run ``register`` on the inputs; words that name an input become its path. Returns status, stdout, stderr."""

    def run(*words, images=("fixed.nii.gz", "moving.nii.gz"), config="small.toml"):
        given = [str(inputs / w) if (inputs / w).is_file() else str(w) for w in words]
        where = [str(inputs / i) if (inputs / i).is_file() else str(i) for i in images]
        settings = [] if config is None else ["--config", str(inputs / config)]
        capsys.readouterr()
        status = main(["register", *where, "-o", str(tmp_path / "out"), *settings, *given])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def left_behind(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith((".", "out")))


@pytest.fixture(scope="module")
def result(inputs, tmp_path_factory) -> Path:
    """One finished run with both label maps."""
    out = tmp_path_factory.mktemp("result") / "deep" / "out"
    words = [
        "register", inputs / "fixed.nii.gz", inputs / "moving.nii.gz", "-o", out, "--config", inputs / "small.toml",
    ]  # fmt: skip
    labels = ["--moving-labels", inputs / "moving_labels.nii.gz", "--fixed-labels", inputs / "fixed_labels.nii.gz"]
    assert main([str(w) for w in (*words, *labels, "--quiet")]) == 0
    return out


def test_files_and_record(result, inputs):
    assert {p.name for p in result.iterdir()} == FILES
    assert [p.name for p in result.parent.iterdir()] == ["out"]
    record = json.loads((result / "result.json").read_text(), parse_constant=lambda c: pytest.fail(f"{c} in JSON"))
    assert (record["dice"]["3"]["name"], record["dice"]["1"]["name"]) == ("mandible", "1")
    for row in record["dice"].values():
        assert {"name", "state", "before", "start", "after"} == set(row)
    for step in record["steps"]:
        assert step["seconds"].keys() == {"costs", "inference", "compose"}
    provenance = record["provenance"]
    assert {"regweave", "python", "dependencies", "platform", "threads", "inputs_sha256", "settings"} <= set(provenance)
    assert parse(Settings.model_validate(provenance["settings"]).toml(), "x") == SETTINGS
    found = register(inputs / "fixed.nii.gz", inputs / "moving.nii.gz", config=inputs / "small.toml")
    assert np.array_equal(found.warped.data, read_image(result / "warped.nii.gz").data)  # the bits of Python's


def test_paths_stand_where_a_run_is_repeated_from_and_nowhere_else(result, inputs):
    record = json.loads((result / "result.json").read_text())
    run = record["provenance"]
    assert all(one["path"].startswith(str(inputs)) for one in run["inputs"].values())
    for part in ("inputs", "start", "model", "call", "command"):
        del run[part]
    text = json.dumps(record)
    assert str(inputs) not in text
    assert os.environ.get("HOME", "/nowhere") not in text or os.environ["HOME"] == "/"


def test_what_is_printed(call, inputs, tmp_path):
    labels = ("--moving-labels", "moving_labels.nii.gz", "--fixed-labels", "fixed_labels.nii.gz")
    status, out, err = call(*labels)
    assert status == 0
    for word in ("structure", "mandible", "mean", "verdict", "solver", "folding", "time", "result"):
        assert word in out
    assert re.search(r"^files and page +\d+\.\d s$", err, re.MULTILINE)
    shown = re.search(r"^time +(\d+\.\d) s, of these files and page \d+\.\d s$", out, re.MULTILINE)
    seconds = json.loads((tmp_path / "out" / "result.json").read_text())["seconds"]
    assert {"read", "files", "page"} <= set(seconds)
    assert seconds["total"] == pytest.approx(sum(v for name, v in seconds.items() if name != "total"))
    # One total in the terminal, on the page and in the record.
    assert shown[1] == f"{seconds['total']:.1f}"
    assert f"seconds: all</th><td>{shown[1]}</td>" in (tmp_path / "out" / "report.html").read_text()
    assert "\x1b[" not in out + err


def test_a_page_that_cannot_be_made_leaves_nothing(call, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RegweaveError("E153", "disk full", "make room")

    monkeypatch.setattr("regweave.report.registration.draw", fail)
    assert call("--quiet")[0] == 3
    assert list(tmp_path.iterdir()) == []


def test_quiet_and_an_existing_output(call, tmp_path):
    """A result is replaced by another one on request only, and kept where the other one fails."""
    record = tmp_path / "out" / "result.json"
    assert call("--quiet") == (0, "", "")
    assert {p.name for p in (tmp_path / "out").iterdir()} == FILES - {"warped_labels.nii.gz"}
    before = record.read_text()
    assert json.loads(before)["dice"] == {}
    status, _, err = call()
    assert status == 3
    assert "error E150" in err
    assert "--overwrite" in err
    assert call("--overwrite", images=("fixed.nii.gz", tmp_path / "none.nii.gz"))[0] == 3
    assert record.read_text() == before
    assert call("--quiet", "--overwrite")[0] == 0
    assert record.read_text() != before
    assert left_behind(tmp_path) == ["out"]
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").touch()  # a folder of somebody else
    status, _, err = call("--overwrite")
    assert (status, "E150" in err, (tmp_path / "out" / "thesis.doc").exists()) == (3, True, True)


def test_metrics_engine_threads_and_start(call, tmp_path):
    matrix = np.eye(4)
    matrix[:3, 3] = (3.0, 0.0, -3.0)
    write_linear(tmp_path / "start.tfm", matrix)
    settings = SETTINGS.model_copy(update={"engine": "fastpd"}).toml()
    (tmp_path / "mine.toml").write_text(f'{settings}\n[register]\nmetrics = ["sad=2", "mind=1"]\n')
    words = ("--config", tmp_path / "mine.toml", "--threads", "2")
    assert call(*words, "--init", tmp_path / "start.tfm", "--quiet", config=None)[0] == 0
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["weights"]["members"] == ["sad", "mind"]
    assert np.ravel(record["weights"]["matrix"]).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert record["provenance"]["settings"]["engine"] == "fastpd"
    assert record["provenance"]["threads"] == 2
    forward = sitk.ReadTransform(str(tmp_path / "out" / "transform.h5"))
    affine = sitk.CompositeTransform(forward).GetNthTransform(0)
    assert sitk.AffineTransform(affine).GetTranslation() == (3.0, 0.0, -3.0)
    assert call("--init", tmp_path / "out" / "transform.h5", "--quiet", "--overwrite")[0] == 0


def model(folder: Path, classes=tuple(range(7)), members=("sad", "ncc"), class_names=None) -> Path:
    matrix = np.random.default_rng(0).random((2, len(classes)))
    Model(WeightTable(matrix, members, classes, 0.1), SETTINGS, "mr", class_names or {}).save(folder / "model.json")
    return folder / "model.json"


def test_model(call, tmp_path):
    labels = ("--moving-labels", "moving_labels.nii.gz")
    for changes, more, code, text in (
        ({"class_names": {0: "background", 1: "liver"}}, (), "E130", "1 liver"),
        ({"members": ("sad", "mind")}, (), "E170", "sad, mind, the bank has sad, ncc"),
        ({}, ("--preset", "paper"), "E170", "the bank has sad, mi, ncc, dwt"),  # a preset is used where it is given
    ):
        status, _, err = call("--model", model(tmp_path, **changes), *labels, *more, config=None)
        assert status == 3
        assert f"error {code}" in err
        assert text in err
        assert left_behind(tmp_path) == []
    assert call("--model", model(tmp_path), *labels, "--quiet", config=None)[0] == 0
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["weights"]["classes"] == list(range(7))
    assert record["provenance"]["settings"]["name"] == "small"


def damaged(inputs: Path, folder: Path) -> dict[str, Path]:
    """One file for each way in which an image cannot be registered, by code; the readers' tests have more."""
    good = (inputs / "moving.nii.gz").read_bytes()
    image = read_image(inputs / "moving.nii.gz")
    shape, paths = image.geometry.shape, {code: folder / f"{code}.nii.gz" for code in BAD}
    paths["E102"].write_bytes(good[: len(good) // 2])
    holes = image.data.copy()
    holes[3, 4, 5] = np.nan
    flat = np.full(shape, 7, np.float32)
    for code, data in {"E103": image.data[:, :, :1], "E104": holes, "E105": flat}.items():
        nib.save(nib.Nifti1Image(data, np.diag([-6.0, -6.0, 6.0, 1.0])), paths[code])
    clash = nib.Nifti1Image(image.data, np.diag([-6.0, -6.0, 6.0, 1.0]))
    clash.set_qform(np.diag([6.0, 6.0, 6.0, 1.0]), 1)
    nib.save(clash, paths["E110"])
    far = image.geometry.affine.copy()
    far[:3, 3] += 1000
    write_image(paths["E120"], Volume(image.data, Geometry(shape, far)))
    return paths


BAD = ("E101", "E102", "E103", "E104", "E105", "E110", "E120")


def test_images_that_cannot_be_used(call, inputs, tmp_path):
    for code, path in damaged(inputs, tmp_path).items():
        for images in ((path, "moving.nii.gz"), ("fixed.nii.gz", path)):
            status, out, err = call(images=images)
            assert (status, out) == (3, ""), code
            assert f"error {code}: " in err
            assert code == "E120" or str(path) in err
            assert "Traceback" not in err
            assert left_behind(tmp_path) == []


def test_labels_of_64_bits_have_a_result_and_a_page_and_others_cannot_be_used(call, inputs, tmp_path):
    labels = read_labels(inputs / "moving_labels.nii.gz")
    large = np.where(labels.data == 1, np.uint64(2**63 + 1), np.uint64(0))
    write_labels(tmp_path / "large.nii.gz", LabelMap(large, labels.geometry))
    assert call("--moving-labels", tmp_path / "large.nii.gz")[0] == 0
    assert main(["report", str(tmp_path / "out")]) == 0
    shutil.rmtree(tmp_path / "out")
    affine = labels.geometry.affine.copy()
    affine[:3, 3] += 3.0
    write_labels(tmp_path / "shifted.nii.gz", LabelMap(labels.data, Geometry(labels.geometry.shape, affine)))
    halves = labels.data.astype(np.float32) / 2
    write_image(tmp_path / "halves.nii.gz", Volume(halves, labels.geometry))
    for name, code in (("shifted", "E112"), ("halves", "E106"), ("none", "E101")):
        for option in ("--moving-labels", "--fixed-labels"):
            status, _, err = call(option, tmp_path / f"{name}.nii.gz")
            assert status == 3
            assert f"error {code}" in err
            assert left_behind(tmp_path) == []


def test_calls_that_are_wrong(call, tmp_path):
    (tmp_path / "bad.toml").write_text(SETTINGS.toml().replace("smoothness", "smothness", 1))
    for table, code in (
        ('metrics = ["sad=x"]', "E188"),
        ("metrics = {sad = -1}", "E188"),
        ("metrics = {sad = nan}", "E185"),
        ('metrics = ["trvs"]', "E181"),
        ('nifti_frame = "xform"', "E194"),
        ("follow_links = 1", "E194"),
        ("threads = 2", "E194"),
    ):
        (tmp_path / "table.toml").write_text(f"{SETTINGS.toml()}\n[register]\n{table}\n")
        status, _, err = call("--config", tmp_path / "table.toml", config=None)
        assert (status, f"error {code}: " in err) == (2, True), table
    for words, text in (
        (("--threads", "0"), "error E186: "),
        (("--preset", "default"), "error E189: "),
        (("--nosuch",), "No such option"),
        (("--threads", "two"), "Invalid value"),
    ):
        status, _, err = call(*words)
        assert (status, text in err) == (2, True), words
    status, _, err = call("--config", tmp_path / "bad.toml", config=None)
    assert (status, "error E185" in err, "smothness" in err) == (2, True, True)
    assert left_behind(tmp_path) == []


def as_ct(image: Volume) -> Volume:
    """The same body in Hounsfield units, in air."""
    share = image.data / image.data.max()
    return Volume(np.where(share < 0.05, -1000, 330 * share - 120).astype(np.float32), image.geometry)


def test_ct_is_told_from_its_histogram_and_needs_a_bank(call, inputs, tmp_path):
    write_image(tmp_path / "ct.nii.gz", as_ct(read_image(inputs / "moving.nii.gz")))
    assert call("--quiet", images=(tmp_path / "ct.nii.gz",) * 2)[0] == 0
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["provenance"]["modality"] == {"fixed": "ct", "moving": "ct", "bank": "ct"}
    assert record["weights"]["members"] == ["sad"]
    bare = SETTINGS.model_copy(update={"banks": {"mr": SETTINGS.banks["mr"]}})
    (tmp_path / "mr.toml").write_text(bare.toml())
    words = ("--config", tmp_path / "mr.toml", "--overwrite")
    status, _, err = call(*words, images=("fixed.nii.gz", tmp_path / "ct.nii.gz"), config=None)
    assert status == 2
    assert "error E183" in err


def test_presets(capsys):
    assert main(["presets", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == preset_names()
    for name in ("default", "paper@1"):
        assert main(["presets", "show", name]) == 0
        assert parse(capsys.readouterr().out, "shown") == preset(name)
    assert main(["presets", "show", "nonsense"]) == 2
    assert "E184" in capsys.readouterr().err


def test_plan(inputs, capsys):
    words = ["plan", str(inputs / "fixed.nii.gz"), str(inputs / "moving.nii.gz")]
    assert main([*words, "--preset", "paper"]) == 0
    out = capsys.readouterr().out
    for text in ("paper@1", "peak memory", "MB", "time", "overlap", "50 mm", "25 mm", "125"):
        assert text in out
    assert main([*words, "--json", "--config", str(inputs / "small.toml"), "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["n_labels"] for s in found["sizes"]] == [27, 27]
    assert found["peak_memory_mb"] > 50
    assert found["seconds"] > 0
    assert 0.9 < found["overlap"] <= 1
    assert found["modality"] == {"fixed": "mr", "moving": "mr", "bank": "mr"}
    assert (found["threads"], found["settings"]) == (1, "small")
    assert main(["plan", str(inputs / "none.nii.gz"), str(inputs / "moving.nii.gz")]) == 3


def command(*words) -> list[str]:
    """The program in a process of its own."""
    return [sys.executable, "-c", "import sys; from regweave.cli import main; sys.exit(main())", *map(str, words)]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_in_mid_run_ends_it_and_leaves_nothing(spawn, inputs, tmp_path):
    endless = SETTINGS.model_copy(update={"refine": SETTINGS.refine.model_copy(update={"steps": 1000})})
    (tmp_path / "long.toml").write_text(endless.toml())
    images = (inputs / "fixed.nii.gz", inputs / "moving.nii.gz")
    process = spawn(*command("register", *images, "-o", tmp_path / "out", "--config", tmp_path / "long.toml"))
    assert any(line.startswith("MR · ") for line in process.stderr)
    assert any(p.name.startswith(".out.part-") for p in tmp_path.iterdir())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 5  # a run that goes on to its end has 0
    assert err.splitlines()[-1] == "cancelled; nothing was written"
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_memory_is_forecast_within_a_factor_of_two(tmp_path):
    pair = make_phantom(seed=0, shape=(64, 64, 64)).pair
    for name in ("fixed", "moving"):
        write_image(tmp_path / f"{name}.nii.gz", getattr(pair, name))
    images = (tmp_path / "fixed.nii.gz", tmp_path / "moving.nii.gz")
    subprocess.run(command("register", *images, "-o", tmp_path / "out", "--quiet"), check=True, timeout=300)
    plan = subprocess.run(command("plan", *images, "--json"), check=True, timeout=60, capture_output=True)
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    forecast = json.loads(plan.stdout)
    assert 0.5 < forecast["peak_memory_mb"] / found["peak_memory_mb"] < 2
