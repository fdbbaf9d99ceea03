"""DICOM reader: a folder with one image series, or the one that is named of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regweave.io import readers
from regweave.io.dicom.parse import holds_dicom, looks_like_dicom
from regweave.io.dicom.series import choose_series, read_series
from regweave.io.disk.files import is_file, is_folder, suffix_of
from regweave.io.formats.stored import Stored

READS = "DICOM"


def recognises(source: Any, head: bytes) -> bool:
    """Tell by the first bytes of a file, or of the files in a folder that holds no image of another format."""
    if not isinstance(source, Path):
        return False
    if not is_folder(source):
        return looks_like_dicom(head) and suffix_of(source) not in readers.suffixes()
    others = (suffix_of(path) in readers.suffixes() and is_file(path) for path in sorted(source.iterdir()))
    return not any(others) and holds_dicom(source)


def files(source: Path, options: readers.ReadOptions) -> tuple[Path, ...]:
    """Return the files of the one series, in the order of their names."""
    return choose_series(source, options.series).files


def read(source: Path, options: readers.ReadOptions) -> Stored:
    """Read the one series; uneven or sheared slices are interpolated onto an even grid."""
    series = read_series(source, options.series)
    facts = {"dicom": {"modality": series.modality, "images": len(series.slices), "even": series.exact}}
    return Stored(series.image.data, series.image.geometry, f"'{source}'", facts=facts, modality=series.image.modality)
