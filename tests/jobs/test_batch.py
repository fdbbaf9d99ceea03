"""A table of pairs: every row into its own folder, failures named, killed and resumed to the same result."""

import csv
import json
import os
import signal
import sys
import warnings

import numpy as np
import pytest

import regweave as rw
from regweave.cli import main
from regweave.io import write_image
from regweave.io.disk.outputs import working_folder
from regweave.io.images import read_image, read_labels
from regweave.jobs import batch as module
from regweave.run.register import register

FILES = ("fixed", "moving", "fixed_labels", "moving_labels")
START = "import sys; from regweave.cli import main; sys.exit(main())"
TIMED = ("seconds", "peak_memory_mb", "peak_mb")


@pytest.fixture(scope="module")
def folder(training_list):
    """Small pairs, and settings beside them; not to be written to."""
    return training_list.folder


def row(folder, n, *companions, **words):
    names = {name: f"{name.removesuffix('_labels')}{n}{'_labels' * name.endswith('_labels')}.nii.gz" for name in FILES}
    files = {name: str(folder / names[name]) for name in ("fixed", "moving", *companions)}
    return {"id": f"p{n}", **files, **words}


def listed(path, rows):
    columns = list(dict.fromkeys(name for one in rows for name in one))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def untimed(value):
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in TIMED}
    return [untimed(v) for v in value] if isinstance(value, list) else value


@pytest.mark.usefixtures("in_process")
def test_rows_of_every_kind(folder, tmp_path):
    """Labels in one row, none in another, a third that cannot be registered: it stops nothing."""
    flat = read_image(folder / "fixed2.nii.gz")
    write_image(tmp_path / "flat.nii.gz", rw.Volume(np.zeros_like(flat.data), flat.geometry))
    rows = [
        row(folder, 0),
        row(folder, 1, "fixed_labels", "moving_labels", init="moments"),
        {**row(folder, 2), "moving": str(tmp_path / "flat.nii.gz")},
    ]
    told = []
    found = rw.batch(rows, tmp_path / "out", config=folder / "tiny.toml", workers=1, on_progress=told.append)
    assert [r.status for r in found.rows] == ["ok", "ok", "failed"]
    assert list(found.failures) == ["p2"]
    assert found.failures["p2"].startswith("E105: ")
    assert told[-1].failed == 1
    assert "1 failed" in repr(found)
    assert found.rows[0].mean_dice_after is None
    one = found["p1"]
    assert one.mean_dice["after"] == found.rows[1].mean_dice_after
    assert one.provenance.start.used == "moments"
    assert found["p0"].provenance.start.used != "moments"
    assert (tmp_path / "out" / "p0" / "report.html").is_file()
    assert not (tmp_path / "out" / "p2").exists()
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [r["id"] for r in content["rows"]] == ["p0", "p1", "p2"]
    lines = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert [line["code"] for line in lines] == ["", "", "E105"]
    assert lines[1]["mean_dice_after"] == repr(one.mean_dice["after"])
    page = (tmp_path / "out" / "index.html").read_text()
    assert "p0/report.html" in page
    assert "E105" in page
    alone = rw.register(folder / "fixed0.nii.gz", folder / "moving0.nii.gz", config=folder / "tiny.toml")
    np.testing.assert_array_equal(found["p0"].transform.field.data, alone.transform.field.data)
    alone.save(tmp_path / "alone")
    for name in ("warped.nii.gz", "transform.h5", "inverse.h5", "displacement.nii.gz"):
        assert (tmp_path / "out" / "p0" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.table(), pandas.DataFrame)
    assert list(found.table()["id"]) == ["p0", "p1", "p2"]


@pytest.mark.usefixtures("in_process")
def test_resumed_rows_are_not_run_again_unless_something_changed(folder, tmp_path, monkeypatch):
    rows = [row(folder, 0), row(folder, 1)]
    ran = []
    monkeypatch.setattr(module, "register", lambda **words: (ran.append(words), register(**words))[1])
    rw.batch(rows, tmp_path / "out", config=folder / "tiny.toml", workers=1)
    assert len(ran) == 2
    with pytest.raises(rw.RegweaveError, match="E150"):
        rw.batch(rows, tmp_path / "out", config=folder / "tiny.toml", workers=1)
    rw.batch([*rows, row(folder, 2)], tmp_path / "out", config=folder / "tiny.toml", workers=1, resume=True)
    assert len(ran) == 3
    (tmp_path / "out" / "p1" / "result.json").unlink()  # a folder that is not whole does not count as done
    with pytest.warns(rw.RegweaveWarning, match=r"W251.*result.json' is missing or was changed; p1 is run again"):
        again = rw.batch(rows, tmp_path / "out", config=folder / "tiny.toml", workers=1, resume=True)
    assert len(ran) == 4
    rw.batch(rows, tmp_path / "out", config=folder / "tiny.toml", init="moments", workers=1, resume=True)
    assert len(ran) == 6
    assert again["p1"].warnings is not None


