"""Device of the host: the verbs of both registration loops, by compiled kernels.

`regweave.registration.align` and `regweave.registration.refine` are written once, on these verbs. Displacements u
(3, X, Y, Z), in voxels of the grid of a scene, terms and forces stay on the device between them. What the loops
themselves read (grids, energies, costs) is on the host.

Another device is a class with the same methods, and its line in `regweave.registration.devices.DEVICES`. A metric that
it has no kernel for goes through `host_costs`, and a penalty through `regweave.registration.forces.host_forces`. The
host computes costs (N, L) or a force (3, X, Y, Z), and the device uploads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from regweave import _core, losses
from regweave.config.settings import Member, Settings
from regweave.energy import cost_volume, fit_scales, solve
from regweave.registration import forces as continuous
from regweave.registration.scene import Scene
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.spatial.node_classes import RULES, numbers_of, one_hot
from regweave.spatial.pyramid import change_level
from regweave.types import Float32Array, Float64Array, IntArray, Solution, Terms, WeightTable

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
    """Terms around the estimate u, and the scales of the members, fitted where none are given."""
    costs = host_costs(scene, u, around.schedule.bank, around)
    grid, labels = around.grid, around.labels
    weight = scene.valid(u)
    valid = None if weight.min() == 1 else grid.means(weight)
    if valid is not None and scene.masked:
        costs *= valid[:, None]  # a cost is a mean over the support, to which voxels outside add nothing
    if scales is None:
        scales = fit_scales(costs)
    costs *= (1 / scales).astype(np.float32)[:, None, None]
    if valid is not None:
        costs[:, valid < VALID_SHARE] = 0
    terms = Terms(
        costs=costs,
        shares=_class_shares(scene, u, around),
        shape=grid.nodes,
        offsets=labels.in_units_of(grid.spacing),
        base=_node_displacements(u, grid) if around.schedule.pairwise == "elastic" else None,
    )
    return terms, scales


def host_costs(scene: Scene, u: Float32Array, members: Sequence[Member], around: StepSearch) -> Float32Array:
    """Raw costs (M, N, L) of some members, by the host: the way of a metric that a device has no kernel for."""
    return cost_volume(scene.compare(members, u), around.grid, around.labels)


def _class_shares(scene: Scene, u: Float32Array, around: StepSearch) -> Float32Array:
    """Columns of W that each node uses, (N, C), or each label of it, (N, L, C)."""
    grid, schedule, classes = around.grid, around.schedule, around.classes
    if scene.pair.moving_labels is None or len(classes) == 1:
        shares = np.zeros((grid.n_nodes, len(classes)), dtype=np.float32)
        shares[:, 0] = 1
        return shares
    rule, labels = RULES[schedule.class_rule], scene.moved_labels(u)
    box = grid.with_support(tuple(round(edge * schedule.class_reach) for edge in grid.support))
    if schedule.class_at == "anchored":
        return rule(box.shares(numbers_of(labels, classes), len(classes)))
    masks = one_hot(labels, classes)
    where = (*box.support_arguments, *around.labels.offsets)
    return rule(np.stack([_core.mean_volume(m[None], m[None], *where) for m in masks], axis=-1))


def loss(scene: Scene, u: Float32Array, around: StepSearch, structures: Sequence[int] | None) -> Float32Array:
    """Loss of every label around the estimate u, (N, L), of some structures or of all that the moving labels show."""
    if scene.pair.fixed_labels is None or scene.pair.moving_labels is None:
        raise ValueError("the loss compares two label maps; give fixed_labels and moving_labels")
    moving, fixed = scene.moved_labels(u), scene.fixed_labels()
    chosen = structures or scene.pair.moving_labels.values()
    classes = (0, *(c for c in chosen if c != 0))
    fixed_masks, moving_masks = (one_hot(labelled, classes)[1:] for labelled in (fixed, moving))
    return losses.get(around.schedule.loss).volume(
        fixed_masks, moving_masks, around.grid, around.labels.offsets, around.schedule.loss_settings
    )


def _node_displacements(u: Float32Array, grid: ControlGrid) -> Float64Array:
    """Displacement that each node has so far, in control spacings, (N, 3)."""
    at_nodes = _core.resample_field(u, grid.nodes, grid.spacing, grid.origin)
    return np.asarray(at_nodes.reshape(3, -1).T / grid.spacing, dtype=np.float64)


class CpuDevice:
    """Compiled kernels on the host; arrays are NumPy's and need no copies."""

    name = "cpu"
    fields: Any = _core  # what makes warped images, the inverse and determinants
    scene = staticmethod(Scene.whole)
    change_level = staticmethod(change_level)
    measure = staticmethod(measure)
    loss = staticmethod(loss)
    smoothed = staticmethod(continuous.smoothed)
    data_terms = continuous.data_terms
    columns = staticmethod(continuous.columns)
    laid = staticmethod(continuous.laid)
    typical_force = staticmethod(continuous.typical_force)
    forces = staticmethod(continuous.forces)
    descent = staticmethod(continuous.Descent)
    held_back = staticmethod(continuous.held_back)
    unfolded = staticmethod(continuous.unfolded)

    def upload(self, array: Float32Array) -> Float32Array:
        """Bring an array to the device: the array itself."""
        return array

    def download(self, array: Any) -> Any:
        """Bring an array to the host: the array itself."""
        return array

    def terms(self, terms: Terms) -> Terms:
        """Bring terms to the host: the terms themselves."""
        return terms

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
