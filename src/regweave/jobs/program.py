"""Hash of the syntax trees of the program that computes results."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

from regweave import _core, registry

ELSEWHERE = ("api", "cli", "report")
"""Folders whose code computes nothing."""
UNUSED = ("learning", "training", "study")
"""Folders that no registration runs through."""


@cache
def program_hash(unused: tuple[str, ...] = ()) -> str:
    """Hash the code that computes results: another version may give other numbers, and the two are never mixed.

    Comments, docstrings and layout are left out, so that a better sentence does not lose finished work.

    Parameters
    ----------
    unused : tuple of str
        Folders of the program that are left out besides `ELSEWHERE`.
    """
    root = Path(__file__).parents[1]
    sources = sorted(p for p in root.rglob("*.py") if p.relative_to(root).parts[0] not in (*ELSEWHERE, *unused))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(code_of(path.read_text(encoding="utf-8")).encode())
    digest.update(Path(_core.LIBRARY).read_bytes())
    digest.update(registry.fingerprint().encode())
    return digest.hexdigest()


def code_of(source: str) -> str:
    """Return the text of a module without comments, docstrings and layout.

    Examples
    --------
    >>> code_of("x = 2*y  # twice")
    'x = 2 * y'
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_text(s)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is a string alone: a docstring, or that of a constant."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
