"""Direct search on scores whose best weights are known."""

from __future__ import annotations

import numpy as np
import pytest

from regweave.learning.search import LEAST_CANDIDATES, search
from regweave.types import WeightTable

START = WeightTable.constant(dict.fromkeys(("a", "b", "c"), 1.0), 0.2, (0, 4))
WANTED = np.array([[0.7, 0.1], [0.2, 0.1], [0.1, 0.8]])


class Score:
    """Nearness to the wanted weights; remembers who was scored."""

    def __init__(self) -> None:
        self.seen: list[WeightTable] = []
        self.sizes: list[int] = []

    def __call__(self, candidates):
        self.seen += candidates
        self.sizes.append(len(candidates))
        return [-float(((w.matrix - WANTED) ** 2).sum()) for w in candidates]


def test_finds_planted_weights():
    score = Score()
    found = search(score, START, 300)
    np.testing.assert_allclose(found.weights.matrix, WANTED, atol=0.05)
    np.testing.assert_allclose(found.weights.matrix.sum(axis=0), 1)
    assert found.score == max(-float(((w.matrix - WANTED) ** 2).sum()) for w in score.seen)
    assert list(found.history) == sorted(found.history)
    assert (found.weights.pairwise, found.weights.classes) == (0.2, (0, 4))


@pytest.mark.parametrize("n", [LEAST_CANDIDATES, 7, 30])
def test_budget_is_kept_and_the_start_comes_first(n):
    score = Score()
    found = search(score, START, n)
    assert len(score.seen) == found.n_scored <= n
    assert found.n_scored > 1
    assert score.seen[0] is START
    assert all((w.matrix > 0).all() for w in score.seen)


def test_the_start_is_kept_where_nothing_is_better():
    def worse(candidates):
        return [1.0 if w is START else 0.0 for w in candidates]

    assert search(worse, START, 40).weights is START


def test_the_seed_decides_and_no_other_generator_is_touched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = (search(Score(), START, 40, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a.weights.matrix, b.weights.matrix)
    assert (a.weights.matrix != c.weights.matrix).any()
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_too_few_candidates():
    with pytest.raises(ValueError, match="raise the budget"):
        search(Score(), START, LEAST_CANDIDATES - 1)
