"""Pairs of images to judge a score on: natural ones of many sets, and failures of ten kinds made from them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import ndimage

from _pairs import PHANTOM, SETS, cases_of, covering_pairs, phantom, read_case
from regweave.config.settings import Settings, preset
from regweave.io.geometry import nearest_axes
from regweave.types import Geometry, Image, LabelMap

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
OTHER_PARTS = ("msd_hippocampus", "acdc_mm", "ibsr18_64", "openkbp_head_neck", "chaos_mr_abdomen", "btcv_abdomen",
               "lpba40_80")  # fmt: skip
ABDOMEN = {1: 6, 2: 2, 3: 3, 4: 1}
"""Labels of CHAOS, and the same organs in BTCV."""
FACTORS = {"stiff": 1000.0, "loose": 1 / 1000.0}


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
    natural = {name: _natural(name, n) for name, n in SETS_USED.items()}
    failing = {name: list(_failing(name, rows)) for name, rows in natural.items() if name != PHANTOM}
    both = itertools.zip_longest(*natural.values(), *failing.values())
    return [one for row in both for one in row if one is not None]


def _natural(name: str, n: int) -> list[Trial]:
    if name == PHANTOM:
        return [Trial(name, f"seed_{k}", f"seed_{k}") for k in range(n)]
    if name == "two abdomens":
        pairs = zip(cases_of("btcv_abdomen"), cases_of("chaos_mr_abdomen"), strict=False)
        return [Trial(name, *pair) for pair in itertools.islice(pairs, n)]
    of, rng = OTHER_CONTRAST.get(name, name), np.random.default_rng(11 if name in OTHER_CONTRAST else 7)
    return [Trial(name, pair.fixed, pair.moving) for pair in covering_pairs(of, cases_of(of), n, rng)]


def _failing(name: str, rows: list[Trial]) -> Iterator[Trial]:
    others = [s for s in OTHER_PARTS if REGION.get(s, s) != REGION.get(name, name)]
    for n, kind in enumerate(KINDS):
        if kind == "other part":
            for k in range(2):
                other = others[(len(name) + k * 3) % len(others)]
                case = cases_of(other)[(5 * k) % len(cases_of(other))]
                yield Trial(name, rows[k].fixed, case, kind, k, other)
        elif kind == "other patient":
            for k in range(2 if name == "acdc_mm" else 0):
                yield Trial(name, rows[k].fixed, rows[k + 3].moving, kind)
        else:
            yield replace(rows[n % len(rows)], kind=kind, seed=n)


def images_of(trial: Trial) -> dict[str, Any]:
    """Return the arguments of `regweave.register` for a trial."""
    if trial.set == PHANTOM:
        pair = phantom(trial.fixed)
        return {"fixed": pair.fixed, "moving": pair.moving}
    one = OTHER_CONTRAST.get(trial.set, trial.set)
    sets = ("btcv_abdomen", "chaos_mr_abdomen") if trial.set == "two abdomens" else (one, one)
    fixed, moving = read_case(sets[0], trial.fixed), read_case(trial.moving_set or sets[1], trial.moving)
    if trial.kind == "other part":
        return {"fixed": replace(fixed, labels=None), "moving": moving, "init": "moments"}
    words: dict[str, Any] = {"init": SETS[trial.set].init if trial.set in SETS else "none"}
    if trial.set == "two abdomens":
        words["init"] = "affine"
        organs = np.isin(fixed.labels.data, list(ABDOMEN.values()))
        fixed = replace(fixed, labels=replace(fixed.labels, data=np.where(organs, fixed.labels.data, 0), names={}))
        table = np.zeros(max(5, moving.labels.data.max() + 1), dtype=np.int32)
        table[list(ABDOMEN)] = list(ABDOMEN.values())
        moving = replace(moving, labels=LabelMap(table[moving.labels.data], moving.labels.geometry))
    if trial.set in OTHER_CONTRAST:
        moving = replace(moving, data=_other_contrast(moving.data, trial.seed))
        words |= {"fixed_modality": "t1", "moving_modality": "t2"}
    return {"fixed": fixed, **words, **_spoilt(trial, moving)}


def _other_contrast(data: Any, seed: int) -> Any:
    """Another contrast of the same tissue: dark becomes bright inside the head, with another curve."""
    inside = data > 0.02 * data.max()
    share = np.clip(data / np.percentile(data[inside], 99.5), 0, 1)
    return np.where(inside, 1000 * (1.08 - share) ** (0.7 + 0.1 * (seed % 4)), 0).astype(np.float32)


def _spoilt(trial: Trial, moving: Image) -> dict[str, Any]:
    """Return the moving image, spoilt, and other arguments that make a registration fail."""
    rng, words = np.random.default_rng([trial.seed, len(trial.id)]), {}
    data, labels, grid = moving.data, moving.labels, moving.geometry
    left, _, up = nearest_axes(grid.direction)
    if trial.kind in ("mirrored", "turned"):
        axes = (left,) if trial.kind == "mirrored" else [(left, up), (left, 3 - left - up)][trial.seed % 2]
        data, labels = np.flip(data, axes), replace(labels, data=np.ascontiguousarray(np.flip(labels.data, axes)))
    elif trial.kind == "shifted":
        start, way = np.eye(4), rng.standard_normal(3)
        least_mm = float((np.array(grid.shape) * grid.spacing_mm).min())
        start[:3, 3] = way / np.linalg.norm(way) * rng.uniform(0.25, 0.4) * least_mm
        words = {"init": start}
    elif trial.kind == "modality":
        kind = "ct" if trial.set in ("openkbp_head_neck", "btcv_abdomen") else "mr"
        data, words = data.max() + data.min() - data, {"fixed_modality": kind, "moving_modality": kind}
    elif trial.kind in FACTORS:
        words = {"config": _smoother(preset("default"), FACTORS[trial.kind])}
    elif trial.kind == "cropped":
        axis, cut, affine = int(rng.integers(3)), [slice(None)] * 3, grid.affine.copy()
        half = grid.shape[axis] // 2
        cut[axis] = slice(0, half) if rng.random() < 0.5 else slice(half, None)
        affine[:3, 3] = grid.points(np.array([s.start or 0 for s in cut], dtype=float))
        data, parts = (v[tuple(cut)] for v in (data, labels.data))
        grid = Geometry(data.shape, affine)
        labels = replace(labels, data=np.ascontiguousarray(parts), geometry=grid)
    elif trial.kind == "corrupted":
        spread = float(np.percentile(data, 99) - np.percentile(data, 1))
        smooth = ndimage.zoom(rng.standard_normal((4, 4, 4)), np.array(grid.shape) / 4, order=3)
        data = data + spread * (0.5 * smooth / smooth.std() + rng.normal(0, 0.25, data.shape))
    elif trial.kind == "gone":
        sizes = ndimage.sum_labels(np.ones(data.shape), labels.data, labels.values())
        away = ndimage.binary_dilation(labels.data == labels.values()[int(np.argmax(sizes))], iterations=2)
        ring = ndimage.binary_dilation(away, iterations=2) & ~away
        value = np.median(data[ring]) if ring.any() else data.min()
        data = np.where(away, value + rng.normal(0, 0.02 * data.std(), data.shape), data)
    data = np.ascontiguousarray(data, dtype=np.float32)
    return {"moving": replace(moving, data=data, geometry=grid, labels=labels), **words}


def _smoother(own: Settings, factor: float) -> Settings:
    """Settings with another smoothness in the levels and the refinement."""

    def turned(part: Any) -> Any:
        names = ("smoothness", "smoothness_ct", "smoothness_multi", "finest_smoothness")
        return part.model_copy(update={n: v * factor for n in names if (v := getattr(part, n, None)) is not None})

    return turned(own).model_copy(update={"levels": tuple(map(turned, own.levels)), "refine": turned(own.refine)})
