"""Outputs and other people's files: only what this program wrote, and what stood there at the start, is replaced."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regweave.errors import RegweaveError, UsageError
from regweave.io import atomic_path, owned_path, prepare_output, require_absent
from regweave.io.disk import outputs
from regweave.io.disk.outputs import PART, check_name, clear, sweep, working_folder


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


@pytest.mark.parametrize("name", ["notes.txt", "view/notes.txt", "deep/er/notes.txt"])
def test_a_file_of_the_user_in_a_result_is_never_deleted(tmp_path, name):
    out = tmp_path / "out"
    result(out)
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    with pytest.raises(RegweaveError, match=rf"E150.*did not write: .*'{name}'"):
        result(out, "new", overwrite=True)
    assert texts(out) == {**OURS, name: "mine"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_and_a_link_of_the_user_count_too(tmp_path):
    result(tmp_path / "out")
    (tmp_path / "out" / "mine").mkdir()
    with pytest.raises(RegweaveError, match="'mine/'"):
        result(tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "mine").rmdir()
    (tmp_path / "out" / "mine").symlink_to(tmp_path)
    with pytest.raises(RegweaveError, match="'mine'"):
        result(tmp_path / "out", overwrite=True)


def test_a_result_without_a_list_is_left_alone(tmp_path):
    result(tmp_path / "out")
    (tmp_path / "out" / outputs.MARK).write_text("")
    with pytest.raises(RegweaveError, match="E150"):
        result(tmp_path / "out", "new", overwrite=True)
    assert texts(tmp_path / "out") == OURS
    fill(tmp_path / "home")
    (tmp_path / "file").touch()
    for name in ("home", "file"):
        with pytest.raises(RegweaveError, match="E150"):
            result(tmp_path / name, "new", overwrite=True)
    assert texts(tmp_path / "home") == {"precious": "mine"}


def test_a_page_made_later_belongs_to_the_result(tmp_path):
    result(tmp_path / "out")
    with owned_path(tmp_path / "out" / "report.html") as part:
        part.write_text("page")
    with owned_path(tmp_path / "out" / "report.html") as part:
        part.write_text("page again")
    result(tmp_path / "out", "new", overwrite=True)
    assert texts(tmp_path / "out") == {"view/a.bin": "new", "result.json": "new"}


def test_a_page_of_the_user_is_not_replaced(tmp_path):
    result(tmp_path / "out")
    (tmp_path / "out" / "report.html").write_text("mine")
    with pytest.raises(RegweaveError, match="E154"), owned_path(tmp_path / "out" / "report.html"):
        pytest.fail("the block must not run")
    assert (tmp_path / "out" / "report.html").read_text() == "mine"


def test_results_inside_a_result_are_ours(tmp_path):
    with prepare_output(tmp_path / "out") as part:
        result(part / "pages" / "a")
    with owned_path(tmp_path / "out" / "pages" / "a" / "report.html") as page:
        page.write_text("page")
    result(tmp_path / "out", overwrite=True)
    assert texts(tmp_path / "out") == OURS


def test_a_folder_that_appears_meanwhile_is_an_error(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RegweaveError, match=r"E154.*another -o"), prepare_output(out):
        fill(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert texts(out) == {"precious": "mine"}


def test_a_file_that_appears_in_place_of_a_folder_is_an_error(tmp_path):
    with pytest.raises(RegweaveError, match="E154"), prepare_output(tmp_path / "out"):
        (tmp_path / "out").write_text("mine")
    assert texts(tmp_path) == {"out": "mine"}


def test_an_empty_folder_that_is_filled_meanwhile_is_an_error(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RegweaveError, match="E154"), prepare_output(out):
        (out / "precious").write_text("mine")
    assert texts(tmp_path) == {"out/precious": "mine"}


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


def test_a_folder_that_another_process_writes_is_refused_at_once(tmp_path):
    code = (
        "import sys\nfrom regweave.io import prepare_output\n"
        "with prepare_output(sys.argv[1]) as part:\n"
        "    (part / 'who').write_text('first')\n    print('begun', flush=True)\n    sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "out")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "begun\n"
        with pytest.raises(RegweaveError, match=r"E154.*another command is writing"), prepare_output(tmp_path / "out"):
            pytest.fail("the second one began")
        first.stdin.close()
    assert texts(tmp_path) == {"out/who": "first"}


def write_claimed(path: Path, text: str, meanwhile=lambda: None, **options) -> None:
    require_absent(path, **options)
    meanwhile()
    with atomic_path(path) as part:
        part.write_text(text)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_appears_meanwhile_stays(tmp_path, overwrite):
    path = tmp_path / "m.json"
    with pytest.raises(RegweaveError, match="E154"):
        write_claimed(path, "new", lambda: path.write_text("mine"), overwrite=overwrite)
    assert texts(tmp_path) == {"m.json": "mine"}


def test_a_file_that_appears_meanwhile_stays_without_links(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "m.json"
    with pytest.raises(RegweaveError, match="E154"):
        write_claimed(path, "new", lambda: path.write_text("mine"))
    assert texts(tmp_path) == {"m.json": "mine"}
    path.unlink()
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


def test_hours_of_work_are_kept_under_a_name_that_the_error_tells(tmp_path):
    path = tmp_path / "m.json"
    with pytest.raises(RegweaveError, match=r"E154.*kept as '") as caught:
        write_claimed(path, "hours", lambda: path.write_text("mine"), keep=True)
    kept = Path(re.search(r"kept as '(.*)'", str(caught.value))[1])
    assert texts(tmp_path) == {"m.json": "mine", kept.name: "hours"}
    assert kept.suffix == ".json"


def test_links_and_pipes_are_no_places_for_outputs(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RegweaveError, match="E150"):
        require_absent(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RegweaveError, match="E150"):
        require_absent(tmp_path / "pipe", overwrite=True)


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


def test_an_error_names_the_output_and_not_its_hidden_part(tmp_path):
    with (
        pytest.raises(RegweaveError) as caught,
        prepare_output(tmp_path / "out") as part,
        atomic_path(part / "no" / "a"),
    ):
        pass
    assert caught.value.message.startswith(f"cannot write '{tmp_path / 'out' / 'no' / 'a'}': No such file")


BAD = ["", ".", "bad\udcff", "a" * 256, "ä" * 128, "x/" * 2100 + "y", "nul\0l"]


@pytest.mark.parametrize("name", BAD, ids=range(len(BAD)))
def test_names_that_no_output_can_have(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for use in (check_name, require_absent, lambda n: prepare_output(n).__enter__()):
        with pytest.raises(UsageError, match="E152"):
            use(name)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_that_a_file_may_have_works(tmp_path):
    result(tmp_path / ("a" * 255))
    write_claimed(tmp_path / ("b" * 248 + ".nii.gz"), "x")
    assert sorted(len(p.name) for p in tmp_path.iterdir()) == [255, 255]


def test_a_root_is_no_output_folder():
    with pytest.raises(UsageError, match="E152"), prepare_output("/", overwrite=True):
        pytest.fail("the block must not run")


def test_the_present_folder_is_no_output(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(UsageError, match="E152"), prepare_output(tmp_path / "sub"):
        pytest.fail("the block must not run")


def test_one_run_at_a_time_works_in_a_folder(tmp_path):
    with working_folder(tmp_path / "ev", "tasks", "an evaluation", resume=False):
        with pytest.raises(RegweaveError, match="E155"), working_folder(tmp_path / "ev", "tasks", "x", resume=True):
            pytest.fail("the block must not run")
        (tmp_path / "ev" / "tasks" / ("0" * 64 + ".json")).write_text("{}")
    with pytest.raises(RegweaveError, match="E150"), working_folder(tmp_path / "ev", "tasks", "x", resume=False):
        pytest.fail("the block must not run")
    with working_folder(tmp_path / "ev", "tasks", "x", resume=True):
        pass


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path):
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


def test_finished_work_goes_and_the_files_of_others_stay(tmp_path):
    store = tmp_path / "m.json.work"
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
    assert list(tmp_path.iterdir()) == []


def test_a_present_folder_that_is_gone_ends_in_a_code(tmp_path):
    script = (
        "import os, sys; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); import regweave.cli as c; sys.exit(c.main())"
    )
    call = [sys.executable, "-c", script, "register", "a.nii", "b.nii", "-o", "out"]
    done = subprocess.run(call, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3
    assert "E153" in done.stderr
