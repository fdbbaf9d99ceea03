"""How far do more threads shorten one registration, stage by stage?

One pair at full size, `default` with an affine start, once for each number of threads, in turn, so that a busy machine
disturbs them alike; the fastest of some repetitions counts. FOLDER holds cases as the sets of REGWEAVE_DATA do,
CASE/image.nii.gz and labels.nii.gz; the first two are registered. Without it a phantom of the same size is.
Displacements of all runs must have the same bits.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import Claim, parser, write
from _fresh import LARGE_SHAPE, LARGE_SPACING_MM
from _pairs import SETS
from regweave import register
from regweave.datasets.phantom import make_phantom

WANTED = {8: 4.5, 16: 7.0}
"""Speed-ups that are asked for, by threads."""
COMPUTED = ("levels", "refine")
AROUND = ("initial", *COMPUTED, "outputs", "measure")


def images(folder: str | None, shape: Sequence[int]) -> tuple[dict[str, Any], str]:
    """Images and labels, as files or in memory, and a sentence that says what they are."""
    if folder is None:
        x, y, z = shape
        p = make_phantom(0, (x, y, z), LARGE_SPACING_MM).pair
        return {k: getattr(p, k) for k in ("fixed", "moving", "fixed_labels", "moving_labels")}, "a phantom"
    cases = sorted(f.parent for f in Path(folder).glob("*/image.nii.gz"))[:2]
    if len(cases) < 2:
        raise SystemExit("the folder has no two cases; it should hold CASE/image.nii.gz and CASE/labels.nii.gz")
    fixed, moving = cases
    paths = {"fixed": fixed / "image.nii.gz", "moving": moving / "image.nii.gz"}
    labels = {"fixed_labels": fixed / "labels.nii.gz", "moving_labels": moving / "labels.nii.gz"}
    return {**paths, **labels}, f"{moving.name} to {fixed.name} of {Path(folder).resolve().name}"


def once(pair: Mapping[str, Any], preset: str, threads: int) -> dict[str, Any]:
    """Register; seconds of each stage, Dice and a hash of the displacement."""
    result = register(**pair, preset=preset, init="affine", threads=threads)
    digest = hashlib.sha256(result.transform.field.data.tobytes()).hexdigest()[:16]
    shape = list(result.transform.field.geometry.shape)
    dice = result.summary()["mean_dice"]
    return {"seconds": dict(result.seconds), "shape": shape, "dice": dice, "displacement": digest}


def curve(pair: Mapping[str, Any], preset: str, counts: Sequence[int], repetitions: int) -> dict[int, dict[str, Any]]:
    """Fastest seconds of each stage by number of threads."""
    rows: dict[int, dict[str, Any]] = {}
    for repetition in range(repetitions):
        for n in counts:
            row = once(pair, preset, n)
            print(
                f"run {repetition + 1}, {n} threads:", {k: round(v, 2) for k, v in row["seconds"].items()}, flush=True
            )
            before = rows.get(n, row)["seconds"]
            rows[n] = {**row, "seconds": {k: min(v, before.get(k, v)) for k, v in row["seconds"].items()}}
    return rows


def total(row: Mapping[str, Any], stages: Sequence[str]) -> float:
    """Seconds of some stages together."""
    return float(sum(row["seconds"].get(stage, 0.0) for stage in stages))


def table(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """Seconds by stage and speed-ups, a line for each number of threads."""
    first = rows[min(rows)]
    lines = ["| threads | " + " | ".join(AROUND) + " | levels + refine | all | speed-up | of all |"]
    lines.append("|---" * (len(AROUND) + 5) + "|")
    for n, row in rows.items():
        both = [total(row, stages) for stages in (COMPUTED, AROUND)]
        gains = [total(first, s) / b for s, b in zip((COMPUTED, AROUND), both, strict=True)]
        cells = [row["seconds"].get(stage, 0.0) for stage in AROUND] + both
        lines.append(f"| {n} | " + " | ".join(f"{c:.2f}" for c in cells) + f" | {gains[0]:.2f}× | {gains[1]:.2f}× |")
    return "\n".join(lines)


def claims_of(rows: Mapping[int, Mapping[str, Any]], where: str) -> list[Claim]:
    """What the curve says; levels and refinement have targets."""
    first = rows[min(rows)]
    same = len({row["displacement"] for row in rows.values()}) == 1
    out = [Claim(f"displacements with the same bits, {where}", float(same), ".0f", "", 1.0)]
    for n, row in rows.items():
        out.append(Claim(f"seconds of levels and refinement, {n} threads, {where}", total(row, COMPUTED), ".2f", " s"))
        if n != min(rows):
            gain = total(first, COMPUTED) / total(row, COMPUTED)
            out.append(
                Claim(f"speed-up of levels and refinement, {n} threads, {where}", gain, ".2f", "×", WANTED.get(n))
            )
            gain = total(first, AROUND) / total(row, AROUND)
            out.append(Claim(f"speed-up of the whole registration, {n} threads, {where}", gain, ".2f", "×"))
    return out


def main(words: Sequence[str] | None = None) -> None:
    """Measure the curve, print it and write it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options = parser(__doc__ or "", output="threads")
    options.add_argument("folder", nargs="?", help="cases to register, by default a phantom")
    options.add_argument("--counts", type=int, nargs="+", default=[n for n in (1, 2, 4, 8, 16) if n <= max(2, cores)])
    options.add_argument("--repetitions", type=int, default=2)
    options.add_argument("--preset", default="default")
    options.add_argument("--shape", type=int, nargs=3, default=LARGE_SHAPE, help="of the phantom")
    args = options.parse_args(words)
    pair, data = images(args.folder, args.shape)
    rows = curve(pair, args.preset, sorted(set(args.counts)), args.repetitions)
    where = f"{args.preset}, {'×'.join(map(str, rows[min(rows)]['shape']))}, {data}"
    print(table(rows))
    credit = SETS["ibsr18_native"].credit if args.folder else SETS["phantom"].credit
    content = {"data": data, "credit": credit, "curve": {str(n): row for n, row in rows.items()}, "cores": cores}
    write(args.output, args.seed, content, claims_of(rows, where))


if __name__ == "__main__":
    sys.exit(main())
