"""Kernels of the layers of a convolutional network.

Images are (X, Y, Z, C): the channels of a voxel lie side by side.
"""

from __future__ import annotations

from regweave._core import class_shares, convolution_block, max_pool

__all__ = ["class_shares", "convolution_block", "max_pool"]
