"""Model files: learned weights with the settings and the predictor they belong to.

Here are the names of the shipped models, and the search for the file that a user names.
"""

import difflib
from importlib import resources
from pathlib import Path

from regweave.errors import UsageError
from regweave.io.disk.files import exists

SUFFIXES = (".json", ".zip")  # endings of the files of shipped models: an archive where the predictor is a network


def shipped_models() -> dict[str, Path]:
    """Models that come with the package, for users without training data, by name."""
    folder = Path(str(resources.files("regweave").joinpath("model")))
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES}


def find_model(given: str | Path) -> Path:
    """Return the file of a model that is given by path, or by the name of a shipped one; a file comes first.

    Raises E171 for a word that is neither.
    """
    path, shipped = Path(given), shipped_models()
    name = str(given)
    if name != path.name or exists(path):  # a path can only be a file
        return path
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name[:100], shipped, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    message = f"there is no model file '{name[:200]}' and no shipped model of that name"
    raise UsageError("E171", message, f"{guess}shipped: {', '.join(shipped)}")
