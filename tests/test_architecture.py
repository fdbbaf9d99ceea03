"""Checks that the tree keeps its shape: data flows one way, and a rule that matters has no second home."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regweave"

BASE = ("types", "errors", "notices", "kernels")
ORDER = (
    "io",
    "spatial",
    "metrics",
    "losses",
    "engines",
    "energy",
    "config",
    "registration",
    "predictors",
    "learning",
    "models",
    "measures",
    "datasets",
    "pipeline",
    "batch",
    "training",
    "study",
    "report",
    "cli",
)
# Folders that see less than all that stands above them.
NARROW = {
    "types": set(),
    "errors": set(),
    "_core": {"errors"},
    "notices": {"errors"},
    "kernels": {"types", "errors", "notices", "_core"},
    "metrics": {*BASE, "spatial"},
    "losses": {*BASE, "spatial", "metrics"},
    "engines": {*BASE},
    "measures": {"types", "errors", "notices", "io", "spatial"},
}
# A result shows itself: the methods that make a page reach it when they are called.
WITHIN_METHODS = {("pipeline/result.py", "report")}
TREE = sorted(PACKAGE.rglob("*.py"))


def may_import(area: str) -> set[str]:
    if area in NARROW:
        return NARROW[area]
    return {*BASE, *ORDER[: ORDER.index(area)]}


def area_of(path: Path) -> str:
    """Folder of a module, or its own name where it stands at the top: ``types``, ``io``, …"""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_areas(tree: ast.AST, path: Path) -> Iterator[str]:
    """Areas of regweave that a module imports; ``regweave`` itself where a name comes from the root."""
    package = ("regweave", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*prefix, *filter(None, [node.module])))
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "regweave" else [module]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "regweave" and rest != ["__version__"]:
                yield rest[0] if rest and rest[0] in {*BASE, *ORDER, "_core"} else "regweave"


def layer_errors(source: str, path: Path) -> list[str]:
    """What a module imports and should not; its own folder is always open to it."""
    area = area_of(path)
    if area in {"__init__", "__main__"}:
        return []
    allowed = may_import(area) | {area} | ({"regweave"} if area == "cli" else set())
    found = imported_areas(ast.parse(source), path)
    where = path.relative_to(PACKAGE).as_posix()
    allowed |= {other for file, other in WITHIN_METHODS if file == where}
    return [f"{area} imports {other}" for other in found if other not in allowed]


def print_calls(source: str) -> int:
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return sum(isinstance(func, ast.Name) and func.id == "print" for func in calls)


def uses_pickle(source: str) -> bool:
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] in forbidden for a in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in forbidden:
            return True
        switch = isinstance(node, ast.keyword) and node.arg == "allow_pickle"
        if switch and not (isinstance(node.value, ast.Constant) and node.value.value is False):
            return True
    return False


def level_loops(source: str) -> list[int]:
    """Lines of the ``for`` statements over the levels of a schedule."""
    loops = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For))
    return [loop.lineno for loop in loops if mentions_levels(loop.iter)]


def mentions_levels(node: ast.expr) -> bool:
    if any(isinstance(n, ast.Attribute) and n.attr in {"levels", "levels_for"} for n in ast.walk(node)):
        return True
    # A count may bear the name too, and range(levels) is no walk over a schedule.
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return False
    return any(isinstance(n, ast.Name) and n.id == "levels" for n in ast.walk(node))


def has_future_import(source: str) -> bool:
    """Hold for a module that postpones annotations, or has nothing but a docstring."""
    body = ast.parse(source).body
    code = [node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    imports = [node for node in code if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return not code or any(alias.name == "annotations" for node in imports for alias in node.names)


# The brackets keep the pattern from finding itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:[w]ork|[r]oot)/")


def committed_files() -> list[Path]:
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in ("src", "core", "tests", "docs", "examples", "benchmark"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    skipped = {".so", ".pyc", ".part", ".tmp"}
    return [path for path in files if path.suffix not in skipped and "__pycache__" not in path.parts]


@pytest.mark.parametrize("path", TREE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_keeps_the_rules(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    area = area_of(path)
    assert area in {*NARROW, *BASE, *ORDER, "__init__", "__main__"}, f"give {area} its place in ORDER"
    assert layer_errors(source, path) == []
    assert area == "cli" or print_calls(source) == 0
    assert not uses_pickle(source)
    assert has_future_import(source)


def test_the_coarse_to_fine_loop_has_one_home() -> None:
    loops = {
        str(path.relative_to(PACKAGE)): found
        for path in TREE
        if (found := level_loops(path.read_text(encoding="utf-8")))
    }
    assert list(loops) == ["registration/align.py"]
    assert len(loops["registration/align.py"]) == 1


def test_phantom_needs_nothing_but_the_types() -> None:
    path = PACKAGE / "datasets" / "phantom.py"
    assert set(imported_areas(ast.parse(path.read_text(encoding="utf-8")), path)) == {"types"}


def test_no_file_names_a_machine_path() -> None:
    found = []
    for path in committed_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("where", "source", "expected"),
    [
        ("energy/a.py", "from regweave.registration import align", ["energy imports registration"]),
        ("energy/a.py", "import regweave.registration.align as w", ["energy imports registration"]),
        ("energy/a.py", "from regweave import registration", ["energy imports registration"]),
        ("energy/a.py", "from ..registration.align import warp", ["energy imports registration"]),
        ("energy/a.py", "def f():\n    from regweave.io import read_image", []),
        ("registration/a.py", "from regweave.measures import dice", ["registration imports measures"]),
        ("registration/a.py", "import regweave", ["registration imports regweave"]),
        ("registration/a.py", "from regweave import register", ["registration imports regweave"]),
        ("registration/a.py", "from regweave import __version__", []),
        ("engines/a.py", "from regweave.spatial.control_grid import nodes", ["engines imports spatial"]),
        ("engines/a.py", "from regweave.kernels import solvers\nfrom regweave.types import Energy", []),
        ("engines/a.py", "from regweave import _core", ["engines imports _core"]),
        ("spatial/a.py", "from regweave._core import warp", ["spatial imports _core"]),
        ("kernels/a.py", "from regweave._core import warp", []),
        ("engines/a.py", "from regweave.engines._common import x\nfrom .b import y", []),
        ("metrics/a.py", "from regweave.io.images import read_image", ["metrics imports io"]),
        ("losses/a.py", "from regweave.io import read_image", ["losses imports io"]),
        ("measures/a.py", "from regweave.registration import align", ["measures imports registration"]),
        ("measures/a.py", "from regweave.spatial import warp\nimport numpy", []),
        ("types.py", "from regweave.errors import RegweaveError", ["types imports errors"]),
        ("cli/a.py", "import regweave\nfrom regweave.report import page", []),
        ("report/a.py", "from regweave.cli.app import main", ["report imports cli"]),
    ],
)
def test_layer_checker_on_made_up_sources(where: str, source: str, expected: list[str]) -> None:
    assert layer_errors(source, PACKAGE / where) == expected


def test_other_checkers_on_made_up_sources() -> None:
    assert print_calls("def f():\n    print('x')") == 1
    assert print_calls("console.print('x')") == 0
    assert uses_pickle("import pickle")
    assert uses_pickle("from pickle import load")
    assert uses_pickle("np.load(p, allow_pickle=True)")
    assert not uses_pickle("np.load(p, allow_pickle=False)")
    assert level_loops("def f(s):\n    for i, level in enumerate(s.levels):\n        g(level)") == [2]
    assert level_loops("def f(levels):\n    for level in levels:\n        g(level)") == [2]
    assert level_loops("for i in range(len(s.levels)):\n    g(i)") == [1]
    assert level_loops("for i in range(levels):\n    g(i)") == []
    assert level_loops("def f(s):\n    return [g(level) for level in s.levels]") == []
    assert not has_future_import("import numpy as np")
    assert has_future_import('"""Only words."""')
    assert MACHINE_PATH.search("open('/" + "work/shared/x')")
    assert not MACHINE_PATH.search("https://example.org/" + "work/x")
