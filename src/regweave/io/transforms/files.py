"""Transform files of ITK, in ITK's convention: fixed points to moving points."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import _core
from regweave.errors import RegweaveError, ResourceError, UsageError
from regweave.io import nifti, textheader
from regweave.io.dicom.reg import DicomRegistration, read_reg
from regweave.io.disk.files import available_memory, damaged, open_file, require_file, require_memory, suffix_of
from regweave.io.disk.outputs import atomic_path
from regweave.io.geometry import make_geometry, same_grid
from regweave.io.libraries import sitk
from regweave.io.nifti import nifti_affine, require_voxel_size
from regweave.io.transforms import itk
from regweave.io.transforms.ends import ends_of, from_line, notes_of, read_displacement_ends, to_line
from regweave.io.transforms.itk import COMPOSITE, FIELD, SHOWN_NAME, Checked, Part, check_parts
from regweave.io.write import in_order
from regweave.types import Ends, Field, Float32Array, Float64Array, Geometry, Transform

FINE_MM, COARSE_MM = 0.0005, 0.0099
"""Largest change of a vector in a field of up to `LARGE` voxels, and in a larger one."""
SMALL, LARGE = 500_000, 3_000_000
"""A field of up to `SMALL` voxels is kept as it is."""
FINE_PER_VOXEL, COARSE_PER_VOXEL = 1 / 1024, 1 / 32
"""The same bounds in units of the smallest spacing, for images of small things."""
SLAB_VOXELS = 2**22
"""Voxels that are listed at a time: beside a large field there is no room for its list."""


@dataclass(frozen=True)
class FieldList:
    """Numbers of a displacement field in ITK's order, x fastest and components together, made when they are asked for.

    Parameters
    ----------
    field : Field
    exact : bool
        Leave the numbers as they are; else they are multiples of a power of two of a millimetre, no vector farther than
        `bound_mm` from where it was.
    """

    field: Field
    exact: bool = False
    dtype = np.dtype(np.float32)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return 3 * math.prod(self.field.geometry.shape)

    @cached_property
    def _data(self) -> Float32Array:
        return np.ascontiguousarray(self.field.data, dtype=np.float32)

    def pieces(self) -> Iterator[Float32Array]:
        """Give the list, some planes at a time."""
        bound = 0.0 if self.exact else bound_mm(self.field)
        step = 2.0 ** math.floor(math.log2(2 * bound)) if bound > 0 else 0.0
        x, y, z = self.field.geometry.shape
        planes = max(1, SLAB_VOXELS // (x * y))
        for first in range(0, z, planes):
            yield _core.list_vectors(self._data, first, min(planes, z - first), step, bound).ravel()


@dataclass(frozen=True)
class FieldPart:
    """A displacement field among the transforms of a file that is written, where others are a `Part`."""

    type_name: str
    parameters: FieldList
    fixed: Float64Array


def pieces_of(numbers: NDArray[Any] | FieldList) -> Iterator[NDArray[Any]]:
    """Give a list of numbers in pieces, one for an array."""
    yield from numbers.pieces() if isinstance(numbers, FieldList) else [numbers]


def bound_mm(field: Field) -> float:
    """Return the largest change that rounding may make to a vector of this field."""
    spacing = float(field.geometry.spacing_mm.min())
    voxels = math.prod(field.geometry.shape)
    if voxels <= SMALL:
        return 0.0
    if voxels > LARGE:
        return min(COARSE_MM, spacing * COARSE_PER_VOXEL)
    return min(FINE_MM, spacing * FINE_PER_VOXEL)


MARK = b"\x89HDF\r\n\x1a\n"
READY = b"ready\n"
CHILD = Path(__file__).with_name("child.py")
START = "import json,sys;sys.path[:]=json.loads(sys.argv.pop(1));import runpy;sys.argv[0]=sys.argv.pop(1);"
START += "runpy.run_path(sys.argv[0], run_name='__main__')"
"""The child sees the installed packages of its parent and no others; the folder that it is started in is none."""
SHARE_OF_MEMORY = 4
"""What a file may hold, as a part of the memory that is free: it is there in the child, in the pipe and as a field."""
OWN_BYTES = 3 << 29
CPU_S, WALL_S, BYTES_PER_S = 10, 120, 5 << 20
"""Time that a file gets, and more by its length; a loop ends by the first, a reader that waits by the second."""
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HDF5_PLUGIN_PRELOAD": "::",
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class HdfContents:
    """Contents of an HDF5 transform file: its transforms, and the texts at its root."""

    parts: list[Part]
    notes: Mapping[str, str]


def read_hdf(path: Path) -> HdfContents:
    """Read the transforms of an HDF5 file in a child process, or raise E102, or E140 where they do not fit."""
    subject = f"'{path}'"
    size = _verified_size(path)
    memory = available_memory()
    most = memory // SHARE_OF_MEMORY
    request = {
        "file": str(path.absolute()),
        "most_bytes": most,
        "address_bytes": OWN_BYTES + 3 * most,
        "cpu_s": CPU_S + size // BYTES_PER_S,
    }
    return _parsed(_answer(request, WALL_S + size // BYTES_PER_S, subject), subject)


def _verified_size(path: Path) -> int:
    """Compare the length that an HDF5 superblock states with that of the file."""
    with open_file(path) as stream:
        block, found = stream.read(64), os.fstat(stream.fileno()).st_size
    if not block.startswith(MARK) or len(block) < 64:
        raise damaged(f"'{path}'", f"no HDF5 mark in it; it begins with {block[:4]!r}")
    at = 40 if block[8] < 2 else 28  # superblock versions 0-1 and 2-3, offsets of eight bytes
    expected = int.from_bytes(block[at : at + 8], "little")
    if found < expected:
        raise damaged(f"'{path}'", f"{expected} bytes expected, {found} found")
    return found


def _answer(request: Mapping[str, Any], wall_s: float, subject: str) -> bytes:
    """Run the child and return what it says after it was ready."""
    places = json.dumps([p for p in sys.path if p and Path(p).is_absolute()])
    words = [sys.executable, "-I", "-S", "-c", START, places, str(CHILD), json.dumps(request)]
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,  # Ctrl-C is for this process, which then ends the child
    )
    try:
        answer = child.communicate(timeout=wall_s)[0]
    except subprocess.TimeoutExpired as error:
        raise damaged(subject, f"HDF5 does not come to an end with it in {wall_s:.0f} s") from error
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if not answer.startswith(READY):
        message = f"the process that reads {subject} could not start (status {child.returncode})"
        raise ResourceError("E140", message, "give the program more memory or processes")
    if child.returncode != 0:
        raise damaged(subject, f"HDF5 cannot read it ({_ending(child.returncode)})")
    return answer[len(READY) :]


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _parsed(answer: bytes, subject: str) -> HdfContents:
    length = int.from_bytes(answer[:8], "little")
    head = json.loads(answer[8 : 8 + length])
    if "refused" in head:
        code, reason = head["refused"]
        if code == "E140":
            message = f"{subject} cannot be read: {reason}"
            raise ResourceError(code, message, "use a machine with more memory")
        raise damaged(subject, reason)
    parts, at = [], 8 + length
    for part in head["parts"]:
        fixed: NDArray[Any] = np.frombuffer(answer, np.float64, part["fixed"], at)
        at += fixed.nbytes
        parameters: NDArray[Any] = np.frombuffer(answer, part["dtype"], part["parameters"], at)
        at += parameters.nbytes
        parts.append(Part(part["type"], parameters, fixed))
    return HdfContents(parts, head["notes"])


CHUNK = 1 << 18
LEVEL, LONG_LEVEL = 4, 1
"""Of gzip: higher ones take three times as long for two per cent; 1 takes two thirds of the time of 4 for three."""
LONG = 1 << 24
"""Lists of more numbers are packed with `LONG_LEVEL`."""
NUMBERS = "numbers_sha256"


def to_hdf(parts: Sequence[Part | FieldPart], notes: Mapping[str, str]) -> memoryview:
    """Give the bytes of a file in ITK's layout; the same numbers give the same bytes for any number of threads.

    Lists are chunked, shuffled and deflated, filters that each build of HDF5 has. The root carries the notes, and a
    SHA-256 of all numbers, which nothing else in the format would protect.
    """
    import h5py  # noqa: PLC0415  (a quarter of the time of importing the package, and few calls write)

    content = io.BytesIO()
    text, digest = h5py.string_dtype("ascii"), hashlib.sha256()
    with h5py.File(content, "w", libver=("v108", "v108"), track_order=False) as file:
        for n, part in enumerate(parts):
            group = file.create_group(f"TransformGroup/{n}")
            group.create_dataset("TransformType", data=[part.type_name], dtype=text)
            digest.update(_type_bytes(part))
            listed = {"TransformFixedParameters": part.fixed, "TransformParameters": part.parameters}
            for name, numbers in listed.items():
                pieces = _hashed(numbers, digest)
                if part.type_name.startswith(COMPOSITE):
                    list(pieces)
                else:
                    _write_list(group, name, numbers, pieces)
        for name, note in {**notes, NUMBERS: digest.hexdigest()}.items():
            file.attrs.create(name, note.encode("ascii"), dtype=h5py.string_dtype("ascii", max(1, len(note))))
    return content.getbuffer()


def _write_list(group: Any, name: str, numbers: NDArray[Any] | FieldList, pieces: Iterable[NDArray[Any]]) -> None:
    """Write a list; the chunks of a long one are packed side by side, which the library itself does not do."""
    if numbers.size <= CHUNK // 64:
        group.create_dataset(name, data=np.concatenate(list(pieces)))
        return
    level, size = LONG_LEVEL if numbers.size > LONG else LEVEL, min(CHUNK, numbers.size)
    options = {"compression": "gzip", "compression_opts": level, "shuffle": True}
    data = group.create_dataset(name, (numbers.size,), numbers.dtype, chunks=(size,), **options)
    for n, packed in enumerate(in_order(lambda chunk: _packed(chunk, level), _chunks(pieces, size))):
        data.id.write_direct_chunk((n * size,), packed)


def _chunks(pieces: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """Cut a list into chunks; the last one is filled up with zeros."""
    rest: NDArray[Any] | None = None
    for piece in pieces:
        found = piece if rest is None else np.concatenate([rest, piece])
        whole = found.size - found.size % size
        yield from found[:whole].reshape(-1, size)
        rest = found[whole:]
    if rest is not None and rest.size:
        yield np.concatenate([rest, np.zeros(size - rest.size, dtype=rest.dtype)])


def _packed(chunk: NDArray[Any], level: int) -> bytes:
    """Do as HDF5's filters do: first bytes of all numbers first, then the second ones, …; deflated."""
    return zlib.compress(np.ascontiguousarray(chunk.view(np.uint8).reshape(-1, chunk.itemsize).T).data, level)


