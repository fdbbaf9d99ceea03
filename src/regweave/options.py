"""Options that are declared once, as fields of a dataclass: their functions, documentation and commands are made here.

The annotations of the fields are never evaluated: they name images of libraries that may not be installed.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError

from regweave.errors import UsageError

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
WIDTH = 112  # columns of a paragraph of a docstring


def option(default: T, text: str, /, **hints: Any) -> T:
    """Declare an option: a field of a frozen dataclass with its default and its documentation; see `described`."""
    return field(default=default, metadata=described(text, **hints))


def described(text: str, /, **hints: Any) -> dict[str, Any]:
    """Return the metadata of a field: its documentation, of which the first sentence is the help of the command line.

    ``hints`` are for the command line alone: ``panel``, ``metavar``, ``flags``; ``typed`` is the type of the typed
    words, None for no option; ``complete`` is what completes them; ``table`` is true for an option that belongs into a
    settings file; ``absent`` is the value of a missing argument.
    """
    return {"help": text, "cli": hints}


def declared(options: type[Any]) -> list[Field[Any]]:
    """Return the fields of a class of options: its own first, then those of its bases."""
    inherited = {f.name for base in options.__mro__[1:] if hasattr(base, "__dataclass_fields__") for f in fields(base)}
    return sorted(fields(options), key=lambda f: f.name in inherited)


def called(options: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Let a function of one object of options take these options as its arguments.

    The function gets the signature of the class, and a section "Parameters" from the sentences of its fields.
    """

    def decorate(run: Callable[[T], R]) -> Callable[P, R]:
        assert isinstance(options, type)
        listed = declared(options)

        @wraps(run)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            known = [f.name for f in listed]
            for word in (word for word in kwargs if word not in known):
                near = difflib.get_close_matches(word, known, n=1)
                guess = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise TypeError(f"{run.__name__}() has no argument {word!r}; {guess}")
            return run(options(*args, **kwargs))

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [_parameter(f) for f in listed], return_annotation=run.__annotations__["return"]
        )
        call.__annotations__ = {f.name: f.type for f in listed} | {"return": run.__annotations__["return"]}
        summary, _, rest = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
        call.__doc__ = f"{summary}\n\nParameters\n----------\n{parameters_text(listed)}\n\n{rest}"
        return call

    return decorate


def parameters_text(listed: list[Field[Any]]) -> str:
    """Return the items of a section "Parameters" of numpydoc."""
    items = []
    for f in listed:
        default = "" if f.default is MISSING or f.default is None else f", default {f.default!r}"
        sentence = textwrap.fill(f.metadata["help"], WIDTH, initial_indent="    ", subsequent_indent="    ")
        items.append(f"{f.name} : {f.type}{default}\n{sentence}")
    return "\n".join(items)


def _parameter(f: Field[Any]) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if f.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = inspect.Parameter.empty if f.default is MISSING else f.default
    return inspect.Parameter(f.name, kind, default=default, annotation=f.type)


def type_of(options: type[Any], f: Field[Any]) -> Any:
    """Evaluate the annotation of a field."""
    owner = next(c for c in options.__mro__ if f.name in vars(c).get("__annotations__", {}))
    return eval(str(f.type), vars(sys.modules[owner.__module__]))


def in_table(options: type[Any]) -> list[Field[Any]]:
    """Return the options that belong into a settings file."""
    return [f for f in declared(options) if f.metadata["cli"].get("table")]


def table_values(options: type[Any], content: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Return the options of a table of a settings file; E194 names what is unknown or not allowed."""
    known, found = {f.name: f for f in in_table(options)}, {}
    for name, value in content.items():
        try:
            found[name] = TypeAdapter(type_of(options, known[name])).validate_python(value)
        except (KeyError, ValidationError) as error:
            what = "unknown" if isinstance(error, KeyError) else f"{value!r}: {error.errors()[0]['msg']}"
            hint = f"known are {', '.join(known)}; see `regweave presets show`"
            raise UsageError("E194", f"{name} in the table [{title}] of the settings is {what}", hint) from error
    return found


def table_text(listed: list[Field[Any]], title: str) -> str:
    """Return a table of a settings file with options at their defaults; those without one are comments."""
    lines = [f"[{title}]  # options of `regweave {title}`"]
    for f in listed:
        value = f"{f.name} = {json.dumps(f.default)}" if f.default is not None else f"# {f.name} ="
        lines.append(f"{value}  # {f.metadata['help']}")
    return "\n".join(lines) + "\n"
