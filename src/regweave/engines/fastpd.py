"""Fast primal-dual expansion moves (FastPD), whose max-flows start from the duals of the sweep before."""

from typing import Self

from pydantic import Field

from regweave import _core, engines
from regweave.types import Energy, IntArray, Solution


class Options(engines.Options):
    """Effort."""

    max_iter: int = Field(default=10, ge=1, le=10_000)
    """Largest number of sweeps over the labels; a sweep that changes nothing ends the search."""
    bound_passes: int = Field(default=8, ge=0, le=10_000)
    """Tree-reweighted passes that tighten the lower bound; the bound of the duals alone is loose."""

    def without_proof(self) -> Self:
        """Leave out the passes that tighten the bound."""
        return self.model_copy(update={"bound_passes": 0})


DEFAULTS = Options()


def minimize(energy: Energy, init: IntArray | None = None, options: Options = DEFAULTS) -> Solution:
    """Minimise an energy with the primal-dual method PD3a, from the labels ``init``; the result is never worse.

    Without ``base`` the pairwise term is a metric on labels, and each inner iteration finds the best expansion of a
    label. At convergence the energy is, for non-negative unaries, at most 2 d_max / d_min times the least one, d being
    the distances of two labels. With ``base`` the term is no metric: the moves are then expansions and steps along an
    axis whose terms that are not submodular are truncated, and a move is taken only where the recomputed energy falls.
    The energy never rises; the factor needs the metric.

    Komodakis, Tziritas, Paragios (2008), "Performance vs computational efficiency for optimizing single and dynamic
    MRFs", CVIU 112(1).
    """
    return engines.solution_of(_core.fastpd, energy, init, options.max_iter, options.bound_passes)
