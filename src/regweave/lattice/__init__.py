"""The control grid and the displacement labels of its nodes."""

from __future__ import annotations
