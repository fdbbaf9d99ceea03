"""Images and transforms of a registration, and the files that they become."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regweave.errors import UsageError
from regweave.io import (
    fill_value,
    smallest_displacement,
    write_displacement,
    write_image,
    write_labels,
    write_transform,
)
from regweave.io.records.view import write_view
from regweave.spatial.warp import warp_image, warp_labels
from regweave.types import Field, ImagePair, LabelMap, NodeEvidence, Transform, Volume

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
