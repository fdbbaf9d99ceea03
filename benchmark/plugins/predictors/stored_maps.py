"""Predictor that looks up structure maps which a network gave before, by the content of the image.

A cross-validation compares many weights on the same maps; running a network again for each would take hours. The folder
that ``REGWEAVE_STORED_MAPS`` names holds one array for each image, written by `benchmark/_map_folder.py`: probabilities
in 8 bits on the canonical grid, from a network that never saw the person. Fitting learns nothing; it chooses
structures.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regweave.errors import UsageError
from regweave.io.geometry import Orientation
from regweave.predictors import Examples, Parts, Predictor
from regweave.registry import Options
from regweave.types import Float32Array, LabelMap, Modality, StructureMaps, Volume

__all__ = ["Options", "StoredMaps", "fit", "image_key", "load"]

FOLDER = "REGWEAVE_STORED_MAPS"
KIND = "stored_maps"


def image_key(volume: Volume) -> str:
    """SHA-256 of the voxels in canonical order: one for all ways to store an image."""
    return hashlib.sha256(Orientation.of(volume.geometry).to_canonical(volume.data).tobytes()).hexdigest()


@dataclass(frozen=True)
class StoredMaps:
    """Maps of some structures of the images of a folder, at full resolution.

    The folder has an array for each image, and ``about.json`` with the classes and the hash of the source. Classes have
    the background 0 first; a structure of the folder that is not among them is background.
    """

    folder: Path
    classes: tuple[int, ...]
    modality: Modality
    voxel_mm: float
    record: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the folder says of itself."""
        found: dict[str, Any] = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        return found

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the maps of an image, on its own grid and axes."""
        path = self.folder / f"{image_key(volume)}.npy"
        if not path.exists():
            message = "the folder of stored maps knows no such image"
            raise UsageError("E170", message, "write it again with benchmark/_map_folder.py")
        told = [int(c) for c in self.about["classes"]]
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        shares = np.stack([stored[told.index(c) - 1] for c in self.classes[1:]])
        there = Orientation.of(volume.geometry).to_stored(shares)
        return StructureMaps(np.asarray(there, dtype=np.float32) / np.float32(255), volume.geometry, self.classes[1:])

    def labels(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel."""
        shares: Float32Array = self.maps(volume).shares
        likely = np.concatenate([1 - shares.sum(axis=0, keepdims=True), shares]).argmax(axis=0)
        return LabelMap(np.array(self.classes, dtype=np.int32)[likely], volume.geometry)

    def save(self) -> Parts:
        """Return where the maps are and what they hold; the maps stay in their folder."""
        fields = {
            "folder": str(self.folder), "source": self.about["source"], "classes": list(self.classes), "names": {},
            "modality": self.modality, "voxel_mm": self.voxel_mm,
        }  # fmt: skip
        return Parts(KIND, fields, {}, self.record)


def fit(examples: Examples, options: Options, like: Predictor | None) -> StoredMaps:
    """Choose the maps of the structures of the examples."""
    found = os.environ.get(FOLDER)
    if not found:
        raise UsageError("E170", f"{FOLDER} names no folder of maps", "write one with benchmark/_map_folder.py")
    voxel_mm = min(float(v.geometry.spacing_mm.min()) for v in examples.volumes)
    return StoredMaps(Path(found), examples.classes, examples.modality, voxel_mm)


def load(parts: Parts) -> StoredMaps:
    """Inverse of `StoredMaps.save`."""
    f = parts.fields
    classes = tuple(int(c) for c in f["classes"])
    return StoredMaps(Path(f["folder"]), classes, f["modality"], float(f["voxel_mm"]), dict(parts.record))