def numbers_hash(parts: Sequence[Part]) -> str:
    """SHA-256 of the types and numbers of all parts, as they are stored, little-endian."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_type_bytes(part))
        for numbers in (part.fixed, part.parameters):
            list(_hashed(numbers, digest))
    return digest.hexdigest()


def _type_bytes(part: Part | FieldPart) -> bytes:
    return part.type_name.encode("ascii", errors="replace") + b"\0"


def _hashed(numbers: NDArray[Any] | FieldList, digest: Any) -> Iterator[NDArray[Any]]:
    """Give a list in pieces, and add them to the hash as they pass, little-endian."""
    order = numbers.dtype.newbyteorder("<")
    digest.update(order.str.encode("ascii"))
    for piece in pieces_of(numbers):
        found = np.ascontiguousarray(piece, dtype=order)
        digest.update(found.data)
        yield found


def verify_numbers(parts: Sequence[Part], notes: Mapping[str, str], subject: str) -> None:
    """Raise E102 where a file that states the hash of its numbers holds others."""
    if NUMBERS in notes and numbers_hash(parts) != notes[NUMBERS]:
        raise damaged(subject, "its numbers are not those that were written (SHA-256)")


MAT_HEAD = 20
LONGEST_NAME = 128
FIXED = "fixed"
TYPES = {0: "<f8", 10: "<f4", 100: "<f8", 110: "<f4", 1000: ">f8", 1010: ">f4", 1100: ">f8", 1110: ">f4"}
"""Numbers by the type code M·1000 + O·100 + P·10 + T: byte order M, order of rows O, precision P, full matrix T = 0."""


def read_matlab(path: Path) -> list[Part]:
    """Read all transforms of a file: an array named by the type, then one named ``fixed``, for each, or raise E102."""
    subject = f"'{path}'"
    with open_file(path) as stream:
        require_memory(path.stat().st_size * 3, subject)
        content = stream.read()
    arrays, at = [], 0
    while at < len(content):
        name, numbers, at = _array(content, at, subject)
        arrays.append((name, numbers))
    if not arrays or len(arrays) % 2 or any(name != FIXED for name, _ in arrays[1::2]):
        names = [name[:SHOWN_NAME] for name, _ in arrays[:4]]
        raise damaged(subject, f"its arrays are {names}, needed are a transform and '{FIXED}', by turns")
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    return [Part(name, numbers, fixed.astype(np.float64)) for (name, numbers), (_, fixed) in pairs]


def _array(content: bytes, at: int, subject: str) -> tuple[str, NDArray[np.floating], int]:
    """Read the array that begins at a byte: its name, its numbers, and where it ends."""
    if len(content) - at < MAT_HEAD:
        raise damaged(subject, "it ends in the middle of an array")
    order = "<" if int.from_bytes(content[at : at + 4], "little") in TYPES else ">"
    code, rows, columns, imaginary, length = struct.unpack_from(f"{order}5i", content, at)
    if code not in TYPES or imaginary or TYPES[code][0] != order:
        raise damaged(subject, f"no ITK transform in it; an array begins with {content[at : at + 4]!r}")
    if min(rows, columns) < 0 or (min(rows, columns) != 1 and rows * columns) or not 1 <= length <= LONGEST_NAME:
        raise damaged(subject, f"an array has {rows} rows, {columns} columns and a name of {length} bytes")
    dtype = np.dtype(TYPES[code])
    start = at + MAT_HEAD + length
    end = start + rows * columns * dtype.itemsize
    if end > len(content):
        raise damaged(subject, f"{end} bytes expected, {len(content)} found")
    name = content[at + MAT_HEAD : start]
    if name[-1:] != b"\0" or not name[:-1].isascii() or not name[:-1].decode("ascii").isprintable():
        raise damaged(subject, f"the name of an array is {name[:SHOWN_NAME]!r}")
    numbers = np.frombuffer(content, dtype, rows * columns, start)
    return name[:-1].decode("ascii"), numbers.astype(dtype.newbyteorder("=")), end


def to_matlab(part: Part) -> bytes:
    """Give the bytes of a file with one transform, little-endian float64 as ITK writes it."""
    out = b""
    for name, numbers in ((part.type_name, part.parameters), (FIXED, part.fixed)):
        label = name.encode("ascii") + b"\0"
        out += struct.pack("<5i", 0, numbers.size, 1, 0, len(label)) + label
        out += np.ascontiguousarray(numbers, dtype="<f8").tobytes()
    return out


HEAD = b"#Insight Transform File V1.0"
NOTE = b"#regweave "
"""Begins the comment line that holds our own words; ITK skips it."""
DECIMAL = b"0123456789+-.eE \t"
PIECE = 1 << 20
BYTES_PER_CHARACTER = 40
"""Memory for a character of a list of numbers: the shortest number is a digit and a blank, a word of its own."""


def read_text(path: Path) -> tuple[list[Part], str]:
    """Read all transforms of a text file, and our own note where there is one, or raise E102.

    Each line is a comment, empty, or one of ``Transform:``, ``Parameters:`` and ``FixedParameters:`` in this order.
    """
    subject = f"'{path}'"
    with open_file(path) as stream:
        require_memory(path.stat().st_size * 3 + PIECE * BYTES_PER_CHARACTER, subject)
        content = stream.read()
    if not content.startswith(HEAD):
        raise damaged(subject, f"no ITK transform in it; it begins with {content[:4]!r}")
    if not content.endswith(b"\n"):
        raise damaged(subject, "its last line has no end")
    note, parts, lines = "", [], _fields(content, subject)
    for key, value in lines:
        if key == b"note":
            note = value.decode("ascii", errors="replace")
        elif key == b"Transform":
            parts.append(_part(value, lines, subject))
        else:
            raise damaged(subject, f"{key[:40]!r} stands where a transform should begin")
    return parts, note


def _fields(content: bytes, subject: str) -> Iterator[tuple[bytes, bytes]]:
    """Walk through the lines that say something, as name and value."""
    start = 0
    while start < len(content):
        end = content.index(b"\n", start)
        line, start = content[start:end].strip(), end + 1
        if line.startswith(NOTE):
            yield b"note", line[len(NOTE) :]
        elif line and not line.startswith(b"#"):
            key, colon, value = line.partition(b":")
            if not colon:
                raise damaged(subject, f"a line has no name: {line[:40]!r}")
            yield key.strip(), value.strip()


def _part(type_name: bytes, lines: Iterator[tuple[bytes, bytes]], subject: str) -> Part:
    name = type_name.decode("ascii", errors="backslashreplace")
    if name.startswith(COMPOSITE):
        return Part(name, np.empty(0), np.empty(0))
    found = []
    for wanted in (b"Parameters", b"FixedParameters"):
        key, value = next(lines, (b"", b""))
        if key != wanted:
            raise damaged(subject, f"it ends before the {wanted.decode()} of a transform")
        found.append(_numbers(value, subject))
    return Part(name, *found)


def _numbers(text: bytes, subject: str) -> Float64Array:
    """Read decimal numbers that blanks part; nothing else is a number, ``nan`` and ``1_0`` neither."""
    if text.translate(None, DECIMAL):
        raise damaged(subject, "a list of numbers holds other characters than decimal numbers have")
    pieces, start = [], 0
    while start < len(text):
        end = start + PIECE
        while end < len(text) and text[end : end + 1] not in b" \t":
            end += 1
        pieces.append(_words(text[start:end].split(), subject))
        start = end
    return np.concatenate(pieces) if pieces else np.empty(0)


def _words(words: list[bytes], subject: str) -> Float64Array:
    try:
        return np.array([float(word) for word in words], dtype=np.float64)
    except ValueError as error:
        raise damaged(subject, f"a list of numbers holds what is none ({str(error)[-60:]})") from error


def to_text(parts: Sequence[Part | FieldPart], note: str = "") -> Iterator[bytes]:
    """Give the pieces of a text file; numbers in the shortest form that reads back as the same bits."""
    yield HEAD + b"\n"
    if note:
        yield NOTE + note.encode("ascii") + b"\n"
    for n, part in enumerate(parts):
        yield f"#Transform {n}\nTransform: {part.type_name}\n".encode("ascii")
        if part.type_name.startswith(COMPOSITE):
            continue
        for key, numbers in (("Parameters:", part.parameters), ("FixedParameters:", part.fixed)):
            yield key.encode("ascii")
            for piece in pieces_of(numbers):
                for start in range(0, piece.size, PIECE):
                    yield b" " + " ".join(map(repr, piece[start : start + PIECE].tolist())).encode("ascii")
            yield b"\n"


FIELD_SUFFIXES = (*nifti.SUFFIXES, *textheader.SUFFIXES)
INTENT_RAS, INTENT_LPS = 1006, 1007
SIGNS = {INTENT_LPS: (1.0, 1.0, 1.0), INTENT_RAS: (-1.0, -1.0, 1.0)}
"""What takes the stored components to LPS: NIfTI's DISPVECT is RAS, ITK writes VECTOR in LPS."""


