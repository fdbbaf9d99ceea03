from __future__ import annotations

import os
from pathlib import Path

import pytest

from regweave.workflows.phantom import PhantomPair, make_phantom


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder with the real volumes; the tests that use it carry the mark ``data``."""
    folder = os.environ.get("REGWEAVE_DATA")
    if not folder:
        pytest.skip("REGWEAVE_DATA is not set")
    path = Path(folder)
    # A wrong path must not look like an absent one.
    assert path.is_dir(), f"REGWEAVE_DATA={folder} is not a folder"
    return path


@pytest.fixture(scope="session")
def phantom_pair() -> PhantomPair:
    """Two 48³ images of the phantom with labels and the true field; shared, so not to be written to."""
    return make_phantom(seed=0, shape=(48, 48, 48), spacing_mm=(4.0, 4.0, 4.0))
