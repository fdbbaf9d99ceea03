"""Hyper-parameters of the latent structured SVM."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

ALPHAS = (0.05, 1.0)
"""Weights of the proximity to the start that cross-validation tries where none is given; the last is the default."""


@dataclass(frozen=True)
class LssvmOptions:
    """Hyper-parameters of Algorithm 1: the one place of their defaults.

    Parameters
    ----------
    C, alpha, eta : float
        Weights of the slacks, of the proximity to w₀, and of the loss in imputation, eqs. (7) and (9).
    epsilon : float
        Tolerance on a slack, in units of the loss per node.
    rounds : int
        How often the trajectories are refreshed.
    max_outer, max_inner : int
        Largest numbers of imputations and, between two of them, of quadratic programmes.
    signed : bool
        Let weights of members be negative, as the paper does.
    """

    C: float = 300.0
    alpha: float = ALPHAS[-1]
    eta: float = 10.0
    epsilon: float = 1e-2
    rounds: int = 1
    max_outer: int = 6
    signed: bool = False
    max_inner: int = 50

    def record(self) -> dict[str, Any]:
        """Return what a model keeps: the limit of the quadratic programmes is never reached in earnest."""
        return {name: value for name, value in asdict(self).items() if name != "max_inner"}

    def words(self) -> str:
        """Name the three that are searched.

        Examples
        --------
        >>> LssvmOptions().words()
        'C 300, alpha 1, eta 10'
        """
        return f"C {self.C:g}, alpha {self.alpha:g}, eta {self.eta:g}"
