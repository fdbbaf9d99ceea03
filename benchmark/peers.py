"""How good and how fast are the registrations that users would pick instead?

Every method gets the same pairs from the same start, the same number of threads and a process of its own, and writes a
displacement field; everything that is reported is measured on that field by the same code. Each peer may choose among
the few settings of its adapter by mean Dice on pairs of training patients; only its choice is run on the test pairs.
The peers live in an environment of their own: `python benchmark/peers.py --setup` makes it.
"""

from __future__ import annotations

import hashlib
import json
import math
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import _split
from _common import RESULTS, parser, write
from _pairs import SETS, PairName, choose_set
from _peer_methods import OURS, Method, adapters, choose_methods, set_up
from _peer_report import START, best, summarise, text_table, tuning_score
from _peer_run import Case, case_of, measure, start_scores
from accuracy import Ledger, mean_dice
from regweave.datasets.manifest import check_leak
from regweave.errors import RegweaveError
from regweave.model.model import Model

NO_HEADERS = ("ibsr18_native",)

Rows = dict[tuple[str, str, PairName], dict[str, Any]]


class Bench:
    """Measures methods on pairs; what is in the ledger is measured once."""

    def __init__(self, args: Namespace, ledger: Ledger) -> None:
        self._args, self._ledger = args, ledger
        self.rows: Rows = {}
        self.starts: dict[PairName, dict[str, Any]] = {}

    def run(self, name: PairName, jobs: Sequence[tuple[Method, str]]) -> None:
        """Measure one pair with several methods in turn, so that a busy machine is busy for all of them."""
        with ExitStack() as stack:
            case = stack.enter_context(case_of(name, self._args.init))
            who = {"fixed": name.fixed, "moving": name.moving, "subject": name.subject}
            self.starts[name] = {**who, "error": None, **start_scores(case)}
            for method, setting in jobs:
                row = self._row(name, method, setting, case)
                self.rows[method.name, setting, name] = {**who, **row}

    def _row(self, name: PairName, method: Method, setting: str, case: Case) -> dict[str, Any]:
        where = f"{method.name} {self._args.init} {self._args.threads}"
        key = (name.fixed, name.moving, where, _hash(method.settings[setting]), method.code)
        known = self._ledger.get(key) if self._args.resume else None
        if known is not None:
            return {k: v for k, v in known.items() if k != "key"}
        row = measure(method, setting, case, self._args.threads, self._args.timeout)
        if row["error"] is None:
            self._ledger.add(key, row)
        shown = row["error"] or f"Dice {mean_dice(row):.4f}, {row['seconds']:.2f} s"
        print(f"{method.name} [{setting}] {name}: {shown}", flush=True)
        return row


