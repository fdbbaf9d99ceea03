"""Commissioning: phantoms with known maps, propagated and measured against limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import ndimage

from regweave import notices
from regweave.clinic.propagate import Propagation, propagate_contours
from regweave.contours import dice_of_areas, outlines
from regweave.io.dicom.series import DicomSlice, Series, SliceGrid
from regweave.io.disk.records import this_program
from regweave.spatial.warp import warp_points
from regweave.types import Contour, Float64Array, Geometry, Identity, Structure, StructureSet, Volume

Map = Callable[[Float64Array], Float64Array]  # Takes points (n, 3) of today to the plan, LPS millimetres
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
EDGE_MM = SPACING_MM[0]  # Edges are as wide as a pixel, as a scanner averages over its voxels; sharper ones would alias
REACH_MM = 14.0  # Largest distance of an organ from its place in the plan
TABLE_MM = (76.0, 79.0)
CT_IMAGE = "1.2.840.10008.5.1.4.1.1.2"


@dataclass(frozen=True)
class PhantomScan:
    """A made series with its structures."""

    series: Series
    structures: StructureSet


def make_scan(
    where: Map, *, shift_mm: tuple[float, float, float], along_mm: Float64Array, name: str, seed: int
) -> PhantomScan:
    """Render the phantom as one series with its structures.

    ``where`` gives the place in the phantom of each point of the scan; ``shift_mm`` is the origin of the frame, as
    another couch position; ``along_mm`` are the positions of the slices, ``name`` is part of the identifiers, ``seed``
    the noise.
    """
    x, y = ((np.arange(float(n)) - (n - 1) / 2) * s for n, s in zip(SHAPE[:2], SPACING_MM, strict=False))
    rng = np.random.default_rng(seed)
    planes = [_points(x, y, z) for z in along_mm]
    hu = np.stack([_intensity(where(p), p) + rng.normal(0, NOISE_HU, len(p)) for p in planes], axis=-1)
    data = hu.reshape(len(x), len(y), -1).astype(np.float32)
    even = np.linspace(along_mm[0], along_mm[-1], len(along_mm))
    exact = bool(np.allclose(even, along_mm))
    if not exact:
        place = np.interp(even, along_mm, np.arange(len(along_mm)))
        below = np.clip(np.floor(place).astype(int), 0, len(along_mm) - 2)
        part = (place - below).astype(np.float32)
        data = data[..., below] * (1 - part) + data[..., below + 1] * part
    affine = np.diag([*SPACING_MM[:2], float(even[1] - even[0]), 1.0])
    affine[:3, 3] = np.array([x[0], y[0], even[0]]) + shift_mm
    row, column, normal = np.eye(3)
    grid = SliceGrid(row, column, normal, SPACING_MM[:2], (len(x), len(y)))
    identity = Identity("phantom", "PHANTOM", "", "", f"1.2.3.{seed}", f"1.2.4.{seed}", f"1.2.5.{seed}")
    slices = tuple(
        DicomSlice(CT_IMAGE, f"1.2.6.{seed}.{k}", np.array([x[0], y[0], z]) + shift_mm, float(z + shift_mm[2]))
        for k, z in enumerate(along_mm)
    )
    image = Volume(data, Geometry((len(x), len(y), len(even)), affine), "ct")
    series = Series(image, slices, grid, identity, "CT", exact)
    drawn = tuple(_structure(n, organ, where, series, np.asarray(shift_mm)) for n, organ in enumerate(ORGANS, start=1))
    return PhantomScan(series, StructureSet(drawn, name, series.frame_uid, identity, (), f"1.2.7.{seed}"))


def smooth_map(seed: int, amplitude_mm: float) -> Map:
    """Return the identity plus a random smooth displacement of that largest length."""
    rng = np.random.default_rng(seed)
    knots = ndimage.gaussian_filter(rng.standard_normal((3, 10, 10, 10)), (0, 0.6, 0.6, 0.6))
    knots *= amplitude_mm / np.sqrt((knots**2).sum(axis=0)).max()
    splines = [ndimage.spline_filter(k, mode="nearest") for k in knots]

    def there(points: Float64Array) -> Float64Array:
        index = (points / KNOT_MM + 4.5).T
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
    """Hounsfield numbers of points of the phantom; the couch is fixed to the scanner."""

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
    couch = (scan[:, 1] > TABLE_MM[0]) & (scan[:, 1] < TABLE_MM[1])
    return np.asarray(np.where(couch & (body < 0.5), 120.0, hu))


def _structure(number: int, organ: str, where: Map, series: Series, shift: Float64Array) -> Structure:
    """Draw the true outline of an organ on the slices of a scan."""
    centre, radii, _ = ORGANS[organ]
    first = series.slices[0].position_mm - shift
    grid, axes = series.grid, []
    for c, r, a, n, step in zip(centre, radii, first, grid.size, grid.spacing_mm, strict=False):
        at = np.arange(0.0, n - 1, 1 / 3) * step  # samples a third of a pixel apart
        axes.append(at[np.abs(at + a - c) <= r + REACH_MM])
    x, y = axes
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


def _points(x: Float64Array, y: Float64Array, z: float) -> Float64Array:
    grid = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([grid, np.full((len(grid), 1), z)], axis=1)


KNOT_MM = 45.0  # Distance of the knots of a random displacement
COUCH_MM = (7.3, -11.6, 4.2)  # Position of the couch today
POINTS, DEPTH_MM = 400, 8.0
"""Points whose error is measured, and how far below the skin they lie: at the skin itself there is nothing to see."""
TG132 = "AAPM TG-132 as quoted by Latifi et al. 2018 (PMC6036411)"
SITE = "site: our suggestion, in no report"
MEAN, DICE = "mean error of points, mm", "lowest Dice of an organ (at least)"
HALF_A_VOXEL = f"{TG132}: half a voxel, here of its longest edge, for a rigid phantom"
LIMITS: Mapping[str, tuple[tuple[str, str, float, str], ...]] = {
    "rigid": (("mean_mm", MEAN, 0.5 * max(SPACING_MM), HALF_A_VOXEL), ("least_dice", DICE, 0.95, SITE)),
    "deformable": (
        ("mean_mm", MEAN, 2.0, f"{TG132}: mean of at most 2 mm"),
        ("max_mm", "largest error of a point, mm", 5.0, f"{TG132}: at most 5 mm"),
        ("least_dice", DICE, 0.90, SITE),
        ("folding_percent", "voxels folded, %", 0.0, SITE),
    ),
}
"""By kind of trial: number, words, limit and its source; a Dice must be above its limit, the others below."""


@dataclass(frozen=True)
class PhantomTrial:
    """One phantom: what is done to it, by which map, and whether it is rigid."""

    name: str
    words: str
    where: Map
    kind: str = "deformable"
    along_mm: Float64Array | None = None


RECORD = "commission.json"
PHANTOM = (
    f"{' × '.join(f'{n:g}' for n in SHAPE)} voxels of {' × '.join(f'{n:g}' for n in SPACING_MM)} mm; body, "
    f"three bones, five organs, texture of {TEXTURE_HU:g} HU, noise of {NOISE_HU:g} HU, couch"
)


def even_slices() -> Float64Array:
    """Return the positions of the plan's slices."""
    return np.asarray((np.arange(float(SHAPE[2])) - (SHAPE[2] - 1) / 2) * SPACING_MM[2], dtype=np.float64)


