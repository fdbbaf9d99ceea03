"""Likeness of two registered images, measured without labels of the fixed one, and its place among good results.

All numbers come from samples: some voxels of the body, some inside each warped structure, and small patches round
some voxels of its contour. So the cost hardly depends on the size of the images.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from regweave.errors import RegweaveError
from regweave.io.disk.files import parse_json
from regweave.io.disk.records import Count, Number, RecordPart, Text, Whole, checked, read_record
from regweave.io.modality import BankName
from regweave.spatial.voxels import apply_window, default_window, inside
from regweave.spatial.warp import PART
from regweave.types import Float32Array, Float64Array, ImagePair, IntArray, LabelMap, Transform, Volume

MOST_VOXELS, MOST_INSIDE, MOST_AT_CONTOUR = 20_000, 30_000, 4_000
"""Voxels of the images, voxels inside structures, and voxels of contours that are measured at most."""
LEAST_VOXELS = 8  # a structure with fewer voxels has no numbers
RADIUS = 2  # patches at contours have 5 voxels along each axis
MOST_TURNED = 2_000  # voxels that are compared with the moving image mirrored and turned
BLOCKS = 6  # blocks along each axis of the image that stand for structures where there are no labels
BINS = 24  # intensities of the moving image from which a table predicts those of the fixed one
FLOOR = 1e-4  # variance added to that of patches, so that two flat ones are alike; intensities are in [0, 1]
TINY = 1e-6


Row = Mapping[str, float]
"""Numbers by name."""


def measure(
    pair: ImagePair, transform: Transform, warped: Volume, labels: LabelMap | None, *, same: bool
) -> tuple[dict[str, float], dict[int, Row]]:
    """Measure a result: numbers of the whole pair, and `inside` and `contour` of each structure by its label.

    ``labels`` are the warped ones, ``same`` says that both images have one modality.
    """
    fixed = apply_window(pair.fixed.data, _limits(pair.fixed))
    start, moving = at_start(pair, transform.affine, fixed, same=same), apply_window(warped.data, _limits(pair.moving))
    known = np.isfinite(fixed).ravel()
    known &= np.isfinite(moving).ravel()
    if (mask := inside(pair.fixed)) is not None:
        known &= mask.ravel()
    for image in (fixed, moving):  # no copies: beside all images and fields there is no room for them
        image[np.isnan(image)] = 0
    body = _in_both(pair, transform, known, MOST_VOXELS)
    f, w = fixed.ravel()[body], moving.ravel()[body]
    seen = (f > f.mean()) | (w > w.mean()) if body.size else np.zeros(0, dtype=bool)
    if seen.sum() < LEAST_VOXELS or f[seen].std() < TINY or w[seen].std() < TINY:
        return {"correlation": 0.0}, {}
    body, f, w = body[seen], f[seen], w[seen]
    predicted, spread = _predicted(f, w, w), float(f.std())
    explained = float(np.sqrt(max(0.0, 1 - ((f - predicted) ** 2).mean() / f.var())))
    grid = transform.field.geometry
    length = np.sqrt((transform.field.data.reshape(3, -1)[:, body].astype(np.float64) ** 2).sum(axis=0))
    whole = {
        "correlation": float(np.corrcoef(f, w)[0, 1]) if same else explained,
        "explained": explained,
        "moved": float(np.percentile(length, 95) / (np.array(grid.shape) * grid.spacing_mm).max()),
        **start,
    }
    at = zip(np.unravel_index(body, fixed.shape), fixed.shape, strict=True)
    x, y, z = (np.minimum(a * BLOCKS // n, BLOCKS - 1) for a, n in at)
    blocks = (x * BLOCKS + y) * BLOCKS + z
    difference = _differences(f, w if same else predicted, blocks, BLOCKS**3) / spread
    count = np.bincount(blocks, minlength=BLOCKS**3)
    enough = count >= LEAST_VOXELS
    if enough.any():
        whole["blocks"] = float(np.average(difference[enough], weights=np.sqrt(count[enough])))
    whole["edges"] = float(_local(fixed, moving, _edges(moving, body), same=same).mean())
    structures: dict[int, Row] = {}
    if labels is not None:
        values = labels.values()
        drawn = (labels.data != 0).ravel()
        within = _in_both(pair, transform, known & drawn, MOST_INSIDE)
        rim = _in_both(pair, transform, known & drawn & _rim(labels.data).ravel(), MOST_AT_CONTOUR)
        n, (in_part, of_rim) = len(values), (np.searchsorted(values, labels.data.ravel()[at]) for at in (within, rim))
        a, b = fixed.ravel()[within], moving.ravel()[within]
        difference = _differences(a, b if same else _predicted(f, w, b), in_part, n) / spread
        counted, at_rim = np.bincount(in_part, minlength=n), np.bincount(of_rim, minlength=n)
        local = np.bincount(of_rim, _local(fixed, moving, rim, same=same), n) / np.maximum(at_rim, 1)
        for k, value in enumerate(values):
            if counted[k] >= LEAST_VOXELS and at_rim[k] >= LEAST_VOXELS:
                structures[value] = {"inside": float(difference[k]), "contour": float(local[k]), "n": float(counted[k])}
    if structures:
        share = np.sqrt([row["n"] for row in structures.values()])
        for name in ("inside", "contour"):
            whole[name] = float(np.average([row[name] for row in structures.values()], weights=share))
    return whole, structures


def _in_both(pair: ImagePair, transform: Transform, chosen: NDArray[np.bool_], most: int) -> IntArray:
    """Flat indices of at most so many chosen voxels of the fixed image, evenly spread, that the moving image shows."""
    index = _spread(chosen, most)
    shape, grid = pair.fixed.geometry.shape, pair.moving.geometry
    start = pair.fixed.geometry.points(np.stack(np.unravel_index(index, shape), axis=-1).astype(np.float64))
    points = start + transform.field.data.reshape(3, -1)[:, index].T
    there = grid.index(points @ transform.affine[:3, :3].T + transform.affine[:3, 3])
    found = ((there >= -0.5) & (there <= np.array(grid.shape) - 0.5)).all(axis=1)
    if (mask := inside(pair.moving)) is not None:
        x, y, z = np.clip(np.rint(there), 0, np.array(grid.shape) - 1).astype(np.intp).T
        found &= mask[x, y, z]
    return np.asarray(index[found])


def _spread(chosen: NDArray[np.bool_], most: int) -> IntArray:
    """Flat indices of at most so many chosen voxels, evenly spread; those of all of a large image may not fit."""
    flat, step, before = chosen.ravel(), max(1, -(-int(chosen.sum()) // most)) | 1, 0
    found = []
    for start in range(0, flat.size, PART):
        part = np.flatnonzero(flat[start : start + PART])
        found.append(part[-before % step :: step] + start)
        before += part.size
    return np.concatenate(found)


def _limits(image: Volume) -> tuple[float, float]:
    """Intensities of an image that are mapped to [0, 1]."""
    assert image.modality is not None
    within = inside(image)
    low, high = default_window(image.data if within is None else image.data[within], image.modality)
    return low, high if high > low else low + 1


def _predicted(f: Float32Array, w: Float32Array, values: Float32Array) -> Float64Array:
    """Predict fixed intensities from moving ones by a table: the mean of f for each bin of w."""
    bins, asked = (np.clip((v * BINS).astype(np.intp), 0, BINS - 1) for v in (w, values))
    count = np.bincount(bins, minlength=BINS)
    table = np.where(count > 0, np.bincount(bins, f, BINS) / np.maximum(count, 1), f.mean())
    return np.asarray(table[asked])


def _differences(a: NDArray[Any], b: NDArray[Any], part: NDArray[Any], n: int) -> Float64Array:
    """Distance of the histograms of two images in each of n parts: the mean difference of equal quantiles."""
    sorted_a, sorted_b = (values[np.lexsort((values, part))] for values in (a, b))
    ordered = np.sort(part)
    total = np.bincount(ordered, np.abs(sorted_a.astype(np.float64) - sorted_b), n)
    return np.asarray(total / np.maximum(np.bincount(ordered, minlength=n), 1))


def _rim(labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Voxels beside one with another label."""
    rim = np.zeros(labels.shape, dtype=bool)
    for axis in range(3):
        turned, at = np.moveaxis(rim, axis, 0), np.moveaxis(labels, axis, 0)
        other = at[1:] != at[:-1]
        turned[1:] |= other
        turned[:-1] |= other
    return rim


