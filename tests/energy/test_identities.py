"""The identities behind the method, against brute force over all labellings of a tiny grid."""

import itertools

import numpy as np
import pytest
from exhaustive import EXHAUSTIVE

from regweave import engines
from regweave.energy import TIE_BREAK, assemble, joint_features, loss_of, solve
from regweave.types import Terms, WeightTable

M, C = 3, 2
OFFSETS = (np.array([-0.2, 0.1]), np.array([0.0, 0.3]), np.array([-0.1, 0.15]))
SHAPES = [(2, 2, 1), (4, 1, 1), (1, 2, 2)]


def random_terms(seed: int, shape=(2, 2, 1), *, displaced=False, elastic=False) -> Terms:
    rng = np.random.default_rng(seed)
    n, labels = int(np.prod(shape)), 8
    shares = rng.random((n, labels, C) if displaced else (n, C))
    shares /= shares.sum(axis=-1, keepdims=True)
    return Terms(
        costs=rng.gamma(2.0, 0.5, (M, n, labels)).astype(np.float32),
        shares=shares.astype(np.float32),
        shape=shape,
        offsets=OFFSETS,
        loss=rng.random((n, labels)).astype(np.float32),
        base=rng.normal(0, 0.3, (n, 3)) if elastic else None,
    )


def random_weights(seed: int) -> WeightTable:
    rng = np.random.default_rng(1000 + seed)
    return WeightTable(rng.random((M, C)), ("a", "b", "c"), (0, 7), float(rng.random()))


def slow_energy(terms: Terms, weights: WeightTable, labels) -> float:
    """Eqs. (1) and (2) written as loops over nodes, members, classes and edges."""
    total = 0.0
    for i, x in enumerate(labels):
        for m, c in itertools.product(range(M), range(C)):
            share = terms.shares[i, c] if terms.shares.ndim == 2 else terms.shares[i, x, c]
            total += float(weights.matrix[m, c]) * float(share) * float(terms.costs[m, i, x])
    vectors = list(itertools.product(*terms.offsets))
    nodes = list(itertools.product(*(range(n) for n in terms.shape)))
    for (i, p), (j, q) in itertools.combinations(enumerate(nodes), 2):
        if sum(abs(a - b) for a, b in zip(p, q, strict=True)) == 1:
            u, v = np.array(vectors[labels[i]]), np.array(vectors[labels[j]])
            if terms.base is not None:
                u, v = u + terms.base[i], v + terms.base[j]
            total += weights.pairwise * float(np.abs(u - v).sum())
    return total


def slow_loss(terms: Terms, labels) -> float:
    return sum(float(terms.loss[i, x]) for i, x in enumerate(labels))


def slow_tie_break(terms: Terms, labels) -> float:
    vectors = list(itertools.product(*terms.offsets))
    return TIE_BREAK * sum(abs(d) for x in labels for d in vectors[x])


def all_labellings(terms: Terms) -> np.ndarray:
    n = int(np.prod(terms.shape))
    return np.array(list(itertools.product(range(8), repeat=n)), dtype=np.int32)


KINDS = [(d, e) for d in (False, True) for e in (False, True)]


@pytest.mark.parametrize(("displaced", "elastic"), KINDS)
@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 2, 4)])
def test_weights_times_features_is_the_energy(shape, displaced, elastic):
    for seed in range(5):
        terms = random_terms(seed, shape, displaced=displaced, elastic=elastic)
        weights, rng = random_weights(seed), np.random.default_rng(seed)
        labels = rng.integers(0, 8, int(np.prod(shape))).astype(np.int32)
        psi = joint_features(terms, labels)
        assert psi.shape == (M * C + 1,)
        expected = slow_energy(terms, weights, labels)
        assert weights.as_vector() @ psi == pytest.approx(expected, rel=1e-6)
        energy = assemble(terms, weights)
        assert energy(labels) == pytest.approx(expected + slow_tie_break(terms, labels), rel=1e-6)