def read_displacement(path: Path, *, follow_links: bool = False) -> Field:
    """Read a field of displacements from fixed to moving points, or raise E115.

    With `follow_links` a header may name a file of vectors outside of its own folder.
    """
    if suffix_of(path) in nifti.SUFFIXES:
        return _read_nifti(path)
    return _read_text_header(textheader.read_header(path, follow_links=follow_links))


def _refuse(subject: str, reason: str, hint: str) -> RegweaveError:
    return RegweaveError("E115", f"{subject} is no displacement field: {reason}", hint)


def _read_nifti(path: Path) -> Field:
    head = nifti.read_header(path)
    subject, shape, intent = head.subject, head.shape, int(head.header["intent_code"])
    if len(shape) != 5 or shape[3:] != (1, 3) or head.dtype.kind != "f":
        reason = f"shape {shape} of {head.dtype}, needed is (X, Y, Z, 1, 3) of floats"
        raise _refuse(subject, reason, "write it with SimpleITK as a vector image; (X, Y, Z, 3) says no frame")
    if intent not in SIGNS:
        reason = f"intent code {intent}, needed is {INTENT_LPS} (LPS) or {INTENT_RAS} (RAS)"
        raise _refuse(subject, reason, "without it nobody knows the frame of the vectors")
    if bytes(head.header["intent_name"].item()).startswith(b"NREG_TRANS"):
        reason = "NiftyReg wrote it, whose fields may hold positions"
        raise _refuse(subject, reason, "convert it first: reg_transform -disp, then to ITK's LPS")
    grid = (shape[0], shape[1], shape[2])
    geometry = make_geometry(grid, nifti_affine(head.header, grid, subject), subject)
    require_voxel_size(head.header, geometry, subject, "auto")
    slope, inter = head.scaling
    vectors = (head.read_voxels()[:, :, :, 0, :].astype(np.float64) * slope + inter) * SIGNS[intent]
    return Field(itk.component_first(vectors.transpose(2, 1, 0, 3), subject), geometry)


