"""What `--check` finds: limits of the error on planted deformations of real images, and ranks of structures.

A planted pair is a real image and the same image moved by the field that another person's registration gave, with
noise and a shading. So the true error of each voxel is known. A natural pair has labels on both images: structures are
ranked by their Dice there and back plus their agreement, and by size alone. The limit is fitted with one set left out.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import ndimage, optimize, sparse, stats

import regweave as rw
from _common import RESULTS, Rows, claim, parser, write
from _pairs import cases_of, read_case
from regweave.run import check
from regweave.spatial.voxels import body_mask
from regweave.types import Field, Image, Transform, Volume

SETS = ("msd_hippocampus", "acdc_mm", "ibsr18_64_affine", "openkbp_head_neck", "chaos_mr_abdomen", "btcv_abdomen",
        "lpba40_80")  # fmt: skip
RANKED = ("openkbp_head_neck", "btcv_abdomen", "chaos_mr_abdomen", "lpba40_80")
VOXELS = 3000
FEATURES = check.features
KEPT: list[np.ndarray] = []
"""Features of the last check."""


def planted(fixed: Image, moving: Image, seed: int) -> tuple[Volume, Transform]:
    """Return the first image moved by the field of a registration to the second, and the transform to the original."""
    rng, volume = np.random.default_rng(seed), replace(fixed, labels=None)
    field = rw.register(volume, replace(moving, labels=None), init="moments", progress=False).transform.field
    sigma = 6.0 / fixed.geometry.spacing_mm
    moved = np.stack([ndimage.gaussian_filter(part - part.mean(), sigma) for part in field.data]).astype(np.float32)
    transform = Transform(Field(moved, fixed.geometry))
    data = rw.warp(volume, transform).data
    span = float(np.subtract(*np.percentile(data, (99, 1))))
    noise = ndimage.gaussian_filter(rng.standard_normal(data.shape), 0.6) * 0.04 * span
    shade = ndimage.gaussian_filter(rng.standard_normal(data.shape), 15)
    shade *= (0.0 if fixed.modality == "ct" else 0.1) * span / np.abs(shade).max()
    return Volume((data + noise + shade).astype(np.float32), fixed.geometry, fixed.modality), transform


def measured(name: str, number: int, plant: bool) -> dict[str, Any]:
    """Register one pair with a check and return its row."""
    listed = [case for case in cases_of(name) if not case.endswith("_ES")]
    first, second = (read_case(name, listed[(2 * number + k) % len(listed)]) for k in (0, 3))
    row: dict[str, Any] = {"set": name, "number": number, "planted": plant}
    fixed, truth = planted(first, second, number) if plant else (second, None)
    result = rw.register(fixed, first, init="none" if plant else "affine", check=True, progress=False)
    assert result.check is not None
    run = sum(v for k, v in result.seconds.items() if k in ("levels", "refine", "outputs", "measure"))
    row["runs"] = result.seconds["check"] / run
    if truth is not None:
        wrong = np.sqrt(((result.transform.field.data - truth.field.data) ** 2).sum(axis=0))
        at = np.random.default_rng(number).permutation(np.flatnonzero(body_mask(fixed)))[:VOXELS]
        row["voxel_mm"] = float(fixed.geometry.spacing_mm.max())
        found = KEPT[-1].reshape(3, -1)[:, at]
        row["voxels"] = np.concatenate([wrong.ravel()[None, at] / row["voxel_mm"], found]).round(3).tolist()
    else:
        row["structures"] = [
            [d, s.there_and_back, s.agreement, float((first.labels.data == s.label).sum()) ** (1 / 3)]
            for s in result.check.structures
            if np.isfinite(d := result.dice.get(s.label, {}).get("after", np.nan))
        ]
    return row


def keep(*given: Any) -> np.ndarray:
    """Keep the features of a check for the fit."""
    KEPT[:] = [FEATURES(*given)]
    return KEPT[0]


def voxels_of(row: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """True errors of the voxels of a row, and a constant with the features; voxels that have all of them."""
    wrong, *found = np.array(row["voxels"], dtype=float)
    x = np.stack([np.ones_like(wrong), *found], axis=1)
    known = np.isfinite(x).all(axis=1)
    return wrong[known], x[known]


def fit(rows: list[dict[str, Any]]) -> np.ndarray:
    """Fit the constant and the factors of the limit in logarithms, by the pinball loss; no factor is negative."""
    wrong, x = map(np.concatenate, zip(*map(voxels_of, rows), strict=True))
    pick, q = np.random.default_rng(0).permutation(len(x))[:3000], check.QUANTILE
    x, y, n = x[pick], np.log(wrong + check.FLOOR)[pick], len(pick)  # minimise q·u + (1 - q)·v with x·b + u - v = y
    cost = np.r_[np.zeros(4), np.full(n, q), np.full(n, 1 - q)]
    bounds = [(None, None), *[(0, None)] * (3 + 2 * n)]
    matrix = sparse.hstack([sparse.csr_matrix(x), sparse.eye(n), -sparse.eye(n)], format="csr")
    return optimize.linprog(cost, A_eq=matrix, b_eq=y, bounds=bounds, method="highs").x[:4]


def of_maps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print coverage and rank correlation of the error map by left-out set."""
    covers, rhos = [], []
    for row in rows:
        wrong, x = voxels_of(row)
        limit = np.exp(x @ fit([r for r in rows if r["set"] != row["set"]])) - check.FLOOR
        covers.append(float((wrong <= limit).mean()))
        rhos.append(float(stats.spearmanr(wrong, limit).statistic))
        print(f"{row['set']:<20} covered {covers[-1]:.3f}  rho {rhos[-1]:.2f}  mean error {wrong.mean():.2f} voxels")
    print("factors of all sets:", np.round(fit(rows), 3).tolist())
    return [
        claim("error map: rank correlation with the true error, mean", float(np.mean(rhos)), ".2f", least=0.5),
        claim("error map: rank correlation, least", min(rhos), ".2f", least=0.3),
        claim("coverage of the limit on left-out sets, mean", float(np.mean(covers)), least=0.85),
        claim("coverage, least", min(covers)),
        claim("coverage, largest", max(covers)),
    ]


