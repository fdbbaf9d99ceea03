"""Checks of the sources that no tool makes; layers are contracts of import-linter, in pyproject.toml."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regweave"
# The brackets keep the pattern from finding itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:[w]ork|[r]oot)/")


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
    # A count may have the name too, and range(levels) is no loop over a schedule.
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return False
    return any(isinstance(n, ast.Name) and n.id == "levels" for n in ast.walk(node))


def sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def test_nothing_is_pickled() -> None:
    assert [name for name, source in sources().items() if uses_pickle(source)] == []
    assert uses_pickle("import pickle")
    assert uses_pickle("from pickle import load")
    assert uses_pickle("np.load(p, allow_pickle=True)")
    assert not uses_pickle("np.load(p, allow_pickle=False)")


def test_the_coarse_to_fine_loop_exists_once() -> None:
    loops = {name: found for name, source in sources().items() if (found := level_loops(source))}
    assert list(loops) == ["registration/align.py"]
    assert len(loops["registration/align.py"]) == 1
    assert level_loops("def f(s):\n    for i, level in enumerate(s.levels):\n        g(level)") == [2]
    assert level_loops("def f(levels):\n    for level in levels:\n        g(level)") == [2]
    assert level_loops("for i in range(len(s.levels)):\n    g(i)") == [1]
    assert level_loops("for i in range(levels):\n    g(i)") == []
    assert level_loops("def f(s):\n    return [g(level) for level in s.levels]") == []


def test_no_file_names_a_machine_path() -> None:
    # In a worktree of git, .git is a file with the path of its repository.
    paths = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    for folder in ("src", "core", "tests", "docs", "benchmark", "papers"):
        paths += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    found = []
    for path in paths:
        if path.suffix not in {".so", ".part", ".tmp"}:
            text = path.read_bytes().decode("utf-8", errors="ignore")
            found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert found == []
    assert MACHINE_PATH.search("open('/" + "work/shared/x')")
    assert not MACHINE_PATH.search("https://example.org/" + "work/x")
