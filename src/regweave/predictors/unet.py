"""3-D U-Net that predicts the structures of an image: layers, input channels, working grid, saved predictor, and fit.

Ronneberger et al., MICCAI 2015; Çiçek et al., MICCAI 2016. At each scale two blocks of a 3 × 3 × 3 convolution,
instance norm and leaky ReLU; max pooling on the way down, repeated voxels beside the skip connection on the way up.
Compiled kernels evaluate the layers, `regweave.predictors._unet_training` fits them with PyTorch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from regweave import _core, extras, notices, registry
from regweave.errors import UsageError
from regweave.io.geometry import nearest_axes
from regweave.io.labels import normalised
from regweave.predictors import Classes, Examples, Names, Parts, Predictor, VoxelMm
from regweave.predictors._features import WorkingGrid
from regweave.predictors.perceptron import require_classes
from regweave.spatial.control_grid import numbers_of
from regweave.spatial.voxels import Factors, shrink
from regweave.types import Float32Array, Float64Array, Geometry, IntArray, LabelMap, StructureMaps, Volume

COSTLY = True  # a fit takes minutes to hours: as few as possible are made, and each is cached
ARCHIVED = True  # a model with millions of numbers is an archive
NEEDS = ("torch", "net", "training a network")  # package that fitting needs, the extra with it, and the purpose
MOST_CLASSES = 255
SOFT_TISSUE_HU = (-160.0, 240.0)
ALL_TISSUE_HU = (-1000.0, 1500.0)
PERCENTILES = (0.5, 99.5)
"""Of the voxels above the minimum of an MR image, which surrounds the body: they become -1 and 1."""
MR_RANGE = (-1.2, 1.5)  # range of mapped MR intensities: a vessel far above the percentile must not dominate
SCALES = 4
LEAST_VOXELS = 4  # voxels along an axis that pooling leaves, where there were so many
LATE = 1.5  # an axis is pooled once its voxels are at most this many times as long as the shortest: thick slices wait
ALIKE = (0.8, 1.25)  # ratios of image voxels to network voxels between which an axis is not resampled
ENOUGH = 100  # images from which on some are held out for early stopping: of 42 patients a tenth was worth .005 in Dice
SPARED = 10  # one patient of so many is held out
WIDE = 1.75  # ratio of the width of an image to that of a middling training image above which a warning is given
Modality = Literal["ct", "mr"]
Shape = tuple[int, int, int]
SpacingMm = tuple[float, float, float]
Factor = Annotated[int, Field(ge=1, le=2)]
Stride = tuple[Factor, Factor, Factor]
ALIGNMENT = 8  # widths are multiples of this, for the registers of a processor
WIDEST = 64


@dataclass(frozen=True)
class Network:
    """Layers of a U-Net."""

    arrays: Mapping[str, Float32Array]
    """``down{s}.{k}.weight``, ``.scale`` and ``.shift`` for scale s from the finest and block k, ``up{s}.{k}.…``,
    ``head.weight`` (classes, width, 1, 1, 1) and ``head.bias``."""
    strides: tuple[Stride, ...]  # pooling between one scale and the next along each axis, 1 or 2

    @property
    def width(self) -> int:
        """Channels at the finest scale; each coarser one has twice as many."""
        return len(self.arrays["down0.0.shift"])

    @property
    def n_channels(self) -> int:
        """Channels of the input."""
        return int(self.arrays["down0.0.weight"].shape[1])

    @property
    def n_classes(self) -> int:
        """Classes of the output."""
        return len(self.arrays["head.bias"])

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], strides: tuple[Stride, ...]) -> Network:
        """Build it from arrays of any precision; KeyError or ValueError where layers are missing or do not fit."""
        found = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}
        bias, first = found["head.bias"], found["down0.0.weight"]
        shift = found["down0.0.shift"]
        if bias.ndim != 1 or first.ndim != 5 or shift.ndim != 1 or not len(bias):
            raise ValueError(f"layers of shapes {first.shape}, {shift.shape} and {bias.shape} are no U-Net")
        shapes = layer_shapes(first.shape[1], len(shift), len(bias), len(strides) + 1)
        for name, shape in shapes.items():
            if found[name].shape != shape:
                raise ValueError(f"layer {name} has shape {found[name].shape}, allowed: {shape}")
        unknown = sorted(found.keys() - shapes.keys())
        if unknown:
            raise ValueError(f"{unknown[0][:40]!r} is no layer of a U-Net of {len(strides) + 1} scales")
        if len(shift) % ALIGNMENT or not ALIGNMENT <= len(shift) <= WIDEST:
            raise ValueError(f"width is {len(shift)}, allowed: multiples of {ALIGNMENT} up to {WIDEST}")
        return cls(found, strides)

    def shares(self, channels: Float32Array) -> Float32Array:
        """Return the probability of each class, (C, X, Y, Z), for input channels (I, X, Y, Z)."""
        x, y, z = channels.shape[1:]
        filled = filled_shape((x, y, z), self.strides)  # with edge values to whole coarsest voxels
        padding = [(0, 0), *((0, f - n) for n, f in zip(channels.shape[1:], filled, strict=True))]
        image = np.ascontiguousarray(np.pad(channels, padding, mode="edge").transpose(1, 2, 3, 0))
        skips = []
        for scale, stride in enumerate(self.strides):
            skips.append(self._blocks(f"down{scale}", image))
            image = _core.max_pool(skips[-1], stride)
        image = self._blocks(f"down{len(self.strides)}", image)
        for scale, stride in reversed(list(enumerate(self.strides))):
            image = self._blocks(f"up{scale}", skips.pop(), image, stride)
        weight = self.arrays["head.weight"].reshape(self.n_classes, self.width)
        found = _core.class_shares(image, weight, self.arrays["head.bias"])
        return np.ascontiguousarray(found[:, :x, :y, :z])

    def _blocks(
        self, name: str, image: Float32Array, coarse: Float32Array | None = None, stride: Stride = (1, 1, 1)
    ) -> Float32Array:
        parts = [[self.arrays[f"{name}.{k}.{part}"] for part in ("weight", "scale", "shift")] for k in (0, 1)]
        return _core.convolution_block(
            _core.convolution_block(image, coarse, stride, *parts[0]), None, (1, 1, 1), *parts[1]
        )


def layer_shapes(n_channels: int, width: int, n_classes: int, n_scales: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array of a network."""
    widths = [width * 2**scale for scale in range(n_scales)]
    inputs = {f"down{s}": (n_channels if s == 0 else widths[s - 1]) for s in range(n_scales)}
    inputs |= {f"up{s}": widths[s] + widths[s + 1] for s in range(n_scales - 1)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, n in inputs.items():
        out = widths[int(name.removeprefix("down").removeprefix("up"))]
        for k, read in enumerate((n, out)):
            shapes[f"{name}.{k}.weight"] = (out, read, 3, 3, 3)
            shapes[f"{name}.{k}.scale"] = shapes[f"{name}.{k}.shift"] = (out,)
    return {**shapes, "head.weight": (n_classes, width, 1, 1, 1), "head.bias": (n_classes,)}


def filled_shape(shape: Sequence[int], strides: Sequence[Stride]) -> tuple[int, int, int]:
    """Return the smallest grid of whole coarsest voxels, at least two along an axis that is pooled."""
    whole = [int(n) for n in np.prod(strides, axis=0)] if strides else [1, 1, 1]
    least = [1 if f == 1 else 2 * f for f in whole]
    x, y, z = (-(-max(n, few) // f) * f for n, few, f in zip(shape, least, whole, strict=True))
    return x, y, z


def n_channels(modality: str) -> int:
    """Count the channels of an image."""
    return 2 if modality == "ct" else 1


def channels(data: NDArray[Any], modality: str) -> NDArray[np.float32]:
    """Map Hounsfield units, or MR intensities in any scale, to about -1 to 1, in float32 (I, X, Y, Z).

    A CT has two channels, one for each fixed window, soft tissue first; MR has one, by the percentiles of the image.
    """
    image = np.asarray(data, dtype=np.float32)
    if modality == "ct":
        return np.stack([_mapped(image, *window).clip(-1, 1) for window in (SOFT_TISSUE_HU, ALL_TISSUE_HU)])
    inside = image[image > image.min()]
    low, high = np.percentile(inside, PERCENTILES) if len(inside) else (float(image.min()), np.inf)
    return _mapped(image, float(low), float(high)).clip(*MR_RANGE)[None]


def _mapped(image: NDArray[np.float32], low: float, high: float) -> NDArray[np.float32]:
    """Send ``low`` to -1 and ``high`` to 1; an image of a single value above its minimum has no range to divide by."""
    span = high - low if high > low else 1.0
    return np.asarray((image - np.float32(low)) * np.float32(2 / span) - np.float32(1))


def strides_for(spacing_mm: Sequence[float], shape: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Choose how far each axis is pooled between the `SCALES`, so that voxels become cubes first: 1 or 2 for each axis.

    ``shape`` is that of a middling image. The finest scale comes first.
    """
    spacing, sizes, found = np.array(spacing_mm, dtype=np.float64), np.array(shape), []
    for _ in range(SCALES - 1):
        large = sizes >= 2 * LEAST_VOXELS
        pooled = large & (spacing <= LATE * spacing[large].min()) if large.any() else large
        x, y, z = (2 if axis else 1 for axis in pooled)
        found.append((x, y, z))
        spacing, sizes = spacing * (x, y, z), -(-sizes // (x, y, z))
    return tuple(found)


@dataclass(frozen=True)
class NetworkGrid:
    """Grid of a network over an image, along the axes of the image."""

    image: Geometry  # grid of the image
    laid: Geometry  # grid of the network: the same box, with axes in the order of the image

    @classmethod
    def of(cls, image: Geometry, spacing_mm: Sequence[float]) -> NetworkGrid:
        """Cover the box of an image by voxels of about ``spacing_mm`` along L, P and S."""
        wanted = np.empty(3)
        wanted[list(nearest_axes(image.direction))] = spacing_mm
        ratio, sizes = image.spacing_mm / wanted, np.array(image.shape)
        alike = (ratio >= ALIKE[0]) & (ratio <= ALIKE[1])
        x, y, z = (int(n) for n in np.where(alike, sizes, np.maximum(1, np.rint(sizes * ratio))))
        scale = sizes / (x, y, z)
        affine = image.affine.copy()
        affine[:3, :3] = image.affine[:3, :3] * scale
        affine[:3, 3] = image.points((scale - 1) / 2)
        return cls(image, Geometry((x, y, z), affine))

    @property
    def _scale(self) -> Float64Array:
        """Voxels of the image to one of the network, along each axis of the image."""
        return np.array(self.image.shape) / self.laid.shape

    @property
    def _turned(self) -> WorkingGrid:
        return WorkingGrid.of(self.laid, 0.0)  # no voxel is that small: each is one block

    def seen(self, data: Float32Array) -> Float32Array:
        """Resample an image on the grid of the network, with axes along L, P and S."""
        f = np.maximum(1, np.floor(self._scale)).astype(int)
        factors: Factors = (int(f[0]), int(f[1]), int(f[2]))
        return self._turned.coarse(_resampled(shrink(data, factors), self.laid.shape, self._scale / f))

    def numbers(self, numbers: IntArray) -> NDArray[np.uint8]:
        """Return class numbers as `seen` does an image: each voxel has the class with the largest share of it."""
        present = [int(c) for c in np.unique(numbers)]
        best = likeliest(self.seen((numbers == c).astype(np.float32)) for c in present)
        return np.asarray(np.array(present, dtype=np.uint8)[best])

    def along_image(self, shares: Float32Array) -> Float32Array:
        """Return maps (C, L, P, S) of the network with axes in the order of the image."""
        return np.asarray(self._turned.along_image(shares))

    def on_image(self, share: Float32Array) -> Float32Array:
        """Interpolate one map, with axes in the order of the image, at the voxels of the image."""
        return _resampled(share, self.image.shape, 1 / self._scale)


def likeliest(shares: Iterable[Float32Array]) -> NDArray[np.intp]:
    """Place of the largest of some maps at each voxel, the first of equals; holds one map at a time."""
    largest: Any = None
    best: Any = None
    for place, share in enumerate(shares):
        if largest is None:
            largest, best = share.copy(), np.zeros(share.shape, dtype=np.intp)
            continue
        better = share > largest
        largest[better], best[better] = share[better], place
    return np.asarray(best)


def _resampled(image: Float32Array, shape: Shape, scale: Float64Array) -> Float32Array:
    """Interpolate linearly on a grid over the same box, with voxels ``scale`` times as large."""
    if image.shape == shape and (scale == 1).all():
        return image
    return np.asarray(_core.resample_field(np.ascontiguousarray(image)[None], shape, scale, (scale - 1) / 2)[0])


class Options(registry.Options):
    """Size and length of the training."""

    width: int = Field(default=16, ge=ALIGNMENT, le=WIDEST, multiple_of=ALIGNMENT)
    """Channels at full resolution; they double with each of four scales."""
    steps: int = Field(default=1500, ge=1, le=1_000_000)
    """Steps of the training, at most."""
    minutes: float = Field(default=15.0, gt=0, le=100_000)
    """Time limit of one network: the number of steps is reduced where the first steps are too slow for it. A training
    fits four: one to all patients, and three without a third of them each."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the fit; by default a GPU where PyTorch detects one."""
    mirror: bool = False
    """Mirror every second training image left to right, and average the predictions for an image and its mirror image:
    for parts of the body whose sides are alike. Structures named left and right change places."""


@dataclass(frozen=True)
class NetworkPredictor:
    """Fitted convolutional network that predicts the structures of an image."""

    classes: tuple[int, ...]  # label values, the background 0 first
    modality: Modality  # how intensities are mapped
    spacing_mm: SpacingMm  # voxels of the training images, along L, P and S
    network: Network
    names: Mapping[int, str] = field(default_factory=dict)  # names of the classes by label value
    record: Mapping[str, Any] = field(default_factory=dict)
    """Results on held-out images: ``dice`` by class, ``mean_dice`` and ``n_images``; empty where there were none."""
    ignored: tuple[int, ...] = ()
    """Outputs of the network, by place, that count as background: structures without a class."""
    shape: Shape = (1, 1, 1)
    """Voxels of a middling training image along L, P and S. A smaller image, a tighter crop, is padded with its darkest
    value: without its surroundings, normalisation by the mean of the image would fail."""
    mirrored: tuple[int, ...] = ()
    """Output, by place, of each output in a mirrored image; empty where images are not mirrored."""

    @property
    def voxel_mm(self) -> float:
        """Size of the working voxels along the finest axis."""
        return min(self.spacing_mm)

    @property
    def trained_mm(self) -> float:
        """Smallest side of a voxel of the middle training image, which is a working voxel."""
        return self.voxel_mm

    def labels(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel, on the grid of the image."""
        shares, grid = self.shares(volume)
        best = likeliest(grid.on_image(share) for share in shares)
        return LabelMap(np.array(self.classes, dtype=np.int32)[best], volume.geometry, self.names)

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the probability of each structure, on the working grid along the axes of the image."""
        shares, grid = self.shares(volume)
        return StructureMaps(shares[1:], grid.laid, self.classes[1:])

    def shares(self, volume: Volume) -> tuple[Float32Array, NetworkGrid]:
        """Probability of each class, (C, X, Y, Z), on the working grid along the axes of the image, and that grid."""
        grid = NetworkGrid.of(volume.geometry, self.spacing_mm)
        seen = channels(grid.seen(volume.data), self.modality)
        size = seen.shape[1:]
        if max(self.shape) > 1 and any(n > WIDE * usual for n, usual in zip(size, self.shape, strict=True)):
            sizes = [" × ".join(map(str, shape)) for shape in (size, self.shape)]
            notices.warn(
                f"W215: the image has {sizes[0]} voxels of the network's size, its training images had about "
                f"{sizes[1]}: what it makes out there may be wrong; crop the image to the part of the body that the "
                "model is for"
            )
        more = [max(0, wanted - n) for n, wanted in zip(size, self.shape, strict=True)]
        pad = [(m // 2, m - m // 2) for m in more]
        surrounded = np.stack([np.pad(channel, pad, constant_values=channel.min()) for channel in seen])
        shares = self.network.shares(surrounded)
        if self.mirrored:
            other = self.network.shares(np.ascontiguousarray(surrounded[:, ::-1]))[list(self.mirrored), ::-1]
            shares = (shares + other) / np.float32(2)
        inner = (slice(low, low + n) for (low, _), n in zip(pad, size, strict=True))
        shares = np.ascontiguousarray(shares[:, *inner])
        if self.ignored:
            shares[0] += shares[list(self.ignored)].sum(axis=0)
            shares = np.delete(shares, self.ignored, axis=0)
        return grid.along_image(shares), grid

    def memory_bytes(self, geometry: Geometry) -> float:
        """Forecast the memory that an image on this grid takes: features at full resolution four times, and maps."""
        grid = NetworkGrid.of(geometry, self.spacing_mm).laid
        seen = [max(grid.shape[axis], n) for axis, n in zip(nearest_axes(grid.direction), self.shape, strict=True)]
        voxels = float(np.prod(filled_shape(seen, self.network.strides)))
        return 4.0 * voxels * (4 * self.network.width + 2 * self.network.n_classes)

    def save(self) -> Parts:
        """Return the parts from which `load` restores the same predictor: fitted numbers have 16 bits."""
        saved = Saved.model_validate({**vars(self), "input": VERSION, "strides": self.network.strides})
        arrays = {name: array.astype(np.float16) for name, array in self.network.arrays.items()}
        return Parts("unet", saved.model_dump(mode="json"), arrays, self.record)


VERSION = 1  # changes whenever the same image gives other channels
Voxels = Annotated[int, Field(ge=1, le=1024)]


class Saved(BaseModel):
    """Fields of a saved network, as in `NetworkPredictor`."""

    input: Literal[1]
    classes: Classes
    names: Names
    modality: Modality
    spacing_mm: tuple[VoxelMm, VoxelMm, VoxelMm]
    strides: tuple[Stride, ...]
    ignored: tuple[PositiveInt, ...]
    shape: tuple[Voxels, Voxels, Voxels]
    mirrored: tuple[NonNegativeInt, ...] = ()


def load(parts: Parts) -> NetworkPredictor:
    """Return the predictor that was saved; KeyError or ValueError where a part is missing or does not fit."""
    saved = Saved.model_validate(parts.fields)
    network = Network.of(parts.arrays, saved.strides)
    ignored, mirrored, outputs = list(saved.ignored), list(saved.mirrored), list(range(network.n_classes))
    if ignored != [n for n in outputs if n in ignored]:
        raise ValueError(f"ignored outputs are {ignored[:9]}, allowed: places from 1 to {len(outputs) - 1}")
    if len(saved.classes) + len(ignored) != len(outputs):
        raise ValueError(f"{len(saved.classes)} classes, but the network has {len(outputs) - len(ignored)}")
    if network.n_channels != n_channels(saved.modality):
        raise ValueError(f"a network for {network.n_channels} channels does not read {saved.modality!r} images")
    if mirrored and (sorted(mirrored) != outputs or [mirrored[m] for m in mirrored] != outputs):
        raise ValueError(f"mirrored is {mirrored[:9]}, allowed: outputs that change places in couples")
    fields = saved.model_dump(exclude={"input", "strides"})
    return NetworkPredictor(network=network, record=dict(parts.record), **fields)


def fit(examples: Examples, options: Options, like: Predictor | None) -> NetworkPredictor:
    """Fit to segmented images; the result on left-out patients is for the caller, who fits networks to parts of them.

    Networks that are compared use the same voxels, width and strides: those of ``like``.

    Raises E158 where PyTorch is not installed.
    """
    examples.check()
    torch = extras.load(*NEEDS)
    from regweave.predictors import _unet_training as training  # noqa: PLC0415 (imports torch, which takes seconds)

    classes = examples.classes
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"{len(classes)} classes, allowed: at most {MOST_CLASSES}")
    spacing_mm = like.spacing_mm if isinstance(like, NetworkPredictor) else middle_spacing_mm(examples.volumes)
    grids = [NetworkGrid.of(v.geometry, spacing_mm) for v in examples.volumes]
    pairs = list(zip(grids, examples.volumes, examples.label_maps, strict=True))
    images = [channels(g.seen(v.data), examples.modality) for g, v, _ in pairs]
    numbers = [g.numbers(numbers_of(labels.data, classes)) for g, _, labels in pairs]
    require_classes(numbers, classes)
    nx, ny, nz = (int(n) for n in np.median([i.shape[1:] for i in images], axis=0))
    strides = like.network.strides if isinstance(like, NetworkPredictor) else strides_for(spacing_mm, (nx, ny, nz))
    names = {v: n for labels in examples.label_maps for v, n in labels.names.items() if v in classes}
    mirrored = mirror_places(classes, names) if options.mirror else ()
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    plan = training.TrainingPlan(
        len(classes), strides, options.width, options.steps, options.minutes, examples.seed, device,
        held_out=spared(examples.groups or range(len(images)), examples.seed), mirrored=mirrored,
    )  # fmt: skip
    before = torch.get_num_threads()
    torch.set_num_threads(_core.threads())
    try:
        arrays = training.fit_network(images, numbers, plan, examples.tell, examples.checkpoint)
    finally:
        torch.set_num_threads(before)
    modality: Modality = "ct" if examples.modality == "ct" else "mr"
    network = Network.of(arrays, strides)
    return NetworkPredictor(classes, modality, spacing_mm, network, names, shape=(nx, ny, nz), mirrored=mirrored)


def mirror_places(classes: Sequence[int], names: Mapping[int, str]) -> tuple[int, ...]:
    """Place of each class in a mirrored image: the same, or that of the other side by name.

    Raises E194 where one side of a structure is not among the classes.
    """
    called = [normalised(names.get(c, "")) for c in classes]
    found = []
    for place, name in enumerate(called):
        side, _, rest = name.partition(" ")
        other = {"left": f"right {rest}", "right": f"left {rest}"}.get(side if rest else "")
        if other is not None and other not in called:
            message = f"{names[classes[place]]!r} has no counterpart on the other side among the structures"
            raise UsageError("E194", message, "name it, or leave mirror=true out")
        found.append(place if other is None else called.index(other))
    return tuple(found)


def middle_spacing_mm(volumes: Sequence[Volume]) -> SpacingMm:
    """Median of the voxel sizes along L, P and S."""
    oriented = [v.geometry.spacing_mm[list(nearest_axes(v.geometry.direction))] for v in volumes]
    x, y, z = np.median(oriented, axis=0)
    return float(x), float(y), float(z)


def spared(groups: Sequence[Hashable], seed: int) -> tuple[int, ...]:
    """Draw images of about a tenth of the patients, by place, for early stopping; none where images are few.

    ``groups`` is the patient of each image: all images of a patient are drawn, or none.
    """
    if len(groups) < ENOUGH:
        return ()
    patients = list(dict.fromkeys(groups))
    drawn = np.random.default_rng(seed).permutation(len(patients))[: max(1, len(patients) // SPARED)]
    chosen = {patients[n] for n in drawn}
    return tuple(n for n, patient in enumerate(groups) if patient in chosen)
