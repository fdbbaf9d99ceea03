"""Outputs and other people's files: only what this program wrote, and what stood there at the start, is replaced."""

import gzip
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave.errors import RegweaveError, UsageError
from regweave.io import (
    atomic_path,
    check_overlap,
    fill_value,
    overlap_fraction,
    owned_path,
    prepare_output,
    read_labels,
    require_absent,
    write,
    write as deflate,
    write_displacement,
    write_image,
    write_labels,
)
from regweave.io.disk import outputs
from regweave.io.disk.outputs import PART, check_name, clear, sweep, working_folder
from regweave.threads import kernel_threads
from regweave.types import Field, Geometry, LabelMap, Volume


def result(folder: Path, text: str = "ours", **options) -> None:
    with prepare_output(folder, **options) as part:
        (part / "view").mkdir()
        (part / "view" / "a.bin").write_text(text)
        (part / "result.json").write_text(text)


def texts(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file() and p.name != outputs.MARK
    }


def fill(folder: Path, error: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "precious").write_text("mine")
    if error:
        raise ValueError(error)


def exchange_for(out: Path, text: str) -> None:
    """Put another result in the place of one."""
    result(out.with_name("other"), text)
    shutil.rmtree(out)
    out.with_name("other").rename(out)


OURS = {"view/a.bin": "ours", "result.json": "ours"}


@pytest.mark.parametrize("name", ["notes.txt", "view/notes.txt", "deep/er/notes.txt", "empty/", "link"])
def test_what_the_user_put_into_a_result_is_never_deleted(tmp_path, name):
    out = tmp_path / "out"
    result(out)
    if name == "empty/":
        (out / name).mkdir()
    elif name == "link":
        (out / name).symlink_to(tmp_path)
    else:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    with pytest.raises(RegweaveError, match=rf"E150.*did not write: .*'{name}'"):
        result(out, "new", overwrite=True)
    assert texts(out) == ({**OURS, name: "mine"} if name.endswith("txt") else OURS)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_result_without_a_list_is_left_alone(tmp_path):
    result(tmp_path / "out")
    (tmp_path / "out" / outputs.MARK).write_text("")
    fill(tmp_path / "home")
    (tmp_path / "file").touch()
    for name in ("out", "home", "file"):
        with pytest.raises(RegweaveError, match="E150"):
            result(tmp_path / name, "new", overwrite=True)
    assert texts(tmp_path / "out") == OURS
    assert texts(tmp_path / "home") == {"precious": "mine"}


def test_pages_and_results_made_in_a_result_belong_to_it_and_a_page_of_the_user_does_not(tmp_path):
    with prepare_output(tmp_path / "out") as part:
        result(part / "pages" / "a")
    for name in ("report.html", "report.html", "pages/a/report.html"):
        with owned_path(tmp_path / "out" / name) as page:
            page.write_text("page")
    result(tmp_path / "out", overwrite=True)
    assert texts(tmp_path / "out") == OURS
    (tmp_path / "out" / "report.html").write_text("mine")
    with pytest.raises(RegweaveError, match="E154"), owned_path(tmp_path / "out" / "report.html"):
        pytest.fail("the block must not run")
    assert (tmp_path / "out" / "report.html").read_text() == "mine"


def test_a_folder_or_file_that_appears_meanwhile_is_an_error(tmp_path):
    with pytest.raises(RegweaveError, match=r"E154.*another -o"), prepare_output(tmp_path / "folder"):
        fill(tmp_path / "folder")
    with pytest.raises(RegweaveError, match="E154"), prepare_output(tmp_path / "file"):
        (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RegweaveError, match="E154"), prepare_output(tmp_path / "empty"):
        fill(tmp_path / "empty")
    assert texts(tmp_path) == {"folder/precious": "mine", "file": "mine", "empty/precious": "mine"}
    assert len([*tmp_path.iterdir()]) == 3


