"""Kernels of image filters: Gaussian smoothing, gradients, windows, tables, means of blocks."""

from __future__ import annotations

from regweave._core import block_mean, gaussian, gradient_direction, gradient_magnitude, lookup, window

__all__ = ["block_mean", "gaussian", "gradient_direction", "gradient_magnitude", "lookup", "window"]
