"""Multilayer perceptron with one hidden layer of tanh units and softmax, fitted by L-BFGS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from regweave.types import Float32Array, Float64Array, IntArray

ROWS = 64
"""Rows multiplied at a time: too few for a BLAS to share among threads, so results do not depend on their number.

OpenBLAS shares products of more than 262144 multiplications; 64 rows of 48 hidden units and 46 features have 141312.
"""

BLOCKS = 512
"""Blocks of rows that are scored at a time."""


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

    def scores(self, x: Float32Array) -> Float32Array:
        """Score of each class, (n, C), for features (n, F)."""
        w, b, v, c = (p.astype(np.float32) for p in (self.hidden, self.hidden_bias, self.output, self.output_bias))
        out = np.empty((len(x), len(c)), dtype=np.float32)
        # A part at a time: the hidden layer of a whole image would be larger than the image many times over.
        for begin in range(0, len(x), ROWS * BLOCKS):
            rows = x[begin : begin + ROWS * BLOCKS]
            blocks = np.tanh(_blocks(rows) @ w + b) @ v + c
            out[begin : begin + len(rows)] = blocks.reshape(-1, len(c))[: len(rows)]
        return out

    def with_bias(self, added: Float64Array) -> Perceptron:
        """Return the same classifier with other odds of the classes, (C,)."""
        return Perceptron(self.hidden, self.hidden_bias, self.output, self.output_bias + added)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists of numbers."""
        return {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Perceptron:
        """Inverse of `to_dict`; ValueError where the layers do not fit each other."""
        w, b, v, c = (np.array(content[name], dtype=np.float64) for name in cls.__dataclass_fields__)
        if w.ndim != 2 or v.ndim != 2 or b.shape != (w.shape[1],) or v.shape != (len(b), len(c)) or c.ndim != 1:
            raise ValueError(f"layers of shapes {w.shape}, {b.shape}, {v.shape}, {c.shape} do not fit")
        if not all(np.isfinite(p).all() for p in (w, b, v, c)):
            raise ValueError("the classifier holds numbers that are not finite")
        return cls(w, b, v, c)


def fit_perceptron(
    x: Float64Array,
    classes: IntArray,
    n_classes: int,
    hidden: int,
    penalty: float,
    steps: int,
    rng: np.random.Generator,
) -> Perceptron:
    """Minimise the mean cross-entropy + ½ · penalty · |layers|² on standardised features.

    Parameters
    ----------
    x : float array of shape (n, F)
        Features.
    classes : int array of shape (n,)
        Number of the class of each row.
    n_classes, hidden : int
        Sizes of the layers.
    penalty : float
        Weight of the squares of both layers, without their biases.
    steps : int
        L-BFGS iterations; stopping short of the minimum is part of the regularisation.
    rng : Generator
        Draws the starting layers.
    """
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    f = x.shape[1]
    shapes = ((f, hidden), (hidden,), (hidden, n_classes), (n_classes,))
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    rows = _blocks((x - mean) / spread)
    wanted = _blocks(np.eye(n_classes)[classes])
    start = [rng.normal(size=shapes[0]) / np.sqrt(f), np.zeros(hidden)]
    start += [0.1 * rng.normal(size=shapes[2]) / np.sqrt(hidden), np.zeros(n_classes)]

    def unpack(p: Float64Array) -> list[Float64Array]:
        return [part.reshape(shape) for part, shape in zip(np.split(p, cuts), shapes, strict=True)]

    def objective(p: Float64Array) -> tuple[float, Float64Array]:
        value, gradient = _cross_entropy(unpack(p), rows, wanted, len(x), penalty)
        return value, np.concatenate([g.ravel() for g in gradient])

    from scipy import optimize  # noqa: PLC0415 (a fifth of the program's start, and used by training alone)

    options = {"maxiter": steps, "maxfun": 2 * steps}
    begin = np.concatenate([s.ravel() for s in start])
    found = optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", options=options)
    w, b, v, c = unpack(found.x)
    return Perceptron(w / spread[:, None], b - (mean / spread) @ w, v, c)


def _cross_entropy(
    layers: list[Float64Array], x: Float64Array, wanted: Float64Array, n: int, penalty: float
) -> tuple[float, list[Float64Array]]:
    """Value and gradient; rows of ``wanted`` that are all 0 fill the last block and count nothing."""
    w, b, v, c = layers
    a = np.tanh(x @ w + b)
    z = a @ v + c
    z -= z.max(axis=-1, keepdims=True)
    e = np.exp(z)
    total = e.sum(axis=-1, keepdims=True)
    counts = wanted.sum(axis=-1, keepdims=True)
    value = float((counts * np.log(total)).sum() - (wanted * z).sum()) / n
    value += 0.5 * penalty * float((w**2).sum() + (v**2).sum())
    dz = (counts * e / total - wanted) / n
    da = (dz @ v.T) * (1 - a * a)
    dw = (x.transpose(0, 2, 1) @ da).sum(axis=0) + penalty * w
    dv = (a.transpose(0, 2, 1) @ dz).sum(axis=0) + penalty * v
    return value, [dw, da.sum(axis=(0, 1)), dv, dz.sum(axis=(0, 1))]


def _blocks(rows: Any) -> Any:
    """Rows (n, F) as (blocks, `ROWS`, F), filled with zeros at the end."""
    n, f = rows.shape
    padded = np.zeros((-(-n // ROWS) * ROWS, f), dtype=rows.dtype)
    padded[:n] = rows
    return padded.reshape(-1, ROWS, f)
