"""What do bones cost that are kept rigid, and what do they gain?

Heads and necks of two people (`openkbp_head_neck` of REGWEAVE_DATA), the mandible kept rigid: no two people have the
same mandible, so this is the hard case. And one person on two days, whose bones are known: a planning CT is pulled
through a map that nods the head, moves the jaw and bends the soft tissue, with noise; mandible and spine are kept rigid
there. Each registration is run without and with ``rigid``. The residual is the largest distance from the best rigid
motion over the voxels that show a structure. Finished pairs are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from _common import Rows, claim, parser, write
from _pairs import cases_of, mean_of, read_case, registered
from regweave.run.rigid import rigid_parts
from regweave.spatial.rigid import keep_rigid, rigid_fit
from regweave.spatial.warp import warp_image, warp_labels, warp_points
from regweave.types import Field, Geometry, Image, LabelMap, Transform

SET = "openkbp_head_neck"
MANDIBLE, SPINE, SPINE_MM = 5, 90, 12.0
BONE_HU, NOISE_HU = 200.0, 12.0


def head(name: str) -> Image:
    """A case with its labels; bone round the spinal cord is one structure more."""
    image = read_case(SET, name)
    data = image.labels.data.astype(np.int32)
    near = ndimage.distance_transform_edt(data != 4, sampling=image.geometry.spacing_mm) < SPINE_MM
    data[near & (image.data > BONE_HU) & (data == 0)] = SPINE
    names = {1: "left parotid", 2: "right parotid", 3: "brainstem", 4: "cord", MANDIBLE: "mandible", 6: "larynx"}
    labels = LabelMap(data, image.geometry, names | {7: "esophagus", SPINE: "spine"})
    return replace(image, labels=labels)


def another_day(plan: Image, seed: int) -> tuple[Image, Transform]:
    """The same head on another day, and the true map from that day to the plan."""
    rng, grid = np.random.default_rng(seed), plan.geometry
    size_mm = float((np.array(grid.shape) * grid.spacing_mm).max())
    waves = rng.normal(size=(3, *grid.shape))
    soft = np.stack([ndimage.gaussian_filter(w, 0.12 * size_mm / grid.spacing_mm) for w in waves])
    field = Field((6.0 * soft / np.abs(soft).max()).astype(np.float32), grid)
    true, _, _ = keep_rigid(Transform(field, nod(grid, rng.uniform(3, 6))), rigid_parts(["mandible", "spine"], plan))
    image, labels = warp_image(plan, true, fill=-1024.0), warp_labels(plan.labels, true)
    noisy = image.data + rng.normal(0, NOISE_HU, grid.shape).astype(np.float32)
    return Image.of(replace(image, data=noisy, modality="ct"), labels), true


def nod(grid: Geometry, degrees: float) -> np.ndarray[Any, Any]:
    """Rotation about the left-right axis through the middle of a grid."""
    turn, middle = np.eye(4), grid.points((np.array(grid.shape) - 1) / 2)
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn[1:3, 1:3] = [[c, -s], [s, c]]
    turn[:3, 3] = middle - turn[:3, :3] @ middle
    return turn


def residual_mm(transform: Transform, parts: LabelMap) -> float:
    """Largest distance from rigid over the voxels that show a part."""
    shown, worst = warp_labels(parts, transform), 0.0
    for value in shown.values():
        points = shown.geometry.points(np.argwhere(shown.data == value).astype(float))
        there = warp_points(points, transform)
        motion = rigid_fit(points, there)
        worst = max(worst, float(np.linalg.norm(points @ motion[:3, :3].T + motion[:3, 3] - there, axis=1).max()))
    return worst


def measured(kind: str, a: str, b: str, seed: int) -> dict[str, Any]:
    """Run a pair of two people, or the first of them on another day, without and with rigid structures."""
    moving, names = head(b if kind == "people" else a), ["mandible"] if kind == "people" else ["mandible", "spine"]
    fixed, true = (head(a), None) if kind == "people" else another_day(moving, seed)
    values, start = sorted(set(fixed.labels.values()) & set(moving.labels.values())), "rigid" if true else None
    (alone, before), (kept, row) = (
        registered(fixed, moving, fixed.labels, values, init=start, rigid=rigid) for rigid in (None, names)
    )
    parts = rigid_parts(names, moving)
    change = {moving.labels.name(int(v)): d - before["dice"][v] for v, d in row["dice"].items()}
    found = {
        "kind": kind, "bent_mm": kept.rigid_mm, "left_as_found": [w for w in kept.warnings if w.startswith("W221")],
        "residual_alone_mm": residual_mm(alone.transform, parts), "residual_mm": residual_mm(kept.transform, parts),
        "dice_change": change, "folding": row["folds"],
        "neighbours": mean_of(d for name, d in change.items() if name not in {"mandible", "spine"}),
    }  # fmt: skip
    if true is not None:
        bone = fixed.geometry.points(np.argwhere(np.isin(fixed.labels.data, (MANDIBLE, SPINE))).astype(float))
        goal = warp_points(bone, true)
        found["bone_error_mm"] = [
            float(np.linalg.norm(warp_points(bone, one.transform) - goal, axis=1).mean()) for one in (alone, kept)
        ]
    return found


def claims(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Residual, neighbours and folds, of two people and of two days."""
    out = []
    for kind, words in (("people", "two people"), ("days", "two days")):
        some = [row for row in rows if row["kind"] == kind and not row["left_as_found"]]
        if not some:
            continue
        rate, change = len(some) / sum(row["kind"] == kind for row in rows), mean_of(r["neighbours"] for r in some)
        out += [
            claim(f"{words}: pairs kept rigid", rate, ".0%"),
            claim(f"{words}: distance from rigid, without", max(r["residual_alone_mm"] for r in some), ".2f mm"),
            claim(f"{words}: distance from rigid", max(r["residual_mm"] for r in some), ".3f mm", most=0.1),
            claim(f"{words}: Dice of neighbours, change", change, "+.4f", least=-0.005),
            claim(f"{words}: voxels folded", max(r["folding"] for r in some), ".2%", most=0.0),
        ]
        for n, which in enumerate(("without", "with rigid bones") if kind == "days" else ()):
            error = mean_of(r["bone_error_mm"][n] for r in some)
            out.append(claim(f"{words}: error in the bones, {which}", error, ".2f mm"))
    return out


def main() -> None:
    """Run what is missing, and print."""
    given = parser(__doc__, pairs=8, seed=0, rows=Path("rigid.jsonl"), output="rigid").parse_args()
    kept, found, rng, names = Rows(given.rows), [], np.random.default_rng(given.seed), cases_of(SET)
    for _ in range(given.pairs):
        a, b = map(str, rng.choice(names, 2, replace=False))
        found += [
            kept.get([kind, *pair], partial(measured, kind, a, b, given.seed))
            for kind, pair in (("people", (a, b)), ("days", (a,)))
        ]
    write(given.output, given.seed, {"rows": found}, claims(found))


if __name__ == "__main__":
    main()
