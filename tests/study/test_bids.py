"""BIDS datasets: names of derivatives, people side by side, a broken one that stops nothing, and what is no dataset."""

import csv
import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import regweave as rw
from phantoms import make_phantom
from regweave.cli import main
from regweave.io import read_image, write_image
from regweave.io.write import TimeSeries, write_time_series
from regweave.types import Geometry, Volume

START = "import sys; from regweave.cli import main; sys.exit(main())"
pytestmark = pytest.mark.usefixtures("in_process")
VALIDATOR = shutil.which("bids-validator-deno")


def add_person(root, label, sessions=("",), *, suffixes=("T1w", "T2w"), seed=0):
    """Write images of one anatomy; the T2w has the contrast turned round, a bold series moves."""
    pair = make_phantom(seed, (24, 24, 24), (8.0, 8.0, 8.0), max_displacement_mm=8.0).pair
    for session in sessions:
        stem = f"sub-{label}" + (f"_ses-{session}" if session else "")
        t1 = pair.moving if session == "2" else pair.fixed
        t2 = Volume(t1.data.max() - t1.data, t1.geometry)
        for suffix in suffixes:
            place = root.joinpath(*stem.split("_"), "func" if suffix == "bold" else "anat")
            place.mkdir(parents=True, exist_ok=True)
            if suffix == "bold":
                affine = t1.geometry.affine @ np.diag([2.0, 2.0, 2.0, 1.0])
                small, grid = t2.data[::2, ::2, ::2], Geometry((12, 12, 12), affine)
                volumes = [Volume(np.roll(small, n == 2, 0) + np.float32(n), grid) for n in range(3)]
                write_time_series(place / f"{stem}_task-rest_bold.nii.gz", TimeSeries(volumes, 2.0, "sec"))
                sidecar = {"RepetitionTime": 2.0, "TaskName": "rest"}
                (place / f"{stem}_task-rest_bold.json").write_text(json.dumps(sidecar))
            else:
                write_image(place / f"{stem}_{suffix}.nii.gz", t1 if suffix == "T1w" else t2)


def make_dataset(root):
    root.mkdir(parents=True)
    (root / "dataset_description.json").write_text(json.dumps({"Name": "phantoms", "BIDSVersion": "1.10.0"}))
    (root / "README").write_text("Phantoms of six organs, made for tests.\n" * 4)
    return root


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """One person with two sessions, in a folder with a space in its name; not to be written to."""
    root = make_dataset(tmp_path_factory.mktemp("bids") / "my data")
    add_person(root, "01", ("1", "2"), suffixes=("T1w", "T2w", "bold"))
    return root


@pytest.fixture(scope="module")
def done(dataset, in_process, tmp_path_factory):
    """What the command writes for it."""
    out = tmp_path_factory.mktemp("out") / "regweave"
    assert main(["bids", str(dataset), str(out), "participant", "--workers", "1", "--quiet"]) == 0
    return out


def derivatives(out):
    return {path.name for place in out.glob("sub-*/") for path in place.rglob("*") if path.is_file()}


def ids(out):
    return [row["id"] for row in csv.DictReader((out / "results.csv").read_text().splitlines())]


