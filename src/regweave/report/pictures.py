"""Still pictures of a page: planes as PNG, and close-ups of structures in a checkerboard of both images."""

import base64
import struct
import webbrowser
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from scipy import ndimage

from regweave import extras
from regweave.progress import in_notebook
from regweave.report.page import environment
from regweave.report.viewer import BUDGETS, COLOURS, CT_WINDOWS, Display, Viewer, ct_window
from regweave.types import Float32Array, LabelArray, LabelMap, Volume

HEIGHT, THUMBNAIL_HEIGHT = 150, 120
"""Pixels of the planes of a card, and of a thumbnail, of which a page may carry hundreds."""
BORDERS = ((90, 200, 255), (255, 225, 60))
MOST_ROWS = 12  # structures that a card lists; `Result.table` has all
GAP = 4


def card(title: str, fixed: Volume, before: Volume, after: Volume, summary: Mapping[str, Any]) -> str:
    """Return the card of a result as HTML; ``before`` and ``after`` are the moving image on the fixed grid."""
    listed = list(summary["dice"].values())
    context = {
        "asked": title, "summary": summary, "rows": listed[:MOST_ROWS], "more": len(listed) - MOST_ROWS,
        "picture": sheet(fusion(fixed, (before, after))),
    }  # fmt: skip
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
    return encode_png(outlined(fixed, after, labels)[0])


def outlined(
    fixed: Volume, after: Volume, labels: Sequence[LabelMap | None], height: int = THUMBNAIL_HEIGHT
) -> list[NDArray[np.uint8]]:
    """Cut the planes of two images through the centre of the last of some label maps, and draw the borders of each."""
    given = [None if one is None else one.data for one in labels]
    shown = next((data for data in reversed(given) if data is not None and data.any()), None)
    planes = fusion(fixed, (after,), height, through=shown)[0]
    display = Display.of(fixed.geometry, BUDGETS["small"])
    for data, colour in zip(given, BORDERS, strict=False):
        if data is None or shown is None:
            continue
        centre = _centre(display, shown)
        for picture, axes in zip(planes, PLANES.values(), strict=True):
            cut = _plane(display.labels(data), centre, axes, display.geometry.spacing_mm, height)
            border = np.zeros(cut.shape, dtype=bool)
            border[:-1] |= cut[1:] != cut[:-1]
            border[:, :-1] |= cut[:, 1:] != cut[:, :-1]
            picture[border] = colour
    return planes


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
                _plane(data, centre, axes, display.geometry.spacing_mm, height, smooth=True)
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


