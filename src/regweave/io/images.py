"""Images and label maps from files, folders and objects in memory, and what an inspection finds in them.

The format of a file is decided once, by its first bytes, and must be the one that its suffix names.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import SimpleITK as sitk  # noqa: N813

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io import nifti, stored, textheader
from regweave.io.dicom.parse import holds_dicom, looks_like_dicom
from regweave.io.dicom.series import choose_series, read_series
from regweave.io.disk.files import is_file, is_folder, open_file, some, stem_of, suffix_of
from regweave.io.geometry import affine_of, make_geometry, ras_to_lps, shear_angle
from regweave.io.labels import list_names, read_names, require_names
from regweave.io.modality import modality_of
from regweave.io.nifti import NiftiFrame
from regweave.types import Geometry, LabelMap, Volume

Format = Literal["NIfTI", "NRRD or MetaImage", "DICOM"]
FORMAT_OF: dict[str, Format] = {
    **dict.fromkeys(nifti.SUFFIXES, "NIfTI"),
    **dict.fromkeys(textheader.SUFFIXES, "NRRD or MetaImage"),
}
"""Formats by suffix; files of DICOM have any."""
HEAD_BYTES = 4096


def read_image(
    source: Any, *, nifti_frame: NiftiFrame = "auto", nonfinite: stored.NonFinite = "error", follow_links: bool = False,
    series: str | None = None,
) -> Volume:  # fmt: skip
    """Read a 3-D scalar image: voxels [i, j, k] in float32 with an affine that ends in LPS millimetres.

    ``source`` is a .nii, .nii.gz, .nrrd, .nhdr, .mha or .mhd file, a folder with one of them or with a DICOM series, an
    image of SimpleITK, nibabel, ANTsPy, TorchIO or MONAI, or (array, RAS affine). A Volume is returned unchanged; a
    bare array is refused. ``nifti_frame`` chooses the matrix that places a NIfTI file; ``auto`` refuses a file whose
    two matrices disagree. NaN and infinite voxels are refused, or with ``nonfinite`` "mask" set to the smallest finite
    value with warning W205. With ``follow_links`` a header may name a file of voxels outside its folder. ``series``
    chooses a DICOM series by the beginning of its hash.
    """
    if isinstance(source, Volume):
        return source
    read = read_stored(source, nifti_frame, follow_links=follow_links, series=series)
    data = read.intensities()
    if (error := stored.nonfinite_error(data, read.subject)) is not None:
        if nonfinite == "error":
            raise error
        notices.warn(f"W205: {error.message}; treated as background")
        finite = np.isfinite(data)
        if not finite.any():
            raise RegweaveError("E104", f"{read.subject} holds no finite voxel at all", "export the image again")
        data = np.where(finite, data, data[finite].min())
    if (error := stored.constant_error(data, read)) is not None:
        raise error
    return Volume(data, read.geometry, read.modality)


def read_labels(
    source: Any, *, names_path: str | Path | Mapping[int, str] | None = None, nifti_frame: NiftiFrame = "auto",
    follow_links: bool = False,
) -> LabelMap:  # fmt: skip
    """Read a label map: whole numbers from 0 on, in the integer type of the source.

    ``source`` is as in `read_image`: integers, or floats that are whole numbers; a LabelMap keeps its voxels.
    ``names_path`` is a JSON, TSV or ITK-SNAP file with the names of the labels, or names by value; by default a file
    beside the map. Raises E106 for negative or fractional values, E127 for the values of an image.
    """
    given = require_names(names_path)
    if isinstance(source, LabelMap):
        return source if given is None else _named(replace(source, names=read_names(given)), "the label map")
    read = read_stored(source, nifti_frame, follow_links=follow_links)
    chosen = names_file(source) if given is None else given
    names = {} if chosen is None else read_names(chosen)
    labels = LabelMap(stored.whole_labels(read.values(), read.subject), read.geometry, names)
    if (error := stored.intensities_error(labels.data, names, read.subject)) is not None:
        raise error
    return labels if given is None else _named(labels, read.subject)


def _named(labels: LabelMap, subject: str) -> LabelMap:
    """Refuse given names none of which belongs to a label of the map: E107."""
    values = [v for v in labels.values() if v]
    if values and not set(values) & set(labels.names):
        message = f"the names are of {list_names(labels.names)}; {subject} holds the labels {values[:20]}, none of them"
        raise RegweaveError("E107", message, "give the names of these labels, or leave --label-names out")
    return labels


def names_file(source: Any) -> Path | None:
    """Find names beside a label map: its own TSV, labels.json, labels.tsv or dseg.tsv, in this order; None for none."""
    if (path := as_path(source)) is None:
        return None
    file = files_of(path)[0]
    candidates = [file.parent / name for name in (f"{stem_of(file)}.tsv", "labels.json", "labels.tsv", "dseg.tsv")]
    return next(filter(is_file, candidates), None)


def read_stored(
    source: Any, nifti_frame: NiftiFrame = "auto", *, follow_links: bool = False, series: str | None = None
) -> stored.Stored:
    """Read a path or an object and check all but its values; what a header forbids is refused before voxels are read.

    Uneven or sheared slices of a DICOM series are interpolated onto an even grid.
    """
    if (path := as_path(source)) is None:  # libraries are recognised by names of classes, so that none is imported
        for name in classes_of(source):
            if name in OBJECTS:
                return OBJECTS[name][1](source, nifti_frame)
        if isinstance(source, tuple) and len(source) == 2:
            return stored.Stored.of_array(np.asanyarray(source[0]), ras_to_lps(source[1]), "the array")
        kinds = ", ".join([*(words for words, _ in OBJECTS.values()), "(array, affine) with nibabel's RAS affine"])
        message = f"cannot read an image from an object of type {type(source).__module__}.{type(source).__qualname__}"
        raise UsageError("E108", message, f"give a path or one of: {kinds}")
    form, found = _find(path)
    if form == "NIfTI":
        return nifti.read_nifti(found, nifti_frame)
    if form != "DICOM":
        return textheader.read_text_header(found, follow_links=follow_links)
    read = read_series(found, series)
    facts = {"dicom": {"modality": read.modality, "images": len(read.slices), "even": read.exact}}
    return stored.Stored(read.image.data, read.image.geometry, f"'{found}'", facts=facts, modality=read.image.modality)


def image_sha256(path: str | Path, *, follow_links: bool = False, series: str | None = None) -> str:
    """Return the SHA-256 of the bytes of all files of an image, one after the other, or of any other file.

    The header of an .mhd or .nhdr file stays the same when its voxels change, so their file counts.
    """
    digest = hashlib.sha256()
    for file in files_of(path, follow_links=follow_links, series=series):
        with open_file(file) as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def files_of(path: str | Path, *, follow_links: bool = False, series: str | None = None) -> tuple[Path, ...]:
    """Return the files that hold an image, the main one first; for a file that is no image that file."""
    try:
        form, found = _find(Path(path))
    except RegweaveError as error:
        if error.code == "E101":
            raise
        return (Path(path),)
    if form == "DICOM":
        return choose_series(found, series).files
    if form == "NIfTI":
        return (found,)
    try:
        voxels = textheader.voxels_file(found, follow_links=follow_links)
    except RegweaveError:  # raised again where the image is read
        return (found,)
    return (found,) if voxels == found else (found, voxels)


def as_path(source: Any) -> Path | None:
    """Return the path that a source is, None for an object."""
    return Path(source) if isinstance(source, str | os.PathLike) else None


def is_dicom(path: Path) -> bool:
    """Return whether an image is in DICOM; raise as reading does where there is none."""
    return _find(path)[0] == "DICOM"


def is_dicom_folder(path: Path) -> bool:
    """Return whether a folder holds files of DICOM, and no image of another format."""
    return is_folder(path) and not _images_in(path) and holds_dicom(path)


def _find(path: Path) -> tuple[Format, Path]:
    """Return the format of an image, and its file; for a folder of DICOM the folder."""
    if is_folder(path):
        if is_dicom_folder(path):
            return "DICOM", path
        images = _images_in(path)
        if len(images) != 1:
            what = f"with {len(images)} images, one is needed: {some([one.name for one in images])}"
            what = what if images else f"without an image file ({', '.join(FORMAT_OF)}) or DICOM series"
            hint = "name the file that is meant" if images else "name the image, or a folder of DICOM slices"
            raise RegweaveError("E101", f"'{path}' is a folder {what}", hint)
        path = images[0]
    suffix = suffix_of(path)
    with open_file(path) as stream:
        head = stream.read(HEAD_BYTES)
    found: Format | None = "NRRD or MetaImage" if textheader.has_text_header(head) else None
    if suffix not in FORMAT_OF and looks_like_dicom(head):
        found = "DICOM"
    elif nifti.begins_nifti(head):
        found = "NIfTI"
    named = FORMAT_OF.get(suffix)
    if found is not None and named not in {None, found}:
        message = f"'{path}' is {found} by its content, its suffix is '{suffix}'"
        raise RegweaveError("E102", message, "give the file the suffix of what it holds, or export it again")
    form = found or named
    if form is None:
        message = f"'{path}' has the suffix '{suffix}', readable are {', '.join(FORMAT_OF)}"
        raise RegweaveError("E103", message, "convert the image to one of these formats")
    return form, path


def _images_in(folder: Path) -> list[Path]:
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        message = f"cannot open '{folder}': {error.strerror} (errno {error.errno})"
        raise RegweaveError("E101", message, "check the name and the permissions") from error
    return [path for path in names if suffix_of(path) in FORMAT_OF and is_file(path) and not path.name.startswith(".")]


# Objects in memory


def classes_of(source: Any) -> list[str]:
    """Return the classes of an object, each with the package that defines it."""
    return [f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(source).__mro__]


def _read_ants(source: Any, _: NiftiFrame) -> stored.Stored:
    data, subject = source.numpy(), "the ANTsPy image"
    stored.require_scalar(data.dtype, int(source.components), subject)
    stored.volume_shape(data.shape, subject)  # before a matrix is made of three axes
    affine = affine_of(np.asarray(source.direction) * np.asarray(source.spacing), source.origin)
    return stored.Stored.of_array(data, affine, subject)


def _read_monai(source: Any, _: NiftiFrame) -> stored.Stored:
    """Read an (X, Y, Z) tensor or one of a single channel, on any device; it is in RAS unless its metadata name LPS."""
    data, subject = np.asarray(source.array), "the MetaTensor"
    if data.ndim == 4:
        stored.require_scalar(data.dtype, data.shape[0], subject)
        data = data[0]
    affine = np.asarray(source.affine, dtype=np.float64)
    return stored.Stored.of_array(data, affine if source.meta.get("space") == "LPS" else ras_to_lps(affine), subject)


def _read_nibabel(source: Any, frame: NiftiFrame) -> stored.Stored:
    """Read voxels, which nibabel has scaled; a NIfTI header is checked as that of a file is."""
    data, subject = np.asanyarray(source.dataobj), "the nibabel image"
    stored.require_unmasked(data, subject)
    if "nibabel.Nifti1Pair" not in classes_of(source):
        return stored.Stored.of_array(data, ras_to_lps(source.affine), subject)
    geometry = nifti.place(source.header, data.shape, subject, frame, dtype=data.dtype)
    return stored.Stored(data.reshape(geometry.shape), geometry, subject)


def _read_sitk(source: Any, _: NiftiFrame) -> stored.Stored:
    subject = "the SimpleITK image"
    while source.GetDimension() > 3 and source.GetSize()[-1] == 1:
        source = sitk.Extract(source, [*source.GetSize()[:-1], 0])
    components = 2 if "complex" in source.GetPixelIDTypeAsString() else source.GetNumberOfComponentsPerPixel()
    stored.require_scalar(np.dtype(float), components, subject)
    axes = np.reshape(source.GetDirection(), (3, 3)) * np.asarray(source.GetSpacing())
    affine = affine_of(axes, source.GetOrigin())
    geometry = make_geometry(stored.volume_shape(source.GetSize(), subject), affine, subject)
    return stored.Stored(np.array(sitk.GetArrayViewFromImage(source).T, order="C"), geometry, subject)


def _read_torchio(source: Any, _: NiftiFrame) -> stored.Stored:
    data, subject = np.asarray(source.data), "the TorchIO image"
    stored.require_scalar(data.dtype, data.shape[0], subject)
    return stored.Stored.of_array(data[0], ras_to_lps(source.affine), subject)


OBJECTS: dict[str, tuple[str, Callable[[Any, NiftiFrame], stored.Stored]]] = {
    "SimpleITK.Image": ("a SimpleITK image", _read_sitk),
    "nibabel.SpatialImage": ("a nibabel image", _read_nibabel),
    "ants.ANTsImage": ("an ANTsPy image", _read_ants),
    "torchio.Image": ("a TorchIO image", _read_torchio),
    "monai.MetaTensor": ("a MONAI MetaTensor", _read_monai),
}
"""Readers of objects by class, each with the words of messages."""


# Inspection


@dataclass(frozen=True)
class Inspection:
    """Facts and problems of an image.

    ``facts`` holds plain values for text and JSON: geometry, frame, value range, digest. No text field of
    the header is copied into it, as such fields may name a patient.
    """

    path: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: tuple[RegweaveError, ...] = ()
    warnings: tuple[str, ...] = ()


def inspect_image(path: str | Path, *, follow_links: bool = False) -> Inspection:
    """Read an image, check everything that `read_image` checks, and collect what is found."""
    facts: dict[str, Any] = {}
    problems: list[RegweaveError] = []
    with notices.collected() as noted, notices.muted():
        try:
            files = files_of(path, follow_links=follow_links)
            facts["bytes"] = sum(file.stat().st_size for file in files)
            try:
                read = read_stored(path, follow_links=follow_links)
            except RegweaveError as error:
                if error.code != "E110":
                    raise
                problems.append(error)  # of two matrices that disagree the sform is taken
                read = read_stored(path, "sform", follow_links=follow_links)
            # After reading: of a file that its header condemns, however long, no more is read.
            geometry, data = read.geometry, read.intensities()
            facts |= read.facts
            facts |= {
                "sha256": image_sha256(path, follow_links=follow_links), "size": list(geometry.shape),
                "spacing_mm": geometry.spacing_mm.tolist(), "origin_mm_lps": geometry.origin_mm.tolist(),
                "direction_lps": geometry.direction.tolist(), "orientation": orientation(geometry),
                "handedness": "right" if np.linalg.det(geometry.direction) > 0 else "left",
                "shear_rad": shear_angle(geometry.direction), "type": str(read.data.dtype.newbyteorder("=")),
            }  # fmt: skip
            finite = data[np.isfinite(data)]
            facts["nonfinite_voxels"] = int(data.size - finite.size)
            if finite.size:
                facts["minimum"], facts["maximum"] = float(finite.min()), float(finite.max())
                facts["mean"] = float(finite.mean(dtype=np.float64))
                facts["ct"] = modality_of(Volume(finite.astype(np.float32), geometry)) == "ct"
            if (bad := stored.nonfinite_error(data, read.subject) or stored.constant_error(data, read)) is not None:
                problems.append(bad)
        except RegweaveError as error:
            problems.append(error)
    return Inspection(str(path), facts, tuple(problems), tuple(noted))


def orientation(geometry: Geometry) -> str:
    """Name the direction in which each image axis grows, nearest anatomical axis, e.g. ``LPS``."""
    direction = geometry.direction
    letters = ""
    for axis in range(3):
        main = int(np.argmax(np.abs(direction[:, axis])))
        letters += ("RL", "AP", "IS")[main][int(direction[main, axis] > 0)]
    return letters
