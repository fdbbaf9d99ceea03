"""Mean absolute difference of gradient magnitudes: edges of equal strength match at any intensities."""

from pydantic import Field

from regweave import _core, metrics
from regweave.metrics.ngf import smooth
from regweave.metrics.sad import cost, volume
from regweave.types import Float32Array

__all__ = ["Options", "cost", "features", "volume"]

PENALTY = "absolute"


class Options(metrics.Options):
    """Scale of the gradient."""

    sigma_voxels: float = Field(default=0.7, ge=0, le=5)
    """Standard deviation of the Gaussian applied before the differences."""


def features(image: Float32Array, options: Options) -> Float32Array:
    """Gradient magnitude per voxel of the smoothed image, (1, X, Y, Z)."""
    return _core.gradient_magnitude(smooth(image, options.sigma_voxels))
