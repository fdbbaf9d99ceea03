"""Transform files, in ITK's convention: fixed points to moving points; and what they state of their images."""

import hashlib
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import nibabel as nib
import numpy as np
import SimpleITK as sitk  # noqa: N813
from numpy.typing import NDArray

from regweave import _core, notices
from regweave.errors import RegweaveError, UsageError
from regweave.io import nifti, textheader
from regweave.io.dicom.reg import read_reg
from regweave.io.disk.files import damaged, require_file, suffix_of
from regweave.io.disk.outputs import atomic_path, identity
from regweave.io.geometry import describe, grid_hash, make_geometry, same_grid, same_voxels
from regweave.io.transforms import itk
from regweave.io.write import in_order, nibabel_image, save_itk, save_nifti
from regweave.types import Direction, Ends, Field, Float64Array, Geometry, Transform

DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
HDF_SUFFIXES = (".h5", ".hdf5", ".hdf")
WRITTEN_SUFFIXES = (*HDF_SUFFIXES, ".tfm", ".txt")
LINEAR_SUFFIXES = (*WRITTEN_SUFFIXES, ".mat")
DOUBLE = "_double_3_3"

Written = tuple[str, "NDArray[Any] | Field", Float64Array]
"""A transform that is written: its type, parameters and fixed parameters; the vectors of a field are listed then."""


def write_transform(path: str | Path, transform: Transform) -> None:
    """Write an ITK composite of affine and displacement field, in this order always and both of them always.

    ITK applies the last one first: the field, then the affine, as `Transform` does. The field is that of the knots
    where there are any. HDF5 files are compressed; the vectors of a field of more than half a million voxels are
    rounded, by at most 0.0005 mm, or 0.0099 mm above three million voxels. The file states the ends of the transform.
    """
    field, grid = transform.interpolated, transform.interpolated.geometry
    numbers = [*grid.shape, *grid.origin_mm, *grid.spacing_mm, *grid.direction.ravel()]
    whole: Written = (itk.FIELD + DOUBLE, field, np.array(numbers, dtype=np.float64))
    parts = [(itk.COMPOSITE + DOUBLE, np.empty(0), np.empty(0)), _linear_part(transform.affine), whole]
    _write(path, parts, WRITTEN_SUFFIXES, transform.ends)


def write_linear(path: str | Path, matrix: Float64Array, ends: Ends | None = None) -> None:
    """Write a (4, 4) matrix between LPS millimetres as an ITK affine transform; .mat has no room for the ends."""
    _write(path, [_linear_part(matrix)], LINEAR_SUFFIXES, ends)


def read_transform(source: Any, geometry: Geometry | None = None, *, follow_links: bool = False) -> Transform:
    """Read any ITK transform or displacement field, from a file or from memory.

    Files are .h5, .hdf5, .hdf, .tfm, .txt, .mat, a DICOM registration (.dcm), or a displacement field as .nii, .nii.gz,
    .nrrd or .mha; a NIfTI field of intent 1007 is LPS, of intent 1006 RAS. In memory it is a SimpleITK transform, a (4,
    4) matrix between LPS millimetres, or a Transform. With `follow_links` a field may name a file outside its folder.

    An affine followed by one field, or a field alone, keeps its numbers unless `geometry` is another grid; its own
    field is then kept as the knots. Without `geometry` a linear transform gets a zero field that is valid everywhere.
    Any other transform is sampled on `geometry`, and refused without. The ends are None where the file does not state
    them.
    """
    if not isinstance(source, str | os.PathLike):
        return _on_grid(itk.as_transform(source, geometry), geometry)
    path = require_file(Path(source))
    if suffix_of(path) in FIELD_SUFFIXES:
        field, ends = read_displacement(path, follow_links=follow_links)
        itk.require_sense(field.data, field.geometry, f"'{path}'")
        return _on_grid(Transform(field, ends=ends), geometry)
    if suffix_of(path) in DICOM_SUFFIXES:
        found = read_reg(path)
        flat = Transform(Field.zero(geometry or itk.ANYWHERE), found.transform.affine)
        return flat if found.linear else _on_grid(found.transform, geometry)
    parts, ends = _read(path)
    if all(part.kind in itk.LINEAR for part in parts):
        return Transform(Field.zero(geometry or itk.ANYWHERE), _matrix(parts, path), ends)
    *outer, inner = parts
    if inner.kind == itk.FIELD and all(part.kind in itk.LINEAR for part in outer):
        grid = itk.grid_of(inner.fixed, f"'{path}'")
        itk.require_sense(inner.parameters, grid, f"'{path}'")  # before the numbers become single precision
        field = Field(itk.component_first(inner.parameters.reshape(*grid.shape[::-1], 3), f"'{path}'"), grid)
        return _on_grid(Transform(field, _matrix(outer, path), ends), geometry)
    if geometry is None:
        message = f"'{path}' is a {' and '.join(part.kind for part in parts)} and has no grid of its own"
        raise RegweaveError("E115", message, "name the image on whose grid it is sampled, --reference")
    whole = sitk.CompositeTransform([part.to_sitk() for part in parts])
    return Transform(itk.sample(whole, geometry, f"'{path}'"), ends=ends)


