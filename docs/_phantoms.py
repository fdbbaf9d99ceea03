"""Small phantoms under the names that the pages use: ``write_phantoms(folder)``."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "datasets"))
from phantoms import make_phantom
from regweave.io import write_image, write_labels, write_points
from regweave.types import LabelMap, Volume

NAMES = {1: "mandible", 2: "left parotid", 3: "right parotid"}
STRUCTURES = {3: 1, 4: 2, 5: 3}
HEADER = "id,fixed,moving,fixed_labels,moving_labels,group"
Shape, Spacing = tuple[int, int, int], tuple[float, float, float]


def write_phantoms(folder: Path, shape: Shape = (20, 20, 20), spacing_mm: Spacing = (9.0, 9.0, 9.0)) -> None:
    """Write two pairs, two lists of pairs, points and the names of the labels."""

    def write_pair(seed: int, names: tuple[str, str], shift: float = 0.0) -> list[str]:
        """Write both images and their labels; return the file names in the order of a list of pairs."""
        pair = make_phantom(seed, shape, spacing_mm).pair
        for name, image, labels in zip(
            names, (pair.fixed, pair.moving), (pair.fixed_labels, pair.moving_labels), strict=True
        ):
            write_image(folder / f"{name}.nii.gz", Volume(image.data + np.float32(shift), image.geometry))
            write_labels(folder / f"{name}_labels.nii.gz", _few(labels))
        return [f"{name}{kind}.nii.gz" for kind in ("", "_labels") for name in names]

    write_pair(0, ("fixed", "moving"))
    write_pair(1, ("today", "planning"), shift=-1000.0)  # on the Hounsfield scale
    for path, seeds in (("pairs.csv", range(2, 5)), ("others.csv", range(5, 7))):
        rows = [",".join([f"pair{n}", *write_pair(n, (f"p{n}_fixed", f"p{n}_moving")), f"p{n}"]) for n in seeds]
        (folder / path).write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    people = [f"p{n},p{n}_fixed.nii.gz,p{n}_fixed_labels.nii.gz" for n in (2, 3, 4)]
    (folder / "people.csv").write_text("\n".join(["id,image,labels", *people]) + "\n", encoding="utf-8")
    (folder / "list.csv").write_text("id,image\na,p5_fixed.nii.gz\nb,p6_fixed.nii.gz\n", encoding="utf-8")
    shutil.copy(folder / "p5_moving.nii.gz", folder / "new.nii.gz")
    points = np.array([[0.0, 0.0, 0.0], [20.0, -10.0, 15.0]])
    for name in ("fixed_points.csv", "today_points.csv", "planning_points.csv"):
        write_points(folder / name, points, ["a", "b"])
    for number in (2, 3):  # a BIDS dataset
        (folder / "brains" / f"sub-0{number - 1}" / "anat").mkdir(parents=True)
        for kind, suffix in (("fixed", "T1w"), ("moving", "T2w")):
            name = folder / "brains" / f"sub-0{number - 1}" / "anat" / f"sub-0{number - 1}_{suffix}.nii.gz"
            shutil.copy(folder / f"p{number}_{kind}.nii.gz", name)
    (folder / "labels.json").write_text(json.dumps(NAMES), encoding="utf-8")


def _few(labels: LabelMap) -> LabelMap:
    data = sum(np.where(labels.data == old, new, 0) for old, new in STRUCTURES.items())
    return LabelMap(np.asarray(data, dtype=np.uint8), labels.geometry)
