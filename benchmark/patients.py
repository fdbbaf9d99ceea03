"""Another patient under one ID: does `contours` name it, and does it name follow-ups of one patient by mistake?

Plans and scans of today are series as the DICOM reader returns them, made from images of two sets of CT. A follow-up is
the same patient at another couch position, turned, deformed by a random smooth map of up to 8 mm, with other noise.
"""

import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from _common import Rows, claim, parser, write
from _pairs import cases_of, mean_of, read_case
from regweave.clinic.commission import CT_IMAGE, rigid_map, smooth_map
from regweave.clinic.propagate import propagate_contours
from regweave.contours import outlines
from regweave.errors import RegweaveError
from regweave.io.dicom.series import DicomSlice, Series, SliceGrid
from regweave.measures.scores import dice
from regweave.spatial.warp import warp_labels
from regweave.types import (
    Contour,
    Field,
    Geometry,
    Identity,
    Image,
    LabelMap,
    Structure,
    StructureSet,
    Transform,
    Volume,
)

PAIRS = {"openkbp_head_neck": 20, "btcv_abdomen": 2}
DRAWN = {"openkbp_head_neck": (1, 2, 3, 5), "btcv_abdomen": (1, 2, 3, 6)}
"""Structures that the plan has."""
NAMED = "another_patient_signs"


def ct(name: str, case: str) -> Image:
    """Return a case in Hounsfield units; BTCV is cut off at -125, and what is below is mostly air."""
    image = read_case(name, case)
    data = np.where(image.data <= -125, np.float32(-1000), image.data) if name == "btcv_abdomen" else image.data
    return Image(data, image.geometry, "ct", image.labels)


def scan(image: Image, name: str) -> Series:
    """Return an image as a series of the one patient that all series state."""
    grid = image.geometry
    u, v, n = grid.direction.T
    planes = [grid.points(np.array([0.0, 0.0, k])) for k in range(grid.shape[2])]
    slices = tuple(DicomSlice(CT_IMAGE, f"1.2.6.{name}.{k}", at, float(at @ n)) for k, at in enumerate(planes))
    identity = Identity("one", "ONE", "", "", f"1.2.3.{name}", f"1.2.4.{name}", f"1.2.5.{name}")
    size = SliceGrid(u, v, n, tuple(grid.spacing_mm[:2]), grid.shape[:2])
    return Series(Volume(image.data, grid, "ct"), slices, size, identity, "CT", exact=True)


def drawn(labels: LabelMap, series: Series, values: tuple[int, ...]) -> StructureSet:
    """Return outlines of labels on the slices of a series."""
    grid = labels.geometry
    u, v = (np.arange(n) * s for n, s in zip(grid.shape[:2], grid.spacing_mm[:2], strict=True))
    found = []
    for value in values:
        level = 0.5 - (labels.data == value).astype(float)
        contours = [
            Contour(grid.points(np.column_stack([ring / grid.spacing_mm[:2], np.full(len(ring), k)])), image=k)
            for k in range(grid.shape[2])
            for ring in outlines(level[:, :, k].T, u, v)
        ]
        found.append(Structure(value, labels.name(value), "ORGAN", (200, 40, 60), tuple(contours)))
    return StructureSet(tuple(found), "PLAN", series.frame_uid, series.identity)


def followed(image: Image, seed: int) -> Image:
    """Return a follow-up of a patient, with the labels where they are then."""
    rng, grid = np.random.default_rng(seed), image.geometry
    middle = grid.points((np.array(grid.shape) - 1) / 2.0)
    turn = rigid_map(float(rng.uniform(-4, 4)), tuple(rng.uniform(-6, 6, 3)))
    bend = smooth_map(seed, float(rng.uniform(4, 8)))
    points = grid.points(np.moveaxis(np.indices(grid.shape, dtype=float), 0, -1).reshape(-1, 3)) - middle
    index = grid.index(bend(turn(points)) + middle).T.reshape(3, *grid.shape)
    data = ndimage.map_coordinates(image.data, index, order=1, mode="nearest")
    data += np.where(data > -900, rng.normal(0, 15, data.shape), 0)
    there, affine = ndimage.map_coordinates(image.labels.data, index, order=0, mode="nearest"), grid.affine.copy()
    affine[:3, 3] += rng.uniform(-20, 20, 3)
    place = Geometry(grid.shape, affine)
    return Image(data.astype(np.float32), place, "ct", LabelMap(there, place, names=image.labels.names))


