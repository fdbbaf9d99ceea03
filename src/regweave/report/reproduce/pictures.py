"""Overlays of masks and maps of intensity differences, after the paper's Figure 3."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.report.reproduce.records import PIXEL_MM, Cut, Layer, Slice
from regweave.report.viewer.png import encode_png
from regweave.types import Float64Array

Pixels = NDArray[np.uint8]
When = Literal["before", "after"]
SOFT_TISSUE = (-160.0, 240.0)
TARGET, BEFORE, AFTER = (215, 38, 30), (40, 90, 220), (30, 160, 70)
"""The paper's colours: target red, source before registration blue, warped source green."""
OPACITY = 0.55
STOPS: tuple[tuple[float, tuple[int, int, int]], ...] = (
    (-1.0, (24, 40, 150)), (-0.5, (40, 150, 215)), (0.0, (70, 165, 85)), (0.5, (240, 175, 60)), (1.0, (175, 20, 30))
)  # fmt: skip
"""Colours of a difference: blue below, green for none, red above, as in the supplement."""


def overlay(cut: Cut, when: When) -> bytes:
    """Draw the target's masks over the fixed slice, and over them those of the source, ``before`` or ``after``."""
    grey = _grey(cut.fixed.image.array(), cut.pixel_mm)
    picture = np.repeat(grey[..., None].astype(np.float64), 3, axis=2)
    source: Layer = getattr(cut, when)
    for layer, colour in ((cut.fixed, TARGET), (source, BEFORE if when == "before" else AFTER)):
        inside = _enlarged(layer.labels.array() != 0, cut.pixel_mm, order=1) > 0.5
        edge = inside & ~ndimage.binary_erosion(inside, iterations=2)
        picture[inside] = (1 - OPACITY / 2) * picture[inside] + OPACITY / 2 * np.array(colour)
        picture[edge] = colour
    return encode_png(picture.round().astype(np.uint8))


def difference(cut: Cut, when: When) -> bytes:
    """Colour the difference of intensity, source minus target, each image scaled by its own percentiles."""
    source: Layer = getattr(cut, when)
    values = _enlarged(_scaled(source.image.array()) - _scaled(cut.fixed.image.array()), cut.pixel_mm, order=1)
    at = [value for value, _ in STOPS]
    channels = [np.interp(values, at, [colour[i] for _, colour in STOPS]) for i in range(3)]
    return encode_png(np.stack(channels, axis=-1).round().astype(np.uint8))


def sample(content: Slice) -> bytes:
    """Draw one slice in grey."""
    return encode_png(_grey(content.image.array(), content.pixel_mm))


def _grey(image: NDArray[Any], pixel_mm: list[float]) -> Pixels:
    """Scale CT by a soft tissue window, other images by percentiles."""
    low, high = SOFT_TISSUE
    scaled = (image.astype(np.float64) - low) / (high - low) if image.min() < -500 else _scaled(image)
    large = _enlarged(np.clip(scaled, 0, 1), pixel_mm, order=1)
    return np.asarray((255 * np.clip(large, 0, 1)).round(), dtype=np.uint8)


def _scaled(image: NDArray[Any]) -> Float64Array:
    low, high = np.percentile(image, (0.5, 99.5))
    return np.asarray(np.clip((image.astype(np.float64) - low) / max(float(high - low), 1e-9), 0, 1))


def _enlarged(values: NDArray[Any], pixel_mm: list[float], *, order: int) -> Float64Array:
    factors = [mm / PIXEL_MM for mm in pixel_mm]
    return np.asarray(ndimage.zoom(values.astype(np.float64), factors, order=order, mode="nearest", grid_mode=True))
