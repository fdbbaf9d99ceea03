"""Direction check of transforms: told by what stands in the file, never by its name."""

from __future__ import annotations

import numpy as np

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.geometry import describe
from regweave.io.grids import same_voxels
from regweave.types import Direction, Ends, Geometry

WORDS: dict[Direction, tuple[str, str]] = {
    "fixed_to_moving": ("fixed", "moving"),
    "moving_to_fixed": ("moving", "fixed"),
}


def require_direction(ends: Ends | None, wanted: Direction, path: str) -> None:
    """Raise E117 where a transform is known to take points the other way; say W212 where nothing is known."""
    if ends is None:
        _say_unknown(path)
    elif ends.direction != wanted:
        start, target = WORDS[wanted]
        message = f"{_stated(ends, path)}, asked for is {start} to {target}"
        raise UsageError("E117", message, f"pass {_other(ends)} of the same result")


def require_series(ends: Ends, start: str, target: str, path: str) -> None:
    """Check that a transform was made for two series, by their hashes, where it states its own.

    Raises
    ------
    RegweaveError
        E144 where it was made for two other series.

    Warns
    -----
    RegweaveWarning
        W243 where one of the two is another.
    """
    pairs = ((ends.start_series, start, "today's scan"), (ends.target_series, target, "the plan"))
    known = [(stated, given, words) for stated, given, words in pairs if stated and given]
    others = [f"{words} is {given}, stated is {stated}" for stated, given, words in known if stated != given]
    if others and len(others) == len(known):
        message = f"{path} was made for other series, perhaps of another patient: {'; '.join(others)}"
        raise RegweaveError("E144", message, "use the transform of these two series, or --init rigid")
    if others:
        notices.warn(f"W243: {path} was made for another series: {others[0]}; check that the patient is the same")


def require_reference(
    ends: Ends | None,
    reference: Geometry,
    path: str,
    *,
    space: str | None = None,
    other_grid: bool = False,
    whole_scan: bool = False,
) -> None:
    """Check that a transform brings an image onto a reference grid.

    Parameters
    ----------
    ends : Ends, optional
        What the file of the transform states.
    reference : Geometry
        Grid of the result, which the transform must start from.
    path : str
        Name of the transform in messages.
    space : "fixed" or "moving", optional
        Space of the result as the user says it. Without it the grids tell; where both are the same, it is fixed.
    other_grid : bool
        Whether the reference may be another grid in the space that the transform starts from.
    whole_scan : bool
        Whether the grids of the transform may be parts of the reference, or coarser: working copies of a DICOM series.

    Raises
    ------
    RegweaveError
        E117 where the transform goes the other way, E118 where the reference is neither of its grids.
    """
    if ends is None:
        _say_unknown(path)
        return
    at_start, at_target = same_voxels(ends.start, reference), same_voxels(ends.target, reference)
    if whole_scan and not at_start and not at_target:
        at_start, at_target = _covers(reference, ends.start), _covers(reference, ends.target)
    told_by_grids = space is None and at_start and not at_target
    start = WORDS[ends.direction][0]
    if (at_target and not at_start) or (not told_by_grids and start != (space or "fixed")):
        message = f"{_stated(ends, path)}: it brings images onto the {start} grid, and the reference is not that"
        hint = f"pass {_other(ends)} of the same result, or the {start} image with -r and --to {start}"
        raise UsageError("E117", message, hint)
    if not at_start and not other_grid:
        message = (
            f"the reference is not the {start} grid that '{path}' starts from\n"
            f"  reference: {describe(reference)}\n  transform: {describe(ends.start)}"
        )
        hint = f"name the {start} image with -r, or say --other-grid to resample on another grid in {start} space"
        raise RegweaveError("E118", message, hint)


def _covers(reference: Geometry, part: Geometry) -> bool:
    """Tell whether the centres of all voxels of a grid lie in the box of the reference, give or take one voxel."""
    corners = np.stack(np.meshgrid(*([0, n - 1] for n in part.shape)), axis=-1).reshape(-1, 3)
    index = (part.points(corners.astype(float)) - reference.origin_mm) @ reference.direction / reference.spacing_mm
    room = np.maximum(part.spacing_mm.max() / reference.spacing_mm, 1.0)
    return bool((index >= -room).all() and (index <= np.array(reference.shape) - 1 + room).all())


def _stated(ends: Ends, path: str) -> str:
    start, target = WORDS[ends.direction]
    return f"'{path}' takes points from {start} to {target} space"


def _other(ends: Ends) -> str:
    return "inverse.h5" if ends.direction == "fixed_to_moving" else "transform.h5"


def _say_unknown(path: str) -> None:
    notices.warn(
        f"W212: '{path}' does not state which way it goes and between which grids, so that nobody can check it; "
        "it is taken to start in the space of the result, as ITK's resampling transforms do"
    )
