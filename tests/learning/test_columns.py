"""Columns learned from tiny phantoms, against the same fit put together by hand."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from made_pairs import small_settings
from phantoms import make_phantom
from regweave.learning import columns as module
from regweave.learning.columns import FittedColumns, Trainer
from regweave.learning.lssvm import LssvmOptions, fit_lssvm
from regweave.learning.samples import first_steps, samples_at
from regweave.run.memory import Cache
from regweave.types import LabelMap, WeightTable

BANK = [{"name": "sad", "metric": "sad"}, {"name": "mi", "metric": "mi"}]
SCHEDULE = small_settings((64.0, 2, 2), (48.0, 1, 1), modality="mr", banks={"mr": BANK})
HYPER = LssvmOptions(C=20.0, epsilon=0.02, rounds=1, max_outer=3)
START = WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1, (0, 3, 4))


@pytest.fixture(scope="module")
def pairs():
    return [(f"p{n}", make_phantom(n, (24, 24, 24), (8.0, 8.0, 8.0)).pair) for n in range(2)]


def lacking(pair, label):
    labels = pair.moving_labels
    return pair.with_moving(labels=LabelMap(np.where(labels.data == label, 0, labels.data), labels.geometry))


def trainer(pairs, hyper=HYPER, **options) -> Trainer:
    return Trainer([(name, lambda pair=pair: pair) for name, pair in pairs], SCHEDULE, START, hyper, **options)


def fit_by_hand(pairs, trajectory, w0, classes, one_class, coarse=None, levels=(0, 1)):
    samples = []
    for name, pair in pairs:
        samples += samples_at(name, first_steps(pair, trajectory, SCHEDULE, coarse), classes, one_class=one_class)
    samples = [s for s in samples if s.level in levels]
    h = HYPER
    return fit_lssvm(samples, w0, h)


@pytest.fixture(scope="module")
def joint(pairs) -> FittedColumns:
    return trainer(pairs).joint()


def test_one_fit_of_all_columns_or_one_for_all(pairs, joint):
    by_hand = fit_by_hand(pairs, START, START, (3, 4), one_class=False)
    np.testing.assert_array_equal(joint.weights.matrix, by_hand.weights.matrix)
    assert joint.weights.pairwise == by_hand.weights.pairwise
    assert (joint.weights.matrix != START.matrix).any()
    assert joint.n_registrations == 2
    assert joint.n_inferences == by_hand.history[-1].n_inferences
    first, last = joint.history["joint"][0], joint.history["joint"][-1]
    assert joint.surrogate() == (first["predicted_loss"], last["predicted_loss"])
    assert not {"seconds", "rounds"} & set(first)
    found = trainer(pairs).fit_global()
    w = fit_by_hand(
        pairs, START, WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1), (3, 4), one_class=True
    ).weights
    np.testing.assert_array_equal(found.weights.matrix, np.repeat(w.matrix, 3, axis=1))
    assert found.weights.pairwise == w.pairwise
    assert set(found.history) == {"all"}
    with ThreadPoolExecutor(2) as pool:
        found = trainer(pairs[::-1], mapper=pool.map).joint()
    np.testing.assert_array_equal(found.weights.matrix, joint.weights.matrix)
    assert found.history == joint.history
    history = {"3": [{"predicted_loss": 0.4}, {"predicted_loss": 0.1}], "4": [{"predicted_loss": 0.6}]}
    assert FittedColumns(START, history).surrogate() == pytest.approx((0.5, 0.35))


def test_per_class_is_one_fit_for_each_with_its_own_pairwise_weight_divided_out(pairs):
    found = trainer(pairs).per_class()
    one = WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1)
    for k, classes in enumerate([(3, 4), (3,), (4,)]):
        w = fit_by_hand(pairs, START, one, classes, one_class=True).weights
        np.testing.assert_allclose(found.weights.matrix[:, k], w.matrix[:, 0] * 0.1 / w.pairwise, rtol=1e-12)
    assert found.weights.pairwise == 0.1
    assert set(found.history) == {"0", "3", "4"}
    assert found.n_registrations == 6


def test_one_alignment_of_a_pair_serves_all_classes_and_ways(pairs, monkeypatch):
    """With a memory, each trajectory is walked once and the mix of all is the background's fit; without, the same."""
    walked = []

    def spy(*arguments, **options):
        walked.append(1)
        return first_steps(*arguments, **options)

    monkeypatch.setattr(module, "first_steps", spy)
    afresh = trainer(pairs).per_class()
    assert len(walked) == 6
    kept = trainer(pairs, keep=Cache(500.0))
    walked.clear()
    found, mix = kept.per_class(), kept.fit_global()
    assert len(walked) == 2
    np.testing.assert_array_equal(found.weights.matrix, afresh.weights.matrix)
    assert (found.history, found.n_inferences) == (afresh.history, afresh.n_inferences)
    assert mix.history["all"] == found.history["0"]


