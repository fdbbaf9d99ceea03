"""Frozen values that flow through the program: files → pair → costs → energy → labels → field.

Conventions, kept everywhere: arrays of voxels are indexed ``[i, j, k]`` in the order of the image axes and are
C-contiguous; ``affine`` takes such an index to LPS millimetres; vectors are component-first, ``(3, X, Y, Z)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
IntArray = NDArray[np.int32]
LabelArray = NDArray[Any]


@dataclass(frozen=True)
class Geometry:
    """Where a voxel grid lies in space.

    Parameters
    ----------
    shape : tuple of three ints
        Number of voxels along each image axis.
    affine : float array of shape (4, 4)
        Takes a voxel index (i, j, k, 1) to LPS millimetres.
    """

    shape: tuple[int, int, int]
    affine: Float64Array

    @property
    def spacing_mm(self) -> Float64Array:
        """Distance between neighbouring voxels along each axis, shape (3,)."""
        return np.asarray(np.linalg.norm(self.affine[:3, :3], axis=0), dtype=np.float64)

    @property
    def direction(self) -> Float64Array:
        """Direction cosines, one column for each image axis, shape (3, 3)."""
        return self.affine[:3, :3] / self.spacing_mm

    @property
    def origin_mm(self) -> Float64Array:
        """LPS position of the centre of voxel (0, 0, 0)."""
        return self.affine[:3, 3]

    def points(self, index: Float64Array) -> Float64Array:
        """Take voxel indices (..., 3) to LPS millimetres (..., 3)."""
        return index @ self.affine[:3, :3].T + self.affine[:3, 3]

    def corners_mm(self) -> Float64Array:
        """LPS positions of the eight corner voxels, shape (8, 3)."""
        ends = np.array([[0, n - 1] for n in self.shape], dtype=np.float64)
        index = np.stack(np.meshgrid(*ends, indexing="ij"), axis=-1).reshape(8, 3)
        return self.points(index)


Modality = Literal["ct", "mr", "t1", "t2", "pd", "flair", "pet", "us"]
"""CT in Hounsfield units, or an image on a scale of its own; ``mr`` is any of these of which no more is said."""


@dataclass(frozen=True)
class Volume:
    """A scalar image on a grid: ``data`` float32 of shape ``geometry.shape``, and its modality once that is decided."""

    data: Float32Array
    geometry: Geometry
    modality: Modality | None = None


@dataclass(frozen=True)
class LabelMap:
    """A segmentation on a grid: ``data`` of any integer dtype, 0 is background, ``names`` by label value."""

    data: LabelArray
    geometry: Geometry
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def values(self) -> list[int]:
        """Labels present other than background, ascending."""
        return [int(v) for v in np.unique(self.data) if v != 0]

    def name(self, value: int) -> str:
        """Name of a label, or its number where it has none."""
        return self.names.get(value, str(value))


@dataclass(frozen=True)
class Field:
    """A dense displacement on the fixed grid: a fixed point p goes to ``p + data[:, index of p]``.

    ``data`` is float32 of shape (3, X, Y, Z), LPS millimetres.
    """

    data: Float32Array
    geometry: Geometry

    @classmethod
    def zero(cls, geometry: Geometry) -> Field:
        """Return the identity on a grid."""
        return cls(np.zeros((3, *geometry.shape), dtype=np.float32), geometry)


Direction = Literal["fixed_to_moving", "moving_to_fixed"]


@dataclass(frozen=True)
class Ends:
    """The two images that a transform connects: which way its points go, from which grid to which.

    Examples
    --------
    >>> there = Ends("fixed_to_moving", Geometry((4, 4, 4), np.eye(4)), Geometry((5, 5, 5), np.eye(4)))
    >>> there.turned().direction, there.turned().start.shape
    ('moving_to_fixed', (5, 5, 5))
    """

    direction: Direction
    start: Geometry
    target: Geometry

    def turned(self) -> Ends:
        """Return the ends of the inverse transform."""
        back: Direction = "moving_to_fixed" if self.direction == "fixed_to_moving" else "fixed_to_moving"
        return Ends(back, self.target, self.start)


@dataclass(frozen=True)
class Transform:
    """A spatial map: the point p goes to ``affine · (p + field(p))``, all in LPS millimetres.

    A registration's transform takes fixed points to moving points (ITK's resampling convention), so its field lies
    on the fixed grid. Outside that grid the field takes the value of the nearest voxel.

    Parameters
    ----------
    field : Field
    affine : float array of shape (4, 4)
    ends : Ends, optional
        The images that the map connects, where that is known.
    knots : Field, optional
        The coarser field that ``field`` is a sample of: at the voxels of ``field`` both agree, between them the knots
        hold. Without them ``field`` itself is trilinear.
    """

    field: Field
    affine: Float64Array = dataclasses.field(default_factory=lambda: np.eye(4))
    ends: Ends | None = None
    knots: Field | None = None

    @property
    def interpolated(self) -> Field:
        """The field whose trilinear interpolation is the map between voxels."""
        return self.field if self.knots is None else self.knots


@dataclass(frozen=True)
class Anatomy:
    """How likely each structure is at each voxel.

    Parameters
    ----------
    shares : float32 array of shape (K, X, Y, Z)
        In [0, 1]; what is left to 1 is background.
    geometry : Geometry
        Grid of the shares, which may be coarser than that of the image.
    """

    shares: Float32Array
    geometry: Geometry


@dataclass(frozen=True)
class Anatomies:
    """What a model makes out in both images of a pair, the same structures in the same order.

    Parameters
    ----------
    fixed, moving : Anatomy
        As the model sees the images.
    outline : Anatomy
        The moving labels instead, where they are known.
    """

    fixed: Anatomy
    moving: Anatomy
    outline: Anatomy


@dataclass(frozen=True)
class ImagePair:
    """What one registration starts from.

    Parameters
    ----------
    fixed, moving : Volume
        The images, each on its own grid.
    fixed_labels, moving_labels : LabelMap, optional
        Segmentations on the grids of their images. The moving one chooses the weights; the fixed one is used
        by the loss and by the evaluation, never by a prediction.
    initial : float array of shape (4, 4)
        Affine start: takes LPS millimetres of the fixed image to those of the moving image.
    initial_field : Field, optional
        Deformable start, applied before ``initial``: fixed p → initial(p + field(p)).
    anatomies : Anatomies, optional
        What a model makes out in the images, for the members that compare it.
    """

    fixed: Volume
    moving: Volume
    fixed_labels: LabelMap | None = None
    moving_labels: LabelMap | None = None
    initial: Float64Array = dataclasses.field(default_factory=lambda: np.eye(4))
    initial_field: Field | None = None
    anatomies: Anatomies | None = None


@dataclass(frozen=True)
class Weights:
    """The matrix W of eq. (1): how much each class trusts each member of the bank.

    Parameters
    ----------
    matrix : float array of shape (M, C)
        Row m belongs to ``members[m]``, column c to ``classes[c]``.
    members : tuple of str
        Names of the bank's members.
    classes : tuple of ints
        Label values; 0, the background, is always there and also serves labels that have no column.
    pairwise : float
        Weight w_p of the smoothness term, eq. (4).
    """

    matrix: Float64Array
    members: tuple[str, ...]
    classes: tuple[int, ...]
    pairwise: float

    @classmethod
    def uniform(cls, members: tuple[str, ...], pairwise: float, classes: tuple[int, ...] = (0,)) -> Weights:
        """Give each member the same weight, one in all, in every class."""
        matrix = np.full((len(members), len(classes)), 1.0 / len(members))
        return cls(matrix, members, classes, pairwise)

    def of(self, members: tuple[str, ...]) -> Weights:
        """Return the rows of some members, scaled so that in each class they carry the weight of all."""
        rows = self.matrix[[self.members.index(m) for m in members]]
        total, kept = self.matrix.sum(axis=0), rows.sum(axis=0)
        scale = np.divide(total, kept, out=np.zeros_like(total), where=kept != 0)
        return Weights(rows * scale, members, self.classes, self.pairwise)


@dataclass(frozen=True)
class Terms:
    """What an energy is made of, before weights and loss meet it.

    Parameters
    ----------
    costs : float32 array of shape (M, N, L)
        Scaled cost of each member at each node for each label, eq. (1).
    shares : float32 array of shape (N, C) or (N, L, C)
        How much of each class a node is, per node (anchored) or per label (displaced).
    loss : float32 array of shape (N, L), optional
        Loss of each node for each label, eq. (3).
    shape : tuple of three ints
        Nodes along each axis; their product is N.
    offsets : tuple of three float64 arrays
        Label displacements along each axis in units of the control spacing; their product set is the label set.
    base : float64 array of shape (N, 3), optional
        Displacement that the nodes already have, same units; given when the pairwise term is elastic.
    """

    costs: Float32Array
    shares: Float32Array
    shape: tuple[int, int, int]
    offsets: tuple[Float64Array, Float64Array, Float64Array]
    loss: Float32Array | None = None
    base: Float64Array | None = None


@dataclass(frozen=True)
class Energy:
    """A pairwise energy on a grid of nodes, eq. (2).

    ``E(x) = Σ_i unary[i, x_i] + weight · Σ_(i,j) Σ_axis |p_i(x_i) − p_j(x_j)|`` with
    ``p_i(l) = base[i] + (offsets[0][a], offsets[1][b], offsets[2][c])`` for label ``l = (a, b, c)`` in C order, and
    (i, j) the neighbours on the 6-connected grid.

    Parameters
    ----------
    unary : float64 array of shape (N, L)
        Costs of any sign; nodes in C order of ``shape``.
    shape : tuple of three ints
        Nodes along each axis.
    offsets : tuple of three float64 arrays
        Label displacements along each axis; L is the product of their lengths.
    weight : float
        Non-negative weight of the pairwise term.
    base : float64 array of shape (N, 3), optional
        Positions the nodes start from; None means all zero, and the pairwise term is then a metric on labels.
    """

    unary: Float64Array
    shape: tuple[int, int, int]
    offsets: tuple[Float64Array, Float64Array, Float64Array]
    weight: float
    base: Float64Array | None = None

    def positions(self, labels: IntArray) -> Float64Array:
        """Position of each node under a labelling, shape (*shape, 3)."""
        grid = np.stack(np.meshgrid(*self.offsets, indexing="ij"), axis=-1).reshape(-1, 3)
        p = grid[labels]
        if self.base is not None:
            p = p + self.base
        return np.asarray(p.reshape(*self.shape, 3))

    def pairwise(self, labels: IntArray) -> float:
        """Sum over edges of the L1 distance of the two positions, without the weight."""
        p = self.positions(labels)
        return float(sum(np.abs(np.diff(p, axis=axis)).sum() for axis in range(3)))

    def __call__(self, labels: IntArray) -> float:
        """Energy of a labelling (N,), in float64."""
        unary = self.unary[np.arange(len(labels)), labels].sum()
        return float(unary + self.weight * self.pairwise(labels))


@dataclass(frozen=True)
class Solution:
    """A labelling with its evidence.

    ``energy`` is recomputed from the labels by ``Energy.__call__``; no labelling has an energy below
    ``lower_bound`` (minus infinity where the engine gives none).
    """

    labels: IntArray
    energy: float
    lower_bound: float
    iterations: int

    @property
    def gap(self) -> float:
        """Relative distance to the bound, infinite without one: 0 certifies the optimum."""
        if not np.isfinite(self.lower_bound):
            return float("inf")
        return max(0.0, self.energy - self.lower_bound) / max(abs(self.energy), 1e-12)
