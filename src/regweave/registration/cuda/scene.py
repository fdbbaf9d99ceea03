"""Image pair on a GPU at one level of the pyramid: views, features, weights of voxels, class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from regweave.config.member import Member
from regweave.metrics import mi
from regweave.registration.cuda.constants import Constants
from regweave.registration.cuda.metrics import GpuMetric, find
from regweave.registration.cuda.refinement import gaussian_sides
from regweave.registration.scene import Resolution, Scene
from regweave.registration.structure_channels import ComparedMaps
from regweave.spatial.channels import Channels, View
from regweave.spatial.intensity import apply_window, sampled
from regweave.spatial.node_classes import numbers_of
from regweave.spatial.pyramid import Factors, shrink_geometry
from regweave.spatial.warp import voxel_matrix
from regweave.types import Float64Array, Geometry

CUT = 4.0
"""Half the length of the Gaussian of a view, in standard deviations."""


@dataclass
class GpuImage:
    """One image on the GPU and its views, made once and kept for the level at hand."""

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
        """Tell whether the images are those of a scene, through the same windows."""
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
        """Return the structure maps of a source, on the host, their channels shared as they lie at u."""
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
