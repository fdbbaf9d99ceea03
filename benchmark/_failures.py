"""Pairs of images to judge a score on: natural ones of many sets, and failures of ten kinds made from them."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import ndimage

from _pairs import PHANTOM, SETS, cases_of, covering_pairs, data_root
from phantoms import make_phantom
from regweave.config.presets import preset
from regweave.io import read_image, read_labels
from regweave.io.geometry import nearest_axes
from regweave.types import Geometry, LabelMap, Volume

NATURAL = "natural"
KINDS = ("other part", "mirrored", "turned", "shifted", "modality", "stiff", "loose", "cropped", "corrupted", "gone",
         "other patient")  # fmt: skip
SETS_USED = {
    "msd_hippocampus": 24, "acdc_mm": 20, "ibsr18_64": 20, "openkbp_head_neck": 24, "mscmr_cardiac": 20,
    "ibsr18_64_affine": 12, "chaos_mr_abdomen": 18, "btcv_abdomen": 18, "lpba40_80": 14, "two brains": 16,
    "two abdomens": 12, "two hearts": 10, "two hippocampi": 10, PHANTOM: 6,
}  # fmt: skip
"""Natural pairs by set; small images first."""
REGION = {"ibsr18_64": "brain", "ibsr18_64_affine": "brain", "lpba40_80": "brain", "two brains": "brain",
          "acdc_mm": "heart", "mscmr_cardiac": "heart", "two hearts": "heart",
          "two hippocampi": "msd_hippocampus", "btcv_abdomen": "abdomen", "chaos_mr_abdomen": "abdomen",
          "two abdomens": "abdomen"}  # fmt: skip
OTHER_CONTRAST = {"two brains": "ibsr18_64", "two hearts": "mscmr_cardiac", "two hippocampi": "msd_hippocampus"}
"""Sets with another contrast of the moving image, and the sets that they are made from."""
ABDOMEN = {1: 6, 2: 2, 3: 3, 4: 1}
"""Labels of CHAOS, and the same organs in BTCV."""


@dataclass(frozen=True)
class Trial:
    """Two cases of a set, and what is done to make them fail."""

    set: str
    fixed: str
    moving: str
    kind: str = NATURAL
    seed: int = 0
    moving_set: str = ""

    @property
    def id(self) -> str:
        """Name of the trial."""
        return f"{self.set}/{self.fixed}/{self.moving}/{self.kind}/{self.seed}"


def trials() -> list[Trial]:
    """All trials, natural ones and failures mixed, so that any beginning of the list is a sample of all."""
    natural = {name: list(_natural(name, n)) for name, n in SETS_USED.items()}
    failing = {name: list(_failing(name, rows)) for name, rows in natural.items() if name != PHANTOM}
    both = itertools.zip_longest(*natural.values(), *failing.values())
    return [one for row in both for one in row if one is not None]


def _natural(name: str, n: int) -> Iterator[Trial]:
    rng = np.random.default_rng(7)
    if name == PHANTOM:
        yield from (Trial(name, f"seed_{k}", f"seed_{k}") for k in range(n))
    elif name in OTHER_CONTRAST:
        for pair in covering_pairs(of := OTHER_CONTRAST[name], cases_of(of), n, np.random.default_rng(11)):
            yield Trial(name, pair.fixed, pair.moving)
    elif name == "two abdomens":
        pairs = zip(cases_of("btcv_abdomen"), cases_of("chaos_mr_abdomen"), strict=False)
        yield from (Trial(name, *pair) for pair in itertools.islice(pairs, n))
    else:
        for pair in covering_pairs(name, cases_of(name), n, rng):
            yield Trial(name, pair.fixed, pair.moving)


def _failing(name: str, rows: list[Trial]) -> Iterator[Trial]:
    others = [s for s in ("msd_hippocampus", "acdc_mm", "ibsr18_64", "openkbp_head_neck", "chaos_mr_abdomen",
                          "btcv_abdomen", "lpba40_80") if REGION.get(s, s) != REGION.get(name, name)]  # fmt: skip
    for n, kind in enumerate(KINDS):
        row = rows[n % len(rows)]
        if kind == "other part":
            for k in range(2):
                other = others[(len(name) + k * 3) % len(others)]
                case = cases_of(other)[(5 * k) % len(cases_of(other))]
                yield Trial(name, rows[k].fixed, case, kind, k, other)
        elif kind == "other patient":
            if name == "acdc_mm":
                yield Trial(name, rows[0].fixed, rows[3].moving, kind)
                yield Trial(name, rows[1].fixed, rows[4].moving, kind)
        else:
            yield replace(row, kind=kind, seed=n)


def images_of(trial: Trial) -> dict[str, Any]:
    """Return the arguments of `regweave.register` for a trial."""
    if trial.set == PHANTOM:
        pair = make_phantom(int(trial.fixed.split("_")[1]), (64, 64, 64), (3.0, 3.0, 3.0)).pair
        return {"fixed": pair.fixed, "moving": pair.moving, "fixed_labels": pair.fixed_labels,
                "moving_labels": pair.moving_labels}  # fmt: skip
    one = OTHER_CONTRAST.get(trial.set, trial.set)
    sets = ("btcv_abdomen", "chaos_mr_abdomen") if trial.set == "two abdomens" else (one, one)
    fixed, labels = case_images(sets[0], trial.fixed)
    moving, moving_labels = case_images(trial.moving_set or sets[1], trial.moving)
    words: dict[str, Any] = {"init": SETS.get(trial.set, SETS["btcv_abdomen"]).init if trial.set in SETS else "none"}
    if trial.set == "two abdomens":
        words["init"] = "affine"
        labels = replace(labels, data=np.where(np.isin(labels.data, list(ABDOMEN.values())), labels.data, 0), names={})
        if not trial.moving_set:
            table = np.zeros(max(5, moving_labels.data.max() + 1), dtype=np.int32)
            table[list(ABDOMEN)] = list(ABDOMEN.values())
            moving_labels = LabelMap(table[moving_labels.data], moving_labels.geometry)
    if trial.set in OTHER_CONTRAST and not trial.moving_set:
        moving = replace(moving, data=_other_contrast(moving.data, trial.seed))
        words |= {"fixed_modality": "t1", "moving_modality": "t2"}
    if trial.kind == "other part":
        words |= {"init": "moments"}
        return {"fixed": fixed, "moving": moving, "moving_labels": moving_labels, **words}
    return _spoilt(trial, {"fixed": fixed, "moving": moving, "fixed_labels": labels, "moving_labels": moving_labels,
                           **words})  # fmt: skip


def case_images(name: str, case: str) -> tuple[Volume, LabelMap]:
    root = data_root()
    assert root is not None
    folder = root / name / case
    names = root / name / "labels.json"
    labels = read_labels(folder / "labels.nii.gz")
    known = {int(k): v for k, v in json.loads(names.read_text()).items()} if names.exists() else {}
    return read_image(folder / "image.nii.gz"), replace(labels, names={k: v for k, v in known.items() if k})


def _other_contrast(data: Any, seed: int) -> Any:
    """Another contrast of the same tissue: dark becomes bright inside the head, with another curve."""
    inside = data > 0.02 * data.max()
    share = np.clip(data / np.percentile(data[inside], 99.5), 0, 1)
    return np.where(inside, 1000 * (1.08 - share) ** (0.7 + 0.1 * (seed % 4)), 0).astype(np.float32)


def _spoilt(trial: Trial, words: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng([trial.seed, len(trial.id)])
    moving, labels, grid = words["moving"], words["moving_labels"], words["moving"].geometry
    data, extent = moving.data, np.array(grid.shape) * grid.spacing_mm
    left, _, up = nearest_axes(grid.direction)
    if trial.kind == "mirrored":
        moving, labels = (replace(v, data=np.ascontiguousarray(np.flip(v.data, left))) for v in (moving, labels))
    elif trial.kind == "turned":
        axes = [(left, up), (left, 3 - left - up)][trial.seed % 2]
        moving, labels = (replace(v, data=np.ascontiguousarray(np.flip(v.data, axes))) for v in (moving, labels))
    elif trial.kind == "shifted":
        start = np.eye(4)
        way = rng.standard_normal(3)
        start[:3, 3] = way / np.linalg.norm(way) * rng.uniform(0.25, 0.4) * float(extent.min())
        words["init"] = start
    elif trial.kind == "modality":
        moving = replace(moving, data=(data.max() + data.min() - data).astype(np.float32))
        kind = "ct" if trial.set in ("openkbp_head_neck", "btcv_abdomen") else "mr"
        words |= {"fixed_modality": kind, "moving_modality": kind}
    elif trial.kind in ("stiff", "loose"):
        factor = {"stiff": 1000.0, "loose": 1 / 1000.0}[trial.kind]
        own = preset("default")
        changed = {name: value * factor for name in ("smoothness", "smoothness_ct", "smoothness_multi")
                   if (value := getattr(own.refine, name)) is not None}  # fmt: skip
        levels = tuple(
            level.model_copy(
                update={k: v * factor for k in ("smoothness",) if (v := getattr(level, k, None)) is not None}
            )
            for level in own.levels
        )
        words["config"] = own.model_copy(
            update={
                "smoothness": own.smoothness * factor,
                "levels": levels,
                "refine": own.refine.model_copy(update=changed),
            }
        )
    elif trial.kind == "cropped":
        axis = int(rng.integers(3))
        n = grid.shape[axis]
        cut: list[slice] = [slice(None)] * 3
        cut[axis] = slice(0, n // 2) if rng.random() < 0.5 else slice(n // 2, n)
        affine = grid.affine.copy()
        affine[:3, 3] = grid.points(np.array([s.start or 0 for s in cut], dtype=float))
        there = Geometry(tuple(int(k) for k in data[tuple(cut)].shape), affine)  # type: ignore[arg-type]
        moving, labels = (
            replace(v, data=np.ascontiguousarray(v.data[tuple(cut)]), geometry=there) for v in (moving, labels)
        )
    elif trial.kind == "corrupted":
        spread = float(np.percentile(data, 99) - np.percentile(data, 1))
        smooth = ndimage.zoom(rng.standard_normal((4, 4, 4)), np.array(grid.shape) / 4, order=3)
        noisy = data + spread * (0.5 * smooth / smooth.std() + rng.normal(0, 0.25, data.shape))
        moving = replace(moving, data=noisy.astype(np.float32))
    elif trial.kind == "gone":
        sizes = ndimage.sum_labels(np.ones(data.shape), labels.data, labels.values())
        one = labels.values()[int(np.argmax(sizes))]
        away = ndimage.binary_dilation(labels.data == one, iterations=2)
        ring = ndimage.binary_dilation(away, iterations=2) & ~away
        value = np.median(data[ring]) if ring.any() else data.min()
        moving = replace(
            moving, data=np.where(away, value + rng.normal(0, 0.02 * data.std(), data.shape), data).astype(np.float32)
        )
    return {**words, "moving": moving, "moving_labels": labels}
