"""The quadratic programme: against another solver, its optimality conditions, and its indifference to order."""

import clarabel
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import sparse

from regweave.learning import cutting_plane as qp
from regweave.learning.cutting_plane import Cuts, solve


def programme(seed: int, d: int, n: int, k: int, *, degenerate: bool = False, inactive: bool = False):
    rng = np.random.default_rng(seed)
    sample = rng.integers(0, n, k).astype(np.int32)
    a, b = rng.normal(0, 0.3, (k, d)), rng.random(k) * 0.5
    if inactive:
        b -= 50
    if degenerate:
        a, b = a.round(1), b.round(1)
        half = k // 2
        sample[half : 2 * half], a[half : 2 * half], b[half : 2 * half] = sample[:half], a[:half], b[:half]
    lower = np.zeros(d)
    lower[-1] = 0.05
    return Cuts(sample, a, b), rng.random(d), lower


def by_interior_point(cuts: Cuts, n: int, w0, C, alpha, lower) -> np.ndarray:
    """Weights and slacks, the programme written out for a general conic solver."""
    k, d = cuts.a.shape
    P = sparse.csc_matrix(sparse.diags([1.0 + 2 * alpha] * d + [0.0] * n))
    q = np.concatenate([-2 * alpha * w0, np.full(n, C / n)])
    member = np.zeros((k, n))
    member[np.arange(k), cuts.sample] = -1
    bounded = np.isfinite(lower)
    G = np.vstack([np.hstack([cuts.a, member]), -np.eye(d + n)[np.append(bounded, [True] * n)]])
    h = np.concatenate([-cuts.b, -lower[bounded], np.zeros(n)])
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-11
    cones = [clarabel.NonnegativeConeT(len(h))]
    return np.array(clarabel.DefaultSolver(P, q, sparse.csc_matrix(G), h, cones, options).solve().x)


def value(w, cuts: Cuts, n: int, w0, C, alpha) -> float:
    slacks = [max([0.0, *(cuts.a[cuts.sample == i] @ w + cuts.b[cuts.sample == i])]) for i in range(n)]
    return 0.5 * w @ w + alpha * (w - w0) @ (w - w0) + C / n * sum(slacks)


CASES = [
    {"d": 3, "n": 1, "k": 1}, {"d": 5, "n": 4, "k": 30}, {"d": 9, "n": 60, "k": 40}, {"d": 33, "n": 60, "k": 400},
    {"d": 9, "n": 20, "k": 900}, {"d": 5, "n": 10, "k": 100, "inactive": True},
    {"d": 5, "n": 60, "k": 300, "degenerate": True}, {"d": 33, "n": 30, "k": 300, "degenerate": True},
]  # fmt: skip


