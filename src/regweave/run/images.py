"""Images and transforms of a registration, and their files."""

import re
import shutil
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from regweave import io
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import MAX_ARCHIVE_BYTES, damaged, is_file, open_file, read_json, require_memory
from regweave.io.disk.records import write_record
from regweave.io.transforms.files import smallest_displacement, write_linear
from regweave.run.record import Provenance
from regweave.spatial.warp import invert, warp_image, warp_labels
from regweave.types import Field, Geometry, ImagePair, LabelMap, NodeEvidence, Transform, Volume

FILES = {
    "warped": "warped.nii.gz", "labels": "warped_labels.nii.gz", "transform": "transform.h5", "inverse": "inverse.h5",
    "displacement": "displacement.nii.gz", "report": "report.html",
}  # fmt: skip
"""What can be chosen, and its file; ``result.json`` is always written, ``report`` has the folder ``view`` besides."""
DEFAULT = ("warped", "labels", "transform", "inverse", "report")
"""All but the displacement, which repeats the transform."""
SMALL_VOXELS = 1_000_000
"""Up to this size the displacement is written too: programs that read no ITK transform read it, and it costs little."""
NEEDED_BY_REPORT = ("warped", "labels", "transform")
LIMIT = "error_limit.nii.gz"
"""Map of the limits of the error in mm, -1 where unknown; written wherever the registration was checked."""
VIEW, NODES = "view", "nodes.npz"
"""Folder of what a page shows and the other files do not hold, and its file of the evidence of the last step."""
WHOLE_UNITS_RANGE = 2000.0
"""Images that span more than this lose nothing that is seen when they are rounded to whole numbers."""
BROKEN = OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, BadZipFile, zlib.error
"""What reading a damaged archive raises."""
LABEL = re.compile(r"-?[0-9]{1,20}")  # up to 64 bits


def usual_outputs(n_voxels: int) -> tuple[str, ...]:
    """Return the default outputs for a fixed image of that many voxels."""
    return check_outputs((*DEFAULT, "displacement") if n_voxels <= SMALL_VOXELS else DEFAULT)


