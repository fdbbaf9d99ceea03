"""Viewer data of a result, in the folder ``view``: what its page shows and the other files do not hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from regweave.io import atomic_path, write_image, write_labels
from regweave.io.disk.files import damaged, is_file
from regweave.io.records.arrays import read_arrays
from regweave.types import Geometry, LabelMap, NodeEvidence, Volume

FOLDER = "view"
WHOLE_UNITS_RANGE = 2000.0
"""Images that span more than this lose nothing that is seen when they are rounded to whole numbers."""


def write_view(
    folder: Path,
    images: Mapping[str, Volume],
    labels: Mapping[str, LabelMap | None],
    nodes: NodeEvidence | None,
    words: Mapping[str, Mapping[str, str]],
) -> None:
    """Write the folder.

    Parameters
    ----------
    folder : Path
        Folder of the result.
    images, labels : mapping
        ``fixed`` and ``moving``, ``fixed_labels`` and ``moving_labels``, all at the start and on the fixed grid.
    nodes : NodeEvidence, optional
        Evidence of the last discrete step; absent where the settings have no such step.
    words : mapping
        ``sources``, the name of each input that was a file, and ``names`` of the structures by label.
    """
    target = folder / FOLDER
    target.mkdir()
    for name, volume in images.items():
        _write_image(target / f"{name}.nii.gz", volume)
    for name, found in labels.items():
        if found is not None:
            write_labels(target / f"{name}.nii.gz", found)
    if nodes is not None:
        with atomic_path(target / "nodes.npz") as part:
            np.savez_compressed(
                part, affine=nodes.geometry.affine, influence=nodes.influence, confidence=nodes.confidence
            )
    content = {
        "sources": dict(words["sources"]),
        "members": [] if nodes is None else list(nodes.members),
        "names": dict(words["names"]),
    }
    with atomic_path(target / "view.json") as part:
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_nodes(folder: Path, members: Sequence[str]) -> NodeEvidence | None:
    """Read the evidence of the last discrete step from the folder of a result, None where there is none."""
    path = folder / FOLDER / "nodes.npz"
    if not is_file(path):
        return None
    try:
        affine, influence, confidence = read_arrays(path, ("affine", "influence", "confidence"))
        if confidence.ndim != 3 or 0 in confidence.shape or influence.shape != (len(members), *confidence.shape):
            raise ValueError(f"arrays of shapes {influence.shape} and {confidence.shape}")
        if any(a.dtype.kind != "f" or not np.isfinite(a).all() for a in (affine, influence, confidence)):
            raise ValueError("an array holds something else than finite numbers")
        if affine.shape != (4, 4) or not 0 < abs(np.linalg.det(affine)) < np.inf or affine[3].tolist() != [0, 0, 0, 1]:
            raise ValueError("its matrix places no grid")
    except ValueError as error:
        raise damaged(f"'{path}'", f"it does not hold the maps of a result ({error})") from error
    x, y, z = confidence.shape
    return NodeEvidence(Geometry((x, y, z), affine), tuple(members), influence, confidence)


def _write_image(path: Path, volume: Volume) -> None:
    low, high = float(volume.data.min()), float(volume.data.max())
    whole = high - low > WHOLE_UNITS_RANGE and low > -32768 and high < 32767
    write_image(path, volume, np.int16 if whole else None)