@pytest.mark.usefixtures("in_process")
def test_resume_believes_only_what_is_there(folder, tmp_path):
    names = tmp_path / "names.json"
    label_map = tmp_path / "moving_labels.nii.gz"
    label_map.write_bytes((folder / "moving0_labels.nii.gz").read_bytes())
    (tmp_path / "fixed_labels.nii.gz").write_bytes((folder / "fixed0_labels.nii.gz").read_bytes())
    rows = [row(folder, 0, fixed_labels=str(tmp_path / "fixed_labels.nii.gz"), moving_labels=str(label_map))]
    values = [int(v) for v in np.unique(read_labels(label_map).data) if v]

    def run(**words):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rw.batch(rows, tmp_path / "out", config=folder / "tiny.toml", workers=1, resume=True, **words)
        return [str(one.message) for one in caught if str(one.message).startswith("W251")]

    def told():
        return (tmp_path / "out" / "p0" / "result.json").read_text(encoding="utf-8")

    names.write_text(json.dumps({str(v): f"Liver{v}" for v in values}))
    run(label_names=names)
    assert "Liver1" in told()
    names.write_text(json.dumps({str(v): f"Kidney{v}" for v in values}))
    assert run(label_names=names) == []
    assert "Kidney1" in told()
    assert "Liver1" not in told()
    (tmp_path / "labels.json").write_text(json.dumps({str(v): f"Heart{v}" for v in values}))
    run()
    first = told()
    (tmp_path / "labels.json").write_text(json.dumps({str(v): f"Lung{v}" for v in values}))
    run()
    assert ("Heart1" in first, "Lung1" in told()) == (True, True)
    warped, labels = (tmp_path / "out" / "p0" / f"{name}.nii.gz" for name in ("warped", "warped_labels"))
    bits = warped.read_bytes(), labels.read_bytes()
    warped.unlink()
    labels.write_bytes(b"damaged")
    assert len(run()) == 1
    assert (warped.read_bytes(), labels.read_bytes()) == bits
    last = told()
    assert run() == []
    assert told() == last


