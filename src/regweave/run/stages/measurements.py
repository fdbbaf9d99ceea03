"""Measurements of one registration: overlap of structures, error of the inverse, what a user should look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave import notices
from regweave.measures.body import body_mask
from regweave.measures.deformation import InverseError
from regweave.measures.scores import PairScore, score_labels
from regweave.spatial.intensity import inside
from regweave.spatial.invert import Inversion, inverse_errors_mm, summary_mm
from regweave.spatial.warp import warp_labels
from regweave.types import Field, Image, ImagePair, LabelMap, Transform

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


def look_out(
    pair: ImagePair, numbers: Mapping[str, float], inverse_error: InverseError, warped: LabelMap | None
) -> None:
    """Warn of what a user should look at."""
    if numbers["folding_fraction"] > 0:
        share = f"{100 * numbers['folding_fraction']:.2g}%"  # one voxel of a large image is no 0.00%
        notices.warn(f"W201: the field folds in {share} of the voxels; do not use it there")
    if inverse_error.notable:
        mind = "contours and images are not affected; mind it if you use inverse.h5 there"
        notices.warn(f"W202: {inverse_error.words()}; {mind}")
    _look_outside(pair)
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


def _look_outside(pair: ImagePair) -> None:
    """Warn of structures that lie outside a mask in part: they are scored whole, though nothing guides them there."""
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
