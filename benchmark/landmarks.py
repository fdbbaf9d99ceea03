"""What do landmarks that guide gain, at their own places and at others?

Half of the landmarks of the lung (`popi_lung` of REGWEAVE_DATA), and half of 20 random places in head-and-neck phantoms
whose deformation is known, guide; the others judge. They guide exactly (accuracy .2 mm), with noise of 1 mm along each
axis (accuracy 1 mm), and exactly with one of them 15 mm wrong, which is to be named. Mean errors in mm are printed
beside those of the same registration without guides. Each registration is a line of ROWS, and is not run again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "datasets"))
from _common import Claim, parser, write
from phantoms import make_phantom
from regweave import notices, register
from regweave.io import read_points
from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Transform

KINDS = {"exact": (0.0, 0.2), "noisy": (1.0, 1.0), "wrong": (0.0, 0.2)}
"""Noise of the guiding points along each axis, and their stated accuracy, in mm."""
WRONG_MM, PLACES = 15.0, 20


@cache
def case(name: str) -> tuple[Any, Any, Float64Array, Float64Array]:
    """Both images of a case, and its corresponding points."""
    if name == "lung":
        phases = [Path(os.environ["REGWEAVE_DATA"]) / "popi_lung" / phase for phase in ("t00", "t50")]
        fixed, moving = (read_points(phase / "landmarks.csv")[0] for phase in phases)
        return phases[0] / "image.nii.gz", phases[1] / "image.nii.gz", fixed, moving
    seed = int(name.removeprefix("phantom "))
    made, rng = make_phantom(seed), np.random.default_rng(seed)
    grid = made.pair.fixed.geometry
    fixed = grid.points(rng.uniform(8, np.array(grid.shape) - 9.0, (PLACES, 3)))
    return made.pair.fixed, made.pair.moving, fixed, warp_points(fixed, Transform(made.true_field))


def runs(cases: Sequence[str], splits: int) -> Iterator[tuple[str, int, str]]:
    """Case, split and kind of each registration; one without guides for each case."""
    for name in cases:
        yield name, 0, "none"
        yield from ((name, split, kind) for split in range(splits) for kind in KINDS)


def measured(name: str, split: int, kind: str) -> dict[str, Any]:
    """Run one registration; errors of all points, which of them guide, and how many wrong ones were named."""
    first, second, fixed, moving = case(name)
    row: dict[str, Any] = {"case": name, "split": split, "kind": kind}
    given: dict[str, Any] = {}
    rng = np.random.default_rng(split)
    guides = np.sort(rng.permutation(len(fixed))[: len(fixed) // 2])
    noise, push = rng.normal(size=(len(guides), 3)), rng.normal(size=3)
    if kind != "none":
        spread, accuracy = KINDS[kind]
        told = moving[guides] + spread * noise
        if kind == "wrong":
            told[0] += WRONG_MM * push / np.linalg.norm(push)
        given = {"fixed_points": fixed[guides], "moving_points": told, "guide_points": accuracy}
    with notices.muted():
        result = register(first, second, threads=1, progress=False, **given)
    if kind != "none":
        doubted = {point.name for point in result.landmarks.points if not point.guides}
        texts = [text for text in result.warnings if text.startswith("W227")]
        doubted |= {
            point.name for point in result.landmarks.points if any(f" {point.name} (" in text for text in texts)
        }
        row |= {"guides": guides.tolist(), "named": "1" in doubted, "others_named": len(doubted - {"1"})}
    errors = np.linalg.norm(warp_points(fixed, result.transform) - moving, axis=1)
    return row | {"errors_mm": errors.tolist(), "folding": result.regularity["folding_fraction"]}


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means of each registration with guides, beside those of the same points without."""
    alone = {row["case"]: np.array(row["errors_mm"]) for row in rows if row["kind"] == "none"}
    out = []
    for row in (row for row in rows if row["kind"] != "none"):
        errors, before = np.array(row["errors_mm"]), alone[row["case"]]
        own = np.isin(np.arange(len(errors)), row["guides"][1 if row["kind"] == "wrong" else 0 :])
        others = ~np.isin(np.arange(len(errors)), row["guides"])
        means = {"guides_mm": errors[own], "guides_alone_mm": before[own], "others_mm": errors[others]}
        found = {key: float(values.mean()) for key, values in means.items()}
        out.append({**row, **found, "others_change_mm": found["others_mm"] - float(before[others].mean())})
    return out


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Means over the splits of the lung and of the phantoms."""
    out = []
    for name in dict.fromkeys(row["case"].split()[0] for row in rows):
        for kind in KINDS:
            some = [row for row in rows if row["case"].startswith(name) and row["kind"] == kind]
            if not some:
                continue
            own, change = (float(np.mean([row[key] for row in some])) for key in ("guides_mm", "others_change_mm"))
            alone = float(np.mean([row["guides_alone_mm"] for row in some]))
            target = {"exact": 0.3}.get(kind)
            out.append(Claim(f"{name}, {kind}: error of guiding points", own, ".2f", " mm", target, "at most"))
            out.append(Claim(f"{name}, {kind}: the same without guides", alone, ".2f", " mm"))
            most = {"exact": 0.0, "noisy": 0.05}.get(kind)
            out.append(Claim(f"{name}, {kind}: change of the others", change, "+.3f", " mm", most, "at most"))
            if kind == "wrong":
                out.append(Claim(f"{name}: wrong points named", float(np.mean([row["named"] for row in some])), ".0%"))
                false = float(np.mean([row["others_named"] for row in some]))
                out.append(Claim(f"{name}: right points named, in a registration", false, ".2f"))
            out.append(
                Claim(f"{name}, {kind}: voxels folded", max(r["folding"] for r in some), ".2%", "", 0.0, "at most")
            )
    return out


def main() -> None:
    """Run what is missing, compare, and print."""
    options = parser(__doc__, seed=0, output="landmarks")
    options.add_argument("--cases", nargs="+", default=["lung", "phantom 0", "phantom 1", "phantom 2"])
    options.add_argument("--splits", type=int, default=2, help="random halves of the points of each case")
    options.add_argument("--rows", type=Path, default=Path("landmarks.jsonl"), help="file of finished registrations")
    given = options.parse_args()
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows.exists() else []
    rows = {(row["case"], row["split"], row["kind"]): row for row in map(json.loads, lines)}
    wanted = list(runs(given.cases, given.splits))
    for one in wanted:
        if one not in rows:
            rows[one] = measured(*one)
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[one]) + "\n")
    found = compared([rows[one] for one in wanted])
    write(given.output, given.seed, {"rows": found}, claims(found))


if __name__ == "__main__":
    main()
