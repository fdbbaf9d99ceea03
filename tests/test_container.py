"""The container and its description: made from the command, and from files that are there."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from regweave.cli import main

FOLDER = Path(__file__).parents[1] / "container"
BOSH = shutil.which("bosh")


def test_the_description_is_that_of_the_command(capsys):
    spec = importlib.util.spec_from_file_location("make_boutiques", FOLDER / "make_boutiques.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (FOLDER / "regweave.json").read_text(encoding="utf-8") == made.text(), "run container/make_boutiques.py"
    assert main(["bids", "--help"]) == 0
    shown = capsys.readouterr().out
    flags = [one["command-line-flag"] for one in json.loads(made.text())["inputs"] if "command-line-flag" in one]
    assert len(flags) > 5
    assert all(flag in shown for flag in flags)


def test_the_container_is_made_of_files_that_are_there():
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert len(copied) > 5
    assert [word for word in copied if not (FOLDER.parent / word).exists()] == []
    assert '["regweave", "bids"]' in text


@pytest.mark.skipif(BOSH is None, reason="boutiques is not installed")
def test_boutiques_accepts_the_description():
    done = subprocess.run([str(BOSH), "validate", str(FOLDER / "regweave.json")], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
