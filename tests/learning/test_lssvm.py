"""The latent structured SVM, against brute force over all labellings of tiny samples."""

import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pytest
from exhaustive import EXHAUSTIVE
from hypothesis import given, settings, strategies as st

from regweave.errors import RegweaveWarning
from regweave.learning import cutting_plane, lssvm as cccp
from regweave.learning.cutting_plane import Convex, Cuts, Oracle, Regulariser, solve
from regweave.learning.lssvm import Fit, LssvmOptions, fit_lssvm
from regweave.learning.samples import Sample, can_lose
from regweave.types import Terms, WeightTable

OFFSETS = (np.array([-0.2, 0.2]), np.array([0.0, 0.3]), np.array([0.1]))
LABELS = 4
SHAPE = (2, 2, 1)
MEMBERS, CLASSES = ("a", "b", "c"), (0, 7)
W0 = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.2, CLASSES)


def tiny(seed: int, pair: int = 0, *, elastic: bool = False) -> Sample:
    rng = np.random.default_rng([seed, pair])
    n = int(np.prod(SHAPE))
    terms = Terms(
        costs=rng.gamma(2.0, 0.5, (3, n, LABELS)).astype(np.float32),
        shares=np.eye(2, dtype=np.float32)[rng.integers(0, 2, n)],
        shape=SHAPE,
        offsets=OFFSETS,
        loss=(rng.random((n, LABELS)) * (rng.random((n, 1)) < 0.8)).astype(np.float32),
        base=rng.normal(0, 0.3, (n, 3)) if elastic else None,
    )
    return Sample(f"pair{pair}", 0, terms, max(int(can_lose(terms).sum()), 1))


def several(seed: int, n: int = 4) -> list[Sample]:
    return [tiny(seed, pair, elastic=seed % 2 == 1) for pair in range(n)]


