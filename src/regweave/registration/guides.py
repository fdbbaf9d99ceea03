"""Structures drawn on both images that guide a registration: which of them may, and the maps that are compared.

A structure that one image does not show, or that the end of an image cuts, would be stretched to a border that is none.
Two structures whose names are exchanged would tear the images apart. Neither guides.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from regweave import _core
from regweave.config.settings import Member
from regweave.registration.cpu import stretch
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.voxels import Factors, inside, shrink, shrink_geometry
from regweave.spatial.warp import warp_labels
from regweave.types import (
    Field,
    Float32Array,
    Float64Array,
    Guides,
    Image,
    LabelMap,
    StructureMaps,
    Transform,
    WeightTable,
)

RAMP_VOXELS = 2.0
"""A map falls from 1 to 0 over this distance on either side of the border, in voxels of the refinement."""
SHARES = {"levels": 0.5, "refine": 0.25}  # part of the weight of a stage that the guides have
CUT_SHARE = 0.1
"""A structure is cut where its section at the end of an image is larger than this share of its largest section."""
FINE = Member(name="guides", metric="sad", source="guides", stage="refine", weight=0.0)
COARSE = Member(name="guides-coarse", metric="sad", source="guides", stage="levels", weight=0.0)
POSITION, VOLUME = 0.25, 0.7
"""Typical difference between two people: of a centre, in spreads of all centres, and of the logarithm of a volume."""
EXCHANGED = 4.0  # least gain of an exchange in squared typical differences
HAND_MM = 15.0  # distance over which an error of drawing changes
APART = 1.0
"""Structures whose centres are closer than this many radii of the larger one lie in each other, and are not judged."""


@dataclass(frozen=True)
class Choice:
    """Structures that may guide, with their weights, and those that may not, with the reason."""

    weights: dict[int, float]
    left_out: dict[str, str]
    exchanged: tuple[tuple[int, int], ...] = ()
    """Pairs of structures that seem to have each other's names in one of the images."""


def choose(fixed: Image, moving: Image, asked: Mapping[int, float], *, anyway: bool = False) -> Choice:
    """Return which of the structures asked for may guide; ``anyway`` keeps those that seem exchanged."""
    assert fixed.labels is not None
    assert moving.labels is not None
    left_out, kept = {}, {}
    seen = [(name, image, _sections(image)) for name, image in (("fixed", fixed), ("moving", moving))]
    for value, weight in asked.items():
        name = moving.labels.names.get(value, fixed.labels.name(value))
        missing = [which for which, _, sections in seen if value not in sections]
        cut = [which for which, _, sections in seen if sections.get(value, False)]
        if missing:
            left_out[name] = f"the {missing[0]} labels do not show it"
        elif cut:
            left_out[name] = f"the {cut[0]} image ends in it"
        else:
            kept[value] = weight
    pairs = exchanged(fixed.labels, moving.labels, kept)
    if not anyway:
        for a, b in pairs:
            for one, other in ((a, b), (b, a)):
                kept.pop(one, None)
                left_out[moving.labels.name(one)] = f"it seems to be exchanged with {moving.labels.name(other)}"
    return Choice(kept, left_out, tuple(pairs))


def _sections(image: Image) -> dict[int, bool]:
    """Return the structures of an image and whether its end, or its mask, cuts them."""
    assert image.labels is not None
    data, mask, found = image.labels.data, inside(image), {}
    for value, box in _boxes(image.labels).items():
        part = data[box] == value
        cut = mask is not None and bool((part & ~mask[box]).sum() > CUT_SHARE * part.sum())
        for axis, n in enumerate(data.shape):
            areas = part.sum(axis=tuple(a for a in range(3) if a != axis))
            ends = [areas[end] for end, there in ((0, box[axis].start == 0), (-1, box[axis].stop == n)) if there]
            cut = cut or bool(ends and max(ends) > CUT_SHARE * areas.max())
        found[value] = cut
    return found


def _boxes(labels: LabelMap) -> dict[int, tuple[slice, slice, slice]]:
    values = labels.values()
    codes = np.searchsorted([0, *values], labels.data)
    return dict(zip(values, ndimage.find_objects(codes), strict=True))


