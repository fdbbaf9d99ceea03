"""Run the pages of the gallery as notebooks: ``python docs/_make_gallery.py [NAME …]``.

A page is Markdown with blocks of Python. It becomes a notebook that is executed in an empty folder; the site shows
the outputs of the notebook below the blocks of the page. A test compares notebooks and pages.
"""

import base64
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

GALLERY = Path(__file__).with_name("gallery")
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
TIMED = re.compile(r"\d+:\d\d$")
KEPT = ("image/png", "text/html", "text/plain")
"""Forms of an output, the best first; a notebook keeps one."""
SECONDS = 600
WIDTH, COLOURS = 700, 128


def cells_of(page: str) -> list[tuple[str, str]]:
    """Split a page into cells: ``markdown`` or ``code``, and the text."""
    parts = BLOCK.split(page)
    kinds = ("markdown" if n % 2 == 0 else "code" for n in range(len(parts)))
    return [(kind, part.strip()) for kind, part in zip(kinds, parts, strict=True) if part.strip()]


def pages() -> list[Path]:
    """Return the pages that are notebooks."""
    return sorted(path for path in GALLERY.glob("*.md") if path.stem != "index")


def make(page: Path) -> None:
    """Execute a page and write the notebook beside it."""
    import nbformat  # noqa: PLC0415 (only those who build the site have it)
    from nbclient import NotebookClient  # noqa: PLC0415

    version = nbformat.v4
    make_cell = {"markdown": version.new_markdown_cell, "code": version.new_code_cell}
    cells = [make_cell[kind](text, id=f"cell-{n}") for n, (kind, text) in enumerate(cells_of(page.read_text("utf-8")))]
    notebook = version.new_notebook(cells=cells)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata = {}
            if cell.cell_type == "code":
                cell.outputs = [_plain(output, folder) for output in cell.outputs if not _is_progress(output)]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    page.with_suffix(".ipynb").write_text(text, encoding="utf-8")


def _is_progress(output: Any) -> bool:
    """Recognise standard error, and the line of a finished bar, which ends with the time that it took."""
    text = output.get("data", {}).get("text/plain", "")
    return output.get("name") == "stderr" or (output.output_type == "display_data" and bool(TIMED.search(text)))


def _plain(output: Any, folder: str) -> Any:
    """Keep the best form of an output, and no word about this machine."""
    if "data" in output:
        kind = next(kind for kind in KEPT if kind in output["data"])
        output["data"] = {kind: output["data"][kind]}
        output["metadata"] = {}
        found = output["data"][kind]
        output["data"][kind] = _small(found) if kind == "image/png" else found.replace(f"{folder}/", "")
    elif "text" in output:
        output["text"] = output["text"].replace(f"{folder}/", "")
    return output


def _small(picture: str) -> str:
    """Reduce a PNG to the width of a page and few colours."""
    from PIL import Image  # noqa: PLC0415 (only those who build the site have it)

    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.thumbnail((WIDTH, WIDTH))
    stream = io.BytesIO()
    image.quantize(COLOURS).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode("ascii")


if __name__ == "__main__":
    for path in pages():
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            make(path)
