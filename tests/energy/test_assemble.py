"""Unaries of an energy: the kernel against the sum as it is written, with and without loss."""

import numpy as np
import pytest

from regweave import metrics
from regweave.config.settings import Member
from regweave.energy import TIE_BREAK, Comparison, assemble, cost_volume, fit_scales
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.threads import kernel_threads
from regweave.types import Geometry, Terms, WeightTable

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


def test_unaries_are_the_weighted_sum_with_the_same_bits_for_any_number_of_threads():
    for displaced in [False, True]:
        for members, classes in [(1, 1), (4, 3)]:
            for coefficient in [0.0, 10.0, -1.0]:
                terms, weights = made(np.random.default_rng(5), members, classes, displaced=displaced)
                for tie_break in (0.0, TIE_BREAK):
                    found = assemble(terms, weights, coefficient, tie_break=tie_break)
                    assert found.unary == pytest.approx(
                        reference(terms, weights, coefficient, tie_break), rel=1e-12, abs=1e-12
                    )
                    assert found.weight == weights.pairwise
    terms, weights = made(np.random.default_rng(6), 4, 3, displaced=False)
    found = []
    for n in (1, 3):
        with kernel_threads(n):
            found.append(assemble(terms, weights, -1.0).unary)
    assert np.array_equal(*found)


# Cost volumes of a bank: each member on its own support, all on one scale.
SHAPE = (16, 15, 14)


def comparisons() -> list[Comparison]:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1, *SHAPE)).astype(np.float32)
    members = Member(name="sad", metric="sad"), Member(name="wide", metric="ncc", support=9)
    return [Comparison(m, a, b) for m in members]


def test_rows_and_their_scale():
    grid = ControlGrid.cover(Geometry(SHAPE, np.eye(4)), 5.0)
    labels = LabelSet.cube(3, np.full(3, 0.6))
    costs = cost_volume(comparisons(), grid, labels)
    assert costs.shape == (2, grid.n_nodes, 27)
    for row, c in zip(costs, comparisons(), strict=True):
        own = grid if c.member.support is None else grid.with_support((9, 9, 9))
        metric, options = metrics.get(c.member.metric), c.member.metric_options
        slow = [metric.cost(c.fixed, shift(c.moved, d), own, options) for d in labels.vectors]
        np.testing.assert_allclose(row, np.stack(slow, axis=1), atol=2e-5)
    rng = np.random.default_rng(1)
    costs = rng.normal(5, 1, (2, 200, 27)).astype(np.float32)
    costs[1] *= 40
    costs[:, 50:] = 3.0  # three quarters of the nodes see nothing
    scales = fit_scales(costs)
    np.testing.assert_allclose(scales, [1.0, 40.0], rtol=0.05)
    np.testing.assert_allclose(fit_scales(costs + np.float32(100)), scales, rtol=1e-3)
    scales = fit_scales(np.ones((3, 5, 27), dtype=np.float32))
    assert (scales > 0).all()
    assert scales.tolist() == pytest.approx([1e-9] * 3)