def total_displacement(transform: Transform, field: Field | None = None) -> Field:
    """Return affine and field as one displacement on the grid of the field, the transform's own by default."""
    field, matrix = field or transform.field, transform.affine
    points = field.geometry.points(np.moveaxis(np.indices(field.geometry.shape, dtype=np.float64), 0, -1))
    moved = points + np.moveaxis(field.data, 0, -1)
    moved = moved @ matrix[:3, :3].T + matrix[:3, 3]
    return Field(np.ascontiguousarray(np.moveaxis(moved - points, -1, 0), dtype=np.float32), field.geometry)


def smallest_displacement(transform: Transform) -> Field:
    """Return affine and field as one displacement whose trilinear interpolation is the whole map.

    Its grid is that of the knots where there are any, with one more node at each end. Between the last voxel and the
    end of the fixed image the knots are constant, and the affine part of the displacement is not.
    """
    if transform.knots is None:
        return total_displacement(transform)
    inner = transform.knots.geometry
    affine = inner.affine.copy()
    affine[:3, 3] = inner.points(np.full(3, -1.0))
    x, y, z = (n + 2 for n in inner.shape)
    return total_displacement(transform, _resampled(transform.knots, Geometry((x, y, z), affine)))


def _linear_part(matrix: Float64Array) -> Written:
    m = np.asarray(matrix, dtype=np.float64)
    return "AffineTransform" + DOUBLE, np.concatenate([m[:3, :3].ravel(), m[:3, 3]]), np.zeros(3)


def _write(path: str | Path, parts: Sequence[Written], suffixes: tuple[str, ...], ends: Ends | None) -> None:
    path = Path(path)
    suffix = suffix_of(path)
    if suffix not in suffixes:
        message = f"cannot write '{path}': the suffix must be one of {', '.join(suffixes)}"
        raise UsageError("E152", message, "choose one of these suffixes")
    with atomic_path(path) as part, part.open("wb") as stream:
        if suffix in HDF_SUFFIXES:
            stream.write(to_hdf(parts, notes_of(ends)))
        elif suffix == ".mat":
            from scipy.io import savemat  # noqa: PLC0415  (for a rare format)

            name, numbers, fixed = parts[0]  # in MATLAB's level 4, as ITK writes it
            savemat(stream, {name: numbers, itk.FIXED: fixed}, format="4", oned_as="column")
        else:
            stream.writelines(to_text(parts, to_line(ends)))
    itk.written.add(identity(path))


def _read(path: Path) -> tuple[list[itk.Part], Ends | None]:
    subject, suffix = f"'{path}'", suffix_of(path)
    if suffix not in LINEAR_SUFFIXES:
        known = ", ".join((*LINEAR_SUFFIXES, *FIELD_SUFFIXES))
        message = f"{subject} has the suffix '{suffix}', transforms are read from {known}"
        raise RegweaveError("E115", message, "convert the transform with the program that wrote it")
    if suffix in HDF_SUFFIXES:
        parts, notes = itk.read_hdf(path)
        digest = hashlib.sha256()
        for name, parameters, fixed in parts if NUMBERS in notes else ():
            digest.update(name.encode("ascii", errors="replace") + b"\0")
            for numbers in (fixed, parameters):
                list(_hashed(numbers, digest))
        if NUMBERS in notes and digest.hexdigest() != notes[NUMBERS]:
            raise damaged(subject, "its numbers are not those that were written (SHA-256)")
        return itk.check_parts(parts, subject), ends_of(notes, subject)
    if suffix == ".mat":
        return itk.check_parts(itk.read_matlab(path), subject), None
    parts, note = itk.read_text(path)
    return itk.check_parts(parts, subject), from_line(note, subject)


