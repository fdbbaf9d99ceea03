"""Cross-validation folds grouped by patient."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regweave.errors import RegweaveError
from regweave.jobs.table import PairFiles

DEALS = 64  # random ways to deal the patients that are compared


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
    else, of many random deals of single patients, the one that keeps most pairs for testing is taken. The seed chooses
    the deal; the order of the pairs does not matter. The test sets have no pair in common.

    Raises E134 where a fold would have nothing to train or to test on.
    """
    units = connected_patients(pairs)
    if len(units) < k:
        units = [(patient,) for patient in sorted({name for pair in pairs for name in pair.patients})]
    if k < 2 or len(units) < k:
        hint = "ask for at least 2 folds and no more than there are patients"
        raise RegweaveError("E134", f"{k} folds from {len(units)} patients", hint)
    rng = np.random.default_rng(seed)
    orders = (rng.permutation(len(units)) for _ in range(DEALS))
    deals = [_folds(pairs, [{p for i in order[n::k] for p in units[i]} for n in range(k)]) for order in orders]
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


def _folds(pairs: Sequence[PairFiles], parts: Sequence[set[str]]) -> list[Fold]:
    folds = []
    for part in parts:
        test = tuple(p for p in pairs if part.issuperset(p.patients))
        train = tuple(p for p in pairs if part.isdisjoint(p.patients))
        dropped = tuple(p for p in pairs if p not in test and p not in train)
        folds.append(Fold(train, test, dropped))
    return folds


def cover_patients(pairs: Sequence[PairFiles], limit: int, seed: int = 0) -> list[PairFiles]:
    """Choose pairs one after the other, each time one whose patients were chosen least; at most so many.

    The order of the pairs does not matter, the seed draws among equals, and a larger limit only adds pairs.
    """
    listed = sorted(pairs, key=lambda p: p.id)
    left = [listed[k] for k in np.random.default_rng(seed).permutation(len(listed))]
    used: Counter[str] = Counter()
    chosen: list[PairFiles] = []
    while left and len(chosen) < limit:
        best = min(left, key=lambda p: (max(used[name] for name in p.patients), sum(used[n] for n in p.patients)))
        left.remove(best)
        used.update(best.patients)
        chosen.append(best)
    return chosen


def deal_patients(pairs: Sequence[PairFiles], parts: int, seed: int = 0) -> dict[str, int]:
    """Deal the patients of pairs into parts of like size, so that many pairs are within one part.

    Patients that pairs connect stay together where there are enough such sets and none is most of all; else each
    patient goes where most patients are that share a pair with it, as long as there is room. The seed draws among
    equals. Return the number of the part of each patient.
    """
    units = connected_patients(pairs)
    rng = np.random.default_rng(seed)
    largest, n = max(map(len, units)), sum(map(len, units))
    if len(units) < parts or largest > 2 * -(-n // parts):
        return _deal_one_by_one(pairs, parts, rng)
    order = sorted(rng.permutation(len(units)).tolist(), key=lambda k: -len(units[k]))
    sizes = [0] * parts
    out: dict[str, int] = {}
    for k in order:
        part = sizes.index(min(sizes))
        out.update(dict.fromkeys(units[k], part))
        sizes[part] += len(units[k])
    return out


def _deal_one_by_one(pairs: Sequence[PairFiles], parts: int, rng: np.random.Generator) -> dict[str, int]:
    """Deal patients in a random order, each to the part with most of its partners among those with room."""
    names = sorted({name for pair in pairs for name in pair.patients})
    room = -(-len(names) // parts)
    out: dict[str, int] = {}
    for k in rng.permutation(len(names)):
        name = names[k]
        partners = Counter(
            out[other] for p in pairs if name in p.patients for other in p.patients if other != name and other in out
        )
        sizes = Counter(out.values())
        free = [part for part in range(parts) if sizes[part] < room]
        out[name] = max(free, key=lambda part: (partners[part], -sizes[part]))
    return out
