"""Measurements of one registration: overlap of structures, error of the inverse, evidence of the last discrete step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.config.settings import Settings
from regweave.measures.body import body_mask
from regweave.measures.deformation import InverseError
from regweave.measures.scores import PairScore, score_labels
from regweave.registration.align import Step
from regweave.spatial.deformation import Inversion, inverse_errors_mm, summary_mm
from regweave.spatial.intensity import inside
from regweave.spatial.warp import warp_labels
from regweave.types import Field, Geometry, Image, ImagePair, LabelMap, NodeEvidence, Transform, WeightTable

VOLUME_CHANGE_LIMIT = 0.5


def score_of(pair: ImagePair, warped: LabelMap | None) -> PairScore:
    """Score the structures of both label maps, where there are both: as loaded, after the start, and warped."""
    if pair.fixed_labels is None or pair.moving_labels is None or warped is None:
        return PairScore()
    start = Transform(pair.initial_field or Field.zero(pair.fixed.geometry), pair.initial)
    moved = pair.initial_field is not None or not np.array_equal(pair.initial, np.eye(4))
    loaded = warp_labels(pair.moving_labels, Transform(Field.zero(pair.fixed.geometry))) if moved else None
    return score_labels(pair.fixed_labels, pair.moving_labels, warp_labels(pair.moving_labels, start), warped, loaded)


def residual_inside(pair: ImagePair, inversion: Inversion) -> InverseError:
    """Return what an inversion left over inside the moving body."""
    return InverseError.of_residual(inversion.residual_mm, _body(pair.moving))


def inverse_measures(
    pair: ImagePair, forward: Transform, inverse: Transform, left: InverseError, kernels: Any
) -> tuple[InverseError, dict[str, float]]:
    """Return the error of an inverse inside the body, and there and back over all voxels."""
    errors_mm = inverse_errors_mm(forward, inverse, kernels=kernels)
    spacing_mm = float(pair.fixed.geometry.spacing_mm.max())
    return left.with_round_trip(errors_mm, _body(pair.fixed), spacing_mm), summary_mm(errors_mm)


def _body(image: Image) -> NDArray[np.bool_]:
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
    _warn_outside_masks(pair)
    if warped is None or pair.moving_labels is None:
        return
    voxel = [abs(np.linalg.det(v.geometry.affine[:3, :3])) for v in (pair.moving_labels, warped)]
    for value in pair.moving_labels.values():
        before, after = (
            float((m.data == value).sum()) * v for m, v in zip((pair.moving_labels, warped), voxel, strict=True)
        )
        name = pair.moving_labels.name(value)
        if after == 0:
            notices.warn(
                f"W203: label {name} vanished from the warped labels; it lies outside the fixed image or is thin"
            )
        elif abs(after - before) > VOLUME_CHANGE_LIMIT * before:
            notices.warn(f"W203: label {name} changed its volume by {after / before - 1:+.0%}; look at it")


def _warn_outside_masks(pair: ImagePair) -> None:
    """Warn of structures that are outside a mask in part: they are scored whole, though nothing guides them there."""
    for name, image in (("fixed", pair.fixed), ("moving", pair.moving)):
        mask, labels = inside(image), image.labels
        if mask is None or labels is None:
            continue
        shares = {v: float((~mask)[labels.data == v].mean()) for v in labels.values()}
        outside = [f"{labels.name(v)} {share:.0%}" for v, share in shares.items() if share > 0]
        if outside:
            notices.warn(
                f"W214: structures lie outside the {name} mask in part ({', '.join(outside)}); they are scored whole, "
                "and outside the field only follows its surroundings"
            )


class NodeRecorder:
    """Callback of `align` that measures the deciding metric and the confidence of each node in the last step.

    Another callback gets every step too. The settings are those of the levels, and name the last step.
    """

    def __init__(self, weights: WeightTable, schedule: Settings, then: Callable[[Step], None]) -> None:
        self._weights, self._then = weights, then
        self._members = tuple(member.name for member in schedule.bank)
        self._last = (len(schedule.levels) - 1, schedule.levels[-1].steps - 1) if schedule.levels else None
        self.evidence: NodeEvidence | None = None

    def __call__(self, step: Step) -> None:
        """Take a step."""
        if (step.level, step.step) == self._last:
            self.evidence = node_evidence(step, self._weights, self._members)
        self._then(step)


def node_evidence(step: Step, weights: WeightTable, members: tuple[str, ...]) -> NodeEvidence:
    """Measure a step of the finest level; ``members`` are those that it used, in the order of its costs."""
    shares, matrix = step.terms.shares.astype(np.float64), weights.select(members).matrix
    w = shares @ matrix.T  # (N, M) or (N, L, M)
    per_label = w[:, None, :] if w.ndim == 2 else w
    costs = (
        np.moveaxis(per_label, -1, 0) * step.terms.costs
    )  # share of each member in the unaries of eq. (1), (M, N, L)
    unary = np.partition(costs.sum(axis=0), 1, axis=1) if costs.shape[2] > 1 else None
    confidence = np.zeros(costs.shape[1]) if unary is None else unary[:, 1] - unary[:, 0]
    nodes, place = step.around.grid.nodes, np.eye(4)
    place[:3, :3] = np.diag(step.around.grid.spacing)
    place[:3, 3] = step.around.grid.origin
    return NodeEvidence(
        geometry=Geometry(nodes, step.scene.geometry.affine @ place),
        members=members,
        influence=costs.std(axis=2).reshape(-1, *nodes).astype(np.float32),
        confidence=confidence.reshape(nodes).astype(np.float32),
    )