def _matrix(parts: Sequence[itk.Part], path: Path) -> Float64Array:
    """Multiply linear parts into one matrix; the last is applied first."""
    matrix = np.eye(4)
    for part in parts:
        matrix = matrix @ itk.linear_matrix(part.to_sitk())
    return itk.require_matrix(matrix, f"the matrix of '{path}'")


def _on_grid(transform: Transform, geometry: Geometry | None) -> Transform:
    """Sample a field on another grid; it stays what the map is between the voxels of that grid."""
    if geometry is None:
        return transform
    if same_grid(geometry, transform.field.geometry):
        return Transform(Field(transform.field.data, geometry), transform.affine, transform.ends, transform.knots)
    field = transform.interpolated
    return Transform(_resampled(field, geometry), transform.affine, transform.ends, knots=field)


def _resampled(field: Field, geometry: Geometry) -> Field:
    """Interpolate a field trilinearly; beyond its grid the nearest vector holds, as in `Transform`."""
    matrix = np.ascontiguousarray(np.linalg.solve(field.geometry.affine, geometry.affine)[:3])
    still = np.zeros((3, *geometry.shape), dtype=np.float32)
    return Field(
        np.stack([_core.warp(np.ascontiguousarray(c), matrix, still, 0.0, True) for c in field.data]), geometry
    )


# Displacement fields as images

FIELD_SUFFIXES = (*nifti.SUFFIXES, *textheader.SUFFIXES)
INTENT_RAS, INTENT_LPS = 1006, 1007
SIGNS = {INTENT_LPS: (1.0, 1.0, 1.0), INTENT_RAS: (-1.0, -1.0, 1.0)}
"""What takes the stored components to LPS: NIfTI's DISPVECT is RAS, ITK writes VECTOR in LPS."""


def read_displacement(path: Path, *, follow_links: bool = False) -> tuple[Field, Ends | None]:
    """Read a field of displacements from fixed to moving points and what its header states of its ends, or raise E115.

    With `follow_links` a header may name a file of vectors outside its folder.
    """
    if suffix_of(path) in nifti.SUFFIXES:
        stored = nifti.read_header(path)
        return _nifti_field(stored), from_line(stored.comment(KEY), stored.subject)
    head = textheader.read_header(path, follow_links=follow_links)
    return _text_field(head), from_line(head.keys.get(KEY, ""), head.subject)


def write_displacement(path: str | Path, field: Field, ends: Ends | None = None) -> None:
    """Write a displacement field, float32 LPS millimetres.

    NIfTI gets five dimensions and intent 1007, the form that ITK, ANTs and 3D Slicer read as a transform in
    the resampling convention: it takes fixed points to moving points. NRRD and MHA hold three components.
    The ends are written into a comment extension of NIfTI, or a field of another header.
    """
    path = Path(path)
    if suffix_of(path) in nifti.SUFFIXES:
        vectors = np.moveaxis(field.data.astype(np.float32, copy=False), 0, -1)
        image = nibabel_image(vectors[:, :, :, np.newaxis, :], field.geometry)
        image.header.set_intent("vector")  # 1007, whose numbers ITK reads as LPS; 1006 would be read as RAS
        if ends is not None:
            line = f"{KEY} {to_line(ends)}".encode("ascii")
            image.header.extensions.append(nib.nifti1.Nifti1Extension(nifti.COMMENT, line))
        save_nifti(path, image)
        return
    image = field.to_sitk()
    image.SetMetaData("displacement field type", "resampling")  # 3D Slicer's name for our direction
    if ends is not None:
        image.SetMetaData(KEY, to_line(ends))
    save_itk(path, image)


