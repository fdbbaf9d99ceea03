"""Standard streams that are closed or full: the work is done, and the status says what was lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from phantoms import make_phantom
from regweave.cli import main
from regweave.cli.app import guarded_streams
from regweave.io import write_image

REGWEAVE = f"'{sys.executable}' -c 'import sys; from regweave.cli import main; sys.exit(main())'"
linux = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    pair = make_phantom(shape=(12, 12, 12), spacing_mm=(12.0, 12.0, 12.0)).pair
    write_image(folder / "f.nii", pair.fixed)
    write_image(folder / "m.nii", pair.moving)
    return folder


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True, cwd=folder)


@linux
@pytest.mark.parametrize(("streams", "status"), [("<&- >&- 2>&-", 0), ("2>/dev/full", 0), (">/dev/full", 3)])
def test_a_registration_is_done_whatever_the_streams(images, tmp_path, streams, status):
    out = tmp_path / "out"
    done = shell(f"{REGWEAVE} register f.nii m.nii -o {out} --preset paper --write transform {streams}", images)
    assert done.returncode == status, done.stderr
    assert (out / "result.json").is_file()
    assert ("E153: cannot write to standard output" in done.stderr) == (status == 3)
    for file in out.iterdir():  # a closed stream's number must not have become that of a file
        assert b"step 1: energy" not in file.read_bytes()


@linux
def test_what_cannot_be_printed_is_an_error_and_a_reader_that_has_seen_enough_is_none(tmp_path):
    done = shell(f"{REGWEAVE} --help > /dev/full", tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("error E153: cannot write to standard output: No space left on device")
    assert len(done.stderr.splitlines()) == 2
    done = shell(f"{REGWEAVE} presets show default | head -c 1; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr, len(done.stdout)) == (0, "", 1)


def test_characters_that_a_terminal_lacks_are_shown_by_their_numbers(tmp_path):
    script = "import sys; from regweave.cli.app import guarded_streams as g\nwith g(): print(chr(8804), chr(0xDCFF))"
    line = f"PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii '{sys.executable}' -c '{script}'"
    done = shell(line, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2264 \\udcff\n", "")


def test_control_characters_of_names_do_not_reach_a_terminal(capsys):
    name = "a\x1b[2J\x9b31m\r\u202eb\x7f"
    with guarded_streams():
        sys.stdout.write(json.dumps({"name": name}, ensure_ascii=False) + "\n")
        sys.stderr.write(f"\r{name}\n")
        Console(force_terminal=True).print("colour", style="red")
    out, err = capsys.readouterr()
    written, coloured = out.splitlines()
    assert json.loads(written) == {"name": name}
    assert err == "\ra\\u001b[2J\\u009b31m\\u000d\\u202eb\\u007f\n"
    assert "\x1b" not in written
    assert "\x1b[" in coloured


def test_streams_come_back(capsys):
    before = sys.stdout, sys.stderr
    assert main(["presets", "list"]) == 0
    assert (sys.stdout, sys.stderr) == before
    with pytest.raises(ZeroDivisionError), guarded_streams():
        raise ZeroDivisionError
    assert (sys.stdout, sys.stderr) == before
