"""Python side of the compiled kernels in `regweave._core`: threads, GPUs, the build, and those of fields as one set.

Kernels take arrays and return arrays. They check shapes, types and ranges themselves and raise `ValueError`;
`tests/test_kernels_refuse.py` has a table of wrong calls for each.
"""

from __future__ import annotations

from pathlib import Path

from regweave import _core

LIBRARY, BUILD = Path(_core.LIBRARY), _core.BUILD
"""File of the compiled code, and the instruction set that it is for."""
