"""CUDA backend: the verbs of both registration loops on arrays that stay on an NVIDIA GPU.

First comes the image pair at one level, with the kernels of each metric. The device follows, whose methods are those of
`regweave.registration.cpu.CpuDevice`, then dense fields with arrays of the host, and the memory of the GPU. One
function of the kernels does the work of each verb of the refinement, so that the host looks at the GPU once for each
attempt of a step.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import metrics
from regweave.config.settings import Level, Member, Refine, Settings
from regweave.energy import QUIET_NODE, TIE_BREAK, Comparison, cost_volume, solve
from regweave.errors import ResourceError
from regweave.metrics import dwt, mi, mind
from regweave.registration import cpu
from regweave.registration.cpu import CPU, VALID_SHARE, DataTerm, Objective, StepSearch, isotropic, stretch
from regweave.registration.scene import CUT, Channels, Scene, View, view_of
from regweave.spatial.control_grid import FOREGROUND_SHARE, ControlGrid, LabelSet, numbers_of
from regweave.spatial.voxels import Factors, apply_window, sampled, shrink_geometry
from regweave.spatial.warp import encode, voxel_matrix
from regweave.types import Float32Array, Float64Array, Geometry, ImagePair, IntArray, Solution, Terms, WeightTable

KEPT = 256  # Arrays in the cache of constants; the least recently used one is dropped first
MOST_COUNTED = 65535  # Most voxels of a support that a joint histogram can count
RULES = {"count": 0, "foreground": 1, "share": 2}
"""Numbers by which the kernel knows the rules of `regweave.spatial.control_grid`."""
SPREAD = 2  # Blocks round a folding voxel that are smoothed too


@dataclass
class GpuImage:
    """One image on the GPU and its views, made once and kept for the present level."""

    kernels: Any
    queue: Any
    channels: Channels
    _level: dict[tuple[View, Factors], Any] = field(default_factory=dict)
    _knots: dict[View, Any] = field(default_factory=dict)

    @cached_property
    def data(self) -> Any:
        """Intensities, (X, Y, Z)."""
        return self.queue.upload(np.ascontiguousarray(self.channels.data, dtype=np.float32))

    def view(self, view: View, factors: Factors) -> Any:
        """Return the image under a view on the grid shrunk by ``factors``, (1, X, Y, Z)."""
        key = (view, factors)
        if key not in self._level:
            self._level = {k: v for k, v in self._level.items() if k[1] == factors}
            if view.prepare not in (None, mi.prepare):
                self._level[key] = self.queue.upload(self.channels.view(view, factors)[None])
                return self._level[key]
            knots, window = (None, None), self.channels.window(view)
            if view.prepare is not None:  # knots of the map from intensities in the window to ranks
                bare = View(view.window, 0.0, view.prepare)
                if bare not in self._knots:
                    low = apply_window(np.array([self.kernels.least(self.data)], dtype=np.float32), window)[0]
                    found = mi.rank_knots(apply_window(sampled(self.channels.data), window), low)
                    self._knots[bare] = tuple(self.queue.upload(np.asarray(k, dtype=np.float64)) for k in found)
                knots = self._knots[bare]
            made = self.kernels.view(self.data, factors, window, *knots)
            sides = gaussian_sides((view.sigma_voxels,) * 3, CUT) if view.sigma_voxels else None
            self._level[key] = made if sides is None else self.kernels.gaussian(made, sides)
        return self._level[key]


@dataclass(frozen=True)
class CudaScene:
    """Both images of a pair on the GPU at one resolution; ``host`` is the same pair on the host."""

    device: CudaDevice
    host: Scene
    fixed: GpuImage
    moving: GpuImage
    numbers: dict[tuple[int, ...], Any]  # place of each moving label among some classes
    _features: dict[str, Any] = field(default_factory=dict, compare=False)
    _maps: dict[str, tuple[Any, Any, Float64Array]] = field(default_factory=dict, compare=False)

    def at(self, resolution: Level | Refine) -> CudaScene:
        """Return the same pair at another resolution."""
        return replace(self, host=self.host.at(resolution), _features={}, _maps={})

    @property
    def factors(self) -> Factors:
        """Shrink factors of the fixed image."""
        return self.host.factors

    @property
    def geometry(self) -> Geometry:
        """Grid of the fixed image at this level."""
        return self.host.geometry

    def compare(self, members: Sequence[Member], u: Any) -> list[Comparison | None]:
        """Features for each member, the moving image pulled through u; None for a member that the host compares."""
        warped: dict[Any, Any] = {}
        return [self._compared(member, u, warped) for member in members]

    def _compared(self, member: Member, u: Any, warped: dict[Any, Any]) -> Comparison | None:
        metric, view = self.kernels_of(member)
        if metric is None or (self.host.late and member.source == "image"):
            return None
        kernels, options = self.device.kernels, member.metric_options
        key: Any = view if member.source == "image" else member.source
        if key not in warped:
            if member.source == "image":
                moving, matrix = self.moving.view(view, self.host.moving_factors), self.host.matrix
            else:
                if member.source not in self._maps:
                    maps = self.host.maps(member.source, u.numpy())
                    there = (self.device.queue.upload(m) for m in (maps.fixed, maps.moving))
                    self._maps[member.source] = (*there, maps.matrix)
                _, moving, matrix = self._maps[member.source]
            warped[key] = kernels.warp(moving, matrix, u)
        if member.name not in self._features:
            image = self.fixed.view(view, self.factors) if member.source == "image" else self._maps[member.source][0]
            self._features[member.name] = metric.features(kernels, image, options)
        return Comparison(member, self._features[member.name], metric.features(kernels, warped[key], options))

    def kernels_of(self, member: Member) -> tuple[GpuMetric | None, View]:
        """Return the kernels of a member, None where the host computes it, and how it sees an image."""
        metric = find(member.metric)
        own = metric is not None and (member.source == "image" or metric.maps)
        return metric if own else None, view_of(member)

    def valid(self, u: Any) -> Any:
        """Weight of each voxel, (X, Y, Z), as `Scene.valid`."""
        moving = shrink_geometry(self.host.pair.moving.geometry, self.host.moving_factors)
        return self.device.kernels.warp_valid(moving.shape, self.host.matrix, u, *self._mask_weights)

    @cached_property
    def _mask_weights(self) -> tuple[Any, Any]:
        found = self.host.mask_shares
        fixed, moving = (None if w is None else self.device.queue.upload(np.ascontiguousarray(w)) for w in found)
        return moving, fixed


class Constants:
    """Cache of values on one GPU, by what they are made of."""

    def __init__(self, kernels: Any, queue: Any) -> None:
        self._kernels, self._queue = kernels, queue
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def __call__(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made now if it is not kept."""
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def array(self, values: Any) -> Any:
        """Return an array of the host on the GPU."""
        return self((values.shape, values.dtype.char, values.tobytes()), lambda: self._queue.upload(values))

    def ones(self, rows: int, columns: int) -> Any:
        """Return an array (rows, columns) on the GPU, its first column 1, the others 0."""
        return self(
            ("ones", rows, columns), lambda: self._queue.upload(np.eye(1, columns, dtype=np.float32).repeat(rows, 0))
        )

    def search(self, grid: ControlGrid, labels: LabelSet) -> Any:
        """Return the supports of the nodes of a grid and the shifts of labels."""
        numbers = tuple(a.tobytes() for a in (grid.origin, grid.spacing, *labels.offsets))
        made = (self._queue, grid.image_shape, grid.starts, grid.support, labels.offsets)
        key = ("search", grid.image_shape, grid.nodes, grid.support, numbers)
        return self(key, lambda: self._kernels.Search(*made))

    def lattice(self, grid: ControlGrid) -> Any:
        """Return the B-splines of a control grid."""
        made = (tuple(grid.origin), tuple(grid.spacing), grid.nodes, grid.image_shape)
        return self(("lattice", *made), lambda: self._kernels.Lattice(self._queue, *made))


