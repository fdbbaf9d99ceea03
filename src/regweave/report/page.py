"""Jinja2 environment and frame of the pages: one file, no request to anywhere, light and dark."""

import base64
import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from regweave import __version__
from regweave.measures.verdict import rule_words, unchecked_words

DASH = "–"
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn"}
"""Unicode categories of characters that are not seen but change what is seen: controls, direction marks."""


def asset(name: str, folder: str = "assets") -> str:
    """Text of one of the files in ``assets``, or in another folder."""
    return resources.files("regweave.report").joinpath(folder, name).read_text(encoding="utf-8")


def render(
    template: str | Template, context: Mapping[str, Any], *, style: str = "", scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """Fill a template that extends ``base.j2`` and return the complete page.

    The page may run only the scripts and styles given here (its security policy has their hashes) and may load
    nothing from anywhere. So a template must have no ``style="…"`` and no ``onclick="…"`` attributes: use classes, SVG
    attributes, and scripts.

    Every value of the context is escaped but for `Markup`. The style comes after the shared one, which has variables
    such as ``--ink`` for light and dark. Scripts run in order at the end of the page, and read ``data`` by name with
    ``JSON.parse(document.getElementById(name).textContent)``; it must be plain JSON without NaN.
    """
    css = asset("page.css") + style
    code = [asset("page.js"), *scripts]
    hashes = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() for text in (css, *code)]
    style_hash, *script_hashes = (f"'sha256-{of}'" for of in hashes)
    policy = (
        f"default-src 'none'; script-src {' '.join(script_hashes)}; style-src {style_hash}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    frame = {"css": Markup(css), "scripts": list(map(Markup, code)), "policy": Markup(policy)}
    return environment().get_template(template).render(context, **frame, data=data or {})


@cache
def environment() -> Environment:
    """Return the templates: every value is escaped, a name that has none is an error."""
    env = Environment(
        loader=FunctionLoader(lambda name: asset(name, "templates")), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=visible,
    )  # fmt: skip
    shown = (cell, interval, ml, number, rule_words, signed, unchecked_words, visible)
    env.filters |= {function.__name__: function for function in shown}
    env.filters["pretty"] = lambda value, indent=1: json.dumps(value, indent=indent, ensure_ascii=False)
    env.globals |= {"version": __version__}
    env.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return env


def visible(value: object) -> object:
    r"""Replace characters of a text that are not seen by a box; all that a template prints goes through here."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join("\ufffd" if c not in "\n\t" and unicodedata.category(c) in UNSEEN else c for c in value)


def cell(value: object) -> object:
    """Content of a table cell: numbers short, a missing value as a dash, other content unchanged."""
    return number(value) if value is None or isinstance(value, float) else value


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number as text, a dash for none."""
    if value is None or not math.isfinite(value):
        return DASH
    text = format(value, form)
    return f"−{text[1:]}" if text.startswith("-") else text


def ml(value: float | None) -> str:
    """Return a volume with three digits that mean something."""
    return number(value, ".2f" if value is None or value < 10 else ".1f" if value < 100 else ".0f")


def signed(value: float | None) -> str:
    """Return a difference as text, a dash for none."""
    return number(value, "+.4f")


def interval(ends: Sequence[float | None]) -> str:
    """Return two ends as text, a dash where one is missing."""
    low, high = map(signed, ends)
    return DASH if DASH in (low, high) else f"[{low}, {high}]"
