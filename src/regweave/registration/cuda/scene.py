"""Image pair on a GPU at one level of the pyramid: views, features, weights of voxels, class numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from regweave import metrics
from regweave.config.settings import Member
from regweave.metrics import dwt, mi, mind
from regweave.registration.cuda.refinement import gaussian_sides
from regweave.registration.scene import ComparedMaps, Resolution, Scene
from regweave.spatial.channels import Channels, View
from regweave.spatial.control_grid import ControlGrid, LabelSet
from regweave.spatial.intensity import apply_window, sampled
from regweave.spatial.node_classes import numbers_of
from regweave.spatial.pyramid import Factors, shrink_geometry
from regweave.spatial.warp import voxel_matrix
from regweave.types import Float32Array, Float64Array, Geometry

CUT = 4.0  # Half the length of the Gaussian of a view, in standard deviations


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
            self._level[key] = self._made(view, factors)
        return self._level[key]

    def _made(self, view: View, factors: Factors) -> Any:
        if view.prepare not in (None, mi.prepare):
            return self.queue.upload(self.channels.view(view, factors)[None])
        knots = (None, None) if view.prepare is None else self._ranks(View(view.window, 0.0, view.prepare))
        made = self.kernels.view(self.data, factors, self.channels.window(view), *knots)
        if not view.sigma_voxels:
            return made
        return self.kernels.gaussian(made, gaussian_sides((view.sigma_voxels,) * 3, CUT))

    def _ranks(self, view: View) -> Any:
        """Knots of the map from intensities in the window to ranks."""
        if view not in self._knots:
            window = self.channels.window(view)
            low = apply_window(np.array([self.kernels.least(self.data)], dtype=np.float32), window)[0]
            found = mi.rank_knots(apply_window(sampled(self.channels.data), window), low)
            self._knots[view] = tuple(self.queue.upload(np.asarray(k, dtype=np.float64)) for k in found)
        return self._knots[view]


@dataclass(frozen=True)
class GpuPair:
    """Images and class numbers of one pair on the GPU.

    They stay there between the levels and the refinement.
    """

    fixed: GpuImage
    moving: GpuImage
    constants: Constants
    numbers: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kernels: Any, queue: Any, constants: Constants, host: Scene) -> GpuPair:
        """Return the images of a scene; they are copied when they are first looked at."""
        fixed, moving = (GpuImage(kernels, queue, c) for c in (host.fixed_channels, host.moving_channels))
        return cls(fixed, moving, constants)

    def shows(self, other: Scene) -> bool:
        """Return whether the images are those of a scene, through the same windows."""
        both = ((self.fixed.channels, other.fixed_channels), (self.moving.channels, other.moving_channels))
        return all(a.image is b.image and a.modality == b.modality for a, b in both)


@dataclass(frozen=True)
class Compared:
    """Features of both images for one member, (C, X, Y, Z), on the GPU; its options and kernels."""

    member: Member
    options: Any
    metric: GpuMetric
    fixed: Any
    moved: Any


@dataclass(frozen=True)
class CudaScene:
    """Both images of a pair on the GPU at one resolution; ``host`` is the same pair on the host."""

    kernels: Any
    queue: Any
    host: Scene
    fixed: GpuImage
    moving: GpuImage
    constants: Constants
    _numbers: dict[tuple[int, ...], Any] = field(default_factory=dict, compare=False)
    _features: dict[str, Any] = field(default_factory=dict, compare=False)
    _maps: dict[str, tuple[Any, Any, Float64Array]] = field(default_factory=dict, compare=False)
    _known: dict[str, tuple[GpuMetric | None, Any, View]] = field(default_factory=dict, compare=False)

    @classmethod
    def whole(cls, host: Scene, images: GpuPair) -> CudaScene:
        """Return the pair at its own resolution."""
        kernels, queue = images.fixed.kernels, images.fixed.queue
        return cls(kernels, queue, host, images.fixed, images.moving, images.constants, images.numbers)

    def at(self, resolution: Resolution) -> CudaScene:
        """Return the same pair at another resolution."""
        host = self.host.at(resolution)
        images = (self.fixed, self.moving, self.constants, self._numbers)
        return CudaScene(self.kernels, self.queue, host, *images, _known=self._known)

    @property
    def factors(self) -> Factors:
        """Shrink factors of the fixed image."""
        return self.host.factors

    @property
    def geometry(self) -> Geometry:
        """Grid of the fixed image at this level."""
        return self.host.geometry

    def compare(self, members: Sequence[Member], u: Any) -> list[Compared | None]:
        """Features for each member, the moving image pulled through u; None for a member without kernels."""
        warped: dict[Any, Any] = {}
        return [self._compared(member, u, warped) for member in members]

    def _compared(self, member: Member, u: Any, warped: dict[Any, Any]) -> Compared | None:
        metric, options, view = self._kernels_of(member)
        if metric is None:
            return None
        key: Any = view if member.source == "image" else member.source
        if key not in warped:
            moving, matrix = self._moving(member, view, u)
            warped[key] = self.kernels.warp(moving, matrix, u)
        if member.name not in self._features:
            image = self.fixed.view(view, self.factors) if member.source == "image" else self._maps[member.source][0]
            self._features[member.name] = metric.features(self.kernels, image, options)
        moved = metric.features(self.kernels, warped[key], options)
        return Compared(member, options, metric, self._features[member.name], moved)

    def _kernels_of(self, member: Member) -> tuple[GpuMetric | None, Any, View]:
        if member.name not in self._known:
            module, metric = member.implementation, find(member.metric)
            if metric is not None and member.source != "image" and not metric.maps:
                metric = None
            view = View(member.window, member.sigma_voxels, getattr(module, "prepare", None))
            self._known[member.name] = (metric, member.metric_options, view)
        return self._known[member.name]

    def _moving(self, member: Member, view: View, u: Any) -> tuple[Any, Float64Array]:
        if member.source == "image":
            return self.moving.view(view, self.host.moving_factors), self.host.matrix
        if member.source not in self._maps:
            maps = self.maps(member.source, u)
            self._maps[member.source] = (self.queue.upload(maps.fixed), self.queue.upload(maps.moving), maps.matrix)
        return self._maps[member.source][1:]

    def maps(self, source: str, u: Any) -> ComparedMaps:
        """Return the structure maps of a source, on the host, their channels shared by their places at u."""
        return self.host.maps(source, u.numpy())

    def valid(self, u: Any) -> Any:
        """Weight of each voxel, (X, Y, Z), as `Scene.valid`."""
        moving = shrink_geometry(self.host.pair.moving.geometry, self.host.moving_factors)
        return self.kernels.warp_valid(moving.shape, self.host.matrix, u, *self._mask_weights)

    @cached_property
    def _mask_weights(self) -> tuple[Any, Any]:
        found = (self.host.moving_weight, self.host.fixed_weight)
        moving, fixed = (None if w is None else self.queue.upload(np.ascontiguousarray(w)) for w in found)
        return moving, fixed

    def class_numbers(self, u: Any, classes: tuple[int, ...]) -> Any:
        """Place among the classes of the moving label at each voxel, displaced by u, int32 (X, Y, Z)."""
        labels = self.host.pair.moving_labels
        assert labels is not None
        if classes not in self._numbers:
            self._numbers[classes] = self.queue.upload(numbers_of(labels.data, classes))
        matrix = voxel_matrix(self.geometry, labels.geometry, self.host.pair.initial)
        outside = int(numbers_of(np.zeros(1, dtype=np.int64), classes)[0])
        return self.kernels.warp_nearest(self._numbers[classes], matrix, u, outside)


KEPT = 256  # Arrays in the cache; the least recently used one is dropped first


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

        def made() -> Any:
            values = np.zeros((rows, columns), dtype=np.float32)
            values[:, 0] = 1
            return self._queue.upload(values)

        return self(("ones", rows, columns), made)

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


MOST_COUNTED = 65535  # Most voxels of a support that a joint histogram can count


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


def _gradient(kernels: Any, image: Any, options: Any) -> Any:
    return kernels.gradient_magnitude(image, options.sigma_voxels)


def _ngf(kernels: Any, image: Any, options: Any) -> Any:
    return kernels.normalised_gradient(image, options.sigma_voxels, options.edge)


def _mind(kernels: Any, image: Any, options: Any) -> Any:
    pairs = np.array(mind.PAIRS, dtype=np.int32) * np.int32(options.distance_voxels)
    return kernels.self_similarity(image.reshaped(image.shape[1:]), pairs, options.radius_voxels, *mind.NOISE_RANGE)


def _variance(options: Any, grid: ControlGrid, constants: Constants) -> tuple[Any, ...]:
    return options.variance_floor, options.squared


def _histogram(options: Any, grid: ControlGrid, constants: Constants) -> tuple[Any, ...]:
    return mi.n_bins(grid, options), constants.array(n_log_n(int(np.prod(grid.support))))


def _countable(grid: ControlGrid) -> bool:
    return bool(np.prod(grid.support) <= MOST_COUNTED)


METRICS = {
    "sad": GpuMetric(_plain, "sad_costs", maps=True),
    "gradient": GpuMetric(_gradient, "sad_costs"),
    "mind": GpuMetric(_mind, "sad_costs"),
    "ncc": GpuMetric(_plain, "ncc_costs", _variance, maps=True, single=True),
    "ngf": GpuMetric(_ngf, "ngf_costs"),
    "dwt": GpuMetric(_plain, "dwt_costs", support=dwt.wavelet_support),
    "mi": GpuMetric(_plain, "mi_costs", _histogram, fits=_countable),
}