def _refuse(subject: str, reason: str, hint: str) -> RegweaveError:
    return RegweaveError("E115", f"{subject} is no displacement field: {reason}", hint)


def _nifti_field(head: nifti.NiftiHeader) -> Field:
    subject, shape, intent = head.subject, head.shape, int(head.header["intent_code"])
    if len(shape) != 5 or shape[3:] != (1, 3) or head.dtype.kind != "f":
        reason = f"shape {shape} of {head.dtype}, needed is (X, Y, Z, 1, 3) of floats"
        raise _refuse(subject, reason, "write it with SimpleITK as a vector image; (X, Y, Z, 3) states no frame")
    if intent not in SIGNS:
        reason = f"intent code {intent}, needed is {INTENT_LPS} (LPS) or {INTENT_RAS} (RAS)"
        raise _refuse(subject, reason, "without it the frame of the vectors is unknown")
    if bytes(head.header["intent_name"].item()).startswith(b"NREG_TRANS"):
        reason = "NiftyReg wrote it, whose fields may hold positions"
        raise _refuse(subject, reason, "convert it first: reg_transform -disp, then to ITK's LPS")
    geometry = nifti.place(head.header, shape[:3], subject, dtype=None)
    slope, inter = head.scaling
    vectors = (head.read_voxels()[:, :, :, 0, :].astype(np.float64) * slope + inter) * SIGNS[intent]
    return Field(itk.component_first(vectors.transpose(2, 1, 0, 3), subject), geometry)


def _text_field(head: textheader.ImageHeader) -> Field:
    if len(head.shape) != 3 or head.components != 3:
        reason = f"{head.components} components in {len(head.shape)} dimensions, needed 3 in 3"
        raise _refuse(head.subject, reason, "give a vector image")
    if not head.vectors_lps:
        raise _refuse(head.subject, "its vectors are not along the axes of LPS", "write it with SimpleITK, in LPS")
    key = "displacement field type"
    if head.keys.get(key, "resampling") != "resampling":
        reason = f"its {key} is '{head.keys[key]}', which takes moving points to fixed points"
        raise _refuse(head.subject, reason, "export it in the resampling convention")
    assert head.affine is not None  # there are three axes
    geometry = make_geometry(head.shape, head.affine, head.subject)
    return Field(itk.component_first(head.read_voxels().transpose(3, 2, 1, 0), head.subject), geometry)


# Writers of lists of numbers

FINE_MM, COARSE_MM = 0.0005, 0.0099
"""Largest change of a vector in a field of up to `LARGE` voxels, and in a larger one."""
SMALL, LARGE = 500_000, 3_000_000  # A field of up to `SMALL` voxels is not rounded
FINE_PER_VOXEL, COARSE_PER_VOXEL = 1 / 1024, 1 / 32
"""The same bounds in units of the smallest spacing, for images of small things."""
SLAB_VOXELS, PIECE = 2**22, 1 << 20
"""Voxels and numbers that are listed at a time: beside a large field there is no room for its list."""