def test_only_the_result_that_was_there_at_the_start_is_replaced(tmp_path):
    out = tmp_path / "out"
    result(out)
    with pytest.raises(RegweaveError, match="E154"), prepare_output(out, overwrite=True):
        exchange_for(out, "newer")
    assert texts(tmp_path) == {"out/view/a.bin": "newer", "out/result.json": "newer"}
    with pytest.raises(RegweaveError, match="E154"), prepare_output(out, overwrite=True):
        (out / "notes.txt").write_text("mine")
    assert (out / "notes.txt").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_note_between_the_look_and_the_swap_survives(tmp_path, monkeypatch):
    out = tmp_path / "out"
    result(out)
    looks, real = [], outputs.strangers

    def late(folder):
        looks.append(folder)
        if len(looks) == 2:  # at the beginning, and of the folder that was moved aside
            (folder / "notes.txt").write_text("mine")
        return real(folder)

    monkeypatch.setattr(outputs, "strangers", late)
    with pytest.raises(RegweaveError, match="E154"):
        result(out, "new", overwrite=True)
    assert texts(tmp_path) == {f"out/{k}": v for k, v in {**OURS, "notes.txt": "mine"}.items()}


def test_of_many_that_write_one_folder_one_succeeds(tmp_path):
    done = threading.Event()

    def write(i: int) -> str:
        try:
            with prepare_output(tmp_path / "out") as part:
                (part / "who").write_text(str(i))
                done.wait(30)
        except RegweaveError as error:
            return error.code
        return str(i)

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(write, i) for i in range(8)]
        while sum(one.done() for one in running) < 7:
            time.sleep(0.01)
        done.set()
        ends = [one.result() for one in running]
    assert ends.count("E154") == 7
    assert texts(tmp_path) == {"out/who": next(end for end in ends if end != "E154")}
    code = (
        "import sys\nfrom regweave.io import prepare_output\n"
        "with prepare_output(sys.argv[1]) as part:\n"
        "    (part / 'who').write_text('first')\n    print('begun', flush=True)\n    sys.stdin.read()\n"
    )
    out = tmp_path / "other"  # another process writes it
    words = [sys.executable, "-c", code, str(out)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "begun\n"
        with pytest.raises(RegweaveError, match=r"E154.*another command is writing"), prepare_output(out):
            pytest.fail("the second one began")
        first.stdin.close()
    assert texts(out) == {"who": "first"}


def write_claimed(path: Path, text: str, meanwhile=lambda: None, **options) -> None:
    require_absent(path, **options)
    meanwhile()
    with atomic_path(path) as part:
        part.write_text(text)


def test_a_file_that_appears_meanwhile_stays(tmp_path, monkeypatch):
    path = tmp_path / "m.json"

    def refused(**options):
        with pytest.raises(RegweaveError, match="E154"):
            write_claimed(path, "new", lambda: path.write_text("mine"), **options)
        assert texts(tmp_path) == {"m.json": "mine"}
        path.unlink()

    def no_links(*_):
        raise PermissionError(1, "no links here")

    refused()
    refused(overwrite=True)
    monkeypatch.setattr(os, "link", no_links)
    refused()
    write_claimed(path, "new")
    assert texts(tmp_path) == {"m.json": "new"}


def test_an_older_file_is_replaced_unless_it_changed(tmp_path):
    path = tmp_path / "m.json"
    path.write_text("old")
    write_claimed(path, "new", overwrite=True)
    assert texts(tmp_path) == {"m.json": "new"}
    with pytest.raises(RegweaveError, match="E154"):
        write_claimed(path, "newer", lambda: path.write_text("edited by hand"), overwrite=True)
    assert texts(tmp_path) == {"m.json": "edited by hand"}
    write_claimed(path, "newest", path.unlink, overwrite=True)
    assert texts(tmp_path) == {"m.json": "newest"}
    path.unlink()
    with pytest.raises(RegweaveError, match=r"E154.*kept as '") as caught:  # hours of work are kept
        write_claimed(path, "hours", lambda: path.write_text("mine"), keep=True)
    kept = Path(re.search(r"kept as '(.*)'", str(caught.value))[1])
    assert texts(tmp_path) == {"m.json": "mine", kept.name: "hours"}
    assert kept.suffix == ".json"


def _killed(folder: str) -> None:
    with prepare_output(Path(folder) / "out") as part:
        (part / "half").touch()
        require_absent(Path(folder) / "m.json")
        with atomic_path(Path(folder) / "m.json") as file:
            file.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_what_a_killed_process_left_is_removed_by_the_next_with_that_output(tmp_path):
    (tmp_path / ".out.part-notes").write_text("mine")
    (tmp_path / ".m.json.part-1").write_text("mine")
    child = multiprocessing.get_context("spawn").Process(target=_killed, args=(str(tmp_path),))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len([p for p in tmp_path.iterdir() if PART.fullmatch(p.name)]) == 2
    result(tmp_path / "other")
    assert len([p for p in tmp_path.iterdir() if PART.fullmatch(p.name)]) == 2
    result(tmp_path / "out")
    require_absent(tmp_path / "m.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".m.json.part-1", ".out.part-notes", "other", "out"]


def test_a_part_is_swept_when_its_process_has_ended_and_not_before(tmp_path):
    dead = tmp_path / f".out.part-{16 * '0'}"
    dead.mkdir()
    with prepare_output(tmp_path / "out") as part:
        assert not dead.exists()
        assert sweep(tmp_path)
        assert part.is_dir()
    assert not sweep(tmp_path)
    with (
        pytest.raises(RegweaveError) as caught,
        prepare_output(tmp_path / "out2") as part,
        atomic_path(part / "no" / "a"),
    ):
        pass  # an error names the output and not its hidden part
    assert caught.value.message.startswith(f"cannot write '{tmp_path / 'out2' / 'no' / 'a'}': No such file")


BAD = ["", ".", "bad\udcff", "a" * 256, "ä" * 128, "x/" * 2100 + "y", "nul\0l"]


def test_names_that_no_output_can_have(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for name in BAD:
        for use in (check_name, require_absent, lambda n: prepare_output(n).__enter__()):
            with pytest.raises(UsageError, match="E152"):
                use(name)
    for folder in ("/", tmp_path / "sub"):  # a root, the present folder
        with pytest.raises(UsageError, match="E152"), prepare_output(folder, overwrite=True):
            pytest.fail("the block must not run")
    assert list((tmp_path / "sub").iterdir()) == []
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for place in ("link", "pipe"):
        with pytest.raises(RegweaveError, match="E150"):
            require_absent(tmp_path / place, overwrite=place == "pipe")
    result(tmp_path / ("a" * 255))  # the longest that a file may have
    write_claimed(tmp_path / ("b" * 248 + ".nii.gz"), "x")
    assert sorted(len(p.name) for p in tmp_path.iterdir())[-2:] == [255, 255]


def test_one_run_at_a_time_works_in_a_folder(tmp_path):
    with working_folder(tmp_path / "ev", "tasks", "an evaluation", resume=False):
        with pytest.raises(RegweaveError, match="E155"), working_folder(tmp_path / "ev", "tasks", "x", resume=True):
            pytest.fail("the block must not run")
        (tmp_path / "ev" / "tasks" / ("0" * 64 + ".json")).write_text("{}")
    with pytest.raises(RegweaveError, match="E150"), working_folder(tmp_path / "ev", "tasks", "x", resume=False):
        pytest.fail("the block must not run")
    with working_folder(tmp_path / "ev", "tasks", "x", resume=True):
        pass


def test_a_run_that_finished_nothing_leaves_nothing_and_work_of_others_stays(tmp_path):
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), working_folder(tmp_path / "a" / "ev", "tasks", "x", resume=False):
            raise error
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "ev").mkdir()
    with pytest.raises(ValueError, match="no"), working_folder(tmp_path / "ev", "tasks", "x", resume=False):
        raise ValueError("no")
    assert list((tmp_path / "ev").iterdir()) == []
    with pytest.raises(ValueError, match="no"), working_folder(tmp_path / "ev", "tasks", "x", resume=False):
        fill(tmp_path / "ev", "no")
    assert "precious" in texts(tmp_path / "ev")
    store = tmp_path / "m.json.work"  # finished work goes, files of others stay
    store.mkdir()
    (store / "thesis.tex").write_text("years")
    with pytest.raises(RegweaveError, match="E150"), working_folder(store, "tasks", "x", resume=True):
        pytest.fail("the block must not run")
    (store / "thesis.tex").unlink()
    with working_folder(store, "tasks", "x", resume=False):
        (store / "tasks" / ("0" * 64 + ".json")).touch()
        (store / "tasks" / "notes.txt").write_text("mine")
    clear(store, "tasks")
    assert texts(store) == {"tasks/notes.txt": "mine"}
    (store / "tasks" / "notes.txt").unlink()
    clear(store, "tasks")
    assert not store.exists()


def test_a_present_folder_that_is_gone_ends_in_a_code(tmp_path):
    script = (
        "import os, sys; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); import regweave.cli as c; sys.exit(c.main())"
    )
    call = [sys.executable, "-c", script, "register", "a.nii", "b.nii", "-o", "out"]
    done = subprocess.run(call, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3
    assert "E153" in done.stderr


# Outputs are whole or absent.
GRID = Geometry((6, 5, 4), np.diag([-1.0, -2.0, 3.0, 1.0]))
RAMP = np.arange(120, dtype=np.float32).reshape(GRID.shape)


def fail_inside(context, error):
    with context as part:
        (part / "half.txt" if part.is_dir() else part).write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_files_and_folders_are_whole_or_absent(tmp_path, error):
    path = tmp_path / "a.nii.gz"
    with pytest.raises(error):
        fail_inside(atomic_path(path), error)
    target = tmp_path / "deep" / "result"
    with pytest.raises(error):
        fail_inside(prepare_output(target), error)
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    with pytest.raises(error):
        fail_inside(atomic_path(path), error)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
    with atomic_path(path) as part:
        assert part.parent.parent == tmp_path
        assert part.name.endswith(".nii.gz")
        part.write_text("new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["new"]
    with prepare_output(target) as folder:
        (folder / "a.txt").write_text("first")
        assert not target.exists()
    assert (target / "a.txt").read_text() == "first"
    with pytest.raises(RegweaveError, match="E150"), prepare_output(target):
        pytest.fail("the block must not run")
    with pytest.raises(error):
        fail_inside(prepare_output(target, overwrite=True), error)
    assert (target / "a.txt").read_text() == "first"
    with prepare_output(target, overwrite=True) as folder:
        (folder / "b.txt").write_text("second")
    assert not (target / "a.txt").exists()
    assert (target / "b.txt").read_text() == "second"
    assert list(target.parent.iterdir()) == [target]


def test_require_absent(tmp_path):
    path = tmp_path / "a.txt"
    require_absent(path)
    path.touch()
    with pytest.raises(RegweaveError, match="E150"):
        require_absent(path)
    require_absent(path, overwrite=True)
    with pytest.raises(RegweaveError, match="E150"):
        require_absent(tmp_path, overwrite=True)
    with pytest.raises(RegweaveError, match="E153"):
        require_absent(tmp_path / "none" / "a.txt")


def test_labels_types_suffixes_and_fill(tmp_path):
    for suffix in [".nii.gz", ".nrrd", ".mha"]:
        with pytest.raises(RegweaveError, match="E153"):
            write_image(tmp_path / "none" / f"x{suffix}", Volume(RAMP, GRID))
        assert not [p for p in tmp_path.iterdir() if p.name.endswith(suffix)]
        for dtype in (np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64):
            values = np.array([0, 1, np.iinfo(dtype).max], dtype=dtype)
            labels = LabelMap(values[np.random.default_rng(0).integers(0, 3, GRID.shape)], GRID)
            write_labels(tmp_path / f"x{suffix}", labels)
            back = read_labels(tmp_path / f"x{suffix}")
            assert back.data.dtype == dtype
            np.testing.assert_array_equal(back.data, labels.data)
    write_image(tmp_path / "x.nii", Volume(RAMP + 0.4, GRID), np.int16)
    image = nib.load(tmp_path / "x.nii")
    assert image.get_data_dtype() == np.int16
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), RAMP)
    write_image(tmp_path / "x.mha", Volume(RAMP, GRID), "uint8")
    assert sitk.ReadImage(str(tmp_path / "x.mha")).GetPixelIDTypeAsString() == "8-bit unsigned integer"
    with pytest.raises(RegweaveError, match="E152"):
        write_image(tmp_path / "y.nii", Volume(RAMP * 10, GRID), np.uint8)
    assert not (tmp_path / "y.nii").exists()
    for name in ("x.png", "x.mhd", "x"):
        with pytest.raises(RegweaveError, match="E152"):
            write_image(tmp_path / name, Volume(RAMP, GRID))
    assert fill_value(Volume(RAMP, GRID)) == 0
    assert fill_value(Volume(RAMP - 50, GRID)) == 0
    assert fill_value(Volume(RAMP, GRID, "ct")) == -1000


def test_packed_file_holds_what_nibabel_writes(tmp_path, monkeypatch):
    # Blocks of noise and of repeated values, few planes at a time, header and vectors of a field included.
    monkeypatch.setattr(deflate, "BLOCK", 1 << 17)
    monkeypatch.setattr(write, "SLAB_VOXELS", 3 * 70 * 60)
    rng = np.random.default_rng(4)
    grid = Geometry((70, 60, 50), np.diag([1.0, 2.0, 3.0, 1.0]))
    data = rng.normal(size=grid.shape).astype(np.float32)
    data[:35] = np.tile(np.arange(50, dtype=np.float32), (35, 60, 1))
    vectors = Field(rng.normal(size=(3, *grid.shape)).astype(np.float32), grid)
    for n in (1, 3):
        with kernel_threads(n):
            write_image(tmp_path / f"{n}.nii.gz", Volume(data, grid))
            write_displacement(tmp_path / f"{n}u.nii.gz", vectors)
    write_image(tmp_path / "1.nii", Volume(data, grid))
    write_displacement(tmp_path / "1u.nii", vectors)
    for name in ("1", "1u"):
        packed = (tmp_path / f"{name}.nii.gz").read_bytes()
        assert packed == (tmp_path / f"{name.replace('1', '3')}.nii.gz").read_bytes()
        assert gzip.decompress(packed) == (tmp_path / f"{name}.nii").read_bytes()
    noise = memoryview(np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)).cast("B")
    steps = memoryview(np.tile(np.arange(512, dtype=np.float32), 128)).cast("B")
    for raw, runs in ((noise, True), (steps, False)):
        packed = deflate._deflated(raw)
        assert zlib.decompressobj(-15).decompress(packed) == raw
        assert (packed == deflate._deflated(raw, zlib.Z_RLE)) == runs


def test_overlap():
    big = Geometry((40, 40, 40), np.diag([2.0, 2.0, 2.0, 1.0]))
    small = Geometry((10, 10, 10), np.eye(4))
    small.affine[:3, 3] = 30
    for fixed, moving in ((big, small), (small, big)):
        assert overlap_fraction(fixed, moving, np.eye(4)) == 1.0
    shift = np.eye(4)
    shift[0, 3] = 60.0
    assert overlap_fraction(big, big, shift) == pytest.approx(0.25, abs=0.02)
    assert check_overlap(big, big, shift) == overlap_fraction(big, big, shift)
    shift[0, 3] = 90.0
    with pytest.raises(RegweaveError) as caught:
        check_overlap(big, big, shift)
    assert caught.value.code == "E120"
    assert "90.0 mm" in caught.value.message
    assert "--init moments" in caught.value.hint
