"""Images, labels and points moved by a transform that exists already.

A transform takes fixed points to moving points (ITK's convention). So it brings a moving image or moving labels onto
the fixed grid, and points from the fixed image to the moving one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from regweave.errors import UsageError
from regweave.io import fill_value, read_image, read_labels, read_transform
from regweave.io.dicom.reg import read_reg, require_registered
from regweave.io.dicom.series import choose_series
from regweave.io.disk.files import suffix_of
from regweave.io.images import as_path, is_dicom, read_stored
from regweave.io.nifti import NiftiFrame
from regweave.io.stored import NonFinite
from regweave.io.transforms.ends import require_direction, require_reference
from regweave.io.transforms.files import DICOM_SUFFIXES
from regweave.io.transforms.itk import ANYWHERE
from regweave.run.read import ImageLike
from regweave.run.result import Result
from regweave.spatial import warp as spatial
from regweave.types import Direction, Field, Float64Array, Geometry, LabelMap, Transform, Volume

IDENTITY = "identity"
Space = Literal["fixed", "moving"]
TransformLike = str | Path | Transform | Result  # a file, a transform or result in memory, or the word `identity`
DIRECTIONS: dict[Space, Direction] = {"fixed": "fixed_to_moving", "moving": "moving_to_fixed"}
"""Which way points go that start in a space."""


class GridWords(TypedDict, total=False):
    """Keyword arguments: space and grid of the result, and reading of files."""

    to: Space | None
    other_grid: bool
    whole_scan: bool
    nifti_frame: NiftiFrame
    follow_links: bool


def warp(
    image: ImageLike,
    transform: TransformLike,
    reference: ImageLike | None = None,
    *,
    fill: float | None = None,
    nonfinite: NonFinite = "error",
    **grid: Unpack[GridWords],
) -> Volume:
    """Bring a moving image onto the fixed grid by trilinear interpolation.

    With the inverse, and the moving image as reference, a fixed image is brought onto the moving grid.

    Parameters
    ----------
    image : ImageLike
        As in `register`.
    transform : path, Transform, Result or "identity"
        What takes points of the result's grid to the image.
    reference : ImageLike, optional
        Image on whose grid the result lies; by default the grid that the transform starts from.
    fill : float, optional
        Value outside the image; by default -1000 for CT, else 0.
    nonfinite : "error" or "mask"
        Voxels that are not finite numbers: refuse the image, or treat them as background.
    **grid
        ``to`` ("fixed" or "moving") is the space of the result, where the grids cannot tell; ``other_grid=True`` lets
        the reference be another grid in that space; ``nifti_frame`` and ``follow_links`` as in `register`.

    Returns
    -------
    Volume

    Raises
    ------
    RegweaveError
        E117 where the transform goes the other way, E118 where the reference is neither of its grids, and what reading
        the files raises.
    """
    frame, links = grid.get("nifti_frame", "auto"), grid.get("follow_links", False)
    moving = read_image(image, nifti_frame=frame, nonfinite=nonfinite, follow_links=links)
    onto = onto_grid(transform, reference, **grid)
    return spatial.warp_image(moving, onto, fill=fill_value(moving) if fill is None else fill)


def warp_labels(
    labels: ImageLike,
    transform: TransformLike,
    reference: ImageLike | None = None,
    *,
    label_names: str | Path | Mapping[int, str] | None = None,
    **grid: Unpack[GridWords],
) -> LabelMap:
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
    points_mm: ArrayLike,
    transform: TransformLike,
    *,
    source: Space = "fixed",
    reference: ImageLike | None = None,
    nifti_frame: NiftiFrame = "auto",
    follow_links: bool = False,
) -> Float64Array:
    """Take points from the fixed image to the moving one, or back.

    Parameters
    ----------
    points_mm : array of shape (..., 3)
        LPS millimetres.
    transform : path, Transform, Result or "identity"
        Applied as it is; of a `Result` the one that starts in ``source``.
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


def onto_grid(
    transform: TransformLike, reference: ImageLike | Geometry | None, **words: Unpack[GridWords]
) -> Transform:
    """Return a transform that brings images onto a reference grid, or refuse it."""
    grid, links = _grid(reference, words), words.get("follow_links", False)
    loaded = _load(transform, grid, follow_links=links)
    if grid is None and loaded.ends is not None:
        loaded = read_transform(loaded, loaded.ends.start)
    if loaded.field.geometry is ANYWHERE:
        raise UsageError("E115", f"{_name(transform)} has no grid of its own", "name an image with reference")
    if transform != IDENTITY and grid is not None and not _joins_frame(transform, reference):
        require_reference(
            loaded.ends, grid, _name(transform), space=words.get("to"), other_grid=words.get("other_grid", False),
            whole_scan=words.get("whole_scan", False),
        )  # fmt: skip
    return loaded


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
    return read_stored(reference, frame, follow_links=links).geometry


def _joins_frame(transform: TransformLike, reference: ImageLike | Geometry | None) -> bool:
    """Tell whether a DICOM registration starts in the frame of a DICOM series; E160 where that is another one."""
    if not isinstance(transform, str | Path) or suffix_of(Path(transform)) not in DICOM_SUFFIXES:
        return False
    path = as_path(reference)
    if path is None or not is_dicom(path):
        return False
    frame = choose_series(path).identity.frame_uid
    if frame:
        require_registered(read_reg(transform), frame, f"'{transform}'")
    return bool(frame)


def _name(transform: TransformLike) -> str:
    return str(transform) if isinstance(transform, str | Path) else "the transform"
