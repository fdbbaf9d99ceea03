from math import prod

import exhaustive
import numpy as np
import pytest
from pydantic import ValidationError

from regweave import engines
from regweave.engines import fastpd, icm, trws
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
def test_labels_without_proof_are_the_same_and_no_single_node_improves_them(elastic):
    energy = random_energy((4, 5, 3), (3, 3, 2), 7, low=-1.0, elastic=elastic)
    solver = engines.solver("fastpd")
    proved, quick = solver(energy), solver(energy, proof=False)
    np.testing.assert_array_equal(quick.labels, proved.labels)
    assert quick.lower_bound <= proved.lower_bound <= proved.energy
    assert quick.lower_bound < proved.lower_bound
    energy = random_energy((6, 5, 4), (3, 3, 3), 1, low=-1.0, elastic=elastic)
    solution = fastpd.minimize(energy, options=fastpd.Options(max_iter=50))
    again = icm.minimize(energy, solution.labels)
    if elastic:
        assert again.energy <= solution.energy
    else:
        assert again.energy == pytest.approx(solution.energy, abs=1e-9)


def test_optima_where_there_is_a_proof_and_bounds_that_only_rise():
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
    for seed in range(4):
        energy = random_energy((4, 3, 3), (3, 2, 2), seed)
        bounds = [fastpd.minimize(energy, options=fastpd.Options(bound_passes=n)).lower_bound for n in (0, 2, 8)]
        assert bounds == sorted(bounds)
        assert bounds[-1] <= fastpd.minimize(energy).energy


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


def signed_energy(shape, counts, seed, *, weight=0.5, elastic=False):
    rng = np.random.default_rng(seed)
    base = rng.normal(scale=0.7, size=(prod(shape), 3)) if elastic else None
    offsets = tuple(np.linspace(-1.0, 1.0, k) if k > 1 else np.zeros(1) for k in counts)
    return Energy(rng.normal(size=(prod(shape), prod(counts))), shape, offsets, weight, base)


def chain_optimum(energy):
    """Viterbi along a chain of nodes with the full (L, L) table of each edge."""
    grid = np.stack(np.meshgrid(*energy.offsets, indexing="ij"), axis=-1).reshape(-1, 3)
    base = np.zeros((len(energy.unary), 3)) if energy.base is None else energy.base
    best = energy.unary[0]
    for p in range(1, len(energy.unary)):
        cost = np.abs((grid + base[p - 1])[:, None] - (grid + base[p])).sum(axis=-1)
        best = (best[:, None] + energy.weight * cost).min(axis=0) + energy.unary[p]
    return best.min()


def test_chains_are_solved_to_the_optimum():
    for axis in [0, 1, 2]:
        for counts in [(3, 3, 3), (5, 5, 5), (2, 1, 4), (7, 7, 7)]:
            for elastic in [False, True]:
                shape = [1, 1, 1]
                shape[axis] = 12
                energy = signed_energy(tuple(shape), counts, 7, elastic=elastic)
                solution = trws.minimize(energy, options=trws.Options(tol=0.0))
                optimum = chain_optimum(energy)
                assert solution.energy == pytest.approx(optimum, abs=1e-9)
                assert solution.lower_bound == pytest.approx(optimum, abs=1e-9)
                assert solution.lower_bound <= optimum
    energy = signed_energy((1, 9, 1), (3, 1, 4), 5)
    x, y, z = energy.offsets
    energy = Energy(energy.unary, energy.shape, (x[::-1], y, z[[2, 0, 3, 1]]), energy.weight)
    assert trws.minimize(energy, options=trws.Options(tol=0.0)).energy == pytest.approx(chain_optimum(energy), abs=1e-9)


def test_bounds_hold():
    for elastic in [False, True]:
        energy = signed_energy((5, 5, 4), (3, 3, 3), 2, elastic=elastic)
        bounds = [
            trws.minimize(energy, options=trws.Options(max_iter=n, tol=0.0)).lower_bound for n in (1, 2, 4, 8, 16)
        ]
        assert np.all(np.diff(bounds) >= -1e-9)
    for seed in range(8):
        energy = signed_energy((2, 2, 2), (2, 1, 2), seed)
        forbidden = np.random.default_rng(seed).random(energy.unary.shape) < 0.4
        energy = Energy(energy.unary + 1e9 * forbidden, energy.shape, energy.offsets, energy.weight)
        optimum = exhaustive.minimize(energy)
        solution = trws.minimize(energy)
        assert solution.lower_bound <= optimum.energy
        assert solution.energy >= optimum.energy
    rng = np.random.default_rng(0)
    shape, line = (8, 7, 6), np.linspace(-0.4, 0.4, 5)
    grid = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1).reshape(-1, 3)
    ramp = np.stack(np.meshgrid(*[np.linspace(-0.3, 0.3, n) for n in shape], indexing="ij"), axis=-1)
    cost = np.abs(ramp.reshape(-1, 1, 3) - grid).sum(axis=-1) + rng.normal(scale=0.1, size=(prod(shape), 125))
    solution = trws.minimize(Energy(cost, shape, (line, line, line), weight=0.1))
    assert solution.gap <= 1e-4
    assert solution.iterations < 30
    with pytest.raises(ValidationError, match="tol"):
        trws.Options(tol=-1.0)
