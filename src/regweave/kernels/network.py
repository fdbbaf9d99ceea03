"""Kernels of networks: layers of a convolutional one, and what a perceptron is fitted by.

Images are (X, Y, Z, C): the channels of a voxel lie side by side.
"""

from __future__ import annotations

from regweave._core import class_shares, convolution_block, max_pool, perceptron_cross_entropy

__all__ = ["class_shares", "convolution_block", "max_pool", "perceptron_cross_entropy"]