def trials(seed: int) -> tuple[PhantomTrial, ...]:
    """Return the trials of a commissioning."""
    rng = np.random.default_rng(seed)

    def random(amplitude_mm: float) -> Map:
        return smooth_map(int(rng.integers(1 << 30)), amplitude_mm)

    even = even_slices()
    uneven = np.asarray(even + np.where(np.arange(len(even)) % 4 == 1, 1.2, 0.0))
    short = even[6:-4]
    return (
        PhantomTrial("same", "the same scan at another couch position", lambda p: p, "rigid"),
        PhantomTrial("shift", "shifted by no whole number of voxels", rigid_map(0.0, (5.3, -3.7, 4.1)), "rigid"),
        PhantomTrial("turn", "turned by 4 degrees and shifted", rigid_map(4.0, (3.1, 2.3, -3.4)), "rigid"),
        PhantomTrial("deformed 1", "smooth deformation of up to 8 mm", random(8.0)),
        PhantomTrial("deformed 2", "smooth deformation of up to 8 mm", random(8.0)),
        PhantomTrial("shrunken", "an organ smaller by 15 % along each axis", shrunken("gland-like", 0.15)),
        PhantomTrial("uneven", "deformed, and slices at uneven distances", random(6.0), along_mm=uneven),
        PhantomTrial("shortened", "deformed, and fewer slices than the plan", random(6.0), along_mm=short),
    )  # fmt: skip


