"""Notebook card and figure of a registration: colour fusion of the middle planes."""

import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from scipy import ndimage

from regweave import extras
from regweave.progress import in_notebook
from regweave.report.page import environment
from regweave.report.pictures import PLANES, data_address, encode_png
from regweave.report.viewer import BUDGETS, COLOURS, CT_WINDOWS, Display, ct_window
from regweave.types import Float32Array, LabelArray, LabelMap, Volume

HEIGHT, THUMBNAIL_HEIGHT = 150, 120
"""Pixels of the planes of a card, and of a thumbnail, of which a page may carry hundreds."""
T = TypeVar("T", bound=np.generic)
BORDERS = ((90, 200, 255), (255, 225, 60))
MOST_ROWS = 12  # structures that a card lists; `Result.table` has all
GAP = 4


def card(title: str, fixed: Volume, before: Volume, after: Volume, summary: Mapping[str, Any]) -> str:
    """Return the card of a result as HTML; ``before`` and ``after`` are the moving image on the fixed grid."""
    listed = list(summary["dice"].values())
    context = {
        "asked": title,
        "summary": summary,
        "rows": listed[:MOST_ROWS],
        "more": len(listed) - MOST_ROWS,
        "picture": sheet(fusion(fixed, (before, after))),
    }
    return environment().get_template("card.j2").render(context)


def figure(title: str, fixed: Volume, before: Volume, after: Volume, summary: Mapping[str, Any]) -> Any:
    """Draw the middle planes before and after as a matplotlib figure; the parameters are those of `card`."""
    pyplot = extras.load("matplotlib.pyplot", "notebook", "a figure")
    if in_notebook():  # the backend of a notebook shows figures once it is loaded, which pyplot puts off
        pyplot.switch_backend(pyplot.get_backend())
    drawn = extras.load("matplotlib.figure", "notebook", "a figure").Figure(figsize=(9, 6), layout="constrained")
    axes = drawn.subplots(2, len(PLANES))
    means = summary["mean_dice"]
    for row, when, planes in zip(axes, ("after start", "after"), fusion(fixed, (before, after)), strict=True):
        dice = f", mean Dice {means['after' if when == 'after' else 'start']:.3f}" if means else ""
        for axis, plane, pixels in zip(row, map(str.lower, PLANES), planes, strict=True):
            axis.imshow(pixels)
            axis.set_axis_off()
            axis.set_title(f"{plane}, {when}{dice if plane == 'axial' else ''}", fontsize=9)
    drawn.suptitle(title, fontsize=10)
    return drawn


def thumbnail(fixed: Volume, after: Volume, labels: Sequence[LabelMap | None] = ()) -> bytes:
    """Return a small PNG for the index of a batch: the axial plane, fixed blue, warped orange, agreement grey.

    It shows the borders of ``labels`` on the fixed grid, first the fixed ones in blue, then the warped ones in yellow.
    """
    given = [None if one is None else one.data for one in labels]
    shown = next((data for data in reversed(given) if data is not None and data.any()), None)
    picture = fusion(fixed, (after,), THUMBNAIL_HEIGHT, through=shown)[0][0]
    display = Display.of(fixed.geometry, BUDGETS["small"])
    for data, colour in zip(given, BORDERS, strict=False):
        if data is None or shown is None:
            continue
        cut = _plane(display.labels(data), _centre(display, shown), PLANES["Axial"], display.geometry.spacing_mm)
        border = np.zeros(cut.shape, dtype=bool)
        border[:-1] |= cut[1:] != cut[:-1]
        border[:, :-1] |= cut[:, 1:] != cut[:, :-1]
        picture[border] = colour
    return encode_png(picture)


def _centre(display: Display, labels: LabelArray) -> list[int]:
    """Return the centre of all structures in voxels of the page."""
    return [round(c) for c in ndimage.center_of_mass(display.labels(labels) != 0)]


def show(page: Path) -> None:
    """Show a page below the cell of a notebook, or in the browser."""
    if not in_notebook():
        webbrowser.open(page.as_uri())
        return
    display = extras.load("IPython.display", "notebook", "showing a page")
    frame = Markup('<iframe srcdoc="{}" width="100%" height="760"></iframe>')
    display.display(display.HTML(frame.format(page.read_text(encoding="utf-8"))))


def fusion(
    fixed: Volume, moving: Sequence[Volume], height: int = HEIGHT, *, through: LabelArray | None = None
) -> list[list[NDArray[np.uint8]]]:
    """Cut the middle planes of images on one grid and overlay them: fixed blue, moving orange, agreement grey.

    For each moving image these are the axial, coronal and sagittal plane, (height, columns, 3), with square pixels,
    through the centre of the bright voxels of the fixed image.
    """
    display = Display.of(fixed.geometry, BUDGETS["small"])
    still = _grey(display.image(fixed.data), fixed.data)
    others = [tuple({0, 1, 2} - {axis}) for axis in range(3)]
    profiles = [still.sum(axis=across, dtype=np.float64) + 1e-9 for across in others]
    centre = [int(np.average(np.arange(len(bright)), weights=bright)) for bright in profiles]
    if through is not None and display.labels(through).any():
        centre = _centre(display, through)
    greys = [_grey(display.image(image.data), moving[0].data) for image in moving]
    fused = [np.stack([grey, (still + grey) / 2, still], axis=-1) for grey in greys]  # red is the moving image
    spacing_mm = display.geometry.spacing_mm
    fused = [np.rint(255 * colours).astype(np.uint8) for colours in fused]
    return [[_plane(colours, centre, axes, spacing_mm, height) for axes in PLANES.values()] for colours in fused]