def _hash(setting: dict[str, Any]) -> str:
    # A model is known by its content, wherever it lies.
    content = {k: v for k, v in setting.items() if k != "model"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Share:
    """Slow methods get the first of the pairs only."""

    slow: frozenset[str]
    train_pairs: int
    pairs: int

    def training(self, method: Method, names: Sequence[PairName]) -> Sequence[PairName]:
        """Training pairs of a method."""
        return names[: self.train_pairs] if method.name in self.slow else names

    def test(self, method: Method, names: Sequence[PairName]) -> Sequence[PairName]:
        """Test pairs of a method."""
        return names[: self.pairs] if method.name in self.slow else names


def tune(bench: Bench, methods: Sequence[Method], names: Sequence[PairName], share: Share) -> dict[str, dict[str, Any]]:
    """Scores of every setting on the training pairs, by method and setting."""
    for name in names:
        bench.run(name, [(m, s) for m in methods if name in share.training(m, names) for s in m.settings])
    return {
        m.name: {s: tuning_score([bench.rows[m.name, s, n] for n in share.training(m, names)]) for s in m.settings}
        for m in methods
    }


def compare(
    bench: Bench,
    methods: Sequence[Method],
    scores: dict[str, Any],
    names: Sequence[PairName],
    share: Share,
    args: Namespace,
) -> dict[str, dict[str, Any]]:
    """Results of every method on the test pairs with the setting it chose."""
    chosen = {m.name: best(scores[m.name]) for m in methods}
    settings = {m.name: list(m.settings) if args.all_settings else [chosen[m.name]] for m in methods}
    for name in names:
        bench.run(name, [(m, s) for m in methods if name in share.test(m, names) for s in settings[m.name]])
    ours = [bench.rows[OURS, chosen[OURS], n] for n in names]
    starts = [bench.starts[n] for n in names]
    out: dict[str, dict[str, Any]] = {START: {"summary": summarise(starts, ours, args.seed), "pairs": starts}}
    for m in methods:
        own = share.test(m, names)
        rows = [bench.rows[m.name, chosen[m.name], n] for n in own]
        shown = {s: {k: v for k, v in o.items() if k != "model"} for s, o in m.settings.items()}
        out[m.name] = {
            "version": m.version,
            "settings": shown,
            "training": scores[m.name],
            "chosen": chosen[m.name],
            "summary": summarise(rows, ours[: len(own)], args.seed),
            "test": {s: tuning_score([bench.rows[m.name, s, n] for n in own]) for s in settings[m.name]},
            "pairs": rows,
        }
    return out


def settings_table(methods: dict[str, dict[str, Any]]) -> str:
    """Return the means of each setting on training and test pairs, for the terminal; a star is the choice."""
    lines = ["", f"{'setting':<58} {'training':>9} {'test':>7} {'seconds':>8}"]
    for name, m in methods.items():
        for setting, t in m.get("training", {}).items():
            test = m["test"].get(setting, {"dice": float("nan")})
            star = "*" if setting == m["chosen"] else " "
            failed = f"  {t['failed']} failed: {'; '.join(t['errors'])}" if t["failed"] else ""
            shown = "" if math.isnan(test["dice"]) else f"{test['dice']:.4f}"
            lines.append(
                f"{star} {name + ' [' + setting + ']':<56} {t['dice']:9.4f} {shown:>7} {t['seconds']:8.2f}{failed}"
            )
    return "\n".join(lines)


def _arguments() -> Namespace:
    options = parser(__doc__ or "", pairs=10)
    options.add_argument("--setup", action="store_true", help="create the environment of the peers, and end")
    options.add_argument("--set", default="msd_hippocampus", help=f"one of {', '.join(SETS)}")
    options.add_argument("--peers", default="", help=f"some of {','.join(adapters())}; default: all")
    options.add_argument("--train-pairs", type=int, default=4, help="training pairs that settings are chosen on")
    options.add_argument("--slow", default="", help="peers that get the first pairs only, separated by commas")
    options.add_argument("--slow-train-pairs", type=int, default=1, help="training pairs of slow peers")
    options.add_argument("--slow-pairs", type=int, default=3, help="test pairs of slow peers")
    options.add_argument(
        "--model",
        action="append",
        default=[],
        help="a model that has not seen the test patients, such as benchmark/ladder.py trains; may be repeated",
    )
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a registration has failed")
    options.add_argument("--all-settings", action="store_true", help="run every setting on the test pairs as well")
    options.add_argument("--resume", action="store_true", help="take the rows that an earlier run of this code left")
    return options.parse_args()


def main() -> None:
    """Run the comparison."""
    args = _arguments()
    if args.setup:
        set_up()
        return
    chosen, data = choose_set(args.set)
    if chosen in NO_HEADERS and args.init == "none":
        raise SystemExit(f"the headers of {chosen} do not align its images; give --init affine")
    for model in map(Model.load, args.model):
        trained_on = list(model.training.trained_on)
        try:
            check_leak(trained_on, _split.patients(chosen)[1])
        except RegweaveError as error:
            raise SystemExit(str(error)) from error
    methods = choose_methods([p for p in args.peers.split(",") if p], args.model, list(SETS[chosen].labels))
    training, test = _split.training_pairs(chosen, args.train_pairs), _split.test_pairs(chosen, args.pairs)
    RESULTS.mkdir(exist_ok=True)
    output = args.output or f"peers-{chosen}"
    bench = Bench(args, Ledger(RESULTS / f"{output}.jsonl"))
    share = Share(frozenset(args.slow.split(",")), args.slow_train_pairs, args.slow_pairs)
    scores = tune(bench, methods, training, share)
    results = compare(bench, methods, scores, test, share, args)
    training_patients, test_patients = _split.patients(chosen)
    content = {
        "data": data,
        "credit": SETS[chosen].credit,
        "init": args.init,
        "threads": args.threads,
        "labels": SETS[chosen].labels,
        "nominal_spacing": not SETS[chosen].true_mm,
        "training_patients": training_patients,
        "test_patients": test_patients,
        "training_pairs": [str(n) for n in training],
        "training_start": tuning_score([bench.starts[n] for n in training])["dice"],
        "test_pairs": [str(n) for n in test],
        "methods": results,
    }
    print(settings_table(results), "", text_table(results), "", sep="\n")
    write(output, args.seed, content, [])


if __name__ == "__main__":
    main()
