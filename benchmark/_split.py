"""Which patients of a set may be tuned and trained on, and which are for the test; two halves, or folds.

The patients of a set are sorted by name. The first half, one less where their number is odd, are for training, the
others for the test. Pairs are made inside each half, so no patient is on both sides. A limit keeps the first pairs of
a walk through all of them with a fixed stride: it meets every patient early, and a larger limit only adds pairs.

For a cross-validation the people are dealt to folds by seed, and pairs are drawn inside a fold: both people of a pair
are then unseen by whatever was learned from the other folds. One pair after the other goes through all people before
one is used again, so that no person counts much more than another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from _pairs import SETS, PairName, cases_of, files, subject_of
from regweave.datasets.manifest import PairFiles, write_pairs

GOLDEN = (math.sqrt(5) - 1) / 2


def patients(set_name: str) -> tuple[list[str], list[str]]:
    """Return the patients for training and those for the test."""
    names = sorted({subject_of(case) for case in cases_of(set_name)})
    return names[: len(names) // 2], names[len(names) // 2 :]


def training_pairs(set_name: str, limit: int | None) -> list[PairName]:
    """Pairs of training patients: all of them, or the first of the walk."""
    return _pairs_among(set_name, patients(set_name)[0], limit)


def test_pairs(set_name: str, limit: int | None) -> list[PairName]:
    """Pairs of test patients: all of them, or the first of the walk."""
    return _pairs_among(set_name, patients(set_name)[1], limit)


def folds_of(set_name: str, seed: int = 0) -> dict[str, int]:
    """Deal the people of a set to its folds, by seed; return the fold of each case."""
    people = sorted({subject_of(case) for case in cases_of(set_name)})
    order = np.random.default_rng(seed).permutation(len(people))
    fold = {people[k]: place % SETS[set_name].folds for place, k in enumerate(order)}
    return {case: fold[subject_of(case)] for case in cases_of(set_name)}


def fold_pairs(set_name: str, fold: int, limit: int, seed: int = 0) -> list[PairName]:
    """Pairs of people of one fold, at most so many; a larger limit only adds pairs.

    The next pair is always one whose cases have been used least, the fixed place and the moving place counted apart;
    the order of equals is drawn by seed.
    """
    cases = [case for case, k in folds_of(set_name, seed).items() if k == fold]
    return covering_pairs(set_name, cases, limit, np.random.default_rng([seed, fold]))


def covering_pairs(set_name: str, cases: list[str], limit: int, rng: np.random.Generator) -> list[PairName]:
    """Pairs of some cases, each time one whose cases have been used least; the order of equals is drawn."""
    couples = SETS[set_name].couples(cases)
    couples = [couples[k] for k in rng.permutation(len(couples))]
    used: Counter[tuple[str, str]] = Counter()
    out = []
    while couples and len(out) < limit:
        fixed, moving = min(couples, key=lambda c: _wear(used, c))
        couples.remove((fixed, moving))
        used.update([("fixed", subject_of(fixed)), ("moving", subject_of(moving)), ("case", fixed), ("case", moving)])
        out.append(PairName(set_name, fixed, moving, subject_of(fixed)))
    return out


def _wear(used: Counter[tuple[str, str]], couple: tuple[str, str]) -> tuple[int, int, int]:
    people = [subject_of(case) for case in couple]
    times = [used["fixed", person] + used["moving", person] for person in people]
    return max(times), used["fixed", people[0]] + used["moving", people[1]], sum(used["case", c] for c in couple)


def write_csv(pairs: Iterable[PairName], path: str | Path) -> None:
    """Write pairs of a real set as a list for `regweave train` and `regweave evaluate`; a group is ``p07+p11``."""
    write_pairs(path, [_line(pair) for pair in pairs])


def _line(name: PairName) -> PairFiles:
    people = dict.fromkeys(map(subject_of, (name.fixed, name.moving)))
    return PairFiles(id=f"{name.moving}-to-{name.fixed}", group="+".join(people), **files(name))


def _pairs_among(set_name: str, people: Sequence[str], limit: int | None) -> list[PairName]:
    chosen = [case for case in cases_of(set_name) if subject_of(case) in people]
    couples = SETS[set_name].couples(chosen)
    n = len(couples)
    step = stride(n)
    walk = [couples[k * step % n] for k in range(n if limit is None else min(limit, n))]
    return [PairName(set_name, fixed, moving, subject_of(fixed)) for fixed, moving in walk]


def stride(n: int) -> int:
    """Return the number nearest to n times the golden ratio that has no factor in common with n."""
    return min((k for k in range(1, n + 1) if math.gcd(k, n) == 1), key=lambda k: abs(k - n * GOLDEN))
