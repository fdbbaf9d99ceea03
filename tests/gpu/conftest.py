"""The kernels of the GPU on the host: the twin, which is built from the same sources.

``REGWEAVE_GPU_MODULE=regweave._cuda`` runs the same tests on a GPU.
"""

import importlib
import os

import numpy as np
import pytest

from regweave.registration import devices
from regweave.registration.cuda import CudaDevice


@pytest.fixture(scope="session")
def twin():
    return importlib.import_module(os.environ.get("REGWEAVE_GPU_MODULE", "regweave._cuda_twin"))


@pytest.fixture
def device(twin):
    return CudaDevice(twin)


@pytest.fixture
def rng():
    return np.random.default_rng(17)


@pytest.fixture
def with_twin(twin, monkeypatch):
    """Let the twin stand for the GPU of this machine."""
    monkeypatch.setattr(devices, "module", lambda: twin)
    monkeypatch.setattr(devices, "_here", type(devices._here)())