@dataclass(frozen=True)
class GpuMetric:
    """Kernels of one metric; ``fits`` is whether they can compute a support."""

    features: Callable[[Any, Any, Any], Any]  # from kernels, image (1, X, Y, Z) and options to (C, X, Y, Z)
    costs: str  # kernel of the costs
    arguments: Callable[[Any, ControlGrid, Constants], tuple[Any, ...]] = lambda options, grid, constants: ()
    support: Callable[[ControlGrid], ControlGrid] | None = None  # from that of a node to that of the metric
    maps: bool = False  # the features of structure maps are the maps themselves
    single: bool = False  # the kernel takes one channel
    fits: Callable[[ControlGrid], bool] = lambda grid: True


def find(name: str) -> GpuMetric | None:
    """Return the kernels of a metric of the package; None for others, and for a plug-in that took its name."""
    return METRICS.get(name) if metrics.registry.origin(name).place == "regweave" else None


@lru_cache(maxsize=8)
def n_log_n(voxels: int) -> Float32Array:
    """Return n log n for counts from 0 to the voxels of a support."""
    n = np.arange(voxels + 1, dtype=np.float64)
    return np.asarray(n * np.log(np.maximum(n, 1)), dtype=np.float32)


def _plain(kernels: Any, image: Any, options: Any) -> Any:
    return image


