"""Samples: their scale, their restriction to one class, their certificates, and those taken from images."""

import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from made_pairs import small_settings
from phantoms import make_phantom
from regweave import engines
from regweave.energy import assemble, joint_features, loss_of
from regweave.learning.lssvm import LssvmOptions, fit_lssvm
from regweave.learning.samples import Sample, Task, can_lose, delta, first_steps, infer, psi, restrict, samples_at
from regweave.registration.align import align
from regweave.types import Terms, WeightTable

OFFSETS = (np.array([-0.2, 0.0, 0.2]),) * 3
SCHEDULE = small_settings((48.0, 2, 2), (32.0, 1, 2), modality="mr")
MEMBERS, CLASSES = ("sad", "ncc"), (0, 3)
W0 = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.1, CLASSES)


def make_sample(seed: int = 0, *, displaced: bool = False) -> Sample:
    rng = np.random.default_rng(seed)
    shape, n = (3, 4, 2), 24
    shares = rng.random((n, 27, 2) if displaced else (n, 2)).astype(np.float32)
    loss = (rng.random((n, 27)) * (np.arange(n) % 3 == 0)[:, None]).astype(np.float32)
    terms = Terms(rng.gamma(2, 0.5, (3, n, 27)).astype(np.float32), shares, shape, OFFSETS, loss)
    return Sample("a", 1, terms, 8)


@pytest.mark.parametrize("displaced", [False, True])
def test_features_of_nodes_that_can_lose_and_of_one_class(displaced):
    sample = make_sample(displaced=displaced)
    labels = np.random.default_rng(1).integers(0, 27, 24).astype(np.int32)
    features = joint_features(sample.terms, labels)
    assert int(can_lose(sample.terms).sum()) == sample.scale
    assert psi(sample, labels) == pytest.approx(features / 8)
    assert delta(sample, labels) == pytest.approx(loss_of(sample.terms, labels) / 8)
    weights = WeightTable.from_vector(np.arange(1.0, 8.0), ("x", "y", "z"), (0, 5))
    assert psi(sample, labels) @ weights.as_vector() == pytest.approx(features @ weights.as_vector() / 8)
    terms = make_sample(displaced=displaced).terms
    one = restrict(terms)
    kept = np.arange(24) % 3 == 0
    assert one.shares.tolist() == [[1.0]] * 24
    assert one.costs.dtype == np.float32
    assert np.array_equal(one.costs[:, kept], terms.costs[:, kept])
    assert not one.costs[:, ~kept].any()
    assert one.loss is terms.loss
    with pytest.raises(ValueError, match="hold no loss"):
        restrict(replace(terms, loss=None))


def test_inference_on_a_sample_is_inference_on_its_energy_and_never_worse_than_its_start():
    for coefficient in [0.0, 3.0, -1.0]:
        for engine in ["trws", "fastpd", "icm"]:
            sample = make_sample(3)
            weights = WeightTable.from_vector(np.linspace(0.1, 0.7, 7), ("x", "y", "z"), (0, 5))
            found = infer(Task(sample, weights.as_vector(), coefficient, engine))
            energy = assemble(sample.terms, weights, coefficient, tie_break=0.0)
            assert found.value == pytest.approx(energy(found.labels) / 8, rel=1e-6)
            assert found.value == pytest.approx(found.psi @ weights.as_vector() + coefficient * found.delta)
            plain = engines.solver(engine)(energy)
            assert found.value <= plain.energy / 8 + 1e-2 * abs(plain.energy / 8)
            assert found.lower_bound <= plain.energy / 8 + 1e-9
            if engine == "icm":
                assert found.lower_bound == -np.inf
            else:
                assert found.value - found.lower_bound <= 0.05 * abs(found.value)
    sample, w = make_sample(4), np.linspace(0.1, 0.7, 7)
    best = infer(Task(sample, w, -1.0, "trws"))
    again = infer(Task(sample, w, -1.0, "icm", init=best.labels))
    quick = infer(Task(sample, w, -1.0, "trws", max_iter=1))
    assert again.value <= best.value + 1e-12
    assert quick.lower_bound <= best.value <= quick.value + 1e-9


def collect(name, pair, weights=W0, structures=None, *, schedule=SCHEDULE, one_class=False):
    return samples_at(name, first_steps(pair, weights, schedule), structures, one_class=one_class)


