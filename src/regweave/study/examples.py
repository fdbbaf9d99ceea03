"""Generated images to try the package with: no data, no download, the same bits for the same seed."""

import json
from pathlib import Path

import numpy as np

from regweave.io import write_image, write_labels
from regweave.jobs.table import FILES, PairFiles, write_pairs
from regweave.study.phantoms import make_phantom
from regweave.types import Image, ImagePair, LabelMap

NAMES = {1: "mandible", 2: "left parotid", 3: "right parotid"}
KEPT = {3: 1, 4: 2, 5: 3}  # labels of the phantom that are kept, and their numbers here
SHAPE, SPACING_MM = (56, 56, 40), (3.5, 3.5, 4.5)


def pair(
    seed: int = 0, *, shape: tuple[int, int, int] | None = None, spacing_mm: tuple[float, float, float] | None = None
) -> ImagePair:
    """Return two images of a generated head and neck with three structures each, the moving one deformed.

    Parameters
    ----------
    seed : int
        Chooses anatomy, noise and deformation.
    shape, spacing_mm : three numbers each
        Voxels, and their size; by default 56 × 56 × 40 voxels of 3.5 × 3.5 × 4.5 mm.

    Examples
    --------
    >>> import regweave as rw
    >>> found = rw.examples.pair(shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0))
    >>> found.moving_labels
    LabelMap(24 × 24 × 24 voxels of 8 × 8 × 8 mm, mandible, left parotid, right parotid)
    """
    made = make_phantom(seed, shape or SHAPE, spacing_mm or SPACING_MM).pair
    assert made.fixed_labels is not None
    assert made.moving_labels is not None
    return ImagePair(Image.of(made.fixed, _few(made.fixed_labels)), Image.of(made.moving, _few(made.moving_labels)))


def pairs(folder: str | Path, n: int = 3, *, seed: int = 0) -> Path:
    """Write generated pairs and their list, ``pairs.csv``, into a folder, and return the list.

    Parameters
    ----------
    folder : path
        New or empty folder.
    n : int
        Number of pairs, each of another patient.
    seed : int
        Seed of the first pair.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    listed = []
    for number in range(seed, seed + n):
        made = pair(number)
        files = {column: place / f"p{number}_{column}.nii.gz" for column in FILES}
        write_image(files["fixed"], made.fixed)
        write_image(files["moving"], made.moving)
        assert made.fixed_labels is not None
        assert made.moving_labels is not None
        write_labels(files["fixed_labels"], made.fixed_labels)
        write_labels(files["moving_labels"], made.moving_labels)
        listed.append(PairFiles(id=f"pair{number}", group=f"p{number}", **files))
    names = {str(value): name for value, name in NAMES.items()}
    (place / "labels.json").write_text(json.dumps(names) + "\n", encoding="utf-8")
    write_pairs(place / "pairs.csv", listed)
    return place / "pairs.csv"


def _few(labels: LabelMap) -> LabelMap:
    data = sum(np.where(labels.data == old, new, 0) for old, new in KEPT.items())
    return LabelMap(np.asarray(data, dtype=np.uint8), labels.geometry, NAMES)