def test_features_of_one_class_no_loss_and_tie_break():
    terms, labels = random_terms(0), np.array([3, 1, 0, 7], dtype=np.int32)
    psi = joint_features(terms, labels)
    for m in range(M):
        chosen = sum(terms.costs[m, i, x] for i, x in enumerate(labels))
        assert psi[m * C : (m + 1) * C].sum() == pytest.approx(chosen, rel=1e-6)
    smoothness_alone = WeightTable(np.zeros((M, C)), ("a", "b", "c"), (0, 7), 1.0)
    assert psi[-1] == pytest.approx(slow_energy(terms, smoothness_alone, labels))
    terms = random_terms(0)
    bare = Terms(terms.costs, terms.shares, terms.shape, terms.offsets)
    weights = random_weights(0)
    assert np.array_equal(assemble(bare, weights).unary, assemble(terms, weights).unary)
    with pytest.raises(ValueError, match=r"loss_coefficient is -1.0 .* give both label maps"):
        assemble(bare, weights, -1.0)
    with pytest.raises(ValueError, match="hold no loss"):
        loss_of(bare, np.zeros(4, dtype=np.int32))
    flat = Terms(np.zeros((1, 4, 27), np.float32), np.ones((4, 1), np.float32), (2, 2, 1), (np.arange(3) - 1.0,) * 3)
    energy = assemble(flat, WeightTable(np.ones((1, 1)), ("a",), (0,), 0.1))
    assert engines.solver("trws")(energy).labels.tolist() == [13] * 4
    assert np.ptp(energy.unary) <= 1e-3


@pytest.mark.parametrize(("displaced", "elastic"), KINDS)
def test_the_loss_coefficient_adds_that_much_loss_and_nothing_else(displaced, elastic):
    terms, weights = random_terms(2, displaced=displaced, elastic=elastic), random_weights(2)
    labels = np.array([5, 1, 2, 6], dtype=np.int32)
    assert loss_of(terms, labels) == pytest.approx(slow_loss(terms, labels))
    plain = assemble(terms, weights)
    for coefficient in (-1.0, 0.5, 10.0):
        energy = assemble(terms, weights, coefficient)
        assert energy(labels) == pytest.approx(plain(labels) + coefficient * slow_loss(terms, labels), rel=1e-6)
        np.testing.assert_allclose(energy.unary - plain.unary, coefficient * terms.loss, atol=1e-6)
        assert (energy.weight, energy.base is plain.base) == (plain.weight, True)


@pytest.mark.parametrize("coefficient", [0.0, 2.5, -1.0])
@pytest.mark.parametrize(("displaced", "elastic"), KINDS)
def test_each_problem_attains_its_own_minimum(displaced, elastic, coefficient):
    for seed, shape in enumerate(SHAPES):
        terms = random_terms(seed, shape, displaced=displaced, elastic=elastic)
        weights = random_weights(seed)
        found = solve(terms, weights, EXHAUSTIVE, coefficient)
        values = [
            slow_energy(terms, weights, d) + coefficient * slow_loss(terms, d) + slow_tie_break(terms, d)
            for d in all_labellings(terms)[:: 1 if shape == SHAPES[0] and not displaced else 7]
        ]
        assert found.energy <= min(values) + 1e-6
        here = slow_energy(terms, weights, found.labels) + coefficient * slow_loss(terms, found.labels)
        assert found.energy == pytest.approx(here + slow_tie_break(terms, found.labels), rel=1e-6)
        if len(values) == 8**4:
            assert found.energy == pytest.approx(min(values), rel=1e-6)


@pytest.mark.parametrize(("displaced", "elastic"), KINDS)
def test_slack_bounds_the_loss_of_the_prediction(displaced, elastic):
    """max_D [w·Ψ(D̂) − w·Ψ(D) + Δ(D)] ≥ Δ(D*) for the prediction D* and any D̂: the hinge of eq. (10)."""
    exact = EXHAUSTIVE
    for seed in range(6):
        terms = random_terms(seed, displaced=displaced, elastic=elastic)
        weights, rng = random_weights(seed), np.random.default_rng(seed)
        predicted = exact(assemble(terms, weights)).labels
        violating = exact(assemble(terms, weights, -1.0))
        imputed = exact(assemble(terms, weights, 10.0)).labels
        loss = slow_loss(terms, predicted)
        for explained in (imputed, predicted, *rng.integers(0, 8, (3, 4)).astype(np.int32)):
            energy = weights.as_vector() @ joint_features(terms, explained) + slow_tie_break(terms, explained)
            slack = energy - violating.energy
            assert slack >= loss - 1e-6
        assert slow_loss(terms, imputed) <= loss + 1e-9
        assert slow_loss(terms, violating.labels) >= loss - 1e-9
