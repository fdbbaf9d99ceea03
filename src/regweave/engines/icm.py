"""Iterated conditional modes: the baseline that the other engines have to beat."""

from pydantic import Field

from regweave import _core, engines
from regweave.types import Energy, IntArray, Solution


class Options(engines.Options):
    """Effort."""

    max_iter: int = Field(default=100, ge=1, le=10_000)
    """Largest number of sweeps over the nodes; a sweep that changes nothing ends the search."""


DEFAULTS = Options()


def minimize(energy: Energy, init: IntArray | None = None, options: Options = DEFAULTS) -> Solution:
    """Minimise an energy by coordinate descent in raster order from the labels ``init``; the result is never worse.

    No change of one node improves the labels; the lower bound is minus infinity. Besag (1986), "On the statistical
    analysis of dirty pictures", JRSS B 48(3).
    """
    return engines.solution_of(_core.icm, energy, init, options.max_iter)
