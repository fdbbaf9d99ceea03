"""Options of a reproduction, checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from regweave.config.settings import Settings
from regweave.errors import UsageError
from regweave.jobs.cluster import Cluster
from regweave.jobs.placement import Placement, place
from regweave.jobs.store import worker_count
from regweave.learning.options import ALPHAS
from regweave.training.options import TrainOptions

PAPER_METHOD = "mw"
"""Per class and without a gate: the paper's method."""
_LEARNER = TrainOptions(
    method="lssvm", alpha=ALPHAS[0], gate=False, predictor=None, tune_pairs=10**6, judge_pairs=10**6
)
"""The paper's learner, from all pairs of a fold.

No predictor: the moving labels are always given, and no metric of the paper compares maps.
"""
MODELS = {
    PAPER_METHOD: _LEARNER,
    "global": replace(_LEARNER, method="global"),
    "joint": replace(_LEARNER, method="lssvm-joint"),
    "per-class": replace(_LEARNER, gate=True),
    "search": replace(_LEARNER, method="search", alpha=None, max_pairs=4, budget=148),
}
"""Models of the ladder by name; all but the gated one are used as they were learned."""
USUAL = (PAPER_METHOD, "global", "joint", "per-class")
"""Models that are trained where none are named: a search costs as much as all of them."""
GATED = ("per-class",)
"""Models that a fast look leaves out: two pairs leave nothing to judge by."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Extent, settings and machines of a reproduction.

    Parameters
    ----------
    preset, config : optional
        Settings of all registrations; by default those of the paper.
    quick : bool
        One fold, one draw, few pairs, no gates: a fast look, not evidence.
    seed : int
        Chooses patients, folds, pairs and simulations.
    max_pairs : int, optional
        Test at most so many pairs of a fold, drawn by seed.
    models : tuple of str
        Models of the ladder to train; the paper's is always among them.
    workers, scheduler, device : optional
        As in `regweave.study.evaluate.evaluate`.
    max_folds : int, optional
        Run only so many folds of an experiment.
    """

    preset: str = "paper"
    config: str | Path | Settings | None = None
    quick: bool = False
    seed: int = 0
    max_pairs: int | None = None
    models: tuple[str, ...] = USUAL
    workers: int | None = None
    scheduler: str | Cluster | None = None
    device: str | None = None
    max_folds: int | None = None

    def check(self) -> Placement:
        """Refuse what no run can mean; return where registrations run."""
        worker_count(self.workers, self.scheduler)
        for name, value in (("--max-pairs", self.max_pairs), ("--max-folds", self.max_folds)):
            if value is not None and value < 1:
                raise UsageError("E192", f"{name} is {value}", "give 1 or more")
        if unknown := [name for name in self.models if name not in MODELS]:
            raise UsageError("E192", f"unknown models {', '.join(unknown)}", f"available: {', '.join(MODELS)}")
        return place(self.device, self.scheduler)

    def ladder(self) -> dict[str, TrainOptions]:
        """Return the models to train, in the order of the ladder."""
        left_out = GATED if self.quick else ()
        return {n: o for n, o in MODELS.items() if n == PAPER_METHOD or (n in self.models and n not in left_out)}
