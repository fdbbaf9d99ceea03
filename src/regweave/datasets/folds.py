"""Cross-validation folds grouped by patient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from regweave.datasets.manifest import PairFiles
from regweave.errors import RegweaveError

DEALS = 64
"""Random ways to deal the patients that are compared."""


@dataclass(frozen=True)
class Fold:
    """One split; ``dropped`` pairs have patients on both sides and are used on neither."""

    train: tuple[PairFiles, ...]
    test: tuple[PairFiles, ...]
    dropped: tuple[PairFiles, ...]


def split_groups(pairs: Sequence[PairFiles], k: int, seed: int = 0) -> list[Fold]:
    """Split pairs into k folds by patient.

    A pair is in the test set of a fold if all its patients are left out there, in its training set if none is.
    Where the patients fall into k or more sets that share no pair, whole sets are dealt and no pair is dropped;
    else, of many random deals of single patients, the one that keeps most pairs for testing is taken.

    Parameters
    ----------
    pairs : sequence of PairFiles
        Pairs with their groups.
    k : int
        Number of folds, at least 2.
    seed : int
        Chooses the deal; the order of the pairs does not matter.

    Returns
    -------
    list of Fold
        k folds whose test sets have no pair in common.

    Raises
    ------
    RegweaveError
        E134 where a fold would have nothing to train or to test on.
    """
    units = connected_patients(pairs)
    if len(units) < k:
        units = [(patient,) for patient in sorted({name for pair in pairs for name in pair.patients})]
    if k < 2 or len(units) < k:
        hint = "ask for at least 2 folds and no more than there are patients"
        raise RegweaveError("E134", f"{k} folds from {len(units)} patients", hint)
    rng = np.random.default_rng(seed)
    deals = [_folds(pairs, _deal(units, k, rng)) for _ in range(DEALS)]
    best = max(deals, key=lambda folds: (min(len(f.test) for f in folds), sum(len(f.test) for f in folds)))
    for number, fold in enumerate(best, start=1):
        if not (fold.train and fold.test):
            message = f"fold {number} of {k} has {len(fold.train)} training and {len(fold.test)} test pairs"
            raise RegweaveError("E134", message, "ask for fewer folds, or list more pairs of each patient")
    return best


def one_by_one(pairs: Sequence[PairFiles]) -> list[Fold]:
    """Leave out one pair after the other, and train on those that show none of its patients.

    Nothing is dropped, as `split_groups` must where pairs tie the patients together; it serves where training costs
    nothing. A pair that shares a patient with every other one cannot be judged and has no fold.
    """
    folds = []
    for pair in pairs:
        train = tuple(p for p in pairs if not set(p.patients) & set(pair.patients))
        if train:
            folds.append(Fold(train, (pair,), tuple(p for p in pairs if p is not pair and p not in train)))
    return folds


def connected_patients(pairs: Sequence[PairFiles]) -> list[tuple[str, ...]]:
    """Find the sets of patients that pairs tie together, each sorted, in the order of their first patient."""
    sets: list[set[str]] = []
    for pair in pairs:
        mine = set(pair.patients)
        for other in [s for s in sets if s & mine]:
            mine |= other
            sets.remove(other)
        sets.append(mine)
    return sorted(tuple(sorted(s)) for s in sets)


def _deal(units: Sequence[Iterable[str]], k: int, rng: np.random.Generator) -> list[set[str]]:
    order = rng.permutation(len(units))
    return [{patient for i in order[part::k] for patient in units[i]} for part in range(k)]


def _folds(pairs: Sequence[PairFiles], parts: Sequence[set[str]]) -> list[Fold]:
    folds = []
    for part in parts:
        test = tuple(p for p in pairs if part.issuperset(p.patients))
        train = tuple(p for p in pairs if part.isdisjoint(p.patients))
        dropped = tuple(p for p in pairs if p not in test and p not in train)
        folds.append(Fold(train, test, dropped))
    return folds
