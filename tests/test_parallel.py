"""The threads of the kernels: the same bits from many callers at once, after a fork, and after a failure."""

from __future__ import annotations

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from regweave import _core


@pytest.fixture
def two_threads():
    before = _core.set_threads(2)
    yield
    _core.set_threads(before)


@pytest.fixture
def fields():
    rng = np.random.default_rng(0)
    u, v = (rng.uniform(-2, 2, (3, 20, 18, 16)).astype(np.float32) for _ in range(2))
    before = _core.set_threads(1)
    expected = _core.compose(u, v)
    _core.set_threads(before)
    return u, v, expected


def test_many_callers_at_once(fields, two_threads):
    u, v, expected = fields
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: _core.compose(u, v), range(300)))
    assert all(np.array_equal(f, expected) for f in found)


def test_more_threads_than_before(fields, two_threads):
    u, v, expected = fields
    for n in (2, 5, 1, 3):
        _core.set_threads(n)
        assert np.array_equal(_core.compose(u, v), expected)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_process_has_threads_of_its_own(fields, two_threads):
    u, v, expected = fields
    _core.compose(u, v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads in the parent
        child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(_core.compose(u, v), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
