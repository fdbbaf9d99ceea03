"""HDF5 transform files of ITK, built in memory so that a full disk is an error of ours and not of the library."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.io.disk.files import damaged
from regweave.io.formats.deflate import in_order
from regweave.io.transforms.itk.field_list import FieldList, FieldPart, pieces_of
from regweave.io.transforms.itk.parts import COMPOSITE, Part

CHUNK = 1 << 18
LEVEL, LARGE_LEVEL = 4, 1
"""Of gzip: higher ones take three times as long for two per cent; 1 takes two thirds of the time of 4 for three."""
LARGE = 1 << 24
"""Lists of more numbers are packed with `LARGE_LEVEL`."""
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
                    _write(group, name, numbers, pieces)
        for name, note in {**notes, NUMBERS: digest.hexdigest()}.items():
            file.attrs.create(name, note.encode("ascii"), dtype=h5py.string_dtype("ascii", max(1, len(note))))
    return content.getbuffer()


def _write(group: Any, name: str, numbers: NDArray[Any] | FieldList, pieces: Iterable[NDArray[Any]]) -> None:
    """Write a list; the chunks of a long one are packed side by side, which the library itself does not do."""
    if numbers.size <= CHUNK // 64:
        group.create_dataset(name, data=np.concatenate(list(pieces)))
        return
    level, size = LARGE_LEVEL if numbers.size > LARGE else LEVEL, min(CHUNK, numbers.size)
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
