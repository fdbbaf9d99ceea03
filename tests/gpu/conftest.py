"""The kernels of the GPU on the host: the twin, which is built from the same sources."""

import importlib

import numpy as np
import pytest

from regweave.registration.cuda import CudaDevice


@pytest.fixture(scope="session")
def twin():
    return importlib.import_module("regweave._cuda_twin")


@pytest.fixture
def device(twin):
    return CudaDevice(twin)


@pytest.fixture
def rng():
    return np.random.default_rng(17)
