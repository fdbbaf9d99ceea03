"""Predictor that looks up structure maps which a network gave before, by the content of the image.

A cross-validation compares many weights on the same maps; running a network again for each would take hours. The folder
that ``REGWEAVE_STORED_MAPS`` names holds one array for each image, written by `benchmark/_map_folder.py`: probabilities
in 8 bits on the canonical grid, and ``about.json`` with the classes and the hash of the source. Fitting learns nothing;
it chooses structures.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
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


def image_key(volume: Volume) -> str:
    """SHA-256 of the voxels in canonical order: one for all ways to store an image."""
    return hashlib.sha256(Orientation.of(volume.geometry).to_canonical(volume.data).tobytes()).hexdigest()


@dataclass(frozen=True)
class StoredMaps:
    """Maps of some structures of the images of a folder, at full resolution; other structures are background."""

    folder: Path
    classes: tuple[int, ...]  # The background 0 first
    modality: Modality
    voxel_mm: float
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def about(self) -> dict[str, Any]:
        """Classes and source of the folder."""
        found: dict[str, Any] = json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        return found

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the maps of an image, on its own grid and axes."""
        path = self.folder / f"{image_key(volume)}.npy"
        if not path.exists():
            message = "the folder of stored maps has no such image"
            raise UsageError("E170", message, "write it again with benchmark/_map_folder.py")
        listed, stored = self.about["classes"], np.load(path, mmap_mode="r", allow_pickle=False)
        shares = np.stack([stored[listed.index(c) - 1] for c in self.classes[1:]])
        there = np.asarray(Orientation.of(volume.geometry).to_stored(shares), dtype=np.float32)
        return StructureMaps(there / np.float32(255), volume.geometry, self.classes[1:])

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
        return Parts("stored_maps", fields, {}, self.record)


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
    return StoredMaps(Path(f["folder"]), tuple(f["classes"]), f["modality"], float(f["voxel_mm"]), dict(parts.record))
