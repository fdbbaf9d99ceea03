"""Image pair at one level of the pyramid: its images as each member sees them, its labels, masks and structure maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import _core
from regweave.config.settings import Level, Member, Refine, Settings, within_image
from regweave.energy import Comparison
from regweave.io.modality import modality_of
from regweave.spatial.control_grid import nearest_whole
from regweave.spatial.voxels import (
    Factors,
    Window,
    apply_window,
    change_level,
    default_window,
    extrapolated,
    inside,
    shrink,
    shrink_geometry,
)
from regweave.spatial.warp import encode, voxel_matrix, warp_channels
from regweave.types import Geometry, ImagePair, LabelMap, Modality, StructureMaps, Volume
from regweave.types.images import Float32Array, Float64Array, IntArray, LabelArray

Prepare = Callable[[Float32Array], Float32Array]
CUT = 4.0  # Half the length of the smoothing kernel, in standard deviations
KEPT_VOXELS = 2**24  # Larger images are not kept under their windows


@dataclass(frozen=True)
class View:
    """Preprocessing of an image for one member: intensity window, smoothing, the metric's own map of intensities."""

    window: Window | None
    sigma_voxels: float
    prepare: Prepare | None

    @property
    def plain(self) -> bool:
        """True if nothing but a window is applied, voxel by voxel."""
        return self.prepare is None and not self.sigma_voxels


