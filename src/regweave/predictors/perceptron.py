"""Multilayer perceptron with one hidden layer of tanh units and softmax, fitted by L-BFGS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from regweave import registry
from regweave._core import perceptron_cross_entropy
from regweave.predictors._voxelwise import VoxelPredictor, by_blocks, fit_voxelwise
from regweave.predictors.base import Examples, Parts, Predictor
from regweave.types import Float32Array, Float64Array, IntArray

STEPS = 200
"""L-BFGS iterations; stopping short of the minimum is part of the regularisation."""


class Options(registry.Options):
    """Size and regularisation.

    Parameters
    ----------
    hidden : int
        Units of the hidden layer.
    penalty : float
        Weight of the squares of both layers.
    """

    hidden: int = Field(default=48, ge=1, le=256)
    penalty: float = Field(default=5e-4, ge=0, le=1)


@dataclass(frozen=True)
class Perceptron:
    """Scores of the classes: ``tanh(x·hidden + hidden_bias)·output + output_bias``.

    Parameters
    ----------
    hidden, hidden_bias : float arrays of shapes (F, H) and (H,)
        First layer, on raw features.
    output, output_bias : float arrays of shapes (H, C) and (C,)
        Second layer.
    """

    hidden: Float64Array
    hidden_bias: Float64Array
    output: Float64Array
    output_bias: Float64Array

    @property
    def n_features(self) -> int:
        """Features that it reads."""
        return len(self.hidden)

    @property
    def n_classes(self) -> int:
        """Classes that it tells."""
        return len(self.output_bias)

    def scores(self, x: Float32Array) -> Float32Array:
        """Score of each class, (n, C), for features (n, F)."""
        w, b, v, c = (p.astype(np.float32) for p in (self.hidden, self.hidden_bias, self.output, self.output_bias))
        return by_blocks(x, lambda part: np.tanh(part @ w + b) @ v + c, self.n_classes)

    def with_bias(self, added: Float64Array) -> Perceptron:
        """Return the same classifier with other odds of the classes, (C,)."""
        return Perceptron(self.hidden, self.hidden_bias, self.output, self.output_bias + added)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the layers by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Perceptron:
        """Inverse of `arrays`; KeyError or ValueError where the layers do not fit each other."""
        w, b, v, c = (arrays[name] for name in cls.__dataclass_fields__)
        if w.ndim != 2 or v.ndim != 2 or b.shape != (w.shape[1],) or v.shape != (len(b), len(c)) or c.ndim != 1:
            raise ValueError(f"layers of shapes {w.shape}, {b.shape}, {v.shape}, {c.shape} do not fit")
        return cls(w, b, v, c)


def fit(examples: Examples, options: Options, like: Predictor | None) -> VoxelPredictor:
    """Learn from segmented images."""
    return fit_voxelwise("perceptron", examples, partial(fit_perceptron, options=options), like)


def load(parts: Parts) -> VoxelPredictor:
    """Return the predictor that was saved."""
    return VoxelPredictor.load(parts, Perceptron.of)


def fit_perceptron(
    x: Float64Array,
    classes: IntArray,
    n_classes: int,
    rng: np.random.Generator,
    *,
    options: Options,
) -> Perceptron:
    """Minimise the mean cross-entropy + ½ · penalty · |layers|² on standardised features.

    Parameters
    ----------
    x : float array of shape (n, F)
        Features.
    classes : int array of shape (n,)
        Number of the class of each row.
    n_classes : int
        Size of the second layer.
    rng : Generator
        Draws the starting layers.
    options : Options
        Size of the first layer; weight of the squares of both, without their biases.
    """
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    f, hidden = x.shape[1], options.hidden
    shapes = ((f, hidden), (hidden,), (hidden, n_classes), (n_classes,))
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    rows = np.ascontiguousarray((x - mean) / spread, dtype=np.float32)
    numbers = np.ascontiguousarray(classes, dtype=np.int32)
    start = [rng.normal(size=shapes[0]) / np.sqrt(f), np.zeros(hidden)]
    start += [0.1 * rng.normal(size=shapes[2]) / np.sqrt(hidden), np.zeros(n_classes)]

    def unpack(p: Float64Array) -> list[Float64Array]:
        return [part.reshape(shape) for part, shape in zip(np.split(p, cuts), shapes, strict=True)]

    def objective(p: Float64Array) -> tuple[float, Float64Array]:
        w, b, v, c = unpack(p)
        total, gradient = perceptron_cross_entropy(rows, numbers, w, b, v, c)
        squares = np.concatenate([options.penalty * w.ravel(), 0.0 * b, options.penalty * v.ravel(), 0.0 * c])
        return total / len(rows) + 0.5 * float((squares * p).sum()), gradient / len(rows) + squares

    from scipy import optimize  # noqa: PLC0415 (a fifth of the program's start, and used by training alone)

    limits = {"maxiter": STEPS, "maxfun": 2 * STEPS}
    begin = np.concatenate([s.ravel() for s in start])
    found = optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", options=limits)
    w, b, v, c = unpack(found.x)
    return Perceptron(w / spread[:, None], b - (mean / spread) @ w, v, c)
