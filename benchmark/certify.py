"""How near the optimum do the engines come, on the energies of real registrations?

Every step of `align` is solved again by each engine; the gap is taken to the better of their lower bounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from _common import Claim, counted, failure, parser, write
from _pairs import (
    SETS,
    PairName,
    all_settings_of,
    choose_pairs,
    choose_set,
    prepare,
    settings_hash,
)
from regweave import engines
from regweave.config.settings import Settings
from regweave.energy.assemble import assemble
from regweave.kernels.threads import kernel_threads
from regweave.pipeline.machine import allowed_threads
from regweave.registration.align import Step, align
from regweave.types import WeightTable

TARGETS = {"trws": 0.001, "fastpd": 0.005}
ENGINES = tuple(TARGETS)


class Certifier:
    """Solves the energy of each step with every engine and keeps what they found."""

    def __init__(self, weights: WeightTable) -> None:
        self._weights = weights
        self.steps: list[dict[str, Any]] = []

    def __call__(self, step: Step) -> None:
        energy = assemble(step.terms, self._weights)
        found = {}
        for engine in ENGINES:
            start = time.perf_counter()
            solution = engines.solver(engine)(energy)
            found[engine] = (solution, time.perf_counter() - start)
        bound = max(s.lower_bound for s, _ in found.values())
        self.steps.append(
            {
                "level": step.level,
                "step": step.step,
                "n_nodes": energy.unary.shape[0],
                "n_labels": energy.unary.shape[1],
                "lower_bound": bound,
                **{
                    engine: {
                        "energy": s.energy,
                        "gap": max(0.0, s.energy - bound) / max(abs(s.energy), 1e-12),
                        "own_gap": s.gap,
                        "iterations": s.iterations,
                        "seconds": seconds,
                    }
                    for engine, (s, seconds) in found.items()
                },
            }
        )


def certify(name: PairName, settings: Settings, init: str) -> dict[str, Any]:
    """Certify one pair: a row with all steps, or with the error."""
    row: dict[str, Any] = {"fixed": name.fixed, "moving": name.moving}
    try:
        p = prepare(name, settings, init)
        certifier = Certifier(p.weights.of(tuple(m.name for m in p.schedule.for_levels().bank)))
        align(p.pair, p.weights, p.schedule, on_step=certifier)
    except Exception as error:
        return {**row, "error": failure(error), "steps": []}
    return {**row, "error": None, "steps": certifier.steps}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean gap of the last step and of all steps, and seconds per registration, for each engine."""
    done = [r["steps"] for r in rows if r["error"] is None]
    return {
        "n": len(done),
        "failed": len(rows) - len(done),
        **{
            engine: {
                "final_gap": _mean([steps[-1][engine]["gap"] for steps in done]),
                "worst_final_gap": max((steps[-1][engine]["gap"] for steps in done), default=float("nan")),
                "all_steps_gap": _mean([s[engine]["gap"] for steps in done for s in steps]),
                "seconds_per_registration": _mean([sum(s[engine]["seconds"] for s in steps) for steps in done]),
            }
            for engine in ENGINES
        },
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "", pairs=10)
    options.add_argument("--set", default="ibsr18_64", help=f"one of {', '.join(SETS)}")
    options.add_argument("--presets", nargs="+", default=["paper", "default"], help="presets or TOML files")
    options.add_argument("--threads", type=int, default=None)
    args = options.parse_args()
    chosen, data = choose_set(args.set)
    names = choose_pairs(chosen, args.pairs, args.seed)
    runs, claims = {}, []
    with kernel_threads(allowed_threads(args.threads)):
        for settings in all_settings_of(args.presets):
            rows = []
            for name in names:
                rows.append(certify(name, settings, args.init))
                print(f"{settings.name} {name}: {rows[-1]['error'] or 'done'}", flush=True)
            summary = summarise(rows)
            runs[settings.name] = {"settings": settings_hash(settings), "summary": summary, "pairs": rows}
            where = f"{settings.name}, {counted(summary['n'], summary['failed'], data)}"
            claims += [
                Claim(
                    f"mean gap to the lower bound at the last step, {engine}, {where}",
                    summary[engine]["final_gap"], ".4%", "", TARGETS[engine], "at most",
                )
                for engine in ENGINES
            ]  # fmt: skip
    content = {"data": data, "credit": SETS[chosen].credit, "init": args.init, "runs": runs}
    write(args.output or f"certify-{chosen}", args.seed, content, claims)


if __name__ == "__main__":
    main()
