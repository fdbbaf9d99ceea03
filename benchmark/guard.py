"""Is a preset as good as in an earlier cross-validation, on the same pairs?

The Dice of the preset without a model is compared, pair by pair, with the one that `results/crossval-NAME.json` has.
Finished rows are kept.
"""

import itertools
import json
from typing import Any

import _pairs as sets
from _common import RESULTS, Rows, claim, fingerprint, parser, write

NAMES = ("openkbp_head_neck-wide", "btcv_abdomen", "ibsr18_64_affine", "mscmr_cardiac", "msd_hippocampus-wide")
WORST = -0.002


def measured(name: str, fixed: str, moving: str, preset: str) -> dict[str, Any]:
    """Register a pair: mean Dice over the structures of the set that either image shows, folds and seconds."""
    one, other = sets.read_case(name, fixed), sets.read_case(name, moving)
    row = sets.registered(
        one, other, one.labels, list(sets.SETS[name].labels), init=sets.SETS[name].init, **sets.with_settings(preset)
    )[1]
    return row | {"dice": sets.mean_dice(row)}


def taken(rows: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Rows of an earlier result, some of each fold in turn."""
    folds = [[row for row in rows if row["fold"] == f] for f in sorted({row["fold"] for row in rows})]
    return [row for turn in itertools.zip_longest(*folds) for row in turn if row is not None][:n]


def main() -> None:
    """Run what is missing, compare, and print."""
    options = parser(__doc__, pairs=10, seed=0, preset="default", output="guard")
    options.add_argument("--names", nargs="+", default=NAMES, help="earlier results")
    given = options.parse_args()
    rows, content, claims = Rows(RESULTS / "guard.rows.jsonl"), {}, []
    made_with = sets.settings_hash(sets.settings_of(given.preset)), fingerprint()
    for result in given.names:
        earlier, found = json.loads((RESULTS / f"crossval-{result}.json").read_text(encoding="utf-8")), []
        for row in taken(earlier["rows"], given.pairs):
            moving, fixed = row["pair"].split("-to-")
            key = (result, row["pair"], *made_with)
            now = rows.get(key, lambda of=(earlier["data"], fixed, moving): measured(*of, given.preset))
            found.append(
                {"pair": row["pair"], "subject": sets.subject_of(fixed), "then": row["dice"]["default"], **now}
            )
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
