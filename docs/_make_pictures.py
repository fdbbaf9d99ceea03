"""Write the pictures of the documentation, of generated images: ``python docs/_make_pictures.py [NAME …]``.

``report`` needs Chromium. The others need Pillow.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from scipy import ndimage

import regweave as rw
from regweave.report.pictures import contoured
from regweave.spatial.warp import warp_points
from regweave.study import examples
from regweave.types import Geometry, ImagePair

IMAGES = Path(__file__).with_name("images")
HEIGHT, GAP, COLOURS = 340, 6, 200
LINE_MM, LINE_SHARE = 8.0, 0.14


def register(pair: ImagePair, **options: Any) -> rw.Result:
    """Register a pair with its labels."""
    labels = {"fixed_labels": pair.fixed_labels, "moving_labels": pair.moving_labels}
    return rw.register(pair.fixed, pair.moving, **labels, **options, progress=False)


def before_after() -> list[list[NDArray[np.uint8]]]:
    """Contours of a head and neck before and after."""
    return contoured(register(examples.pair(0, "head and neck", voxel_mm=2.5)), HEIGHT)


def bad_start() -> list[list[NDArray[np.uint8]]]:
    """Show a chest that is 60 mm away, without and with an affine start: the axial and the coronal plane."""
    pair = examples.pair(1, "chest", voxel_mm=4.0)
    affine = pair.moving.geometry.affine.copy()
    affine[:3, 3] += (35.0, -30.0, 40.0)
    away = Geometry(pair.moving.geometry.shape, affine)
    moving = replace(pair.moving, geometry=away, labels=replace(pair.moving_labels, geometry=away))
    both = [contoured(register(replace(pair, moving=moving), init=start), HEIGHT)[1] for start in ("none", "affine")]
    return [[both[0][0], both[0][1], both[1][0], both[1][1]]]


def bad_smoothness() -> list[list[NDArray[np.uint8]]]:
    """Deformation grids of a brain: too stiff, default, too loose."""
    pair = examples.pair(0, "brain", voxel_mm=2.0)
    settings = rw.preset("default")
    found = []
    for factor in (30.0, 1.0, 0.02):
        refine = settings.refine.model_copy(update={"smoothness": settings.refine.smoothness * factor})
        config = settings.model_copy(update={"smoothness": settings.smoothness * factor, "refine": refine})
        found.append(grid_of(register(pair, config=config)))
    return [found]


def bad_mask() -> list[list[NDArray[np.uint8]]]:
    """Show a mass that only the fixed image has, without and with a mask."""
    pair = examples.pair(0, "chest", voxel_mm=4.0)
    points = examples.grid_points(pair.fixed.geometry)
    mass = ((points - np.reshape((-80.0, 4.0, -18.0), (3, 1, 1, 1))) ** 2).sum(0) < 34.0**2
    pair = replace(pair, fixed=replace(pair.fixed, data=np.where(mass, np.float32(60.0), pair.fixed.data)))
    mask = rw.LabelMap((~mass).astype(np.uint8), pair.fixed.geometry)
    z = int(np.argmax(mass.sum(axis=(0, 1))))
    return [[grid_of(register(pair, **given), z) for given in ({}, {"fixed_mask": mask})]]


def guides() -> list[list[NDArray[np.uint8]]]:
    """Contours of a head and neck: without guides, with guides, and with guides of which one is drawn 12 mm off."""
    pair = examples.pair(3, "head and neck", voxel_mm=4.0)
    labels, name = pair.fixed_labels, "left parotid"
    value = next(v for v in labels.values() if labels.name(v) == name)
    shown = labels.data == value
    off = np.where(shown, 0, labels.data)
    off[np.roll(shown, 3, axis=1)] = value
    wrong = replace(pair, fixed=replace(pair.fixed, labels=replace(labels, data=off)))
    runs = (register(pair), register(pair, guide=True), register(wrong, guide=True))
    return [[contoured(run, HEIGHT)[1][0] for run in runs]]


def landmarks() -> list[list[NDArray[np.uint8]]]:
    """Deformation grids of a chest: without landmarks, with four right ones, and with one of them 25 mm off."""
    pair = examples.pair(0, "chest", voxel_mm=4.0)
    middle = pair.fixed.geometry.points((np.array(pair.fixed.data.shape) - 1) / 2)
    fixed = middle + np.array([(80.0, 0, 0), (-80.0, 0, 0), (60.0, 40.0, 0), (-60.0, 40.0, 0)])
    right = warp_points(fixed, register(pair).transform)
    wrong = right + np.array([(0, 0, 0), (0, 25.0, 0), (0, 0, 0), (0, 0, 0)])
    given = ({}, *({"fixed_points": fixed, "moving_points": m, "guide_points": 1.0} for m in (right, wrong)))
    return [[grid_of(register(pair, **one)) for one in given]]


def rigid() -> list[list[NDArray[np.uint8]]]:
    """Deformation grids over the mandible, without and with a rigid mandible."""
    pair = examples.pair(1, "head and neck", voxel_mm=3.0)
    names = pair.fixed_labels
    shown = names.data == next(v for v in names.values() if names.name(v) == "mandible")
    z = int(np.argmax(shown.sum(axis=(0, 1))))
    return [[grid_of(register(pair, rigid=kept), z) for kept in (None, ["mandible"])]]


def lung() -> list[list[NDArray[np.uint8]]]:
    """Differences of a chest in the window of the lung, when the refinement sees soft tissue alone, and by default."""
    pair = examples.pair(0, "chest", voxel_mm=3.0)
    settings = rw.preset("default")
    blind = [m if m.stage == "levels" else m.model_copy(update={"window": None}) for m in settings.banks["ct"]]
    narrow = settings.model_copy(update={"banks": {**settings.banks, "ct": tuple(blind)}})
    found = []
    for config in (narrow, settings):
        warped = register(pair, config=config).warped.data
        z = warped.shape[2] // 2
        grey = 0.5 + np.swapaxes(warped[:, :, z] - pair.fixed.data[:, :, z], 0, 1) / 800.0
        zoomed = ndimage.zoom(grey, HEIGHT / grey.shape[0], order=1)
        found.append(np.repeat(np.rint(np.clip(zoomed, 0, 1) * 255)[..., None], 3, axis=2).astype(np.uint8))
    return [found]


def missed_mirrored(kind: str, voxel_mm: float) -> list[list[NDArray[np.uint8]]]:
    """Show a body and the same mirrored: likeness does not see that left and right are exchanged."""
    pair = examples.pair(0, kind, voxel_mm=voxel_mm)
    image, labels = (replace(of, data=np.flip(of.data, 0).copy()) for of in (pair.moving, pair.moving_labels))
    return contoured(register(replace(pair, moving=replace(image, labels=labels))), HEIGHT)[1:]


def grid_of(result: rw.Result, z: int | None = None) -> NDArray[np.uint8]:
    """Draw lines of equal place in the moving image over an axial plane of the warped image."""
    volume = result.warped
    z = volume.data.shape[2] // 2 if z is None else z
    n = [HEIGHT * volume.data.shape[0] // volume.data.shape[1], HEIGHT]
    index = [(np.arange(k) + 0.5) * size / k - 0.5 for k, size in zip(n, volume.data.shape[:2], strict=True)]
    at = np.stack([*np.meshgrid(*index, indexing="ij"), np.full(n, float(z))], axis=-1)
    places = volume.geometry.points(at.reshape(-1, 3))
    there = warp_points(places, result.transform).reshape(*n, 3)
    grey = ndimage.map_coordinates(volume.data[:, :, z], np.moveaxis(at[..., :2], -1, 0), order=1, mode="nearest")
    low, high = (-1000.0, 350.0) if grey.min() < -500 else (0.0, 1000.0)
    picture = np.repeat(np.clip((grey - low) / (high - low), 0, 1)[..., None] * 255, 3, axis=2).astype(np.uint8)
    line = ((there[..., :2] / LINE_MM) % 1.0 < LINE_SHARE).any(axis=-1)
    picture[line] = (255, 150, 40)
    return np.swapaxes(picture, 0, 1)


def save(name: str, rows: Sequence[Sequence[NDArray[np.uint8]]]) -> None:
    """Write planes beside and below each other."""
    padded = [np.concatenate([np.pad(p, ((0, GAP), (0, GAP), (0, 0))) for p in row], axis=1) for row in rows]
    whole = Picture.fromarray(np.concatenate(padded)).quantize(COLOURS)
    whole.save(IMAGES / f"{name}.png", optimize=True)


def report() -> None:
    """Photograph the top of the page of a chest."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium"
    with tempfile.TemporaryDirectory() as folder:
        register(examples.pair(0, "chest", voxel_mm=3.0)).save(Path(folder) / "result")
        shot = Path(folder) / "shot.png"
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1300,1040",
        ]
        page = (Path(folder) / "result" / "report.html").as_uri()
        subprocess.run([*command, "--virtual-time-budget=9000", f"--screenshot={shot}", page], check=True)
        Picture.open(shot).convert("RGB").quantize(COLOURS).save(IMAGES / "report.png", optimize=True)


PICTURES: dict[str, Callable[[], Any]] = {
    "before-after": before_after,
    "bad-start": bad_start,
    "bad-smoothness": bad_smoothness,
    "bad-mask": bad_mask,
    "guides": guides,
    "landmarks": landmarks,
    "rigid": rigid,
    "lung": lung,
    "missed-mirrored-head": partial(missed_mirrored, "head and neck", 4.0),
    "missed-mirrored-chest": partial(missed_mirrored, "chest", 5.0),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or [*PICTURES, "report"]:
        if name == "report":
            report()
        else:
            save(name, PICTURES[name]())
