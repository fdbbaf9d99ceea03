"""Score without labels: collect its numbers on natural pairs and failures, fit its reference, judge it on other sets.

    python benchmark/score.py collect FEATURES.jsonl --seconds 600     # resumable: a line for each pair
    python benchmark/score.py fit FEATURES.jsonl [--write]             # --write replaces the reference of the package

A result is truly bad where its mean Dice is more than 0.10 below the median of the natural pairs of its set, or where
the images show different parts of the body. A natural pair is good where it is not truly bad and its mean Dice is at
least 0.5. Limits and weights are chosen on the other sets of images each time.
"""

import json
import re
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

import regweave
from _common import Rows, claim, parser, write
from _failures import NATURAL, Trial, images_of, trials
from _pairs import mean_of, registered
from regweave.errors import RegweaveError
from regweave.measures.likeness import (
    DOUBTFUL,
    FEW,
    OF_STRUCTURES,
    SHIPPED,
    SIDE,
    WORST,
    Combination,
    Kind,
    Reference,
    combination,
    likeness_of,
    scale,
    score_of,
    standard,
)
from regweave.measures.verdict import default_rules

BAD, LOW, LEAST_GOOD = 0.10, 0.6, 0.5
WITH = ("contour", "turned", "covered", "moved", "correlation", "inside")
WITHOUT = ("edges", "turned", "covered", "moved", "correlation", "blocks")
KINDS = ("ct", "mr", "multi")
LEAST = 5
"""Good pairs of a kind that its quantiles need; with fewer those of all kinds give them."""
SHIPPED_AT = Path(regweave.__file__).parent / "measures" / SHIPPED
FAR = "two abdomens"
"""Natural pairs of CT and MR with a median Dice of 0.2: none is good, so that none can be bad beside it."""
TOGETHER = ({"ibsr18_64", "ibsr18_64_affine", "two brains"}, {"btcv_abdomen", FAR, "chaos_mr_abdomen"})
"""Sets that are left out together."""
Row = dict[str, Any]
Case = tuple[Row, bool, bool]
"""Numbers, and whether they are of a truly bad and of a good result."""


def collect(rows: Rows, seconds: float) -> None:
    """Register the trials that are missing."""
    end = time.perf_counter() + seconds
    for trial in trials():
        if time.perf_counter() < end:
            rows.get([trial.id], partial(measured, trial))


def measured(trial: Trial) -> Row:
    """Register one trial and return its numbers, or the code that refused it."""
    row: Row = {"id": trial.id, "set": trial.set, "kind": trial.kind}
    try:
        result, spent = registered(**images_of(trial))
    except RegweaveError as error:
        return {**row, "refused": error.code}
    found, images, began = result.likeness, result.images, time.process_time()
    assert found is not None
    likeness_of(images.pair, images.transform, images.warped, images.warped_labels, found.kind)
    dice = result.dice
    return {
        **row, "seconds": [spent["seconds"], time.process_time() - began], "bank": found.kind,
        "numbers": found.numbers, "score": found.score,
        "reasons": {reason.rule: reason.level for reason in result.verdict.reasons},
        "dice": result.mean_dice.get("after"),
        "field": {**result.regularity, "inexact": result.inverse_error.share, "p99": result.inverse_error.p99_voxels},
        "structures": [
            {"label": s.label, "dice": dice.get(s.label, {}).get("after"), "inside": s.inside, "contour": s.contour}
            for s in found.structures
        ],
    }  # fmt: skip