def of_structures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print how well a check ranks structures, beside their size."""
    ranked: dict[str, list[list[float]]] = {}
    for row in rows:
        found = np.array(row["structures"], dtype=float).T
        if found.shape[-1] >= 4:
            score = np.nan_to_num(found[1]) + np.nan_to_num(found[2])
            pair = [float(stats.spearmanr(found[0], of).statistic) for of in (score, found[3])]
            ranked.setdefault(row["set"], []).append(pair)
    claims = []
    for name, pairs in ranked.items():
        mine, size = np.mean(pairs, axis=0)
        print(f"{name:<20} structures: check {mine:.2f}, size alone {size:.2f}")
        claims.append(claim(f"structures of {name}: rank beyond that of size", float(mine - size), "+.2f", least=0.0))
    both = np.mean([p for pairs in ranked.values() for p in pairs], axis=0)
    claims.append(claim("structures: rank correlation within a pair", float(both[0]), ".2f", least=0.5))
    return [*claims, claim("structures: size alone", float(both[1]), ".2f")]


def main() -> None:
    """Measure what is missing, then judge."""
    options = parser(__doc__, pairs=2, rows=RESULTS / "check.jsonl")
    options.add_argument("--natural", action="store_true", help="natural pairs alone, every second number")
    given = options.parse_args()
    check.features = keep  # type: ignore[assignment]
    kept, numbers = Rows(given.rows), range(0, 2 * given.pairs, 2) if given.natural else range(given.pairs)
    plan = [(name, n, plant) for n in numbers for plant in (True, False) for name in (SETS if plant else RANKED)]
    rows = [kept.get(one, partial(measured, *one)) for one in plan if not (given.natural and one[2])]
    cost = claim("cost of the check", float(np.median([r["runs"] for r in rows])), ".1f runs", most=4.0)
    planted_rows, natural = ([r for r in rows if r["planted"] == plant] for plant in (True, False))
    maps = of_maps(planted_rows) if planted_rows else []
    write(
        "check-natural" if given.natural else "check", 0, {"pairs": len(rows)}, [*maps, cost, *of_structures(natural)]
    )


if __name__ == "__main__":
    main()
