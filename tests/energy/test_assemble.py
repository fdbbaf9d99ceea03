"""Unaries of an energy: the kernel against the sum as it is written, with and without loss."""

import numpy as np
import pytest

from regweave.energy import TIE_BREAK, assemble
from regweave.threads import kernel_threads
from regweave.types import Terms, WeightTable

OFFSETS = (np.array([-1.0, 0.0, 1.0]), np.array([-0.5, 0.5]), np.array([0.0, 2.0]))


def made(rng, members, classes, *, displaced):
    n, n_labels = 70, 12
    terms = Terms(
        rng.random((members, n, n_labels), dtype=np.float32),
        rng.random((n, n_labels, classes) if displaced else (n, classes), dtype=np.float32),
        (7, 5, 2),
        OFFSETS,
        loss=rng.random((n, n_labels), dtype=np.float32),
    )
    names = tuple(f"m{i}" for i in range(members))
    return terms, WeightTable(rng.random((members, classes)), names, tuple(range(classes)), 0.3)


def reference(terms, weights, coefficient, tie_break):
    out = np.zeros(terms.loss.shape)
    length = [sum(abs(o) for o in (x, y, z)) for x in OFFSETS[0] for y in OFFSETS[1] for z in OFFSETS[2]]
    for n in range(out.shape[0]):
        for label in range(out.shape[1]):
            share = terms.shares[n] if terms.shares.ndim == 2 else terms.shares[n, label]
            w = weights.matrix @ share.astype(np.float64)
            out[n, label] = w @ terms.costs[:, n, label] + tie_break * length[label]
            out[n, label] += coefficient * float(terms.loss[n, label])
    return out


@pytest.mark.parametrize("displaced", [False, True])
@pytest.mark.parametrize(("members", "classes"), [(1, 1), (4, 3)])
@pytest.mark.parametrize("coefficient", [0.0, 10.0, -1.0])
def test_unaries_are_the_weighted_sum(members, classes, displaced, coefficient):
    terms, weights = made(np.random.default_rng(5), members, classes, displaced=displaced)
    for tie_break in (0.0, TIE_BREAK):
        found = assemble(terms, weights, coefficient, tie_break=tie_break)
        assert found.unary == pytest.approx(reference(terms, weights, coefficient, tie_break), rel=1e-12, abs=1e-12)
        assert found.weight == weights.pairwise


def test_unaries_have_the_same_bits_for_any_number_of_threads():
    terms, weights = made(np.random.default_rng(6), 4, 3, displaced=False)
    found = []
    for n in (1, 3):
        with kernel_threads(n):
            found.append(assemble(terms, weights, -1.0).unary)
    assert np.array_equal(*found)
