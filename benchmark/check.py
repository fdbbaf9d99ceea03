"""What `--check` finds: limits of the error on planted deformations of real images, and ranks of structures.

A planted pair is a real image and the same image moved by the field that another person's registration gave, with
noise and a shading. So the true error of each voxel is known. A natural pair has labels on both images: structures are
ranked by their Dice there and back plus their agreement, and by size alone. The limit is fitted with one set left out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from scipy import ndimage, optimize, sparse, stats

import _common
import regweave as rw
from regweave.io import read_image, read_labels
from regweave.run import check
from regweave.spatial.voxels import body_mask
from regweave.types import Field, Transform, Volume

SETS = ("msd_hippocampus", "acdc_mm", "ibsr18_64_affine", "openkbp_head_neck", "chaos_mr_abdomen", "btcv_abdomen",
        "lpba40_80")  # fmt: skip
RANKED = ("openkbp_head_neck", "btcv_abdomen", "chaos_mr_abdomen", "lpba40_80")
VOXELS = 3000
ROWS = _common.RESULTS / "check.jsonl"
DATA = Path(os.environ.get("REGWEAVE_DATA", "."))


def cases(name: str) -> list[Path]:
    """Folders of a set in order; of one phase only, and of one side of each person."""
    found = sorted(path for path in (DATA / name).iterdir() if (path / "image.nii.gz").is_file())
    return [path for path in found if not path.name.endswith("_ES")]


def planted(fixed: Volume, moving: Volume, seed: int) -> tuple[Volume, Transform]:
    """Return the first image moved by the field of a registration to the second, and the transform to the original."""
    rng = np.random.default_rng(seed)
    field = rw.register(fixed, moving, init="moments", progress=False).transform.field
    sigma = 6.0 / fixed.geometry.spacing_mm
    moved = np.stack([ndimage.gaussian_filter(part - part.mean(), sigma) for part in field.data]).astype(np.float32)
    transform = Transform(Field(moved, fixed.geometry))
    data = rw.warp(fixed, transform).data
    span = float(np.subtract(*np.percentile(data, (99, 1))))
    noise = ndimage.gaussian_filter(rng.standard_normal(data.shape), 0.6) * 0.04 * span
    shade = ndimage.gaussian_filter(rng.standard_normal(data.shape), 15)
    shade *= (0.0 if fixed.modality == "ct" else 0.1) * span / np.abs(shade).max()
    return Volume((data + noise + shade).astype(np.float32), fixed.geometry, fixed.modality), transform


def measure(name: str, number: int, *, plant: bool) -> dict[str, object]:
    """Register one pair with a check and return its row."""
    listed = cases(name)
    one, two = listed[(2 * number) % len(listed)], listed[(2 * number + 3) % len(listed)]
    first, second = (read_image(path / "image.nii.gz") for path in (one, two))
    row: dict[str, object] = {"set": name, "number": number, "planted": plant}
    labels = read_labels(one / "labels.nii.gz")
    if plant:
        fixed, truth = planted(first, second, number)
        result = rw.register(fixed, first, moving_labels=labels, init="none", check=True, progress=False)
    else:
        result = rw.register(
            second, first, moving_labels=labels, fixed_labels=read_labels(two / "labels.nii.gz"), init="affine",
            check=True, progress=False,
        )  # fmt: skip
    assert result.check is not None
    run = sum(v for k, v in result.seconds.items() if k in ("levels", "refine", "outputs", "measure"))
    row["runs"] = result.seconds["check"] / run
    if plant:
        inside = body_mask(fixed)
        wrong = np.sqrt(((result.transform.field.data - truth.field.data) ** 2).sum(axis=0))
        at = np.random.default_rng(number).permutation(np.flatnonzero(inside))[:VOXELS]
        found = EXTRA[-1].reshape(3, -1)[:, at]
        row["voxel_mm"] = float(fixed.geometry.spacing_mm.max())
        row["voxels"] = np.concatenate([wrong.ravel()[None, at] / row["voxel_mm"], found]).round(3).tolist()
    else:
        sizes = {v: float((labels.data == v).sum()) ** (1 / 3) for v in labels.values()}
        row["structures"] = [
            [result.dice[s.label]["after"], s.there_and_back, s.agreement, sizes[s.label]]
            for s in result.check.structures
            if np.isfinite(result.dice.get(s.label, {}).get("after", np.nan))
        ]
    return row


EXTRA: list[np.ndarray] = []
FEATURES = check.features


def _keep(*given: object) -> np.ndarray:
    """Keep the features of a check for the fit."""
    EXTRA[:] = [FEATURES(*given)]  # type: ignore[arg-type]
    return EXTRA[0]


check.features = _keep  # type: ignore[assignment]


def fit(rows: list[dict[str, object]], quantile: float) -> np.ndarray:
    """Fit the constant and the factors of the limit in logarithms, by the pinball loss; no factor is negative."""
    wrong, *found = np.concatenate([np.array(r["voxels"], dtype=float) for r in rows], axis=1)
    x, y = np.stack([np.ones_like(wrong), *found], axis=1), np.log(wrong + check.FLOOR)
    known = np.isfinite(x).all(axis=1)
    pick = np.random.default_rng(0).permutation(np.flatnonzero(known))[:3000]
    x, y, n = x[pick], y[pick], len(pick)  # minimise q·u + (1 - q)·v with x·b + u - v = y
    cost = np.r_[np.zeros(4), np.full(n, quantile), np.full(n, 1 - quantile)]
    bounds = [(None, None), *[(0, None)] * (3 + 2 * n)]
    matrix = sparse.hstack([sparse.csr_matrix(x), sparse.eye(n), -sparse.eye(n)], format="csr")
    return optimize.linprog(cost, A_eq=matrix, b_eq=y, bounds=bounds, method="highs").x[:4]


def judge(rows: list[dict[str, object]]) -> None:
    """Print coverage and rank correlation by left-out set, ranks of structures, and the cost."""
    voxels, claims, every = [r for r in rows if r["planted"]], [], []
    for name in sorted({r["set"] for r in voxels}):
        factors = fit([r for r in voxels if r["set"] != name], check.QUANTILE)
        for r in (r for r in voxels if r["set"] == name):
            wrong, *found = np.array(r["voxels"], dtype=float)
            limit = np.exp(factors @ np.stack([np.ones_like(wrong), *found])) - check.FLOOR
            known = np.isfinite(limit)
            covered = float((wrong[known] <= limit[known]).mean())
            rho = float(stats.spearmanr(wrong[known], limit[known]).statistic)
            every.append((name, covered, rho))
            print(f"{name:<20} covered {covered:.3f}  rho {rho:.2f}  mean error {wrong.mean():.2f} voxels")
    if voxels:
        rhos, covers = [e[2] for e in every], [e[1] for e in every]
        print("factors of all sets:", np.round(fit(voxels, check.QUANTILE), 3).tolist())
        claims += [
            _common.Claim(
                "error map: rank correlation with the true error, mean", float(np.mean(rhos)), ".2f", "", 0.5
            ),
            _common.Claim("error map: rank correlation, least", float(np.min(rhos)), ".2f", "", 0.3),
            _common.Claim("coverage of the limit on left-out sets, mean", float(np.mean(covers)), ".3f", "", 0.85),
            _common.Claim("coverage, least", float(np.min(covers)), ".3f"),
            _common.Claim("coverage, largest", float(np.max(covers)), ".3f"),
        ]
    cost = float(np.median([r["runs"] for r in rows]))
    claims.append(_common.Claim("cost of the check", cost, ".1f", " runs", 4.0, "at most"))
    ranked: dict[str, list[tuple[float, float]]] = {}
    for r in (r for r in rows if not r["planted"]):
        found = np.array(r["structures"], dtype=float).T
        if found.shape[-1] >= 4:
            score = np.nan_to_num(found[1]) + np.nan_to_num(found[2])
            pair = tuple(float(stats.spearmanr(found[0], of).statistic) for of in (score, found[3]))
            ranked.setdefault(str(r["set"]), []).append(pair)
    for name, pairs in ranked.items():
        mine = np.mean(pairs, axis=0)
        print(f"{name:<20} structures: check {mine[0]:.2f}, size alone {mine[1]:.2f}")
        claims.append(_common.Claim(f"structures of {name}: rank beyond that of size", float(mine[0] - mine[1]), "+.2f",
                                    "", 0.0))  # fmt: skip
    both = np.mean([p for pairs in ranked.values() for p in pairs], axis=0)
    claims += [
        _common.Claim("structures: rank correlation within a pair", float(both[0]), ".2f", "", 0.5),
        _common.Claim("structures: size alone", float(both[1]), ".2f"),
    ]
    _common.write("check" if voxels else "check-natural", 0, {"pairs": len(rows)}, claims)


def main() -> None:
    """Measure what is missing, then judge."""
    words = _common.parser(__doc__ or "", pairs=2)
    words.add_argument("--natural", action="store_true", help="natural pairs alone, every second number")
    options = words.parse_args()
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.is_file() else []
    done = {(r["set"], r["number"], r["planted"]) for r in rows}
    for number in range(0, 2 * options.pairs, 2) if options.natural else range(options.pairs):
        for name in SETS:
            for plant in (False,) if options.natural else (True, False):
                if (name, number, plant) in done or (not plant and name not in RANKED):
                    continue
                row = measure(name, number, plant=plant)
                with ROWS.open("a") as file:
                    file.write(json.dumps(_common.plain(row)) + "\n")
                rows.append(row)
                print(name, number, "planted" if plant else "natural", f"{row['runs']:.1f} runs", file=sys.stderr)
    judge([json.loads(line) for line in ROWS.read_text().splitlines()])


if __name__ == "__main__":
    main()
