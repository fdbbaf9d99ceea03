"""What the site does besides: links out of the docs folder, and no page that loads anything from elsewhere."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.exceptions import PluginError

OUTWARD = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:src|tests|benchmark|core|examples|[A-Z]+)[^)\s]*)\)")
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``[text](../src/x.py)`` by the text and the file's place: the site has no source tree."""
    return OUTWARD.sub(r"\1 (`\2`)", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load something over the network."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found.group()}")
    return output