def exchanged(fixed: LabelMap, moving: LabelMap, values: Iterable[int]) -> list[tuple[int, int]]:
    """Return pairs of structures that fit better with the names of two of them exchanged.

    Centres, without what all have in common, and volumes are assigned to each other at the least squared difference.
    """
    listed = list(values)
    if len(listed) < 2:
        return []
    (here, size), (there, other_size) = (_places(labels, listed) for labels in (fixed, moving))
    spread = np.sqrt((here**2).sum(axis=1).mean())
    apart = ((here[:, None] - there[None]) ** 2).sum(axis=-1) / (POSITION * spread) ** 2
    apart += ((size[:, None] - other_size[None]) / VOLUME) ** 2
    places = linear_sum_assignment(apart)[1]
    seen = [(centres, np.cbrt(3 * np.exp(n) / (4 * np.pi))) for centres, n in ((here, size), (there, other_size))]
    found = []
    for a, b in combinations(range(len(listed)), 2):
        clear = all(np.linalg.norm(p[a] - p[b]) > APART * max(radius[a], radius[b]) for p, radius in seen)
        if places[a] == b and clear and apart[a, a] + apart[b, b] - apart[a, b] - apart[b, a] > EXCHANGED:
            found.append((listed[a], listed[b]))
    return found


def _places(labels: LabelMap, values: list[int]) -> tuple[Float64Array, Float64Array]:
    """Return centres (K, 3) in millimetres, their mean taken off, and logarithms of volumes (K,)."""
    voxel_mm3 = abs(float(np.linalg.det(labels.geometry.affine[:3, :3])))
    boxes, centres, sizes = _boxes(labels), [], []
    for value in values:
        index = np.argwhere(labels.data[boxes[value]] == value) + [s.start for s in boxes[value]]
        centres.append(labels.geometry.points(index.mean(axis=0)))
        sizes.append(np.log(len(index) * voxel_mm3))
    found = np.array(centres)
    return found - found.mean(axis=0), np.array(sizes)


def ramps(labels: LabelMap, values: Iterable[int], factors: Factors) -> StructureMaps:
    """Return a map of each structure: 1 inside, 0 outside, a ramp of the signed distance across its border."""
    grid, listed, boxes = shrink_geometry(labels.geometry, factors), tuple(values), _boxes(labels)
    voxel, margin = stretch(grid), np.ceil(RAMP_VOXELS / stretch(grid)).astype(int) + 1
    out = np.zeros((len(listed), *grid.shape), dtype=np.float32)
    for k, value in enumerate(listed):
        low = [max(0, s.start // f - m) for s, f, m in zip(boxes[value], factors, margin, strict=True)]
        ends = zip(boxes[value], factors, margin, grid.shape, strict=True)
        high = [min(n, -(-s.stop // f) + m) for s, f, m, n in ends]
        wide = tuple(slice(a * f, b * f) for a, b, f in zip(low, high, factors, strict=True))
        part = shrink((labels.data[wide] == value).astype(np.float32), factors) >= 0.5
        out[k][tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = _ramp(part, voxel)
    return StructureMaps(out, grid, listed)


def _ramp(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], voxel: Float64Array) -> Float32Array:
    if mask.all() or not mask.any():
        return mask.astype(np.float32)
    inner, outer = (ndimage.distance_transform_edt(m, sampling=voxel) for m in (mask, ~mask))
    signed = np.where(mask, inner - 0.5, 0.5 - outer)
    return np.asarray(np.clip(0.5 + signed / (2 * RAMP_VOXELS), 0, 1), dtype=np.float32)


def guides_of(fixed: Image, moving: Image, chosen: Choice, factors: tuple[Factors, Factors]) -> Guides:
    """Return the maps of the structures that guide, on both grids shrunk by ``factors``."""
    assert fixed.labels is not None
    assert moving.labels is not None
    here, there = (ramps(m, chosen.weights, f) for m, f in zip((fixed.labels, moving.labels), factors, strict=True))
    return Guides(here, there, tuple(chosen.weights.values()))


def usual_weights(table: WeightTable, members: Iterable[Member], stage: str) -> Float64Array:
    """Return the weight in each class, (C,), that gives guides their usual share beside the members of a stage."""
    share = SHARES[stage]
    return np.asarray(table.matrix[table.rows([m.name for m in members])].sum(axis=0) * share / (1 - share))


def redrawn(labels: LabelMap, error_mm: float, seed: int, name: str) -> LabelMap:
    """Return labels as another hand draws them, moved by a smooth random displacement; seed and name choose it.

    Along each axis its standard deviation is ``error_mm``.
    """
    geometry, grid = labels.geometry, ControlGrid.cover(labels.geometry, HAND_MM)
    nodes = np.random.default_rng((seed, zlib.crc32(name.encode()))).normal(size=(3, *grid.nodes)).astype(np.float32)
    moved = _core.ffd(nodes, grid.origin, grid.spacing, geometry.shape)
    moved *= np.float32(error_mm / np.sqrt(np.square(moved).mean(dtype=np.float64)))
    drawn, inner = warp_labels(labels, Transform(Field(moved, geometry))), (slice(1, -1),) * 3
    data = labels.data.copy()  # what the end of the image cuts stays cut
    data[inner] = drawn.data[inner]
    return LabelMap(data, geometry, labels.names)