@pytest.fixture(scope="module")
def pairs():
    return [make_phantom(seed=s, shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair for s in range(3)]


def test_one_sample_for_each_level_from_its_first_step_or_none_without_the_structure(pairs, caplog):
    seen = []
    align(pairs[0], W0, SCHEDULE, on_step=seen.append)
    samples = collect("p", pairs[0])
    assert [s.key for s in samples] == [("p", 0), ("p", 1)]
    for sample, step in zip(samples, [s for s in seen if s.step == 0], strict=True):
        assert np.array_equal(sample.terms.costs, step.terms.costs)
        assert np.array_equal(sample.terms.loss, step.loss())
        assert sample.scale == int((step.loss().max(axis=1) > 0).sum())
        assert sample.shape == (2, 2)
    assert 0 < samples[1].scale < len(samples[1].terms.loss)
    with caplog.at_level(logging.WARNING):
        assert collect("p", pairs[0], structures=(99,)) == []
    assert "pair p has no loss at level 1" in caplog.text


@pytest.mark.parametrize("loss", ["dice", "voxel"])
def test_the_three_problems_are_one_minimisation_with_other_unaries(pairs, loss):
    """Imputation (+η) lowers the loss of the prediction (0), constraint search (−1) raises it, never at less cost."""
    schedule = SCHEDULE.model_copy(update={"loss": loss})
    w, losses = W0.as_vector(), []
    for sample in (s for i, p in enumerate(pairs) for s in collect(f"p{i}", p, schedule=schedule)):
        imputed, predicted, violated = (infer(Task(sample, w, c, "trws")) for c in (20.0, 0.0, -1.0))
        losses.append([imputed.delta, predicted.delta, violated.delta])
        for found in (imputed, violated):
            assert (w * predicted.psi).sum() <= (w * found.psi).sum() + 1e-3 * abs(predicted.value)
    assert (np.diff(losses, axis=1) >= 0).all()
    assert (np.diff(np.mean(losses, axis=0)) > 0).all()


@pytest.mark.parametrize("one_class", [False, True])
def test_learning_on_a_phantom(pairs, one_class):
    """All classes at once and the mandible alone, by the same function."""
    start = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.1) if one_class else W0
    structures = (3,) if one_class else None
    samples = [s for i, p in enumerate(pairs) for s in collect(f"p{i}", p, start, structures, one_class=one_class)]
    found = fit_lssvm(samples, start, LssvmOptions(C=100.0, eta=3.0, epsilon=5e-3, max_outer=10))
    first, last = found.history[0], found.history[-1]
    assert found.converged
    assert found.weights.matrix.shape == (2, 1 if one_class else 2)
    assert (np.diff([it.upper for it in found.history]) <= 1e-9).all()
    assert last.objective < first.objective
    assert last.slack_sum < first.slack_sum
    assert last.duality_gap < 0.02 * last.objective
    assert found.certified_epsilon < 0.02
    assert found.weights.pairwise >= 0.025
    for it in found.history:
        assert it.slack_sum / len(samples) + it.duality_gap / 100 >= it.predicted_loss - 1e-9


# The class predictor and joint features have the same bits whatever number of threads the BLAS has.
SCORES = """
import hashlib
import numpy as np
from regweave.predictors._features import n_features
from regweave.predictors import perceptron
rng = np.random.default_rng(0)
x = rng.random((3000, n_features("ct")))
classes = (x[:, :5].sum(axis=1) * 1.2).astype(np.int32)
found = perceptron.fit_perceptron(x, classes, 7, rng, options=perceptron.Options(steps=6))
y = rng.random((40000, x.shape[1])).astype(np.float32)
scores = found.scores(y)
from regweave.energy import joint_features
from regweave.types import Terms
line = np.array([-1.0, 0.0, 1.0])
costs, shares = rng.random((8, 16000, 27)).astype(np.float32), rng.random((16000, 6)).astype(np.float32)
terms = Terms(costs, shares, (40, 20, 20), (line, line, line))
psi = joint_features(terms, rng.integers(0, 27, 16000).astype(np.int32))[:-1]
print(hashlib.sha256(psi.tobytes()).hexdigest())
told = (found.hidden, found.output, scores)
print(*(hashlib.sha256(a.tobytes()).hexdigest() for a in told))
"""


def test_bits_do_not_depend_on_the_threads_of_the_blas():
    names, told = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), []
    for threads in ("1", "5"):
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        done = subprocess.run(
            [sys.executable, "-c", SCORES], env=environment, capture_output=True, text=True, check=True
        )
        told.append(done.stdout)
    assert told[0] == told[1]
