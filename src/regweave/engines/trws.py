"""Sequential tree-reweighted message passing: near-optimal labels and a lower bound of the energy."""

from pydantic import Field

from regweave import _core, engines
from regweave.types import Energy, IntArray, Solution


class Options(engines.Options):
    """Effort."""

    max_iter: int = Field(default=30, ge=1, le=10_000)
    """Largest number of iterations, each one pass forward and one backward."""
    tol: float = Field(default=1e-4, ge=0, le=1)
    """Stop where the relative gap is at most this, or where five iterations raised the bound by less than a tenth of
    it.
    """


DEFAULTS = Options()


def minimize(energy: Energy, init: IntArray | None = None, options: Options = DEFAULTS) -> Solution:
    """Minimise an energy with TRW-S, helped by cut moves; the result is never worse than the labels ``init``.

    Messages pass axis by axis, because the L1 distance is a sum over axes; this is exact with and without ``base``. The
    best labels of all passes are kept and improved by cuts in which nodes step along an axis; a sweep of expansions
    follows where the gap is still above ``tol`` at the end. No labelling is below the bound of the tree decomposition;
    on a chain of nodes the labels are optimal.

    Kolmogorov (2006), "Convergent tree-reweighted message passing for energy minimization", PAMI 28(10).
    """
    return engines.solution_of(_core.trws, energy, init, options.max_iter, options.tol)
