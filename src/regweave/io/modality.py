"""Modality of an image from its histogram: Hounsfield units of CT, or an arbitrary scale.

It is decided once, when an image is read, unless the user states it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from scipy import ndimage

from regweave import notices
from regweave.errors import UsageError
from regweave.types import Float32Array, Float64Array, Modality, Volume

Stated = Literal["auto", "ct", "mr", "t1", "t2", "pd", "flair", "pet", "us"]
"""Modality that a user states; ``auto`` leaves it to the histogram."""
BankName = Literal["ct", "mr", "multi"]
"""Which metrics compare two images: both CT, both on one arbitrary scale, or two modalities."""

OUTSIDE_HU = -1000.0
AIR_HU = (-1100.0, -900.0)
BODY_HU = -500.0  # Air and padding are below; the body, with metal and bone, is above
HIGHEST_MINIMUM_HU = -105.0  # A CT shows air or fat, even where it was cut to a window
STEP_HU, BLUR_STEPS = 5.0, 2.0
EDGES_HU = np.arange(-250.0, 351.0, STEP_HU)
MIDDLES_HU = (EDGES_HU[:-1] + EDGES_HU[1:]) / 2
TISSUE_HU = (-25.0, 160.0)  # Muscle and organs, with contrast agent too
FAT_HU = (-130.0, -60.0)
SHARP = 0.021  # Height of the tissue peak, as the share of the soft body in one step of 5 HU; other scales are broader
NARROW, NARROW_IQR_HU = 0.07, 60.0
"""Height and spread of a tissue peak that also shows the CT of a small body in a wide field of view."""
LEAST_BONE = 0.003  # Share of the body above organs: bone, vessels with contrast agent, metal
STORED_OFFSETS = (1024.0, 1000.0)
"""What unsigned exports add to Hounsfield units. The first that fits is taken: 24 HU are not seen in a histogram."""
MOST_VALUES = 1_000_000
FEW_VALUES, LOOK = 256, 4096  # most values of a label map, and voxels in which most images show that they have more
FLAT = 0.6
"""Share of neighbours with one value, outside of the background. Label maps have .8 and more, images .1 and less."""


def modality_of(volume: Volume) -> Modality:
    """Decide between CT and any other modality, ``mr``, by the air, fat and tissue of the histogram."""
    return "ct" if _hounsfield(volume.data) else "mr"


def stored_offset(volume: Volume) -> float:
    """Return what was added to the Hounsfield units of a CT, 0 for everything else."""
    return next((o for o in (0.0, *STORED_OFFSETS) if _hounsfield(volume.data, o)), 0.0)


def in_hounsfield(volume: Volume, subject: str) -> Volume:
    """Return a CT whose values were stored with an offset in Hounsfield units, with warning W250, or the same image."""
    offset = stored_offset(volume)
    if not offset:
        return volume
    notices.warn(
        f"W250: {subject} is a CT stored with an offset of {offset:g}; {offset:g} is subtracted, and results are in HU"
    )
    return replace(volume, data=volume.data - np.float32(offset), modality="ct")


def label_values(volume: Volume) -> int:
    """Return how many values an image has that looks like a label map; 0 for any other.

    It has three whole values or more from 0 on, in flat regions. Two are a mask, or an image at a threshold.
    """
    some = volume.data.ravel(order="K")[:: max(1, volume.data.size // LOOK) | 1]
    if some.min() < 0 or (some != np.rint(some)).any() or len(np.unique(some)) > FEW_VALUES:
        return 0
    planes = volume.data[:: max(1, volume.data.size // MOST_VALUES)]
    values, counts = np.unique(planes, return_counts=True)
    if not 2 < len(values) <= FEW_VALUES or values[0] != 0 or (values != np.rint(values)).any():
        return 0
    tissue, equal, n = planes != values[counts.argmax()], 0, 0
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[:, :, 1:], np.s_[:, :, :-1])):
        both = tissue[here] & tissue[there]
        equal, n = equal + int((both & (planes[here] == planes[there])).sum()), n + int(both.sum())
    return len(values) if equal >= FLAT * max(n, 1) else 0


def _hounsfield(data: Float32Array, offset: float = 0.0) -> bool:  # noqa: PLR0911 - one condition, one line
    """Return whether values less an offset have the histogram of a CT.

    Voxels at the minimum or maximum, as padding and windows make them, do not count. With air at -1000 HU, the body is
    mainly soft tissue with one sharp peak. Without air, as in a crop or a window, the image also shows fat, and either
    the tissue peak is sharp or fat has a separate peak.
    """
    values = data.ravel(order="K")[:: max(1, data.size // MOST_VALUES) | 1] - np.float32(offset)
    low, high = float(data.min()) - offset, float(data.max()) - offset
    body = values[(values > max(low, BODY_HU)) & (values < high)]
    counts = np.histogram(body, EDGES_HU)[0]
    soft = int(counts.sum())
    shares = ndimage.gaussian_filter1d(counts / max(soft, 1), BLUR_STEPS)
    top = _peak(shares, *TISSUE_HU)
    if low > HIGHEST_MINIMUM_HU or soft == 0 or soft < 0.55 * body.size or top is None:
        return False

    def share(low: float, high: float) -> float:
        return float(counts[(low < MIDDLES_HU) & (high > MIDDLES_HU)].sum() / soft)

    size, below = body.size / values.size, share(-250, -150)
    air = np.count_nonzero((values > AIR_HU[0]) & (values < AIR_HU[1])) / values.size
    if air >= 0.01 and size >= 0.001 and below <= 0.1 and share(-150, 150) >= 0.75 and shares[top] >= SHARP:
        return True
    cut = low <= -400 or np.count_nonzero(values == low) >= 0.002 * values.size
    lower, upper = np.percentile(body, (25, 75))
    fat, fat_top, tissue_top = share(*FAT_HU), _peak(shares, -125, -65), _peak(shares, 0, TISSUE_HU[1])
    narrow = cut and size < 0.33 and shares[top] >= NARROW and upper - lower <= NARROW_IQR_HU
    least_size, least_fat = (0.01, 0.02) if narrow else (0.1, 0.1 if not cut else 0.15 if size < 0.33 else 0.008)
    bone = np.count_nonzero(values > TISSUE_HU[1]) / body.size
    if offset or size < least_size or below > 0.08 or upper - lower > 215 or fat < least_fat or bone < LEAST_BONE:
        return False
    # The noise of air in other images is densest at the lower end.
    edge = shares[max(low, EDGES_HU[0]) < MIDDLES_HU][:3].max() / shares.max()
    if cut and shares[top] >= SHARP and (MIDDLES_HU[top] > 0 or edge < 0.5):
        return True
    if fat_top is None or tissue_top is None:
        return False
    peaks, valley = (shares[fat_top], shares[tissue_top]), shares[fat_top:tissue_top].min()
    if not cut:
        return bool(min(peaks) >= 0.02 and valley <= 0.5 * min(peaks))
    return bool(
        fat >= 0.33 and share(0, 150) >= 0.2 and peaks[0] >= 0.018 and peaks[1] >= 0.009 and valley <= 0.62 * peaks[0]
    )


def _peak(shares: Float64Array, low: float, high: float) -> int | None:
    found = np.flatnonzero((shares[1:-1] >= shares[:-2]) & (shares[1:-1] >= shares[2:])) + 1
    found = found[(MIDDLES_HU[found] > low) & (MIDDLES_HU[found] < high)]
    return int(found[shares[found].argmax()]) if found.size else None


def with_modality(volume: Volume, stated: Stated = "auto") -> Volume:
    """Return the image with its modality: the stated one, the one it has, or that of its histogram."""
    if stated == "auto":
        return volume if volume.modality is not None else replace(volume, modality=modality_of(volume))
    if stated not in get_args(Modality):
        raise UsageError("E175", f"unknown modality {stated!r}", f"choose auto, {', '.join(get_args(Modality))}")
    return replace(volume, modality=stated)


def fill_value(volume: Volume) -> float:
    """Return the value for points outside an image: −1000 (air) for CT, plus its offset; 0 for everything else."""
    offset = stored_offset(volume) if volume.modality is None else 0.0
    return OUTSIDE_HU + offset if offset or with_modality(volume).modality == "ct" else 0.0


def bank_of(fixed: Modality, moving: Modality) -> BankName:
    """Return the bank of metrics for two modalities; ``mr``, which is unspecific, fits any scale but CT's."""
    if fixed == moving:
        return "ct" if fixed == "ct" else "mr"
    return "mr" if "mr" in (fixed, moving) and "ct" not in (fixed, moving) else "multi"


def describe_modalities(fixed: str, moving: str) -> str:
    """Name the modalities of a pair: ``CT``, or ``CT to MR`` where the two differ."""
    shown: Sequence[str] = [{"flair": "FLAIR"}.get(m, m.upper()) for m in (moving, fixed)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
