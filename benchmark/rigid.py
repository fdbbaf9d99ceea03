"""What do bones cost that are kept rigid, and what do they gain?

Heads and necks of two people (`openkbp_head_neck` of REGWEAVE_DATA), the mandible kept rigid: no two people have the
same mandible, so this is the hard case. And one person on two days, whose bones are known: a planning CT is pulled
through a map that nods the head, moves the jaw and bends the soft tissue, with noise; mandible and spine are kept rigid
there. Each registration is run without and with ``rigid``. The residual is the largest distance from the best rigid
motion over the voxels that show a structure. Each pair is a line of ROWS, and is not run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from _common import Claim, parser, write
from regweave import notices, register
from regweave.io import read_image, read_labels
from regweave.measures.overlap import dice
from regweave.run.rigid import rigid_parts
from regweave.spatial.rigid import keep_rigid, rigid_fit
from regweave.spatial.warp import warp_image, warp_labels, warp_points
from regweave.types import Field, Geometry, Image, LabelMap, Transform

MANDIBLE, SPINE, SPINE_MM = 5, 90, 12.0
BONE_HU, NOISE_HU = 200.0, 12.0


def head(name: str) -> Image:
    """A case with its labels; bone round the spinal cord is one structure more."""
    folder = Path(os.environ["REGWEAVE_DATA"]) / "openkbp_head_neck" / name
    image, labels = read_image(folder / "image.nii.gz"), read_labels(folder / "labels.nii.gz")
    data = labels.data.astype(np.int32)
    near = ndimage.distance_transform_edt(data != 4, sampling=image.geometry.spacing_mm) < SPINE_MM
    data[near & (image.data > BONE_HU) & (data == 0)] = SPINE
    names = {1: "left parotid", 2: "right parotid", 3: "brainstem", 4: "cord", MANDIBLE: "mandible", 6: "larynx"}
    return Image.of(image, LabelMap(data, labels.geometry, names | {7: "esophagus", SPINE: "spine"}))


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
    return Image.of(type(image)(noisy, image.geometry, "ct"), labels), true


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


def measured(kind: str, fixed: Image, moving: Image, names: Sequence[str], true: Transform | None) -> dict[str, Any]:
    """Run a pair without and with rigid structures."""
    start = "rigid" if kind == "days" else None
    with notices.muted():
        alone, kept = (
            register(fixed, moving, init=start, rigid=rigid, progress=False) for rigid in (None, list(names))
        )
    parts, values = rigid_parts(names, moving), sorted(set(fixed.labels.values()) & set(moving.labels.values()))
    overlaps = [dice(one.warped_labels.data, fixed.labels.data, values) for one in (alone, kept)]
    change = {moving.labels.name(v): overlaps[1][v] - overlaps[0][v] for v in values}
    row = {
        "kind": kind, "bent_mm": kept.rigid_mm, "left_as_found": [w for w in kept.warnings if w.startswith("W221")],
        "residual_alone_mm": residual_mm(alone.transform, parts), "residual_mm": residual_mm(kept.transform, parts),
        "dice_change": change, "folding": kept.regularity["folding_fraction"],
        "neighbours": float(np.mean([change[n] for n in change if n not in {"mandible", "spine"}])),
    }  # fmt: skip
    if true is not None:
        bone = fixed.geometry.points(np.argwhere(np.isin(fixed.labels.data, (MANDIBLE, SPINE))).astype(float))
        row["bone_error_mm"] = [
            float(np.linalg.norm(warp_points(bone, one.transform) - warp_points(bone, true), axis=1).mean())
            for one in (alone, kept)
        ]
    return row


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Residual, neighbours and folds, of two people and of two days."""
    out = []
    for kind, words in (("people", "two people"), ("days", "two days")):
        some = [row for row in rows if row["kind"] == kind and not row["left_as_found"]]
        if not some:
            continue
        out += [
            Claim(f"{words}: pairs kept rigid", len(some) / sum(row["kind"] == kind for row in rows), ".0%"),
            Claim(f"{words}: distance from rigid, without", max(r["residual_alone_mm"] for r in some), ".2f", " mm"),
            Claim(f"{words}: distance from rigid", max(r["residual_mm"] for r in some), ".3f", " mm", 0.1, "at most"),
            Claim(f"{words}: Dice of neighbours, change", float(np.mean([r["neighbours"] for r in some])), "+.4f", "",
                  -0.005),
            Claim(f"{words}: voxels folded", max(r["folding"] for r in some), ".2%", "", 0.0, "at most"),
        ]  # fmt: skip
        if kind == "days":
            for n, which in enumerate(("without", "with rigid bones")):
                error = float(np.mean([r["bone_error_mm"][n] for r in some]))
                out.append(Claim(f"{words}: error in the bones, {which}", error, ".2f", " mm"))
    return out


def main() -> None:
    """Run what is missing, and print."""
    options = parser(__doc__ or "", output="rigid", pairs=8)
    options.add_argument("--rows", type=Path, default=Path("rigid.jsonl"), help="file of finished pairs")
    given = options.parse_args()
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows.exists() else []
    rows = {row["pair"]: row for row in map(json.loads, lines)}
    names = sorted(path.name for path in (Path(os.environ["REGWEAVE_DATA"]) / "openkbp_head_neck").glob("pt_*"))
    rng = np.random.default_rng(given.seed)
    for _ in range(given.pairs):
        a, b = map(str, rng.choice(names, 2, replace=False))
        for kind, pair in (("people", f"{a} {b}"), ("days", a)):
            if pair not in rows:
                plan = head(b if kind == "people" else a)
                fixed, true = (head(a), None) if kind == "people" else another_day(plan, given.seed)
                stiff = ["mandible"] if kind == "people" else ["mandible", "spine"]
                rows[pair] = {"pair": pair, **measured(kind, fixed, plan, stiff, true)}
                with given.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[pair]) + "\n")
    write(given.output, given.seed, {"rows": list(rows.values())}, claims(list(rows.values())))


if __name__ == "__main__":
    main()
