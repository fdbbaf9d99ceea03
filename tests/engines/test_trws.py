from math import prod

import exhaustive
import numpy as np
import pytest
from pydantic import ValidationError

from regweave.engines import trws
from regweave.types import Energy


def random_energy(shape, counts, seed, *, weight=0.5, elastic=False):
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
                energy = random_energy(tuple(shape), counts, 7, elastic=elastic)
                solution = trws.minimize(energy, options=trws.Options(tol=0.0))
                optimum = chain_optimum(energy)
                assert solution.energy == pytest.approx(optimum, abs=1e-9)
                assert solution.lower_bound == pytest.approx(optimum, abs=1e-9)
                assert solution.lower_bound <= optimum
    energy = random_energy((1, 9, 1), (3, 1, 4), 5)
    x, y, z = energy.offsets
    energy = Energy(energy.unary, energy.shape, (x[::-1], y, z[[2, 0, 3, 1]]), energy.weight)
    assert trws.minimize(energy, options=trws.Options(tol=0.0)).energy == pytest.approx(chain_optimum(energy), abs=1e-9)


@pytest.mark.parametrize("elastic", [False, True])
def test_bound_never_falls_with_more_iterations(elastic):
    energy = random_energy((5, 5, 4), (3, 3, 3), 2, elastic=elastic)
    bounds = [trws.minimize(energy, options=trws.Options(max_iter=n, tol=0.0)).lower_bound for n in (1, 2, 4, 8, 16)]
    assert np.all(np.diff(bounds) >= -1e-9)


def test_bound_is_below_the_optimum_with_large_forbidding_costs():
    for seed in range(8):
        energy = random_energy((2, 2, 2), (2, 1, 2), seed)
        forbidden = np.random.default_rng(seed).random(energy.unary.shape) < 0.4
        energy = Energy(energy.unary + 1e9 * forbidden, energy.shape, energy.offsets, energy.weight)
        optimum = exhaustive.minimize(energy)
        solution = trws.minimize(energy)
        assert solution.lower_bound <= optimum.energy
        assert solution.energy >= optimum.energy


def test_smooth_problem_is_certified():
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
