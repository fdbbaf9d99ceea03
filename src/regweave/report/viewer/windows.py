"""Display windows and the box of the content: what an image is shown with at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.measures.body import body_mask
from regweave.report.viewer.volumes import Box, Display
from regweave.types import Float32Array, Geometry, LabelArray, Volume

CT_WINDOWS = {
    "soft tissue": (-160.0, 240.0),
    "mediastinum": (-125.0, 225.0),
    "liver": (-45.0, 155.0),
    "brain": (0.0, 80.0),
    "lung": (-1350.0, 150.0),
    "bone": (-500.0, 1300.0),
}
LUNG_BELOW_HU, BONE_ABOVE_HU = -400.0, 250.0
BRAIN_HU = (-10.0, 70.0)
AUTO_PERCENTILES = (1.0, 99.5)
MARGIN = 0.05
COARSE = 300_000
"""Voxels in which the body is looked for."""
NOISE = 0.005
"""Share of a plane that must be body for the plane to count: a speck of noise or a wire of the couch is none."""


def windows(
    fixed: Float32Array, moving: Float32Array, modality: Mapping[str, str], content: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return the windows to choose from, the one for the content first.

    Parameters
    ----------
    fixed, moving : float arrays of shape (X, Y, Z)
        Both images on the grid of the page.
    modality : mapping
        ``fixed`` and ``moving``; those that are ``ct`` have the usual windows, others the range of their tissue.
    content : boolean array of shape (X, Y, Z)
        What is looked at: the structures, or the body where there are none.
    """
    auto = {"fixed": _auto(fixed), "moving": _auto(moving)}
    whole = {name: (float(data.min()), float(data.max())) for name, data in (("fixed", fixed), ("moving", moving))}
    ct = [name for name in auto if modality[name] == "ct"]
    named = {name: {**auto, **dict.fromkeys(ct, w)} for name, w in CT_WINDOWS.items()} if ct else {"auto": auto}
    if ct:
        first = ct_window((fixed if "fixed" in ct else moving)[content])
        named = {first: named[first], **named}
    return [{"name": name, **window} for name, window in {**named, "whole range": whole}.items()]


def ct_window(values: Float32Array) -> str:
    """Name the window in which most of some Hounsfield units are told apart.

    Examples
    --------
    >>> ct_window(np.float32([-850, -800, 40])), ct_window(np.float32([-80, 40, 60])), ct_window(np.float32([30, 35]))
    ('lung', 'soft tissue', 'brain')
    """
    if values.size == 0:
        return "soft tissue"
    low, middle, high = (float(v) for v in np.percentile(values, (5, 50, 95)))
    if middle < LUNG_BELOW_HU or middle > BONE_ABOVE_HU:
        return "lung" if middle < LUNG_BELOW_HU else "bone"
    return "brain" if BRAIN_HU[0] <= low and high <= BRAIN_HU[1] else "soft tissue"


def content_box(geometry: Geometry, images: Iterable[Float32Array], labels: Iterable[LabelArray]) -> Box:
    """Return the voxels, along the axes of the page, between which bodies and structures lie, with a margin.

    Parameters
    ----------
    geometry : Geometry
        Grid of all of them.
    images : float arrays
        Scans; what counts is the body in them, looked for in every n-th voxel.
    labels : integer arrays
        Label maps.
    """
    coarse, whole = Display.of(geometry, COARSE), Display.of(geometry, int(np.prod(geometry.shape)))
    steps = tuple(slice(None, None, coarse.factors[coarse.axes.index(axis)]) for axis in range(3))
    found = []
    for image in images:
        few = coarse.turn(image[steps])
        found.append(_extent(body_mask(Volume(few, coarse.geometry)), coarse.factors, NOISE))
    found += [_extent(whole.turn(data) != 0) for data in labels if data.any()]
    ends = [(min(e[a][0] for e in found), max(e[a][1] for e in found)) for a in range(3)]
    grown = [(low - round(MARGIN * (high - low)) - 1, high + round(MARGIN * (high - low)) + 1) for low, high in ends]
    x, y, z = ((max(0, low), min(n, high)) for (low, high), n in zip(grown, whole.geometry.shape, strict=True))
    return x, y, z


def _extent(mask: NDArray[np.bool_], factors: tuple[int, int, int] = (1, 1, 1), least: float = 0.0) -> Box:
    """Return the first voxel of a mask along each axis, and the one after the last, in voxels of the image."""
    ends = []
    for axis, factor in enumerate(factors):
        there = np.flatnonzero(mask.mean(axis=tuple({0, 1, 2} - {axis})) > least)
        ends.append(
            (int(there[0]) * factor, int(there[-1] + 1) * factor) if there.size else (0, mask.shape[axis] * factor)
        )
    x, y, z = ends
    return x, y, z


def _auto(data: Float32Array) -> tuple[float, float]:
    """Range of the voxels above the background, which is taken to be the smallest value."""
    inside = data[data > data.min()]
    if inside.size == 0:
        return float(data.min()), float(data.min()) + 1.0
    low, high = (float(v) for v in np.percentile(inside, AUTO_PERCENTILES))
    return low, max(high, low + 1e-6)
