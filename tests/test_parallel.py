"""The threads of the kernels: the same bits from many callers at once, after a fork, and after a failure."""

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from regweave import _core
from regweave.threads import in_this_call, kernel_threads, side_by_side


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


def test_many_callers_at_once_and_more_threads_than_before(fields, two_threads):
    u, v, expected = fields
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(in_this_call(lambda _: _core.compose(u, v)), range(300)))
    assert all(np.array_equal(f, expected) for f in found)
    u, v, expected = fields
    for n in (2, 5, 1, 3):
        _core.set_threads(n)
        assert np.array_equal(_core.compose(u, v), expected)


def test_each_thread_has_its_own_number_and_those_of_a_pool_that_of_their_caller():
    together, seen = threading.Barrier(4, timeout=30), {}

    def call(n: int) -> None:
        with kernel_threads(n):
            together.wait()
            seen[n] = _core.threads()
            together.wait()
        seen[-n] = _core.threads()

    before = _core.threads()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, (1, 2, 3, 5)))
    assert seen == {1: 1, 2: 2, 3: 3, 5: 5, -1: 1, -2: 1, -3: 1, -5: 1}
    assert _core.threads() == before
    with kernel_threads(3), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(in_this_call(lambda _: _core.threads()), range(4))) == [3] * 4


NO_ROOM = """
import re, resource
import numpy as np
from regweave import _core
u = np.random.default_rng(0).uniform(-2, 2, (3, 20, 18, 16)).astype(np.float32)
alone = _core.compose(u, u)
size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
_core.set_threads(12)
assert np.array_equal(_core.compose(u, u), alone)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_fewer_threads_where_the_system_has_no_room_for_more():
    # A thread takes the stack limit of the process as address space: 256 MB each where 64 MB are left.
    limits = f"ulimit -s {256 << 10} && exec {sys.executable} -c '{NO_ROOM}'"
    done = subprocess.run(["bash", "-c", limits], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_side_by_side_keeps_the_order_gives_kernels_one_thread_and_raises():
    for threads in [1, 3]:
        with kernel_threads(threads):
            found = side_by_side(lambda item: (item, _core.threads()), range(7))
            assert _core.threads() == threads
        assert found == [(item, 1) for item in range(7)]
    with kernel_threads(2), pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 / item, [1, 0, 2])


def test_messages_have_the_same_bits_for_any_number_of_threads():
    """A grid that is large enough for its planes to be shared, and one of a single row to a plane."""
    for engine in ["trws", "fastpd"]:
        rng = np.random.default_rng(7)
        lines = [np.linspace(-1, 1, 5)] * 3
        for shape in ((9, 8, 7), (400, 1, 1), (2, 3, 90)):
            n = int(np.prod(shape))
            assert n * 125 >= 1 << 15
            unary, start = rng.random((n, 125)), np.zeros(n, dtype=np.int32)
            call = (unary, shape, *lines, 0.05, None, start, 12, 1e-9 if engine == "trws" else 8)
            found = []
            for threads in (1, 2, 3, 8):
                with kernel_threads(threads):
                    found += [getattr(_core, engine)(*call) for _ in range(3)]
            assert len({(labels.tobytes(), bound, rounds) for labels, bound, rounds in found}) == 1
