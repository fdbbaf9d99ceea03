"""The peer: the deformable stage of antspyx with its default settings, from an identity start, images in memory."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from _pairs import Prepared
from regweave.measures import dice
from regweave.types import Geometry, ImagePair, LabelMap

NAME = "antspyx SyNOnly"


@dataclass(frozen=True)
class Peer:
    """The peer's module, imported with its number of threads fixed."""

    ants: Any

    @classmethod
    def load(cls, threads: int) -> Peer:
        """Import antspyx; ITK reads its number of threads once, at the first filter."""
        os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = str(threads)
        import ants

        return cls(ants)

    def image(self, data: Any, geometry: Geometry) -> Any:
        """Return an array as the peer's image."""
        return self.ants.from_numpy(
            np.asarray(data, dtype=np.float32),
            origin=geometry.origin_mm.tolist(),
            spacing=geometry.spacing_mm.tolist(),
            direction=geometry.direction,
        )

    def register(self, p: Prepared, labels: list[int]) -> dict[str, Any]:
        """Register a pair; the time is that of ``ants.registration`` alone, which also warps both images."""
        pair = p.pair
        fixed, moving = (self.image(v.data, v.geometry) for v in (pair.fixed, pair.moving))
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            out = self.ants.registration(
                fixed, moving, type_of_transform="SyNOnly", initial_transform="Identity", outprefix=f"{folder}/peer"
            )
            seconds = time.perf_counter() - start
            return {"seconds": seconds, "dice": self._dice(pair, fixed, out["fwdtransforms"], labels)}

    def _dice(self, pair: ImagePair, fixed: Any, transforms: Any, labels: list[int]) -> float:
        moving_labels, fixed_labels = _label_maps(pair)
        image = self.image(moving_labels.data, moving_labels.geometry)
        warped = self.ants.apply_transforms(fixed, image, transforms, interpolator="genericLabel")
        scores = dice(warped.numpy().astype(np.int32), fixed_labels.data, labels)
        return float(np.nanmean(list(scores.values())))


def _label_maps(pair: ImagePair) -> tuple[LabelMap, LabelMap]:
    assert pair.moving_labels is not None
    assert pair.fixed_labels is not None
    return pair.moving_labels, pair.fixed_labels