def contoured(result: Any, height: int = 300) -> list[list[NDArray[np.uint8]]]:
    """Cut planes of the moving image before and after registration, with the contours of its structures.

    Contours of the fixed image are white, those of the moving one have the colours of the page. Structures so thin that
    their border is most of them have none. The planes are those that cut most structures.
    """
    images, labels = result.images, result.images.fixed_labels
    display = Display.of(result.fixed.geometry, BUDGETS["normal"])
    still = display.labels(labels.data)
    values = [v for v in np.unique(still)[1:] if 5 * ndimage.binary_erosion(still == v).sum() > (still == v).sum()]
    centre = [_richest(still, axis) for axis in range(3)]
    window = None
    if result.provenance.modality.bank == "ct":
        lung = ct_window(result.fixed.data[labels.data > 0]) == "lung"
        window = (-1000.0, 350.0) if lung else CT_WINDOWS["soft tissue"]
    rows = []
    for image, moving in ((images.before, images.labels_before), (result.warped, result.warped_labels)):
        grey = display.image(image.data)
        grey = _grey(grey, grey) if window is None else np.clip((grey - window[0]) / (window[1] - window[0]), 0, 1)
        row = []
        for axes in PLANES.values():
            cuts = [
                _smooth_plane(data, centre, axes, display.geometry.spacing_mm, height)
                for data in (grey, *(codes == v for v in values for codes in (still, display.labels(moving.data))))
            ]
            picture = np.repeat(np.rint(255 * cuts[0]).astype(np.uint8)[..., None], 3, axis=2)
            for n, cut in enumerate(cuts[1:]):
                line = (cut > 0.5) & ~ndimage.binary_erosion(cut > 0.5, border_value=1)
                colour = COLOURS[n // 2 % len(COLOURS)] if n % 2 else "#ffffff"
                picture[line] = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
            row.append(picture)
        rows.append(row)
    return rows


def _richest(labels: NDArray[Any], axis: int) -> int:
    """Return the slice that cuts most structures; of equals the one in the middle."""
    across = tuple({0, 1, 2} - {axis})
    seen = sum(((labels == v).sum(axis=across) > 12).astype(int) for v in np.unique(labels)[1:])
    best = np.flatnonzero(seen == np.max(seen))
    return int(best[len(best) // 2])


def _smooth_plane(
    volume: NDArray[Any], centre: Sequence[int], axes: tuple[int, int, int, bool], spacing_mm: Any, height: int
) -> Float32Array:
    """Cut a plane and interpolate it at square pixels."""
    across, down, through, up = axes
    cut = np.take(volume, centre[through], axis=through).swapaxes(0, 1).astype(np.float32)
    width = max(1, round(height * cut.shape[1] * spacing_mm[across] / (cut.shape[0] * spacing_mm[down])))
    grids = [(np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip((height, width), cut.shape, strict=True)]
    out = ndimage.map_coordinates(cut, np.meshgrid(*grids, indexing="ij"), order=1, mode="nearest")
    return np.asarray(out[::-1] if up else out)


def _grey(data: Float32Array, like: Float32Array) -> Float32Array:
    low, high = np.percentile(like[:: max(1, like.shape[0] // 64)], (1.0, 99.5))
    return np.asarray(np.clip((data - low) / max(high - low, 1e-9), 0, 1), dtype=np.float32)


def _plane(
    volume: NDArray[T], centre: Sequence[int], axes: tuple[int, int, int, bool], spacing_mm: Any,
    height: int = THUMBNAIL_HEIGHT,
) -> NDArray[T]:  # fmt: skip
    """Cut a plane of a volume, with colours or without, and sample it with square pixels."""
    across, down, through, up = axes
    cut = np.take(volume, centre[through], axis=through).swapaxes(0, 1)
    pixel_mm = cut.shape[0] * spacing_mm[down] / height
    width = max(1, round(cut.shape[1] * spacing_mm[across] / pixel_mm))
    rows = np.arange(height) * cut.shape[0] // height
    columns = np.arange(width) * cut.shape[1] // width
    out: NDArray[T] = cut[rows[:, None], columns]
    return out[::-1] if up else out


def sheet(planes: Sequence[Sequence[NDArray[np.uint8]]]) -> str:
    """Put planes beside and below each other, as an address that holds the picture."""
    rows = [np.concatenate([np.pad(plane, ((0, GAP), (0, GAP), (0, 0))) for plane in row], axis=1) for row in planes]
    return data_address(encode_png(np.concatenate(rows, axis=0)))
