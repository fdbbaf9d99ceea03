"""Digital phantoms of a commissioning: a body with organs, and a known map from today to the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from regweave.contours.regions import outlines
from regweave.io.dicom.series import DicomSlice, Series, SliceGrid
from regweave.types import Contour, Float32Array, Float64Array, Geometry, Identity, Structure, StructureSet, Volume

Map = Callable[[Float64Array], Float64Array]
"""Takes points (n, 3) of today to the plan, LPS millimetres."""
SPACING_MM = (2.5, 2.5, 3.0)
SHAPE = (80, 68, 32)
BODY = ((0.0, 0.0, 0.0), (86.0, 70.0, 200.0))
ORGANS: Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float], float]] = {
    "liver-like": ((-38.0, -8.0, 4.0), (30.0, 26.0, 34.0), 75.0),
    "kidney-like": ((34.0, 22.0, -8.0), (15.0, 13.0, 26.0), 35.0),
    "gland-like": ((40.0, -22.0, 14.0), (13.0, 11.0, 16.0), 110.0),
    "cord-like": ((0.0, 44.0, 0.0), (5.0, 5.0, 200.0), 30.0),
    "target-like": ((-6.0, -28.0, -2.0), (12.0, 10.0, 13.0), 60.0),
}
"""Centre, half axes and Hounsfield number of each organ."""
BONES = (((0.0, 44.0, 0.0), (13.0, 12.0, 200.0), 700.0), ((62.0, 4.0, 0.0), (7.0, 9.0, 200.0), 600.0),
         ((-64.0, 6.0, 0.0), (7.0, 9.0, 200.0), 600.0))  # fmt: skip
NOISE_HU = 8.0
TEXTURE_HU = 18.0
EDGE_MM = SPACING_MM[0]
"""Edges are as wide as a pixel, as a scanner averages over its voxels; sharper ones would alias."""
REACH_MM = 14.0
"""How far an organ may lie from its place in the plan."""
COUCH_MM = (76.0, 79.0)


@dataclass(frozen=True)
class PhantomScan:
    """A made series with its structures."""

    series: Series
    structures: StructureSet


def make_scan(
    where: Map, *, shift_mm: tuple[float, float, float], along_mm: Float64Array, name: str, seed: int
) -> PhantomScan:
    """Render the phantom as one series.

    Parameters
    ----------
    where : callable
        Place in the phantom that each point of the scan shows.
    shift_mm : three floats
        Origin of the scan's frame, as another couch position would have it.
    along_mm : float array of shape (K,)
        Positions of the slices.
    name : str
        Stands in the made identifiers.
    seed : int
        Noise of the scanner.
    """
    x, y = ((np.arange(float(n)) - (n - 1) / 2) * s for n, s in zip(SHAPE[:2], SPACING_MM, strict=False))
    axes = np.eye(3)
    rng = np.random.default_rng(seed)
    planes = [_points(x, y, z) for z in along_mm]
    hu = np.stack([_intensity(where(p), p) + rng.normal(0, NOISE_HU, len(p)) for p in planes], axis=-1)
    data = hu.reshape(len(x), len(y), -1).astype(np.float32)
    even = np.linspace(along_mm[0], along_mm[-1], len(along_mm))
    if not np.allclose(even, along_mm):
        data = _between(data, along_mm, even)
    affine = np.diag([*SPACING_MM[:2], float(even[1] - even[0]), 1.0])
    affine[:3, 3] = np.array([x[0], y[0], even[0]]) + shift_mm
    grid = SliceGrid(axes[0], axes[1], axes[2], SPACING_MM[:2], (len(x), len(y)))
    identity = Identity("phantom", "PHANTOM", "", "", f"1.2.3.{seed}", f"1.2.4.{seed}", f"1.2.5.{seed}")
    slices = tuple(
        DicomSlice(
            "1.2.840.10008.5.1.4.1.1.2",
            f"1.2.6.{seed}.{k}",
            np.array([x[0], y[0], z]) + shift_mm,
            float(z + shift_mm[2]),
        )
        for k, z in enumerate(along_mm)
    )
    image = Volume(data, Geometry((len(x), len(y), len(even)), affine), "ct")
    series = Series(image, slices, grid, identity, "CT", bool(np.allclose(even, along_mm)))
    drawn = tuple(_structure(n, organ, where, series, np.asarray(shift_mm)) for n, organ in enumerate(ORGANS, start=1))
    return PhantomScan(series, StructureSet(drawn, name, series.frame_uid, identity, (), f"1.2.7.{seed}"))


def smooth_map(seed: int, amplitude_mm: float, knot_mm: float = 45.0) -> Map:
    """Return the identity plus a random smooth displacement of that largest length."""
    rng = np.random.default_rng(seed)
    knots = ndimage.gaussian_filter(rng.standard_normal((3, 10, 10, 10)), (0, 0.6, 0.6, 0.6))
    knots *= amplitude_mm / np.sqrt((knots**2).sum(axis=0)).max()
    splines = [ndimage.spline_filter(k, mode="nearest") for k in knots]

    def there(points: Float64Array) -> Float64Array:
        index = (points / knot_mm + 4.5).T
        moved = [ndimage.map_coordinates(k, index, order=3, mode="nearest", prefilter=False) for k in splines]
        return np.asarray(points + np.stack(moved, axis=-1))

    return there


def rigid_map(degrees: float, shift_mm: tuple[float, float, float]) -> Map:
    """Return a turn about the long axis and a smaller one across, then a shift."""
    a, b = np.radians([degrees, degrees / 2])
    about = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    across = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    return lambda points: np.asarray(points @ (about @ across).T + np.asarray(shift_mm))


def shrunken(organ: str, amount: float) -> Map:
    """Return a map that lets one organ be smaller today by that share along each axis."""
    centre, radii, _ = ORGANS[organ]
    reach = 1.2 * max(radii)

    def there(points: Float64Array) -> Float64Array:
        away = points - np.asarray(centre)
        return np.asarray(points + amount * away * np.exp(-0.5 * (away**2).sum(axis=1) / reach**2)[:, None])

    return there


def inner_points(depth_mm: float, count: int, seed: int) -> Float64Array:
    """Return random points of the phantom at least that far below its skin and 12 mm from the ends of the scan."""
    rng = np.random.default_rng(seed)
    half = SHAPE[2] * SPACING_MM[2] / 2 - 12.0
    points = rng.uniform(-1, 1, (20 * count, 3)) * [BODY[1][0], BODY[1][1], half]
    inside = _level(points, BODY[0], np.asarray(BODY[1]) - depth_mm) < 0
    return np.asarray(points[inside][:count])


def _level(
    points: Float64Array, centre: tuple[float, float, float], radii: Float64Array | tuple[float, float, float]
) -> Float64Array:
    """Roughly the signed distance to an ellipsoid, negative inside."""
    scaled = np.linalg.norm((points - np.asarray(centre)) / np.asarray(radii), axis=1)
    return np.asarray((scaled - 1.0) * min(radii))


def _intensity(material: Float64Array, scan: Float64Array) -> Float64Array:
    """Hounsfield numbers of points of the phantom; the couch stays where the scanner is."""

    def share(centre: tuple[float, float, float], radii: tuple[float, float, float]) -> Float64Array:
        return np.asarray(np.clip(0.5 - _level(material, centre, radii) / EDGE_MM, 0, 1))

    waves = material / [7.0, 9.0, 11.0]
    texture = TEXTURE_HU * np.sin(waves[:, 0]) * np.sin(waves[:, 1] + 1.3) * np.cos(waves[:, 2])
    hu = np.full(len(material), -1000.0)
    body = share(*BODY)
    hu += body * (1000.0 + texture)
    for centre, radii, value in (*BONES, *ORGANS.values()):
        part = share(centre, radii)
        hu += part * (value + texture - hu)
    couch = (scan[:, 1] > COUCH_MM[0]) & (scan[:, 1] < COUCH_MM[1])
    return np.asarray(np.where(couch & (body < 0.5), 120.0, hu))


def _structure(number: int, organ: str, where: Map, series: Series, shift: Float64Array) -> Structure:
    """Draw the true outline of an organ on the slices of a scan."""
    centre, radii, _ = ORGANS[organ]
    first = series.slices[0].position_mm - shift
    x, y = (_near(c, r, a, n, s) for c, r, a, n, s in zip(
        centre, radii, first, series.grid.size, series.grid.spacing_mm, strict=False))  # fmt: skip
    contours = []
    for k, one in enumerate(series.slices):
        z = float(one.position_mm[2] - shift[2])
        if abs(z - centre[2]) > radii[2] + REACH_MM:
            continue
        level = _level(where(_points(x + first[0], y + first[1], z)), centre, radii).reshape(len(x), len(y))
        contours += [
            Contour(one.position_mm + np.concatenate([ring, np.zeros((len(ring), 1))], axis=1), image=k)
            for ring in outlines(level.T, x, y)
        ]
    return Structure(number, organ, "ORGAN", (200, 40 * number % 256, 60), tuple(contours))


def _near(centre: float, radius: float, first: float, size: int, spacing: float) -> Float64Array:
    """Return samples a third of a pixel apart round an organ, as distances from the first pixel."""
    at = np.arange(0.0, size - 1, 1 / 3) * spacing
    return np.asarray(at[np.abs(at + first - centre) <= radius + REACH_MM])


def _points(x: Float64Array, y: Float64Array, z: float) -> Float64Array:
    grid = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([grid, np.full((len(grid), 1), z)], axis=1)


def _between(data: Float32Array, at: Float64Array, wanted: Float64Array) -> Float32Array:
    """Interpolate slices to other positions."""
    place = np.interp(wanted, at, np.arange(len(at)))
    below = np.clip(np.floor(place).astype(int), 0, len(at) - 2)
    t = (place - below).astype(np.float32)
    return np.asarray(data[..., below] * (1 - t) + data[..., below + 1] * t)
