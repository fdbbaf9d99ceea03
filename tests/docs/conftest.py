"""A folder with small phantoms under the names that the pages use."""

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_body import TODAY, Body, write_study
from made_dicom import dose, save

ROOT = Path(__file__).parents[2]
TESTS = ("tests/metrics/test_conformance.py", "tests/losses/test_conformance.py", "pyproject.toml")


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def script() -> Callable[[str], Any]:
    """Load a Python file of the docs folder by its name."""
    return load


@pytest.fixture(scope="session")
def phantom_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every page starts from; copied, never written to."""
    folder = tmp_path_factory.mktemp("docs")
    load("_phantoms").write_phantoms(folder, spacing_mm=(4.0, 4.0, 4.0))  # a network computes voxels of its own size
    for name in TESTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    made = Body(along=tuple(3.0 * k for k in range(10)))
    write_study(folder, made, replace(TODAY, along=made.along))
    for old, new in (("plan", "PLAN/ct"), ("today", "TODAY"), ("PLAN/ct/set.dcm", "PLAN/rtstruct.dcm")):
        (folder / new).parent.mkdir(exist_ok=True)
        (folder / old).rename(folder / new)
    save(folder / "PLAN" / "dose.dcm", dose(made))
    return folder
