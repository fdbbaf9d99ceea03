"""Kernels of dense displacement fields on a GPU, with arrays of the host in and out.

The functions are those of `regweave._core`: what a registration makes in the end, warped images, the inverse,
determinants, is asked for once, so that it is copied to the GPU and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regweave.types import Float32Array, Float64Array, IntArray


class CudaFields:
    """Functions of `regweave._core` by the kernels of a GPU."""

    def __init__(self, kernels: Any, queue: Any) -> None:
        self._kernels, self._queue = kernels, queue

    def _upload(self, array: Any, dtype: Any = np.float32) -> Any:
        return self._queue.upload(np.ascontiguousarray(array, dtype=dtype))

    def warp(self, image: Float32Array, matrix: Float64Array, field: Float32Array, fill: float, clamp: bool) -> Any:
        """Sample an image at matrix · (x + field(x)); outside: the border if clamp, else fill."""
        if clamp:
            return self.warp_channels(image[None], matrix, field)[0]
        return self._kernels.warp_filled(self._upload(image), matrix, self._upload(field), fill).numpy()

    def warp_channels(self, channels: Float32Array, matrix: Float64Array, u: Float32Array) -> Any:
        """Pull images (C, X, Y, Z) through matrix ∘ (id + u); beyond the grid the border value holds."""
        return self._kernels.warp(self._upload(channels), matrix, self._upload(u)).numpy()

    def warp_valid(self, shape: tuple[int, int, int], matrix: Float64Array, field: Float32Array) -> Any:
        """1 where matrix · (x + field(x)) lies inside a grid of that shape."""
        found = self._kernels.warp_valid(shape, matrix, self._upload(field), None, None).numpy()
        return found.astype(np.uint8)

    def warp_labels(self, labels: IntArray, matrix: Float64Array, field: Float32Array) -> Any:
        """Take the label with the largest sum of trilinear weights; 0 outside."""
        return self._kernels.warp_labels(self._upload(labels, np.int32), matrix, self._upload(field)).numpy()

    def jacobian(self, u: Float32Array) -> Any:
        """Return det(I + du/dx), central differences, one-sided at borders."""
        return self._kernels.jacobian(self._upload(u)).numpy()

    def return_errors(self, u: Float32Array, there: Float64Array, back: Float32Array, *affines: Float64Array) -> Any:
        """Return how far each fixed voxel ends from where it started, in mm; affines (4, 4) as the kernel has them."""
        rows = (np.ascontiguousarray(a[:3], dtype=np.float64) for a in affines)
        return self._kernels.return_errors(self._upload(u), there, self._upload(back), *rows).numpy()

    def invert(
        self,
        u: Float32Array,
        matrix: Float64Array,
        inverse_matrix: Float64Array,
        shape: tuple[int, int, int],
        max_iter: int,
        tolerance: float,
    ) -> tuple[Any, Any]:
        """Solve matrix · (p + u(p)) = q for each voxel q of shape; return matrix · p - q and what remains."""
        arguments = (matrix, inverse_matrix, shape, max_iter, tolerance)
        found, residual = self._kernels.invert(self._upload(u), *arguments)
        return found.numpy(), residual.numpy()