def graded(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that were registered, with ``bad`` and ``good``, and structures with a Dice."""
    rows = [row for row in rows if not {"error", "refused"} & set(row)]
    for row in rows:
        usual = [r["dice"] for r in rows if r["set"] == row["set"] and r["kind"] == NATURAL]
        limit = float(np.median(usual)) - BAD
        row["bad"] = row["dice"] is None or row["dice"] < limit
        row["good"] = row["kind"] == NATURAL and not row["bad"] and row["dice"] >= LEAST_GOOD
        row["structures"] = [s for s in row["structures"] if s["dice"] is not None]
    return rows


def reference_of(rows: Sequence[Row], name: str) -> Reference:
    """Fit quantiles, weights and limits to rows."""
    good = [row for row in rows if row["good"]]
    kinds = {}
    for kind in KINDS:
        own = [row for row in good if row["bank"] == kind]
        own = own if len(own) >= LEAST else good
        whole = {n: scale([r["numbers"][n] for r in own if n in r["numbers"]], n) for n in SIDE}
        parts = [s for row in own for s in row["structures"] if s["dice"] >= LOW]
        kinds[kind] = (len(own), whole, {n: scale([s[n] for s in parts], n) for n in OF_STRUCTURES})

    def combined(names: Sequence[str], place: int, of: Callable[[Row], list[Case]]) -> dict[str, Combination]:
        cases = [(row["bank"], row["set"], *case) for row in rows for case in of(row)]
        z = np.array([[standard(numbers[n], kinds[bank][place][n], n) if n in numbers else WORST for n in names]
                      for bank, _, numbers, _, _ in cases])  # fmt: skip
        banks, sets, bad, fine = (np.array([case[k] for case in cases]) for k in (0, 1, 3, 4))
        weights = np.round(fitted(z, bad, sets), 4)
        total, table = z @ weights, dict(zip(names, map(float, weights), strict=True))
        out = {}
        for kind in KINDS:
            own = fine & (banks == kind)
            own = own if own.sum() >= FEW else fine
            out[kind] = combination(table, [total[own & (sets == name)] for name in sorted(set(sets[own]))])
        return out

    def pair(row: Row) -> list[Case]:
        return [(row["numbers"], row["bad"], row["good"])]

    def parts_of(row: Row) -> list[Case]:
        return [(s, s["dice"] < LOW, s["dice"] >= LOW and not row["bad"]) for s in row["structures"]]

    both, without, structure = combined(WITH, 1, pair), combined(WITHOUT, 1, pair), combined(OF_STRUCTURES, 2, parts_of)
    made = {
        kind: Kind(pairs=n, quantiles=whole, structures=parts, with_labels=both[kind], without_labels=without[kind],
                   of_structure=structure[kind])
        for kind, (n, whole, parts) in kinds.items()
    }  # fmt: skip
    return Reference(name=name, kinds=made)


def fitted(z: Any, bad: Any, sets: Any) -> Any:
    """Weights of at least 0.05 that tell bad from other results: logistic regression, sides and sets counted alike."""
    share = np.zeros(len(z))
    for side in (bad, ~bad):
        for name in set(sets[side]):
            share[side & (sets == name)] = 1 / (side & (sets == name)).sum()
        share[side] /= share[side].sum()

    def loss(x: Any) -> float:
        margin = np.where(bad, -1, 1) * (z @ x[:-1] + x[-1])
        return float((share * np.logaddexp(0, -margin)).sum() + 0.05 * (x[:-1] ** 2).sum())

    n = z.shape[1]
    return minimize(loss, [1.0] * n + [1.0], bounds=[(0.05, None)] * n + [(None, None)]).x[:-1]


def verdict_of(row: Row, score: float) -> str:
    """Return the verdict of a result whose fixed image has no labels."""
    found, rules = row["field"], default_rules()
    numbers = {
        "folding_percent": 100 * found["folding_fraction"], "extreme_jacobian_percent": 100 * found["extreme_fraction"],
        "inverse_inexact_percent": 100 * found["inexact"], "inverse_error_voxels": found["p99"] or 0.0,
        "likeness": score,
    }  # fmt: skip
    levels = {row["reasons"].get("doubtful_warnings"), *(rules.broken(rule, v) for rule, v in numbers.items())}
    return "fail" if "fail" in levels else "look" if "look" in levels else "pass"


def judge(rows: list[Row], of: dict[str, float], words: str) -> list[dict[str, Any]]:
    """Print what scores of left-out sets find and what they miss; return the numbers that are asked for."""
    bad, ordinary = ([row for row in rows if row["bad"] == wanted] for wanted in (True, False))
    near, good = [row for row in bad if row["kind"] != "other part"], [row for row in rows if row["good"]]
    natural, names = [row for row in rows if row["kind"] == NATURAL], sorted({row["set"] for row in rows})
    verdicts = {row["id"]: verdict_of(row, of[row["id"]]) for row in rows}
    usual = {name: [of[r["id"]] for r in natural if r["set"] == name] for name in names}
    beside = {r["id"]: (of[r["id"]] - np.median(usual[r["set"]])) / np.std(usual[r["set"]]) for r in rows}

    def ranked(some: Sequence[Row], name: str = "", by: dict[str, float] = of) -> float:
        return auc(*([by[r["id"]] for r in part if name in ("", r["set"])] for part in (some, ordinary)))

    def had(some: Sequence[Row], *allowed: str) -> float:
        return 100 * mean_of(verdicts[row["id"]] in allowed for row in some)

    each = {name: v for name in names if not np.isnan(v := ranked(bad, name))}
    worst, fifth = min(each, key=each.__getitem__), low_fifth(natural)
    alone, inside = 100 * mean_of(of[row["id"]] < DOUBTFUL for row in good), within(fifth, natural, of)
    print(f"{words}: AUC by set", ", ".join(f"{name} {v:.2f}" for name, v in each.items()))
    for kind in sorted({r["kind"] for r in rows}):
        own = [r for r in rows if r["kind"] == kind]
        ours = [r for r in own if r["bad"]]
        counts = f"{len(ours):3} of {len(own):3} truly bad"
        print(f"    {kind:15} {counts}: pass {had(ours, 'pass'):.0f} %, fail {had(ours, 'fail'):.0f} %")
    missed = [r for r in bad if verdicts[r["id"]] == "pass"]
    print("  missed:", "; ".join(f"{r['id']} {r['dice'] and round(r['dice'], 2)}" for r in missed) or "none")
    return [
        claim(f"{words}: AUC of truly bad results", ranked(bad), least=0.95),
        claim(f"{words}: the same without other body parts", ranked(near), least=0.88),
        claim(f"{words}: within a batch, AUC of truly bad results", ranked(bad, by=beside)),
        claim(f"{words}: within a batch, without other body parts", ranked(near, by=beside)),
        claim(f"{words}: worst set, {worst}", each[worst], ".2f", least=0.75),
        claim(f"{words}: truly bad that pass", had(bad, "pass"), ".1f %", most=2.0),
        claim(f"{words}: truly bad that fail", had(bad, "fail"), ".1f %", least=50.0),
        claim(f"{words}: good that do not pass", had(good, "look", "fail"), ".1f %", most=10.0),
        claim(f"{words}: good that fail", had(good, "fail"), ".1f %"),
        claim(f"{words}: good that do not pass by the score alone", alone, ".1f %"),
        claim(f"{words}: worst fifth of the natural pairs of each set, AUC within sets", inside, ".2f"),
        claim(f"{words}: of these do not pass", had(fifth, "look", "fail"), ".1f %"),
    ]  # fmt: skip


def within(some: Sequence[Row], rows: Sequence[Row], of: dict[str, float]) -> float:
    """Mean over sets of the probability that one of some rows scores below another row of its set."""
    chosen, found = {row["id"] for row in some}, []
    for name in sorted({row["set"] for row in rows}):
        mine = [row for row in rows if row["set"] == name]
        found.append(auc(*([of[r["id"]] for r in mine if (r["id"] in chosen) == inside] for inside in (True, False))))
    return float(np.nanmean(found))


def low_fifth(rows: Sequence[Row]) -> list[Row]:
    """Return the fifth of each set with the lowest Dice."""
    return [row for row in rows if row["dice"] <= np.quantile([r["dice"] for r in rows if r["set"] == row["set"]], 0.2)]


def auc(bad: Sequence[float], others: Sequence[float]) -> float:
    """Probability that a bad result scores below another one."""
    if not len(bad) or not len(others):
        return float("nan")
    a, b = np.asarray(bad)[:, None], np.asarray(others)[None]
    return float(((a < b) + 0.5 * (a == b)).mean())


def scores(row: Row, reference: Reference) -> tuple[float, float]:
    """Score of a row with labels and without."""
    kind = reference.kinds[row["bank"]]
    both = kind.with_labels if row["numbers"].get("inside") is not None else kind.without_labels
    one, other = (score_of(row["numbers"], kind.quantiles, made) for made in (both, kind.without_labels))
    return one, other


def fit(rows: list[Row], *, ship: bool) -> None:
    """Judge on left-out sets, and fit the reference of the package to all."""
    scored, structures, names = {}, [], sorted({row["set"] for row in rows})
    for name in names:
        out = next((g for g in TOGETHER if name in g), {name})
        made = reference_of([row for row in rows if row["set"] not in out], "left out")
        for row in (row for row in rows if row["set"] == name):
            scored[row["id"]], kind = scores(row, made), made.kinds[row["bank"]]
            passes = verdict_of(row, scored[row["id"]][0]) == "pass"
            own = [score_of(s, kind.structures, kind.of_structure) for s in row["structures"]]
            structures += [
                (s["dice"], v, passes and v >= DOUBTFUL) for s, v in zip(row["structures"], own, strict=True)
            ]
    near = [row for row in rows if row["set"] != FAR]
    counts = [sum(row[key] for row in near) for key in ("good", "bad")]
    print(f"{len(near)} registrations of {len(names) - 1} sets: {counts[0]} good, {counts[1]} truly bad")
    claims = []
    for place, words in enumerate(("with moving labels", "without labels")):
        claims += judge(near, {row["id"]: scored[row["id"]][place] for row in near}, words)
    found = [verdict_of(row, scored[row["id"]][0]) for row in rows if row["set"] == FAR and row["kind"] == NATURAL]
    print(f"{FAR}, whose natural pairs are hardly registered: {found.count('pass')} of {len(found)} pass")
    low, fine = ([s for s in structures if (s[0] < LOW) == wanted] for wanted in (True, False))
    passed = [100 * mean_of(s[2] for s in some) for some in (low, fine)]
    cost = 100 * float(np.divide(*np.array([row["seconds"] for row in rows]).sum(axis=0)[::-1]))
    claims += [
        claim(f"structures: AUC of Dice < {LOW}", auc([s[1] for s in low], [s[1] for s in fine])),
        claim(f"structures with Dice < {LOW} that pass", passed[0], ".1f %", most=5.0),
        claim("other structures that pass", passed[1], ".1f %"),
        claim("cost of the score", cost, ".1f %", most=3.0),
    ]
    natural = sum(row["kind"] == NATURAL for row in rows)
    numbers = {"natural": natural, "failures": len(rows) - natural, "structures": len(structures)}
    write("score", 7, {"counts": numbers}, claims)
    if ship:
        made = reference_of(rows, f"regweave 2, {sum(r['good'] for r in rows)} good pairs of {len(names)} sets")
        text = json.dumps(made.model_dump(mode="json"), indent=1)
        SHIPPED_AT.write_text(re.sub(r"\[[^]]*\]", lambda m: " ".join(m[0].split()), text) + "\n", encoding="utf-8")
        print(f"wrote {SHIPPED_AT}")


def main() -> None:
    """Collect or fit."""
    options = parser(__doc__, seconds=600.0)
    options.add_argument("part", choices=("collect", "fit"))
    options.add_argument("features", type=Path, help="file of finished registrations")
    options.add_argument("--write", action="store_true", help="replace the reference of the package")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    rows = Rows(given.features)
    if given.part == "collect":
        collect(rows, given.seconds)
    else:
        fit(graded(rows.all()), ship=given.write)


if __name__ == "__main__":
    main()
