"""Types of the compiled kernels, generated from the built module: ``make stub`` writes them again."""

import re
from pathlib import Path

from nanobind.stubgen import StubGen

from regweave._core import builds

STUB = Path(__file__).parents[1] / "src" / "regweave" / "_core" / "__init__.pyi"
CHOSEN = "BUILD: str\nLIBRARY: str\n"
ARRAY = re.compile(r"Annotated\[(NDArray\[[\w.]+\]), dict\((?:[^()]|\([^()]*\))*\)\]")


def stub() -> str:
    """Return the stub of the kernels, which all builds have alike, and of the names that the choice adds."""
    generator = StubGen(builds.load("baseline"), include_docstrings=False)
    generator.put(generator.module)
    plain = ARRAY.sub(r"\1", generator.get()).replace("from typing import Annotated\n", "")
    # A numpy vector is taken for a sequence of numbers, too.
    return plain.replace("Sequence[float]", "Sequence[float] | NDArray[numpy.float64]") + CHOSEN


if __name__ == "__main__":
    STUB.write_text(f'"""Types of the compiled kernels; written by `make stub`."""\n\n{stub()}', encoding="utf-8")
