"""The bootstrap by patient against one written with loops and dictionaries, and against what theory says."""

import numpy as np
import pytest

from regweave.measures.statistics import count_better, error_by_patient, paired_bootstrap


def slow_bootstrap(differences, groups, n, seed):
    """Draw patients into a bag, weight each pair by the product of its patients' numbers in the bag."""
    pairs = [(d, sorted(set(g.split("+")))) for d, g in zip(differences, groups, strict=True) if d == d]
    patients = sorted({name for _, names in pairs for name in names})
    draws = np.random.default_rng(seed).multinomial(len(patients), [1 / len(patients)] * len(patients), size=n)
    means = []
    for draw in draws:
        bag = dict(zip(patients, draw.tolist(), strict=True))
        total = weight_sum = 0.0
        for d, names in pairs:
            weight = 1
            for name in names:
                weight *= bag[name]
            total += weight * d
            weight_sum += weight
        if weight_sum:
            means.append(total / weight_sum)
    means.sort()
    return np.mean([d for d, _ in pairs]), np.percentile(means, 2.5), np.percentile(means, 97.5)


def test_bootstrap_against_loops_and_theory():
    for seed in [0, 5]:
        rng = np.random.default_rng(seed)
        groups = [f"p{rng.integers(6)}+p{rng.integers(6)}" for _ in range(15)] + ["p1", "p7", "p2"]
        differences = rng.normal(0.02, 0.05, len(groups))
        differences[[2, 9]] = np.nan
        found = paired_bootstrap(differences, groups, n=300, seed=seed)
        np.testing.assert_allclose(found, slow_bootstrap(differences, groups, 300, seed), rtol=1e-12)
        assert found.low < found.mean < found.high
    # For independent patients the interval is ±1.96 standard errors.
    values = np.random.default_rng(3).normal(0.0, 1.0, 400)
    mean, low, high = paired_bootstrap(values, [f"p{i}" for i in range(400)])
    error = values.std() / 20
    np.testing.assert_allclose([low, high], [mean - 1.96 * error, mean + 1.96 * error], atol=0.2 * error)
    values = np.random.default_rng(4).normal(0.0, 1.0, 12)
    groups = [f"p{i}" for i in range(12)]
    once = paired_bootstrap(values, groups)
    thrice = paired_bootstrap(np.tile(values, 3), groups * 3)
    np.testing.assert_allclose(thrice, once, rtol=1e-9)
    alone = paired_bootstrap(np.tile(values, 3), [str(i) for i in range(36)])
    assert alone.high - alone.low < 0.8 * (once.high - once.low)
    assert np.isnan(paired_bootstrap([np.nan], ["a"])).all()
    mean, low, high = paired_bootstrap([0.5, 1.5], ["a", "a"])
    assert mean == 1.0
    assert np.isnan([low, high]).all()
    with pytest.raises(ValueError, match="2 differences and 1 groups"):
        paired_bootstrap([0.5, 1.5], ["a"])
    assert count_better([0.02, -0.01, np.nan, 0.0, 0.5]) == {"better": 2, "worse": 1, "equal": 1}
    assert count_better([]) == {"better": 0, "worse": 0, "equal": 0}


def test_error_by_patient():
    values = np.random.default_rng(3).normal(0.02, 0.05, 12)
    usual = values.std(ddof=1) / np.sqrt(12)
    assert error_by_patient(values, [(f"p{i}",) for i in range(12)]) == pytest.approx(usual, rel=1e-12)
    assert error_by_patient([0.1, 0.2], [("a",), ("a",)]) == np.inf
    alone = error_by_patient([0.1, 0.2, 0.4], ["a", "b", "c"])
    assert error_by_patient([0.1, 0.2, 0.4], [("a", "atlas"), ("atlas", "b"), ("c", "atlas")]) == pytest.approx(alone)
    # Patients with effects of their own, all against all: pairs taken for independent look too sure of themselves.
    rng = np.random.default_rng(0)
    n, means, estimated, naive = 8, [], [], []
    couples = [(a, b) for a in range(n) for b in range(n) if a != b]
    for _ in range(400):
        effect = rng.normal(0, 0.02, n)
        values = [effect[a] + effect[b] + rng.normal(0, 0.005) for a, b in couples]
        means.append(np.mean(values))
        estimated.append(error_by_patient(values, [(str(a), str(b)) for a, b in couples]))
        naive.append(np.std(values, ddof=1) / np.sqrt(len(values)))
    true = np.std(means)
    assert np.mean(estimated) == pytest.approx(true, rel=0.15)
    assert np.mean(naive) < 0.4 * true