def test_it_agrees_with_an_interior_point_solver():
    for C, alpha in [(100.0, 1.0), (1.0, 0.0), (1e4, 30.0), (0.01, 1.0)]:
        for case in CASES:
            for seed in range(2):
                cuts, w0, lower = programme(seed, **case)
                if seed:
                    lower[:-1] = -np.inf
                n, d = case["n"], case["d"]
                found = solve(cuts, n, w0, C, alpha, lower)
                other = by_interior_point(cuts, n, w0, C, alpha, lower)
                # Where multipliers are not unique the interior point is the less exact of the two.
                assert found.w == pytest.approx(other[:d], abs=1e-5 if case.get("degenerate") else 1e-6)
                assert found.objective <= value(np.maximum(other[:d], lower), cuts, n, w0, C, alpha) + 1e-9 * max(1, C)
                assert found.slacks == pytest.approx(other[d:], abs=1e-5)
                assert (found.w >= lower).all()
                assert (found.slacks >= 0).all()
                assert (cuts.heights(found.w) <= found.slacks[cuts.sample]).all()
                assert found.objective == pytest.approx(value(found.w, cuts, n, w0, C, alpha), rel=1e-12)
                assert found.residual <= 1e-8
                assert found.dual <= found.objective + 1e-9 * max(1, found.objective)
                if case.get("inactive"):
                    assert (found.multipliers == 0).all()


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.integers(1, 60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_point_is_better_and_the_dual_proves_it(seed, d, n, k, degenerate):
    cuts, w0, lower = programme(seed, d, n, k, degenerate=degenerate)
    rng = np.random.default_rng(seed)
    C, alpha = 10 ** rng.uniform(-1, 3), rng.choice([0.0, 1.0, 10.0])
    found = solve(cuts, n, w0, C, alpha, lower)
    best = value(found.w, cuts, n, w0, C, alpha)
    for size in (1e-6, 1e-3, 1.0):
        near = np.maximum(found.w + size * rng.normal(size=(10, d)), lower)
        assert min(value(w, cuts, n, w0, C, alpha) for w in near) >= best - 1e-9 * max(1, best)
    assert best - found.dual <= 1e-8 * max(1, best)
    spent = np.bincount(cuts.sample, found.multipliers, n)
    assert (spent <= C / n * (1 + 1e-12)).all()
    # Cuts with a multiplier are met with equality.
    loose = found.slacks[cuts.sample] - cuts.heights(found.w)
    assert (found.multipliers * loose <= 1e-7 * max(1, C)).all()


@pytest.mark.parametrize("degenerate", [False, True])
def test_order_does_not_change_a_bit(degenerate):
    for seed in range(5):
        cuts, w0, lower = programme(seed, 9, 12, 80, degenerate=degenerate)
        if degenerate:  # samples that differ late in their rows only
            cuts.a[:, 0] = 0
            cuts.b[:] = 0.3
        rng = np.random.default_rng(seed)
        rows, names = rng.permutation(80), rng.permutation(12)
        negative_zeros = np.where((cuts.a == 0) & (rng.random(cuts.a.shape) < 0.5), -0.0, cuts.a)
        shuffled = Cuts(names[cuts.sample][rows].astype(np.int32), negative_zeros[rows], cuts.b[rows])
        one, again, other = (solve(c, 12, w0, 100.0, 1.0, lower) for c in (cuts, cuts, shuffled))
        assert one.w.tobytes() == again.w.tobytes() == other.w.tobytes()
        assert (one.objective, one.dual) == (other.objective, other.dual)
        assert np.array_equal(one.slacks, other.slacks[names])
        if not degenerate:
            assert np.array_equal(one.multipliers[rows], other.multipliers)


def test_small_programmes_by_hand_and_a_solver_that_fails(monkeypatch):
    cuts, w0, lower = programme(0, 6, 3, 20)
    expected = np.maximum(2 * 3.0 * w0 / (1 + 2 * 3.0), lower)
    assert solve(cuts, 3, w0, 0.0, 3.0, lower).w == pytest.approx(expected, rel=1e-14)
    nothing = Cuts(np.zeros(0, np.int32), np.zeros((0, 6)), np.zeros(0))
    empty = solve(nothing, 3, w0, 100.0, 3.0, lower)
    assert empty.w == pytest.approx(expected, rel=1e-14)
    assert empty.slacks.tolist() == [0.0, 0.0, 0.0]
    # ½w² + (w − 1)² + ξ with w ≤ ξ: the slope 3w − 2 + 1 is 0 at a third.
    found = solve(Cuts(np.array([0]), np.array([[1.0]]), np.array([0.0])), 1, np.ones(1), 1.0, 1.0, np.zeros(1))
    assert found.w == pytest.approx([1 / 3])
    assert found.objective == pytest.approx(1 / 18 + 4 / 9 + 1 / 3)
    assert found.multipliers == pytest.approx([1.0])
    cuts, w0, lower = programme(0, 6, 3, 20)
    right = qp._run

    def wrong(*arguments):
        w, multipliers = right(*arguments)
        return w + 1e-4, multipliers

    monkeypatch.setattr(qp, "_run", wrong)
    with pytest.raises(ArithmeticError, match="1e-08 is needed"):
        solve(cuts, 3, w0, 100.0, 1.0, lower)
