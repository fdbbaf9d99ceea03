"""Options that are declared once, as fields of a dataclass: their functions, documentation and commands are made here.

The annotations of the fields are never evaluated: they name images of libraries that may not be installed.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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


def declared(options: type[Any], *, table: bool = False) -> list[Field[Any]]:
    """Return the fields of a class of options, its own first; with ``table`` those that belong into a settings file."""
    inherited = {f.name for base in options.__mro__[1:] if hasattr(base, "__dataclass_fields__") for f in fields(base)}
    listed = [f for f in fields(options) if not table or f.metadata["cli"].get("table")]
    return sorted(listed, key=lambda f: f.name in inherited)


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

        parameters, items = [], []
        for f in listed:
            required = f.default is MISSING
            kind = inspect.Parameter.KEYWORD_ONLY if f.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
            default = inspect.Parameter.empty if required else f.default
            parameters.append(inspect.Parameter(f.name, kind, default=default, annotation=f.type))
            stated = "" if required or f.default is None else f", default {f.default!r}"
            sentence = textwrap.fill(f.metadata["help"], WIDTH, initial_indent="    ", subsequent_indent="    ")
            items.append(f"{f.name} : {f.type}{stated}\n{sentence}\n")
        returned = run.__annotations__["return"]
        call.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        call.__annotations__ = {f.name: f.type for f in listed} | {"return": returned}
        summary, _, rest = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
        call.__doc__ = f"{summary}\n\nParameters\n----------\n{''.join(items)}\n{rest}"
        return call

    return decorate


def type_of(options: type[Any], f: Field[Any]) -> Any:
    """Evaluate the annotation of a field."""
    owner = next(c for c in options.__mro__ if f.name in vars(c).get("__annotations__", {}))
    return eval(str(f.type), vars(sys.modules[owner.__module__]))


def table_text(listed: list[Field[Any]], title: str) -> str:
    """Return a table of a settings file with options at their defaults; those without one are comments."""
    lines = [f"[{title}]  # options of `regweave {title}`"]
    for f in listed:
        value = f"{f.name} = {json.dumps(f.default)}" if f.default is not None else f"# {f.name} ="
        lines.append(f"{value}  # {f.metadata['help']}")
    return "\n".join(lines) + "\n"
