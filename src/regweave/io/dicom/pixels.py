"""Pixel data of one slice: stored numbers to Hounsfield units or another scale."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID

from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.folder import SliceHeader
from regweave.io.dicom.parse import guarded, integer, items, number, numbers, read_dataset, text
from regweave.io.disk.files import damaged, open_file
from regweave.types import Float32Array

IMPLICIT, BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.2"
NATIVE = (IMPLICIT, "1.2.840.10008.1.2.1", BIG_ENDIAN, "")
GDCM, CHARLS, OPENJPEG = "python-gdcm", "pyjpegls", "pylibjpeg-openjpeg"
PLUG_INS = {
    "1.2.840.10008.1.2.4.50": ("JPEG baseline", GDCM), "1.2.840.10008.1.2.4.51": ("JPEG extended", GDCM),
    "1.2.840.10008.1.2.4.57": ("JPEG lossless", GDCM), "1.2.840.10008.1.2.4.70": ("JPEG lossless", GDCM),
    "1.2.840.10008.1.2.4.80": ("JPEG-LS", CHARLS), "1.2.840.10008.1.2.4.81": ("JPEG-LS", CHARLS),
    "1.2.840.10008.1.2.4.90": ("JPEG 2000", OPENJPEG), "1.2.840.10008.1.2.4.91": ("JPEG 2000", OPENJPEG),
    "1.2.840.10008.1.2.4.201": ("HTJ2K", OPENJPEG), "1.2.840.10008.1.2.4.202": ("HTJ2K", OPENJPEG),
    "1.2.840.10008.1.2.5": ("RLE", "pydicom"),
}  # fmt: skip
"""Compressions by transfer syntax: name, and a package of the extra that decodes it."""
ENHANCED = {
    "1.2.840.10008.5.1.4.1.1.2.1": "Enhanced CT", "1.2.840.10008.5.1.4.1.1.4.1": "Enhanced MR",
    "1.2.840.10008.5.1.4.1.1.130": "Enhanced PET", "1.2.840.10008.5.1.4.1.1.4.3": "Enhanced MR colour",
    "1.2.840.10008.5.1.4.1.1.2.2": "Legacy Converted Enhanced CT",
    "1.2.840.10008.5.1.4.1.1.4.4": "Legacy Converted Enhanced MR",
}  # fmt: skip
AIR_HU = -1000.0


def require_plain(header: SliceHeader) -> None:
    """Raise E163 for what is no single grey image, many frames, colour, odd bits; E123 for bits that contradict."""
    data = header.dataset
    name = ENHANCED.get(text(data, "SOPClassUID"))
    frames = number(data, "NumberOfFrames", 1, header.subject)
    if name is not None or frames != 1:
        found = f"{name or 'a multi-frame object'} of {frames:g} frames"
        hint = "export it as single-frame slices; dcm4che's and dcm2niix's converters do that too"
        raise RegweaveError("E163", f"{header.subject} is {found}, which is not read", hint)
    samples, bits = number(data, "SamplesPerPixel", 1, header.subject), number(data, "BitsAllocated", None, "it")
    if samples != 1 or not text(data, "PhotometricInterpretation").startswith("MONOCHROME"):
        message = f"{header.subject} is a colour image, needed is one grey value a pixel"
        raise RegweaveError("E163", message, "name the series of the grey images")
    if bits not in (8, 16, 32):
        message = f"{header.subject} has {bits:g} bits a pixel, read are 8, 16 and 32"
        raise RegweaveError("E163", message, "export the series again with 16 bits")
    require_bits(data, header.subject)


def require_bits(data: Any, subject: str) -> None:
    """Raise E123 unless the bits of a pixel are the lowest ones of those allocated, and their sign is stated."""
    allocated, signed = (
        integer(data, "BitsAllocated", None, subject),
        integer(data, "PixelRepresentation", None, subject),
    )
    stored = integer(data, "BitsStored", allocated, subject)
    high = integer(data, "HighBit", stored - 1, subject)
    if not 0 < stored <= allocated or high != stored - 1 or signed not in (0, 1):
        found = f"BitsAllocated {allocated}, BitsStored {stored}, HighBit {high}, PixelRepresentation {signed}"
        allowed = "1 to BitsAllocated bits, HighBit one less than BitsStored, PixelRepresentation 0 or 1"
        raise RegweaveError("E123", f"{subject} has {found}, allowed are {allowed}", "export it again")


def slice_values(header: SliceHeader) -> Float32Array:
    """Return the values of one slice [row, column] in the units of its own rescaling."""
    with guarded(header.subject):
        data = header.dataset
        stored = _stored(header)
        lut = items(data, "ModalityLUTSequence")
        if lut:
            return _looked_up(stored, lut[0], header)
        slope = number(data, "RescaleSlope", 1.0, header.subject)
        if slope == 0:
            raise damaged(header.subject, "its RescaleSlope is 0")
        exact = np.float64 if stored.dtype.itemsize > 2 else np.float32  # single precision holds 24 bits
        values: NDArray[Any] = stored.astype(exact)
        values *= exact(slope)
        values += exact(number(data, "RescaleIntercept", 0.0, header.subject))
        if text(data, "Modality") == "CT":
            values[_padding(stored, header)] = AIR_HU
        return values.astype(np.float32, copy=False)


def _stored(header: SliceHeader) -> NDArray[Any]:
    data, subject = header.dataset, header.subject
    rows, columns = (integer(data, word, None, subject) for word in ("Rows", "Columns"))
    syntax = str(data.file_meta.get("TransferSyntaxUID", ""))
    if syntax not in NATIVE:
        return _unpacked(header, syntax, (rows, columns))
    bits, signed = (integer(data, word, None, subject) for word in ("BitsAllocated", "PixelRepresentation"))
    implicit, swapped = _encoding(data)
    kind = np.dtype(f"{'>' if swapped else '<'}{'i' if signed else 'u'}{bits // 8}")
    needed = rows * columns * kind.itemsize
    with open_file(header.path) as stream:
        stream.seek(header.offset)
        head = stream.read(12)
        length = _pixel_length(head, implicit, swapped, subject)
        stream.seek(header.offset + (8 if implicit else 12))
        raw = stream.read(min(length, needed + needed % 2))
    if length not in (needed, needed + needed % 2):
        raise damaged(subject, f"{rows} × {columns} pixels of {bits} bits are {needed} bytes, it holds {length}")
    if swapped and bits == 8 and head[4:6] == b"OW":  # two pixels are one word, and its bytes are swapped
        raw = np.frombuffer(raw[: len(raw) // 2 * 2], dtype="<u2").byteswap().tobytes()
    raw = raw[:needed]
    if len(raw) < needed:
        raise damaged(subject, f"{needed} bytes of pixels expected, {len(raw)} found")
    pixels = np.frombuffer(raw, dtype=kind).astype(kind.newbyteorder("="), copy=False).reshape(rows, columns)
    return _used_bits(pixels, integer(data, "BitsStored", bits, subject), bits)


def _encoding(data: Any) -> tuple[bool, bool]:
    """Tell whether elements are without their type, and whether numbers are big endian; found out where not stated."""
    syntax = str(data.file_meta.get("TransferSyntaxUID", ""))
    if syntax:
        return syntax == IMPLICIT, syntax == BIG_ENDIAN
    implicit, little = data.original_encoding
    return implicit is not False, little is False


def _pixel_length(head: bytes, implicit: bool, swapped: bool, subject: str) -> int:
    """Return the length that the element of the pixel data states, or raise E102 where it is another element."""
    order = ">" if swapped else "<"
    if len(head) < 12 or struct.unpack(f"{order}HH", head[:4]) != (0x7FE0, 0x0010):
        raise damaged(subject, "it holds no pixel data")
    at = 4 if implicit else 8
    return int(struct.unpack(f"{order}I", head[at : at + 4])[0])


def _used_bits(pixels: NDArray[Any], stored: int, allocated: int) -> NDArray[Any]:
    """Clear the bits above those that are stored, which may hold anything, and extend the sign."""
    if not 0 < stored < allocated:
        return pixels
    spare = allocated - stored
    return np.asarray(np.right_shift(np.left_shift(pixels, spare), spare))


def _unpacked(header: SliceHeader, syntax: str, shape: tuple[int, int]) -> NDArray[Any]:
    name = PLUG_INS.get(syntax)
    if name is None:
        message = f"{header.subject} has pixels in a transfer syntax that is not read"
        raise RegweaveError("E163", message, "export the series uncompressed (Explicit VR Little Endian)")
    dataset, _ = read_dataset(header.path, header.subject)
    try:
        found = np.asarray(dataset.pixel_array)
    except RuntimeError:  # pydicom's answer where no plug-in knows the syntax, or none can decode these pixels
        raise _not_decoded(header.subject, syntax, *name) from None
    if found.shape != shape:
        raise damaged(header.subject, f"its pixels have shape {found.shape}, its header says {shape}")
    return _used_bits(found, integer(dataset, "BitsStored", 0, header.subject), 8 * found.dtype.itemsize)


def _not_decoded(subject: str, syntax: str, name: str, package: str) -> RegweaveError:
    if not get_decoder(UID(syntax)).is_available:
        message = f"{subject} has pixels compressed as {name}, and the plug-in that decodes them, {package}, is missing"
        return UsageError(
            "E163", message, f'pip install "regweave[dicom]", which brings {package}; or export uncompressed'
        )
    message = f"{subject} has pixels compressed as {name} that no installed plug-in can decode"
    return RegweaveError("E163", message, "export the series uncompressed; 12-bit lossy JPEG has no free decoder here")


def _looked_up(stored: NDArray[Any], lut: Any, header: SliceHeader) -> Float32Array:
    """Apply a modality look-up table; values outside take the nearest entry, as the standard says."""
    subject = header.subject
    count, first, _ = (int(n) for n in numbers(lut, "LUTDescriptor", 3, subject))
    table = lut.get("LUTData", None)
    if isinstance(table, bytes):
        table = np.frombuffer(table, dtype=">u2" if _encoding(header.dataset)[1] else "<u2")
    entries = np.asarray([] if table is None else table, dtype=np.float32).ravel()
    if entries.size != (count or 65536):
        raise damaged(subject, f"its modality look-up table has {entries.size} entries, it says {count or 65536}")
    return entries[np.clip(stored.astype(np.int64) - first, 0, entries.size - 1)]


def _padding(stored: NDArray[Any], header: SliceHeader) -> NDArray[np.bool_]:
    """Mark pixels outside of what was scanned."""
    data = header.dataset
    if data.get("PixelPaddingValue", None) in (None, ""):
        return np.zeros(stored.shape, dtype=bool)
    value = number(data, "PixelPaddingValue", None, header.subject)
    limit = number(data, "PixelPaddingRangeLimit", value, header.subject)
    if stored.dtype.kind == "i" and value > np.iinfo(stored.dtype).max:  # written without its sign
        turn = 2.0 ** (8 * stored.dtype.itemsize)
        value, limit = value - turn, limit - turn
    return (stored >= min(value, limit)) & (stored <= max(value, limit))
