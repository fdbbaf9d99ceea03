"""What the site does besides: public names, links out of the docs folder, nothing loaded from elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

OUTWARD = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:src|tests|benchmark|core|examples|[A-Z]+)[^)\s]*)\)")
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


PACKAGE = Path(__file__).parents[1] / "src" / "regweave" / "__init__.py"
KINDS = {"functions": str.islower, "classes": lambda name: not name.islower()}


def public_names() -> list[str]:
    """Return ``regweave.__all__`` without importing the package."""
    for node in ast.parse(PACKAGE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise PluginError(f"{PACKAGE} has no __all__")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """List the public names, and replace ``[text](../src/x.py)`` by the text and the file's place."""
    for kind, belongs in KINDS.items():
        names = sorted(filter(belongs, public_names()))
        markdown = markdown.replace(f"<!-- {kind} of __all__ -->", "\n\n".join(f"::: regweave.{n}" for n in names))
    return OUTWARD.sub(r"\1 (`\2`)", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load something over the network."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found.group()}")
    return output
