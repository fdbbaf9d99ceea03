"""The compiled kernels against a slow, obvious reference."""

import itertools

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from regweave import _core_test
from regweave.types import Energy


def random_grid(shape, rng, density):
    """Integer capacities; arcs that leave the grid are zero."""
    nodes = np.arange(np.prod(shape)).reshape(shape)
    arcs = np.zeros((nodes.size, 6))
    ends = []
    for axis in range(3):
        tail, head = (np.delete(nodes, end, axis=axis).ravel() for end in (-1, 0))
        for d, (p, q) in enumerate([(tail, head), (head, tail)]):
            arcs[p, 2 * axis + d] = rng.integers(0, 20, p.size) * (rng.random(p.size) < density)
            ends.append((p, q, arcs[p, 2 * axis + d]))
    terminals = rng.integers(-30, 31, nodes.size) * (rng.random(nodes.size) < density)
    return terminals.astype(float), arcs, [np.concatenate(part) for part in zip(*ends, strict=True)]


def reference_flow(terminals, edges):
    p, q, capacity = edges
    n = len(terminals)
    node = np.arange(n)
    rows = np.concatenate([p, np.full(n, n), node])
    columns = np.concatenate([q, node, np.full(n, n + 1)])
    values = np.concatenate([capacity, np.maximum(terminals, 0), np.maximum(-terminals, 0)]).astype(np.int32)
    kept = values > 0
    graph = coo_array((values[kept], (rows[kept], columns[kept])), shape=(n + 2, n + 2)).tocsr()
    return maximum_flow(graph, n, n + 1).flow_value


def test_maximum_flow_and_its_cut():
    for shape in [(1, 1, 1), (1, 1, 7), (4, 1, 3), (3, 4, 5), (6, 7, 5)]:
        for density in [0.2, 0.6, 1.0]:
            rng = np.random.default_rng(3)
            for _ in range(8):
                terminals, arcs, edges = random_grid(shape, rng, density)
                value, side = _core_test.grid_maxflow(terminals, arcs, shape)
                assert value == reference_flow(terminals, edges)
                p, q, capacity = edges
                cut = capacity[side[p] & ~side[q]].sum()
                cut += np.maximum(terminals, 0)[~side].sum() + np.maximum(-terminals, 0)[side].sum()
                assert cut == value
    arcs = np.zeros((3, 6))
    arcs[0, 4] = arcs[1, 4] = 2.0
    value, side = _core_test.grid_maxflow(np.array([2.0, 0.0, -2.0]), arcs, (1, 1, 3))
    assert value == 2.0
    assert not side.any()


def reference_message(f, offsets, weight, shift):
    out = f
    for axis, o in enumerate(offsets):
        cost = weight * np.abs(o[:, None] - o + shift[axis])
        out = np.moveaxis((np.moveaxis(out, axis, -1)[..., :, None] + cost).min(axis=-2), -1, axis)
    return out


def test_messages_equal_the_brute_force_minimum():
    for counts in [(3, 3, 3), (5, 5, 5), (7, 7, 7), (2, 5, 3), (1, 4, 1), (1, 1, 1)]:
        rng = np.random.default_rng(1)
        offsets = [np.sort(rng.normal(size=k)) for k in counts]
        f, weight = rng.normal(size=counts), 0.7
        for shift in [(0.0, 0.0, 0.0), (0.4, -1.0, 0.1)]:
            expected = reference_message(f, offsets, weight, shift)
            got = _core_test.separable_message(f, *offsets, weight, shift, False)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)
        got = _core_test.separable_message(f, *offsets, weight, (0.0, 0.0, 0.0), True)
        np.testing.assert_allclose(got, reference_message(f, offsets, weight, (0.0, 0.0, 0.0)), rtol=0, atol=1e-14)


def moved(energy, labels, proposal):
    """Best of all choices of nodes that take their proposal, the fewest nodes of equal ones."""
    changing = np.flatnonzero(proposal != labels)
    best, least = labels, energy(labels)
    for chosen in itertools.product((False, True), repeat=len(changing)):
        found = labels.copy()
        found[changing[np.array(chosen, dtype=bool)]] = proposal[changing[np.array(chosen, dtype=bool)]]
        value = energy(found)
        if value < least - 1e-12:
            best, least = found, value
    return best


def reference_moves(energy, labels, *, expand):
    counts = tuple(len(o) for o in energy.offsets)
    if expand:
        for label in range(int(np.prod(counts))):
            labels = moved(energy, labels, np.full_like(labels, label))
        return labels
    for axis, k in enumerate(counts):
        for step in [s for s in range(1 - k, k) if s]:
            at = np.array(np.unravel_index(labels, counts))
            at[axis] += step
            inside = (at[axis] >= 0) & (at[axis] < k)
            at[axis] = at[axis].clip(0, k - 1)
            labels = moved(energy, labels, np.where(inside, np.ravel_multi_index(tuple(at), counts), labels))
    return labels


# A strong pairwise term makes many nodes candidates that only a cut can tell apart; with a weak one most are settled
# before. Between evenly spaced offsets no term of a step is truncated, so that the choice of nodes is the best one.
def test_moves_equal_the_best_choice_of_nodes():
    for expand in [False, True]:
        for shape in [(2, 2, 2), (1, 3, 3), (9, 1, 1)]:
            for weight in [0.02, 0.2, 1.0]:
                rng = np.random.default_rng(4)
                line = np.array([-1.0, 0.0, 1.0])
                for elastic in (False, True) if not expand else (False,):
                    n = int(np.prod(shape))
                    base = rng.normal(0, 0.5, (n, 3)) if elastic else None
                    energy = Energy(rng.random((n, 9)), shape, (line, line, line[:1]), weight, base)
                    start = rng.integers(0, 9, n).astype(np.int32)
                    found = _core_test.binary_moves(energy.unary, shape, *energy.offsets, weight, base, start, expand)
                    assert np.array_equal(found, reference_moves(energy, start, expand=expand))
                    assert energy(found) <= energy(start)
