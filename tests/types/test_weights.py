"""Algebra of weight tables, recomputed from its words."""

import numpy as np

from regweave.types import WeightTable

MEMBERS, CLASSES = ("a", "b", "c"), (0, 2, 5)
START = WeightTable.constant(dict.fromkeys(MEMBERS, 1.0), 0.3, CLASSES)


def weights(matrix, pairwise=0.3) -> WeightTable:
    return WeightTable(np.array(matrix, dtype=float), MEMBERS, CLASSES, pairwise)


def test_balance_blend_and_embedding():
    learned = weights([[2.0, 0.0, 0.1], [1.0, 0.0, 0.1], [1.0, 0.0, 0.2]], pairwise=0.01)
    found = START.balance(learned)
    np.testing.assert_allclose(found.matrix[:, 0], [0.5, 0.25, 0.25])
    np.testing.assert_allclose(found.matrix[:, 1], 1 / 3)  # nothing was learned there
    np.testing.assert_allclose(found.matrix[:, 2], [0.25, 0.25, 0.5])
    assert (found.pairwise, found.members, found.classes) == (0.3, MEMBERS, CLASSES)
    learned = weights([[1.0, -1.0, 3.0], [-0.999, 0.2, -1.0], [0.0, 0.2, 0.0]])
    found = START.balance(learned).matrix
    np.testing.assert_allclose(np.abs(found).sum(axis=0), 1)
    np.testing.assert_allclose(found[:, 0], [1 / 1.999, -0.999 / 1.999, 0])
    np.testing.assert_allclose(found[:, 1], 1 / 3)  # its sum is below zero
    np.testing.assert_allclose(found[:, 2], [0.75, -0.25, 0])
    learned = weights(np.eye(3), pairwise=9.0)
    found = START.blend(learned, 0.5, (2, 5))
    np.testing.assert_array_equal(found.matrix[:, 0], START.matrix[:, 0])
    np.testing.assert_allclose(found.matrix[:, 1], [1 / 6, 1 / 6 + 1 / 2, 1 / 6])
    np.testing.assert_allclose(found.matrix.sum(axis=0), 1)
    assert found.pairwise == 0.3
    np.testing.assert_array_equal(START.blend(learned, 1.0, ()).matrix, START.matrix)
    np.testing.assert_allclose(START.blend(learned, 1.0, CLASSES).matrix, np.eye(3))
    assert (START.matrix == 1 / 3).all()
    rows = WeightTable(np.array([[0.7, 0.1, 0.0], [0.3, 0.9, 0.0]]), ("a", "c"), CLASSES, 0.3)
    whole = START.embed(rows)
    np.testing.assert_array_equal(whole.matrix[1], START.matrix[1])
    np.testing.assert_allclose(whole.matrix.sum(axis=0), 1)
    np.testing.assert_allclose(whole.select(("a", "c")).matrix[:, :2], rows.matrix[:, :2])
    np.testing.assert_allclose(whole.matrix[:, 2], 1 / 3)