def measured(name: str, plan: str, today: str, seed: int) -> dict[str, Any]:
    """Carry the contours of a plan, and return verdict and reasons."""
    image = ct(name, plan)
    new = ct(name, today) if plan != today else followed(image, seed)
    series, other = scan(image, f"1.{seed}"), scan(new, f"2.{seed}")
    row: dict[str, Any] = {"set": name, "plan": plan, "today": today, "other": plan != today}
    began = time.process_time()
    try:
        done = propagate_contours(
            series, other, rtstruct=drawn(image.labels, series, DRAWN[name]), threads=1, progress=False
        )
    except RegweaveError as problem:
        return {**row, "verdict": "fail", "reasons": [problem.code]}
    seconds, verdict, whole = time.process_time() - began, done.result.verdict, done.quality.whole
    there = Transform(Field.zero(done.result.transform.field.geometry))
    found = dice(warp_labels(image.labels, done.result.transform), warp_labels(new.labels, there), DRAWN[name])
    return {
        **row, "verdict": verdict.word, "reasons": [reason.rule for reason in verdict.reasons],
        "similarity": whole.similarity_after, "moved_mm": whole.displacement_p95_mm, "bent_mm": whole.bones_bent_mm,
        "dice": mean_of(found.values()), "score": done.result.likeness.score, "seconds": seconds,
    }  # fmt: skip


def trials() -> list[tuple[str, str, str, int]]:
    """Pairs of two patients, each patient once, and follow-ups of the first of each pair; mixed."""
    listed = []
    for name, count in PAIRS.items():
        cases = cases_of(name)
        order = [cases[k] for k in np.random.default_rng(17).permutation(len(cases))]
        for k in range(count):
            one, two = order[2 * k : 2 * k + 2]
            listed += [(k, (name, one, two, 100 + k)), (k, (name, one, one, 300 + k))]
    return [trial for _, trial in sorted(listed, key=lambda pair: pair[0])]


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count verdicts and pairs that are named."""
    out = []
    for name in PAIRS:
        for other, words in ((True, "two patients"), (False, "follow-ups of one")):
            own = [row for row in rows if row["set"] == name and row["other"] == other]
            passed, named = (sum(flags) for flags in (
                [row["verdict"] == "pass" for row in own], [NAMED in row["reasons"] for row in own]
            ))  # fmt: skip
            head, n = f"{name}, {len(own)} pairs of {words}", len(own)
            if other and n:
                out += [
                    claim(f"{head}: pass", passed, ".0f", most=0),
                    claim(f"{head}: named another patient", named, ".0f", least=0.75 * n),
                    claim(f"{head}: mean Dice", mean_of(row.get("dice") for row in own), ".2f"),
                ]
            elif n:
                out += [
                    claim(f"{head}: named another patient", named, ".0f", most=0),
                    claim(f"{head}: pass", passed, ".0f"),
                ]
    return out


def main() -> None:
    """Carry out what is missing, then judge."""
    options = parser(__doc__, seconds=600.0)
    options.add_argument("rows", type=Path, help="file of finished pairs")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    kept, end = Rows(given.rows), time.perf_counter() + given.seconds
    for trial in trials():
        if time.perf_counter() < end:
            kept.get(trial, partial(measured, *trial))
    rows = kept.all()
    write("patients", 17, {"pairs": len(rows), "rows": rows}, claims(rows))


if __name__ == "__main__":
    main()
