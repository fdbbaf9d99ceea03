"""Generated images to try the package with: no data, no download, the same bits for the same seed."""

import json
from pathlib import Path

from regweave.io import write_image, write_labels
from regweave.jobs.table import FILES, PairFiles, write_pairs
from regweave.study import anatomy
from regweave.types import ImagePair

VOXEL_MM = 4.0


def pair(seed: int = 0, kind: str = "head and neck", *, voxel_mm: float | None = None) -> ImagePair:
    """Return two generated images of one anatomy with their structures; the fixed one is deformed.

    Parameters
    ----------
    seed : int
        Chooses anatomy, noise and deformation.
    kind : str
        ``head and neck`` or ``chest`` (CT), or ``brain`` (T1 MR).
    voxel_mm : float, optional
        Side of a voxel, 4 mm by default.

    Examples
    --------
    >>> import regweave as rw
    >>> rw.examples.pair(kind="brain", voxel_mm=8.0).moving_labels
    LabelMap(20 × 24 × 19 voxels of 8 × 8 × 8 mm, ventricles, grey matter, white matter, thalamus, cerebellum)
    """
    return anatomy.pair(kind, seed, voxel_mm or VOXEL_MM)


def pairs(folder: str | Path, n: int = 3, *, seed: int = 0, kind: str = "head and neck") -> Path:
    """Write generated pairs and their list, ``pairs.csv``, into a folder, and return the list.

    Parameters
    ----------
    folder : path
        New or empty folder.
    n : int
        Number of pairs, each of another patient.
    seed : int
        Seed of the first pair.
    kind : str
        Anatomy, as for `pair`.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    listed = []
    for number in range(seed, seed + n):
        made = pair(number, kind)
        files = {column: place / f"p{number}_{column}.nii.gz" for column in FILES}
        write_image(files["fixed"], made.fixed)
        write_image(files["moving"], made.moving)
        assert made.fixed_labels is not None
        assert made.moving_labels is not None
        write_labels(files["fixed_labels"], made.fixed_labels)
        write_labels(files["moving_labels"], made.moving_labels)
        listed.append(PairFiles(id=f"pair{number}", group=f"p{number}", **files))
    names = {str(value): name for value, name in enumerate(anatomy.STRUCTURES[kind], start=1)}
    (place / "labels.json").write_text(json.dumps(names) + "\n", encoding="utf-8")
    write_pairs(place / "pairs.csv", listed)
    return place / "pairs.csv"