def run_trials(seed: int = 0, on_trial: Callable[[str, float], None] = lambda _name, _share: None) -> dict[str, Any]:
    """Return the record of all trials; ``seed`` chooses the deformations, ``on_trial`` takes trial and share done."""
    even = even_slices()
    plan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=even, name="PLAN", seed=0)
    rows, chosen = [], trials(seed)
    for n, trial in enumerate(chosen):
        on_trial(trial.name, n / len(chosen))
        along = even if trial.along_mm is None else trial.along_mm
        today = make_scan(trial.where, shift_mm=COUCH_MM, along_mm=along, name="TODAY", seed=n + 1)
        with notices.muted():
            done = propagate_contours(plan.series, today.series, rtstruct=plan.structures, progress=False)
        rows.append(judged(trial, measured(trial, done, today)))
    return {"seed": seed, "word": _word(rows), "phantom": PHANTOM, "trials": rows, "program": this_program()}


def measured(trial: PhantomTrial, done: Propagation, today: PhantomScan) -> dict[str, Any]:
    """Compare a propagation with the true map: points of the body, and outlines of the organs."""
    points = inner_points(DEPTH_MM, POINTS, 5)
    low, high = (today.series.slices[k].along_mm - COUCH_MM[2] for k in (0, -1))
    points = points[(points[:, 2] > low + 12.0) & (points[:, 2] < high - 12.0)]
    errors = np.linalg.norm(warp_points(points + np.asarray(COUCH_MM), done.transform) - trial.where(points), axis=1)
    dice = {}
    for drawn in today.structures.structures:
        one, beyond = done.structures.named(drawn.name), _beyond_plan(drawn, trial.where)
        true = _without(drawn, beyond)
        dice[drawn.name] = 0.0 if one is None else float(dice_of_areas(_without(one, beyond), true, today.series))
    return {
        "points": len(errors), "mean_mm": float(errors.mean()), "p95_mm": float(np.percentile(errors, 95)),
        "max_mm": float(errors.max()), "dice": dice, "least_dice": min(dice.values()),
        "folding_percent": 100 * done.result.regularity["folding_fraction"],
        "seconds": float(sum(done.result.seconds.values())),
    }  # fmt: skip


def _beyond_plan(true: Structure, where: Map) -> frozenset[int | None]:
    """Slices of today on which a structure extends beyond the ends of the plan, where it has no source."""
    half = SHAPE[2] * SPACING_MM[2] / 2
    return frozenset(c.image for c in true.contours if np.abs(where(c.points_mm - COUCH_MM)[:, 2]).max() > half)


def _without(structure: Structure, images: frozenset[int | None]) -> Structure:
    return replace(structure, contours=tuple(c for c in structure.contours if c.image not in images))


def judged(trial: PhantomTrial, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial with its numbers, its limits and whether it passes."""
    checks = []
    for key, words, limit, source in LIMITS[trial.kind]:
        value = float(numbers[key])
        good = value >= limit if key == "least_dice" else value <= limit
        word = "pass" if good else "fail"
        checks.append({"words": words, "value": value, "limit": limit, "source": source, "word": word})
    what = {"name": trial.name, "what": trial.words, "kind": trial.kind, "word": _word(checks)}
    return {**what, "checks": checks, **numbers}


def _word(parts: Sequence[Mapping[str, Any]]) -> str:
    return "pass" if all(part["word"] == "pass" for part in parts) else "fail"
