"""Gaussian classifier of voxels: quadratic discriminant analysis with shrunken covariances.

Each class is a normal distribution of the voxel features; a voxel belongs to the class that makes it likeliest. Faster
to fit than a perceptron and with nothing random in it, less accurate where a class has several looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regweave import registry
from regweave.predictors._voxelwise import VoxelPredictor, blocks, by_blocks, fit_voxelwise
from regweave.predictors.base import Examples, Parts, Predictor
from regweave.types import Float32Array, Float64Array, IntArray

RIDGE = 1e-3
"""Added to the variances of standardised features: a feature may be the same in all voxels of a class."""


class Options(registry.Options):
    """Regularisation.

    Parameters
    ----------
    shrinkage : float
        Weight of the covariance of all classes together in that of each class: 1 makes the borders planes.
    """

    shrinkage: float = Field(default=0.3, ge=0, le=1)


@dataclass(frozen=True)
class Gaussians:
    """Normal distributions of the classes: scores ``bias − ½ |(x − mean)·whiten|²``.

    Parameters
    ----------
    mean : float array of shape (C, F)
    whiten : float array of shape (C, F, F)
        Inverse roots of the covariances.
    bias : float array of shape (C,)
        Logarithms of their determinants, and odds of the classes.
    """

    mean: Float64Array
    whiten: Float64Array
    bias: Float64Array

    @property
    def n_features(self) -> int:
        """Features that it reads."""
        return int(self.mean.shape[1])

    @property
    def n_classes(self) -> int:
        """Classes that it tells."""
        return len(self.bias)

    def scores(self, x: Float32Array) -> Float32Array:
        """Score of each class, (n, C), for features (n, F)."""

        def score(part: Any) -> Any:
            each = [np.square((part - m) @ w).sum(axis=-1) for m, w in zip(self.mean, self.whiten, strict=True)]
            return self.bias - 0.5 * np.stack(each, axis=-1)

        return by_blocks(x.astype(np.float64), score, self.n_classes)

    def with_bias(self, added: Float64Array) -> Gaussians:
        """Return the same classifier with other odds of the classes, (C,)."""
        return Gaussians(self.mean, self.whiten, self.bias + added)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the numbers by name."""
        return {"mean": self.mean, "whiten": self.whiten, "bias": self.bias}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Gaussians:
        """Inverse of `arrays`; KeyError or ValueError where they do not fit each other."""
        mean, whiten, bias = (arrays[name] for name in ("mean", "whiten", "bias"))
        if mean.ndim != 2 or whiten.shape != (*mean.shape, mean.shape[1]) or bias.shape != (len(mean),):
            raise ValueError(f"arrays of shapes {mean.shape}, {whiten.shape}, {bias.shape} do not fit")
        return cls(mean, whiten, bias)


def fit_gaussians(
    x: Float64Array, numbers: IntArray, n_classes: int, rng: np.random.Generator, *, shrinkage: float
) -> Gaussians:
    """Fit a normal distribution to the rows of each class, its covariance shrunken to that of all."""
    spread = x.std(axis=0) + 1e-6
    means, covariances = [], []
    for c in range(n_classes):
        rows = x[numbers == c]
        means.append(rows.mean(axis=0))
        centred = blocks((rows - means[-1]) / spread)
        covariances.append((centred.transpose(0, 2, 1) @ centred).sum(axis=0) / max(1, len(rows) - 1))
    pooled = np.mean(covariances, axis=0)
    whiten, bias = [], []
    for own in covariances:
        inverse = _inverse_root((1 - shrinkage) * own + shrinkage * pooled + RIDGE * np.eye(len(own)))
        whiten.append(inverse.T / spread[:, None])
        bias.append(np.log(np.diag(inverse)).sum())
    return Gaussians(np.array(means), np.array(whiten), np.array(bias))


def _inverse_root(matrix: Float64Array) -> Float64Array:
    """Inverse of the Cholesky factor, row by row: a LAPACK shares this among threads, and then bits depend on them."""
    n = len(matrix)
    root, inverse = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            root[i, j] = (matrix[i, j] - (root[i, :j] * root[j, :j]).sum()) / root[j, j]
        root[i, i] = np.sqrt(matrix[i, i] - np.square(root[i, :i]).sum())
        inverse[i] = (np.eye(n)[i] - (root[i, :i, None] * inverse[:i]).sum(axis=0)) / root[i, i]
    return inverse


def fit(examples: Examples, options: Options, like: Predictor | None) -> VoxelPredictor:
    """Learn from segmented images."""
    return fit_voxelwise("gaussian", examples, partial(fit_gaussians, shrinkage=options.shrinkage), like)


def load(parts: Parts) -> VoxelPredictor:
    """Return the predictor that was saved."""
    return VoxelPredictor.load(parts, Gaussians.of)