def _read_text_header(head: textheader.ImageHeader) -> Field:
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


DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
HDF_SUFFIXES = (".h5", ".hdf5", ".hdf")
WRITTEN_SUFFIXES = (*HDF_SUFFIXES, ".tfm", ".txt")
LINEAR_SUFFIXES = (*WRITTEN_SUFFIXES, ".mat")
DOUBLE = "_double_3_3"


def write_transform(path: str | Path, transform: Transform) -> None:
    """Write an ITK composite of affine and displacement field, in this order always and both of them always.

    ITK applies the last one first: the field, then the affine, as `Transform` does. The field is that of the knots
    where there are any. HDF5 files are compressed; the vectors of a field of more than half a million voxels are
    rounded, by at most 0.0005 mm, or 0.0099 mm above three million voxels. The ends of the transform stand in the file.
    """
    field = transform.interpolated
    vectors = FieldList(field, exact=suffix_of(Path(path)) not in HDF_SUFFIXES)
    parts: list[Part | FieldPart] = [
        Part(COMPOSITE + DOUBLE, np.empty(0), np.empty(0)),
        _linear_part(transform.affine),
        FieldPart(FIELD + DOUBLE, vectors, _grid_numbers(field.geometry)),
    ]
    _write(path, parts, WRITTEN_SUFFIXES, transform.ends)