def test_derivatives_have_the_names_of_bids_and_sidecars(done, dataset):
    expected = set()
    for session in ("1", "2"):
        stem = f"sub-01_ses-{session}"
        bold = f"{stem}_task-rest"
        maps = [(stem, "T2w", "T1w"), (bold, "boldref", "T1w")] + [(stem, "T1w", "ses1")] * (session == "2")
        for start, *ends in maps:
            both = [f"{start}_from-{a}_to-{b}_mode-image_xfm" for a, b in (ends, ends[::-1])]
            expected |= {f"{name}.{kind}" for name in both for kind in ("h5", "json")}
        images = [f"{stem}_space-T1w_desc-preproc_T2w", f"{bold}_space-T1w_boldref"]
        images += [f"{stem}_space-ses1_desc-preproc_T1w"] * (session == "2")
        expected |= {f"{name}.{kind}" for name in images for kind in ("nii.gz", "json")}
        expected |= {f"{bold}_boldref.nii.gz", f"{bold}_desc-confounds_timeseries.tsv"}
    assert derivatives(done) == expected
    place = done / "sub-01" / "ses-1"
    sidecar = json.loads((place / "anat" / "sub-01_ses-1_space-T1w_desc-preproc_T2w.json").read_text())
    assert sidecar["Sources"] == ["bids:raw:sub-01/ses-1/anat/sub-01_ses-1_T2w.nii.gz"]
    assert sidecar["SpatialReference"] == "bids:raw:sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz"
    described = json.loads((done / "dataset_description.json").read_text())
    assert described["DatasetType"] == "derivative"
    assert described["GeneratedBy"][0]["Name"] == "regweave"
    assert described["SourceDatasets"] == [{"URL": dataset.resolve().as_uri()}]
    assert described["DatasetLinks"]["raw"] == dataset.resolve().as_uri()
    text = (done / "logs" / "CITATION.md").read_text()
    assert "rigid maps" in text
    assert "Markov random field" in text
    assert "Jacobian" not in text


def test_transforms_bring_images_onto_their_space(dataset, done):
    place = done / "sub-01" / "ses-1" / "func"
    moved = rw.warp(
        place / "sub-01_ses-1_task-rest_boldref.nii.gz",
        place / "sub-01_ses-1_task-rest_from-boldref_to-T1w_mode-image_xfm.h5",
        dataset / "sub-01" / "ses-1" / "anat" / "sub-01_ses-1_T1w.nii.gz",
    )
    found = read_image(place / "sub-01_ses-1_task-rest_space-T1w_boldref.nii.gz")
    assert np.abs(moved.data - found.data).max() < 1e-3 * found.data.max()
    table = (place / "sub-01_ses-1_task-rest_desc-confounds_timeseries.tsv").read_text().splitlines()
    motion = list(csv.DictReader(table, delimiter="\t"))
    assert len(motion) == 3
    assert float(motion[2]["framewise_displacement"]) > float(motion[1]["framewise_displacement"])


def test_a_page_for_each_and_a_repeated_call_runs_nothing_again(dataset, done, tmp_path, capsys):
    out = shutil.copytree(done, tmp_path / "out")
    assert "work/sub-01_ses-1_from-T2w_to-T1w_mode-image_xfm/report.html" in (out / "sub-01.html").read_text()
    assert main(["bids", str(dataset), str(out), "group"]) == 0
    assert "5 of 5 passed" in capsys.readouterr().out
    assert len(ids(out)) == 5
    assert "work/sub-01_ses-2_from-T1w_to-ses1_mode-image_xfm/report.html" in (out / "index.html").read_text()
    records = {path: path.stat().st_mtime_ns for path in done.glob("work/*/result.json")}
    found = rw.bids(dataset, done, "participant", session_label=["ses-1"], workers=1)
    assert [row.id.split("_")[1] for row in found.rows] == ["ses-1", "ses-1"]
    assert {path: path.stat().st_mtime_ns for path in done.glob("work/*/result.json")} == records
    assert len(json.loads((done / "work" / "sub-01_ses-2.json").read_text())["rows"]) == 3


