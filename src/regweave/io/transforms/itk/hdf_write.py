"""HDF5 transform files of ITK, built in memory so that a full disk is an error of ours and not of the library."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence

import numpy as np

from regweave.io.disk.files import damaged
from regweave.io.transforms.itk.parts import COMPOSITE, Part

CHUNK = 1 << 18
LEVEL = 4
"""Of gzip: higher ones take three times as long for two per cent."""
NUMBERS = "numbers_sha256"


def to_hdf(parts: Sequence[Part], notes: Mapping[str, str]) -> bytes:
    """Give the bytes of a file in ITK's layout; the same numbers give the same bytes on every machine.

    Lists are chunked, shuffled and deflated, filters that each build of HDF5 has. The root carries the notes, and a
    SHA-256 of all numbers, which nothing else in the format would protect.
    """
    import h5py  # noqa: PLC0415  (a quarter of the time of importing the package, and few calls write)

    content = io.BytesIO()
    text = h5py.string_dtype("ascii")
    with h5py.File(content, "w", libver=("v108", "v108"), track_order=False) as file:
        for name, note in {**notes, NUMBERS: numbers_hash(parts)}.items():
            file.attrs.create(name, note.encode("ascii"), dtype=h5py.string_dtype("ascii", max(1, len(note))))
        for n, part in enumerate(parts):
            group = file.create_group(f"TransformGroup/{n}")
            group.create_dataset("TransformType", data=[part.type_name], dtype=text)
            if part.type_name.startswith(COMPOSITE):
                continue
            for name, numbers in (("TransformFixedParameters", part.fixed), ("TransformParameters", part.parameters)):
                packed = numbers.size > CHUNK // 64
                options = {"compression": "gzip", "compression_opts": LEVEL, "shuffle": True} if packed else {}
                chunks = (min(CHUNK, numbers.size),) if packed else None
                group.create_dataset(name, data=numbers, chunks=chunks, **options)
    return content.getvalue()


def numbers_hash(parts: Sequence[Part]) -> str:
    """SHA-256 of the types and numbers of all parts, as they are stored, little-endian."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.type_name.encode("ascii", errors="replace") + b"\0")
        for numbers in (part.fixed, part.parameters):
            order = numbers.dtype.newbyteorder("<")
            digest.update(order.str.encode("ascii"))
            digest.update(np.ascontiguousarray(numbers, dtype=order).data)
    return digest.hexdigest()


def verify_numbers(parts: Sequence[Part], notes: Mapping[str, str], subject: str) -> None:
    """Raise E102 where a file that states the hash of its numbers holds others."""
    if NUMBERS in notes and numbers_hash(parts) != notes[NUMBERS]:
        raise damaged(subject, "its numbers are not those that were written (SHA-256)")