def write_linear(path: str | Path, matrix: Float64Array, ends: Ends | None = None) -> None:
    """Write a (4, 4) matrix between LPS millimetres as an ITK affine transform; .mat has no room for the ends."""
    _write(path, [_linear_part(matrix)], LINEAR_SUFFIXES, ends)


def read_transform(source: Any, geometry: Geometry | None = None, *, follow_links: bool = False) -> Transform:
    """Read any ITK transform or displacement field, from a file or from memory.

    Parameters
    ----------
    source : path or object
        .h5, .hdf5, .hdf, .tfm, .txt, .mat, a DICOM registration (.dcm), or a displacement field as .nii, .nii.gz,
        .nrrd, .mha. A NIfTI field of intent 1007 is LPS, of intent 1006 RAS. In memory a SimpleITK transform, a (4, 4)
        matrix between LPS millimetres, or a Transform.
    geometry : Geometry, optional
        Grid for the field. Without it a field stays on its own grid, a linear transform gets a zero field
        that is valid everywhere, and any other transform is refused.
    follow_links : bool
        Let the header of a displacement field name a file outside of its own folder.

    Returns
    -------
    Transform
        An affine followed by one field, or a field alone, keeps its numbers unless `geometry` asks for
        another grid; its own field is then kept as the knots. Any other nonlinear transform is sampled on `geometry`.
        Its ends are None where the file does not tell them.
    """
    if not isinstance(source, str | os.PathLike):
        return _on_grid(itk.as_transform(source, geometry), geometry)
    path = require_file(Path(source))
    if suffix_of(path) in FIELD_SUFFIXES:
        field = read_displacement(path, follow_links=follow_links)
        itk.require_sense(field.data, field.geometry, f"'{path}'")
        return _on_grid(Transform(field, ends=read_displacement_ends(path)), geometry)
    if suffix_of(path) in DICOM_SUFFIXES:
        return _of_registration(read_reg(path), geometry)
    parts, ends = _read(path)
    if all(part.is_linear for part in parts):
        return Transform(Field.zero(geometry or itk.ANYWHERE), _matrix(parts, path), ends)
    *outer, inner = parts
    if inner.kind == FIELD and inner.grid is not None and all(part.is_linear for part in outer):
        itk.require_sense(inner.parameters, inner.grid, f"'{path}'")  # before the numbers become single precision
        field = Field(itk.component_first(inner.vectors(), f"'{path}'"), inner.grid)
        return _on_grid(Transform(field, _matrix(outer, path), ends), geometry)
    if geometry is None:
        message = f"'{path}' is a {' and '.join(part.kind for part in parts)} and has no grid of its own"
        raise RegweaveError("E115", message, "name the image on whose grid it is sampled, --reference")
    whole = sitk.CompositeTransform([part.to_itk() for part in parts])
    return Transform(itk.sample(whole, geometry, f"'{path}'"), ends=ends)


