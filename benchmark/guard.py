"""Is a preset as good as in an earlier cross-validation or comparison with peers, on the same pairs?

The Dice of the preset without a model is compared, pair by pair, with the one that `results/crossval-NAME.json` has, or
`results/peers-NAME.json` for a name that begins so. Finished rows are kept.
"""

import itertools
import json
from functools import partial
from typing import Any

import _pairs as sets
from _common import RESULTS, Rows, claim, fingerprint, parser, write

NAMES = ("openkbp_head_neck-wide", "btcv_abdomen", "ibsr18_64_affine", "mscmr_cardiac", "msd_hippocampus-wide")
WORST = -0.002


def measured(name: str, fixed: str, moving: str, init: str, preset: str) -> dict[str, Any]:
    """Register a pair: mean Dice over the structures of the set that either image shows, folds and seconds."""
    one, other = sets.read_case(name, fixed), sets.read_case(name, moving)
    words = sets.with_settings(preset)
    row = sets.registered(one, other, one.labels, list(sets.SETS[name].labels), init=init, **words)[1]
    return row | {"dice": sets.mean_dice(row)}


def earlier(name: str, n: int) -> tuple[str, str, list[tuple[str, str, float]]]:
    """Set and start of an earlier result, and cases with Dice of its pairs, some of each fold in turn."""
    if name.startswith("peers-"):
        found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        rows = found["methods"]["regweave:default"]["pairs"]
        return found["data"], found["init"], [(r["fixed"], r["moving"], sets.mean_dice(r)) for r in rows[:n]]
    found = json.loads((RESULTS / f"crossval-{name}.json").read_text(encoding="utf-8"))
    folds = [[row for row in found["rows"] if row["fold"] == f] for f in range(found["n_folds"])]
    rows = [row for turn in itertools.zip_longest(*folds) for row in turn if row is not None][:n]
    return found["data"], found["init"], [(*row["pair"].split("-to-")[::-1], row["dice"]["default"]) for row in rows]


def main() -> None:
    """Run what is missing, compare, and print."""
    options = parser(__doc__, pairs=10, seed=0, preset="default", output="guard")
    options.add_argument("--names", nargs="+", default=NAMES, help="earlier results")
    given = options.parse_args()
    rows, content, claims = Rows(RESULTS / "guard.rows.jsonl"), {}, []
    made_with = sets.settings_hash(sets.settings_of(given.preset)), fingerprint()
    for result in given.names:
        name, init, pairs = earlier(result, given.pairs)
        found = []
        for fixed, moving, then in pairs:
            pair = f"{moving}-to-{fixed}"
            now = rows.get((result, pair, *made_with), partial(measured, name, fixed, moving, init, given.preset))
            found.append({"pair": pair, "subject": sets.subject_of(fixed), "then": then, **now})
        change = sets.mean_interval([r["dice"] - r["then"] for r in found], [r["subject"] for r in found], given.seed)
        then, now = (sets.mean_of(r[key] for r in found) for key in ("then", "dice"))
        content[result] = {"rows": found, "then": then, "now": now, "change": change}
        between = f"95 % {change['low']:+.4f} to {change['high']:+.4f}"
        claims += [
            claim(f"{result}: mean Dice of {len(found)} pairs then", then, ".4f"),
            claim(f"{result}: change ({between})", change["mean"], "+.4f", least=WORST),
            claim(f"{result}: voxels folded", max(r["folds"] for r in found), "g", most=0.0),
        ]
    write(given.output, given.seed, {"preset": given.preset, "sets": content}, claims)


if __name__ == "__main__":
    main()
