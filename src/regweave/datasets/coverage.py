"""Greedy selection of pairs that cover the patients evenly, and their deal into parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from regweave.datasets.folds import connected_patients
from regweave.datasets.manifest import PairFiles


def cover_patients(pairs: Sequence[PairFiles], limit: int, seed: int = 0) -> list[PairFiles]:
    """Choose pairs one after the other, each time one whose patients were chosen least; at most so many.

    Parameters
    ----------
    pairs : sequence of PairFiles
        Their order does not matter.
    limit : int
        Most pairs; a larger limit only adds pairs.
    seed : int
        Draws among equals.

    Returns
    -------
    list of PairFiles
        In the order of the choice.

    Examples
    --------
    >>> pairs = [PairFiles(g, *["x"] * 4, g) for g in ("a+b", "a+c", "b+c", "c+d")]
    >>> sorted(p.id for p in cover_patients(pairs, 2))
    ['a+b', 'c+d']
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
    """Deal the patients of pairs into parts of like size, so that many pairs lie within one part.

    Patients whom pairs tie together stay together where there are enough such sets and none is most of all; else each
    patient goes where most of those are with whom it shares a pair, as long as there is room.

    Parameters
    ----------
    pairs : sequence of PairFiles
        The pairs.
    parts : int
        Number of parts.
    seed : int
        Draws among equals.

    Returns
    -------
    dict
        Number of the part of each patient.
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
