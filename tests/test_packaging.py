"""What is published: one version, extras, links that work away from the sources, systems without POSIX."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import regweave
from regweave import extras
from regweave.errors import UsageError
from regweave.model import shipped_models
from regweave.training.options import TrainOptions

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["project"]["dynamic"]
    source = ROOT / PROJECT["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert re.findall(r'^__version__ = "(.*)"$', source.read_text(encoding="utf-8"), re.MULTILINE) == [
        regweave.__version__
    ]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == regweave.__version__


def test_the_readme_of_the_index_has_no_relative_link():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = r'\]\((?!https?:|#)|(?:src|srcset|href)="(?!https?:)'
    assert re.search(relative, text), "nothing to substitute: this test sees nothing"
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert re.findall(relative + r"[^)\"]*", text) == []


def test_every_shipped_model_names_its_data():
    table = (ROOT / "MODELS.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == sorted(shipped_models())
    assert "MODELS.md" in PROJECT["project"]["license-files"]


def test_extras_are_those_of_the_project_and_are_named_where_they_are_missing(monkeypatch, tmp_path):
    named = re.findall(r'extras\.load\([^)]*?"(\w+)", "(\w+)"', "".join(_sources()))
    named += re.findall(r'^DASK = \("(\w+)", "(\w+)"', "".join(_sources()), re.MULTILINE)
    offered = PROJECT["project"]["optional-dependencies"]
    base = {re.split(r"[<>=]", text)[0] for text in PROJECT["project"]["dependencies"]}
    assert {extra for _, extra in named} >= {"train", "cluster"}
    for package, extra in named:
        assert any(text.startswith(package) for text in offered[extra])
        assert package not in base
    TrainOptions().check()
    monkeypatch.setitem(sys.modules, "daqp", None)
    with pytest.raises(
        UsageError, match=r'E158: learning needs the package daqp,.*"regweave\[train\]".*pip install -e "\.\[train\]"'
    ):
        TrainOptions().check()
    (tmp_path / "broken_package.py").write_text("import nothing_of_this_name", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        extras.load("broken_package", "train", "a test")


def _sources() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in Path(regweave.__file__).parent.rglob("*.py")]


WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys
for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
import multiprocessing.util, subprocess, ctypes  # of the standard library, which has its own ways there
for module, names in {signal: ("SIGHUP", "pthread_sigmask"), os: ("sysconf", "sched_getaffinity", "fork")}.items():
    for name in names:
        delattr(module, name)
import regweave
others = ("__main__", "_unet_training")  # the last needs PyTorch
names = [m.name for m in pkgutil.walk_packages(regweave.__path__, "regweave.") if not m.name.endswith(others)]
for name in names:
    importlib.import_module(name)
import types
assert [n for n in regweave.__all__ if isinstance(getattr(regweave, n), types.ModuleType)] == ["examples"]
from regweave.cli import main
status = main(["about", "--json"])
assert len(names) > 100
sys.exit(status)
"""


def test_every_module_and_the_program_load_without_posix_and_modules_take_no_public_name():
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["version"] == regweave.__version__
