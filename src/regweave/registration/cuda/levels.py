"""Discrete levels on a GPU: terms of a step, their minimisation, composition of its deformation."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.energy.assemble import TIE_BREAK, assemble
from regweave.energy.cost_volume import QUIET_NODE
from regweave.registration.cuda.scene import Compared, CudaScene
from regweave.registration.measure import VALID_SHARE, StepSearch, host_costs
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.node_classes import FOREGROUND_SHARE
from regweave.types import Float64Array, Solution, Terms, WeightTable

RULES = {"count": 0, "foreground": 1, "share": 2}
"""Numbers by which the kernel knows the rules of `regweave.spatial.node_classes`."""


@dataclass(frozen=True)
class CudaTerms:
    """Terms of an energy as `Terms`, its arrays on the GPU."""

    costs: Any
    shares: Any
    shape: tuple[int, int, int]
    offsets: tuple[Float64Array, Float64Array, Float64Array]
    base: Any | None

    def on_host(self) -> Terms:
        """Copy to the host."""
        base = None if self.base is None else self.base.numpy()
        return Terms(self.costs.numpy(), self.shares.numpy(), self.shape, self.offsets, base=base)


def measure(scene: CudaScene, u: Any, around: StepSearch, scales: Any) -> tuple[CudaTerms, Any]:
    """Terms around the estimate u, and the scales of the members, fitted where none are given."""
    kernels, grid = scene.kernels, around.grid
    costs = _costs(scene, u, around)
    valid = kernels.support_mean(scene.constants.search(grid, around.labels), scene.valid(u))
    masked = scene.host.masked
    if scales is None:
        scales = kernels.fit_scales(costs, valid if masked else None, QUIET_NODE)
    kernels.scale_costs(costs, scales, valid, masked, VALID_SHARE)
    shares = _class_shares(scene, u, around)
    base = _node_displacements(scene, u, grid) if around.schedule.pairwise == "elastic" else None
    return CudaTerms(costs, shares, grid.nodes, around.labels.in_units_of(grid.spacing), base), scales


def _costs(scene: CudaScene, u: Any, around: StepSearch) -> Any:
    """Raw costs (M, N, L); the host computes those of members without kernels."""
    members = around.schedule.bank
    costs = scene.queue.empty((len(members), around.grid.n_nodes, around.labels.n_labels))
    left = []
    for m, compared in enumerate(scene.compare(members, u)):
        if compared is None or not _cost_row(scene, compared, around, costs.part(m, m + 1)):
            left.append(m)
    if left:
        rows = host_costs(scene.host, u.numpy(), [members[m] for m in left], around)
        for m, row in zip(left, rows, strict=True):
            scene.kernels.copy(scene.queue.upload(row[None]), costs.part(m, m + 1))
    return costs


def _cost_row(scene: CudaScene, compared: Compared, around: StepSearch, row: Any) -> bool:
    """Fill the costs of one member; False where its support does not suit the kernels."""
    edge, metric = compared.member.support, compared.metric
    grid = around.grid if edge is None else around.grid.with_support((edge,) * 3)
    if metric.support is not None:
        grid = metric.support(grid)
    if not metric.fits(grid) or (metric.single and compared.fixed.shape[0] > 1):
        return False
    search = scene.constants.search(grid, around.labels)
    more = metric.arguments(compared.options, grid, scene.constants)
    getattr(scene.kernels, metric.costs)(search, compared.fixed, compared.moved, row, *more)
    return True


def _class_shares(scene: CudaScene, u: Any, around: StepSearch) -> Any:
    """Columns of W that each node uses, (N, C), or each label of it, (N, L, C)."""
    grid, schedule, classes = around.grid, around.schedule, around.classes
    if scene.host.pair.moving_labels is None or len(classes) == 1:
        return scene.constants.ones(grid.n_nodes, len(classes))
    box = grid.with_support(tuple(round(edge * schedule.class_reach) for edge in grid.support))
    numbers = scene.class_numbers(u, classes)
    rule, displaced = RULES[schedule.class_rule], schedule.class_at == "displaced"
    search = scene.constants.search(box, around.labels)
    return scene.kernels.class_shares(search, numbers, len(classes), displaced, rule, FOREGROUND_SHARE)


def _node_displacements(scene: CudaScene, u: Any, grid: ControlGrid) -> Any:
    """Displacement that each node has so far, in control spacings, float64 (N, 3)."""
    at_nodes = scene.kernels.resample_field(u, grid.nodes, grid.spacing, grid.origin, (1.0, 1.0, 1.0)).numpy()
    return scene.queue.upload(np.ascontiguousarray(at_nodes.reshape(3, -1).T / grid.spacing, dtype=np.float64))


def minimize(device: Any, terms: CudaTerms, weights: WeightTable, schedule: Settings) -> Solution:
    """Minimise w·Ψ by TRW-S on the GPU, by other engines on the host; the labels stay on the GPU."""
    kernels, constants, solver = device.kernels, device.constants, schedule.solver
    if solver.name != "trws" or terms.costs.shape[2] > kernels.MOST_LABELS:
        found = solver(assemble(terms.on_host(), weights))
        return Solution(terms.costs.queue.upload(found.labels), found.energy, found.lower_bound, found.iterations)
    x, y, z = (np.abs(o) for o in terms.offsets)
    length = constants.array((x[:, None, None] + y[:, None] + z).ravel())
    matrix = constants.array(np.ascontiguousarray(weights.matrix, dtype=np.float64))
    unary = kernels.assemble(terms.costs, terms.shares, matrix, length, TIE_BREAK)
    options: Any = solver.options
    found = kernels.trws(unary, terms.shape, terms.offsets, weights.pairwise, terms.base, options.max_iter, options.tol)
    return Solution(*found)