def _mind(kernels: Any, image: Any, options: Any) -> Any:
    pairs = np.array(mind.PAIRS, dtype=np.int32) * np.int32(options.distance_voxels)
    return kernels.self_similarity(image.reshaped(image.shape[1:]), pairs, options.radius_voxels, *mind.NOISE_RANGE)


def _histogram(options: Any, grid: ControlGrid, constants: Constants) -> tuple[Any, ...]:
    return mi.n_bins(grid, options), constants.array(n_log_n(int(np.prod(grid.support))))


METRICS = {
    "sad": GpuMetric(_plain, "sad_costs", maps=True),
    "gradient": GpuMetric(lambda kernels, image, o: kernels.gradient_magnitude(image, o.sigma_voxels), "sad_costs"),
    "mind": GpuMetric(_mind, "sad_costs"),
    "ncc": GpuMetric(
        _plain, "ncc_costs", lambda o, grid, constants: (o.variance_floor, o.squared), maps=True, single=True
    ),
    "ngf": GpuMetric(lambda kernels, image, o: kernels.normalised_gradient(image, o.sigma_voxels, o.edge), "ngf_costs"),
    "dwt": GpuMetric(_plain, "dwt_costs", support=dwt.wavelet_support),
    "mi": GpuMetric(_plain, "mi_costs", _histogram, fits=lambda grid: bool(np.prod(grid.support) <= MOST_COUNTED)),
}


def gaussian_sides(sigmas: Any, cut: float) -> list[list[float]]:
    """Weights of a Gaussian along each axis, from the voxel itself outwards; none where it is narrower than a voxel."""
    out = []
    for sigma in sigmas:
        x = np.arange(int(cut * float(sigma) + 0.5) + 1)
        side = np.exp(-0.5 / float(sigma) ** 2 * x**2) if sigma > 1e-15 else np.ones(1)
        out.append((side / (2 * side.sum() - side[0])).tolist() if sigma > 1e-15 else [])
    return out


def _correlation(
    kernels: Any, balance: Any, term: DataTerm, first: int, fixed: Any, moved: Any, factor: Any, share: float
) -> None:
    n, *shape = fixed.shape
    options: Any = term.member.metric_options
    for c in range(n):
        one, other = (f.part(c, c + 1).reshaped(shape) for f in (fixed, moved))
        if first + c not in term.sums:
            term.sums[first + c] = kernels.local_sums(one, term.radius)
        window = (term.radius, options.variance_floor, options.squared)
        kernels.correlation(balance, one, term.sums[first + c], other, term.weight, factor, share / n, *window)


PENALTIES: dict[str, Callable[..., None]] = {
    "absolute": lambda kernels, balance, term, first, fixed, moved, *weight: kernels.absolute(
        balance, fixed, moved, term.weight, *weight, cpu.SMALL_DIFFERENCE
    ),
    "correlation": _correlation,
    "tensor": lambda kernels, balance, term, first, fixed, moved, *weight: kernels.tensor(
        balance, fixed, moved, term.weight, *weight
    ),
}
"""Cost and force of features whose first channel has a number, with a factor of the weight and a share of the whole."""


