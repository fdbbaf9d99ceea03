"""Device of the host: the verbs of both registration loops, by compiled kernels.

`regweave.registration.align` and `regweave.registration.refine` are written once, on these verbs. Displacements u
(3, X, Y, Z), in voxels of the grid of a scene, terms and forces stay on the device between them. What the loops
themselves read (grids, energies, costs) is on the host.

Another device is a class with the same methods, and its line in `regweave.registration.devices.DEVICES`. A metric that
it has no kernel for goes through `regweave.energy.cost_volume`, a penalty through `forces.host_forces`. The
host computes costs (N, L) or a force (3, X, Y, Z), and the device uploads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from regweave import _core, losses
from regweave.config.settings import Settings
from regweave.energy import cost_volume, fit_scales, solve
from regweave.registration import forces as continuous
from regweave.registration.scene import Scene
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.spatial.node_classes import RULES, numbers_of, one_hot
from regweave.spatial.voxels import change_level
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
    """Terms around the estimate u, and the scales of the members, fitted where none are given.

    Shares of classes are the columns of W that each node uses, (N, C), or each label of it, (N, L, C). The base of an
    elastic energy is the displacement that each node has so far, in control spacings, (N, 3).
    """
    grid, labels, schedule, classes = around.grid, around.labels, around.schedule, around.classes
    costs = cost_volume(scene.compare(schedule.bank, u), grid, labels)
    weight = scene.valid(u)
    valid = None if weight.min() == 1 else grid.means(weight)
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
    if scene.pair.fixed_labels is None or scene.pair.moving_labels is None:
        raise ValueError("the loss compares two label maps; give fixed_labels and moving_labels")
    moving, fixed = scene.moved_labels(u), scene.fixed_labels()
    chosen = structures or scene.pair.moving_labels.values()
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
    smoothed = staticmethod(continuous.smoothed)
    data_terms = continuous.data_terms
    columns = staticmethod(continuous.columns)
    laid = staticmethod(continuous.laid)
    typical_force = staticmethod(continuous.typical_force)
    forces = staticmethod(continuous.forces)
    descent = staticmethod(continuous.Descent)
    held_back = staticmethod(continuous.held_back)
    unfolded = staticmethod(continuous.unfolded)

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
