"""Volumes of a time series brought to their mean by rigid or affine maps."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from regweave.errors import UsageError
from regweave.io import modality, write
from regweave.registration.initial import initial_affine
from regweave.run.memory import allowed_threads
from regweave.spatial.warp import warp_image
from regweave.threads import kernel_threads, side_by_side
from regweave.types import Field, Float64Array, Transform, Volume

HEAD_MM = 50.0  # radius of the sphere on which rotations become displacements (Power et al. 2012).
MOTION = ("trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z", "framewise_displacement")


@dataclass(frozen=True)
class Realigned:
    """Series whose volumes are brought to their mean."""

    series: write.TimeSeries  # the volumes on the grid of the series, each interpolated once
    mean: Volume  # their mean
    matrices: tuple[Float64Array, ...]  # each takes LPS millimetres of the mean to those of a volume

    def motion(self) -> list[dict[str, float]]:
        """Return shifts in millimetres and rotations in radians about the middle, and the framewise displacement."""
        geometry, rows = self.mean.geometry, []
        centre = geometry.points((np.array(geometry.shape) - 1.0) / 2.0)
        before: Float64Array | None = None
        for matrix in self.matrices:
            r = matrix[:3, :3]
            shift = r @ centre + matrix[:3, 3] - centre
            turn = [np.arctan2(r[2, 1], r[2, 2]), -np.arcsin(np.clip(r[2, 0], -1, 1)), np.arctan2(r[1, 0], r[0, 0])]
            now = np.array([*shift, *turn])
            step = np.zeros(6) if before is None else np.abs(now - before)
            moved = float(step[:3].sum() + HEAD_MM * step[3:].sum())
            rows.append(dict(zip(MOTION, [*map(float, now), moved], strict=True)))
            before = now
        return rows


def realign(
    series: str | Path | write.TimeSeries, *, transform: Literal["rigid", "affine"] = "rigid", rounds: int = 2,
    threads: int | None = None,
) -> Realigned:  # fmt: skip
    """Bring the volumes of a 4-D image to their mean.

    The first round registers every volume to the middle one, each further round to the mean of the round before.

    Parameters
    ----------
    series : path or TimeSeries
        A 4-D NIfTI file.
    transform : "rigid" or "affine"
    rounds : int
    threads : int, optional
        The result is the same for any number.

    Returns
    -------
    Realigned
    """
    if transform not in ("rigid", "affine") or rounds < 1:
        raise UsageError("E192", f"transform {transform!r}, rounds {rounds}", "use rigid or affine, and 1 or more")
    found = write.read_time_series(series)
    kind = modality.with_modality(found.volumes[len(found) // 2]).modality
    volumes = [replace(volume, modality=kind) for volume in found.volumes]
    target, matrices, moved = volumes[len(volumes) // 2], [], volumes
    with kernel_threads(allowed_threads(threads)):
        for _ in range(rounds):

            def fit(volume: Volume, to: Volume = target) -> Float64Array:
                return initial_affine(to, volume, transform, alone=True)

            matrices = side_by_side(fit, volumes)
            moved = [
                warp_image(volume, Transform(Field.zero(found.geometry), matrix), fill=modality.fill_value(volume))
                for volume, matrix in zip(volumes, matrices, strict=True)
            ]
            total = np.zeros(found.geometry.shape)
            for volume in moved:
                total += volume.data
            target = replace(target, data=(total / len(moved)).astype(np.float32))
    return Realigned(replace(found, volumes=tuple(moved)), target, tuple(matrices))
