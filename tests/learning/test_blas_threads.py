"""The class predictor and joint features have the same bits whatever number of threads the BLAS has."""

import os
import subprocess
import sys

import pytest

SCORES = """
import hashlib
import numpy as np
from regweave.predictors._features import n_features
from regweave.predictors import perceptron
rng = np.random.default_rng(0)
x = rng.random((3000, n_features("ct")))
classes = (x[:, :5].sum(axis=1) * 1.2).astype(np.int32)
found = perceptron.fit_perceptron(x, classes, 7, rng, options=perceptron.Options(steps=6))
y = rng.random((40000, x.shape[1])).astype(np.float32)
scores = found.scores(y)
from regweave.energy import joint_features
from regweave.types import Terms
line = np.array([-1.0, 0.0, 1.0])
costs, shares = rng.random((8, 16000, 27)).astype(np.float32), rng.random((16000, 6)).astype(np.float32)
terms = Terms(costs, shares, (40, 20, 20), (line, line, line))
psi = joint_features(terms, rng.integers(0, 27, 16000).astype(np.int32))[:-1]
print(hashlib.sha256(psi.tobytes()).hexdigest())
told = (found.hidden, found.output, scores)
print(*(hashlib.sha256(a.tobytes()).hexdigest() for a in told))
"""


@pytest.fixture(scope="module")
def alone() -> str:
    return run(1)


def run(threads: int) -> str:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    done = subprocess.run([sys.executable, "-c", SCORES], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("threads", [2, 5])
def test_bits_do_not_depend_on_the_threads_of_the_blas(alone, threads):
    assert run(threads) == alone
