"""Static rules of the source tree, each a function from parsed modules to the places that break it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PLUG_INS = {"metrics", "losses", "engines", "predictors"}
"""Folders whose files answer to one contract, and so share the names of its parts."""
OPTION_CLASSES = ("TrainOptions", "LssvmOptions")
"""Classes that state the defaults of learning; whoever repeats one must repeat it right."""
LIBRARIES = {
    "_core": {"kernels"}, "SimpleITK": {"io"}, "nibabel": {"io"}, "typer": {"cli"}, "rich": {"cli"},
    "daqp": {"learning"}, "cma": {"learning"}, "pydicom": {"io"}, "contourpy": {"contours"}, "shapely": {"contours"},
}  # fmt: skip
INSIDE_FUNCTIONS = {"daqp", "cma"}
"""Libraries of an extra: loaded when they are used."""


@dataclass(frozen=True)
class Module:
    """One source file: its place below the package, and its syntax tree."""

    place: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def area(self) -> str:
        return self.place.split("/")[0].removesuffix(".py")

    @property
    def folder(self) -> str:
        return self.place.rpartition("/")[0]

    def nodes(self, kind: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kind))


Modules = Mapping[str, Module]
Rule = Callable[[Modules], Iterator[str]]


@cache
def modules_of(package: Path) -> dict[str, Module]:
    """Read all modules of a package."""
    paths = sorted(package.rglob("*.py"))
    places = (str(path.relative_to(package)) for path in paths)
    return {p: Module(p, path.read_text(encoding="utf-8")) for p, path in zip(places, paths, strict=True)}


def functions(tree: ast.AST, *, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield functions by qualified name."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = f"{inside}{node.name}" if named else inside.rstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, inside=f"{name}." if named else inside)


def imports(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield what a module imports, with the names of the functions around each import."""

    def walk(node: ast.AST, around: list[str]) -> Iterator[tuple[str, list[str]]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, around) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", around
            yield from ((f"{node.module}.{alias.name}", around) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        within = [*around, node.name] if isinstance(node, ast.FunctionDef) else around
        for child in ast.iter_child_nodes(node):
            yield from walk(child, within)

    return walk(tree, [])


def libraries_have_one_door(modules: Modules) -> Iterator[str]:
    """Libraries that only one folder imports; image libraries also serve the methods ``to_…``."""
    for module in modules.values():
        for name, around in imports(module.tree):
            library = name.removeprefix("regweave.").split(".")[0]
            homes = LIBRARIES.get(library)
            if homes is None or (library == "_core" and not name.startswith("regweave")):
                continue
            converts = library in {"SimpleITK", "nibabel"} and any(f.startswith("to_") for f in around)
            if module.area not in {*homes, library} and not converts:
                yield f"{module.place} imports {library}"
            elif library in INSIDE_FUNCTIONS and not around:
                yield f"{module.place} imports {library} at its top"


def class_names_are_unique(modules: Modules) -> Iterator[str]:
    """Public class names that stand for one class each; parts of a plug-in's contract may repeat."""
    homes = defaultdict(list)
    for module in modules.values():
        for node in module.nodes(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            if not node.name.startswith("_") and not (node.name == "Options" and module.area in PLUG_INS):
                homes[node.name].append(module.place)
    yield from (name for name, places in homes.items() if len(places) > 1)


def exported(tree: ast.Module) -> Iterator[str]:
    """Yield the names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            yield from ast.literal_eval(node.value)


def defaults_agree(modules: Modules) -> Iterator[str]:
    """Defaults of learning as its options state them, wherever a signature repeats one."""
    stated: dict[str, set[str]] = defaultdict(set)
    classes = [(m, node) for m in modules.values() for node in m.nodes(ast.ClassDef)]
    for _, node in classes:
        assert isinstance(node, ast.ClassDef)
        if node.name in OPTION_CLASSES:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and line.value is not None:
                    stated[ast.unparse(line.target)].add(ast.unparse(line.value))
    for module in modules.values():
        for name, function in functions(module.tree):
            arguments = function.args
            positional = [*arguments.posonlyargs, *arguments.args]
            given = dict(zip(reversed([a.arg for a in positional]), reversed(arguments.defaults), strict=False))
            given |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d}
            for option, value in given.items():
                known = stated.get(option.upper() if option == "c" else option)
                literal = isinstance(value, ast.Constant) and not isinstance(value.value, str)
                if known and literal and not any(_same(ast.unparse(value), text) for text in known):
                    yield f"{module.place} {name}: {option} = {ast.unparse(value)}"


def _same(a: str, b: str) -> bool:
    try:
        return bool(ast.literal_eval(a) == ast.literal_eval(b))
    except ValueError:
        return a == b


def global_state_has_one_home(modules: Modules) -> Iterator[str]:
    """State of the whole process that one file each may set."""
    writers: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                for name in ("random.seed", "set_threads"):
                    if called.endswith(name):
                        writers[name].add(module.place)
            elif isinstance(node, ast.Assign) and any(ast.unparse(t).endswith("showwarning") for t in node.targets):
                writers["showwarning"].add(module.place)
    for name, places in writers.items():
        if len(places) > 1:
            yield from (f"{name} in {place}" for place in places)


def weight_tables_are_derived(modules: Modules) -> Iterator[str]:
    """Weight tables built by hand in their own file and in the model's reader alone."""
    for module in modules.values():
        own = module.place in {"types/weights.py", "model/model.py", "model.py"}
        calls = sum(
            isinstance(node, ast.Call) and ast.unparse(node.func) in {"WeightTable", "Weights"}
            for node in ast.walk(module.tree)
        )
        if calls and not own:
            yield module.place


RULES: dict[str, Rule] = {
    "libraries": libraries_have_one_door,
    "classes": class_names_are_unique,
    "defaults": defaults_agree,
    "global": global_state_has_one_home,
    "weights": weight_tables_are_derived,
}
