"""Voxels of files, exactly as many as a header promises, and their validation before anything is computed."""

import io
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regweave import _core, notices
from regweave.errors import RegweaveError
from regweave.io.disk.files import BYTES_PER_VALUE, damaged, open_file, require_memory, shown
from regweave.io.geometry import make_geometry
from regweave.types import Float32Array, Geometry, Modality

NonFinite = Literal["error", "mask"]
MIN_VOXELS = 4
MANY_LABELS = 256
"""More labels than this need names: maps of the brain have up to about 190, images have thousands of values."""
SEVERAL_LABELS = 32  # Up to this number labels may be scattered as they like


def without_trailing_ones(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the axes but for those of length one beyond the third, at the end."""
    kept = list(sizes)
    while len(kept) > 3 and kept[-1] == 1:
        kept.pop()
    return tuple(kept)


def volume_shape(shape: tuple[int, ...], subject: str) -> tuple[int, int, int]:
    """Return the three sizes of a scalar image, without trailing axes of length one, or raise E103."""
    kept = without_trailing_ones(shape)
    if len(kept) != 3:
        hint = "give a volume; single slices cannot be registered in 3-D"
        hint = "split the series and pass one volume, e.g. nibabel.four_to_three" if len(kept) > 3 else hint
        raise RegweaveError("E103", f"{subject} has shape {tuple(shape)}, needed are three dimensions", hint)
    if min(kept) < MIN_VOXELS:
        message = f"{subject} has shape {kept}: each axis needs at least {MIN_VOXELS} voxels, "
        message += "a single slice has no neighbours to move towards"
        raise RegweaveError("E103", message, "give a volume of several slices")
    return kept[0], kept[1], kept[2]


def require_scalar(dtype: np.dtype[Any], components: int, subject: str) -> None:
    """Raise E103 for colour, vector and complex voxels."""
    if components == 1 and dtype.names is None and dtype.kind in "iufb":
        return
    kind = f"{components} components" if components > 1 else f"voxels of type {dtype}"
    if dtype.names is not None:
        kind = f"colour voxels ({len(dtype.names)} components)"
    message = f"{subject} has {kind}, needed is one real number a voxel"
    raise RegweaveError("E103", message, "extract one component or a grey value first")


def require_unmasked(data: NDArray[Any], subject: str) -> None:
    """Raise E129 for an array with masked voxels: the values below the mask do not belong to the image."""
    if np.ma.is_masked(data):
        message = f"{subject} is a masked array with {np.count_nonzero(np.ma.getmaskarray(data))} masked voxels"
        raise RegweaveError("E129", message, "fill them, as in array.filled(0), and give the mask as fixed_mask")


def nonfinite_error(data: NDArray[Any], subject: str) -> RegweaveError | None:
    """Return the E104 error of an image with NaN or infinite voxels, None where all are finite."""
    finite = np.isfinite(data)
    count = int(data.size - np.count_nonzero(finite))
    if count == 0:
        return None
    index = np.argwhere(~finite)
    box = f"{index.min(axis=0).tolist()} to {index.max(axis=0).tolist()}"
    message = (
        f"{subject} holds {count} non-finite voxels ({100 * count / data.size:.3g} %), all within the indices {box}"
    )
    return RegweaveError("E104", message, "repair the image, or state nonfinite mask to treat them as background")


@dataclass(frozen=True)
class Stored:
    """Voxels of an image in the stored type, before their values are checked.

    ``subject`` names the image in messages, slope and intercept in ``scaling`` take voxels to values, ``facts`` are
    further statements of the format for an inspection, ``modality`` is that which the format states, as DICOM does.
    """

    data: NDArray[Any]
    geometry: Geometry
    subject: str
    scaling: tuple[float, float] = (1.0, 0.0)
    facts: Mapping[str, Any] = field(default_factory=dict)
    modality: Modality | None = None

    @classmethod
    def of_array(cls, data: NDArray[Any], affine: ArrayLike, subject: str) -> Self:
        """Check that an array is a scalar volume, and place it by an affine from index to LPS millimetres."""
        require_scalar(data.dtype, 1, subject)
        require_unmasked(data, subject)
        shape = volume_shape(data.shape, subject)
        return cls(np.asarray(data).reshape(shape), make_geometry(shape, affine, subject), subject)

    def values(self) -> NDArray[Any]:
        """Return the voxels in the stored type, or in float64 where the file asks for scaling."""
        if self.scaling == (1.0, 0.0):
            return np.ascontiguousarray(self.data).astype(self.data.dtype.newbyteorder("="), copy=False)
        slope, inter = self.scaling
        return np.ascontiguousarray(self.data, dtype=np.float64) * slope + inter

    def intensities(self) -> Float32Array:
        """Return the values as float32; what does not fit becomes infinite and is caught as non-finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.data.flags.c_contiguous or not self.data.flags.f_contiguous or not self.data.size:
                return self.values().astype(np.float32)
            # NIfTI runs along x first; its voxels are scaled in that order, and turned by a kernel.
            lying: Float32Array = replace(self, data=self.data.T).values().astype(np.float32, copy=False)
        turned: Float32Array = _core.arrange(lying[None], (2, 1, 0), (1, 1, 1))[0]
        return turned


def constant_error(data: NDArray[Any], stored: Stored) -> RegweaveError | None:
    """Return the E105 error of an image in which all voxels are equal in float32, None for any other image."""
    low, high, (slope, inter) = float(data.min()), float(data.max()), stored.scaling
    if low < high:
        return None
    if stored.data.min() < stored.data.max():
        message = f"{stored.subject} is constant in float32, in which images are computed: stored values from "
        message += f"{stored.data.min()!s} to {stored.data.max()!s} all become {low:g}"
        return RegweaveError("E105", message, "subtract a constant, or multiply by a factor, before you save it")
    message = (
        f"{stored.subject} is constant: minimum {low:g}, maximum {high:g}, scl_slope {slope:g}, scl_inter {inter:g}"
    )
    return RegweaveError("E105", message, "check the export; there is nothing to register in it")


def whole_labels(data: NDArray[Any], subject: str) -> NDArray[Any]:
    """Return labels in an integer type: the stored one, or for floats the smallest that holds the values."""
    if data.dtype.kind == "b":
        return data.astype(np.uint8)
    if data.dtype.kind == "f":
        if (error := nonfinite_error(data, subject)) is not None:
            raise RegweaveError(error.code, error.message, "export the labels again, as integers")
        fractional = np.count_nonzero(data != np.rint(data))
        if fractional:
            message = f"{subject} holds {fractional} voxels that are not whole numbers"
            raise RegweaveError("E106", message, "it is no label map, or was interpolated; export it again")
    low, high = data.min(), data.max()
    if low < 0:
        message = f"{subject} holds negative labels, down to {low}"
        raise RegweaveError("E106", message, "labels are 0 (background) and above; relabel the file")
    if data.dtype.kind == "f":
        if high > np.iinfo(np.uint32).max:
            message = f"{subject} holds the label {high:g}, allowed are labels up to {np.iinfo(np.uint32).max}"
            raise RegweaveError("E106", message, "relabel the file")
        return data.astype(np.min_scalar_type(int(high)))
    return data


def intensities_error(data: NDArray[Any], names: Collection[int], subject: str) -> RegweaveError | None:
    """Return the E127 error of whole numbers that are the values of an image, None for a label map.

    The names of most labels, in a file beside the map or given with it, state that it is a label map.
    """
    values = np.unique(data)
    n = int(np.count_nonzero(values))
    if n <= SEVERAL_LABELS or 2 * len({int(v) for v in values} & set(names)) > n:
        return None
    equal = both = 0
    for axis in range(data.ndim):
        one, next_one = np.moveaxis(data, axis, 0)[:-1], np.moveaxis(data, axis, 0)[1:]
        inside = (one != 0) & (next_one != 0)
        both += int(np.count_nonzero(inside))
        equal += int(np.count_nonzero(inside & (one == next_one)))
    if n <= MANY_LABELS and 2 * equal >= both:
        return None
    apart = "" if 2 * equal >= both else f", and {1 - equal / both:.0%} of neighbours differ"
    message = f"{subject} seems to hold the values of an image, not labels: {n} different labels{apart}"
    hint = f"give the label map; for a map of more than {MANY_LABELS} labels give the names of the labels too"
    return RegweaveError("E127", message, f"{hint} (--label-names)")


# Voxels of raw and deflated files: exactly as many bytes as a header promises. Memory is taken after three checks: the
# file can hold what its header promises, the machine has room for it, and, while reading, the stream ends where it
# should. A stream is inflated step by step, so its stated length costs no memory.

GZIP_WINDOW, ANY_WINDOW = 31, 47
"""Codes of zlib for streams of gzip, and for its own and those of gzip, as MetaImage allows."""
GZIP_MARK = b"\x1f\x8b"
RATIO = 1040  # Largest ratio of inflated to deflated bytes; that of deflate is at most 1032
CHUNK = 1 << 18
BROKEN = (EOFError, OSError, zlib.error)  # What reading from a damaged stream raises


class Inflated:
    """Bytes of a gzip file, verified against its check sums; `gzip` itself takes half as long again, 8 kB at a time."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream, self._decoder, self._packed = stream, zlib.decompressobj(GZIP_WINDOW), b""

    def read(self, n: int) -> bytes:
        """Return n bytes, fewer at the end; raise one of `BROKEN` where the stream is damaged."""
        blocks = []
        while n > 0:
            if self._decoder.eof:  # another member may follow, and zeros behind the last one
                packed = self._decoder.unused_data.lstrip(b"\0")
                while not packed and (more := self._stream.read(CHUNK)):
                    packed = more.lstrip(b"\0")
                if not packed:
                    break
                self._decoder, self._packed = zlib.decompressobj(GZIP_WINDOW), packed
            packed = self._packed or self._stream.read(CHUNK)
            blocks.append(self._decoder.decompress(packed, n))
            self._packed, n = self._decoder.unconsumed_tail, n - len(blocks[-1])
            if not packed and not blocks[-1] and not self._decoder.eof:
                raise EOFError("the stream ends early")
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def seek(self, offset: int) -> None:
        """Go on by so many bytes, from the beginning of the stream."""
        while offset > 0 and (block := self.read(min(CHUNK, offset))):
            offset -= len(block)


Stream = io.BufferedReader | io.BytesIO | Inflated
Encoding = Literal["raw", "gzip", "zlib"]


@dataclass(frozen=True)
class Payload:
    """Location and encoding of the voxels of an image."""

    path: Path
    offset: int  # Byte at which they begin; −1 where they are the last bytes of the file
    encoding: Encoding
    length: int | None = None  # Compressed bytes that the header states
    least: int = 0  # First byte that can belong to a voxel: the end of the header where it is in the same file


def read_payload(payload: Payload, dtype: np.dtype[Any], count: int, subject: str) -> NDArray[Any]:
    """Read `count` numbers of a type, in the byte order of the file."""
    expected = count * dtype.itemsize
    with open_file(payload.path) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = payload.offset if payload.offset >= 0 else size - expected
        if start < payload.least:
            raise damaged(subject, f"{expected} bytes of voxels expected, {max(0, size - payload.least)} found")
        room = size - start
        if expected > room * (1 if payload.encoding == "raw" else RATIO):
            reason = f"its header promises {expected} bytes of voxels, found are {room} ({payload.encoding})"
            raise damaged(subject, reason)
        require_memory(expected + count * BYTES_PER_VALUE, subject)
        stream.seek(start)
        if payload.encoding == "raw":
            return read_exactly(stream, expected, subject).view(dtype)
        if payload.encoding == "gzip":
            return read_exactly(Inflated(stream), expected, subject).view(dtype)
        packed, decoder = stream.read(payload.length or -1), zlib.decompressobj(ANY_WINDOW)
    try:
        inflated = decoder.decompress(packed, 2 * expected + 1)  # the end of a bomb is never reached
    except zlib.error as error:
        raise damaged(subject, f"its compressed stream is broken ({error})") from error
    data, used = read_exactly(io.BytesIO(inflated), expected, subject), len(packed) - len(decoder.unused_data)
    if not decoder.eof or used != (payload.length or used):
        raise damaged(subject, f"its header states {len(packed)} compressed bytes, and its stream ends elsewhere")
    if payload.length is not None:
        _warn_of_more(room - payload.length, payload.length, subject)
    return data.view(dtype)


def read_exactly(stream: Stream, expected: int, subject: str) -> NDArray[np.uint8]:
    """Read the bytes of all voxels and go on to the end, where check sums are; E102 where they are not there.

    Up to as many bytes again may follow, with warning W208. More than that belongs to another image.
    """
    buffer = np.empty(expected, dtype=np.uint8)
    done = extra = 0
    try:
        while done < expected:
            block = stream.read(min(CHUNK, expected - done))
            if not block:
                raise damaged(subject, f"{expected} bytes of voxels expected, {done} found")
            buffer.data[done : done + len(block)] = block
            done += len(block)
        while extra <= expected and (block := stream.read(min(CHUNK, expected - extra + 1))):
            extra += len(block)
    except BROKEN as error:
        raise damaged(subject, f"its compressed stream is broken ({error})") from error
    _warn_of_more(extra, expected, subject)
    return buffer


def _warn_of_more(extra: int, expected: int, subject: str) -> None:
    """Give W208 for a file that is longer than its header states, or raise E102 where it is twice as long."""
    if extra >= max(expected, 1):
        raise damaged(subject, f"its header promises {expected} bytes of voxels, at least twice as many are there")
    if extra:
        notices.warn(f"W208: {subject} is {extra} bytes longer than its header states")


def data_file(header: Path, name: str, *, follow_links: bool) -> Path:
    """Return the file of the voxels that a header names, or raise E102 or E109.

    A header from a stranger could name any file of the machine, and its bytes would come out as grey values. So the
    file must be in the header's folder or below, after links are resolved, unless `follow_links` is given.
    """
    subject = f"'{header}'"
    if not name or "\0" in name:
        raise damaged(subject, f"it names {shown(name)} as the file of its voxels")
    path = header.parent / name
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(header.parent))
    if not inside and not follow_links:
        message = f"{subject} takes its voxels from {shown(name)}, outside of its folder"
        raise RegweaveError("E109", message, "move the file beside the header, or allow it with follow_links")
    try:
        with open_file(path):
            return path
    except RegweaveError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise damaged(subject, f"the file of its voxels, {shown(name)}, is missing") from error
        message = f"{subject} names a file of voxels that cannot be used: {error.message}"
        raise RegweaveError(error.code, message, error.hint) from error
