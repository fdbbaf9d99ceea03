"""Kernels of linear filters: Gaussian smoothing and gradients of images."""

from __future__ import annotations

from regweave._core import gaussian, gradient_direction, gradient_magnitude

__all__ = ["gaussian", "gradient_direction", "gradient_magnitude"]
