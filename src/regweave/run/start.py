"""Initial alignment of a pair: the headers, a method, or a transform of any source."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave import io
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import exists
from regweave.io.points import read_guides
from regweave.io.transforms.files import require_direction
from regweave.measures.landmarks import LandmarkPairs
from regweave.model.model import Model
from regweave.registration.initial import METHODS, STRUCTURES, initial_affine
from regweave.registration.landmarks import PointGuides
from regweave.run.read import Inputs
from regweave.run.resolve import predictor_of
from regweave.types import Field, ImagePair

REJECTED = ("W210", "W216")  # warnings that a start was rejected
MOST_MM = 1000.0  # largest accuracy of landmarks


def require_start(init: Any, model: Model | None, *, guided: bool = False) -> None:
    """Refuse a start that is neither a method nor a file, or that needs structures: E187, before anything is read."""
    if not isinstance(init, str | Path):
        return
    if str(init) == STRUCTURES and predictor_of(model) is None and not guided:
        message = f"the start '{STRUCTURES}' needs a model whose predictor segments images, or labels that guide"
        raise UsageError("E187", message, "give --model with a predictor, --guide, or --init affine")
    _require_known(init)


def _require_known(init: str | Path) -> None:
    if str(init) not in METHODS and not exists(init):
        near = difflib.get_close_matches(str(init)[:100], METHODS, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise UsageError("E187", f"unknown start '{init}'", f"{guess}use {', '.join(METHODS)}, or a transform file")


def start_pair(inputs: Inputs, init: Any, *, follow_links: bool = False, alone: bool = False) -> ImagePair:
    """Bring the pair to its start: the headers, moments, a rigid or affine fit, or a transform of any source.

    With ``alone`` the fit is the whole result.
    """
    affine, field, fixed = np.eye(4), None, inputs.fixed.geometry
    named = isinstance(init, str | Path)
    if named:
        _require_known(init)
    if named and str(init) in METHODS:
        affine = initial_affine(inputs.fixed, inputs.moving, str(init), alone=alone)
    else:
        transform = io.read_transform(init, fixed, follow_links=follow_links)
        subject = str(init) if named else "the start"
        if transform.ends is not None:
            require_direction(transform.ends, "fixed_to_moving", subject)
        io.check_same_grid(fixed, transform.field.geometry, subject)
        affine, field = transform.affine, Field(transform.field.data, fixed)
        if np.linalg.det(affine[:3, :3]) < 0:
            message = f"{subject} mirrors the patient, left to right or along another axis"
            raise RegweaveError("E115", message, "give a start without a mirror, in the axes of ITK")
    io.check_overlap(fixed, inputs.moving.geometry, affine)
    return ImagePair(inputs.fixed, inputs.moving, affine, None if field is None or not field.data.any() else field)


def require_accuracy(accuracy_mm: Any) -> None:
    """Refuse an accuracy of landmarks that is no length above 0 and up to `MOST_MM`: E116."""
    number = isinstance(accuracy_mm, int | float) and not isinstance(accuracy_mm, bool)
    if accuracy_mm is not None and not (number and 0 < accuracy_mm <= MOST_MM):
        message = f"guide_points is {accuracy_mm!r}, needed is an accuracy in mm above 0 and up to {MOST_MM:g}"
        raise UsageError("E116", message, "give the standard deviation of their places, such as 1")


def point_guides(
    landmarks: LandmarkPairs, source: Any, accuracy_mm: float, pair: ImagePair
) -> tuple[PointGuides, LandmarkPairs]:
    """Return the landmarks that guide a pair, and all of them with their parts; a .csv ``source`` may name these.

    Raises E116 where no landmark can guide, or the file does not name them as it should.
    """
    asked = read_guides(source) if isinstance(source, str | Path) else None
    at = np.flatnonzero([True] * len(landmarks.fixed) if asked is None else asked)
    names = [landmarks.named[n] for n in at]
    guides, used = PointGuides.of(landmarks.fixed[at], landmarks.moving[at], names, accuracy_mm, pair)
    parts = np.isin(np.arange(len(landmarks.fixed)), at[used])
    return guides, replace(landmarks, guides=parts.tolist())


def used_start(init: Any, pair: ImagePair, warned: Sequence[str], warned_later: Sequence[str]) -> tuple[str, str]:
    """Return the method that aligned a pair, empty for a transform, and why it is not the requested one.

    ``pair`` is as the images alone were aligned; ``warned`` are the warnings of that, ``warned_later`` those of the
    alignment of structures.
    """
    if not isinstance(init, str) or init not in METHODS:
        return "", ""
    rejected, later = (
        [text.partition(": ")[2] for text in texts if text.startswith(REJECTED)] for texts in (warned, warned_later)
    )
    if init == "rigid" and np.array_equal(pair.initial, np.eye(4)):
        return "none", rejected[0] if rejected else "the headers already align the images as well as the rigid fit"
    if init == STRUCTURES and not later:
        return STRUCTURES, ""
    used = "moments" if rejected else "affine" if init == STRUCTURES else init
    return used, "; ".join([*rejected[:1], *later])
