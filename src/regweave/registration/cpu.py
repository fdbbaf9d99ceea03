"""Device of the host: the verbs of both registration loops, by compiled kernels.

`align` and `refine` in `regweave.registration.align` are written once, on these verbs. Displacements u (3, X, Y, Z), in
voxels of the grid of a scene, terms and forces stay on the device between them. What the loops themselves read (grids,
energies, costs) is on the host.

Another device is a class with the same methods, and its line in `regweave.registration.devices.DEVICES`. A metric that
it has no kernel for goes through `regweave.energy.cost_volume`, a penalty through `host_forces`. The host computes
costs (N, L) or a force (3, X, Y, Z), and the device uploads them.

Forces of the refinement: a metric names its penalty in ``PENALTY``; the force is the derivative of the cost by a small
displacement of the moved image, (3, X, Y, Z), computed analytically by the compiled kernels. Each class weighs each
member by its column of W. A member that compares images has, at each voxel, the weight of the class of the moving mask.
A member that compares structure maps has one weight for the map of each structure at all voxels: its force acts on both
sides of the border, where the class of a voxel is ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from scipy import ndimage

from regweave import _core, losses
from regweave.config.settings import Member, Refine, Settings
from regweave.energy import Comparison, cost_volume, fit_scales, solve
from regweave.registration.scene import Scene, view_of
from regweave.spatial.control_grid import RULES, ControlGrid, LabelSet, numbers_of, one_hot
from regweave.spatial.voxels import Factors, change_level
from regweave.types import Float32Array, Float64Array, Geometry, ImagePair, IntArray, Solution, Terms, WeightTable

LEAST_FORCE = 1e-3  # Forces of this size are rounding and are not scaled up; features are in [0, 1]
SMALL_DIFFERENCE = 0.01  # Differences of features in [0, 1] below this are penalised quadratically
LEAST_JACOBIAN = 0.1  # A step may not bring a voxel's volume change below this
ATTEMPTS = 8
"""Times that the control points round folding voxels are held, farther each time, before the step is given up."""
REACH = 0.4  # Largest displacement of a control point in one step, in control spacings: cubic B-splines fold beyond
LEAST_SIGMA_VOXELS = 0.1  # A Gaussian narrower than this changes nothing
CUT = 3.0  # Half the length of the smoothing kernel, in standard deviations
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.99
QUIET = 0.1  # Control points with a gradient below this share of the typical one do not take full steps


@dataclass(frozen=True)
class DataTerm:
    """Weighted penalty of a member: its weight at each voxel and its window.

    Where the maps of structures weigh differently, ``channels`` holds a factor for each channel, (1, 1, 1), or for each
    of its voxels, (X, Y, Z); None leaves the channel out. In ``sums`` a GPU keeps what the fixed image alone decides.
    """

    member: Member
    weight: Any
    radius: int
    channels: tuple[Any, ...] | None = None
    sums: dict[int, Any] = field(default_factory=dict)

    def cost(self, comparison: Comparison, force: Float32Array) -> float:
        """Cost of a comparison; its derivative is added to ``force``."""
        penalty, options = PENALTIES[str(self.member.penalty)], self.member.metric_options
        if self.channels is None:
            return penalty(comparison.fixed, comparison.moved, self.weight, force, self.radius, options)
        # A penalty is a mean over channels: one by one, each counts as many times as there are.
        n = len(self.channels)
        parts = zip(np.split(comparison.fixed, n), np.split(comparison.moved, n), self.channels, strict=True)
        return sum(
            penalty(fixed, moved, self.weight * (factor / n), force, self.radius, options)
            for fixed, moved, factor in parts
            if factor is not None
        )


@dataclass(frozen=True)
class Objective:
    """Data terms, the stiffness of each voxel, (X, Y, Z), where it is not 1, and the length that weighs bending."""

    terms: tuple[DataTerm, ...]
    stiffness: Any = None
    bending_mm: float = 0.0
    by_host: tuple[DataTerm, ...] = ()  # terms that a GPU has no kernels for


def data_terms(
    device: Any, scene: Any, u: Any, members: Sequence[Member], weights: WeightTable, settings: Refine
) -> Objective:
    """Terms of the members, scaled so that a weight of one means a typical force of one at u.

    A member that the device cannot compare is left out.
    """
    host, valid, out = scene.host, scene.valid(u), []
    table = counted_once(host, members, weights.select(tuple(m.name for m in members)))
    rows = table.matrix.astype(np.float32)
    of_voxels = [row for member, row in zip(members, rows, strict=True) if member.source == "image"]
    if table.stiffness is not None:
        of_voxels.append(table.stiffness.astype(np.float32))
    columns = None  # of each voxel; without them the first is that of all
    if host.pair.moving.labels is not None and any((row != row[0]).any() for row in of_voxels):
        columns = device.columns(scene, u, table.classes, settings.class_reach_voxels)
    for comparison, member, row in zip(scene.compare(members, u), members, rows, strict=True):
        if comparison is None:
            continue
        term = DataTerm(member, valid, settings.radius_voxels if member.support is None else member.support // 2)
        numbers, values, channels = columns, row, None
        if member.source != "image":
            values, numbers = structure_weights(host.pair, member, row, table.classes), None
            if not (values == values[0]).all():
                factors = host.maps(member.source, device.download(u)).weigh(values)
                channels = tuple(device.upload(np.ascontiguousarray(f)) if f.any() else None for f in factors)
                values = np.ones(1, dtype=np.float32)
        scale = 1 / device.typical_force(scene, term, comparison, u)
        out.append(replace(term, weight=device.laid(scene, numbers, values, valid, scale), channels=channels))
    stiffness = None if table.stiffness is None else device.laid(scene, columns, of_voxels[-1], None, 1.0)
    return Objective(tuple(out), stiffness, settings.bending_mm)


def counted_once(scene: Scene, members: Sequence[Member], weights: WeightTable) -> WeightTable:
    """Scale members that compare structure maps by the volume of an image voxel over that of a coarser map voxel.

    The columns keep their sums.
    """
    if (maps := scene.pair.fixed.maps) is None:
        return weights
    image, coarse = (abs(np.linalg.det(g.affine[:3, :3])) for g in (scene.geometry, maps.geometry))
    share = min(1.0, float(image / coarse))
    own = np.array([1.0 if m.source in ("image", "guides") else share for m in members])
    return weights if (own == 1).all() else weights.scale(own[:, None])


def structure_weights(pair: ImagePair, member: Member, row: Float32Array, classes: tuple[int, ...]) -> Float32Array:
    """Weight of the map of each structure, (K,), for a member that compares structure maps, from its row of W."""
    if member.source == "guides" and pair.guides is not None:
        return np.asarray(row[classes.index(0)] * np.array(pair.guides.weights), dtype=np.float32)
    assert pair.fixed.maps is not None
    return row[[classes.index(c) if c in classes else 0 for c in pair.fixed.maps.classes]]


def forces(scene: Scene, objective: Objective, u: Float32Array, smoothness: float) -> tuple[float, float, Float32Array]:
    """Cost of the data, weighted cost of the smoothness, and the force of both, at u.

    The moving image is pulled through u as a whole: pulling what an earlier step has pulled blurs it a second time.
    """
    force = _core.zero_field(scene.geometry.shape)
    factor = [[smoothness * f for f in row] for row in isotropic(scene.geometry)]
    if objective.stiffness is None:
        smooth = _core.diffusion_force(u, force, factor)
    else:
        smooth = _core.stiff_diffusion_force(u, objective.stiffness, force, factor)
    if objective.bending_mm:
        smooth += bending(u, force, scene.geometry, smoothness, objective.bending_mm)
    return host_forces(scene, objective.terms, u, force), smooth, force


def isotropic(geometry: Geometry) -> list[list[float]]:
    """Factor of each component and axis that makes smoothness isotropic in millimetres on an anisotropic grid."""
    s = stretch(geometry)
    return [[float((s[c] / s[axis]) ** 2) for axis in range(3)] for c in range(3)]


def bending(u: Float32Array, force: Float32Array, geometry: Geometry, smoothness: float, length_mm: float) -> float:
    """Weighted squared second derivatives of u, isotropic in millimetres; their force is added."""
    s, voxel_mm = stretch(geometry), float(np.exp(np.log(geometry.spacing_mm).mean()))
    weight = smoothness * (length_mm / voxel_mm) ** 2
    factor = [[[weight * float(s[c] / (s[a] * s[b])) ** 2 for b in range(3)] for a in range(3)] for c in range(3)]
    return _core.bending_force(u, force, factor)


def host_forces(
    scene: Scene, terms: Sequence[DataTerm], u: Float32Array, force: Float32Array,
    compared: Sequence[Comparison] | None = None,
) -> float:  # fmt: skip
    """Cost of some terms at u, by the host; their force is added: the way of a penalty that a device lacks."""
    compared = scene.compare([t.member for t in terms], u) if compared is None else compared
    cost, exact, slope = 0.0, 0.0, None
    for term, features in zip(terms, compared, strict=True):
        member, view = term.member, view_of(term.member)
        if scene.late and member.source == "image" and member.metric in SLOPES and view.plain:
            slope = np.zeros(u.shape[1:], dtype=np.float32) if slope is None else slope
            low, high = scene.moving_channels.window(view)
            images, options = (features.fixed[0], features.moved[0]), member.metric_options
            exact += SLOPES[member.metric](*images, term.weight, slope, 1 / (high - low), term.radius, options)
        else:
            cost += term.cost(features, force)
    if slope is not None:
        _core.pulled_force(scene.moving_channels.raw(scene.moving_factors), scene.matrix, u, slope, force)
    return cost + exact


def typical_force(scene: Scene, term: DataTerm, comparison: Comparison, u: Float32Array) -> float:
    """Root mean square over voxels, each voxel weighted by its own square: flat regions do not count."""
    force = _core.zero_field(scene.geometry.shape)
    host_forces(scene, [term], u, force, [comparison])
    return max(float(np.sqrt(_core.mean_square_force(force))), LEAST_FORCE)


def _correlation(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, radius: int, options: Any
) -> float:
    settings = (radius, options.variance_floor, options.squared)
    share = weight if len(fixed) == 1 else weight * np.float32(1 / len(fixed))
    channels = zip(fixed[:, None], moved[:, None], strict=True)
    return float(sum(_core.correlation_force(f, m, share, force, *settings) for f, m in channels))


PENALTIES: dict[str, Callable[..., float]] = {
    "absolute": lambda f, m, weight, force, radius, options: _core.absolute_force(
        f, m, weight, force, SMALL_DIFFERENCE
    ),
    "correlation": _correlation,
    "tensor": lambda f, m, weight, force, radius, options: _core.tensor_force(f, m, weight, force),
}
"""Sums over voxels of weight × a penalty: the mean over channels of √(d² + ε²) − ε, or of 1 − correlation, or its
square, in a radius; or ½ |ff' − mm'|². Their force is added."""


# The forces above are differences of the pulled image between neighbouring voxels. Where an image changes from voxel to
# voxel these are not the derivative of its interpolation, and a descent along them ends where they vanish, not at
# the least cost. The derivative of a linear interpolation does not help: it follows the noise, which is least half way
# between voxels, and goes there wherever nothing else decides. So exact forces are those of cubic B-splines.


SLOPES: dict[str, Callable[..., float]] = {
    "sad": lambda f, m, weight, slope, scale, *_: _core.absolute_slope(f, m, weight, slope, scale, SMALL_DIFFERENCE),
    "ncc": lambda f, m, weight, slope, scale, radius, options: _core.correlation_slope(
        f, m, weight, slope, scale, radius, options.variance_floor, options.squared
    ),
}
"""Costs of metrics whose features are the windowed intensities; the derivative by the moved image is added."""


def columns(scene: Scene, u: Float32Array, classes: tuple[int, ...], reach: float) -> IntArray:
    """Column of each voxel, by the moving label there, (X, Y, Z)."""
    return spread(numbers_of(scene.moved_labels(u), classes), reach, stretch(scene.geometry))


def laid(
    scene: Scene, numbers: IntArray | None, values: Float32Array, valid: Float32Array | None, scale: float
) -> Float32Array:
    """Value of the column of each voxel, the first without ``numbers``, times weights of the scene and a scale."""
    found = np.full(scene.geometry.shape, values[0], dtype=np.float32) if numbers is None else values[numbers]
    return found if valid is None else found * valid * np.float32(scale)


def spread(numbers: IntArray, reach: float, voxel: Float64Array) -> IntArray:
    """Give background (0) within a reach of a structure the number of the nearest one; ``voxel`` are its edges (3,)."""
    if reach == 0 or not numbers.any():
        return numbers
    away, nearest = ndimage.distance_transform_edt(numbers == 0, sampling=voxel, return_indices=True)
    return np.where(away <= reach, numbers[tuple(nearest)], 0)


def stretch(geometry: Geometry) -> Float64Array:
    """Voxel size along each axis relative to its geometric mean."""
    return np.asarray(geometry.spacing_mm / np.exp(np.log(geometry.spacing_mm).mean()))


class Descent:
    """Adam on control points, the step length set by each point's own recent gradients (Kingma and Ba 2015).

    The second moment is that of the whole vector, so that the direction is kept.
    """

    def __init__(self, settings: Refine, grid: ControlGrid, geometry: Geometry) -> None:
        spacing = float(grid.spacing[0])
        self._grid, self._length, self._reach = grid, settings.rate * spacing, REACH * spacing
        self._stretch = tuple(float(s) for s in stretch(geometry))
        self._first = np.zeros((3, *grid.nodes), dtype=np.float32)
        self._second = np.zeros(grid.nodes, dtype=np.float32)
        self._done = 0

    def update(self, force: Float32Array) -> Float32Array:
        """Displacement of the control points, in voxels, bounded so that the step is invertible."""
        self._done += 1
        g = _core.ffd_adjoint(force, self._grid.origin, self._grid.spacing, self._grid.nodes)
        keep = (FIRST_MOMENT, SECOND_MOMENT)
        return _core.descend(
            g, self._first, self._second, self._stretch, self._done, keep, self._length, self._reach, QUIET
        )


def held_back(u: Float32Array, update: Float32Array, grid: ControlGrid) -> Float32Array:
    """Return u ∘ (id + δ), where δ is the free-form deformation of the update.

    Control points near a voxel that the step would bring below the least Jacobian are left where they are.
    """
    return _core.hold_back(u, update, grid.origin, grid.spacing, LEAST_JACOBIAN, ATTEMPTS)


def smoothed(
    u: Any, sigma_mm: float, geometry: Geometry, least_of: Callable[[Any], float] = lambda u: _core.jacobian(u).min(),
    gaussian: Callable[[Any, Float64Array], Any] = lambda u, sigma: _core.gaussian(u, sigma, CUT),
) -> Any:  # fmt: skip
    """Smooth a start by a Gaussian, a narrower one where that would fold: an average of displacements rarely does.

    ``least_of`` returns the least determinant of a displacement, and ``gaussian`` smooths one, on the device.
    """
    if sigma_mm == 0:
        return u
    least = min(LEAST_JACOBIAN, float(least_of(u)))
    while sigma_mm > LEAST_SIGMA_VOXELS * geometry.spacing_mm.min():
        out = gaussian(u, sigma_mm / geometry.spacing_mm)
        if least_of(out) >= least:
            return out
        sigma_mm /= 2
    return u


def unfolded(knots: Float32Array, factors: Factors, shape: tuple[int, int, int]) -> tuple[Float32Array, Float32Array]:
    """Bring the displacement to the grid of the image, smoothed where it folds there though not on that of the steps.

    Upsampling can create folds that central differences on the coarse grid do not see. The knots are smoothed, not the
    voxels of the image, so that the fine displacement is the interpolation of the knots everywhere. Returns knots and
    displacement (3, X, Y, Z), in voxels of the shrunken grid and of the image.
    """
    u = change_level(knots, factors, (1, 1, 1), shape)
    for _ in range(ATTEMPTS):
        jacobian = _core.jacobian(u)
        if jacobian.min() > 0:
            break
        folding = np.argwhere(jacobian <= 0)
        mask = np.zeros(knots.shape[1:], dtype=bool)
        mask[tuple((folding // factors).T)] = True
        near = ndimage.binary_dilation(mask, iterations=2)
        knots = knots.copy()
        for box in ndimage.find_objects(ndimage.label(near)[0]):
            wide = tuple(slice(max(0, s.start - 3), s.stop + 3) for s in box)
            part, inside = knots[:, *wide], near[wide]
            part[:, inside] = ndimage.gaussian_filter(part, (0, 1, 1, 1), mode="nearest", truncate=CUT)[:, inside]
        del u, jacobian, folding  # room for the next ones
        u = change_level(knots, factors, (1, 1, 1), shape)
    return knots, u


Device: TypeAlias = Any  # `CpuDevice`, or a class with the same methods
DeviceArray: TypeAlias = Any  # An array where the device keeps it; the loops hand it on and never look inside


VALID_SHARE = 0.25  # Nodes with less than this fraction of valid voxels in their support get zero unary cost


@dataclass(frozen=True)
class StepSearch:
    """The neighbourhood of an estimate that a step searches: nodes and labels of a level, columns of the weights."""

    grid: ControlGrid
    labels: LabelSet
    classes: tuple[int, ...]
    schedule: Settings


def measure(
    scene: Scene, u: Float32Array, around: StepSearch, scales: Float64Array | None
) -> tuple[Terms, Float64Array]:
    """Terms around the estimate u, and the scales of the members, fitted where none are given.

    Shares of classes are the columns of W that each node uses, (N, C), or each label of it, (N, L, C). The base of an
    elastic energy is the displacement that each node has so far, in control spacings, (N, 3).
    """
    grid, labels, schedule, classes = around.grid, around.labels, around.schedule, around.classes
    costs = cost_volume(scene.compare(schedule.bank, u), grid, labels)
    weight = scene.valid(u)
    valid = None if weight.min() == 1 else _core.support_means(np.ascontiguousarray(weight), *grid.support_arguments)
    if valid is not None and any(share is not None for share in scene.mask_shares):
        costs *= valid[:, None]  # a cost is a mean over the support, to which voxels outside add nothing
    if scales is None:
        scales = fit_scales(costs)
    costs *= (1 / scales).astype(np.float32)[:, None, None]
    if valid is not None:
        costs[:, valid < VALID_SHARE] = 0
    if scene.pair.moving.labels is None or len(classes) == 1:
        shares = np.eye(1, len(classes), dtype=np.float32).repeat(grid.n_nodes, axis=0)
    else:
        rule, moved = RULES[schedule.class_rule], scene.moved_labels(u)
        box = grid.with_support(tuple(round(edge * schedule.class_reach) for edge in grid.support))
        if schedule.class_at == "anchored":
            shares = rule(box.shares(numbers_of(moved, classes), len(classes)))
        else:
            where = (*box.support_arguments, *labels.offsets)
            masks = (m[None] for m in one_hot(moved, classes))
            shares = rule(np.stack([_core.mean_volume(m, m, *where) for m in masks], axis=-1))
    base = None
    if schedule.pairwise == "elastic":
        at_nodes = _core.resample_field(u, grid.nodes, grid.spacing, grid.origin)
        base = np.asarray(at_nodes.reshape(3, -1).T / grid.spacing, dtype=np.float64)
    return Terms(costs, shares, grid.nodes, labels.in_units_of(grid.spacing), base=base), scales


def loss(scene: Scene, u: Float32Array, around: StepSearch, structures: Sequence[int] | None) -> Float32Array:
    """Loss of every label around the estimate u, (N, L), of some structures or of all that the moving labels show."""
    if scene.pair.fixed.labels is None or scene.pair.moving.labels is None:
        raise ValueError("the loss compares two label maps; give fixed_labels and moving_labels")
    moving, fixed = scene.moved_labels(u), scene.fixed_labels()
    chosen = structures or scene.pair.moving.labels.values()
    classes = (0, *(c for c in chosen if c != 0))
    fixed_masks, moving_masks = (one_hot(labelled, classes)[1:] for labelled in (fixed, moving))
    return losses.get(around.schedule.loss).volume(
        fixed_masks, moving_masks, around.grid, around.labels.offsets, around.schedule.loss_settings
    )


class CpuDevice:
    """Compiled kernels on the host; arrays are NumPy's and need no copies."""

    name = "cpu"
    fields: Any = _core  # what makes warped images, the inverse and determinants
    scene = staticmethod(Scene.whole)
    change_level = staticmethod(change_level)
    measure = staticmethod(measure)
    loss = staticmethod(loss)
    smoothed = staticmethod(smoothed)
    data_terms = data_terms
    columns = staticmethod(columns)
    laid = staticmethod(laid)
    typical_force = staticmethod(typical_force)
    forces = staticmethod(forces)
    descent = staticmethod(Descent)
    held_back = staticmethod(held_back)
    unfolded = staticmethod(unfolded)

    upload = download = terms = staticmethod(lambda value: value)  # what is on the device is on the host

    def minimize(self, terms: Terms, weights: WeightTable, schedule: Settings) -> Solution:
        """Minimise w·Ψ with the engine of the schedule; the labels stay on the device."""
        return solve(terms, weights, schedule.solver)

    def compose(self, u: Float32Array, around: StepSearch, labels: IntArray) -> Float32Array:
        """Compose u with the free-form deformation whose control points took these labels."""
        grid = around.grid
        coefficients = around.labels.vectors[labels].T.reshape(3, *grid.nodes).astype(np.float32)
        increment = _core.ffd(
            np.ascontiguousarray(coefficients), tuple(grid.origin), tuple(grid.spacing), grid.image_shape
        )
        return _core.compose(u, increment)


CPU = CpuDevice()
