"""Cost volumes of a bank: each member on its own support, all on one scale."""

import numpy as np
import pytest

from regweave import metrics
from regweave.config.settings import Member
from regweave.energy import Comparison, cost_volume, fit_scales
from regweave.spatial.control_grid import ControlGrid, LabelSet, shift
from regweave.types import Geometry

SHAPE = (16, 15, 14)


def comparisons() -> list[Comparison]:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1, *SHAPE)).astype(np.float32)
    members = Member(name="sad", metric="sad"), Member(name="wide", metric="ncc", support=9)
    return [Comparison(m, a, b) for m in members]


def test_rows_are_the_members_in_their_order():
    grid = ControlGrid.cover(Geometry(SHAPE, np.eye(4)), 5.0)
    labels = LabelSet.cube(3, np.full(3, 0.6))
    costs = cost_volume(comparisons(), grid, labels)
    assert costs.shape == (2, grid.n_nodes, 27)
    for row, c in zip(costs, comparisons(), strict=True):
        own = grid if c.member.support is None else grid.with_support((9, 9, 9))
        metric, options = metrics.get(c.member.metric), c.member.metric_options
        slow = [metric.cost(c.fixed, shift(c.moved, d), own, options) for d in labels.vectors]
        np.testing.assert_allclose(row, np.stack(slow, axis=1), atol=2e-5)


def test_scale_is_the_spread_over_labels_of_nodes_that_see_something():
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