class CudaDevice:
    """Kernels on one NVIDIA GPU, or their twin on the host, which tests use; arrays are handles of its memory."""

    def __init__(self, kernels: Any, ordinal: int = 0) -> None:
        self.kernels, self.queue = kernels, kernels.Queue(ordinal)
        self.name, self.constants = f"cuda:{ordinal}", Constants(kernels, self.queue)
        self._brought: tuple[Any, Any] | None = None
        self._pair: tuple[Any, tuple[GpuImage, GpuImage], dict[tuple[int, ...], Any]] | None = None

    def upload(self, array: NDArray[Any]) -> Any:
        """Copy an array to the GPU; one that was brought from there last is there still."""
        if self._brought is not None and self._brought[0]() is array:
            return self._brought[1]
        return self.queue.upload(np.ascontiguousarray(array))

    def download(self, array: Any) -> Any:
        """Copy an array to the host; it is read-only there, since the GPU may keep it too."""
        out = array.numpy()
        out.flags.writeable = False
        self._brought = (weakref.ref(out), array)
        weakref.finalize(out, self._forget, array)
        return out

    def _forget(self, array: Any) -> None:
        if self._brought is not None and self._brought[1] is array:
            self._brought = None

    def scene(self, pair: ImagePair, schedule: Settings) -> CudaScene:
        """Return the pair at its own resolution; the images of the last pair are still on the GPU."""
        host = Scene.whole(pair, schedule)
        channels = (host.fixed_channels, host.moving_channels)
        kept = self._pair
        seen = [c.modality for c in channels]
        if kept is None or kept[0]() is not pair or [i.channels.modality for i in kept[1]] != seen:
            self._pair = None
            require_memory(self.queue, pair, schedule)
            fixed, moving = (GpuImage(self.kernels, self.queue, c) for c in channels)
            self._pair = kept = (weakref.ref(pair, self._leave), (fixed, moving), {})
        return CudaScene(self, host, *kept[1], kept[2])

    def has_room(self, pair: ImagePair, schedule: Settings) -> bool:
        """Return whether a pair fits into the memory that is free."""
        needed = needed_bytes(pair, schedule)
        return needed <= free_bytes(self.queue, needed)

    def _leave(self, ended: Any) -> None:
        """Give the images of a pair up when the pair is."""
        if self._pair is not None and self._pair[0] is ended:
            self._pair = None

    def measure(self, scene: CudaScene, u: Any, around: StepSearch, scales: Any) -> tuple[Terms, Any]:
        """Terms around the estimate u, and the scales of the members, fitted where none are given."""
        kernels, grid = self.kernels, around.grid
        costs = self._costs(scene, u, around)
        valid = kernels.support_mean(self.constants.search(grid, around.labels), scene.valid(u))
        masked = any(share is not None for share in scene.host.mask_shares)
        if scales is None:
            scales = kernels.fit_scales(costs, valid if masked else None, QUIET_NODE)
        kernels.scale_costs(costs, scales, valid, masked, VALID_SHARE)
        shares, base = self._class_shares(scene, u, around), None
        if around.schedule.pairwise == "elastic":
            at = kernels.resample_field(u, grid.nodes, grid.spacing, grid.origin, (1.0, 1.0, 1.0)).numpy()
            base = self.queue.upload(np.ascontiguousarray(at.reshape(3, -1).T / grid.spacing, dtype=np.float64))
        return Terms(costs, shares, grid.nodes, around.labels.in_units_of(grid.spacing), base=base), scales

    def _costs(self, scene: CudaScene, u: Any, around: StepSearch) -> Any:
        """Raw costs (M, N, L); the host computes those of members without kernels."""
        members = around.schedule.bank
        costs = self.queue.empty((len(members), around.grid.n_nodes, around.labels.n_labels))
        left = []
        for m, compared in enumerate(scene.compare(members, u)):
            if compared is None or not self._cost_row(scene, compared, around, costs.part(m, m + 1)):
                left.append(m)
        if left:
            by_host = scene.host.compare([members[m] for m in left], u.numpy())
            rows = cost_volume(by_host, around.grid, around.labels)
            for m, row in zip(left, rows, strict=True):
                self.kernels.copy(self.queue.upload(row[None]), costs.part(m, m + 1))
        return costs

    def _cost_row(self, scene: CudaScene, compared: Comparison, around: StepSearch, row: Any) -> bool:
        """Fill the costs of one member; False where its support does not suit the kernels."""
        edge, (metric, _) = compared.member.support, scene.kernels_of(compared.member)
        assert metric is not None
        grid = around.grid if edge is None else around.grid.with_support((edge,) * 3)
        if metric.support is not None:
            grid = metric.support(grid)
        if not metric.fits(grid) or (metric.single and compared.fixed.shape[0] > 1):
            return False
        search = self.constants.search(grid, around.labels)
        more = metric.arguments(compared.member.metric_options, grid, self.constants)
        getattr(self.kernels, metric.costs)(search, compared.fixed, compared.moved, row, *more)
        return True

    def _class_shares(self, scene: CudaScene, u: Any, around: StepSearch) -> Any:
        """Columns of W that each node uses, (N, C), or each label of it, (N, L, C)."""
        grid, schedule, classes = around.grid, around.schedule, around.classes
        labels = scene.host.pair.moving.labels
        if labels is None or len(classes) == 1:
            return self.constants.ones(grid.n_nodes, len(classes))
        box = grid.with_support(tuple(round(edge * schedule.class_reach) for edge in grid.support))
        if classes not in scene.numbers:
            scene.numbers[classes] = self.queue.upload(numbers_of(labels.data, classes))
        matrix = voxel_matrix(scene.geometry, labels.geometry, scene.host.pair.initial)
        outside = int(numbers_of(np.zeros(1, dtype=np.int64), classes)[0])
        numbers = self.kernels.warp_nearest(scene.numbers[classes], matrix, u, outside)
        rule, displaced = RULES[schedule.class_rule], schedule.class_at == "displaced"
        search = self.constants.search(box, around.labels)
        return self.kernels.class_shares(search, numbers, len(classes), displaced, rule, FOREGROUND_SHARE)

    def loss(self, scene: CudaScene, u: Any, around: StepSearch, structures: Sequence[int] | None) -> Float32Array:
        """Loss (N, L) of the labels around u, by the host."""
        return cpu.loss(scene.host, u.numpy(), around, structures)

    def terms(self, terms: Any) -> Terms:
        """Copy terms to the host."""
        base = None if terms.base is None else terms.base.numpy()
        return Terms(terms.costs.numpy(), terms.shares.numpy(), terms.shape, terms.offsets, base=base)

    def minimize(self, terms: Any, weights: WeightTable, schedule: Settings) -> Solution:
        """Minimise w·Ψ by TRW-S on the GPU, by other engines on the host; the labels stay on the GPU."""
        kernels, constants, solver = self.kernels, self.constants, schedule.solver
        if solver.name != "trws" or terms.costs.shape[2] > kernels.MOST_LABELS:
            found = solve(self.terms(terms), weights, solver)
            return Solution(self.upload(found.labels), found.energy, found.lower_bound, found.iterations)
        x, y, z = (np.abs(o) for o in terms.offsets)
        length = constants.array((x[:, None, None] + y[:, None] + z).ravel())
        matrix = constants.array(np.ascontiguousarray(weights.matrix, dtype=np.float64))
        unary = kernels.assemble(terms.costs, terms.shares, matrix, length, TIE_BREAK)
        options: Any = solver.options
        found = kernels.trws(
            unary, terms.shape, terms.offsets, weights.pairwise, terms.base, options.max_iter, options.tol
        )
        return Solution(*found)

    def compose(self, u: Any, around: StepSearch, labels: Any) -> Any:
        """Compose u with the free-form deformation whose control points took these labels."""
        offsets = around.labels.offsets
        along, k = self.constants.array(np.concatenate(offsets)), tuple(len(o) for o in offsets)
        points = self.kernels.label_vectors(labels, along, k, around.grid.nodes)
        return self.kernels.compose(u, self.constants.lattice(around.grid).displacement(points))

    @cached_property
    def fields(self) -> CudaFields:
        """Kernels of dense displacement fields, with arrays of the host in and out."""
        return CudaFields(self.kernels, self.queue)

    def change_level(self, u: Any, before: Factors, after: Factors, shape: tuple[int, int, int]) -> Any:
        """Resample a displacement from one shrunken grid to another."""
        if before == after:
            return u
        b, a = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
        return self.kernels.resample_field(u, shape, a / b, (a - b) / (2 * b), b / a)

    def smoothed(self, u: Any, sigma_mm: float, geometry: Geometry) -> Any:
        """Smooth a displacement by a Gaussian, a narrower one where that would fold."""
        return cpu.smoothed(
            u, sigma_mm, geometry, lambda u: self.kernels.least(self.kernels.jacobian(u)),
            lambda u, sigma: self.kernels.gaussian(u, gaussian_sides(sigma, cpu.CUT)),
        )  # fmt: skip

    def data_terms(
        self, scene: CudaScene, u: Any, members: Sequence[Member], weights: WeightTable, settings: Refine
    ) -> Objective:
        """Terms of the members; the host's of those without kernels, and of images that are compared exactly."""
        found = cpu.data_terms(self, scene, u, members, weights, settings)
        own = {t.member.name for t in found.terms}
        if len(own) == len(members):
            return found
        # All members, since their weights add up to those of the table.
        whole = CPU.data_terms(scene.host, self.download(u), members, weights, settings)
        return replace(found, by_host=tuple(t for t in whole.terms if t.member.name not in own))

    def typical_force(self, scene: CudaScene, term: DataTerm, compared: Comparison, u: Any) -> float:
        """Typical size of a force, as that of the host, from the sums of its second and fourth powers."""
        balance = self.kernels.balance(u)
        self._add(balance, term, compared)
        second, fourth = self.kernels.force_moments(balance.force)
        return max(sqrt(fourth / max(second, 1e-30)), cpu.LEAST_FORCE)

    def _add(self, balance: Any, term: DataTerm, compared: Any) -> None:
        """Add cost and force of a comparison of features (C, X, Y, Z)."""
        fixed, moved, add = compared.fixed, compared.moved, PENALTIES[str(term.member.penalty)]
        if term.channels is None:
            add(self.kernels, balance, term, 0, fixed, moved, None, 1.0)
            return
        # A penalty is a mean over channels: one by one, each counts as many times as there are.
        n, size = len(term.channels), fixed.shape[0] // len(term.channels)
        for first, factor in zip(range(0, n * size, size), term.channels, strict=True):
            if factor is not None:
                part = (f.part(first, first + size) for f in (fixed, moved))
                add(self.kernels, balance, term, first, *part, factor, 1 / n)

    def forces(self, scene: CudaScene, objective: Objective, u: Any, smoothness: float) -> tuple[float, float, Any]:
        """Cost of the data, weighted cost of the smoothness, and the force of both, at u."""
        kernels = self.kernels
        balance = kernels.diffusion(u, objective.stiffness, isotropic(scene.geometry), smoothness)
        for term, compared in zip(objective.terms, scene.compare([t.member for t in objective.terms], u), strict=True):
            self._add(balance, term, compared)
        extra = bent = 0.0
        if objective.by_host or objective.bending_mm:
            there = self.download(u)
            force: Float32Array = np.zeros_like(there)
            extra = cpu.host_forces(scene.host, objective.by_host, there, force)
            if objective.bending_mm:
                bent = cpu.bending(there, force, scene.geometry, smoothness, objective.bending_mm)
            kernels.add_force(balance, self.upload(force))
        data, smooth = balance.totals()
        return data + extra, smoothness * smooth + bent, balance.force

    def columns(self, scene: CudaScene, u: Any, classes: tuple[int, ...], reach: float) -> Any:
        """Column of each voxel, by the moving label there, (X, Y, Z)."""
        labels, initial = scene.host.pair.moving.labels, scene.host.pair.initial
        assert labels is not None
        codes, table = encode(labels.data)
        known = np.array(classes if table is None else np.arange(len(table)), dtype=np.int64)
        number = numbers_of(known if table is None else table, classes)
        fits = np.abs(known) < 2**31
        matrix = voxel_matrix(scene.geometry, labels.geometry, initial)
        fill = int(numbers_of(np.zeros(1, dtype=np.int64), classes)[0])
        pairs = (self.upload(known[fits].astype(np.int32)), self.upload(number[fits]))
        found = self.kernels.warp_numbers(self.upload(codes), matrix, u, *pairs, fill)
        return found if reach == 0 else self.kernels.spread(found, reach, stretch(scene.geometry))

    def laid(self, scene: CudaScene, numbers: Any, values: Float32Array, valid: Any, scale: float) -> Any:
        """Value of the column of each voxel, the first without ``numbers``, times weights of the scene and a scale."""
        if valid is not None:
            return self.kernels.lay(numbers, self.upload(values), valid, scale)
        if numbers is not None:
            return self.kernels.look_up(numbers, self.upload(values))
        return self.upload(np.full(scene.geometry.shape, values[0], dtype=np.float32))

    def descent(self, settings: Refine, grid: ControlGrid, geometry: Geometry) -> Any:
        """Return Adam at its start, as `regweave.registration.cpu.Descent`."""
        spacing = float(grid.spacing[0])
        lengths, moments = (settings.rate * spacing, cpu.REACH * spacing), (cpu.FIRST_MOMENT, cpu.SECOND_MOMENT)
        lattice = self.constants.lattice(grid)
        return self.kernels.Descent(self.queue, lattice, stretch(geometry), *lengths, cpu.QUIET, *moments)

    def held_back(self, u: Any, update: Any, grid: ControlGrid) -> Any:
        """Return u ∘ (id + δ), δ that of the control points' update, held back where it would fold."""
        limits = (cpu.LEAST_JACOBIAN, cpu.ATTEMPTS)
        return self.kernels.held_back(u, update, self.constants.lattice(grid), *limits)[0]

    def unfolded(self, u: Any, factors: Factors, shape: tuple[int, int, int]) -> tuple[Any, Any]:
        """Return u, smoothed where it folds on the grid of the image, and the displacement there."""
        knots, sides = u, gaussian_sides((1.0, 1.0, 1.0), cpu.CUT)
        u = self.change_level(knots, factors, (1, 1, 1), shape)
        for _ in range(cpu.ATTEMPTS):
            if (near := self.kernels.folded_blocks(u, knots.shape[1:], factors, SPREAD)) is None:
                break
            knots = self.kernels.where_marked(knots, self.kernels.gaussian(knots, sides), near)
            u = self.change_level(knots, factors, (1, 1, 1), shape)
        return knots, u