def _of_registration(found: DicomRegistration, geometry: Geometry | None) -> Transform:
    if found.linear:
        return Transform(Field.zero(geometry or itk.ANYWHERE), found.transform.affine)
    return _on_grid(found.transform, geometry)


def read_linear(path: str | Path) -> Float64Array:
    """Read a linear ITK transform as a (4, 4) matrix between LPS millimetres."""
    path = require_file(path)
    if suffix_of(path) in DICOM_SUFFIXES:
        registration = read_reg(path)
        if registration.linear:
            return registration.transform.affine
        message = f"'{path}' is a deformable registration, needed is a linear transform"
        raise RegweaveError("E115", message, "give a rigid or affine transform")
    parts, _ = _read(path)
    if not all(part.is_linear for part in parts):
        message = f"'{path}' is a {' and '.join(part.kind for part in parts)}, needed is a linear transform"
        raise RegweaveError("E115", message, "give a rigid or affine transform")
    return _matrix(parts, path)


def total_displacement(transform: Transform) -> Field:
    """Return affine and field as one displacement on the grid of the field."""
    return _total(transform.field, transform.affine)


def smallest_displacement(transform: Transform) -> Field:
    """Return affine and field as one displacement whose trilinear interpolation is the whole map.

    It lies on the grid of the knots where there are any, with one more node at each end: between the last voxel and the
    end of the fixed image the knots are constant, which the affine part of the displacement is not.
    """
    if transform.knots is None:
        return total_displacement(transform)
    inner = transform.knots.geometry
    affine = inner.affine.copy()
    affine[:3, 3] = inner.points(np.full(3, -1.0))
    x, y, z = (n + 2 for n in inner.shape)
    return _total(_resampled(transform.knots, Geometry((x, y, z), affine)), transform.affine)


