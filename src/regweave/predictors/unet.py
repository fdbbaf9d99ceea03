"""Intensity normalisation and pooling strides of a convolutional network.

Only NumPy is imported: a machine that trains a network needs nothing else of the package.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regweave import _core, extras, notices, registry
from regweave.errors import UsageError
from regweave.io.geometry import nearest_axes
from regweave.io.labels import normalised
from regweave.predictors._features import WorkingGrid
from regweave.predictors._network import ALIGNMENT, WIDEST, Network, filled_shape
from regweave.predictors.base import Examples, Parts, Predictor
from regweave.predictors.perceptron import class_numbers, require_classes
from regweave.spatial.pyramid import Factors, shrink
from regweave.threads import present_threads
from regweave.types import Float32Array, Float64Array, Geometry, IntArray, LabelMap, Modality, StructureMaps, Volume

VERSION = 1
"""Changes whenever the same image gives other channels."""
SOFT_TISSUE_HU = (-160.0, 240.0)
ALL_TISSUE_HU = (-1000.0, 1500.0)
PERCENTILES = (0.5, 99.5)
"""Of the voxels above the minimum of an MR image, which is what surrounds the body: they become -1 and 1."""
MR_RANGE = (-1.2, 1.5)
"""Where mapped MR intensities are cut: a vessel far above the percentile must not drown the rest."""

SCALES = 4
LEAST_VOXELS = 4
"""Voxels along an axis that pooling leaves, where there were so many."""
LATE = 1.5
"""An axis is pooled once its voxels are at most this many times as long as the shortest: thick slices wait."""


def n_channels(modality: Literal["ct", "mr"]) -> int:
    """Count the channels that `channels` gives."""
    return 2 if modality == "ct" else 1


def channels(data: NDArray[Any], modality: Literal["ct", "mr"]) -> NDArray[np.float32]:
    """Map intensities to about -1 to 1.

    Parameters
    ----------
    data : array of shape (X, Y, Z)
        Hounsfield units, or the intensities of an MR image in any scale.
    modality : "ct" or "mr"
        Two fixed windows, or one by the percentiles of the image.

    Returns
    -------
    float32 array of shape (I, X, Y, Z)
        Two channels for CT, soft tissue first, and one for MR.

    Examples
    --------
    >>> channels(np.array([-1024.0, 40.0, 1500.0]), "ct").tolist()
    [[-1.0, 0.0, 1.0], [-1.0, -0.168..., 1.0]]
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
    """Choose how far each axis is pooled between scales, so that voxels become cubes first.

    Parameters
    ----------
    spacing_mm : three numbers
        Distance of the voxels along the axes.
    shape : three ints
        Voxels along the axes of a middling image.

    Returns
    -------
    tuple of `SCALES` - 1 tuples of three ints
        1 or 2 for each axis, the finest scale first.

    Examples
    --------
    >>> strides_for((2.5, 2.5, 10.0), (64, 64, 12))
    ((2, 2, 1), (2, 2, 1), (2, 2, 2))
    """
    spacing, sizes, found = np.array(spacing_mm, dtype=np.float64), np.array(shape), []
    for _ in range(SCALES - 1):
        large = sizes >= 2 * LEAST_VOXELS
        pooled = large & (spacing <= LATE * spacing[large].min()) if large.any() else large
        x, y, z = (2 if axis else 1 for axis in pooled)
        found.append((x, y, z))
        spacing, sizes = spacing * (x, y, z), -(-sizes // (x, y, z))
    return tuple(found)


ALIKE = (0.8, 1.25)
"""Ratios of the voxels of an image to those of the network between which the image is taken as it is."""
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class NetworkGrid:
    """Grid of a network over an image, laid along the axes of the image.

    Parameters
    ----------
    image : Geometry
        Grid of the image.
    laid : Geometry
        Grid of the network: the same box, with axes in the order of the image.
    """

    image: Geometry
    laid: Geometry

    @classmethod
    def of(cls, image: Geometry, spacing_mm: Sequence[float]) -> NetworkGrid:
        """Lay voxels of about ``spacing_mm``, along L, P and S, over the box of an image."""
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
        return WorkingGrid.of(self.laid, 0.0)  # no voxel is that small: each is a block of its own

    def seen(self, data: Float32Array) -> Float32Array:
        """Return an image on the grid of the network, its axes along L, P and S."""
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
    """Place of the largest of some maps at each voxel, the first of equals; holds one map at a time.

    Examples
    --------
    >>> likeliest([np.array([0.2, 0.6], np.float32), np.array([0.8, 0.4], np.float32)]).tolist()
    [1, 0]
    """
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


COSTLY = True
"""Fitting takes minutes to hours: as few as possible are fitted, and each is kept."""
ARCHIVED = True
"""Millions of numbers: a model that holds them is an archive."""
NEEDS = ("torch", "net", "training a network")
"""Package that fitting needs, the extra that brings it, and what for."""
MOST_CLASSES = 255
VOXELS_MM = (1e-4, 1e3)
MOST_VOXELS = 1024
"""Of a training image along an axis."""
ENOUGH = 100
"""Images from which on some can be spared to say when to stop: of 42 patients a tenth was worth .005 in Dice."""
SPARED = 10
"""One patient of so many is spared."""
WIDE = 1.75
"""An image so many times as wide as a middling training image is told with a warning."""
SpacingMm = tuple[float, float, float]


class Options(registry.Options):
    """Size and length of the training.

    Parameters
    ----------
    width : int
        Channels at full resolution; they double with each of four scales.
    steps : int
        Steps of the training, at most.
    minutes : float
        Time that one network may take: where the first steps say that it would take longer, fewer are made. A training
        fits four: one to all patients, and three without a third of them each.
    device : "auto", "cpu" or "cuda"
        Where it is trained; by default on a GPU where PyTorch finds one.
    mirror : bool
        Mirror every second training image left to right, and tell an image as the mean of it and its mirror image: for
        parts of the body whose sides are alike. Structures named left and right change places.
    """

    width: int = Field(default=16, ge=ALIGNMENT, le=WIDEST, multiple_of=ALIGNMENT)
    steps: int = Field(default=1500, ge=1, le=1_000_000)
    minutes: float = Field(default=15.0, gt=0, le=100_000)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    mirror: bool = False


@dataclass(frozen=True)
class NetworkPredictor:
    """Convolutional network that tells the structures of an image.

    Parameters
    ----------
    classes : tuple of ints
        Label values, the background 0 first.
    modality : "ct" or "mr"
        How intensities are mapped.
    spacing_mm : three numbers
        Voxels that it was trained on, along L, P and S.
    network : Network
        Layers.
    names : mapping
        Names of the classes by label value.
    record : mapping
        What held-out images say: ``dice`` by class, their ``mean_dice``, ``n_images``; empty where none were asked.
    ignored : tuple of ints
        Outputs of the network, by place, that count as background: structures that it knows and nobody asks for.
    shape : three ints
        Voxels of a middling training image along L, P and S. A smaller image, a tighter crop, is surrounded by its
        darkest value: normalisation by the mean of an image makes a network blind where the surroundings are missing.
    mirrored : tuple of ints
        Output, by place, that each output becomes in a mirror; empty where images are told one way only.
    """

    classes: tuple[int, ...]
    modality: Modality
    spacing_mm: SpacingMm
    network: Network
    names: Mapping[int, str] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[int, ...] = ()
    shape: Shape = (1, 1, 1)
    mirrored: tuple[int, ...] = ()

    @property
    def voxel_mm(self) -> float:
        """Size of the voxels that it works on, along the finest axis."""
        return min(self.spacing_mm)

    @property
    def trained_mm(self) -> float:
        """Smallest side of a voxel of the middle training image: the one that it works on."""
        return self.voxel_mm

    def labels(self, volume: Volume) -> LabelMap:
        """Return the likeliest class of each voxel, on the grid of the image."""
        shares, grid = self.shares(volume)
        best = likeliest(grid.on_image(share) for share in shares)
        return LabelMap(np.array(self.classes, dtype=np.int32)[best], volume.geometry, self.names)

    def maps(self, volume: Volume) -> StructureMaps:
        """Return the probability of each structure, on the working grid laid along the axes of the image."""
        shares, grid = self.shares(volume)
        return StructureMaps(shares[1:], grid.laid, self.classes[1:])

    def shares(self, volume: Volume) -> tuple[Float32Array, NetworkGrid]:
        """Probability of each class, (C, X, Y, Z), on the working grid laid along the image, and that grid."""
        grid = NetworkGrid.of(volume.geometry, self.spacing_mm)
        seen = channels(grid.seen(volume.data), _scale_of(self.modality))
        _warn_of_width(seen.shape[1:], self.shape)
        inner, surrounded = _surrounded(seen, self.shape)
        shares = self.network.shares(surrounded)
        if self.mirrored:
            other = self.network.shares(np.ascontiguousarray(surrounded[:, ::-1]))[list(self.mirrored), ::-1]
            shares = (shares + other) / np.float32(2)
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

    def telling(self, classes: tuple[int, ...]) -> NetworkPredictor:
        """Return the predictor of some of the classes, 0 first; the others become background."""
        outputs = [n for n in range(self.network.n_classes) if n not in self.ignored]
        dropped = [n for n, c in zip(outputs, self.classes, strict=True) if c not in classes]
        kept = tuple(c for c in self.classes if c in classes)
        if kept != classes:
            raise ValueError(f"the network tells {self.classes}; give some of them in this order, found {classes}")
        names = {c: name for c, name in self.names.items() if c in classes}
        return replace(self, classes=kept, ignored=tuple(sorted({*self.ignored, *dropped})), names=names)

    def save(self) -> Parts:
        """Return the parts from which `load` gives back the same predictor: training gives numbers of 16 bits."""
        fields = {
            "input": VERSION,
            "classes": list(self.classes),
            "names": {str(value): name for value, name in self.names.items()},
            "modality": self.modality,
            "spacing_mm": list(self.spacing_mm),
            "strides": [list(stride) for stride in self.network.strides],
            "ignored": list(self.ignored),
            "shape": list(self.shape),
            "mirrored": list(self.mirrored),
        }
        arrays = {name: array.astype(np.float16) for name, array in self.network.arrays.items()}
        return Parts("unet", fields, arrays, self.record)


def load(parts: Parts) -> NetworkPredictor:
    """Return the predictor that was saved."""
    content = parts.fields
    if content["input"] != VERSION:
        raise ValueError(f"network with input {content['input']!r}, supported {VERSION}")
    network = Network.of(parts.arrays, content["strides"])
    classes = tuple(int(c) for c in content["classes"])
    ignored = tuple(int(n) for n in content["ignored"])
    if sorted(set(ignored)) != list(ignored) or not all(0 < n < network.n_classes for n in ignored):
        raise ValueError(f"ignored outputs are {list(ignored)[:9]}, allowed: places from 1 to {network.n_classes - 1}")
    if len(classes) + len(ignored) != network.n_classes:
        raise ValueError(f"{len(classes)} classes, but the network tells {network.n_classes - len(ignored)}")
    modality = content["modality"]
    if modality not in ("ct", "mr") or network.n_channels != n_channels(modality):
        raise ValueError(f"a network for {network.n_channels} channels does not read {str(modality)[:40]!r} images")
    x, y, z = (float(mm) for mm in content["spacing_mm"])
    if not all(VOXELS_MM[0] <= mm <= VOXELS_MM[1] for mm in (x, y, z)):
        raise ValueError(f"spacing_mm is {[x, y, z]}, allowed: {VOXELS_MM[0]:g} to {VOXELS_MM[1]:g}")
    names = {int(value): str(name) for value, name in content["names"].items()}
    nx, ny, nz = (int(n) for n in content["shape"])
    if not all(1 <= n <= MOST_VOXELS for n in (nx, ny, nz)):
        raise ValueError(f"shape is {[nx, ny, nz]}, allowed: 1 to {MOST_VOXELS}")
    mirrored = tuple(int(n) for n in content.get("mirrored", ()))
    places = list(range(network.n_classes))
    if mirrored and (sorted(mirrored) != places or [mirrored[m] for m in mirrored] != places):
        raise ValueError(f"mirrored is {list(mirrored)[:9]}, allowed: outputs that change places in couples")
    return NetworkPredictor(
        classes, modality, (x, y, z), network, names, dict(parts.record), ignored, (nx, ny, nz), mirrored
    )


def fit(examples: Examples, options: Options, like: Predictor | None) -> NetworkPredictor:
    """Train on segmented images; what left-out patients say is for the caller to find out, who fits networks to parts.

    Parameters
    ----------
    examples : Examples
        Images, segmentations and classes.
    options : Options
        Size and length.
    like : Predictor, optional
        Work on its voxels, with its width and strides: networks that are compared see images alike.

    Raises
    ------
    UsageError
        E158 where PyTorch is not installed.
    """
    examples.check()
    extras.require(*NEEDS)
    if len(examples.classes) > MOST_CLASSES:
        raise ValueError(f"{len(examples.classes)} classes, allowed: at most {MOST_CLASSES}")
    spacing_mm = like.spacing_mm if isinstance(like, NetworkPredictor) else middle_spacing_mm(examples.volumes)
    grids = [NetworkGrid.of(v.geometry, spacing_mm) for v in examples.volumes]
    pairs = list(zip(grids, examples.volumes, examples.label_maps, strict=True))
    images = [channels(g.seen(v.data), _scale_of(examples.modality)) for g, v, _ in pairs]
    numbers = [g.numbers(class_numbers(labels.data, examples.classes)) for g, _, labels in pairs]
    require_classes(numbers, examples.classes)
    nx, ny, nz = (int(n) for n in np.median([i.shape[1:] for i in images], axis=0))
    strides = like.network.strides if isinstance(like, NetworkPredictor) else strides_for(spacing_mm, (nx, ny, nz))
    names = {v: n for labels in examples.label_maps for v, n in labels.names.items() if v in examples.classes}
    mirrored = mirror_places(examples.classes, names) if options.mirror else ()
    arrays = _trained(images, numbers, strides, options, examples, mirrored)
    network = Network.of(arrays, strides)
    return NetworkPredictor(
        examples.classes, examples.modality, spacing_mm, network, names, shape=(nx, ny, nz), mirrored=mirrored
    )


def mirror_places(classes: Sequence[int], names: Mapping[int, str]) -> tuple[int, ...]:
    """Place, among the classes, of what each of them is in a mirror: the same, or the other side by name.

    Raises
    ------
    UsageError
        E194 where one side of a structure is not among the classes.

    Examples
    --------
    >>> mirror_places((0, 3, 4, 5), {3: "Parotid_L", 4: "Parotid_R", 5: "brainstem"})
    (0, 2, 1, 3)
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


def _warn_of_width(seen: Sequence[int], usual: Sequence[int]) -> None:
    """Say so where an image is much wider than those that a network was trained on."""
    if max(usual) > 1 and any(n > WIDE * least for n, least in zip(seen, usual, strict=True)):
        sizes = [" × ".join(map(str, shape)) for shape in (seen, usual)]
        notices.warn(
            f"W215: the image has {sizes[0]} voxels of the network's size, its training images had about {sizes[1]}: "
            "what it makes out there may be wrong; crop the image to the part of the body that the model is for"
        )


def _surrounded(seen: Float32Array, shape: Shape) -> tuple[tuple[slice, ...], Float32Array]:
    """Put channels into the middle of a grid of at least some shape; where they lie in it comes with them."""
    wide = [(max(0, wanted - n) // 2, max(0, wanted - n)) for n, wanted in zip(seen.shape[1:], shape, strict=True)]
    inner = tuple(slice(low, low + n) for n, (low, _) in zip(seen.shape[1:], wide, strict=True))
    if not any(more for _, more in wide):
        return inner, seen
    pad = [(low, more - low) for low, more in wide]
    return inner, np.stack([np.pad(channel, pad, constant_values=channel.min()) for channel in seen])


def middle_spacing_mm(volumes: Sequence[Volume]) -> SpacingMm:
    """Median of the voxel sizes along L, P and S."""
    x, y, z = np.median([_oriented_mm(v.geometry) for v in volumes], axis=0)
    return float(x), float(y), float(z)


def _oriented_mm(geometry: Geometry) -> Float32Array:
    return np.asarray(geometry.spacing_mm[list(nearest_axes(geometry.direction))])


def _trained(
    images: Sequence[Float32Array],
    numbers: Sequence[Any],
    strides: Any,
    options: Options,
    examples: Examples,
    mirrored: tuple[int, ...],
) -> dict[str, Any]:
    torch = extras.load(*NEEDS)
    from regweave.predictors import _unet_training as training  # noqa: PLC0415 (imports torch, which takes seconds)

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = training.TrainingPlan(
        width=options.width, steps=options.steps, minutes=options.minutes, seed=examples.seed, device=device,
        held_out=spared(examples.groups or range(len(images)), examples.seed), mirrored=mirrored,
    )  # fmt: skip
    before = torch.get_num_threads()
    torch.set_num_threads(present_threads())
    try:
        return training.fit_network(
            images, numbers, len(examples.classes), strides, plan, examples.tell, examples.checkpoint
        )
    finally:
        torch.set_num_threads(before)


def spared(groups: Sequence[Hashable], seed: int) -> tuple[int, ...]:
    """Images of about a tenth of the patients, by place, to say when to stop; none where images are few.

    Parameters
    ----------
    groups : sequence
        Patient of each image: all images of one are spared, or none.
    seed : int
        Draws the patients.

    Examples
    --------
    >>> spared([n // 5 for n in range(100)], 0), spared(range(40), 0)
    ((20, 21, 22, 23, 24, 95, 96, 97, 98, 99), ())
    """
    if len(groups) < ENOUGH:
        return ()
    patients = list(dict.fromkeys(groups))
    drawn = np.random.default_rng(seed).permutation(len(patients))[: max(1, len(patients) // SPARED)]
    chosen = {patients[n] for n in drawn}
    return tuple(n for n, patient in enumerate(groups) if patient in chosen)


def _scale_of(modality: Modality) -> Literal["ct", "mr"]:
    return "ct" if modality == "ct" else "mr"