class CudaFields:
    """Functions of `regweave._core` by the kernels of a GPU."""

    def __init__(self, kernels: Any, queue: Any) -> None:
        self._kernels, self._queue = kernels, queue

    def _upload(self, array: Any, dtype: Any = np.float32) -> Any:
        return self._queue.upload(np.ascontiguousarray(array, dtype=dtype))

    def warp(self, image: Float32Array, matrix: Float64Array, field: Float32Array, fill: float, clamp: bool) -> Any:
        """Sample an image at matrix · (x + field(x)); outside: the border if clamp, else fill."""
        if clamp:
            return self.warp_channels(image[None], matrix, field)[0]
        return self._kernels.warp_filled(self._upload(image), matrix, self._upload(field), fill).numpy()

    def warp_channels(self, channels: Float32Array, matrix: Float64Array, u: Float32Array) -> Any:
        """Pull images (C, X, Y, Z) through matrix ∘ (id + u); beyond the grid the border value holds."""
        return self._kernels.warp(self._upload(channels), matrix, self._upload(u)).numpy()

    def warp_labels(self, labels: IntArray, matrix: Float64Array, field: Float32Array) -> Any:
        """Take the label with the largest sum of trilinear weights; 0 outside."""
        return self._kernels.warp_labels(self._upload(labels, np.int32), matrix, self._upload(field)).numpy()

    def jacobian(self, u: Float32Array) -> Any:
        """Return det(I + du/dx), central differences, one-sided at borders."""
        return self._kernels.jacobian(self._upload(u)).numpy()

    def return_errors(self, u: Float32Array, there: Float64Array, back: Float32Array, *affines: Float64Array) -> Any:
        """Return how far each fixed voxel ends from where it started, in mm; affines (4, 4) as the kernel has them."""
        rows = (np.ascontiguousarray(a[:3], dtype=np.float64) for a in affines)
        return self._kernels.return_errors(self._upload(u), there, self._upload(back), *rows).numpy()

    def invert(
        self, u: Float32Array, matrix: Float64Array, inverse_matrix: Float64Array, shape: tuple[int, int, int],
        max_iter: int, tolerance: float,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Solve matrix · (p + u(p)) = q for each voxel q of shape; return matrix · p - q and what remains."""
        arguments = (matrix, inverse_matrix, shape, max_iter, tolerance)
        found, residual = self._kernels.invert(self._upload(u), *arguments)
        return found.numpy(), residual.numpy()


FLOAT, DOUBLE = 4, 8
FULL_FIELDS = 3  # Displacements at full resolution that are alive at once, in the level change at the end
LEVEL_IMAGES = 48
"""Arrays of the size of a level's image that a step keeps: views, features of twelve channels, fields, their copies."""
MESSAGES = 5  # Arrays (N, L) in float64 that message passing keeps: unaries, one message for each axis, room
_waiting: defaultdict[tuple[Any, int], list[Any]] = defaultdict(list)  # Idle devices, by kernels and number


def needed_bytes(pair: ImagePair, schedule: Settings) -> int:
    """Bytes that the levels and a refinement at the finest of them need at once."""
    fixed, moving = (prod(image.geometry.shape) for image in (pair.fixed, pair.moving))
    full = FLOAT * (fixed + moving + 3 * FULL_FIELDS * fixed)

    def step(level: Level) -> int:
        """Images and fields of the size of a level, costs, messages."""
        geometry = shrink_geometry(pair.fixed.geometry, level.factors(pair.fixed.geometry))
        nodes = ControlGrid.cover(geometry, level.spacing_mm, level.support).n_nodes
        volume = nodes * level.labels_per_axis**3 * (FLOAT * len(schedule.bank) + DOUBLE * MESSAGES)
        return FLOAT * LEVEL_IMAGES * prod(geometry.shape) + volume

    return full + max(map(step, schedule.levels_for(pair.fixed.geometry)))


def free_bytes(queue: Any, needed: int) -> int:
    """Bytes that are free; idle devices give theirs up where that is less than is needed."""
    if needed > queue.memory()[0]:
        release_idle()
    return int(queue.memory()[0])


def require_memory(queue: Any, pair: ImagePair, schedule: Settings) -> None:
    """Raise E140 for a pair that does not fit into the memory of the GPU."""
    needed, total = needed_bytes(pair, schedule), queue.memory()[1]
    if needed > (free := free_bytes(queue, needed)):
        raise ResourceError(
            "E140",
            f"this registration needs about {needed / 2**20:.0f} MB of the GPU, of whose {total / 2**20:.0f} MB "
            f"{free / 2**20:.0f} MB are free",
            "use --device cpu, a coarser preset or smaller images, or end what else uses the GPU",
        )


class Opened:
    """Devices that one thread has opened, by number; they become idle when the thread, and so this, ends.

    A queue allocates and pins memory during its first registration, which takes longer than the registration, and a
    learner starts threads anew for each fit: the next thread takes an idle device with its memory.
    """

    def __init__(self) -> None:
        self._devices: dict[tuple[Any, int], Any] = {}
        weakref.finalize(self, _leave, self._devices).atexit = False

    def device(self, kernels: Any, number: int, make: Any) -> Any:
        """Return the device of a number: this thread's, an idle one, or one that is made now."""
        key = (kernels, number)
        if key not in self._devices:
            try:
                self._devices[key] = _waiting[key].pop()
            except IndexError:
                self._devices[key] = make()
        return self._devices[key]


def _leave(devices: dict[tuple[Any, int], Any]) -> None:
    for key, device in devices.items():
        _waiting[key].append(device)


def release_idle() -> None:
    """Give the memory of idle devices back."""
    _waiting.clear()
