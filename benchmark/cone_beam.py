"""Make a cone-beam-like series of a CT series: a round field of view, fewer slices, other values, cupping and noise.

    python benchmark/cone_beam.py followup/ct beam --radius 90 --slope 0.85 --offset -120 --noise 40 --slices 3 17
    regweave contours planning/ beam -o result

`followup` is a later CT with known truth, from the follow-up maker of the test data. Structures keep their truth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pydicom

CUPPING_HU = 80.0
"""How much brighter tissue becomes at 100 mm from the axis."""
OWN = ("SmallestImagePixelValue", "LargestImagePixelValue", "PixelPaddingValue")


def hounsfield(data: pydicom.Dataset) -> np.ndarray:
    """Return a slice in Hounsfield units."""
    return np.asarray(data.pixel_array * float(data.RescaleSlope) + float(data.RescaleIntercept))


def main() -> None:
    """Write the series."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--radius", type=float, default=90.0, help="of the field of view, mm")
    parser.add_argument("--slope", type=float, default=0.85)
    parser.add_argument("--offset", type=float, default=-120.0)
    parser.add_argument("--noise", type=float, default=40.0, help="standard deviation")
    parser.add_argument("--outside", type=float, default=-1000.0, help="value beyond the field of view")
    parser.add_argument("--slices", type=int, nargs=2, default=(3, 17), help="first, and one after the last")
    given = parser.parse_args()
    given.output.mkdir(parents=True)
    slices = [pydicom.dcmread(path) for path in given.series.iterdir()]
    slices.sort(key=lambda data: float(data.ImagePositionPatient[2]))
    axis = np.mean([np.argwhere(hounsfield(data) > -300).mean(axis=0) for data in slices], axis=0)
    rng = np.random.default_rng(5)
    for k, data in enumerate(slices[given.slices[0] : given.slices[1]]):
        values = hounsfield(data)
        away = np.hypot(*((np.indices(values.shape).T - axis) * np.float64(data.PixelSpacing)).T)
        beam = values * given.slope + given.offset + CUPPING_HU * (away / 100.0) ** 2 * (values > -500)
        beam = np.where(away > given.radius, given.outside, beam + rng.normal(0, given.noise, beam.shape))
        data.RescaleSlope, data.RescaleIntercept = 1, -1024
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
        data.PixelData = np.rint(beam + 1024).clip(0, 65535).astype("<u2").tobytes()
        data["PixelData"].VR = "OW"
        for keyword in OWN:
            if keyword in data:
                del data[keyword]
        data.save_as(given.output / f"{k:03d}.dcm")


if __name__ == "__main__":
    main()
