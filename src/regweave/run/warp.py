"""Images, labels and points moved by a transform that exists already.

A transform takes fixed points to moving points (ITK's convention). So it brings a moving image or moving labels onto
the fixed grid, and points from the fixed image to the moving one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike

from regweave.errors import RegweaveError, UsageError
from regweave.io import fill_value, geometry, images, nifti, read_image, read_labels, read_transform, stored
from regweave.io.dicom.reg import read_reg, require_registered
from regweave.io.dicom.series import choose_series
from regweave.io.disk.files import suffix_of
from regweave.io.transforms.files import DICOM_SUFFIXES, require_direction, require_reference
from regweave.io.transforms.itk import ANYWHERE
from regweave.io.write import TimeSeries, is_time_series, read_time_series
from regweave.run.read import ImageLike
from regweave.run.result import Result
from regweave.spatial import warp as spatial
from regweave.spatial.warp import Interpolation, invert
from regweave.types import Direction, Field, Float64Array, Geometry, LabelMap, Transform, Volume

IDENTITY = "identity"
Space = Literal["fixed", "moving"]
TransformLike = str | Path | Transform | Result  # a file, a transform or result in memory, or the word `identity`
Chain = TransformLike | Sequence[TransformLike]
INVERSE = re.compile(r"\[(?P<file>.+),\s*(?P<back>[01])\]")  # `[file,1]` is the inverse of a file
DIRECTIONS: dict[Space, Direction] = {"fixed": "fixed_to_moving", "moving": "moving_to_fixed"}
"""Which way points go that start in a space."""


class GridWords(TypedDict, total=False):
    """Keyword arguments: space and grid of the result, and reading of files."""

    to: Space | None
    other_grid: bool
    whole_scan: bool
    nifti_frame: nifti.NiftiFrame
    follow_links: bool


def warp(
    image: ImageLike | TimeSeries, transform: Chain, reference: ImageLike | None = None, *, fill: float | None = None,
    interpolation: Interpolation = "linear", nonfinite: stored.NonFinite = "error", **grid: Unpack[GridWords],
) -> Volume | TimeSeries:  # fmt: skip
    """Bring a moving image, or every volume of a 4-D file, onto the fixed grid.

    With the inverse, and the moving image as reference, a fixed image is brought onto the moving grid.

    Parameters
    ----------
    image : ImageLike
        As in `register`.
    transform : path, Transform, Result, "identity", or several of them
        What takes points of the result's grid to the image. Of several the first is applied first to these points, as
        in the list of antsApplyTransforms; "[file,1]" is the inverse of a file.
    reference : ImageLike, optional
        Image whose grid the result has; by default the grid that the transform starts from.
    fill : float, optional
        Value outside the image; by default -1000 for CT, else 0.
    interpolation : "linear", "nearest", "label" or "bspline"
        Between voxels; ``label`` takes the value of the largest trilinear weight, for label maps.
    nonfinite : "error" or "mask"
        Voxels that are not finite numbers: refuse the image, or treat them as background.
    **grid
        ``to`` ("fixed" or "moving") is the space of the result, where the grids do not decide it; ``other_grid=True``
        lets the reference be another grid in that space; ``nifti_frame`` and ``follow_links`` as in `register`.

    Returns
    -------
    Volume
        A `TimeSeries` for a series.

    Raises
    ------
    RegweaveError
        E117 where the transform goes the other way, E118 where the reference is neither of its grids, and what reading
        the files raises.
    """
    return bring(image, transform, reference, fill=fill, interpolation=interpolation, nonfinite=nonfinite, **grid)[0]


def bring(
    image: ImageLike | TimeSeries, transform: Chain, reference: ImageLike | None, *, fill: float | None,
    interpolation: Interpolation, nonfinite: stored.NonFinite, **grid: Unpack[GridWords],
) -> tuple[Volume | TimeSeries, Transform, float]:  # fmt: skip
    """Do as `warp`; return the transform on the grid of the result, and the value outside the image, too."""
    if interpolation not in get_args(Interpolation):
        known = ", ".join(get_args(Interpolation))
        raise UsageError("E192", f"unknown interpolation {interpolation!r}", f"use {known}")
    frame, links = grid.get("nifti_frame", "auto"), grid.get("follow_links", False)
    series = read_time_series(image, frame) if is_time_series(image) else None
    if series is None:
        volumes = [read_image(image, nifti_frame=frame, nonfinite=nonfinite, follow_links=links)]
    else:
        volumes = list(series.volumes)
    onto = onto_grid(transform, reference, **grid)
    value = fill_value(volumes[0]) if fill is None else fill
    moved = tuple(spatial.warp_image(one, onto, fill=value, interpolation=interpolation) for one in volumes)
    return moved[0] if series is None else replace(series, volumes=moved), onto, value


def warp_labels(
    labels: ImageLike, transform: Chain, reference: ImageLike | None = None, *,
    label_names: str | Path | Mapping[int, str] | None = None, **grid: Unpack[GridWords],
) -> LabelMap:  # fmt: skip
    """Bring moving labels onto the fixed grid; values and type of the labels are kept.

    Parameters
    ----------
    labels : ImageLike
        Segmentation, given as images are.
    transform, reference, **grid
        As in `warp`.
    label_names : path or mapping, optional
        Names of the labels, in a file or by value; by default those of a file beside the label map.

    Returns
    -------
    LabelMap
    """
    frame, links = grid.get("nifti_frame", "auto"), grid.get("follow_links", False)
    moving = read_labels(labels, names_path=label_names, nifti_frame=frame, follow_links=links)
    return spatial.warp_labels(moving, onto_grid(transform, reference, **grid))


def warp_points(
    points_mm: ArrayLike, transform: TransformLike, *, source: Space = "fixed", reference: ImageLike | None = None,
    nifti_frame: nifti.NiftiFrame = "auto", follow_links: bool = False,
) -> Float64Array:  # fmt: skip
    """Take points from the fixed image to the moving one, or back.

    Parameters
    ----------
    points_mm : array of shape (..., 3)
        LPS millimetres.
    transform : path, Transform, Result or "identity"
        Applied without inversion; of a `Result` the one that starts in ``source``.
    source : "fixed" or "moving"
        Space of the points. A transform that is known to start in the other one is refused.
    reference : ImageLike, optional
        Grid to sample a transform file on that has none, such as a B-spline.
    nifti_frame, follow_links
        As in `register`.

    Returns
    -------
    float64 array of shape (..., 3)
    """
    grid = _grid(reference, {"nifti_frame": nifti_frame, "follow_links": follow_links})
    if isinstance(transform, Result) and source == "moving":
        transform = transform.inverse
    loaded = _load(transform, grid, follow_links=follow_links)
    if transform != IDENTITY:
        require_direction(loaded.ends, DIRECTIONS[source], _name(transform))
    return spatial.warp_points(np.asarray(points_mm, dtype=np.float64), loaded)


def onto_grid(transform: Chain, reference: ImageLike | Geometry | None, **words: Unpack[GridWords]) -> Transform:
    """Return a transform that brings images onto a reference grid, or refuse it; several are joined."""
    if isinstance(transform, list | tuple) and len(transform) == 1:
        transform = transform[0]
    if isinstance(transform, list | tuple):
        return _joined(transform, reference, words)
    source, back = _parsed(transform)
    if back:
        return _joined([transform], reference, words)
    transform = source
    assert isinstance(transform, str | Path | Transform | Result)
    grid, links = _grid(reference, words), words.get("follow_links", False)
    loaded = _load(transform, grid, follow_links=links)
    if grid is None and loaded.ends is not None:
        loaded = read_transform(loaded, loaded.ends.start)
    if loaded.field.geometry is ANYWHERE:
        raise UsageError("E115", f"{_name(transform)} has no grid of its own", "name an image with reference")
    if transform != IDENTITY and grid is not None and not _joins_frame(transform, reference):
        _require_reference(loaded, grid, _name(transform), words)
    return loaded


def _require_reference(loaded: Transform, grid: Geometry, name: str, words: GridWords) -> None:
    require_reference(
        loaded.ends, grid, name, space=words.get("to"), other_grid=words.get("other_grid", False),
        whole_scan=words.get("whole_scan", False),
    )  # fmt: skip


def _parsed(word: Any) -> tuple[Any, bool]:
    found = INVERSE.fullmatch(word) if isinstance(word, str) else None
    return (word, False) if found is None else (found["file"], found["back"] == "1")


def _joined(chain: Sequence[Any], reference: ImageLike | Geometry | None, words: GridWords) -> Transform:
    """Join transforms, each of which starts where the one before leads, as far as their files state that."""
    grid, links = _grid(reference, words), words.get("follow_links", False)
    if grid is None:
        raise UsageError("E115", "several transforms, or an inverse, have no grid of their own", "name a reference")
    here: Geometry | None = grid
    steps: list[Transform] = []
    for word in chain:
        source, back = _parsed(word)
        one = _load(source, None if back else here, follow_links=links)
        one = _inverse(one, here, _name(source)) if back else one
        if one.ends is not None and here is not None and not geometry.same_voxels(one.ends.start, here):
            place = "the transform before it" if steps else "the reference"
            if steps or not words.get("other_grid", False):
                message = f"{_name(word)} does not start from the grid of {place}\n  it starts from: "
                message += f"{geometry.describe(one.ends.start)}\n  found: {geometry.describe(here)}"
                raise RegweaveError("E118", message, "check the order: the first of the list starts from the reference")
        steps.append(one)
        here = None if one.ends is None else one.ends.target
    if not _joins_frame(chain[0], reference) and len(steps) == 1:
        _require_reference(steps[0], grid, _name(chain[0]), words)
    return spatial.chained(steps, grid)


def _inverse(one: Transform, here: Geometry | None, name: str) -> Transform:
    """Return the inverse of a transform, on the grid that it starts from where that is known."""
    grid = here if one.ends is None else one.ends.target
    if grid is None and one.field.data.any():
        message = f"{name} does not state to which grid it leads, on which its inverse would lie"
        raise UsageError("E115", message, "give the inverse field that the same program wrote")
    return invert(one, grid or ANYWHERE)[0]


def _load(transform: TransformLike, grid: Geometry | None, *, follow_links: bool) -> Transform:
    if isinstance(transform, str) and transform == IDENTITY:
        return Transform(Field.zero(grid or ANYWHERE))
    source = transform.transform if isinstance(transform, Result) else transform
    return read_transform(source, grid, follow_links=follow_links)


def _grid(reference: ImageLike | Geometry | None, words: GridWords) -> Geometry | None:
    if reference is None or isinstance(reference, Geometry):
        return reference
    if isinstance(reference, Volume | LabelMap):
        return reference.geometry
    frame, links = words.get("nifti_frame", "auto"), words.get("follow_links", False)
    return images.read_stored(reference, frame, follow_links=links).geometry


def _joins_frame(transform: Any, reference: ImageLike | Geometry | None) -> bool:
    """Return whether a DICOM registration starts in the frame of a DICOM series; E160 where that is another one."""
    source, back = _parsed(transform)
    if not isinstance(source, str | Path) or suffix_of(Path(source)) not in DICOM_SUFFIXES:
        return False
    path = images.as_path(reference)
    if path is None or not images.is_dicom(path):
        return False
    frame = choose_series(path).identity.frame_uid
    if frame:
        require_registered(read_reg(source), frame, f"'{transform}'", back=back)
    return bool(frame)


def _name(transform: TransformLike) -> str:
    return str(transform) if isinstance(transform, str | Path) else "the transform"
