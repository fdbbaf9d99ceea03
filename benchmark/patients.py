"""Another patient under one ID: does `contours` name it, and does it name follow-ups of one patient by mistake?

    python benchmark/patients.py ROWS.jsonl [--seconds 600]     # resumable: a line for each pair

Plans and scans of today are series as the DICOM reader returns them, made from images of two sets of CT. A follow-up is
the same patient at another couch position, turned, deformed by a random smooth map of up to 8 mm, with other noise.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

import _common
from _failures import case_images
from _pairs import cases_of
from regweave.clinic.commission import CT_IMAGE, rigid_map, smooth_map
from regweave.clinic.propagate import propagate_contours
from regweave.contours.regions import outlines
from regweave.errors import RegweaveError
from regweave.io.dicom.series import DicomSlice, Series, SliceGrid
from regweave.measures.overlap import dice
from regweave.spatial.warp import warp_labels
from regweave.types import Contour, Field, Geometry, Identity, LabelMap, Structure, StructureSet, Transform, Volume

PAIRS = {"openkbp_head_neck": 20, "btcv_abdomen": 2}
DRAWN = {"openkbp_head_neck": (1, 2, 3, 5), "btcv_abdomen": (1, 2, 3, 6)}
"""Structures that the plan has."""
NAMED = "another_patient_signs"


def ct(name: str, case: str) -> tuple[Volume, LabelMap]:
    """Return a case in Hounsfield units; BTCV is cut off at -125, and what is below is mostly air."""
    image, labels = case_images(name, case)
    data = np.where(image.data <= -125, np.float32(-1000), image.data) if name == "btcv_abdomen" else image.data
    return Volume(data, image.geometry, "ct"), labels


def scan(image: Volume, name: str) -> Series:
    """Return an image as a series of the one patient that all series state."""
    grid = image.geometry
    u, v, n = grid.direction.T
    planes = [grid.points(np.array([0.0, 0.0, k])) for k in range(grid.shape[2])]
    slices = tuple(DicomSlice(CT_IMAGE, f"1.2.6.{name}.{k}", at, float(at @ n)) for k, at in enumerate(planes))
    identity = Identity("one", "ONE", "", "", f"1.2.3.{name}", f"1.2.4.{name}", f"1.2.5.{name}")
    width, height, _ = grid.spacing_mm
    return Series(image, slices, SliceGrid(u, v, n, (width, height), grid.shape[:2]), identity, "CT", exact=True)


def drawn(labels: LabelMap, series: Series, values: tuple[int, ...]) -> StructureSet:
    """Return outlines of labels on the slices of a series."""
    grid = labels.geometry
    u, v = (np.arange(n) * s for n, s in zip(grid.shape[:2], grid.spacing_mm[:2], strict=True))
    found = []
    for value in values:
        level = 0.5 - (labels.data == value).astype(float)
        contours = []
        for k in range(grid.shape[2]):
            for ring in outlines(level[:, :, k].T, u, v):
                index = np.column_stack([ring / grid.spacing_mm[:2], np.full(len(ring), k)])
                contours.append(Contour(grid.points(index), image=k))
        found.append(Structure(value, labels.name(value), "ORGAN", (200, 40, 60), tuple(contours)))
    return StructureSet(tuple(found), "PLAN", series.frame_uid, series.identity)


def followed(image: Volume, labels: LabelMap, seed: int) -> tuple[Volume, LabelMap]:
    """Return a follow-up of a patient, and the labels where they are then."""
    rng, grid = np.random.default_rng(seed), image.geometry
    middle = grid.points((np.array(grid.shape) - 1) / 2.0)
    turn = rigid_map(float(rng.uniform(-4, 4)), tuple(rng.uniform(-6, 6, 3)))
    bend = smooth_map(seed, float(rng.uniform(4, 8)))
    points = grid.points(np.moveaxis(np.indices(grid.shape, dtype=float), 0, -1).reshape(-1, 3)) - middle
    index = grid.index(bend(turn(points)) + middle).T.reshape(3, *grid.shape)
    data = ndimage.map_coordinates(image.data, index, order=1, mode="nearest")
    data += np.where(data > -900, rng.normal(0, 15, data.shape), 0)
    there = ndimage.map_coordinates(labels.data, index, order=0, mode="nearest")
    affine = grid.affine.copy()
    affine[:3, 3] += rng.uniform(-20, 20, 3)
    place = Geometry(grid.shape, affine)
    return Volume(data.astype(np.float32), place, "ct"), LabelMap(there, place, names=labels.names)


def measured(name: str, plan: str, today: str, seed: int) -> dict[str, Any]:
    """Carry the contours of a plan, and return verdict and reasons."""
    image, labels = ct(name, plan)
    new, truth = ct(name, today) if plan != today else followed(image, labels, seed)
    series, other = scan(image, f"1.{seed}"), scan(new, f"2.{seed}")
    structures = drawn(labels, series, DRAWN[name])
    row: dict[str, Any] = {"set": name, "plan": plan, "today": today, "other": plan != today}
    began = time.process_time()
    try:
        done = propagate_contours(series, other, rtstruct=structures, threads=1, progress=False)
    except RegweaveError as error:
        return {**row, "verdict": "fail", "reasons": [error.code]}
    verdict, whole = done.result.verdict, done.quality.whole
    there = Transform(Field.zero(done.result.transform.field.geometry))
    found = dice(warp_labels(labels, done.result.transform), warp_labels(truth, there), list(DRAWN[name]))
    return {
        **row, "verdict": verdict.word, "reasons": [reason.rule for reason in verdict.reasons],
        "similarity": whole.similarity_after, "moved_mm": whole.displacement_p95_mm, "bent_mm": whole.bones_bent_mm,
        "dice": float(np.mean(list(found.values()))), "score": done.result.likeness.score,
        "seconds": time.process_time() - began,
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


def judge(rows: list[dict[str, Any]]) -> None:
    """Write counts of verdicts and of pairs that are named."""
    claims = []
    for name in PAIRS:
        for other, words in ((True, "two patients"), (False, "follow-ups of one")):
            own = [row for row in rows if row["set"] == name and row["other"] == other]
            if not own:
                continue
            passed, named = (sum(found) for found in (
                [row["verdict"] == "pass" for row in own], [NAMED in row["reasons"] for row in own]
            ))  # fmt: skip
            head, n = f"{name}, {len(own)} pairs of {words}", len(own)
            if other:
                claims += [
                    _common.Claim(f"{head}: pass", passed, ".0f", "", 0, "at most"),
                    _common.Claim(f"{head}: named another patient", named, ".0f", "", 0.75 * n),
                    _common.Claim(f"{head}: mean Dice", float(np.mean([row["dice"] for row in own])), ".2f"),
                ]
            else:
                claims += [
                    _common.Claim(f"{head}: named another patient", named, ".0f", "", 0, "at most"),
                    _common.Claim(f"{head}: pass", passed, ".0f"),
                ]
    _common.write("patients", 17, {"pairs": len(rows), "rows": rows}, claims)


def main() -> None:
    """Carry out what is missing, then judge."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("rows", type=Path)
    words.add_argument("--seconds", type=float, default=600.0)
    given = words.parse_args()
    rows = [json.loads(text) for text in given.rows.read_text().splitlines()] if given.rows.exists() else []
    done, began = {(row["plan"], row["today"]) for row in rows}, time.perf_counter()
    for name, plan, today, seed in trials():
        if (plan, today) not in done and time.perf_counter() - began < given.seconds:
            rows.append(_common.plain(measured(name, plan, today, seed)))
            with given.rows.open("a") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
            print(plan, today, rows[-1]["verdict"], rows[-1]["reasons"], flush=True)
    judge(rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
