"""Plug-in registry: metrics, losses, engines and predictors by name.

Code is loaded from four places and no other: the folders of this package, the folders that the environment variable
``REGWEAVE_PLUGINS`` names, installed packages that declare an entry point, and objects that the calling program adds.
A settings or model file only ever *names* a plug-in: it cannot bring code.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from regweave.errors import RegweaveError, UsageError

FOLDERS = "REGWEAVE_PLUGINS"
"""Environment variable: folders with ``metrics/NAME.py``, ``losses/NAME.py``, …, separated as in ``PATH``."""
MEANT = 5  # letters of a word that are looked for in the documentation of the plug-ins: fewer are found everywhere
T = TypeVar("T")  # interface of a kind of plug-in
REGISTRIES: dict[str, Registry[Any]] = {}  # every kind of plug-in


class Options(BaseModel):
    """Base of every plug-in's options: unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


@dataclass(frozen=True)
class Origin:
    """Provenance of a plug-in."""

    place: str  # `regweave`, the file, the package, or `this program`
    load: Callable[[], Any]  # returns the plug-in
    distribution: str | None = None  # installed package, where it comes from one
    version: str | None = None

    def record(self) -> dict[str, str | None]:
        """Return what a result or a model keeps of it; no path, which would reveal where a user keeps files."""
        place = Path(self.place).name if self.place.endswith(".py") else self.place
        return {"from": place, "distribution": self.distribution, "version": self.version}

    def __str__(self) -> str:
        return self.place if self.distribution is None else f"package {self.distribution} {self.version}"


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Plug-ins of one kind."""

    kind: str  # folder of the package, and the last word of the entry-point group: `metrics`
    noun: str  # what messages call one of them
    code: str  # code of the error for an unknown name
    parts: tuple[str, ...]  # names that a plug-in must have
    adapt: Callable[[Callable[..., Any]], Any] | None = None  # makes a plug-in of a bare function
    # values that a part may have, where a plug-in has it
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _added: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    _found: dict[str, tuple[object, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        REGISTRIES[self.kind] = self

    def available(self) -> tuple[str, ...]:
        """Names of the plug-ins, sorted."""
        return tuple(
            sorted(
                {*_modules(self.kind), *_in_folders(self.kind), *_in_packages(self.kind, tuple(sys.path)), *self._added}
            )
        )

    def get(self, name: str) -> T:
        """Return the plug-in of that name.

        Raises the registry's code where there is none; E179 where it has two, does not load, or lacks a part.
        """
        # What decides which plug-ins there are; files of a folder may change at any time.
        places = None if os.environ.get(FOLDERS) else (*sys.path, *self._added)
        known = self._found.get(name)
        if places is not None and known is not None and known[0] == places:
            return cast("T", known[1])
        origin = self.origin(name)
        try:
            found = origin.load()
        except RegweaveError:
            raise
        except (Exception, SystemExit) as error:
            problem = f"{self.noun} {name!r} from {origin} does not load: {type(error).__name__}: {error}"
            raise UsageError("E179", problem, "correct the plug-in, or take it away") from error
        missing = [part for part in self.parts if not hasattr(found, part)]
        if missing:
            problem = f"{self.noun} {name!r} from {origin} lacks {', '.join(missing)}"
            raise UsageError("E179", problem, f"a {self.noun} has {', '.join(self.parts)}")
        for part, allowed in self.words.items():
            if hasattr(found, part) and getattr(found, part) not in allowed:
                problem = f"{part} of {self.noun} {name!r} from {origin} is {getattr(found, part)!r}"
                raise UsageError("E179", problem, f"allowed: {', '.join(allowed)}; leave it out where none fits")
        self._found[name] = (places, found)
        return cast("T", found)

    def origin(self, name: str) -> Origin:
        """Return where the plug-in of that name comes from; one name for two is an error, never a silent choice."""
        module = f"regweave.{self.kind}.{name}"
        own = [Origin("regweave", lambda: importlib.import_module(module))] if name in _modules(self.kind) else []
        found: list[Origin] = [
            *own,
            *_in_folders(self.kind).get(name, ()),
            *_in_packages(self.kind, tuple(sys.path)).get(name, ()),
        ]
        if name in self._added:
            found.append(Origin("this program", lambda: self._added[name][1]))
        if not found:
            hint = f"{self._guess(name)}available: {', '.join(self.available())}"
            raise UsageError(self.code, f"unknown {self.noun} {name!r}", hint)
        if len(found) > 1:
            places = " and ".join(map(str, found))
            raise UsageError("E179", f"two plug-ins are called {name!r}: {places}", "rename one, or take it away")
        return found[0]

    def _guess(self, name: str) -> str:
        """Suggest a plug-in: one of a similar name, or whose first line of documentation begins with these letters."""
        names = self.available()
        near = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.6)
        if near:
            return f"did you mean {near[0]}? "
        asked = _letters(name)
        for known in _modules(self.kind):
            line = (importlib.import_module(f"regweave.{self.kind}.{known}").__doc__ or "").partition("\n")[0]
            if len(asked) >= MEANT and asked in _letters(line):
                return f"did you mean {known}? {known}: {line.rstrip('.')}; "
        return ""

    def add(self, name: str, plugin: Any) -> str:
        """Add an object, or a bare function, for the time of this process, and return its name.

        Processes that this one starts do not have it: for ``--workers`` and clusters use a folder or a package.
        """
        if name in self._added and self._added[name][0] is plugin:
            return name
        if name in self.available():
            place = self.origin(name)
            raise UsageError("E179", f"{self.noun} {name!r} is there already, from {place}", "take another name")
        bare = isinstance(plugin, FunctionType) and self.adapt is not None
        self._added[name] = (plugin, self.adapt(plugin) if bare else plugin)  # type: ignore[misc]
        return name

    def options(self, name: str, given: Mapping[str, Any]) -> Options:
        """Return options as the plug-in's own model; pydantic's error names what is unknown or out of bounds."""
        plugin: Any = self.get(name)
        checked: Options = plugin.Options.model_validate(dict(given))
        return checked


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def plugins_found() -> dict[str, dict[str, str]]:
    """Plug-ins that do not come with the package, by kind and name: where each is from."""
    return {
        kind: {name: str(registry.origin(name)) for name in registry.available() if name not in _modules(kind)}
        for kind, registry in REGISTRIES.items()
    }


def fingerprint() -> str:
    """Identity of the plug-ins that do not come with the package: with others, the same settings give other numbers."""
    digest = hashlib.sha256()
    for kind, registry in sorted(REGISTRIES.items()):
        for name in registry.available():
            origin = registry.origin(name)
            if origin.place == "regweave":
                continue
            source = Path(origin.place).read_bytes() if origin.place.endswith(".py") else b""
            digest.update(f"{kind}/{name} {origin.record()}\n".encode() + source)
    return digest.hexdigest()


@cache
def _modules(kind: str) -> tuple[str, ...]:
    names = (m.name for m in pkgutil.iter_modules(importlib.import_module(f"regweave.{kind}").__path__))
    return tuple(name for name in names if not name.startswith("_"))


def _in_folders(kind: str) -> dict[str, list[Origin]]:
    found: dict[str, list[Origin]] = {}
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        place = Path(folder).expanduser()
        if not place.is_dir():
            message = f"{FOLDERS} names {folder!r}, which is no folder"
            raise UsageError("E179", message, "correct or unset the variable")
        for path in sorted((place / kind).glob("[!_]*.py")):
            if not path.is_file():
                raise UsageError("E179", f"the plug-in '{path}' is no regular file", "take it away")
            found.setdefault(path.stem, []).append(Origin(str(path), partial(_module_of, path, kind)))
    return found


def _module_of(path: Path, kind: str) -> ModuleType:
    name = f"regweave_plugins.{kind}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does: dataclasses and pydantic look a module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@cache
def _in_packages(kind: str, path: tuple[str, ...]) -> dict[str, list[Origin]]:
    """Entry points of one kind; reading the metadata of all packages takes a while, so once for each ``sys.path``."""
    found: dict[str, list[Origin]] = {}
    for point in entry_points(group=f"regweave.{kind}"):
        package = point.dist
        told = (None, None) if package is None else (package.name, package.version)
        found.setdefault(point.name, []).append(Origin(point.value, point.load, *told))
    return found
