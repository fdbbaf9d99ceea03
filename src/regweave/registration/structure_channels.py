"""Graph colouring of structures: those that lie apart share a channel.

A comparison of structure maps warps and compares every channel at every step. Maps of structures that never meet can be
added up first: where one of them is, the others are 0, so sums of absolute differences and local correlations stay what
they were. 54 structures of a brain need 18 channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave.config.settings import within_image
from regweave.spatial.control_grid import nearest_whole
from regweave.spatial.pyramid import Factors, change_level, shrink, shrink_geometry
from regweave.spatial.warp import voxel_matrix, warp_channels
from regweave.types import Float32Array, Float64Array, Geometry, IntArray, StructureMaps

FEW = 8
"""So many structures are compared one by one: that is exact however they move."""
BLOCK = 3
"""Edge of the blocks, in voxels, by which structures are told apart; at least this far they may move."""
LEAST_SHARE = 0.05
"""A structure lies in a block whose largest probability is above this."""


@dataclass(frozen=True)
class Sharing:
    """Colouring of K structures by G channels.

    Parameters
    ----------
    groups : tuple of tuples of ints
        Structures of each channel.
    places : int array of shape (G, blocks along each axis)
        1 + structure that a block of the fixed grid belongs to in each channel, with one block around it; 0 is none.
    """

    groups: tuple[tuple[int, ...], ...]
    places: IntArray

    @classmethod
    def of(cls, present: NDArray[np.bool_]) -> Sharing:
        """Colour greedily, large structures first.

        Parameters
        ----------
        present : bool array of shape (K, blocks along each axis)
            Blocks where either map has a structure.

        Examples
        --------
        >>> Sharing.of(np.eye(5, dtype=bool)[:, :, None, None]).groups
        ((1, 4), (2,), (0, 3))
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
        return cls(tuple(tuple(sorted(g)) for g in groups), np.stack(places))

    def add_up(self, shares: Float32Array) -> Float32Array:
        """Sum the maps (K, X, Y, Z) of each channel: (G, X, Y, Z)."""
        out = np.zeros((len(self.groups), *shares.shape[1:]), dtype=np.float32)
        for g, group in enumerate(self.groups):
            for k in group:
                out[g] += shares[k]
        return out

    def laid(self, weights: Float32Array, shape: Sequence[int]) -> Float32Array:
        """Lay weights of structures (K,) where each of them is: (G, X, Y, Z)."""
        out = np.append(np.float32(0), weights)[self.places]
        for axis, n in enumerate(shape, start=1):
            out = out.repeat(BLOCK, axis=axis).take(range(n), axis=axis)
        return np.ascontiguousarray(out, dtype=np.float32)


@dataclass(frozen=True)
class ComparedMaps:
    """Structure maps of both images at one resolution, by channels.

    Parameters
    ----------
    fixed : float32 array of shape (G, X, Y, Z)
        Maps of the fixed image, on the grid of the level.
    moving : float32 array of shape (G, …)
        Maps of the moving image, on their own grid, shrunken to the level.
    matrix : float array of shape (3, 4)
        Takes voxels of the level to voxels of ``moving``.
    sharing : Sharing, optional
        Which structures share a channel; None where each has its own.
    """

    fixed: Float32Array
    moving: Float32Array
    matrix: Float64Array
    sharing: Sharing | None = None

    @classmethod
    def on(
        cls, grid: Geometry, fixed: StructureMaps, moving: StructureMaps, affine: Float64Array, u: Float32Array
    ) -> ComparedMaps:
        """Bring maps to the resolution of a grid; structures that lie apart at the displacement u share a channel."""
        sharing = None if len(fixed.classes) <= FEW else _sharing(grid, fixed, moving, affine, u)
        both = []
        for maps, place in ((fixed, np.eye(4)), (moving, affine)):
            shares = maps.shares if sharing is None else sharing.add_up(maps.shares)
            factors, matrix = _shrinking(grid, maps.geometry, place)
            shrunken = shares if factors == (1, 1, 1) else np.stack([shrink(s, factors) for s in shares])
            both.append((shrunken, matrix))
        (here, matrix), (there, onward) = both
        return cls(warp_channels(here, matrix, np.zeros_like(u)), there, onward, sharing)

    def pulled(self, u: Float32Array) -> Float32Array:
        """Pull the maps of the moving image through the displacement u, (G, X, Y, Z)."""
        return warp_channels(self.moving, self.matrix, u)

    def weigh(self, weights: Float32Array) -> Float32Array:
        """Turn weights of structures (K,) into those of channels, (G, 1, 1, 1), or of their voxels, (G, X, Y, Z)."""
        return (
            weights[:, None, None, None] if self.sharing is None else self.sharing.laid(weights, self.fixed.shape[1:])
        )


def _shrinking(grid: Geometry, maps: Geometry, affine: Float64Array) -> tuple[Factors, Float64Array]:
    """Shrink factors of maps that are finer than a grid, and the matrix that takes voxels of the grid to theirs."""
    factors = within_image(nearest_whole(grid.spacing_mm.min() / maps.spacing_mm), maps)
    return factors, voxel_matrix(grid, shrink_geometry(maps, factors), affine)


def _sharing(
    grid: Geometry, fixed: StructureMaps, moving: StructureMaps, affine: Float64Array, u: Float32Array
) -> Sharing | None:
    """Colour structures by the blocks of the grid that either map has them in; None where no two may share."""
    block: Factors = (BLOCK, BLOCK, BLOCK)
    coarse = shrink_geometry(grid, block)
    still = np.zeros((3, *coarse.shape), dtype=np.float32)
    places = ((fixed, np.eye(4), still), (moving, affine, change_level(u, (1, 1, 1), block, coarse.shape)))
    seen = []
    for maps, place, by in places:
        factors, matrix = _shrinking(coarse, maps.geometry, place)
        seen.append(warp_channels(_largest(maps.shares, factors), matrix, by) > LEAST_SHARE)
    out = Sharing.of(seen[0] | seen[1])
    return out if len(out.groups) < len(fixed.classes) else None


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