def _total(field: Field, matrix: Float64Array) -> Field:
    geometry = field.geometry
    points = geometry.points(np.moveaxis(np.indices(geometry.shape, dtype=np.float64), 0, -1))
    moved = points + np.moveaxis(field.data, 0, -1)
    moved = moved @ matrix[:3, :3].T + matrix[:3, 3]
    return Field(np.ascontiguousarray(np.moveaxis(moved - points, -1, 0), dtype=np.float32), geometry)


def _linear_part(matrix: Float64Array) -> Part:
    m = np.asarray(matrix, dtype=np.float64)
    return Part("AffineTransform" + DOUBLE, np.concatenate([m[:3, :3].ravel(), m[:3, 3]]), np.zeros(3))


def _grid_numbers(geometry: Geometry) -> Float64Array:
    parts = (geometry.shape, geometry.origin_mm, geometry.spacing_mm, geometry.direction.ravel())
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def _write(path: str | Path, parts: Sequence[Part | FieldPart], suffixes: tuple[str, ...], ends: Ends | None) -> None:
    path = Path(path)
    suffix = suffix_of(path)
    if suffix not in suffixes:
        message = f"cannot write '{path}': the suffix must be one of {', '.join(suffixes)}"
        raise UsageError("E152", message, "choose one of these suffixes")
    with atomic_path(path) as part, part.open("wb") as stream:
        if suffix in HDF_SUFFIXES:
            stream.write(to_hdf(parts, notes_of(ends)))
        elif suffix == ".mat":
            assert isinstance(parts[0], Part)
            stream.write(to_matlab(parts[0]))
        else:
            stream.writelines(to_text(parts, to_line(ends)))


