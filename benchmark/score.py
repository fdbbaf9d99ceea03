"""Score without labels: collect its numbers on natural pairs and failures, fit its reference, judge it on other sets.

    python benchmark/score.py collect FEATURES.jsonl --seconds 600     # resumable: a line for each pair
    python benchmark/score.py fit FEATURES.jsonl [--write]             # --write replaces the reference of the package

A result is truly bad where its mean Dice is more than 0.10 below the median of the natural pairs of its set, or where
the images show different parts of the body. Limits and weights are chosen on the other sets of images each time.
"""

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

import regweave
from _failures import NATURAL, Trial, images_of, trials
from regweave.errors import RegweaveError
from regweave.measures.likeness import (
    DOUBTFUL,
    HIGHER_IS_ALIKE,
    OF_STRUCTURES,
    OTHER,
    SHARES,
    SHIPPED,
    Combination,
    Kind,
    Reference,
    score_of,
    standard,
)  # fmt: skip
from regweave.run.register import register

BAD, LOW = 0.10, 0.6
WITH, WITHOUT = ("correlation", "inside", "contour", "moved"), ("correlation", "blocks", "edges", "moved")
KINDS = ("ct", "mr", "multi")
LEAST, FEW = 5, 12
"""Good pairs of a kind that its quantiles need, and that its limits need; with fewer those of all kinds give them."""
SHIPPED_AT = Path(regweave.__file__).parent / "measures" / SHIPPED
Row = dict[str, Any]
Case = tuple[Row, bool, bool]
"""Numbers, and whether they are of a truly bad and of a good result."""


def collect(path: Path, seconds: float) -> None:
    """Register the trials that a file lacks, and append a line for each."""
    done = {row["id"] for row in read(path)} if path.exists() else set()
    began = time.perf_counter()
    for trial in trials():
        if trial.id in done:
            continue
        if time.perf_counter() - began > seconds:
            break
        row = measured(trial)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        print(trial.id, row.get("dice"), row.get("error", ""), flush=True)


def measured(trial: Trial) -> Row:
    """Register one trial and return its line."""
    row: Row = {"id": trial.id, "set": trial.set, "kind": trial.kind}
    try:
        result = register(**images_of(trial), threads=1, progress=False)
    except RegweaveError as error:
        return {**row, "error": error.code}
    found = result.likeness
    assert found is not None
    return line(row, found.kind, found.numbers, {s.label: vars(s) for s in found.structures}, result.summary())


def line(row: Row, bank: str, numbers: Any, structures: Any, record: Any) -> Row:
    """Return the line of a registration from its numbers and its record."""
    dice = record["dice"]
    return {
        **row, "bank": bank, "numbers": dict(numbers), "verdict": record["verdict"]["verdict"],
        "reasons": [reason["rule"] for reason in record["verdict"]["reasons"]],
        "dice": record["mean_dice"].get("after"),
        "structures": [
            {"label": int(label), "dice": dice.get(label, {}).get("after"), **{n: found[n] for n in OF_STRUCTURES}}
            for label, found in structures.items()
        ],
    }  # fmt: skip


def read(path: Path) -> list[Row]:
    """Read the lines of a file of features."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text]


def graded(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that were registered, with ``bad`` and ``good``, and structures with a Dice."""
    rows = [row for row in rows if "error" not in row]
    for row in rows:
        usual = [r["dice"] for r in rows if r["set"] == row["set"] and r["kind"] == NATURAL]
        limit = float(np.median(usual)) - BAD
        row["bad"] = row["dice"] is None or row["dice"] < limit
        row["good"] = row["kind"] == NATURAL and not row["bad"]
        row["structures"] = [s for s in row["structures"] if s["dice"] is not None]
    return rows


