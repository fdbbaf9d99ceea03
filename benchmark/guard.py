"""Is a preset as good as in an earlier cross-validation, on the same pairs?

The Dice of the preset without a model is compared, pair by pair, with the one that `results/crossval-NAME.json` has.
Finished rows are kept.
"""

import itertools
import json
import time
from typing import Any

import numpy as np

import regweave as rw
from _common import RESULTS, Claim, fingerprint, parser, write
from _pairs import SETS, PairName, files, mean_interval, settings_hash, settings_of, subject_of
from accuracy import Ledger
from regweave import notices
from regweave.io import read_labels
from regweave.measures.overlap import dice

NAMES = ("openkbp_head_neck-wide", "btcv_abdomen", "ibsr18_64_affine", "mscmr_cardiac", "msd_hippocampus-wide")
WORST = -0.002


def measured(name: PairName, preset: str) -> dict[str, Any]:
    """Register a pair: mean Dice over the structures of the set that either image shows, folds and seconds."""
    paths, of, began = files(name), SETS[name.set], time.process_time()
    words = {"config" if preset.endswith(".toml") else "preset": preset}
    with notices.unheard():
        result = rw.register(
            paths["fixed"], paths["moving"], moving_labels=paths["moving_labels"], init=of.init, threads=1,
            progress=False, **words,
        )  # fmt: skip
    assert result.warped_labels is not None
    truth = read_labels(paths["fixed_labels"])
    found = [d for d in dice(result.warped_labels.data, truth.data, list(of.labels)).values() if np.isfinite(d)]
    folds, seconds = result.regularity["folding_fraction"], time.process_time() - began
    return {"dice": float(np.mean(found)), "folds": folds, "seconds": seconds, "error": None}


def taken(rows: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Rows of an earlier result, some of each fold in turn."""
    folds = {f: iter([row for row in rows if row["fold"] == f]) for f in sorted({row["fold"] for row in rows})}
    turns = itertools.chain.from_iterable(itertools.zip_longest(*folds.values()))
    return [row for row in turns if row is not None][:n]


def main() -> None:
    """Run what is missing, compare, and print."""
    options = parser(__doc__ or "", pairs=10, output="guard")
    options.add_argument("--names", nargs="+", default=NAMES, help="earlier results")
    options.add_argument("--preset", default="default", help="a preset, or settings in a TOML file")
    given = options.parse_args()
    ledger, code, content, claims = Ledger(RESULTS / "guard.rows.jsonl"), fingerprint(), {}, []
    chosen = settings_hash(settings_of(given.preset))
    for result in given.names:
        earlier = json.loads((RESULTS / f"crossval-{result}.json").read_text(encoding="utf-8"))
        found = []
        for row in taken(earlier["rows"], given.pairs):
            moving, fixed = row["pair"].split("-to-")
            key = (result, row["pair"], chosen, code)
            if ledger.get(key) is None:
                ledger.add(key, measured(PairName(earlier["data"], fixed, moving, subject_of(fixed)), given.preset))
            now = ledger.get(key)
            assert now is not None
            then = row["dice"]["default"]
            found.append({"pair": row["pair"], "subject": subject_of(fixed), "then": then, **now})
            print(result, row["pair"], round(then, 4), round(now["dice"], 4), round(now["seconds"], 1), flush=True)
        change = mean_interval([r["dice"] - r["then"] for r in found], [r["subject"] for r in found], given.seed)
        content[result] = {"rows": found, "then": np.mean([r["then"] for r in found]),
                           "now": np.mean([r["dice"] for r in found]), "change": change}  # fmt: skip
        between = f"95 % {change['low']:+.4f} to {change['high']:+.4f}"
        claims += [
            Claim(f"{result}: mean Dice of {len(found)} pairs then", float(content[result]["then"]), ".4f"),
            Claim(f"{result}: change ({between})", change["mean"], "+.4f", target=WORST),
            Claim(f"{result}: voxels folded", max(r["folds"] for r in found), "g", target=0.0, sense="at most"),
        ]
    write(given.output, given.seed, {"preset": given.preset, "sets": content}, claims)


if __name__ == "__main__":
    main()
