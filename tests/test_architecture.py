"""Checks that the tree keeps its shape: data flows one way, and a rule that matters has no second home."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import house_rules

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regweave"

BASE = ("types", "errors", "notices", "extras", "registry", "kernels")
ORDER = (
    "io",
    "spatial",
    "contours",
    "metrics",
    "losses",
    "engines",
    "energy",
    "config",
    "registration",
    "predictors",
    "learning",
    "model",
    "measures",
    "datasets",
    "pipeline",
    "clinic",
    "jobs",
    "training",
    "study",
    "report",
    "api",
    "cli",
)
# Folders that see less than all that stands above them.
NARROW = {
    "types": set(),
    "errors": set(),
    "_core": {"errors"},
    "extras": {"errors"},
    "notices": {"errors"},
    "registry": {"errors"},
    "kernels": {"types", "errors", "notices", "_core"},
    "metrics": {*BASE, "spatial"},
    "losses": {*BASE, "spatial", "metrics"},
    "engines": {*BASE},
    "measures": {"types", "errors", "notices", "kernels", "io", "spatial"},
}
# A result shows itself, images and transforms convert themselves: such methods reach up when they are called.
WITHIN_METHODS = {
    ("pipeline/result.py", "report"),
    ("types/images.py", "io"),
    ("types/transform.py", "io"),
    ("types/transform.py", "spatial"),
}
TREE = sorted(PACKAGE.rglob("*.py"))
DEBTS = Path(__file__).with_name("house_debts.txt")
"""What breaks a rule of `house_rules` today, a line each: the list may only become shorter."""
HEAVY = (
    "SimpleITK",
    "nibabel",
    "pydicom",
    "shapely",
    "contourpy",
    "numpy",
    "scipy",
    "daqp",
    "typer",
    "rich",
    "pydantic",
)
LIGHT = "import regweave, sys; print(*sys.modules)"
ANYWHERE = """
import signal, sys
del signal.SIGHUP
sys.modules["resource"] = None
import regweave
regweave.register, regweave.MetricLearner
from regweave.cli import main
sys.exit(main(["--version"]))
"""
"""A start of the program where there is neither ``resource`` nor ``SIGHUP``, as on Windows."""


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


@pytest.mark.parametrize("rule", house_rules.RULES)
def test_the_house_keeps_its_rules(rule: str) -> None:
    found = set(house_rules.RULES[rule](house_rules.modules_of(PACKAGE)))
    lines = DEBTS.read_text(encoding="utf-8").splitlines()
    owed = {line.removeprefix(f"{rule}: ") for line in lines if line.startswith(f"{rule}: ")}
    meaning = (house_rules.RULES[rule].__doc__ or "").split("\n", maxsplit=1)[0]
    assert not found - owed, f"{meaning} Broken by: {sorted(found - owed)}"
    assert not owed - found, f"paid: delete these lines of '{rule}' from {DEBTS.name}: {sorted(owed - found)}"


def test_every_debt_belongs_to_a_rule() -> None:
    lines = DEBTS.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert {line.split(": ")[0] for line in lines} <= set(house_rules.RULES)


@pytest.mark.parametrize(
    ("rule", "place", "source", "expected"),
    [
        ("libraries", "energy/a.py", "from regweave import _core", ["energy/a.py imports _core"]),
        ("libraries", "energy/a.py", "from regweave._core import warp", ["energy/a.py imports _core"]),
        ("libraries", "kernels/a.py", "from regweave import _core", []),
        ("libraries", "types/a.py", "class V:\n def to_sitk(self):\n  import SimpleITK", []),
        ("libraries", "types/a.py", "import SimpleITK as sitk", ["types/a.py imports SimpleITK"]),
        ("libraries", "learning/a.py", "import daqp", ["learning/a.py imports daqp at its top"]),
        ("libraries", "learning/a.py", "def f():\n import daqp", []),
        ("classes", "io/a.py", "class Same: ...", ["Same"]),
        ("defaults", "io/a.py", "def f(eta: float = 3.0, rounds=1): ...", ["io/a.py f: eta = 3.0"]),
        ("defaults", "io/a.py", "def f(*, eta: float = 1e1): ...", []),
        ("global", "io/a.py", "np.random.seed(1)", ["random.seed in io/a.py", "random.seed in other/same.py"]),
        ("weights", "io/a.py", "t = WeightTable(m, x, y, 1.0)", ["io/a.py"]),
    ],
)
def test_rules_on_made_up_sources(rule: str, place: str, source: str, expected: list[str]) -> None:
    sources = {
        "__init__.py": '"""Root."""\n__all__ = ["public"]',
        "other/same.py": '"""Same."""\nclass Same:\n """Class."""\nnp.random.seed(0)',
        "learning/options.py": '"""Options."""\nclass LssvmOptions:\n """Options."""\n eta: float = 10.0',
        place: f'"""Module."""\n{source}',
    }
    modules = {name: house_rules.Module(name, text) for name, text in sources.items()}
    assert sorted(set(house_rules.RULES[rule](modules))) == expected


def test_the_package_is_light() -> None:
    run = subprocess.run([sys.executable, "-c", LIGHT], text=True, capture_output=True, check=True)
    assert [name for name in HEAVY if name in run.stdout.split()] == []


def test_the_program_starts_without_what_unix_alone_has() -> None:
    run = subprocess.run([sys.executable, "-c", ANYWHERE], text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


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
