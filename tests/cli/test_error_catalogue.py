"""The catalogue in docs/errors.md names each code that the program can print, and no other."""

import re
from pathlib import Path

import regweave

SOURCES = Path(regweave.__file__).parent
CATALOGUE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_catalogue_is_complete_and_no_code_is_two_things():
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    used = set(re.findall(r"""["'](E\d{3})["']""", text)) | set(re.findall(r"""["'](W\d{3}):""", text))
    listed = re.findall(r"^\| ([EW]\d{3}) \|", CATALOGUE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert used - set(listed) == set()
    assert set(listed) - used == set()
    assert [code for code in sorted(set(listed)) if listed.count(code) > 1] == []