def test_images_go_on_to_a_template(dataset, tmp_path):
    template = tmp_path / "tpl-Phantom_res-01_T1w.nii.gz"
    write_image(template, make_phantom(3, (20, 20, 20), (9.0, 9.0, 9.0)).pair.fixed)
    out = tmp_path / "out"
    rw.bids(dataset, out, "participant", template=template, transform="rigid", session_label=["1"], workers=1)
    place, stem = out / "sub-01" / "ses-1", "sub-01_ses-1"
    onto = place / "anat" / f"{stem}_from-T1w_to-Phantom_mode-image_xfm.h5"
    chain = [onto, place / "func" / f"{stem}_task-rest_from-boldref_to-T1w_mode-image_xfm.h5"]
    moved = rw.warp(place / "func" / f"{stem}_task-rest_boldref.nii.gz", chain, template)
    found = read_image(place / "func" / f"{stem}_task-rest_space-Phantom_boldref.nii.gz")
    assert found.data.shape == (20, 20, 20)
    assert np.abs(moved.data - found.data).max() < 1e-3 * found.data.max()
    sidecar = json.loads((place / "anat" / f"{stem}_space-Phantom_desc-preproc_T2w.json").read_text())
    assert sidecar["SpatialReference"] == template.resolve().as_uri()
    root = make_dataset(tmp_path / "data")
    add_person(root, "01", suffixes=("T1w",))
    shutil.copy(template, tmp_path / "T1w.nii.gz")  # the name of a contrast
    rw.bids(root, tmp_path / "one", "participant", template=tmp_path / "T1w.nii.gz", transform="rigid", workers=1)
    names = [f"sub-01_from-{a}_to-{b}_mode-image_xfm.h5" for a, b in (("T1w", "templateT1w"), ("templateT1w", "T1w"))]
    assert set(names) <= derivatives(tmp_path / "one")
    for text in ("[]", "{"):  # a description that is none
        (root / "dataset_description.json").write_text(text)
        with pytest.raises(rw.RegweaveError, match=r"E10.*dataset_description"):
            rw.bids(root, tmp_path / "two", "participant", skip_bids_validator=True, workers=1)


def test_a_broken_person_stops_nothing(tmp_path, capsys):
    root = make_dataset(tmp_path / "data")
    for label in ("01", "02", "03"):
        add_person(root, label)
    damaged = root / "sub-02" / "anat" / "sub-02_T1w.nii.gz"
    damaged.write_bytes(damaged.read_bytes()[:200])
    absent = root / "sub-03" / "anat" / "sub-03_T2w.nii.gz"
    absent.unlink()
    absent.symlink_to("../../.git/annex/objects/x")  # as datalad leaves what was not fetched
    (root / "sub-04" / "anat").mkdir(parents=True)
    add_person(root, "05", suffixes=("T1w",))
    out = root / "derivatives" / "rw"
    words = ["bids", str(root), str(out), "participant", "--transform", "rigid", "--workers", "1"]
    assert main(words) == 1
    told = capsys.readouterr().err
    for label, code in (("02", "E10"), ("03", "E101"), ("04", "E149"), ("05", "E149")):
        assert f"failed sub-{label}" in told
        assert code in next(line for line in told.splitlines() if line.startswith(f"failed sub-{label}"))
    assert "failed sub-01" not in told
    assert {name[:6] for name in derivatives(out)} == {"sub-01"}
    assert main(["bids", str(root), str(out), "group", "--quiet"]) == 1
    assert sorted({name[:6] for name in ids(out)}) == ["sub-01", "sub-02", "sub-03", "sub-04", "sub-05"]
    add_person(root, "04", ("1",))  # mended: the earlier failure is forgotten
    rw.bids(root, out, "participant", participant_label=["04"], skip_bids_validator=True, workers=1)
    assert [row.status for row in rw.bids(root, out, "group", participant_label=["04"]).rows] == ["ok"]


def test_people_side_by_side(tmp_path):
    root, out = make_dataset(tmp_path / "data"), tmp_path / "out"
    for label in ("01", "02"):
        add_person(root, label, seed=int(label))
    words = ["bids", str(root), str(out), "participant", "--workers", "1", "--quiet", "--participant_label"]
    other = subprocess.Popen([sys.executable, "-c", START, *words, "01"])
    assert (main([*words, "sub-02"]), other.wait()) == (0, 0)
    assert len(rw.bids(root, out, "group")) == 2
    assert {name[:6] for name in derivatives(out)} == {"sub-01", "sub-02"}
    assert ids(out) == [f"sub-{label}_from-T2w_to-T1w_mode-image_xfm" for label in ("01", "02")]