def reference_of(rows: Sequence[Row], name: str) -> Reference:
    """Fit quantiles, weights and limits to rows."""
    good = [row for row in rows if row["good"]]
    kinds = {}
    for kind in KINDS:
        own = [row for row in good if row["bank"] == kind]
        own = own if len(own) >= LEAST else good
        whole = {n: scale([r["numbers"][n] for r in own if n in r["numbers"]], n) for n in HIGHER_IS_ALIKE}
        parts = [s for row in own for s in row["structures"] if s["dice"] >= LOW]
        kinds[kind] = (len(own), whole, {n: scale([s[n] for s in parts], n) for n in OF_STRUCTURES})

    def combined(names: Sequence[str], place: int, of: Callable[[Row], list[Case]]) -> dict[str, Combination]:
        cases = [(row["bank"], numbers, bad, fine) for row in rows for numbers, bad, fine in of(row)]
        z = np.array([[standard(numbers[n], kinds[bank][place][n], n) if n in numbers else -8.0 for n in names]
                      for bank, numbers, _, _ in cases])  # fmt: skip
        bad, fine = (np.array([case[k] for case in cases]) for k in (2, 3))
        weights = fitted(z, bad)
        total = z @ weights
        out = {}
        for kind in KINDS:
            own = total[fine & np.array([case[0] == kind for case in cases])]
            own = own if len(own) >= FEW else total[fine]
            low = float(np.quantile(own, 0.07))
            out[kind] = Combination(
                weights=dict(zip(names, map(float, np.round(weights, 4)), strict=True)), doubtful=round(low, 3),
                other=round(min(float(np.quantile(own, 0.005)), low - 0.5) - 0.3, 3),
            )  # fmt: skip
        return out

    def pair(row: Row) -> list[Case]:
        return [(row["numbers"], row["bad"], row["good"])]

    def parts_of(row: Row) -> list[Case]:
        return [(s, s["dice"] < LOW, s["dice"] >= LOW and not row["bad"]) for s in row["structures"]]

    with_labels, without, structure = (
        combined(WITH, 1, pair),
        combined(WITHOUT, 1, pair),
        combined(OF_STRUCTURES, 2, parts_of),
    )
    return Reference(name=name, kinds={
        kind: Kind(pairs=n, quantiles=whole, structures=parts, with_labels=with_labels[kind],
                   without_labels=without[kind], of_structure=structure[kind])
        for kind, (n, whole, parts) in kinds.items()
    })  # fmt: skip


def scale(values: Sequence[float], name: str) -> tuple[float, ...]:
    """Quantiles of good results, the least alike first."""
    found = np.quantile(values, SHARES)
    return tuple(
        float(v) for v in np.round(found if HIGHER_IS_ALIKE[name] else np.quantile(values, [1 - s for s in SHARES]), 4)
    )


def fitted(z: Any, bad: Any) -> Any:
    """Weights of at least 0.05 that tell bad from other results: logistic regression, both sides counted alike."""
    share = np.where(bad, 0.5 / max(bad.sum(), 1), 0.5 / max((~bad).sum(), 1))

    def loss(x: Any) -> float:
        margin = np.where(bad, -1, 1) * (z @ x[:-1] + x[-1])
        return float((share * np.logaddexp(0, -margin)).sum() + 0.01 * (x[:-1] ** 2).sum())

    n = z.shape[1]
    return minimize(loss, [1.0] * n + [1.0], bounds=[(0.05, None)] * n + [(None, None)]).x[:-1]


