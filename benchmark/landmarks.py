"""What do landmarks that guide gain, at their own places and at others?

Half of the landmarks of the lung (`popi_lung` of REGWEAVE_DATA), and half of 20 random places in head-and-neck phantoms
whose deformation is known, guide; the others judge. They guide exactly (accuracy .2 mm), with noise of 1 mm along each
axis (accuracy 1 mm), and exactly with one of them 15 mm wrong, which is to be named. Mean errors in mm are printed
beside those of the same registration without guides. Finished registrations are kept.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from _common import Rows, claim, parser, write
from _pairs import image_file, make_phantom, mean_of, registered
from regweave.io import read_points
from regweave.spatial.warp import warp_points
from regweave.types import Float64Array, Transform

KINDS = {"exact": (0.0, 0.2), "noisy": (1.0, 1.0), "wrong": (0.0, 0.2)}
"""Noise of the guiding points along each axis, and their stated accuracy, in mm."""
WRONG_MM, PLACES = 15.0, 20
MOST_CHANGE = {"exact": 0.0, "noisy": 0.05, "wrong": None}


@cache
def case(name: str) -> tuple[Any, Any, Float64Array, Float64Array]:
    """Both images of a case, and its corresponding points."""
    if name == "lung":
        images = [image_file("popi_lung", phase) for phase in ("t00", "t50")]
        fixed, moving = (read_points(path.with_name("landmarks.csv"))[0] for path in images)
        return *images, fixed, moving
    seed = int(name.removeprefix("phantom "))
    made, rng = make_phantom(seed), np.random.default_rng(seed)
    grid = made.pair.fixed.geometry
    fixed = grid.points(rng.uniform(8, np.array(grid.shape) - 9.0, (PLACES, 3)))
    return made.pair.fixed, made.pair.moving, fixed, warp_points(fixed, Transform(made.true_field))


def measured(name: str, split: int, kind: str) -> dict[str, Any]:
    """Run one registration; errors of all points, which of them guide, and how many wrong ones were named."""
    first, second, fixed, moving = case(name)
    given: dict[str, Any] = {}
    rng = np.random.default_rng(split)
    guides = np.sort(rng.permutation(len(fixed))[: len(fixed) // 2])
    noise, push = rng.normal(size=(len(guides), 3)), rng.normal(size=3)
    if kind != "none":
        spread, accuracy = KINDS[kind]
        stated = moving[guides] + spread * noise
        if kind == "wrong":
            stated[0] += WRONG_MM * push / np.linalg.norm(push)
        given = {"fixed_points": fixed[guides], "moving_points": stated, "guide_points": accuracy}
    result, row = registered(first, second, **given)
    errors = np.linalg.norm(warp_points(fixed, result.transform) - moving, axis=1)
    row |= {"errors_mm": errors.tolist(), "kind": kind, "case": name}
    if kind != "none":
        texts = [text for text in result.warnings if text.startswith("W227")]
        doubted = {
            point.name for point in result.landmarks.points
            if not point.guides or any(f" {point.name} (" in text for text in texts)
        }  # fmt: skip
        row |= {"guides": guides.tolist(), "named": "1" in doubted, "others_named": len(doubted - {"1"})}
    return row


def compared(row: Mapping[str, Any], alone: Mapping[str, Any]) -> dict[str, Any]:
    """Means of a registration with guides, beside those of the same points without; a wrong point does not count."""
    errors, before = np.array(row["errors_mm"]), np.array(alone["errors_mm"])
    own, others = row["guides"][row["kind"] == "wrong" :], np.setdiff1d(np.arange(len(errors)), row["guides"])
    return {
        **row, "guides_mm": float(errors[own].mean()), "guides_alone_mm": float(before[own].mean()),
        "others_mm": float(errors[others].mean()), "others_change_mm": float((errors - before)[others].mean()),
    }  # fmt: skip


def claims(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over the splits of the lung and of the phantoms."""
    out = []
    for name, kind in itertools.product(dict.fromkeys(row["case"].split()[0] for row in rows), KINDS):
        some = [row for row in rows if row["case"].startswith(name) and row["kind"] == kind]

        def mean(key: str, some: list[Any] = some) -> float:
            return mean_of(row[key] for row in some)

        where, exact = f"{name}, {kind}", 0.3 if kind == "exact" else None
        out += [
            claim(f"{where}: error of guiding points", mean("guides_mm"), ".2f mm", most=exact),
            claim(f"{where}: the same without guides", mean("guides_alone_mm"), ".2f mm"),
            claim(f"{where}: change of the others", mean("others_change_mm"), "+.3f mm", most=MOST_CHANGE[kind]),
        ]
        if kind == "wrong":
            out.append(claim(f"{name}: wrong points named", mean("named"), ".0%"))
            out.append(claim(f"{name}: right points named, in a registration", mean("others_named"), ".2f"))
        out.append(claim(f"{where}: voxels folded", max(r["folds"] for r in some), ".2%", most=0.0))
    return out


def main() -> None:
    """Run what is missing, compare, and print."""
    options = parser(__doc__, seed=0, rows=Path("landmarks.jsonl"), output="landmarks")
    cases = ["lung", "phantom 0", "phantom 1", "phantom 2"]
    options.add_argument("--cases", nargs="+", default=cases, help="lung, or phantom with its seed")
    options.add_argument("--splits", type=int, default=2, help="random halves of the points of each case")
    given = options.parse_args()
    kept, found = Rows(given.rows), []
    for name in given.cases:
        alone = kept.get((name, 0, "none"), partial(measured, name, 0, "none"))
        plan = itertools.product([name], range(given.splits), KINDS)
        found += [compared(kept.get(one, partial(measured, *one)), alone) for one in plan]
    write(given.output, given.seed, {"rows": found}, claims(found))


if __name__ == "__main__":
    main()
