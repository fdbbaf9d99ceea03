from math import prod

import exhaustive
import numpy as np
import pytest

from regweave import engines
from regweave.engines import fastpd, icm
from regweave.types import Energy


def random_energy(shape, counts, seed, *, weight=0.3, low=0.0, elastic=False):
    rng = np.random.default_rng(seed)
    base = rng.normal(scale=0.5, size=(prod(shape), 3)) if elastic else None
    offsets = tuple(np.arange(k, dtype=np.float64) for k in counts)
    return Energy(rng.uniform(low, 1.0, size=(prod(shape), prod(counts))), shape, offsets, weight, base)


def best_expansion(energy, labels, label):
    """Least energy over all ways to give some nodes `label`, by trying each of them."""
    choices = np.array(list(np.ndindex(*[2] * len(labels))), dtype=bool)
    return min(energy(np.where(take, label, labels)) for take in choices)


def test_within_the_factor_of_the_optimum():
    for counts in [(4, 1, 1), (2, 2, 1), (3, 1, 2)]:
        for seed in range(6):
            energy = random_energy((2, 3, 1), counts, seed)
            optimum = exhaustive.minimize(energy).energy
            d_max = sum(k - 1 for k in counts)  # unit offsets: d_min is 1
            assert optimum - 1e-9 <= fastpd.minimize(energy).energy <= 2 * d_max * optimum


@pytest.mark.parametrize("elastic", [False, True])
def test_without_proof_the_labels_are_the_same_and_the_bound_holds(elastic):
    energy = random_energy((4, 5, 3), (3, 3, 2), 7, low=-1.0, elastic=elastic)
    solver = engines.solver("fastpd")
    proved, quick = solver(energy), solver(energy, proof=False)
    np.testing.assert_array_equal(quick.labels, proved.labels)
    assert quick.lower_bound <= proved.lower_bound <= proved.energy
    assert quick.lower_bound < proved.lower_bound


def test_optima_where_there_is_a_proof():
    for seed in range(6):
        energy = random_energy((2, 3, 3), (1, 2, 1), seed, low=-1.0)
        solution = fastpd.minimize(energy, np.ones(18, np.int32), options=fastpd.Options(bound_passes=400))
        optimum = exhaustive.minimize(energy).energy
        assert solution.energy == pytest.approx(optimum, abs=1e-9)
        assert solution.lower_bound <= optimum
    for seed in range(4):
        energy = random_energy((2, 2, 2), (2, 1, 1), seed, low=-1.0, elastic=True)
        optimum = exhaustive.minimize(energy)
        assert fastpd.minimize(energy, np.zeros(8, np.int32)).energy == pytest.approx(optimum.energy, abs=1e-9)


def test_expansions_are_the_best_and_none_is_left():
    for seed in range(5):
        energy = random_energy((2, 2, 2), (3, 2, 2), seed, low=-1.0)
        solution = fastpd.minimize(energy, options=fastpd.Options(max_iter=50))
        for label in range(12):
            assert solution.energy <= best_expansion(energy, solution.labels, label) + 1e-9
    for seed in range(5):
        energy = random_energy((2, 2, 2), (1, 2, 1), seed, low=-1.0)
        init = np.zeros(8, np.int32)
        assert fastpd.minimize(energy, init, options=fastpd.Options(max_iter=1)).energy == pytest.approx(
            best_expansion(energy, init, 1), abs=1e-9
        )


@pytest.mark.parametrize("elastic", [False, True])
def test_no_single_node_improves_the_result(elastic):
    energy = random_energy((6, 5, 4), (3, 3, 3), 1, low=-1.0, elastic=elastic)
    solution = fastpd.minimize(energy, options=fastpd.Options(max_iter=50))
    again = icm.minimize(energy, solution.labels)
    if elastic:
        assert again.energy <= solution.energy
    else:
        assert again.energy == pytest.approx(solution.energy, abs=1e-9)


def test_more_bound_passes_never_loosen_the_bound():
    for seed in range(4):
        energy = random_energy((4, 3, 3), (3, 2, 2), seed)
        bounds = [fastpd.minimize(energy, options=fastpd.Options(bound_passes=n)).lower_bound for n in (0, 2, 8)]
        assert bounds == sorted(bounds)
        assert bounds[-1] <= fastpd.minimize(energy).energy
