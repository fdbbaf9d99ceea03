"""Deformable registration with a similarity metric learned for each anatomical structure."""

from __future__ import annotations

__version__ = "0.1.0"
