"""Progress of a registration: its stages, and the share of the forecast work that is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regweave.registration.align import Step
from regweave.registration.refine import RefineStep
from regweave.run.memory import Plan

STAGES = {
    "read": "reading",
    "initial": "initial alignment",
    "classes": "structures",
    "levels": "levels",
    "refine": "refinement",
    "outputs": "inverse and warped images",
    "measure": "measurements",
}
"""Stages of a registration, in their order, and their names for users."""


@dataclass(frozen=True)
class Progress:
    """Position of a run in its stages.

    Parameters
    ----------
    stage : str
        One of `STAGES`; ``begin`` once, when it is known what runs.
    done, total : int
        Steps of the levels and of the refinement; the total is 0 before it is known.
    message : str
        The stage that begins, or what the last step was.
    fraction : float
        Share of the forecast work that is done, 0 to 1.
    """

    stage: str
    done: int
    total: int
    message: str
    fraction: float = 0.0


OnProgress = Callable[[Progress], None]


class RegistrationTeller:
    """Turns stages and steps into progress, weighed by the forecast of their work."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._tell = on_progress
        self._done, self._total = 0, 0
        self._shares: list[float] = []
        self._stage, self._fraction = "", 0.0

    def weigh(self, plan: Plan) -> None:
        """Learn the number of the steps, and how much work each of them and what follows will be."""
        work = plan.work
        steps = [w / size.steps for w, size in zip(work.levels, plan.sizes, strict=True) for _ in range(size.steps)]
        steps += [work.refine / max(plan.refine_steps, 1)] * plan.refine_steps
        self._total = len(steps)
        self._shares = [*steps, work.outputs / 3, 2 * work.outputs / 3]

    def _say(self, message: str, stage: str | None = None) -> None:
        if self._tell is not None:
            self._tell(Progress(stage or self._stage, self._done, self._total, message, self._fraction))

    def _advance(self) -> None:
        counted = self._done + (self._stage == "measure")
        self._fraction = sum(self._shares[:counted]) / (sum(self._shares) or 1.0)

    def begin(self, message: str) -> None:
        """Say what runs before anything is computed."""
        self._say(message, "begin")

    def stage(self, name: str) -> None:
        """Say that a stage begins."""
        self._stage = name
        self._advance()
        self._say(STAGES[name])

    def _next(self, message: str) -> None:
        self._done += 1
        self._advance()
        self._say(message)

    def level(self, step: Step) -> None:
        """Say what a discrete step found."""
        s = step.solution
        self._next(f"{step.spacing_mm:.3g} mm step {step.step + 1}: energy {s.energy:.2f}, gap {s.gap:.2%}")

    def refine(self, step: RefineStep) -> None:
        """Say what a gradient step cost."""
        self._next(f"refine step {step.step + 1}: cost {step.data + step.smoothness:.1f}")
