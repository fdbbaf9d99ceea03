"""The identity of the code that computes results."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from regweave import registry
from regweave.kernels import LIBRARY

ELSEWHERE = ("cli", "report")
"""Folders whose code computes nothing."""


@cache
def program_hash(unused: tuple[str, ...] = ()) -> str:
    """Hash the code that computes results: another version may give other numbers, and the two are never mixed.

    Parameters
    ----------
    unused : tuple of str
        Folders of the program that are left out besides `ELSEWHERE`.
    """
    root = Path(__file__).parents[1]
    sources = sorted(p for p in root.rglob("*.py") if p.relative_to(root).parts[0] not in (*ELSEWHERE, *unused))
    digest = hashlib.sha256()
    for path in (*sources, LIBRARY):
        digest.update(path.read_bytes())
    digest.update(registry.fingerprint().encode())
    return digest.hexdigest()