def _read(path: Path) -> tuple[list[Checked], Ends | None]:
    subject, suffix = f"'{path}'", suffix_of(path)
    if suffix not in LINEAR_SUFFIXES:
        known = ", ".join((*LINEAR_SUFFIXES, *FIELD_SUFFIXES))
        message = f"{subject} has the suffix '{suffix}', transforms are read from {known}"
        raise RegweaveError("E115", message, "convert the transform with the program that wrote it")
    if suffix in HDF_SUFFIXES:
        stored = read_hdf(path)
        verify_numbers(stored.parts, stored.notes, subject)
        return check_parts(stored.parts, subject), ends_of(stored.notes, subject)
    if suffix == ".mat":
        return check_parts(read_matlab(path), subject), None
    parts, note = read_text(path)
    return check_parts(parts, subject), from_line(note, subject)


def _matrix(parts: Sequence[Checked], path: Path) -> Float64Array:
    """Multiply linear parts into one matrix; the last is applied first."""
    matrix = np.eye(4)
    for part in parts:
        matrix = matrix @ itk.linear_matrix(part.to_itk())
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
    """Interpolate a field trilinearly; beyond its own grid the nearest vector holds, as `Transform` says."""
    matrix = np.ascontiguousarray(np.linalg.solve(field.geometry.affine, geometry.affine)[:3])
    still = np.zeros((3, *geometry.shape), dtype=np.float32)
    return Field(
        np.stack([_core.warp(np.ascontiguousarray(c), matrix, still, 0.0, True) for c in field.data]), geometry
    )