def check_outputs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of outputs in their usual order, or raise E119."""
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
    """Read names with commas between them."""
    return check_outputs(name.strip() for name in text.split(","))


@dataclass(frozen=True)
class OutputImages:
    """Images and transforms of a registration, in memory."""

    transform: Transform  # fixed to moving points, and back
    inverse: Transform
    warped: Volume  # the moving image and labels on the fixed grid, interpolated once from the originals
    warped_labels: LabelMap | None
    pair: ImagePair  # what was registered, at its start
    nodes: NodeEvidence | None = None  # evidence of the last discrete step, for the page
    limit: Volume | None = None  # limit of the error in mm at each fixed voxel, where the registration was checked

    @property
    def fixed(self) -> Volume:
        """The fixed image."""
        return self.pair.fixed

    @property
    def fixed_labels(self) -> LabelMap | None:
        """Labels of the fixed image."""
        return self.pair.fixed.labels

    @property
    def start(self) -> Transform:
        """Takes fixed points to moving points as initially aligned."""
        return Transform(self.pair.initial_field or Field.zero(self.pair.fixed.geometry), self.pair.initial)

    @property
    def before(self) -> Volume:
        """The moving image on the fixed grid, as initially aligned."""
        return warp_image(self.pair.moving, self.start, fill=io.fill_value(self.pair.moving))

    @property
    def labels_before(self) -> LabelMap | None:
        """The moving labels on the fixed grid, as initially aligned."""
        return None if self.pair.moving.labels is None else warp_labels(self.pair.moving.labels, self.start)

    def usual_outputs(self) -> tuple[str, ...]:
        """Names of the files that are written by default."""
        return usual_outputs(self.warped.data.size)

    @property
    def names(self) -> dict[int, str]:
        """Name of each label; that of the fixed labels wins."""
        every = (self.warped_labels, self.pair.moving.labels, self.pair.fixed.labels)
        maps = [labels for labels in every if labels is not None]
        names = {v: labels.name(v) for labels in maps for v in labels.values()}
        for labels in maps:
            names |= {v: name for v, name in labels.names.items() if v in names}
        return names

    def write(self, folder: Path, chosen: Collection[str]) -> None:
        """Write the chosen files; for a report, what it shows besides them."""
        files = {name: folder / FILES[name] for name in chosen}
        if self.limit is not None:
            io.write_image(folder / LIMIT, self.limit)
        if "warped" in files:
            io.write_image(files["warped"], self.warped)
        if "labels" in files and self.warped_labels is not None:
            io.write_labels(files["labels"], self.warped_labels)
        for name in ("transform", "inverse"):
            if name in files:
                found: Transform = getattr(self, name)
                if found.field.data.any():
                    io.write_transform(files[name], found)
                else:
                    write_linear(files[name], found.affine, found.ends)
        if "displacement" in files:
            io.write_displacement(files["displacement"], smallest_displacement(self.transform), self.transform.ends)
        if "report" in files:
            # Where a structure set is written, the file of the labels has the grid of the scan.
            self._write_view(folder / VIEW, warped_labels="labels" not in files)

    def _write_view(self, target: Path, *, warped_labels: bool) -> None:
        target.mkdir()
        _write_view_image(target / "fixed.nii.gz", self.fixed)
        _write_view_image(target / "moving.nii.gz", self.before)
        labels = {"fixed_labels": self.fixed_labels, "moving_labels": self.labels_before}
        for name, found in {**labels, "warped_labels": self.warped_labels if warped_labels else None}.items():
            if found is not None:
                io.write_labels(target / f"{name}.nii.gz", found)
        nodes = self.nodes
        if nodes is not None:
            with io.atomic_path(target / NODES) as part:
                at, influence, confidence = nodes.geometry.affine, nodes.influence, nodes.confidence
                np.savez_compressed(part, affine=at, influence=influence, confidence=confidence)
        content = {"members": [] if nodes is None else list(nodes.members), "names": self.names}
        write_record(target / "view.json", content)


def _write_view_image(path: Path, volume: Volume) -> None:
    low, high = float(volume.data.min()), float(volume.data.max())
    whole = high - low > WHOLE_UNITS_RANGE and low > -32768 and high < 32767
    io.write_image(path, volume, np.int16 if whole else None)


@dataclass(frozen=True)
class SavedImages:
    """Images and transforms of a registration in its folder, each read when it is first used."""

    folder: Path  # folder that `regweave register` or `Result.save` wrote
    # inputs of the registration, since labels that are not among them have no file, and its start
    provenance: Provenance

    @property
    def start(self) -> Transform:
        """The transform of the start, which the record holds where it is a matrix.

        Raises E198, where the start was a field.
        """
        start = self.provenance.start
        if start.field:
            message = f"'{self.folder}' does not hold its start: the record has no matrix of it"
            raise RegweaveError("E198", message, "register again, with the landmarks")
        return Transform(Field.zero(self.transform.field.geometry), np.array(start.matrix))

    @cached_property
    def transform(self) -> Transform:
        """The transform from fixed to moving points."""
        return self._transform("transform")

    @cached_property
    def inverse(self) -> Transform:
        """Its inverse, computed where no file holds it and the transform names the grid it leads to."""
        if not is_file(self.folder / FILES["inverse"]) and self.transform.ends is not None:
            return invert(self.transform)[0]
        return self._transform("inverse")

    @cached_property
    def warped(self) -> Volume:
        """The moving image on the fixed grid."""
        return io.read_image(self._file(FILES["warped"]))

    @cached_property
    def warped_labels(self) -> LabelMap | None:
        """The moving labels on the fixed grid."""
        shown = f"{VIEW}/{FILES['labels']}"
        return self._labels("moving_labels", shown if is_file(self.folder / shown) else FILES["labels"])

    @cached_property
    def fixed(self) -> Volume:
        """The fixed image; a CT has whole Hounsfield units here."""
        return io.read_image(self._file(f"{VIEW}/fixed.nii.gz"))

    @cached_property
    def fixed_labels(self) -> LabelMap | None:
        """Labels of the fixed image."""
        return self._labels("fixed_labels", f"{VIEW}/fixed_labels.nii.gz")

    @property
    def before(self) -> Volume:
        """The moving image on the fixed grid, as initially aligned."""
        return io.read_image(self._file(f"{VIEW}/moving.nii.gz"))

    @property
    def labels_before(self) -> LabelMap | None:
        """The moving labels on the fixed grid, as initially aligned."""
        return self._labels("moving_labels", f"{VIEW}/moving_labels.nii.gz")

    @property
    def names(self) -> dict[int, str]:
        """Name of each label."""
        return {int(value): str(name) for value, name in self._view["names"].items()}

    @property
    def nodes(self) -> NodeEvidence | None:
        """Evidence of the last discrete step, where there is any."""
        return _read_nodes(self.folder / VIEW / NODES, tuple(map(str, self._view["members"])))

    @property
    def limit(self) -> Volume | None:
        """Limit of the error in mm at each fixed voxel, where the registration was checked."""
        path = self.folder / LIMIT
        return io.read_image(path) if is_file(path) else None

    @cached_property
    def _view(self) -> dict[str, Any]:
        path = self._file(f"{VIEW}/view.json")
        found = read_json(path)
        names, members = found.get("names"), found.get("members")
        if not isinstance(members, list) or not isinstance(names, dict) or not all(map(LABEL.fullmatch, names)):
            raise damaged(f"'{path}'", "it does not describe a view")
        return found

    def usual_outputs(self) -> tuple[str, ...]:
        """Names of the files that are there."""
        there = [name for name in FILES if is_file(self.folder / FILES[name])]
        if "moving_labels" not in self.provenance.inputs and "report" in there:
            there.append("labels")  # none to show is no hindrance to a page
        return tuple(name for name in FILES if name in there)

    def write(self, folder: Path, chosen: Collection[str]) -> None:
        """Copy the chosen files, and what the page is made from; the page itself is made again."""
        if is_file(self.folder / LIMIT):
            shutil.copyfile(self.folder / LIMIT, folder / LIMIT)
        for name in chosen:
            if name == "report":
                shutil.copytree(self._file(f"{VIEW}/view.json").parent, folder / VIEW)
            elif name != "labels" or "moving_labels" in self.provenance.inputs:
                shutil.copyfile(self._file(FILES[name]), folder / FILES[name])

    def _transform(self, name: str) -> Transform:
        path = self._file(FILES[name])
        found = io.read_transform(path)
        return found if found.ends is None else io.read_transform(path, found.ends.start)

    def _labels(self, source: str, name: str) -> LabelMap | None:
        return io.read_labels(self._file(name)) if source in self.provenance.inputs else None

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if is_file(path):
            return path
        message = f"'{self.folder}' has no {name}: the result was written without it"
        raise RegweaveError("E198", message, "register again with all outputs; see --write, or save(write=…)")


def _read_nodes(path: Path, members: tuple[str, ...]) -> NodeEvidence | None:
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
    return NodeEvidence(Geometry((x, y, z), affine), members, influence, confidence)


def read_arrays(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Read arrays by name from what `numpy.savez_compressed` wrote.

    E101 is no regular file, E102 a damaged archive or another one, E140 more than the machine has memory for.
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
        except BROKEN as error:
            raise damaged(subject, f"it does not hold the arrays {', '.join(names)} ({error})") from error