def _edges(image: Float32Array, index: IntArray) -> IntArray:
    """Return the tenth of some voxels at which an image changes most."""
    at = np.stack(np.unravel_index(index, image.shape))
    slope = np.zeros(index.size)
    for axis, n in enumerate(image.shape):
        low, high = at.copy(), at.copy()
        low[axis], high[axis] = np.maximum(at[axis] - 1, 0), np.minimum(at[axis] + 1, n - 1)
        slope += (image[tuple(high)] - image[tuple(low)]) ** 2
    order = np.argsort(-slope, kind="stable")
    return np.asarray(index[order[: max(LEAST_VOXELS, min(MOST_AT_CONTOUR, index.size // 10))]])


def _local(fixed: Float32Array, moving: Float32Array, index: IntArray, *, same: bool) -> Float64Array:
    """Correlation of two images in the patch round each voxel; its square where their contrasts may differ."""
    if not index.size:
        return np.zeros(0)
    step = np.arange(-RADIUS, RADIUS + 1)
    at = np.stack(np.unravel_index(index, fixed.shape))
    x, y, z = (np.clip(a[:, None] + step, 0, n - 1) for a, n in zip(at, fixed.shape, strict=True))
    where = (x[:, :, None, None], y[:, None, :, None], z[:, None, None, :])
    a, b = (image[where].reshape(index.size, -1) for image in (fixed, moving))
    a, b = (v - v.mean(axis=1, keepdims=True) for v in (a, b))
    both, one, other = (np.einsum("ij,ij->i", *p) / step.size**3 for p in ((a, b), (a, a), (b, b)))
    found = (both + (FLOOR if same else 0.0)) / np.sqrt((one + FLOOR) * (other + FLOOR))
    return np.asarray(found if same else found**2, dtype=np.float64)


def at_start(pair: ImagePair, start: Float64Array, fixed: Float32Array, *, same: bool) -> dict[str, float]:
    """Measure where the start puts the bright part of the fixed image; ``fixed`` is its window.

    ``covered`` is the share that lies inside the moving image. ``turned`` is how much more alike both are with the
    moving image mirrored or turned about its middle, negative where it fits best as it is.
    """
    here, there = pair.fixed.geometry, pair.moving.geometry
    known = np.isfinite(fixed) if (mask := inside(pair.fixed)) is None else np.isfinite(fixed) & mask
    if known.any():
        known &= fixed > fixed[known].mean(dtype=np.float64)
    index = _spread(known, MOST_TURNED)
    if not index.size:
        return {"covered": 0.0, "turned": 0.0}
    points = here.points(np.stack(np.unravel_index(index, here.shape), axis=-1).astype(np.float64))
    step = [slice(None, None, max(1, n // 32)) for n in there.shape]
    part = np.nan_to_num(pair.moving.data[tuple(step)])
    bright = np.argwhere(part >= part.mean(dtype=np.float64)) * [s.step for s in step]
    middle = there.points(bright.mean(axis=0))
    away = points @ start[:3, :3].T + start[:3, 3] - middle
    a, window, size = fixed.ravel()[index], _limits(pair.moving), np.array(there.shape)
    covered, found = 0.0, list[float]()
    for sides in product((1.0, -1.0), repeat=3):
        at = np.rint(there.index(away * np.array(sides) + middle)).astype(np.intp)
        shown = np.asarray(((at >= 0) & (at < size)).all(axis=1))
        covered = covered if found else float(shown.mean())
        x, y, z = np.where(shown[:, None], at, 0).T
        b = np.where(shown, np.nan_to_num(apply_window(pair.moving.data[x, y, z], window)), np.float32(0.0))
        b = b if same else _predicted(a, b, b)
        found.append(float(np.corrcoef(a, b)[0, 1]) if min(a.std(), b.std()) > TINY else 0.0)
    return {"covered": covered, "turned": max(found[1:]) - found[0]}


SHIPPED = "likeness.json"
Word = Literal["alike", "doubtful", "not the same anatomy"]
DOUBTFUL, OTHER = -1.0, -2.0  # scores below which a result is doubtful, and not one of the same anatomy
SIDE: Mapping[str, int] = {
    "correlation": 1, "inside": -1, "contour": 1, "blocks": -1, "edges": 1, "moved": -1, "turned": -1, "covered": 1,
}  # fmt: skip
"""Numbers of a whole pair; 1 where images are alike if the number is high, -1 where they are if it is low."""
LEAST_SD: Mapping[str, float] = {
    "correlation": 0.03, "inside": 0.05, "contour": 0.03, "blocks": 0.05, "edges": 0.03, "moved": 0.02, "turned": 0.05,
    "covered": 0.03,
}  # fmt: skip
"""Least standard deviation of each number among good results: what differs by less is alike."""
OF_STRUCTURES = ("inside", "contour")
BEST, WORST = 1.5, -8.0  # limits of one number's share in a score, in standard deviations of good results
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""Shares of good results at which a reference holds quantiles, the least alike first."""
FEW = 12  # good results of a kind that its limits need
DOUBTFUL_SHARE, DOUBTFUL_IN_SET, OTHER_SHARE = 0.07, 0.12, 0.005
"""Shares of good results below the limits: of all, of any set with enough of them, and of all that fail."""
LEAST_IN_SET = 5
LEAST_TURNED = 0.05  # gain of correlation at which it is named that the moving image may be mirrored or turned
NOTED = 0.9  # a number is named where it is less alike than in this share of good results
MOST_NAMED = 3
Scale = tuple[Number, ...]


class Combination(RecordPart):
    """Weights of numbers, and the sums at which a result is doubtful and not of the same anatomy."""

    weights: dict[Text, Number]
    doubtful: Number
    other: Number

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.other >= self.doubtful:
            raise ValueError("other must be below doubtful")
        return self


class Kind(RecordPart):
    """Quantiles of good results for images of one kind, by number; and how numbers become a score."""

    pairs: Count
    quantiles: dict[Text, Scale]
    structures: dict[Text, Scale]
    with_labels: Combination
    without_labels: Combination
    of_structure: Combination

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for scales, needed in (
            (self.quantiles, {*SIDE, *self.with_labels.weights, *self.without_labels.weights}),
            (self.structures, {*OF_STRUCTURES, *self.of_structure.weights}),
        ):
            for name in needed:
                scale = scales.get(name, ())
                if len(scale) != len(SHARES) or any(b < a for a, b in pairwise(scale[:: SIDE[name]])):
                    raise ValueError(f"{name} needs {len(SHARES)} ordered quantiles")
        return self


class Reference(RecordPart):
    """Numbers of good registrations, by the kind of their images."""

    name: Text
    kinds: dict[BankName, Kind]


class StructureLikeness(RecordPart):
    """Likeness inside and at the contour of one warped structure."""

    label: Whole
    name: Text
    word: Word
    score: Number
    inside: Number
    contour: Number


class Likeness(RecordPart):
    """Likeness of a result: its score among good results, and what it is made of."""

    word: Word  # `alike`, `doubtful` or `not the same anatomy`
    # rank within a list, the higher the more alike; -1 and -2 are the limits of the words. It is no Dice.
    score: Number
    reasons: tuple[Text, ...]  # numbers in words, with their place among good results
    numbers: dict[Text, Number]  # what was measured on the pair
    structures: tuple[StructureLikeness, ...] = ()  # the same for each warped structure
    reference: Text  # name of the reference, and which of its kinds of images
    kind: BankName

    @property
    def text(self) -> str:
        """Word and numbers in one line."""
        return f"{self.word}: {'; '.join(self.reasons)}"


@cache
def shipped_reference() -> Reference:
    """Return the reference of the package."""
    text = resources.files(__package__).joinpath(SHIPPED).read_text(encoding="utf-8")
    return checked(Reference, parse_json(text), Path(SHIPPED))


def read_reference(path: str | Path) -> Reference:
    """Read a reference of a department: E101, E102 or E178 where it is none."""
    return read_record(Reference, Path(path))


def own_reference(results: Sequence[Likeness], name: str) -> Reference:
    """Return a reference of one's own good results: their quantiles and limits, with the weights of the package.

    A kind of images with fewer than `FEW` results is left out, so that it keeps the numbers of the package; E134 where
    all kinds have fewer.
    """
    kinds, shipped = {}, shipped_reference().kinds
    for kind, known in shipped.items():
        rows = [one for one in results if one.kind == kind]
        if len(rows) < FEW:
            continue
        parts = [vars(part) for one in rows for part in one.structures]
        whole, structures = (
            {
                n: scale(found, n) if len(found := [r[n] for r in of if n in r]) >= FEW else old
                for n, old in olds.items()
            }
            for of, olds in (([one.numbers for one in rows], known.quantiles), (parts, known.structures))
        )

        def limited(made: Combination, of: Sequence[Mapping[str, float]], scales: Mapping[str, Scale]) -> Combination:
            totals = [total_of(row, scales, made.weights) for row in of if all(n in row for n in made.weights)]
            return combination(made.weights, [np.array(totals)]) if len(totals) >= FEW else made

        numbers = [one.numbers for one in rows]
        kinds[kind] = Kind(
            pairs=len(rows), quantiles=whole, structures=structures,
            with_labels=limited(known.with_labels, numbers, whole),
            without_labels=limited(known.without_labels, numbers, whole),
            of_structure=limited(known.of_structure, parts, structures),
        )  # fmt: skip
    if not kinds:
        message = f"{len(results)} good results are too few for a reference: {FEW} of one kind of images are needed"
        raise RegweaveError("E134", message, "register and grade more pairs")
    return Reference(name=name, kinds=kinds)


def scale(values: Sequence[float], name: str) -> Scale:
    """Return quantiles of good results, the least alike first."""
    shares = SHARES if SIDE[name] > 0 else [1 - share for share in SHARES]
    return tuple(float(v) for v in np.round(np.quantile(values, shares), 4))


def combination(weights: Mapping[str, float], totals: Sequence[Float64Array]) -> Combination:
    """Return weights with limits by the totals of good results, by set: few are doubtful, hardly any is another."""
    every = np.concatenate(totals)
    of_sets = [np.quantile(one, DOUBTFUL_IN_SET) for one in totals if len(one) >= LEAST_IN_SET]
    low = float(min([np.quantile(every, DOUBTFUL_SHARE), *of_sets]))
    other = min(float(np.quantile(every, OTHER_SHARE)), low - 0.5) - 0.3
    return Combination(weights=dict(weights), doubtful=round(low, 3), other=round(other, 3))


def likeness_of(
    pair: ImagePair, transform: Transform, warped: Volume, labels: LabelMap | None, kind: BankName,
    reference: Reference | None = None,
) -> Likeness:  # fmt: skip
    """Measure a result in memory and place it among good ones; ``labels`` are the warped ones, ``kind`` is the bank."""
    whole, structures = measure(pair, transform, warped, labels, same=kind != "multi")
    return place(whole, structures, {} if labels is None else labels.names, kind, reference)


def place(
    whole: Row, structures: Mapping[int, Row], names: Mapping[int, str], kind: BankName,
    reference: Reference | None = None,
) -> Likeness:  # fmt: skip
    """Place measured numbers among those of good results."""
    shipped = shipped_reference()
    reference = shipped if reference is None or kind not in reference.kinds else reference
    known = reference.kinds[kind]
    score = score_of(whole, known.quantiles, known.with_labels if structures else known.without_labels)
    rows = []
    for label, row in structures.items():
        found = score_of(row, known.structures, known.of_structure)
        rows.append(StructureLikeness(
            label=label, name=names.get(label, str(label)), word=word_of(found), score=found,
            inside=row["inside"], contour=row["contour"],
        ))  # fmt: skip
    return Likeness(
        word=word_of(score), score=score, reasons=_reasons(whole, rows, known), numbers=dict(whole),
        structures=tuple(rows), reference=reference.name, kind=kind,
    )  # fmt: skip


def word_of(score: float) -> Word:
    """Return the word for a score."""
    return "alike" if score >= DOUBTFUL else "doubtful" if score >= OTHER else "not the same anatomy"


def score_of(numbers: Mapping[str, float], scales: Mapping[str, Scale], made: Combination) -> float:
    """Return the weighted sum of standard numbers, on the scale on which -1 and -2 are the limits."""
    return OTHER + (total_of(numbers, scales, made.weights) - made.other) / (made.doubtful - made.other)


def total_of(numbers: Mapping[str, float], scales: Mapping[str, Scale], weights: Mapping[str, float]) -> float:
    """Return the weighted sum of standard numbers."""
    return sum(
        weight * (standard(numbers[name], scales[name], name) if name in numbers else WORST)
        for name, weight in weights.items()
    )


def standard(value: float, scale: Sequence[float], name: str) -> float:
    """Return the distance of a number from the median of good results in standard deviations of their worse half."""
    middle, tenth = scale[SHARES.index(0.5)], scale[SHARES.index(0.1)]
    sd = max(abs(middle - tenth) / 1.2816, LEAST_SD[name])
    return float(np.clip((value - middle) * SIDE[name] / sd, WORST, BEST))


def worse_than(value: float, scale: Sequence[float], name: str) -> float:
    """Return the share of good results that are more alike."""
    way = SIDE[name]
    return round(1 - float(np.interp(value * way, np.asarray(scale) * way, SHARES)), 2)


def _reasons(whole: Mapping[str, float], rows: Sequence[StructureLikeness], known: Kind) -> tuple[str, ...]:
    """Name the correlation, then what is less alike than in most good results."""
    found = [f"images correlate {whole['correlation']:.2f}"]
    share = worse_than(whole["correlation"], known.quantiles["correlation"], "correlation")
    if share >= NOTED:
        found[0] += f", less than in {share:.0%} of good results"
    if (share := worse_than(whole.get("moved", 0.0), known.quantiles["moved"], "moved")) >= NOTED:
        found.append(
            f"the displacement after the start reaches {whole['moved']:.0%} of the image, more than in {share:.0%} "
            "of good results"
        )
    share = worse_than(whole.get("turned", -1.0), known.quantiles["turned"], "turned") if "turned" in whole else 0.0
    if share >= NOTED and whole["turned"] > LEAST_TURNED:
        found.append(f"mirrored or turned the moving image correlates better, by {whole['turned']:.2f} at the start")
    noted = []
    for row in rows:
        for name, words in (
            ("inside", "inside {} intensities differ more than in {:.0%}"),
            ("contour", "at the contour of {} the images correlate less than in {:.0%}"),
        ):
            share = worse_than(getattr(row, name), known.structures[name], name)
            noted += [(-share, row.score, words.format(row.name, share))] if share >= NOTED else []
    for name, words in (
        ("blocks", "intensities of places differ more than in {:.0%}"),
        ("edges", "the images correlate at edges less than in {:.0%}"),
    ):
        share = worse_than(whole[name], known.quantiles[name], name) if name in whole and not rows else 0.0
        noted += [(-share, 0.0, words.format(share))] if share >= NOTED else []
    return (*found, *(f"{words} of good results" for *_, words in sorted(noted)[:MOST_NAMED]))
