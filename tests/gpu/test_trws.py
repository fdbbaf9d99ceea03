"""Message passing on the twin: on equal unaries the labels, the bound and the iterations of the compiled core."""

import numpy as np
import pytest

from regweave.engines import trws
from regweave.types import Energy


def energy(rng, shape, k, weight, base=False, sort=True):
    n, labels = int(np.prod(shape)), int(np.prod(k))
    offsets = [rng.normal(size=m) for m in k]
    offsets = tuple(np.sort(o) if sort else o for o in offsets)
    return Energy(rng.random((n, labels)), shape, offsets, weight, rng.normal(size=(n, 3)) if base else None)


def solved(twin, device, e, max_iter=30, tol=1e-4):
    base = None if e.base is None else device.upload(e.base)
    labels, value, bound, iterations = twin.trws(
        device.upload(e.unary), e.shape, e.offsets, e.weight, base, max_iter, tol
    )
    return labels.numpy(), value, bound, iterations


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize(("shape", "k"), [((4, 3, 5), (3, 3, 3)), ((1, 6, 2), (2, 1, 4)), ((3, 3, 3), (5, 5, 5))])
def test_labels_and_bound_are_those_of_the_core(twin, device, rng, shape, k, sort, base):
    for weight in (0.0, 0.05, 0.3):
        e = energy(rng, shape, k, weight, base, sort)
        expected = trws.minimize(e)
        labels, value, bound, iterations = solved(twin, device, e)
        assert np.array_equal(labels, expected.labels)
        assert value == pytest.approx(expected.energy, rel=1e-12)
        assert bound == pytest.approx(expected.lower_bound, rel=1e-9)
        assert iterations == expected.iterations


def test_hard_energies_are_improved_by_cuts_as_on_the_host(twin, device, rng):
    e = energy(rng, (5, 5, 5), (3, 3, 3), 0.12, base=True)
    options = trws.Options(max_iter=9, tol=0.0)
    expected = trws.minimize(e, options=options)
    labels, value, bound, _ = solved(twin, device, e, 9, 0.0)
    assert expected.gap > 0
    assert np.array_equal(labels, expected.labels)
    assert bound <= value
    e = energy(rng, (2, 2, 2), (2, 2, 2), 0.1)
    e.unary[:] = np.nan
    with pytest.raises(ValueError, match="finite"):
        solved(twin, device, e)