def _grey(data: Float32Array, like: Float32Array) -> Float32Array:
    low, high = np.percentile(like[:: max(1, like.shape[0] // 64)], (1.0, 99.5))
    return np.asarray(np.clip((data - low) / max(high - low, 1e-9), 0, 1), dtype=np.float32)


def _plane(
    volume: NDArray[Any], centre: Sequence[int], axes: tuple[int, int, int, bool], spacing_mm: Any,
    height: int = THUMBNAIL_HEIGHT, *, smooth: bool = False,
) -> NDArray[Any]:  # fmt: skip
    """Cut a plane of a volume, with colours or without, and sample or interpolate it at square pixels."""
    across, down, through, up = axes
    cut = np.take(volume, centre[through], axis=through).swapaxes(0, 1)
    pixel_mm = cut.shape[0] * spacing_mm[down] / height
    width = max(1, round(cut.shape[1] * spacing_mm[across] / pixel_mm))
    if smooth:
        grids = [(np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip((height, width), cut.shape, strict=True)]
        places = np.meshgrid(*grids, indexing="ij")
        out = ndimage.map_coordinates(cut.astype(np.float32), places, order=1, mode="nearest")
    else:
        rows, columns = (np.arange(n) * m // n for n, m in zip((height, width), cut.shape, strict=False))
        out = cut[rows[:, None], columns]
    return np.asarray(out[::-1] if up else out)


def sheet(planes: Sequence[Sequence[NDArray[np.uint8]]]) -> str:
    """Put planes beside and below each other, as an address that holds the picture."""
    rows = [np.concatenate([np.pad(plane, ((0, GAP), (0, GAP), (0, 0))) for plane in row], axis=1) for row in planes]
    return data_address(encode_png(np.concatenate(rows, axis=0)))


SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2
PLANES = {"Axial": (0, 1, 2, False), "Coronal": (0, 2, 1, True), "Sagittal": (1, 2, 0, True)}
"""Display axis across, down and through, and whether the one down runs upwards."""
WIDTH = 320
CLOSEUP_WIDTH = 200  # pixels of a plane, and of a close-up
MARGIN_MM = 15.0
TILES = 4  # tiles across a close-up
DARK = 0.2  # colours of less luminance than this have a light rim, others a dark one
WIDE = 300  # pictures of more pixels across have lines of two


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    r"""Encode grey (rows, columns) or RGB (rows, columns, 3) pixels."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise ValueError(f"pixels are {pixels.dtype} of shape {pixels.shape}; needed are uint8, (H, W) or (H, W, 3)")
    height, width = pixels.shape[:2]
    colour = GREY if pixels.ndim == 2 else RGB
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    filtered = np.hstack([np.zeros((height, 1), dtype=np.uint8), rows])  # filter 0: rows are not transformed
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(filtered.tobytes(), 9), b"IEND": b""}
    return SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks.items()
    )


def data_address(png: bytes) -> str:
    """Return a picture as an address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def picture(pixels: NDArray[np.uint8], text: str, width: int) -> dict[str, Any]:
    """Return a picture that is shown at a width: an address that holds it, its caption, and its size on the page."""
    height = max(1, round(width * pixels.shape[0] / pixels.shape[1]))
    return {"address": data_address(encode_png(pixels)), "text": text, "width": width, "height": height}


def pictures(shown: Viewer) -> list[dict[str, Any]]:
    """Return fixed, warped and difference in the three planes through the start of the viewer, with the contours."""
    fixed, warped = _greys(shown)
    half = (fixed.astype(np.int16) - warped.astype(np.int16)) // 2
    volumes = {"fixed": fixed, "warped": warped, "difference": (128 + half).clip(0, 255).astype(np.uint8)}
    spacing = shown.display.geometry.spacing_mm
    out = []
    for plane, (across, down, through, up) in PLANES.items():
        at = shown.start[through]
        where = int(np.clip(np.rint(at), 0, fixed.shape[through] - 1))
        masks: list[NDArray[np.bool_]] = []
        for name, volume in volumes.items():
            cut = np.take(volume, where, axis=through).T  # rows run down
            rows = square_rows(cut, spacing[down] / spacing[across])
            if shown.contours is not None:
                rows = np.repeat(np.repeat(rows, times := 1 + WIDTH // rows.shape[1], axis=0), times, axis=1)
                v, u = ((np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip(rows.shape, cut.shape, strict=True))
                rows = np.repeat(rows[..., None], 3, axis=2)
                masks = masks or [shown.contours.mask(one["code"], through, at, u, v) for one in shown.structures]
                for one, mask in zip(shown.structures, masks, strict=True):
                    draw_line(rows, mask, one["colour"])
            out.append(picture(rows[::-1] if up else rows, f"{plane}, {name}", WIDTH))
    return out


def _greys(shown: Viewer) -> list[NDArray[np.uint8]]:
    """Return the fixed and the warped image in the first window, as 256 levels."""
    window = shown.windows[0]
    out = []
    for name, table in (("fixed", "fixed"), ("warped", "moving")):
        low, high = window[table]
        values = shown.tables[table][shown.codes[name]]
        out.append(np.asarray(np.rint(255 * np.clip((values - low) / max(high - low, 1e-9), 0, 1)), dtype=np.uint8))
    return out


def square_rows(plane: NDArray[Any], aspect: float) -> NDArray[Any]:
    """Repeat or leave out rows so that pixels become square; ``aspect`` is their height by their width."""
    count = max(1, round(len(plane) * aspect))
    return np.asarray(plane[np.minimum(((np.arange(count) + 0.5) / count * len(plane)).astype(int), len(plane) - 1)])


def draw_line(picture: NDArray[np.uint8], inside: NDArray[np.bool_], colour: str) -> None:
    """Draw the border of a mask into an RGB picture, with a rim that is visible on black and on white."""
    boxes = ndimage.find_objects(inside.astype(np.uint8))
    if not boxes:
        return
    near = tuple(slice(max(0, part.start - 1), part.stop + 1) for part in boxes[0])
    picture, inside, across = picture[near], inside[near], inside.shape[1]
    rgb = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    wide = 2 if across > WIDE else 1
    line = inside & ~ndimage.binary_erosion(inside, iterations=wide, border_value=1)
    rim = ndimage.binary_dilation(line) & ~line
    picture[rim] = 255 if np.dot(rgb, (0.2126, 0.7152, 0.0722)) < 255 * DARK else 0
    picture[line] = rgb


def closeups(shown: Viewer) -> dict[int, list[dict[str, Any]]]:
    """Return three pictures of each structure that the contours of a set or the warped labels show, by its label."""
    if shown.contours is None and "after" not in shown.labels:
        return {}
    greys = _greys(shown)
    boxes = ((row, _box(shown, row["code"])) for row in shown.structures)
    return {
        row["label"]: [_closeup(plane, row, box, greys, shown) for plane in PLANES]
        for row, box in boxes
        if box is not None
    }


def _box(shown: Viewer, code: int) -> list[tuple[int, int]] | None:
    """Return the bounding box of a structure in voxels of the page; None if it is not drawn."""
    if shown.contours is None:
        boxes = ndimage.find_objects((shown.labels["after"] == code).astype(np.uint8))
        return [(part.start, part.stop) for part in boxes[0]] if boxes else None
    shape = np.array(shown.display.geometry.shape)
    rings = [ring for of_slice in shown.contours.by_slice.get(code, {}).values() for ring in of_slice]
    if not rings:
        return None
    low, high = shown.contours.corners(rings)
    first = np.clip(np.floor(low + 0.5), 0, shape - 1).astype(int).tolist()
    last = np.clip(np.ceil(high + 0.5), np.add(first, 1), shape).astype(int).tolist()
    return list(zip(first, last, strict=True))


def _closeup(
    plane: str, row: Mapping[str, Any], box: Sequence[tuple[int, int]], greys: Sequence[NDArray[np.uint8]],
    shown: Viewer,
) -> dict[str, Any]:  # fmt: skip
    """Cut a plane through the middle of a structure: tiles of both images, and the outline of the structure."""
    across, down, through, up = PLANES[plane]
    spacing_mm, shape = shown.display.geometry.spacing_mm, shown.display.geometry.shape
    part = {}
    for axis in (across, down):
        more = int(np.ceil(MARGIN_MM / spacing_mm[axis]))
        part[axis] = slice(max(0, box[axis][0] - more), min(box[axis][1] + more, shape[axis]))
    place = row["centre"][through] if row["centre"] else sum(box[through]) // 2
    where = int(np.clip(np.rint(place), 0, shape[through] - 1))
    a, b = (np.take(volume, where, axis=through)[part[across], part[down]].T for volume in greys)  # rows run down
    aspect = spacing_mm[down] / spacing_mm[across]
    steps = spacing_mm[[down, across]]
    tile = max(n * step for n, step in zip(a.shape, steps, strict=True)) / TILES  # square in millimetres
    v, u = (np.floor(np.arange(n) * step / tile) for n, step in zip(a.shape, steps, strict=True))
    pixels = _enlarged(np.where((v[:, None] + u[None]) % 2 == 0, a, b), aspect)
    if shown.contours is None:
        drawn = np.take(shown.labels["after"], where, axis=through)[part[across], part[down]].T
        mask = _enlarged(drawn == row["code"], aspect)
    else:
        v, u = (
            part[axis].start - 0.5 + (np.arange(n) + 0.5) * (part[axis].stop - part[axis].start) / n
            for axis, n in zip((down, across), pixels.shape, strict=True)
        )
        mask = shown.contours.mask(row["code"], through, place, u, v)
    colours = np.repeat(pixels[..., None], 3, axis=2)
    draw_line(colours, mask, row["colour"])
    return picture(colours[::-1] if up else colours, f"{row['name']}, {plane.lower()}", CLOSEUP_WIDTH)


def _enlarged(plane: NDArray[Any], aspect: float) -> NDArray[Any]:
    """Give a plane square pixels, several a voxel where it is small, so that an outline is thinner than a voxel."""
    times = 1 + CLOSEUP_WIDTH // plane.shape[1]
    return np.repeat(square_rows(plane, aspect * times), times, axis=1)