def all_planes(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Ψ and Δ of every labelling, written as loops."""
    t = sample.terms
    vectors = np.array(list(itertools.product(*OFFSETS)))
    base = np.zeros((4, 3)) if t.base is None else t.base
    psi, delta = [], []
    for labels in itertools.product(range(LABELS), repeat=4):
        unary = np.zeros((3, 2))
        for i, x in enumerate(labels):
            unary += np.outer(t.costs[:, i, x].astype(float), t.shares[i].astype(float))
        p = [vectors[x] + base[i] for i, x in enumerate(labels)]
        edges = [(0, 1), (2, 3), (0, 2), (1, 3)]
        pairwise = sum(np.abs(p[i] - p[j]).sum() for i, j in edges)
        psi.append(np.append(unary.ravel(), pairwise) / sample.scale)
        delta.append(sum(float(t.loss[i, x]) for i, x in enumerate(labels)) / sample.scale)
    return np.array(psi), np.array(delta)


def full_objective(w, planes, w0, C, alpha, eta) -> float:
    """Eq. (7) with η·Δ of the imputed deformation, by brute force."""
    brackets = [(d - p @ w).max() + (p @ w + eta * d).min() for p, d in planes]
    return 0.5 * w @ w + alpha * (w - w0) @ (w - w0) + C * np.mean(brackets)


def code(labels) -> int:
    return int(np.dot(labels, LABELS ** np.arange(3, -1, -1)))


def fit(samples, **changes) -> Fit:
    named = {f.name for f in fields(LssvmOptions)} & changes.keys()
    options = LssvmOptions(C=20.0, eta=3.0, epsilon=1e-3, max_outer=10)
    others = {name: value for name, value in changes.items() if name not in named}
    options = replace(options, **{name: changes[name] for name in named})
    return fit_lssvm(samples, W0, options, **{"engine": EXHAUSTIVE, **others})


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 5.0]), st.sampled_from([1.0, 30.0, 300.0]), st.booleans())
@settings(max_examples=15, deadline=None)
def test_with_exact_inference_the_objective_never_rises(seed, eta, C, signed):
    samples = several(seed, 3)
    found = fit(samples, eta=eta, C=C, signed=signed, pairwise_floor=0.01, epsilon=1e-2)
    planes, w0 = [all_planes(s) for s in samples], W0.as_vector()
    truth = [full_objective(it.w, planes, w0, C, 1.0, eta) for it in found.history]
    assert [it.objective for it in found.history] == pytest.approx(truth, rel=1e-6)
    assert max(it.duality_gap for it in found.history) <= 1e-6 + 1e-7 * C
    assert (np.diff(truth) <= 1e-6 * max(1, *truth)).all()
    assert found.weights.pairwise >= 0.01
    assert signed or (found.weights.matrix >= 0).all()


@pytest.mark.parametrize("engine", ["trws", "fastpd"])
def test_with_bounds_the_objective_never_rises_beyond_the_gap(engine):
    for seed in range(6):
        samples = several(seed)
        found = fit(samples, engine=engine, C=100.0)
        planes, w0 = [all_planes(s) for s in samples], W0.as_vector()
        for it in found.history:
            truth = full_objective(it.w, planes, w0, 100.0, 1.0, 3.0)
            assert it.upper - it.duality_gap - 1e-6 <= truth <= it.upper + 1e-6
            assert it.upper - it.duality_gap - 1e-6 <= it.objective <= it.upper + 1e-6
        assert (np.diff([it.upper for it in found.history]) <= 1e-9).all()


def programme(oracle: Oracle, C: float, lower=None) -> tuple[Convex, list]:
    """The convex programme of the labellings imputed at the start, and these."""
    w0 = W0.as_vector()
    imputed = oracle.run(w0, 3.0)
    oracle.restart(w0)
    regulariser = Regulariser(w0, 1.0, np.zeros(7) if lower is None else lower)
    return Convex(regulariser, C, np.stack([d.psi for d in imputed])), imputed


@pytest.mark.parametrize("engine", [EXHAUSTIVE, "trws", "fastpd", "icm"])
def test_no_constraint_is_violated_by_more_than_the_certified_epsilon(engine):
    """Over all labellings; and at most ε where inference is exact."""
    for seed in range(5):
        samples = several(seed)
        oracle = Oracle(samples, engine)
        convex, _ = programme(oracle, 50.0)
        found = cutting_plane.minimise(oracle, convex, 1e-3, 100)
        worst = max(
            (convex.slacks(found.w, np.full(4, (d - p @ found.w).max())) - found.slacks)[i]
            for i, (p, d) in enumerate(map(all_planes, samples))
        )
        assert worst <= found.epsilon + 1e-7
        assert found.converged
        if engine is EXHAUSTIVE:
            assert found.epsilon <= 1e-3
        if engine == "icm":
            assert found.epsilon == np.inf
        # Weak duality of eq. (10): what is solved on the working sets is below what holds on all labellings.
        true_planes = np.array([(d - p @ found.w).max() for p, d in map(all_planes, samples)])
        assert found.objective <= convex.value(found.w, true_planes) + 1e-7
        assert convex.value(found.w, true_planes) <= found.objective + 50 * found.epsilon + 1e-7


@pytest.mark.parametrize("gap", [5e-4, 5e-3])
def test_the_end_allows_for_the_gap_of_inference(gap):
    """Half of ε is left to the violation where inference leaves the other half open; more than ε cannot be proved."""

    class Loose(Oracle):
        def run(self, *arguments, **options):
            return [replace(d, lower_bound=d.value - gap) for d in super().run(*arguments, **options)]

    for seed in range(5):
        oracle = Loose(several(seed), EXHAUSTIVE)
        found = cutting_plane.minimise(oracle, programme(oracle, 50.0)[0], 1e-3, 200)
        assert found.converged
        assert found.epsilon <= (1e-3 if gap < 1e-3 else 1e-3 + gap) + 1e-12
        assert found.rounds[-1].violation <= found.epsilon - gap + 1e-12


def test_cutting_planes_reach_the_minimum_over_all_constraints():
    """The same programme with every labelling as a constraint."""
    samples = several(3)
    w0, lower = W0.as_vector(), np.append(np.zeros(6), 0.05)
    oracle = Oracle(samples, EXHAUSTIVE)
    convex, imputed = programme(oracle, 50.0, lower)
    found = cutting_plane.minimise(oracle, convex, 1e-7, 200)
    planes = [all_planes(s) for s in samples]
    sample = np.repeat(np.arange(4, dtype=np.int32), LABELS**4)
    a = np.concatenate([imputed[i].psi - p for i, (p, _) in enumerate(planes)])
    everything = solve(Cuts(sample, a, np.concatenate([d for _, d in planes])), 4, w0, 50.0, 1.0, lower)
    assert found.objective == pytest.approx(everything.objective, rel=1e-6)
    assert found.w == pytest.approx(everything.w, abs=1e-4)
    assert sum(len(known.delta) for known in oracle.constraints) < 0.5 * len(sample)


def test_slacks_bound_the_loss_of_every_labelling_below_the_imputed_one():
    # ξ + ε ≥ Δ(D) + w·(Ψ(D̂) − Ψ(D)) for all D, hence ξ + ε ≥ Δ of the prediction.
    for seed in range(5):
        samples = several(seed)
        oracle = Oracle(samples, EXHAUSTIVE)
        convex, imputed = programme(oracle, 30.0)
        found = cutting_plane.minimise(oracle, convex, 1e-3, 100)
        for i, (psi, delta) in enumerate(map(all_planes, samples)):
            energy, mine = psi @ found.w, float(imputed[i].psi @ found.w)
            bound = found.slacks[i] + found.epsilon + 1e-7
            assert (delta + mine - energy <= bound).all()
            below = energy <= mine + 1e-9
            assert delta[below].max() <= bound
            assert delta[energy.argmin()] <= bound
            assert imputed[i].delta <= bound
    samples = several(1)
    found = fit(samples)
    w = found.weights.as_vector()
    losses = [float(d[(p @ w).argmin()]) for p, d in map(all_planes, samples)]
    assert found.history[-1].predicted_loss == pytest.approx(np.mean(losses), abs=1e-6)
    for s, loss in zip(samples, losses, strict=True):
        assert found.slacks[s.key] + found.certified_epsilon >= loss - 1e-6
    assert found.history[-1].slack_sum >= sum(losses) - 1e-6
    assert found.converged


def test_imputation_and_hyperparameters():
    samples = several(2)
    oracle, w = Oracle(samples, EXHAUSTIVE), W0.as_vector()
    found = cccp._impute(oracle, w, 2.0, ())
    for d, (psi, delta) in zip(found, map(all_planes, samples), strict=True):
        assert d.value == pytest.approx((psi @ w + 2 * delta).min(), abs=1e-6)
        assert d.psi == pytest.approx(psi[code(d.labels)], abs=1e-6)
        assert d.delta == pytest.approx(delta[code(d.labels)], abs=1e-6)

    class Poor(Oracle):
        def run(self, *arguments, **options):
            zero = np.zeros(4, dtype=np.int32)
            planes = [all_planes(s) for s in self.samples]
            worst = [(p[0], d[0], float(p[0] @ w + 2 * d[0])) for p, d in planes]
            return [cutting_plane.Labelling(zero, p, float(d), v, -1.0) for p, d, v in worst]

    again = cccp._impute(Poor(samples, EXHAUSTIVE), w, 2.0, found)
    assert [d.labels.tolist() for d in again] == [d.labels.tolist() for d in found]
    assert [d.value for d in again] == pytest.approx([d.value for d in found])
    assert [d.lower_bound for d in again] == [-1.0] * 4
    samples = several(6)
    w0 = W0.as_vector()
    kept = fit(samples, alpha=1e7)
    assert kept.weights.as_vector() == pytest.approx(w0, abs=1e-4)
    for alpha in (0.5, 4.0):
        shrunk = fit(samples, C=0.0, alpha=alpha).weights.as_vector()
        assert shrunk == pytest.approx(2 * alpha * w0 / (1 + 2 * alpha), rel=1e-12)
    floor = fit(samples, C=0.0, alpha=0.0, pairwise_floor=0.3)
    assert floor.weights.as_vector().tolist() == [0.0] * 6 + [0.3]
    assert fit(samples, C=0.0, alpha=0.0).weights.pairwise == pytest.approx(0.05)
    eager, idle = fit(samples, eta=50.0), fit(samples, eta=0.0)
    assert eager.history[0].imputed_loss < idle.history[0].imputed_loss
    weak, strong = fit(samples, C=1.0), fit(samples, C=300.0)
    assert strong.history[-1].slack_sum <= weak.history[-1].slack_sum + 1e-3


def test_known_planes_are_scored_before_inference_and_weaker_ones_discarded():
    samples = several(4)
    oracle = Oracle(samples, EXHAUSTIVE)
    convex, _ = programme(oracle, 50.0)
    first = cutting_plane.minimise(oracle, convex, 1e-3, 100)
    spent = oracle.n_inferences
    oracle.restart(first.w)
    second = cutting_plane.minimise(oracle, convex, 1e-3, 100)
    assert second.objective == pytest.approx(first.objective, abs=50 * 1e-3)
    assert oracle.n_inferences - spent <= 2 * len(samples)
    curve = [r.objective for r in first.rounds]
    assert (np.diff(curve) >= -1e-9).all()
    assert first.rounds[-1].violation <= 1e-3 < first.rounds[0].violation
    assert [r.n_cuts for r in first.rounds] == sorted(r.n_cuts for r in first.rounds)
    samples, w = several(5, 1), W0.as_vector()
    oracle = Oracle(samples, EXHAUSTIVE)
    psi, delta = all_planes(samples[0])
    impossible = cutting_plane.Labelling(np.zeros(4, np.int32), psi[0], 100.0, 0.0, 0.0)
    oracle.constraints[0].insert(impossible)
    oracle.constraints[0].insert(impossible)
    oracle.separate(w, [0])
    assert (oracle.n_discarded, len(oracle.constraints[0].delta)) == (1, 1)
    oracle.separate(w, [0])
    assert oracle.n_inferences == 1
    assert oracle.upper_bounds(w)[0] == pytest.approx(100.0 - psi[0] @ w)
    assert (delta - psi @ w).max() < 50


def planted(seed: int, n: int = 6, nodes: int = 27) -> list[Sample]:
    """Member b costs what the loss says; the others are noise."""
    out = []
    for pair in range(n):
        rng = np.random.default_rng([seed, pair])
        loss = rng.random((nodes, LABELS)).astype(np.float32)
        noise = rng.random((3, nodes, LABELS)).astype(np.float32)
        noise[1] = loss
        terms = Terms(noise, np.ones((nodes, 1), np.float32), (3, 3, 3), OFFSETS, loss)
        out.append(Sample(f"pair{pair}", 0, terms, nodes))
    return out


def test_the_weight_goes_to_the_member_that_costs_what_is_lost_whatever_the_order():
    w0 = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.1)
    for seed in range(3):
        found = fit_lssvm(planted(seed), w0, LssvmOptions(C=100.0, eta=3.0, epsilon=1e-3))
        a, b, c = found.weights.matrix[:, 0]
        assert b > 3 * max(a, c)
        assert found.history[-1].predicted_loss < 0.65 * found.history[0].predicted_loss
        assert found.history[-1].objective < found.history[0].objective
    samples = planted(0, n=5)
    w0 = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.1)
    one = fit_lssvm(samples, w0)
    with ThreadPoolExecutor(2) as known:
        others = [
            fit_lssvm(samples, w0),
            fit_lssvm(samples[::-1], w0),
            fit_lssvm([samples[i] for i in (2, 0, 4, 1, 3)], w0, mapper=known.map),
        ]
    for other in others:
        assert other.weights.as_vector().tobytes() == one.weights.as_vector().tobytes()
        assert other.slacks == one.slacks
        assert [it.objective for it in other.history] == [it.objective for it in one.history]
        assert all(np.array_equal(other.imputed[k], one.imputed[k]) for k in one.imputed)


def test_rises_progress_and_bad_arguments_are_told():
    # One round of cutting planes goes far astray.
    samples = several(7)
    with pytest.warns(RegweaveWarning, match="W211: the learning objective would rise from"):
        found = fit(samples, C=300.0, max_inner=1, max_outer=1)
    assert not found.converged
    assert found.weights.as_vector() == pytest.approx(W0.as_vector())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegweaveWarning)
        longer = fit(samples, C=300.0, max_inner=1, max_outer=60)
    uppers = [it.upper for it in longer.history]
    assert (np.diff(uppers) <= 1e-9).all()
    assert uppers[-1] < uppers[0]
    seen = []
    found = fit(several(8), on_progress=seen.append, max_outer=3)
    assert tuple(seen) == found.history
    assert [it.number for it in seen] == list(range(len(seen)))
    assert len(seen) <= 4
    assert seen[0].rounds == ()
    assert np.array_equal(seen[0].w, W0.as_vector())
    assert np.array_equal(seen[-1].w, found.weights.as_vector())
    assert [it.n_inferences for it in seen] == sorted(it.n_inferences for it in seen)
    assert all(it.seconds > 0 for it in seen)
    samples = several(0)
    for changes, message in [
        ({"C": -1.0}, "C is -1.0"), ({"eta": np.nan}, "eta is nan"), ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"pairwise_floor": -0.1}, "pairwise_floor is -0.1"), ({"max_inner": 0}, "max_inner 0"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            fit(samples, **changes)
    with pytest.raises(ValueError, match="no samples"):
        fit([])
    with pytest.raises(ValueError, match="come twice"):
        fit([samples[0], samples[1], samples[0]])
    with pytest.raises(ValueError, match=r"has \(3, 2\) members and classes, w0 has \(2, 2\)"):
        fit_lssvm(samples, WeightTable.constant(dict.fromkeys(("a", "b"), 1.0), 0.1, CLASSES))
