"""What the site does besides: public names, outputs of notebooks, links out, nothing loaded from elsewhere."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

OUTWARD = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:src|tests|benchmark|core|examples|papers|[A-Z]+)[^)\s]*)\)")
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PACKAGE = Path(__file__).parents[1] / "src" / "regweave" / "__init__.py"
KINDS = {"functions": str.islower, "classes": lambda name: not name.islower()}


def public_names() -> list[str]:
    """Return ``regweave.__all__`` without importing the package."""
    for node in ast.parse(PACKAGE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise PluginError(f"{PACKAGE} has no __all__")


def with_outputs(page: str, notebook: Path) -> str:
    """Put the outputs of a notebook below the blocks of its page."""
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    parts = BLOCK.split(page)
    if ["".join(cell["source"]) for cell in cells] != [text.strip() for text in parts[1::2]]:
        raise PluginError(f"{notebook} is not that of its page: run python docs/_make_gallery.py {notebook.stem}")
    outputs = ("".join(map(_shown, cell["outputs"])) for cell in cells)
    shown = [f"```python\n{text}```\n{below}" for text, below in zip(parts[1::2], outputs, strict=True)]
    head, *texts = parts[::2]
    title, _, rest = head.partition("\n")
    link = f"\n[Download this page as a notebook]({notebook.name})\n"
    return "".join([title, link, rest, *(block + text for block, text in zip(shown, texts, strict=True))])


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return (
            f'\n<img class="output" alt="output of the block above" src="data:image/png;base64,{data["image/png"]}">\n'
        )
    if "text/html" in data:
        return f'\n<div class="output">{"".join(data["text/html"])}</div>\n'
    return f"\n```text\n{''.join(data.get('text/plain', output.get('text', ''))).rstrip()}\n```\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show outputs of the gallery, list the public names, and replace links into the source by the file's place."""
    notebook = Path(page.file.abs_src_path).with_suffix(".ipynb")
    if notebook.exists():
        markdown = with_outputs(markdown, notebook)
    for kind, belongs in KINDS.items():
        names = sorted(filter(belongs, public_names()))
        markdown = markdown.replace(f"<!-- {kind} of __all__ -->", "\n\n".join(f"::: regweave.{n}" for n in names))
    return OUTWARD.sub(r"\1 (`\2`)", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load something over the network."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found.group()}")
    return output
