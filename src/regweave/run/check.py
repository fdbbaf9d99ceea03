"""Measurements of a registration, and its check without labels of the fixed image: one run back, mild repetitions.

Where runs with slightly other weights and smoothness differ, or there and back does not return, the images determine
the transform badly. An error that all runs share is invisible here: only the likeness of the images can show it.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io.disk.records import Count, Measured, RecordPart, Text, Whole
from regweave.io.geometry import affine_of
from regweave.measures.scores import InverseError, PairScore, dice, score_labels
from regweave.registration.align import Step
from regweave.spatial.voxels import body_mask, inside
from regweave.spatial.warp import inverse_errors_mm, summary_mm, warp_image, warp_labels
from regweave.types import Field, Geometry, Image, ImagePair, LabelMap, NodeEvidence, Transform, Volume, WeightTable
from regweave.types.images import Float32Array

REPETITIONS = 3
SEED = 20_240_501
SPREAD = 0.4
"""Standard deviation of the logarithm of the factor of each weight."""
SMOOTHER = 1.5
"""Smoothness of the repetitions: times this, divided by this, and unchanged."""
QUANTILE = 0.9
"""Share of errors that should lie below their limit; what was measured is in `benchmark/results/check.json`."""
UNKNOWN = -1.0
MOST_MM = 1000.0  # no limit is larger
FACTORS = (0.931, 0.591, 0.174, 0.15)
"""Logarithm of the limit in voxels: a constant, and factors of the `features`; fitted by `benchmark/check.py`."""
FLOOR = 0.02
SMOOTH, WINDOW = 1.0, 5
"""Voxels over which the features are smoothed, and edge of the window of the local correlation."""


class StructureCheck(RecordPart):
    """Check of one structure of the moving labels; NaN where there is nothing to measure.

    ``there_and_back`` is the Dice of the labels warped there and back with the labels, ``agreement`` the mean Dice of
    the repetitions with the result, ``limit_mm`` the mean limit of the error inside the warped structure.
    """

    label: Whole
    name: Text
    there_and_back: Measured
    agreement: Measured
    limit_mm: Measured

    @property
    def doubt(self) -> float:
        """Rank of structures within a pair: the larger, the worse; NaN counts as the worst."""
        return 2.0 - float(np.nan_to_num(self.there_and_back) + np.nan_to_num(self.agreement))


class Check(RecordPart):
    """Check of a registration, as ``result.json`` holds it.

    ``apart_mm`` is the mean distance between the repetitions and the result, ``back_mm`` the mean error there and back,
    ``limit_mm`` the mean limit, all inside the fixed body.
    """

    repetitions: Count
    apart_mm: Measured
    back_mm: Measured
    limit_mm: Measured
    quantile: Measured = QUANTILE
    structures: tuple[StructureCheck, ...]

    def words(self) -> str:
        """Describe the check in one line."""
        apart = f"{self.repetitions} repetitions differ by {self.apart_mm:.2g} mm"
        back = f"there and back by {self.back_mm:.2g} mm"
        return f"{apart}, {back}; limit of nine errors in ten: {self.limit_mm:.2g} mm on average"


def perturbed(settings: Settings, weights: WeightTable, repetition: int) -> tuple[Settings, WeightTable]:
    """Return settings and weights of a repetition: half of the members that compare images, other weights, smoothness.

    Each stage keeps its share of the weight, so that only the mixture of the members changes.
    """
    rng = np.random.default_rng((SEED, repetition))
    matrix = weights.matrix.copy()
    members = {row: m for m, row in zip(settings.bank, weights.rows([m.name for m in settings.bank]), strict=True)}
    for stage, voxelwise in itertools.product(("levels", "refine", "both"), (False, True)):
        used = [
            r for r, m in members.items() if (m.stage, m.penalty is not None) == (stage, voxelwise) and matrix[r].any()
        ]
        images = [r for r in used if members[r].source == "image"]
        dropped = rng.permutation(images)[: len(images) // 2].tolist()
        factors = np.exp(rng.normal(0.0, SPREAD, len(weights.members)))
        factors[dropped] = 0.0
        before = matrix[used].sum(axis=0)
        matrix[used] *= factors[used, None]
        after = matrix[used].sum(axis=0)
        matrix[used] *= np.divide(before, after, out=np.ones_like(before), where=after > 0)
    factor = SMOOTHER ** ((1, -1, 0)[repetition % 3])
    refine = settings.refine
    smoother = {n: None if (v := getattr(refine, n)) is None else v * factor for n in _SMOOTHNESS}
    changed = settings.model_copy(update={"refine": refine.model_copy(update=smoother)})
    return changed, replace(weights, matrix=matrix, pairwise=weights.pairwise * factor)


_SMOOTHNESS = ("smoothness", "smoothness_ct", "smoothness_multi", "finest_smoothness")


class Repetitions:
    """Distance of repeated transforms from a result, and overlap of their warped labels with those of the result."""

    def __init__(self, transform: Transform, labels: LabelMap | None, warped: LabelMap | None) -> None:
        self._transform, self._labels, self._warped = transform, labels, warped
        self._values = [] if labels is None else labels.values()
        self._squares = np.zeros(transform.field.geometry.shape, dtype=np.float32)
        self._overlaps: list[dict[int, float]] = []
        self.count = 0

    def add(self, other: Transform) -> None:
        """Take the transform of a repetition, from the same start."""
        turn = self._transform.affine[:3, :3].astype(np.float32)
        for slab in range(self._squares.shape[0]):
            apart = turn @ (other.field.data[:, slab] - self._transform.field.data[:, slab]).reshape(3, -1)
            self._squares[slab] += (apart**2).sum(axis=0).reshape(self._squares.shape[1:])
        if self._labels is not None and self._warped is not None:
            self._overlaps.append(dice(warp_labels(self._labels, other).data, self._warped.data, self._values))
        self.count += 1

    def apart_mm(self) -> Float32Array:
        """Root of the mean squared distance at each fixed voxel."""
        return np.sqrt(self._squares / max(self.count, 1), dtype=np.float32)

    def agreement(self) -> dict[int, float]:
        """Mean overlap by label."""
        return {v: float(np.mean([of[v] for of in self._overlaps])) for v in self._values if self._overlaps}


def features(
    apart: Float32Array, back: Float32Array, fixed: Float32Array, warped: Float32Array, voxel_mm: float
) -> Float32Array:
    """Return what the limit of the error follows from at each voxel, as logarithms, (3, X, Y, Z).

    They are the distance between repetitions and the error there and back, in voxels, and one minus the local
    correlation of the images. NaN where there and back leaves the moving image everywhere around.
    """
    found = np.empty((3, *apart.shape), dtype=np.float32)
    for n, distance in enumerate((apart, back)):
        known = np.isfinite(distance)
        weight = ndimage.gaussian_filter(known.astype(np.float32), SMOOTH)
        mean = ndimage.gaussian_filter(np.where(known, distance, np.float32(0.0)), SMOOTH)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[n] = np.log(np.where(weight > 1e-3, mean / weight, np.nan) / voxel_mm + FLOOR)
    alike = ndimage.gaussian_filter(_local_correlation(fixed, warped), SMOOTH)
    found[2] = np.log(1.05 - np.clip(alike, -1.0, 1.0))
    return found


def _local_correlation(a: Float32Array, b: Float32Array) -> Float32Array:
    def mean(values: Float32Array) -> Float32Array:
        return np.asarray(ndimage.uniform_filter(values, WINDOW), dtype=np.float32)

    # Each image is divided by its spread: squares of very large and very small intensities are no float32.
    scales = [float(of.std(dtype=np.float64)) or 1.0 for of in (a, b)]
    a, b = (((of - of.mean(dtype=np.float64)) / s).astype(np.float32) for of, s in zip((a, b), scales, strict=True))
    floor, other = np.float32(1e-3), np.float32(np.clip(1e-3 * (scales[0] / scales[1]) ** 2, 1e-9, 1e9))
    ma, mb = mean(a), mean(b)
    both = mean(a * b) - ma * mb
    spread = (np.maximum(mean(a * a) - ma * ma, 0) + floor) * (np.maximum(mean(b * b) - mb * mb, 0) + other)
    return np.asarray(both / np.sqrt(spread), dtype=np.float32)


def limits_mm(found: Float32Array, voxel_mm: float) -> Float32Array:
    """Return the limit of the error from its `features`; `UNKNOWN` where one of them is."""
    constant, *factors = FACTORS
    log = sum((np.float32(f) * of for f, of in zip(factors, found, strict=True)), start=np.float32(constant))
    limit = np.maximum(np.exp(log) - np.float32(FLOOR), 0) * np.float32(voxel_mm)
    return np.where(np.isfinite(limit), limit, np.float32(UNKNOWN)).astype(np.float32)


def summarise(
    pair: ImagePair, transform: Transform, image: Volume, warped: LabelMap | None, repeated: Repetitions,
    back: Transform,
) -> tuple[Check, Volume]:  # fmt: skip
    """Return the check of a result, and the map of its limits in mm on the fixed grid.

    ``image`` and ``warped`` are the moving image and labels on the fixed grid. ``back`` takes moving points to fixed
    points, found by a run of its own.
    """
    back_mm, apart = inverse_errors_mm(transform, back), repeated.apart_mm()
    voxel_mm = float(pair.fixed.geometry.spacing_mm.max())
    limit = limits_mm(features(apart, back_mm, pair.fixed.data, image.data, voxel_mm), voxel_mm)
    body = body_mask(pair.fixed, pair.fixed.labels)
    rows, labels = [], pair.moving.labels
    if labels is not None and warped is not None:
        values, agreement = labels.values(), repeated.agreement()
        returned = dice(warp_labels(warped, back).data, labels.data, values)
        for v in values:
            mean = _mean(limit[warped.data == v])
            rows.append(StructureCheck(
                label=v, name=labels.name(v), there_and_back=returned[v], agreement=agreement[v], limit_mm=mean
            ))  # fmt: skip
    rows.sort(key=lambda row: -row.doubt)
    check = Check(
        repetitions=repeated.count, apart_mm=_mean(apart[body]), back_mm=_mean(back_mm[body]),
        limit_mm=_mean(limit[body]), structures=tuple(rows),
    )  # fmt: skip
    return check, Volume(limit, pair.fixed.geometry)


def require_limits(image: Volume, path: str | Path) -> None:
    """Raise E122 for an image that is no map of limits: values that no limit has, or whole numbers as labels have."""
    low, high = float(image.data.min()), float(image.data.max())
    if ((image.data < 0) & (image.data != UNKNOWN)).any() or high > MOST_MM or (image.data % 1 == 0).all():
        message = f"'{path}' is no map of limits: it holds values from {low:g} to {high:g}"
        raise RegweaveError("E122", message, "give error_limit.nii.gz of the registration, made with --check")


def range_within(values: Volume, limit: Volume) -> tuple[Volume, Volume]:
    """Return the least and the largest value that each voxel may have, if it lies up to its limit from where it is.

    The search is in boxes around each voxel, which hold the ball of that radius. Where the limit is unknown, or lies
    beyond the images that were registered, any value of the whole volume may be there.
    """
    here = Transform(Field.zero(values.geometry))
    radius = warp_image(limit, here, fill=UNKNOWN).data
    # Interpolation mixes unknown voxels with known ones.
    unknown = warp_image(Volume((limit.data < 0).astype(np.float32), limit.geometry), here, fill=1.0).data > 0
    low, high = np.full_like(values.data, values.data.min()), np.full_like(values.data, values.data.max())
    reach = np.ceil(radius[..., None] / values.geometry.spacing_mm - 1e-6).astype(int)
    reach[unknown] = -1
    for n in np.unique(reach[~unknown].reshape(-1, 3), axis=0):
        at = (reach == n).all(axis=-1)
        size = tuple(2 * n + 1)
        low[at] = ndimage.minimum_filter(values.data, size)[at]
        high[at] = ndimage.maximum_filter(values.data, size)[at]
    return Volume(low, values.geometry, values.modality), Volume(high, values.geometry, values.modality)


def _mean(values: Float32Array) -> float:
    known = values[np.isfinite(values) & (values >= 0)]
    return float(known.mean(dtype=np.float64)) if known.size else float("nan")


# Measurements: overlap of structures, error of the inverse, evidence of the last discrete step

VOLUME_CHANGE_LIMIT = 0.5


def score_of(pair: ImagePair, warped: LabelMap | None) -> PairScore:
    """Score the structures of both label maps, where there are both: as loaded, after the start, and warped."""
    if pair.fixed.labels is None or pair.moving.labels is None or warped is None:
        return PairScore()
    start = Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)
    moved = pair.initial_field is not None or not np.array_equal(pair.initial, np.eye(4))
    loaded = warp_labels(pair.moving.labels, Transform(Field.zero(pair.fixed.geometry))) if moved else None
    return score_labels(pair.fixed.labels, pair.moving.labels, warp_labels(pair.moving.labels, start), warped, loaded)


def inverse_measures(
    pair: ImagePair, forward: Transform, inverse: Transform, left: InverseError, kernels: Any
) -> tuple[InverseError, dict[str, float]]:
    """Return the error of an inverse inside the body, and there and back over all voxels."""
    errors_mm = inverse_errors_mm(forward, inverse, kernels=kernels)
    spacing_mm = float(pair.fixed.geometry.spacing_mm.max())
    return left.with_round_trip(errors_mm, counted_body(pair.fixed), spacing_mm), summary_mm(errors_mm)


def counted_body(image: Image) -> NDArray[np.bool_]:
    """Voxels of the body that the mask lets count; the whole mask where it shows none of the body."""
    body, mask = body_mask(image, image.labels), inside(image)
    return body if mask is None else (body & mask if (body & mask).any() else mask)


def warn_of_doubts(
    pair: ImagePair, numbers: Mapping[str, float], inverse_error: InverseError, warped: LabelMap | None
) -> None:
    """Warn of folds, of an inexact inverse, and of structures that vanish, change or are outside a mask."""
    if numbers["folding_fraction"] > 0:
        share = f"{100 * numbers['folding_fraction']:.2g}%"  # one voxel of a large image is no 0.00%
        notices.warn(f"W201: the field folds in {share} of the voxels; do not use it there")
    if inverse_error.notable:
        mind = "contours and images are not affected; mind it if you use inverse.h5 there"
        notices.warn(f"W202: {inverse_error.words()}; {mind}")
    for name, image in (("fixed", pair.fixed), ("moving", pair.moving)):
        mask, labels = inside(image), image.labels
        if mask is None or labels is None:
            continue
        # They are scored whole, though nothing guides them there.
        shares = {v: float((~mask)[labels.data == v].mean()) for v in labels.values()}
        outside = [f"{labels.name(v)} {share:.0%}" for v, share in shares.items() if share > 0]
        if outside:
            notices.warn(
                f"W214: structures lie outside the {name} mask in part ({', '.join(outside)}); they are scored whole, "
                "and outside the field only follows its surroundings"
            )
    if warped is None or pair.moving.labels is None:
        return
    maps = [(m, abs(np.linalg.det(m.geometry.affine[:3, :3]))) for m in (pair.moving.labels, warped)]
    for value in pair.moving.labels.values():
        before, after = (float((m.data == value).sum()) * voxel for m, voxel in maps)
        name = pair.moving.labels.name(value)
        if after == 0:
            what = "it lies outside the fixed image or is thin"
            notices.warn(f"W203: label {name} vanished from the warped labels; {what}")
        elif abs(after - before) > VOLUME_CHANGE_LIMIT * before:
            notices.warn(f"W203: label {name} changed its volume by {after / before - 1:+.0%}; look at it")


def node_evidence(step: Step, weights: WeightTable, members: tuple[str, ...]) -> NodeEvidence:
    """Measure a step of the finest level; ``members`` are those that it used, in the order of its costs."""
    shares, matrix = step.terms.shares.astype(np.float64), weights.select(members).matrix
    w = shares @ matrix.T  # (N, M) or (N, L, M)
    per_label = w[:, None, :] if w.ndim == 2 else w
    costs = np.moveaxis(per_label, -1, 0) * step.terms.costs  # shares of members in the unaries of eq. (1), (M, N, L)
    unary = np.partition(costs.sum(axis=0), 1, axis=1) if costs.shape[2] > 1 else None
    confidence = np.zeros(costs.shape[1]) if unary is None else unary[:, 1] - unary[:, 0]
    grid = step.around.grid
    place = affine_of(np.diag(grid.spacing), grid.origin)
    influence = costs.std(axis=2).reshape(-1, *grid.nodes).astype(np.float32)
    geometry = Geometry(grid.nodes, step.scene.geometry.affine @ place)
    return NodeEvidence(geometry, members, influence, confidence.reshape(grid.nodes).astype(np.float32))
