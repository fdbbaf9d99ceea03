"""Compiled kernels, in the build that suits this processor."""

from __future__ import annotations

from regweave._core.builds import choose, load

BUILD = choose()
_kernels = load(BUILD)
LIBRARY = _kernels.__file__
globals().update({name: value for name, value in vars(_kernels).items() if not name.startswith("_")})
