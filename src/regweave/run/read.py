"""Images and label maps of a pair, read under one set of rules and brought to the canonical axis order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from pydantic import ConfigDict, StrictBool, TypeAdapter

from regweave import io, notices
from regweave.errors import RegweaveError
from regweave.io.geometry import Orientation
from regweave.io.labels import in_numbering, list_names, real_names
from regweave.io.modality import Stated, in_hounsfield, label_values, with_modality
from regweave.io.nifti import NiftiFrame
from regweave.io.stored import NonFinite
from regweave.options import option
from regweave.spatial.voxels import default_window
from regweave.threads import side_by_side
from regweave.types import Field, Geometry, Image, ImagePair, LabelMap, Modality, Volume

if TYPE_CHECKING:
    from os import PathLike

    import SimpleITK
    from nibabel.spatialimages import SpatialImage
    from numpy.typing import ArrayLike

ImageLike: TypeAlias = (
    "str | PathLike[str] | Volume | LabelMap | tuple[ArrayLike, ArrayLike] | SimpleITK.Image | SpatialImage"
)
"""A file, a folder with one image, an (array, RAS affine) tuple, or an image of SimpleITK, nibabel, ANTsPy, TorchIO or
MONAI."""
MOST_SHOWN = 12  # structures of a label map that a message lists


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    label_names: str | Path | Mapping[int, str] | None = option(
        None, "Names of the labels; by default a file beside them. JSON, TSV or ITK-SNAP, or names by value in "
        "Python.", panel="Input", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    classes: tuple[int, ...] | None = option(
        None, "Label values that are kept; the others become background. By default all.", table=True
    )
    fixed_modality: Stated = option(
        "auto", "Kind of the fixed image: auto (by the histogram), ct, mr, t1, t2, pd, flair, pet or us.",
        panel="Input", metavar="WORD", table=True,
    )  # fmt: skip
    moving_modality: Stated = option(
        "auto", "Kind of the moving image, by the same words.", panel="Input", metavar="WORD", table=True
    )
    nifti_frame: NiftiFrame = option(
        "auto", "Matrix that places NIfTI files; auto refuses files whose two disagree.", panel="Input", table=True
    )
    nonfinite: NonFinite = option(
        "error", "Voxels that are not finite numbers: refuse the image, or mask them as background.",
        panel="Input", table=True,
    )  # fmt: skip
    follow_links: StrictBool = option(
        False, "Let headers (.mhd, .nhdr) name files of voxels outside of their folder.", panel="Input", table=True,
        flags=("--follow-links",),
    )  # fmt: skip
    fixed_series: str | None = option(
        None, "DICOM series of the fixed image by the beginning of its hash, where a folder has several.", typed=None
    )
    moving_series: str | None = option(None, "DICOM series of the moving image, named in the same way.", typed=None)
    numbering: Mapping[int, str] | None = option(
        None, "Names by number to which the labels of a whole list are brought.", typed=None
    )

    def __post_init__(self) -> None:
        """Refuse names of labels that are none, before anything is read."""
        object.__setattr__(self, "label_names", io.require_names(self.label_names))

    @property
    def reading(self) -> Reading:
        """These options alone, of a job."""
        return Reading(**{f.name: getattr(self, f.name) for f in fields(Reading)})

    def to_json(self) -> dict[str, Any]:
        """Return the options that differ from their defaults as JSON values; paths are absolute."""
        found = {f.name: v for f in fields(Reading) if (v := getattr(self, f.name)) != f.default}
        if isinstance(self.label_names, str | Path):
            found["label_names"] = str(Path(self.label_names).absolute())
        for name in ("label_names", "numbering"):
            if isinstance(found.get(name), Mapping):
                found[name] = {str(value): text for value, text in found[name].items()}
        return found if self.classes is None else found | {"classes": list(self.classes)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Reading:
        """Inverse of `to_json`."""
        return TypeAdapter(Reading).validate_python(dict(content))

    def image(self, source: Any, stated: Stated = "auto", series: str | None = None) -> Volume:
        """Read a file under these rules, or take an image in memory, and decide its modality."""
        volume = io.read_image(
            source, nifti_frame=self.nifti_frame, nonfinite=self.nonfinite, follow_links=self.follow_links,
            series=series,
        )  # fmt: skip
        if stated in ("auto", "ct") and volume.modality in (None, "ct"):
            volume = in_hounsfield(volume, f"'{source}'" if isinstance(source, str | Path) else "the image")
        return with_modality(volume, stated)

    def labels(self, source: Any, geometry: Geometry, *, mask: bool = False) -> LabelMap | None:
        """Read labels, or a ``mask`` of which all but 0 are inside, and put them on the grid of their image."""
        if source is None:
            return None
        subject = str(source) if isinstance(source, str | Path) else f"the {'mask' if mask else 'label map'}"
        found = io.read_labels(
            source, names_path=None if mask else self.label_names, nifti_frame=self.nifti_frame,
            follow_links=self.follow_links,
        )  # fmt: skip
        found = replace(found, geometry=io.check_same_grid(geometry, found.geometry, subject))
        if mask and not found.data.any():
            raise RegweaveError("E131", f"'{subject}' holds no voxel: it is 0 everywhere", "give another mask, or none")
        if mask:
            return LabelMap(found.data, found.geometry)
        if self.numbering is not None:
            found = in_numbering(found, self.numbering, f"'{subject}'", "the first label maps of the list")
        if self.classes is None:
            return found
        return replace(found, data=np.where(np.isin(found.data, self.classes), found.data, 0))

    def names_beside(self, source: str | Path) -> Mapping[int, str]:
        """Names of the labels of a file, without reading the labels."""
        path = io.names_file(source) if self.label_names is None else self.label_names
        return {} if path is None else io.read_names(path)


@dataclass(frozen=True)
class Inputs:
    """A pair before its initial alignment, in the canonical axis order."""

    # images with their modality, labels and masks; the fixed labels are numbered as the moving ones are, by name
    fixed: Image
    moving: Image
    stored: Mapping[str, Orientation]  # how `fixed` and `moving` are stored
    hashes: Mapping[str, str]  # SHA-256 of each thing that was read, and the path of each that was a file
    sources: Mapping[str, str]

    @property
    def modalities(self) -> tuple[Modality, Modality]:
        """Modality of the fixed and of the moving image."""
        assert self.fixed.modality is not None
        assert self.moving.modality is not None
        return self.fixed.modality, self.moving.modality

    @property
    def masked_voxels(self) -> int:
        """Voxels of the images that have a mask."""
        return sum(image.data.size for image in (self.fixed, self.moving) if image.mask is not None)


def read_inputs(
    fixed: Any, moving: Any, fixed_labels: Any = None, moving_labels: Any = None, reading: Reading | None = None,
    *, fixed_mask: Any = None, moving_mask: Any = None,
) -> Inputs:  # fmt: skip
    """Read and check images, label maps and masks; label maps and masks take their image's grid."""
    reading = reading or Reading()
    sources = {
        "fixed": fixed, "moving": moving, "fixed_labels": fixed_labels, "moving_labels": moving_labels,
        "fixed_mask": fixed_mask, "moving_mask": moving_mask,
    }  # fmt: skip
    words = [
        (fixed, reading.fixed_modality, reading.fixed_series), (moving, reading.moving_modality, reading.moving_series),
    ]  # fmt: skip
    a, b = side_by_side(lambda given: reading.image(*given), words)
    fixed_map, moving_map = reading.labels(fixed_labels, a.geometry), reading.labels(moving_labels, b.geometry)
    for name, found in (("fixed", fixed_map), ("moving", moving_map)):
        if found is not None and reading.classes is None and not found.values():
            source = sources[f"{name}_labels"]
            subject = f"'{source}'" if isinstance(source, str | Path) else "the label map"
            message = f"{subject} shows no structure: every voxel of the {name} labels is 0"
            raise RegweaveError("E131", message, "give the right label map, or leave it out")
    inside = reading.labels(fixed_mask, a.geometry, mask=True), reading.labels(moving_mask, b.geometry, mask=True)
    for name, volume, mask in (("fixed", a, inside[0]), ("moving", b, inside[1])):
        if n := label_values(volume):
            notices.warn(
                f"W256: the {name} image looks like a label map: {n} whole values in flat regions. If it is one, give "
                f"it as --{name}-labels, and the scan as the image"
            )
        if mask is None or volume.modality is None:
            continue
        shown = volume.data[mask.data != 0]
        low, high = default_window(shown, volume.modality)
        if low >= high:  # no window maps it to [0, 1]
            message = f"the {name} image is {low:g} at each of the {shown.size} voxels inside its mask"
            raise RegweaveError("E139", message, "give a larger mask, or none")
    values = dict(zip(sources, (a, b, fixed_map, moving_map, *inside), strict=True))
    hashes = {k: _hash(s, values[k], reading, k) for k, s in sources.items() if s is not None}
    if fixed_map is not None and moving_map is not None:
        present = real_names(moving_map.names, moving_map.values())
        fixed_map = in_numbering(fixed_map, present, "the fixed labels", "the moving labels")
        if reading.classes is None and not set(fixed_map.values()) & set(moving_map.values()):
            raise RegweaveError(
                "E126",
                "the fixed labels and the moving labels have no structure in common: neither a name nor a number\n"
                f"  fixed labels: {list_names(fixed_map.names, fixed_map.values(), MOST_SHOWN)}\n"
                f"  moving labels: {list_names(moving_map.names, moving_map.values(), MOST_SHOWN)}",
                "give labels of the same structures, names for both with --label-names, or one label map alone",
            )
    if fixed_map is not None and moving_map is None:
        what = "fixed labels are given and moving labels are missing; give both for Dice"
        notices.warn(f"W249: nothing is scored: {what}")
    files = {k: str(Path(s).absolute()) for k, s in sources.items() if isinstance(s, str | Path)}
    stored = {"fixed": Orientation.of(a.geometry), "moving": Orientation.of(b.geometry)}
    fixed_image, moving_image = (
        Image.of(of.turned(volume), labels and of.turned(labels), mask and of.turned(mask))
        for volume, labels, mask, of in zip((a, b), (fixed_map, moving_map), inside, stored.values(), strict=True)
    )
    return Inputs(fixed_image, moving_image, stored, hashes, files)


def as_stored(pair: ImagePair, inputs: Inputs) -> ImagePair:
    """Return a pair in canonical order as its files have it."""
    fixed, moving = inputs.stored["fixed"], inputs.stored["moving"]
    fixed_image, moving_image = (
        Image.of(of.as_stored(one), one.labels and of.as_stored(one.labels), one.mask and of.as_stored(one.mask))
        for one, of in ((pair.fixed, fixed), (pair.moving, moving))
    )
    # The vectors of a field are in LPS and stay.
    field = pair.initial_field
    start = None if field is None else Field(fixed.to_stored(field.data), fixed.stored)
    return ImagePair(fixed_image, moving_image, pair.initial, start)


def _hash(source: Any, value: Volume | LabelMap | None, reading: Reading, name: str) -> str:
    if isinstance(source, str | Path):
        return io.image_sha256(
            source, follow_links=reading.follow_links, series=getattr(reading, f"{name}_series", None)
        )
    assert value is not None
    digest = hashlib.sha256(np.ascontiguousarray(value.data).tobytes())
    digest.update(value.geometry.affine.tobytes())
    return digest.hexdigest()
