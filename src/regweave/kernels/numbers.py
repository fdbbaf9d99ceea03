"""Kernels of numbers of whole images, and of the equations of an affine fit."""

from __future__ import annotations

from regweave._core import enclosed, histogram, log_spread, normal_equations, profiles

__all__ = ["enclosed", "histogram", "log_spread", "normal_equations", "profiles"]