def test_everything_is_checked_before_anything_is_computed(folder, tmp_path):
    for change, code in (
        ({"id": "tasks"}, "E132"), ({"id": "../x"}, "E132"), ({"id": "P1"}, "E132"),
        ({"id": "p" * 201}, "E132.*201 characters, allowed are 200"), ({"moving": "none.nii.gz"}, "E101"),
        ({"model": "brane"}, "E1"), ({"preset": "defalt"}, "E18"), ({"init": "rigid?"}, "E187"),
        ({"colour": "red"}, "E132"), ({"fixed": 3.5}, "E132"),
    ):  # fmt: skip
        with pytest.raises(rw.RegweaveError, match=code):
            rw.batch([row(folder, 1), {**row(folder, 0), **change}], tmp_path / "out", workers=1)
    path = listed(tmp_path / "pairs.csv", [row(folder, 0)])
    text = path.read_text()
    for sign, word in ((";", ";"), ("\t", "a tab")):
        path.write_text(text.replace(",", sign))
        with pytest.raises(rw.RegweaveError, match=f"E132.*the separator is {word}, commas are needed"):
            rw.batch(path, tmp_path / "out")
    for word in ("0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3", ""):
        with pytest.raises(rw.RegweaveError, match="E192"):
            rw.batch([row(folder, 0)], tmp_path / "out", shard=word, workers=1)
    with pytest.raises(rw.RegweaveError, match="E192"):
        rw.batch([row(folder, 0)], tmp_path / "out", shard="1/2", collect=True, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("in_process")
def test_command(folder, tmp_path, capsys):
    rows = [row(folder, 0), {**row(folder, 1), "moving": row(folder, 1)["fixed"]}]
    table = listed(tmp_path / "pairs.csv", rows)
    words = ["batch", str(table), "-o", str(tmp_path / "out"), "--config", str(folder / "tiny.toml"), "--workers", "1"]
    assert main([*words, "--write", "transform"]) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 passed" in out or "to look at" in out
    assert "[2/2]" in err
    assert all(len(line) <= 80 for line in err.splitlines())
    assert not (tmp_path / "out" / "p0" / "warped.nii.gz").exists()
    assert main([*words, "--write", "transform", "--resume", "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert [r["status"] for r in json.loads(out)["rows"]] == ["ok", "ok"]
    assert err == ""
    (tmp_path / "damaged.nii.gz").write_bytes(b"no image")
    bad = listed(tmp_path / "bad.csv", [row(folder, 0), {**row(folder, 1), "moving": str(tmp_path / "damaged.nii.gz")}])
    words[1], words[3] = str(bad), str(tmp_path / "bad")
    assert main(words) == 1
    assert "failed p1: E1" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_killed_and_resumed_to_the_same_bytes(spawn, wait_for, folder, tmp_path):
    table = listed(tmp_path / "pairs.csv", [row(folder, n, *FILES[2:]) for n in range(2)])
    words = [sys.executable, "-c", START, "batch", str(table), "--config", str(folder / "tiny.toml"), "-o"]
    first = spawn(*words, tmp_path / "cut", "--workers", 1, "--quiet", start_new_session=True)
    done = tmp_path / "cut" / "p0" / "result.json"
    wait_for(lambda: list((tmp_path / "cut" / "tasks").glob("[0-9a-f]*.json")), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "cut" / "results.json").exists()
    kept = done.read_bytes()
    for name in ("cut", "whole"):
        rw.batch(table, tmp_path / name, config=folder / "tiny.toml", workers=1, resume=name == "cut")
    assert done.read_bytes() == kept
    cut, whole = (
        {p.relative_to(tmp_path / name): p for p in (tmp_path / name).rglob("*") if p.is_file()}
        for name in ("cut", "whole")
    )
    results = {path for path in whole if path.parts[0] != "tasks"}
    assert results == {path for path in cut if path.parts[0] != "tasks"}
    timed = {"result.json", "results.json", "results.csv", "report.html", "index.html"}
    for path in results:
        if path.name not in timed:
            assert cut[path].read_bytes() == whole[path].read_bytes(), path
        elif path.suffix == ".json":
            assert untimed(json.loads(cut[path].read_text())) == untimed(json.loads(whole[path].read_text())), path


def stopped(**_words):
    raise KeyboardInterrupt


@pytest.mark.usefixtures("in_process")
def test_shards_are_collected_to_what_one_run_writes(folder, tmp_path, capsys):
    rows = [row(folder, n) for n in range(3)]
    table = str(listed(tmp_path / "pairs.csv", rows))
    words = ["batch", table, "--config", str(folder / "tiny.toml"), "--write", "transform", "--workers", "1", "--quiet"]
    assert main([*words, "-o", str(tmp_path / "whole")]) == 0
    many = [*words, "-o", str(tmp_path / "many")]
    assert main([*many, "--collect"]) == 3
    assert "E196: --collect is given, and no shard has finished a pair" in capsys.readouterr().err
    assert not (tmp_path / "many").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regweave.cli.batch.run", stopped)
        assert main([*many, "--shard", "2/2"]) == 5
    assert "repeat the call with --shard 2/2" in capsys.readouterr().err
    assert main([*many, "--shard", "2/2"]) == 0
    assert sorted(p.name for p in (tmp_path / "many").iterdir() if p.is_dir()) == ["p1", "tasks"]
    assert not (tmp_path / "many/results.csv").exists()
    assert main([*many, "--collect"]) == 1  # the first shard is missing
    err = capsys.readouterr().err
    assert "failed p0: E196" in err
    assert "failed p2: E196" in err
    assert main([*many, "--shard", "1/2"]) == 0
    assert main([*many, "--collect"]) == 0
    found, whole = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("many", "whole"))
    for one in (found, whole):
        for line in one["rows"]:
            line.pop("thumbnail")
    assert untimed(found["rows"]) == untimed(whole["rows"])
    for n in range(3):
        files = [tmp_path / name / f"p{n}/transform.h5" for name in ("many", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_two_shards_work_in_one_folder_at_once_and_a_whole_run_does_not(folder, tmp_path):
    with (
        working_folder(tmp_path / "o", "tasks", "a batch", resume=True, shared=True),
        working_folder(tmp_path / "o", "tasks", "a batch", resume=True, shared=True),
        pytest.raises(rw.RegweaveError, match="E155"),
    ):
        rw.batch([row(folder, 0)], tmp_path / "o", resume=True, workers=1)
