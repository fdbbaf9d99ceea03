"""One suite for every engine that ``available()`` finds."""

from math import prod

import exhaustive
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from regweave.engines import available, get, solver
from regweave.errors import UsageError
from regweave.types import Energy

ENGINES = available()
TINY = [
    ((2, 2, 1), (2, 1, 2)), ((3, 2, 1), (2, 3, 1)), ((2, 2, 1), (2, 2, 2)), ((1, 2, 3), (1, 1, 4)),
    ((5, 1, 1), (2, 2, 2)),
]  # fmt: skip


def random_energy(shape, counts, seed, *, weight=0.6, low=-1.0, elastic=False):
    rng = np.random.default_rng(seed)
    n_nodes = prod(shape)
    offsets = tuple(np.sort(rng.normal(size=k)) for k in counts)
    base = rng.normal(scale=0.7, size=(n_nodes, 3)) if elastic else None
    return Energy(rng.uniform(low, 1.0, size=(n_nodes, prod(counts))), shape, offsets, weight, base)


def all_energies(energy):
    """Energy of each labelling, by the definition and nothing else."""
    n_nodes, n_labels = energy.unary.shape
    return np.array([energy(np.array(x)) for x in np.ndindex(*[n_labels] * n_nodes)])


def test_exhaustive_is_the_least_of_all_labellings():
    for elastic in [False, True]:
        for shape, counts in [((2, 2, 1), (2, 1, 2)), ((1, 1, 4), (1, 3, 2)), ((3, 2, 1), (2, 1, 1))]:
            energy = random_energy(shape, counts, 1, elastic=elastic)
            every = all_energies(energy)
            solution = exhaustive.minimize(energy)
            assert solution.energy == pytest.approx(every.min(), abs=1e-12)
            assert solution.lower_bound == solution.energy
            first = np.unravel_index(every.argmin(), [energy.unary.shape[1]] * energy.unary.shape[0])
            np.testing.assert_array_equal(solution.labels, first)
    assert ENGINES == ("fastpd", "icm", "trws")
    with pytest.raises(UsageError, match="E180: unknown engine 'x'; available: fastpd, icm, trws"):
        get("x")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize(("shape", "counts"), TINY)
def test_optimum_lies_between_bound_and_energy(engine, shape, counts, elastic):
    for seed in range(6):
        energy = random_energy(shape, counts, seed, weight=[0.0, 0.1, 0.4, 1.0, 3.0, 30.0][seed], elastic=elastic)
        optimum = exhaustive.minimize(energy).energy
        solution = solver(engine)(energy)
        assert solution.energy >= optimum - 1e-9
        assert solution.lower_bound <= optimum + 1e-12
        assert solution.energy == energy(solution.labels)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    counts=st.tuples(*[st.integers(1, 5)] * 3),
    weight=st.sampled_from([0.0, 0.01, 0.2, 1.0, 50.0]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    elastic=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_contract_holds_on_random_instances(engine, shape, counts, weight, scale, elastic, seed):
    drawn = random_energy(shape, counts, seed, elastic=elastic)
    energy = Energy(drawn.unary * scale - scale, shape, drawn.offsets, weight * scale, drawn.base)
    n_nodes, n_labels = energy.unary.shape
    init = np.random.default_rng(seed).integers(0, n_labels, size=n_nodes).astype(np.int32)
    kept = init.copy(), energy.unary.copy()
    solution = solver(engine)(energy, init, max_iter=4)
    assert solution.labels.shape == (n_nodes,)
    assert solution.labels.dtype == np.int32
    assert solution.labels.min() >= 0
    assert solution.labels.max() < n_labels
    assert solution.energy == energy(solution.labels)
    assert solution.energy <= energy(init)
    assert solution.lower_bound <= solution.energy
    assert 1 <= solution.iterations <= 4
    np.testing.assert_array_equal(init, kept[0])
    np.testing.assert_array_equal(energy.unary, kept[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("elastic", [False, True])
def test_a_good_start_is_kept_runs_repeat_to_the_bit_and_offsets_need_not_ascend(engine, elastic):
    energy = random_energy((5, 4, 3), (3, 3, 3), 3, elastic=elastic)
    best = min((solver(name)(energy) for name in ENGINES), key=lambda s: s.energy)
    assert solver(engine)(energy, best.labels, max_iter=1).energy <= best.energy
    energy = random_energy((6, 5, 4), (3, 2, 5), 5, elastic=elastic)
    first, second = solver(engine)(energy), solver(engine)(energy)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert (first.energy, first.lower_bound, first.iterations) == (second.energy, second.lower_bound, second.iterations)
    energy = random_energy((2, 2, 1), (3, 1, 4), 8, elastic=elastic)
    x, y, z = energy.offsets
    energy = Energy(energy.unary, energy.shape, (x[[1, 0, 2]], y, z[[2, 0, 3, 1]]), energy.weight, energy.base)
    optimum = exhaustive.minimize(energy).energy
    solution = solver(engine)(energy)
    assert solution.lower_bound <= optimum + 1e-12
    assert solution.energy >= optimum - 1e-9


@pytest.mark.parametrize("engine", ENGINES)
def test_one_node_or_one_label_leaves_no_choice_and_ties_go_to_the_lower(engine):
    energy = random_energy((1, 1, 1), (3, 2, 4), 2)
    solution = solver(engine)(energy)
    assert solution.labels.tolist() == [energy.unary.argmin()]
    if engine != "icm":
        assert solution.lower_bound == pytest.approx(energy.unary.min(), abs=1e-9)
    energy = random_energy((4, 1, 3), (1, 1, 1), 2, elastic=True)
    solution = solver(engine)(energy)
    assert solution.labels.tolist() == [0] * 12
    if engine != "icm":
        assert solution.lower_bound == pytest.approx(solution.energy, abs=1e-9)
    line = np.array([0.0, 1.0, 2.0])
    energy = Energy(np.zeros((6, 3)), (2, 3, 1), (line[:1], line, line[:1]), weight=1.0)
    assert solver(engine)(energy).labels.tolist() == [0] * 6
    with pytest.raises(ValidationError, match="max_iter"):
        get(engine).Options(max_iter=0)


def invalid(**changes):
    good = {"unary": np.zeros((4, 6)), "shape": (2, 2, 1), "weight": 1.0, "base": None}
    good["offsets"] = (np.arange(2.0), np.arange(3.0), np.zeros(1))
    return Energy(**{**good, **changes})


def test_wrong_energies_and_starts_are_refused():
    for engine in ENGINES:
        for energy, message in [
            (invalid(unary=np.zeros((4, 5))), r"unary has shape \(4, 5\); .* need \(4, 6\)"),
            (invalid(shape=(3, 2, 1)), r"unary has shape \(4, 6\); .* need \(6, 6\)"),
            (invalid(base=np.zeros((3, 3))), r"base has shape \(3, 3\); .* needs \(4, 3\)"),
            (invalid(unary=np.full((4, 6), np.nan)), "unary has 24 values of 24 that are not finite"),
            (invalid(weight=-1.0), "weight is -1.0"),
            (invalid(shape=(0, 2, 1)), "must be 1 or more"),
        ]:
            with pytest.raises(ValueError, match=message):
                solver(engine)(energy)
    for engine in ENGINES:
        for init, message in [
            (np.zeros(3, np.int32), r"init has shape \(3,\); the energy has 4 nodes"),
            (np.array([0, 0, 6, 0], np.int32), r"labels 0\.\.6; the energy has 0\.\.5"),
            (np.zeros(4), "dtype float64"),
        ]:
            with pytest.raises(ValueError, match=message):
                solver(engine)(invalid(), init)
