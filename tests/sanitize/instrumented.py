"""Pytest plugin: import the package whose kernels carry sanitizers, not the installed one."""

import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["REGWEAVE_INSTRUMENTED"])
# An editable install brings a finder of its own, which would come first.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, str(FOLDER))

import regweave._core  # noqa: E402

if not Path(regweave._core.LIBRARY).is_relative_to(FOLDER):
    raise ImportError(f"found {regweave._core.LIBRARY}, expected the package in {FOLDER}")
