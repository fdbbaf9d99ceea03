"""Each function that the theory page names exists, and each equation of the paper has a row."""

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| paper"))
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[2])})


def find(name: str) -> object:
    """Import the longest module and take the rest as attributes."""
    parts = ["regweave", *name.split(".")]
    for n in range(len(parts), 1, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no module for {name}")


def test_functions_exist() -> None:
    assert len(NAMES) > 40
    assert [name for name in NAMES if not callable(find(name))] == []


def test_every_equation_and_the_algorithm_have_a_row() -> None:
    firsts = [row[0] for row in ROWS]
    for wanted in [*(f"({n})" for n in range(1, 12)), "Algorithm 1"]:
        assert any(first.startswith(wanted) for first in firsts), wanted
    assert all(len(row) == 3 and "`" in row[2] for row in ROWS)