def pieces_of(numbers: NDArray[Any] | Field, *, exact: bool = False) -> Iterator[NDArray[Any]]:
    """Give a list of numbers in pieces: one for an array, for a field some planes, in ITK's order.

    There x runs fastest and components are together. Unless ``exact`` the numbers of a field are multiples of a power
    of two of a millimetre, and no vector changes by more than `bound_mm`.
    """
    if not isinstance(numbers, Field):
        yield numbers
        return
    data, bound = np.ascontiguousarray(numbers.data, dtype=np.float32), 0.0 if exact else bound_mm(numbers)
    step = 2.0 ** math.floor(math.log2(2 * bound)) if bound > 0 else 0.0
    x, y, z = numbers.geometry.shape
    planes = max(1, SLAB_VOXELS // (x * y))
    for first in range(0, z, planes):
        yield _core.list_vectors(data, first, min(planes, z - first), step, bound).ravel()


def bound_mm(field: Field) -> float:
    """Return the largest change that rounding may make to a vector of this field."""
    spacing = float(field.geometry.spacing_mm.min())
    voxels = math.prod(field.geometry.shape)
    if voxels <= SMALL:
        return 0.0
    if voxels > LARGE:
        return min(COARSE_MM, spacing * COARSE_PER_VOXEL)
    return min(FINE_MM, spacing * FINE_PER_VOXEL)


def to_text(parts: Sequence[Written], note: str = "") -> Iterator[bytes]:
    """Give the pieces of a text file; numbers in the shortest form that reads back as the same bits."""
    yield itk.TEXT_HEAD + b"\n"
    if note:
        yield itk.NOTE + note.encode("ascii") + b"\n"
    for n, (type_name, parameters, fixed) in enumerate(parts):
        yield f"#Transform {n}\nTransform: {type_name}\n".encode("ascii")
        if type_name.startswith(itk.COMPOSITE):
            continue
        for key, numbers in (("Parameters:", parameters), ("FixedParameters:", fixed)):
            yield key.encode("ascii")
            for piece in pieces_of(numbers, exact=True):
                for start in range(0, piece.size, PIECE):
                    yield b" " + " ".join(map(repr, piece[start : start + PIECE].tolist())).encode("ascii")
            yield b"\n"


CHUNK = 1 << 18
LEVEL, LONG_LEVEL = 4, 1
"""Of gzip: higher ones take three times as long for two per cent; 1 takes two thirds of the time of 4 for three."""
LONG = 1 << 24  # Lists of more numbers are packed with `LONG_LEVEL`
NUMBERS = "numbers_sha256"


def to_hdf(parts: Sequence[Written], notes: Mapping[str, str]) -> memoryview:
    """Give the bytes of a file in ITK's layout; the same numbers give the same bytes for any number of threads.

    Lists are chunked, shuffled and deflated, filters that each build of HDF5 has. The root carries the notes, and a
    SHA-256 of all numbers, which nothing else in the format would protect.
    """
    import h5py  # noqa: PLC0415  (a quarter of the time of importing the package, and few calls write)

    content = io.BytesIO()
    text, digest = h5py.string_dtype("ascii"), hashlib.sha256()
    with h5py.File(content, "w", libver=("v108", "v108"), track_order=False) as file:
        for n, (type_name, parameters, fixed) in enumerate(parts):
            group = file.create_group(f"TransformGroup/{n}")
            group.create_dataset("TransformType", data=[type_name], dtype=text)
            digest.update(type_name.encode("ascii") + b"\0")
            for name, numbers in (("TransformFixedParameters", fixed), ("TransformParameters", parameters)):
                pieces = _hashed(numbers, digest)
                if type_name.startswith(itk.COMPOSITE):
                    list(pieces)
                else:
                    _write_list(group, name, numbers, pieces)
        for name, note in {**notes, NUMBERS: digest.hexdigest()}.items():
            file.attrs.create(name, note.encode("ascii"), dtype=h5py.string_dtype("ascii", max(1, len(note))))
    return content.getbuffer()


def _write_list(group: Any, name: str, numbers: NDArray[Any] | Field, pieces: Iterable[NDArray[Any]]) -> None:
    """Write a list; the chunks of a long one are packed side by side, which the library itself does not do."""
    count, dtype = (numbers.data.size, np.float32) if isinstance(numbers, Field) else (numbers.size, numbers.dtype)
    if count <= CHUNK // 64:
        group.create_dataset(name, data=np.concatenate(list(pieces)))
        return
    level, size = LONG_LEVEL if count > LONG else LEVEL, min(CHUNK, count)
    options = {"compression": "gzip", "compression_opts": level, "shuffle": True}
    data = group.create_dataset(name, (count,), dtype, chunks=(size,), **options)
    # The bytes are ordered as by HDF5's filters: the first of all numbers, then the second ones, …; and deflated.
    shuffled = (np.ascontiguousarray(chunk.view(np.uint8).reshape(size, -1).T) for chunk in _chunks(pieces, size))
    for n, packed in enumerate(in_order(lambda block: zlib.compress(block.data, level), shuffled)):
        data.id.write_direct_chunk((n * size,), packed)


def _chunks(pieces: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    rest: NDArray[Any] | None = None
    for piece in pieces:
        found = piece if rest is None else np.concatenate([rest, piece])
        whole = found.size - found.size % size
        yield from found[:whole].reshape(-1, size)
        rest = found[whole:]
    if rest is not None and rest.size:
        yield np.concatenate([rest, np.zeros(size - rest.size, dtype=rest.dtype)])


def _hashed(numbers: NDArray[Any] | Field, digest: Any) -> Iterator[NDArray[Any]]:
    """Give a list in pieces, each added to a hash when it is taken, behind the type of the numbers."""
    for n, piece in enumerate(pieces_of(numbers)):
        found = np.ascontiguousarray(piece, dtype=piece.dtype.newbyteorder("<"))
        if n == 0:
            digest.update(found.dtype.str.encode("ascii"))
        digest.update(found.data)
        yield found


# Metadata of a file: which way its transform goes, from which grid to which

FORMAT = "1"
VERSION = "regweave_format"
LONGEST = 1 << 14
UNCLEAR = "the note on its direction cannot be understood"
KEY = "regweave"  # Field of a text header with our line; in NIfTI the first word of a comment


def notes_of(ends: Ends | None) -> dict[str, str]:
    """Return what is written into a file: names and texts, empty where nothing is known."""
    if ends is None:
        return {}
    notes = {VERSION: FORMAT, "direction": ends.direction}
    for end, geometry in (("start", ends.start), ("target", ends.target)):
        grid = {"size": list(geometry.shape), "index_to_lps_mm": geometry.affine[:3].tolist()}
        notes |= {f"{end}_grid": json.dumps(grid), f"{end}_grid_sha256": grid_hash(geometry)}
    series = {"start_series": ends.start_series, "target_series": ends.target_series}
    return notes | {name: text for name, text in series.items() if text}


def ends_of(notes: Mapping[str, str], subject: str) -> Ends | None:
    """Return the ends in the notes of a file, None where it has no such notes; E102 where they are damaged."""
    if VERSION not in notes:
        return None
    if notes[VERSION] != FORMAT:
        message = f"{subject} has the format {notes[VERSION][:20]!r}, known is {FORMAT!r}"
        raise RegweaveError("E115", message, "update the program")
    direction = next((one for one in get_args(Direction) if one == notes.get("direction")), None)
    if direction is None:
        found, allowed = notes.get("direction", "")[:20], list(get_args(Direction))
        raise damaged(subject, f"its direction is {found!r}, allowed are {allowed}")
    grids, series = [], [notes.get(f"{end}_series", "") for end in ("start", "target")]
    for end in ("start", "target"):
        grid = _parsed(notes.get(f"{end}_grid", ""), subject)
        try:
            (x, y, z), affine = (int(n) for n in grid["size"][:3]), np.eye(4)
            affine[:3] = np.array(grid["index_to_lps_mm"], dtype=np.float64).reshape(3, 4)
            grids.append(make_geometry((x, y, z), affine, subject))
        except (TypeError, KeyError, ValueError, IndexError, OverflowError) as error:
            raise damaged(subject, f"the note on its {end} grid cannot be understood") from error
        if min(x, y, z) < 1 or grid_hash(grids[-1]) != notes.get(f"{end}_grid_sha256"):
            raise damaged(subject, f"the hash of its {end} grid is not that of the grid")
    if not all(re.fullmatch(r"[0-9a-f]{0,64}", text) for text in series):
        raise damaged(subject, "the hash of its series cannot be understood")
    return Ends(direction, grids[0], grids[1], *series)


def to_line(ends: Ends | None) -> str:
    """Return the notes as one line of JSON in ASCII, for formats that have room for one text; empty for None."""
    notes = {name: json.loads(text) if name.endswith("_grid") else text for name, text in notes_of(ends).items()}
    return json.dumps(notes) if notes else ""


def from_line(line: str, subject: str) -> Ends | None:
    """Return the ends in a line of `to_line`, None for an empty one."""
    found = _parsed(line, subject) if line else {}
    if not isinstance(found, dict):
        raise damaged(subject, UNCLEAR)
    return ends_of({k: v if isinstance(v, str) else json.dumps(v) for k, v in found.items()}, subject)


def _parsed(text: str, subject: str) -> Any:
    try:
        if len(text) > LONGEST:
            raise ValueError
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(subject, UNCLEAR) from error


WORDS = {"fixed_to_moving": ("fixed", "moving"), "moving_to_fixed": ("moving", "fixed")}


def require_direction(ends: Ends | None, wanted: Direction, path: str) -> None:
    """Raise E117 where a transform maps points in the other direction; warn W212 where it states none."""
    if ends is None:
        _warn_unknown(path)
    elif ends.direction != wanted:
        start, target = WORDS[wanted]
        message = f"{_stated(ends, path)}, asked for is {start} to {target}"
        raise UsageError("E117", message, f"pass {_other(ends)} of the same result")


def require_series(ends: Ends, start: str, target: str, path: str) -> None:
    """Check that a transform was made for two series, by their hashes, where it states its own."""
    pairs = ((ends.start_series, start, "today's scan"), (ends.target_series, target, "the plan"))
    known = [(stated, given, words) for stated, given, words in pairs if stated and given]
    others = [f"{words} is {given}, stated is {stated}" for stated, given, words in known if stated != given]
    if others and len(others) == len(known):
        message = f"{path} was made for other series, perhaps of another patient: {'; '.join(others)}"
        raise RegweaveError("E144", message, "use the transform of these two series, or --init rigid")
    if others:
        notices.warn(f"W243: {path} was made for another series: {others[0]}; check that the patient is the same")


def require_reference(
    ends: Ends | None, reference: Geometry, path: str, *, space: str | None = None, other_grid: bool = False,
    whole_scan: bool = False,
) -> None:  # fmt: skip
    """Check that a transform brings an image onto a reference grid.

    ``space`` of the result is by default that of the grid; where both grids are the same, it is fixed. With
    ``other_grid`` the reference may be another grid in the space that the transform starts from. With ``whole_scan``
    the grids of the transform may be parts of the reference, or coarser: working copies of a DICOM series.
    """
    if ends is None:
        _warn_unknown(path)
        return
    at_start, at_target = same_voxels(ends.start, reference), same_voxels(ends.target, reference)
    if whole_scan and not at_start and not at_target:
        at_start, at_target = _covers(reference, ends.start), _covers(reference, ends.target)
    by_grids = space is None and at_start and not at_target
    start = WORDS[ends.direction][0]
    if (at_target and not at_start) or (not by_grids and start != (space or "fixed")):
        message = f"{_stated(ends, path)}: it brings images onto the {start} grid, and the reference is not that"
        hint = f"pass {_other(ends)} of the same result, or the {start} image with -r and --to {start}"
        raise UsageError("E117", message, hint)
    if not at_start and not other_grid:
        message = f"the reference is not the {start} grid that '{path}' starts from\n"
        message += f"  reference: {describe(reference)}\n  transform: {describe(ends.start)}"
        hint = f"name the {start} image with -r, or say --other-grid to resample on another grid in {start} space"
        raise RegweaveError("E118", message, hint)


def _covers(reference: Geometry, part: Geometry) -> bool:
    """Return whether the centres of all voxels of a grid are in the box of the reference, up to one voxel."""
    corners = np.stack(np.meshgrid(*([0, n - 1] for n in part.shape)), axis=-1).reshape(-1, 3)
    index = (part.points(corners.astype(float)) - reference.origin_mm) @ reference.direction / reference.spacing_mm
    room = np.maximum(part.spacing_mm.max() / reference.spacing_mm, 1.0)
    return bool((index >= -room).all() and (index <= np.array(reference.shape) - 1 + room).all())


def _stated(ends: Ends, path: str) -> str:
    start, target = WORDS[ends.direction]
    return f"'{path}' takes points from {start} to {target} space"


def _other(ends: Ends) -> str:
    return "inverse.h5" if ends.direction == "fixed_to_moving" else "transform.h5"


def _warn_unknown(path: str) -> None:
    notices.warn(
        f"W212: '{path}' states neither its direction nor its grids, which cannot be checked; "
        "it is taken to start in the space of the result, as ITK's resampling transforms do"
    )
