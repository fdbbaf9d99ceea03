"""Writers of images, label maps and series of volumes; the suffix names the format.

Compressed bytes do not depend on the number of threads.
"""

import io
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import nibabel as nib
import numpy as np
import SimpleITK as sitk  # noqa: N813
from numpy.typing import DTypeLike, NDArray

from regweave import _core, extras
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import is_file, suffix_of
from regweave.io.disk.outputs import atomic_path
from regweave.io.geometry import ras_to_lps, set_itk_geometry
from regweave.io.images import as_path
from regweave.io.nifti import SUFFIXES, NiftiFrame, place, read_header
from regweave.io.stored import Stored, constant_error, nonfinite_error
from regweave.types import Geometry, LabelMap, Volume

S = TypeVar("S")
T = TypeVar("T")
BLOCK = 1 << 20  # Bytes that are compressed by themselves; each block begins without the words of the one before
SAMPLE = 1 << 16
LEVEL = 1
WORTH = 0.98
"""A search for repeated words must save this much of a sample: it finds none in the noise of floating-point scans."""
HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
"""Of a gzip file without name or time: the same content gives the same bytes."""
WAITING = 2  # Pieces for each thread that are taken before the first of them is done


def in_order(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Give the results of a function in the order of the items, which are taken few at a time.

    The function runs in as many threads as the kernels may use here; it should let other threads run, as zlib does.
    """
    n = _core.threads()
    if n == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(n) as pool:
        waiting: deque[Future[T]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > WAITING * n:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def gzip_pieces(pieces: Iterable[bytes | NDArray[np.generic]]) -> Iterator[bytes]:
    """Give the parts of a gzip file that holds these pieces, one after the other."""
    check, length = 0, 0
    yield HEAD
    raw = (p if isinstance(p, bytes) else np.ascontiguousarray(p).reshape(-1).data for p in pieces)
    whole = (memoryview(one).cast("B") for one in raw)
    blocks = (one[start : start + BLOCK] for one in whole for start in range(0, len(one), BLOCK))
    for block, packed in in_order(lambda raw: (raw, _deflated(raw)), blocks):
        check, length = zlib.crc32(block, check), length + len(block)
        yield packed
    yield b"\x03\x00" + check.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")


def _deflated(raw: memoryview, strategy: int | None = None) -> bytes:
    """Compress a block that another may follow: it ends at a whole byte, without the mark of an end."""
    if strategy is None:
        strategy = zlib.Z_DEFAULT_STRATEGY
        if len(raw) > SAMPLE:
            runs, words = (len(_deflated(raw[:SAMPLE], s)) for s in (zlib.Z_RLE, zlib.Z_DEFAULT_STRATEGY))
            strategy = zlib.Z_RLE if words > WORTH * runs else zlib.Z_DEFAULT_STRATEGY
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return packer.compress(raw) + packer.flush(zlib.Z_SYNC_FLUSH)


SCANNER = 1  # NIfTI's code for scanner coordinates, given to qform and sform alike so that no reader has a choice
SLAB_VOXELS = 2**22  # Voxels that are brought into the order of a file at a time


def write_image(path: str | Path, volume: Volume, dtype: DTypeLike | None = None) -> None:
    """Write an image as .nii, .nii.gz, .nrrd or .mha, in float32 or in ``dtype``.

    Integers are rounded to the nearest and must fit.
    """
    data, target = volume.data, np.dtype(np.float32 if dtype is None else dtype)
    if target.kind not in "iu":
        _write(path, data.astype(target, copy=False), volume.geometry)
        return
    low, high, limits = np.rint(data.min()), np.rint(data.max()), np.iinfo(target)
    if low < limits.min or high > limits.max:
        message = f"values {low:g} to {high:g} do not fit {target}"
        raise UsageError("E152", message, "write float32 or a wider integer type")
    result = np.empty(data.shape, dtype=target)
    for plane, values in zip(result, data, strict=True):  # a rounded copy of a large image may not fit
        plane[...] = np.rint(values)
    _write(path, result, volume.geometry)


def write_labels(path: str | Path, labels: LabelMap) -> None:
    """Write a label map in its own integer type."""
    _write(path, labels.data, labels.geometry)


def _write(path: str | Path, data: NDArray[Any], geometry: Geometry) -> None:
    path = Path(path)
    if suffix_of(path) in SUFFIXES:
        save_nifti(path, nibabel_image(data, geometry))
    else:
        save_itk(path, sitk_image(data, geometry))


def sitk_image(data: NDArray[Any], geometry: Geometry) -> Any:
    """Return the SimpleITK image of voxels [i, j, k], or of vectors [3, i, j, k]."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(data.T), isVector=data.ndim > 3)
    set_itk_geometry(image, geometry)
    return image


def nibabel_image(data: NDArray[Any], geometry: Geometry) -> Any:
    """Return the NIfTI image of nibabel; qform and sform are equal, in millimetres of RAS."""
    affine = ras_to_lps(geometry.affine)
    image = nib.Nifti1Image(data, affine, dtype=data.dtype)
    image.set_sform(affine, SCANNER)
    image.set_qform(affine, SCANNER)
    image.header.set_xyzt_units("mm")
    return image


def ants_image(data: NDArray[Any], geometry: Geometry) -> Any:
    """Return the image of ANTsPy, or raise E158 where ANTsPy is not installed."""
    if not extras.installed("ants"):
        message = "an image of ANTsPy needs the package ants, which is not installed"
        raise UsageError("E158", message, "pip install antspyx")
    if data.dtype.kind in "iu":  # ANTsPy has two types for whole numbers
        data = data.astype(np.uint8 if data.max(initial=0) < 256 else np.uint32)
    place = (geometry.origin_mm.tolist(), geometry.spacing_mm.tolist(), geometry.direction)
    return import_module("ants").from_numpy(data, *place)


def save_nifti(path: Path, image: Any) -> None:
    """Write an image of nibabel; the bytes do not depend on the time."""
    with atomic_path(path) as part:
        if suffix_of(path) == ".nii":
            nib.save(image, part)
            return
        with part.open("wb") as stream:
            stream.writelines(gzip_pieces(_pieces(image)))


def _pieces(image: Any) -> Iterator[bytes | NDArray[Any]]:
    """Header and voxels of a NIfTI file, some planes at a time; the bytes are those that nibabel writes."""
    image.update_header()
    header = image.header
    header.set_slope_inter(1.0, 0.0)
    head = io.BytesIO()
    header.write_to(head)
    head.write(bytes(header.get_data_offset() - head.tell()))
    yield head.getvalue()
    data = np.asanyarray(image.dataobj)
    planes = max(1, SLAB_VOXELS // math.prod(data.shape[:2]))
    for last in np.ndindex(*data.shape[:2:-1]):
        volume = data[(..., *last[::-1])]
        for z in range(0, volume.shape[2], planes):
            yield np.ascontiguousarray(volume[:, :, z : z + planes].T)


def save_itk(path: Path, image: Any) -> None:
    """Write an image of SimpleITK as .nrrd or .mha, or raise E152."""
    if suffix_of(path) not in {".nrrd", ".mha"}:
        message = f"cannot write '{path}': the suffix must be .nii, .nii.gz, .nrrd or .mha"
        raise UsageError("E152", message, "choose one of these suffixes")
    with atomic_path(path) as part:
        try:
            sitk.WriteImage(image, str(part), True)
        except RuntimeError as error:
            message = f"cannot write '{path}': ITK refused"
            raise RegweaveError("E153", message, "check the folder and the free space") from error


# Series of volumes in one 4-D NIfTI file, such as those of functional MR


@dataclass(frozen=True)
class TimeSeries:
    """Volumes on one grid, and the time from one to the next, in the unit that the file states with ``unit``."""

    volumes: Sequence[Volume]
    step: float = 1.0
    unit: str = "sec"

    @property
    def geometry(self) -> Geometry:
        """Grid of all volumes."""
        return self.volumes[0].geometry

    def __len__(self) -> int:
        return len(self.volumes)


def is_time_series(source: Any) -> bool:
    """Return whether a source is a NIfTI file with several volumes."""
    path = as_path(source)
    if path is None or suffix_of(path) not in SUFFIXES or not is_file(path):
        return isinstance(source, TimeSeries)
    shape = read_header(path).shape
    return len(shape) > 3 and shape[3] > 1 and all(n == 1 for n in shape[4:])


def read_time_series(source: Any, nifti_frame: NiftiFrame = "auto") -> TimeSeries:
    """Read a 4-D NIfTI file, each volume checked as an image is; E103 where there is one volume or another format."""
    if isinstance(source, TimeSeries):
        return source
    if not is_time_series(source):
        message = f"'{source}' is no series of volumes in a NIfTI file"
        raise RegweaveError("E103", message, "give a 4-D file (.nii, .nii.gz)")
    head = read_header(Path(source))
    geometry = place(head.header, head.shape[:3], head.subject, nifti_frame, dtype=head.dtype)
    voxels = head.read_voxels().reshape(*geometry.shape, -1)
    volumes = []
    for n in range(voxels.shape[3]):
        stored = Stored(voxels[..., n], geometry, f"volume {n} of {head.subject}", head.scaling)
        data = stored.intensities()
        if (problem := nonfinite_error(data, stored.subject) or constant_error(data, stored)) is not None:
            raise problem
        volumes.append(Volume(data, geometry))
    return TimeSeries(tuple(volumes), float(head.header["pixdim"][4]), head.header.get_xyzt_units()[1])


def write_time_series(path: str | Path, series: TimeSeries) -> None:
    """Write a 4-D NIfTI file in float32, or raise E152 for another format."""
    path = Path(path)
    if suffix_of(path) not in SUFFIXES:
        raise UsageError("E152", f"cannot write the series '{path}'", "choose .nii or .nii.gz")
    image = nibabel_image(np.stack([volume.data for volume in series.volumes], axis=-1), series.geometry)
    image.header.set_xyzt_units("mm", series.unit)
    image.header["pixdim"][4] = series.step
    save_nifti(path, image)