def judge(rows: list[Row], scored: dict[str, tuple[float, float]]) -> None:
    """Print what scores of left-out sets find and what they miss."""
    bad, ordinary = ([row for row in rows if row["bad"] == wanted] for wanted in (True, False))
    near = [row for row in bad if row["kind"] != "other part"]
    good, names = [row for row in rows if row["good"]], sorted({row["set"] for row in rows})
    print(f"{len(rows)} registrations of {len(names)} sets: {len(good)} good, {len(bad)} truly bad")
    print(f"of these {len(bad) - len(near)} show another part of the body")
    for place, words in enumerate(("with moving labels", "without labels")):
        of = {row["id"]: scored[row["id"]][place] for row in rows}

        def ranked(some: Sequence[Row], name: str = "", of: dict[str, float] = of) -> float:
            one, other = ([of[r["id"]] for r in part if name in ("", r["set"])] for part in (some, ordinary))
            return auc(one, other)

        worst, where = min((v, name) for name in names if not np.isnan(v := ranked(bad, name)))
        print(f"{words}: AUC {ranked(bad):.3f} (asked .95), without other parts {ranked(near):.3f} (.88)")
        print(f"  worst set {worst:.2f}, {where} (.75)")
        print(
            f"  truly bad: pass {share(of, bad, DOUBTFUL):.1%} (≤ 2 %), fail {1 - share(of, bad, OTHER):.1%} (≥ 50 %)"
        )
        print(
            f"  good: not passed {1 - share(of, good, DOUBTFUL):.1%} (≤ 10 %), failed {1 - share(of, good, OTHER):.1%}"
        )
        for kind in sorted({r["kind"] for r in bad}):
            own = [r for r in bad if r["kind"] == kind]
            passed, failed = share(of, own, DOUBTFUL), 1 - share(of, own, OTHER)
            print(f"    {kind:15} {len(own):3} truly bad, pass {passed:.0%}, fail {failed:.0%}")
        missed = [r for r in bad if of[r["id"]] >= DOUBTFUL]
        print("  missed:", "; ".join(f"{r['id']} {r['dice'] and round(r['dice'], 2)}" for r in missed) or "none")
        fifth = low_fifth([r for r in rows if r["kind"] == NATURAL])
        found = [r for r in fifth if of[r["id"]] < DOUBTFUL]
        print(f"  worst fifth of the natural pairs by set: {len(found)} of {len(fifth)} are not passed")


def low_fifth(rows: Sequence[Row]) -> list[Row]:
    """Return the fifth of each set with the lowest Dice."""
    return [row for row in rows if row["dice"] <= np.quantile([r["dice"] for r in rows if r["set"] == row["set"]], 0.2)]


def share(of: dict[str, float], rows: Sequence[Row], limit: float) -> float:
    """Return the share of rows with at least that score."""
    return float(np.mean([of[row["id"]] >= limit for row in rows])) if rows else float("nan")


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
    return tuple(score_of(row["numbers"], kind.quantiles, made) for made in (both, kind.without_labels))  # type: ignore[return-value]


def fit(path: Path, *, write: bool) -> None:
    """Judge on left-out sets, and fit the reference of the package to all."""
    rows = graded(read(path))
    groups = [{"ibsr18_64", "ibsr18_64_affine", "two brains"}, {"btcv_abdomen", "two abdomens", "chaos_mr_abdomen"}]
    scored, structures = {}, []
    for name in sorted({row["set"] for row in rows}):
        out = next((g for g in groups if name in g), {name})
        made = reference_of([row for row in rows if row["set"] not in out], "left out")
        for row in (row for row in rows if row["set"] == name):
            scored[row["id"]] = scores(row, made)
            kind = made.kinds[row["bank"]]
            structures += [
                (s["dice"], score_of(s, kind.structures, kind.of_structure), scored[row["id"]][0])
                for s in row["structures"]
            ]
    judge(rows, scored)
    low, fine = ([s for s in structures if (s[0] < LOW) == wanted] for wanted in (True, False))
    passed = [float(np.mean([s[2] >= DOUBTFUL for s in some])) for some in (low, fine)]
    print(f"structures: AUC of Dice < {LOW} {auc([s[1] for s in low], [s[1] for s in fine]):.3f}")
    print(f"  pass: {passed[0]:.1%} of {len(low)} with Dice < {LOW} (≤ 5 %), {passed[1]:.1%} of {len(fine)} others")
    if write:
        sets = len({row["set"] for row in rows})
        made = reference_of(rows, f"regweave 1, {sum(r['good'] for r in rows)} good pairs of {sets} sets")
        text = re.sub(
            r"\[[^]]*\]", lambda m: " ".join(m[0].split()), json.dumps(made.model_dump(mode="json"), indent=1)
        )
        SHIPPED_AT.write_text(text + "\n", encoding="utf-8")
        print(f"wrote {SHIPPED_AT}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("collect", "fit"))
    parser.add_argument("features", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.part == "collect":
        collect(given.features, given.seconds)
    else:
        fit(given.features, write=given.write)
