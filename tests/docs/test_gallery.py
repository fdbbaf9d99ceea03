"""The notebooks of the gallery are those of their pages, small, and say nothing about a machine."""

import json
import re
from pathlib import Path

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
NOTEBOOKS = sorted(GALLERY.glob("*.ipynb"))
MOST_BYTES = 300_000


def test_there_is_a_notebook_for_each_page(script):
    assert [path.stem for path in script("_make_gallery").pages()] == [path.stem for path in NOTEBOOKS]
    assert len(NOTEBOOKS) >= 5
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MOST_BYTES


def test_notebook_is_that_of_its_page(script):
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        page = path.with_suffix(".md").read_text(encoding="utf-8")
        assert found == script("_make_gallery").cells_of(page), f"run python docs/_make_gallery.py {path.stem}"
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        assert outputs
        assert all(output["output_type"] != "error" for output in outputs)
        assert not re.search(r"/(tmp|home|root|usr|opt|Users)/", json.dumps(outputs))


def test_cells_of_a_page(script):
    page = "# A\n\ntext\n\n```python\nx = 1\n```\n\n```sh\nls\n```\n\n```python\nx\n```\n"
    expected = [("markdown", "# A\n\ntext"), ("code", "x = 1"), ("markdown", "```sh\nls\n```"), ("code", "x")]
    assert script("_make_gallery").cells_of(page) == expected
