"""Images and transforms of a registration, and their files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from regweave.errors import UsageError
from regweave.io import (
    atomic_path,
    fill_value,
    smallest_displacement,
    write_displacement,
    write_image,
    write_labels,
    write_transform,
)
from regweave.io.disk.files import MAX_ARCHIVE_BYTES, damaged, is_file, open_file, require_memory
from regweave.spatial.warp import warp_image, warp_labels
from regweave.types import Field, Geometry, ImagePair, LabelMap, NodeEvidence, Transform, Volume

FILES = {
    "warped": "warped.nii.gz",
    "labels": "warped_labels.nii.gz",
    "transform": "transform.h5",
    "inverse": "inverse.h5",
    "displacement": "displacement.nii.gz",
    "report": "report.html",
}
"""What can be chosen, and its file; ``result.json`` is always written, ``report`` has the folder ``view`` besides."""
DEFAULT = ("warped", "labels", "transform", "inverse", "report")
"""All but the displacement, which repeats the transform."""
SMALL_VOXELS = 1_000_000
"""Up to this size the displacement is written too: programs that read no ITK transform read it, and it costs little."""
NEEDED_BY_REPORT = ("warped", "labels", "transform")


def usual_outputs(n_voxels: int) -> tuple[str, ...]:
    """Return what is written where nobody chooses, for a fixed image of that many voxels.

    Examples
    --------
    >>> "displacement" in usual_outputs(64**3), "displacement" in usual_outputs(512 * 512 * 55)
    (True, False)
    """
    return check_outputs((*DEFAULT, "displacement") if n_voxels <= SMALL_VOXELS else DEFAULT)


def check_outputs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of outputs in their usual order, or raise E119.

    Examples
    --------
    >>> check_outputs(["transform", "warped"])
    ('warped', 'transform')
    """
    wanted = set(names)
    unknown = sorted(wanted - set(FILES))
    if unknown or not wanted:
        message = f"outputs {', '.join(map(repr, unknown)) or 'are missing'}, known are {', '.join(FILES)}"
        raise UsageError("E119", message, f"choose some of them; the default is {','.join(DEFAULT)}")
    lacking = [name for name in NEEDED_BY_REPORT if name not in wanted]
    if "report" in wanted and lacking:
        message = f"a report is made from {', '.join(NEEDED_BY_REPORT)}, and {', '.join(lacking)} are not to be written"
        raise UsageError("E119", message, "add them, or leave the report out")
    return tuple(name for name in FILES if name in wanted)


def parse_outputs(text: str) -> tuple[str, ...]:
    """Read names with commas between them.

    Examples
    --------
    >>> parse_outputs("warped, inverse")
    ('warped', 'inverse')
    """
    return check_outputs(name.strip() for name in text.split(","))


@dataclass(frozen=True)
class OutputImages:
    """Images and transforms of a registration, in memory.

    Parameters
    ----------
    transform, inverse : Transform
        Fixed to moving points, and back.
    warped, warped_labels
        The moving image and labels on the fixed grid, interpolated once from the originals.
    pair : ImagePair
        What was registered, at its start.
    nodes : NodeEvidence, optional
        Evidence of the last discrete step, for the page.
    """

    transform: Transform
    inverse: Transform
    warped: Volume
    warped_labels: LabelMap | None
    pair: ImagePair
    nodes: NodeEvidence | None = None

    @property
    def fixed(self) -> Volume:
        """The fixed image."""
        return self.pair.fixed

    @property
    def fixed_labels(self) -> LabelMap | None:
        """Labels of the fixed image."""
        return self.pair.fixed_labels

    @property
    def start(self) -> Transform:
        """Takes fixed points to moving points as initially aligned."""
        return Transform(self.pair.initial_field or Field.zero(self.pair.fixed.geometry), self.pair.initial)

    @property
    def before(self) -> Volume:
        """The moving image on the fixed grid, as initially aligned."""
        return warp_image(self.pair.moving, self.start, fill=fill_value(self.pair.moving))

    @property
    def labels_before(self) -> LabelMap | None:
        """The moving labels on the fixed grid, as initially aligned."""
        return None if self.pair.moving_labels is None else warp_labels(self.pair.moving_labels, self.start)

    def usual_outputs(self) -> tuple[str, ...]:
        """Names of the files that are written where nobody chooses."""
        return usual_outputs(self.warped.data.size)

    def write(self, folder: Path, chosen: Collection[str], sources: Mapping[str, str]) -> None:
        """Write the chosen files; ``sources`` names the inputs that were files, for the page."""
        files = {name: folder / FILES[name] for name in chosen}
        if "warped" in files:
            write_image(files["warped"], self.warped)
        if "labels" in files and self.warped_labels is not None:
            write_labels(files["labels"], self.warped_labels)
        if "transform" in files:
            write_transform(files["transform"], self.transform)
        if "inverse" in files:
            write_transform(files["inverse"], self.inverse)
        if "displacement" in files:
            write_displacement(files["displacement"], smallest_displacement(self.transform), self.transform.ends)
        if "report" in files:
            images = {"fixed": self.fixed, "moving": self.before}
            labels = {"fixed_labels": self.fixed_labels, "moving_labels": self.labels_before}
            if "labels" not in files:  # the file beside the page lies on another grid
                labels["warped_labels"] = self.warped_labels
            write_view(folder, images, labels, self.nodes, {"sources": sources, "names": self._names()})

    def _names(self) -> dict[str, str]:
        """Name each structure by its label; what the fixed labels call it wins."""
        every = (self.warped_labels, self.pair.moving_labels, self.pair.fixed_labels)
        maps = [labels for labels in every if labels is not None]
        names = {str(v): labels.name(v) for labels in maps for v in labels.values()}
        for labels in maps:
            names |= {str(v): name for v, name in labels.names.items() if str(v) in names}
        return names


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


def read_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Read arrays of an archive by name.

    Parameters
    ----------
    path : Path
        File that `numpy.savez_compressed` wrote.
    names : sequence of str

    Raises
    ------
    RegweaveError
        E101 no regular file, E102 damaged or not such an archive, E140 more than the machine has memory for.
    """
    subject = f"'{path}'"
    with open_file(path) as stream:
        try:
            with ZipFile(stream) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > MAX_ARCHIVE_BYTES:
                raise ValueError(f"it says that it holds {size} bytes, allowed are {MAX_ARCHIVE_BYTES}")
            require_memory(2 * size, subject)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as stored:
                return [stored[name] for name in names]
        except (
            OSError,
            ValueError,
            KeyError,
            EOFError,
            NotImplementedError,
            RuntimeError,
            BadZipFile,
            zlib.error,
        ) as error:
            raise damaged(subject, f"it does not hold the arrays {', '.join(names)} ({error})") from error
