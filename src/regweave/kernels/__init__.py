"""Compiled kernels: arrays in, arrays out, no policy.

The only importer of the extension module. Its entries check shapes, types and ranges themselves and raise `ValueError`;
`tests/test_kernels_refuse.py` has a table of wrong calls for each.
"""

from __future__ import annotations

from pathlib import Path

from regweave import _core

LIBRARY, BUILD = Path(_core.LIBRARY), _core.BUILD
"""File of the compiled code, and the instruction set that it is for."""
