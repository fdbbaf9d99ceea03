"""Links out of the docs folder: the site has no source tree, so they become names of files."""

from __future__ import annotations

import re
from typing import Any

OUTWARD = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:src|tests|benchmark|core|examples|[A-Z]+)[^)\s]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``[text](../src/x.py)`` by the text and the file's place in the repository."""
    return OUTWARD.sub(r"\1 (`\2`)", markdown)