def test_two_t1w_odd_names_and_parts(tmp_path):
    root = make_dataset(tmp_path / "data")
    add_person(root, "a+b", suffixes=("T1w",))
    place = root / "sub-a+b" / "anat"
    first = place / "sub-a+b_T1w.nii.gz"
    for name in ("sub-a+b_run-2_T1w", "sub-a+b_part-phase_T1w", "sub-a_T1w", "sub-a+b_foo_T1w", "sub-a+b_FLAIR"):
        shutil.copy(first, place / f"{name}.nii.gz")
    (root / "sub-0 1").mkdir()
    (root / "sub-c+d" / "anat").mkdir(parents=True)
    with pytest.warns(rw.RegweaveWarning, match="W254") as found:
        rows = rw.bids(root, tmp_path / "out", "participant", workers=1, skip_bids_validator=True).rows
    told = " ".join(str(one.message) for one in found)
    assert all(name in told for name in ("sub-a_T1w.nii.gz", "sub-a+b_foo_T1w.nii.gz", "sub-0 1"))
    assert "phase" not in told
    assert sorted(row.id for row in rows) == ["sub-a.b_run-2_from-orig_to-T1w_mode-image_xfm", "sub-c.d"]
    (root / "sub-0 1").rename(root / "sub-e+f")
    assert rw.bids(root, tmp_path / "out", "group").failures.keys() == {"sub-c.d", "sub-e.f"}
    assert "sub-a+b_run-2_from-orig_to-T1w_mode-image_xfm.h5" in derivatives(tmp_path / "out")
    assert "sub-a+b_run-2_from-T1w_to-orig_mode-image_xfm.h5" in derivatives(tmp_path / "out")


def test_what_cannot_be_used_is_refused_before_anything_is_written(dataset, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for source, words, code, status in (
        (tmp_path / "nothing", [], "E101", 3), (tmp_path / "empty", [], "E149", 3),
        (dataset, ["--participant-label", "01", "09"], "E149", 2), (dataset, ["--session-label", "9"], "E149", 2),
        (dataset, ["--template", "none.nii.gz"], "E101", 3), (dataset, ["--preset", "none"], "E184", 2),
        (dataset, ["--transform", "bent"], "transform", 2), (dataset, ["--workers", "0"], "E192", 2),
    ):  # fmt: skip
        assert main(["bids", str(source), str(tmp_path / "out"), "participant", *words]) == status, words
        assert code in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    before = sorted(dataset.rglob("*"))
    for out in (dataset, dataset.parent, dataset / "sub-01" / "new", dataset / "derivatives", dataset / "code" / "x"):
        with pytest.raises(rw.RegweaveError, match="E152"):
            rw.bids(dataset, out, "participant")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(rw.RegweaveError, match="E150"):
        rw.bids(dataset, tmp_path / "other", "participant")
    with pytest.raises(rw.RegweaveError, match="E101"):
        rw.bids(dataset, tmp_path / "new", "group")
    with pytest.raises(rw.RegweaveError, match="E192"):
        rw.bids(dataset, tmp_path / "new", "everybody")
    assert sorted(dataset.rglob("*")) == before


@pytest.mark.skipif(VALIDATOR is None, reason="bids-validator-deno is not installed")
def test_the_validator_accepts_input_and_output(dataset, done, tmp_path):
    for folder in (dataset, done):
        checked = subprocess.run([str(VALIDATOR), str(folder), "--ignoreWarnings"], capture_output=True, check=False)
        assert checked.returncode == 0, checked.stdout
    root = make_dataset(tmp_path / "data")
    add_person(root, "01")
    (root / "dataset_description.json").unlink()
    with pytest.warns(rw.RegweaveWarning, match="W255: .*MISSING_DATASET_DESCRIPTION"):
        rw.bids(root, tmp_path / "out", "participant", workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rw.bids(root, tmp_path / "out", "participant", workers=1, skip_bids_validator=True)