@dataclass
class Channels:
    """The views of one image, made once and kept for the present level.

    Beside a large image there is no room for it under each window: it is mapped again for each level, slab by slab.
    """

    image: Volume
    modality: Modality
    _full: dict[View, Float32Array] = field(default_factory=dict)
    _level: dict[tuple[View, Factors], Float32Array] = field(default_factory=dict)
    _raw: dict[Factors, Float32Array] = field(default_factory=dict)

    def view(self, view: View, factors: Factors) -> Float32Array:
        """Return the image under a view on the grid shrunk by ``factors``."""
        key = (view, factors)
        if key not in self._level:
            bare, window = View(view.window, 0.0, view.prepare), self.window(view)
            if view.prepare is not None or self.image.data.size <= KEPT_VOXELS or factors == (1, 1, 1):
                if bare not in self._full:
                    windowed = apply_window(self.data, window)
                    self._full[bare] = windowed if view.prepare is None else view.prepare(windowed)
                data = shrink(self._full[bare], factors)
            else:
                step = factors[0] * max(1, KEPT_VOXELS // (factors[0] * self.data[0].size))
                slabs = (self.data[i : i + step] for i in range(0, len(self.data), step))
                data = np.concatenate([shrink(apply_window(slab, window), factors) for slab in slabs])
            if view.sigma_voxels:
                data = _core.gaussian(data[None], (view.sigma_voxels,) * 3, CUT)[0]
            self._level = {k: v for k, v in self._level.items() if k[1] == factors}
            self._level[key] = np.ascontiguousarray(data, dtype=np.float32)
        return self._level[key]

    def raw(self, factors: Factors) -> Float32Array:
        """Return the intensities themselves on the grid shrunk by ``factors``."""
        if factors not in self._raw:
            self._raw = {factors: np.ascontiguousarray(shrink(self.data, factors), dtype=np.float32)}
        return self._raw[factors]

    @cached_property
    def _default_window(self) -> Window:
        found = inside(self.image)
        return default_window(self.image.data if found is None else self.image.data[found], self.modality)

    @cached_property
    def data(self) -> Float32Array:
        """Intensities, beyond a mask those of its rim."""
        return extrapolated(self.image)

    def window(self, view: View) -> Window:
        """Return the intensities that a view maps to [0, 1]."""
        return view.window or self._default_window


@dataclass(frozen=True)
class Scene:
    """Both images of a pair at one resolution; displacements are in voxels of the fixed level grid.

    Where ``late``, both images are the cubic B-splines of their voxels, and the windows are applied after that: a
    window cuts, and an edge that is cut before it is interpolated moves. The noise of such a B-spline hardly depends on
    the position between voxels; that of a linear interpolation is least half way, and attracts the registration.
    """

    pair: ImagePair
    fixed_channels: Channels
    moving_channels: Channels
    factors: Factors
    moving_factors: Factors
    late: bool = False
    _fixed_features: dict[str, Float32Array] = field(default_factory=dict, compare=False)
    _maps: dict[str, ComparedMaps] = field(default_factory=dict, compare=False)

    @classmethod
    def whole(cls, pair: ImagePair, schedule: Settings) -> Scene:
        """Return the pair at its own resolution."""
        one, bank = (1, 1, 1), schedule.bank_name
        # The scale of an image chooses its window: that of its own modality, else that of the bank, if it is of one.
        fixed, moving = (
            Channels(image, image.modality or (modality_of(image) if bank == "multi" else bank))
            for image in (pair.fixed, pair.moving)
        )
        return cls(pair, fixed, moving, one, one)

    def at(self, resolution: Level | Refine) -> Scene:
        """Return the same pair at another resolution."""
        f, m = (resolution.factors(v.geometry) for v in (self.pair.fixed, self.pair.moving))
        late = isinstance(resolution, Refine) and resolution.exact
        return Scene(self.pair, self.fixed_channels, self.moving_channels, f, m, late)

    @property
    def host(self) -> Scene:
        """The scene itself, as that of a GPU has one on the host."""
        return self

    @cached_property
    def geometry(self) -> Geometry:
        """Grid of the fixed image at this level."""
        return shrink_geometry(self.pair.fixed.geometry, self.factors)

    @cached_property
    def matrix(self) -> Float64Array:
        """Fixed voxel to moving voxel at this level, (3, 4)."""
        moving = shrink_geometry(self.pair.moving.geometry, self.moving_factors)
        return voxel_matrix(self.geometry, moving, self.pair.initial)

    def compare(self, members: Sequence[Member], u: Float32Array) -> list[Comparison]:
        """Features of both images for each member, the moving image pulled through the displacement u."""
        moved: dict[Any, Sequence[Float32Array]] = {"raw": [self.pulled(u)]} if self.late else {}
        out = []
        for member in members:
            source, view = member.source, view_of(member)
            key: Any = view if source == "image" else source
            late = self.late and source == "image" and view.plain
            if key not in moved:
                if source != "image":
                    moved[key] = list(self.maps(source, u).pulled(u))
                elif late:
                    moved[key] = [apply_window(moved["raw"][0], self.moving_channels.window(view))]
                else:
                    image = self.moving_channels.view(view, self.moving_factors)
                    moved[key] = [_core.warp(image, self.matrix, u, 0.0, True)]
            if member.name not in self._fixed_features:
                if source != "image":
                    fixed: Iterable[Float32Array] = self.maps(source, u).fixed
                elif late:  # pulled through a zero field, so that the B-spline smooths both images alike
                    still = _core.zero_field(self.geometry.shape)
                    image = _core.pulled_image(self.fixed_channels.raw(self.factors), np.eye(3, 4), still)
                    fixed = [apply_window(image, self.fixed_channels.window(view))]
                else:
                    fixed = [self.fixed_channels.view(view, self.factors)]
                self._fixed_features[member.name] = _features(member, fixed)
            out.append(Comparison(member, self._fixed_features[member.name], _features(member, moved[key])))
        return out

    def pulled(self, u: Float32Array) -> Float32Array:
        """Return the intensities of the moving image, pulled through u."""
        return _core.pulled_image(self.moving_channels.raw(self.moving_factors), self.matrix, u)

    def maps(self, source: str, u: Float32Array) -> ComparedMaps:
        """Return the structure maps that members of a source compare, their channels shared by their places at u."""
        if source not in self._maps:
            pair, guides = self.pair, self.pair.guides
            fixed, pulled = pair.fixed.maps, pair.moving.label_maps if source == "labels" else pair.moving.maps
            if source == "guides":
                fixed, pulled = (None, None) if guides is None else (guides.fixed, guides.moving)
            if fixed is None or pulled is None:
                raise ValueError(f"members of source {source!r} compare structure maps, and the pair has none")
            self._maps[source] = ComparedMaps.on(self.geometry, fixed, pulled, self.pair.initial, u)
        return self._maps[source]

    def valid(self, u: Float32Array) -> Float32Array:
        """Weight of each voxel: 1 where it is inside both masks and, displaced, inside the moving image; else 0.

        Voxels of the level at the rim of a mask count in part.
        """
        moving = shrink_geometry(self.pair.moving.geometry, self.moving_factors)
        weight = np.asarray(_core.warp_valid(moving.shape, self.matrix, u), dtype=np.float32)
        fixed_share, moving_share = self.mask_shares
        if moving_share is not None:
            weight *= _core.warp(moving_share, self.matrix, u, 0.0, True)
        return weight if fixed_share is None else weight * fixed_share

    @cached_property
    def mask_shares(self) -> tuple[Float32Array | None, Float32Array | None]:
        """Share of each voxel of the level inside the mask of its image, fixed and moving; None without a mask."""
        sides = ((self.pair.fixed, self.factors), (self.pair.moving, self.moving_factors))
        masks = ((inside(image), factors) for image, factors in sides)
        fixed, moving = (None if mask is None else shrink(mask.astype(np.float32), f) for mask, f in masks)
        return fixed, moving

    def moved_labels(self, u: Float32Array) -> LabelArray:
        """Return the moving labels under the displacement u, nearest voxel, on this level's grid."""
        return self._nearest(self.pair.moving.labels, self.pair.initial, u)

    def fixed_labels(self) -> LabelArray:
        """Return the fixed labels on this level's grid, nearest voxel."""
        zero = np.zeros((3, *self.geometry.shape), dtype=np.float32)
        return self._nearest(self.pair.fixed.labels, np.eye(4), zero)

    def _nearest(self, labels: LabelMap | None, affine: Float64Array, u: Float32Array) -> LabelArray:
        assert labels is not None
        codes, table = encode(labels.data)
        warped = np.asarray(_core.warp_nearest(codes, voxel_matrix(self.geometry, labels.geometry, affine), u, 0))
        return warped if table is None else table[warped]


def _features(member: Member, channels: Iterable[Float32Array]) -> Float32Array:
    """Features that a member compares, one channel after the other."""
    found = [member.implementation.features(c, member.metric_options) for c in channels]
    return found[0] if len(found) == 1 else np.concatenate(found)


def view_of(member: Member) -> View:
    """Return how a member sees an image."""
    return View(member.window, member.sigma_voxels, getattr(member.implementation, "prepare", None))


FEW = 8  # So many structures are compared one by one: that is exact however they move
BLOCK = 3  # Edge of the blocks, in voxels, by which structures are separated; at least this far they may move
LEAST_SHARE = 0.05  # A structure is in a block whose largest probability is above this


@dataclass(frozen=True)
class ComparedMaps:
    """Structure maps of both images at one resolution, by channels.

    ``fixed`` (G, X, Y, Z) are on the grid of the level, ``moving`` on their own grid, shrunken to the level; ``matrix``
    (3, 4) takes voxels of the level to those of ``moving``. Each structure has a channel of its own, or ``places`` are
    those of `share_channels`.
    """

    fixed: Float32Array
    moving: Float32Array
    matrix: Float64Array
    places: IntArray | None = None

    @classmethod
    def on(
        cls, grid: Geometry, fixed: StructureMaps, moving: StructureMaps, affine: Float64Array, u: Float32Array
    ) -> ComparedMaps:
        """Bring maps to the resolution of a grid; structures that are apart at the displacement u share a channel."""
        groups, places = (None, None) if len(fixed.classes) <= FEW else _sharing(grid, fixed, moving, affine, u)
        both = []
        for maps, place in ((fixed, np.eye(4)), (moving, affine)):
            shares = maps.shares
            if groups is not None:
                shares = np.stack([shares[list(group)].sum(axis=0) for group in groups])
            factors, matrix = _shrinking(grid, maps.geometry, place)
            shrunken = shares if factors == (1, 1, 1) else np.stack([shrink(s, factors) for s in shares])
            both.append((shrunken, matrix))
        (here, matrix), (there, onward) = both
        return cls(warp_channels(here, matrix, np.zeros_like(u)), there, onward, places)

    def pulled(self, u: Float32Array) -> Float32Array:
        """Pull the maps of the moving image through the displacement u, (G, X, Y, Z)."""
        return warp_channels(self.moving, self.matrix, u)

    def weigh(self, weights: Float32Array) -> Float32Array:
        """Turn weights of structures (K,) into those of channels, (G, 1, 1, 1), or of their voxels, (G, X, Y, Z)."""
        if self.places is None:
            return weights[:, None, None, None]
        out = np.append(np.float32(0), weights)[self.places]
        for axis, n in enumerate(self.fixed.shape[1:], start=1):
            out = out.repeat(BLOCK, axis=axis).take(range(n), axis=axis)
        return np.ascontiguousarray(out, dtype=np.float32)


Groups = tuple[tuple[int, ...], ...]


def share_channels(present: NDArray[np.bool_]) -> tuple[Groups, IntArray]:
    """Colour K structures by G channels, large ones first, by the blocks (K, …) where either map has a structure.

    A comparison of structure maps warps and compares every channel at every step. Maps of structures that never meet
    can be added up first: where one of them is, the others are 0, so sums of absolute differences and local
    correlations stay what they were. 54 structures of a brain need 18 channels.

    Returns the structures of each channel; and, (G, blocks along each axis), 1 + the structure that a block of the
    fixed grid belongs to in each channel, with one block around it, 0 for none.
    """
    touch = np.ones((3, 3, 3), dtype=bool)
    wide = [ndimage.binary_dilation(p, touch) for p in present]
    groups: list[list[int]] = []
    places: list[IntArray] = []
    for k in sorted(range(len(wide)), key=lambda k: (-int(wide[k].sum()), k)):
        free = (g for g, taken in enumerate(places) if not (taken[wide[k]] > 0).any())
        found = next(free, len(groups))
        if found == len(groups):
            groups.append([])
            places.append(np.zeros(present.shape[1:], dtype=np.int32))
        groups[found].append(k)
        places[found][wide[k]] = k + 1
    return tuple(tuple(sorted(g)) for g in groups), np.stack(places)


def _shrinking(grid: Geometry, maps: Geometry, affine: Float64Array) -> tuple[Factors, Float64Array]:
    """Shrink factors of maps that are finer than a grid, and the matrix that takes voxels of the grid to theirs."""
    factors = within_image(nearest_whole(grid.spacing_mm.min() / maps.spacing_mm), maps)
    return factors, voxel_matrix(grid, shrink_geometry(maps, factors), affine)


def _sharing(
    grid: Geometry, fixed: StructureMaps, moving: StructureMaps, affine: Float64Array, u: Float32Array
) -> tuple[Groups, IntArray] | tuple[None, None]:
    """Share channels by the blocks of the grid that either map has structures in; None where no two may share."""
    block: Factors = (BLOCK, BLOCK, BLOCK)
    coarse = shrink_geometry(grid, block)
    still = np.zeros((3, *coarse.shape), dtype=np.float32)
    places = ((fixed, np.eye(4), still), (moving, affine, change_level(u, (1, 1, 1), block, coarse.shape)))
    seen = []
    for maps, place, by in places:
        factors, matrix = _shrinking(coarse, maps.geometry, place)
        seen.append(warp_channels(_largest(maps.shares, factors), matrix, by) > LEAST_SHARE)
    groups, where = share_channels(seen[0] | seen[1])
    return (groups, where) if len(groups) < len(fixed.classes) else (None, None)


def _largest(shares: Float32Array, factors: Factors) -> Float32Array:
    """Largest value of each map (K, X, Y, Z) in each block of voxels."""
    out = shares
    for axis, f in enumerate(factors, start=1):
        along = np.moveaxis(out, axis, 0)
        found = along[::f].copy()
        for i in range(1, f):
            part = along[i::f]
            np.maximum(found[: len(part)], part, out=found[: len(part)])
        out = np.moveaxis(found, 0, axis)
    return np.ascontiguousarray(out)