def test_later_rounds_follow_the_weights_of_the_first_and_other_levels_the_start(pairs, joint, monkeypatch):
    seen = []

    def spy(*arguments, **options):
        seen.append(arguments[1])
        return first_steps(*arguments, **options)

    monkeypatch.setattr(module, "first_steps", spy)
    found = trainer(pairs, replace(HYPER, rounds=2)).joint()
    assert [w is START for w in seen] == [True, True, False, False]
    np.testing.assert_array_equal(seen[-1].matrix, joint.weights.matrix)
    assert found.n_registrations == 4
    again = fit_by_hand(pairs, seen[-1], START, (3, 4), one_class=False)
    assert found.n_inferences == joint.n_inferences + again.history[-1].n_inferences
    np.testing.assert_array_equal(found.weights.matrix, again.weights.matrix)
    found = trainer(pairs, replace(HYPER, rounds=2), finest=True).joint()
    first = fit_by_hand(pairs, START, START, (3, 4), one_class=False, levels=(1,))
    second = fit_by_hand(pairs, first.weights, START, (3, 4), one_class=False, coarse=START, levels=(1,))
    np.testing.assert_array_equal(found.weights.matrix, second.weights.matrix)


def test_a_pair_that_lacks_a_class_teaches_the_others_and_a_class_of_none_keeps_the_start(pairs):
    (name, first), second = pairs
    without = [(name, lacking(first, 3)), second]
    found = trainer(without).per_class()
    alone = fit_by_hand(
        [second], START, WeightTable.constant(dict.fromkeys(("sad", "mi"), 1.0), 0.1), (3,), one_class=True
    ).weights
    np.testing.assert_allclose(found.weights.matrix[:, 1], alone.matrix[:, 0] * 0.1 / alone.pairwise, rtol=1e-12)
    assert found.n_registrations == 5
    joint = trainer(without).joint()
    samples = [
        s
        for (n, pair), classes in zip(without, [(4,), (3, 4)], strict=True)
        for s in samples_at(n, first_steps(pair, START, SCHEDULE), classes)
    ]
    h = HYPER
    by_hand = fit_lssvm(samples, START, h)
    np.testing.assert_array_equal(joint.weights.matrix, by_hand.weights.matrix)
    without = [(name, lacking(pair, 3)) for name, pair in pairs]
    found = trainer(without).per_class()
    np.testing.assert_array_equal(found.weights.matrix[:, 1], START.matrix[:, 1])
    assert set(found.history) == {"0", "4"}
    nothing = [(name, lacking(lacking(pair, 3), 4)) for name, pair in pairs]
    for way in ("fit_global", "per_class", "joint"):
        found = getattr(trainer(nothing), way)()
        np.testing.assert_array_equal(found.weights.matrix, START.matrix)
        assert (found.n_registrations, found.n_inferences, found.history) == (0, 0, {})
        assert found.surrogate() is None
