"""The record of imputed against predicted displacements."""

from __future__ import annotations

import numpy as np

from regweave.learning.overlay import LARGEST, overlay
from regweave.learning.samples import Sample, Task, delta, infer
from regweave.types import Terms, WeightTable

WEIGHTS = WeightTable(np.array([[0.7], [0.3]]), ("a", "b"), (0,), 0.05)


def sample(shape: tuple[int, int, int], base: bool = False) -> Sample:
    rng = np.random.default_rng(0)
    axis = np.array([-0.5, 0.0, 0.5])
    n, labels = int(np.prod(shape)), 27
    loss = rng.random((n, labels)).astype(np.float32)
    nodes = np.indices(shape).reshape(3, -1)
    loss[nodes[1] != 2] = 0  # all that counts lies in one slice of the second axis
    terms = Terms(
        rng.random((2, n, labels)).astype(np.float32), np.ones((n, 1), dtype=np.float32), shape, (axis, axis, axis),
        loss, rng.normal(size=(n, 3)) if base else None,
    )  # fmt: skip
    return Sample("pair", 2, terms, int((loss != 0).any(axis=1).sum()))


def numbers(rows: list[str]) -> np.ndarray:
    return np.array([row.split() for row in rows], dtype=float)


def test_the_slice_shows_the_displacements_of_its_nodes():
    for base in (False, True):
        s = sample((5, 4, 6), base)
        imputed = np.arange(120, dtype=np.int32) % 27
        found = overlay(s, imputed, WEIGHTS, "trws")
        predicted = infer(Task(s, WEIGHTS.as_vector(), 0.0, "trws")).labels
        grid = np.stack(np.meshgrid(*s.terms.offsets, indexing="ij"), axis=-1).reshape(-1, 3)
        for name, labels in (("imputed", imputed), ("predicted", predicted)):
            moved = grid[labels] + (0 if s.terms.base is None else s.terms.base)
            expected = moved.reshape(5, 4, 6, 3)[:, 2][..., [0, 2]].reshape(5, 12)
            np.testing.assert_allclose(numbers(found[name]["rows"]), expected, atol=6e-4)
            assert found[name]["loss"] == delta(s, labels)
        assert found["axes"] == ["i", "k"]
        assert found["level"] == 2
        np.testing.assert_array_equal(numbers(found["counts"]), np.ones((5, 6)))


def test_a_large_grid_is_thinned():
    s = sample((60, 4, 5))
    found = overlay(s, np.zeros(1200, dtype=np.int32), WEIGHTS, "icm")
    assert len(found["counts"]) <= LARGEST
    assert len(found["counts"]) == len(found["imputed"]["rows"]) == 20
    assert "pair" not in str(found)
