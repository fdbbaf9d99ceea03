"""Pairs that cover patients evenly, and parts that keep pairs together."""

from collections import Counter
from itertools import combinations

from regweave.jobs.table import PairFiles, cover_patients, deal_patients


def pairs_of(groups) -> list[PairFiles]:
    return [PairFiles(f"{n:03d}", *["x"] * 4, group) for n, group in enumerate(groups)]


ALL = pairs_of(f"p{a:02d}+p{b:02d}" for a, b in combinations(range(21), 2))


def within(pairs, part) -> int:
    return sum(len({part[name] for name in p.patients}) == 1 for p in pairs)


def test_every_patient_is_met_before_one_is_met_again():
    chosen = cover_patients(ALL, 30)
    for n in (10, 20, 30):
        met = Counter(name for p in chosen[:n] for name in p.patients)
        assert max(met.values()) - min(met[f"p{k:02d}"] for k in range(21)) <= 1
    assert len({p.id for p in chosen}) == 30


def test_a_larger_limit_only_adds_and_the_order_of_the_list_does_not_matter():
    chosen = cover_patients(ALL, 40, seed=3)
    assert cover_patients(ALL[::-1], 12, seed=3) == chosen[:12]
    assert cover_patients(ALL, 12, seed=4) != chosen[:12]
    assert sorted(p.id for p in cover_patients(ALL, 10**6)) == [p.id for p in ALL]


def test_pairs_that_share_no_patient_lie_within_one_part():
    pairs = pairs_of(f"a{k}+b{k}" for k in range(11))
    part = deal_patients(pairs, 3)
    assert within(pairs, part) == 11
    sizes = Counter(part.values())
    assert sorted(sizes) == [0, 1, 2]
    assert max(sizes.values()) - min(sizes.values()) <= 2


def test_patients_whom_pairs_tie_together_are_dealt_one_by_one():
    """A crowd and a few others: no part has more than its share, and more pairs stay whole than by chance."""
    crowd = [f"x{a:02d}+x{b:02d}" for a, b in combinations(range(15), 2) if (a - b) % 3 == 0 or b == a + 1]
    pairs = pairs_of([*crowd, "u+v", "w+y", "s+t"])
    part = deal_patients(pairs, 3)
    assert max(Counter(part.values()).values()) <= 7
    assert within(pairs, part) > len(pairs) / 3


def test_as_many_patients_as_parts_have_one_each():
    assert sorted(deal_patients(pairs_of(["a+b", "b+c"]), 5).values()) == [0, 1, 2]


def test_the_deal_is_that_of_the_seed():
    for seed in range(3):
        assert deal_patients(ALL, 3, seed) == deal_patients(ALL, 3, seed)
        assert deal_patients(ALL, 3, seed) != deal_patients(ALL, 3, seed + 10)
