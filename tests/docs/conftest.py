"""A folder with small phantoms under the names that the pages use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from regweave.datasets.phantom import make_phantom
from regweave.io import write_image, write_labels, write_points
from regweave.types import LabelMap, Volume

ROOT = Path(__file__).parents[2]
SHAPE, SPACING_MM = (20, 20, 20), (9.0, 9.0, 9.0)
NAMES = {1: "mandible", 2: "left parotid", 3: "right parotid"}
STRUCTURES = {3: 1, 4: 2, 5: 3}
HEADER = "id,fixed,moving,fixed_labels,moving_labels,group"
TESTS = ("tests/metrics/test_conformance.py", "tests/losses/test_conformance.py", "pyproject.toml")


def few(labels: LabelMap) -> LabelMap:
    data = sum(np.where(labels.data == old, new, 0) for old, new in STRUCTURES.items())
    return LabelMap(np.asarray(data, dtype=np.uint8), labels.geometry)


def write_pair(folder: Path, seed: int, names: tuple[str, str], shift: float = 0.0) -> list[str]:
    """Write both images and their labels; return the file names in the order of a list of pairs."""
    pair = make_phantom(seed, SHAPE, SPACING_MM).pair
    for name, image, labels in zip(
        names, (pair.fixed, pair.moving), (pair.fixed_labels, pair.moving_labels), strict=True
    ):
        write_image(folder / f"{name}.nii.gz", Volume(image.data + np.float32(shift), image.geometry))
        write_labels(folder / f"{name}_labels.nii.gz", few(labels))
    return [f"{name}{kind}.nii.gz" for kind in ("", "_labels") for name in names]


@pytest.fixture(scope="session")
def phantom_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every page starts from; copied, never written to."""
    folder = tmp_path_factory.mktemp("docs")
    write_pair(folder, 0, ("fixed", "moving"))
    write_pair(folder, 1, ("today", "planning"), shift=-1000.0)  # on the Hounsfield scale
    for path, seeds in (("pairs.csv", range(2, 5)), ("others.csv", range(5, 7))):
        rows = [",".join([f"pair{n}", *write_pair(folder, n, (f"p{n}_fixed", f"p{n}_moving")), f"p{n}"]) for n in seeds]
        (folder / path).write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    points = np.array([[0.0, 0.0, 0.0], [20.0, -10.0, 15.0]])
    for name in ("fixed_points.csv", "today_points.csv", "planning_points.csv"):
        write_points(folder / name, points, ["a", "b"])
    (folder / "labels.json").write_text(json.dumps(NAMES), encoding="utf-8")
    for name in TESTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder
