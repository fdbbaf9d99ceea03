"""A peer on the pairs of a cross-validation, tuned as carefully: a fold takes the setting that is best on the others.

`python benchmark/crossval_peer.py --set lpba40_80 --peer greedy_ncc` after `crossval.py` of the same set and number of
pairs, whose rows it is compared with, pair by pair. Interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _common import RESULTS, ROOT, Claim, parser, write
from _crossval_report import difference
from _pairs import SETS, PairName
from _peer_methods import Method, choose_methods
from _peer_run import case_of, measure
from _split import fold_pairs

RUNGS = ("default", "learned", "learned, mask")


def scores_of(method: Method, setting: str, name: PairName, store: Path, args: Any) -> dict[str, float]:
    """Dice by structure of one setting on one pair, from the store where it is there."""
    words = [method.name, *setting.split(), name.set, name.moving, name.fixed]
    path = store / f"{'-'.join(words)}.json"
    if not path.exists():
        with case_of(name, SETS[name.set].init) as case:
            row = measure(method, setting, case, args.threads, args.timeout)
        if row["error"] is not None:
            raise SystemExit(f"{method.name}, {setting}, {name}: {row['error']}")
        path.write_text(json.dumps(row["dice"]), encoding="utf-8")
    return {label: d for label, d in json.loads(path.read_text(encoding="utf-8")).items() if d is not None}


def chosen(table: Mapping[str, Mapping[str, float]], folds: Mapping[str, int], fold: int) -> str:
    """Setting with the best mean over the pairs of all other folds."""
    others = [pair for pair, of in folds.items() if of != fold]
    return max(table, key=lambda setting: float(np.mean([table[setting][pair] for pair in others])))


def compared(
    table: Mapping[str, Mapping[str, float]], folds: Mapping[str, int], result: Mapping[str, Any]
) -> dict[str, Any]:
    """What each fold chose, the mean, and the differences of regweave's rungs to it."""
    ours = {row["pair"]: row for row in result["rows"]}
    missing = sorted(folds.keys() - ours.keys())
    if missing:
        raise SystemExit(f"the cross-validation has no pair {missing[0]}")
    settings = {fold: chosen(table, folds, fold) for fold in sorted(set(folds.values()))}
    rows = [
        {"pair": pair, "group": ours[pair]["group"], "peer": table[settings[fold]][pair], "dice": ours[pair]["dice"]}
        for pair, fold in folds.items()
    ]
    differences = {rung: difference(rows, _ours(rung), lambda row: float(row["peer"])) for rung in RUNGS}
    return {
        "n_pairs": len(rows), "mean_dice": float(np.mean([row["peer"] for row in rows])),
        "tried": {setting: float(np.mean(list(of.values()))) for setting, of in table.items()},
        "chosen": sorted(set(settings.values())), "differences": differences, "rows": rows,
    }  # fmt: skip


def _ours(rung: str) -> Any:
    return lambda row: float(row["dice"][rung])


def main(words: Sequence[str] | None = None) -> None:
    """Register, choose, compare, write."""
    options = parser(__doc__, pairs=1)
    options.add_argument("--set", default="lpba40_80", choices=sorted(SETS), help="set of REGWEAVE_DATA")
    options.add_argument("--peer", default="greedy_ncc", help="adapter under benchmark/peers")
    options.add_argument(
        "--settings", action="append", default=[], help="setting of the adapter to try; by default all"
    )
    options.add_argument(
        "--work", type=Path, default=ROOT / "build" / "crossval_peer", help="folder for what is computed"
    )
    options.add_argument("--folds", type=int, default=None, help="only so many folds; by default all")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--timeout", type=float, default=1800.0, help="seconds of one registration, at most")
    args = options.parse_args(words)
    args.work.mkdir(parents=True, exist_ok=True)
    (method,) = (m for m in choose_methods([args.peer], [], list(SETS[args.set].labels)) if m.name == args.peer)
    names = {
        f"{name.moving}-to-{name.fixed}": (name, fold)
        for fold in range(args.folds or SETS[args.set].folds)
        for name in fold_pairs(args.set, fold, args.pairs)
    }
    unknown = sorted(set(args.settings) - set(method.settings))
    if unknown:
        raise SystemExit(f"{args.peer} has no setting {unknown[0]!r}; it has {', '.join(method.settings)}")
    table: dict[str, dict[str, float]] = {setting: {} for setting in args.settings or method.settings}
    for pair, (name, _) in names.items():
        for setting, of in table.items():
            of[pair] = float(np.mean(list(scores_of(method, setting, name, args.work, args).values())))
            print(f"{pair}, {setting}: {of[pair]:.4f}", flush=True)
    result = json.loads((RESULTS / f"crossval-{args.set}.json").read_text(encoding="utf-8"))
    found = compared(table, {pair: fold for pair, (_, fold) in names.items()}, result)
    where = f"{args.set}, {found['n_pairs']} pairs"
    claims = [Claim(f"mean Dice, {args.peer}, {where}", found["mean_dice"])]
    claims += [
        Claim(f"{rung} − {args.peer}, {where}", d["mean"], "+.4f", target=0.0 if rung == "learned" else None)
        for rung, d in found["differences"].items()
    ]
    content = {"data": args.set, "credit": SETS[args.set].credit, "peer": args.peer, "version": method.version, **found}
    write(args.output or f"crossval_peer-{args.set}-{args.peer}", args.seed, content, claims)


if __name__ == "__main__":
    sys.exit(main())
