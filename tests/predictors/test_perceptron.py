"""Cross-entropy of a perceptron against plain NumPy, the same bits for any number of threads, and its fit."""

import numpy as np
import pytest

from regweave._core import perceptron_cross_entropy
from regweave._core.builds import load, usable
from regweave.predictors.perceptron import Options, fit_perceptron
from regweave.threads import kernel_threads


def layers(f: int, h: int, c: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.3 * rng.normal(size=shape) for shape in ((f, h), (h,), (h, c), (c,))]


def rows(n: int, f: int, c: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, f)).astype(np.float32), rng.integers(0, c, n).astype(np.int32)


def slow_value(x: np.ndarray, classes: np.ndarray, parts: list[np.ndarray]) -> float:
    w, b, v, c = parts
    total = 0.0
    for row, wanted in zip(x.astype(np.float64), classes, strict=True):
        z = np.tanh(row @ w + b) @ v + c
        total += np.log(np.exp(z).sum()) - z[wanted]
    return total


@pytest.mark.parametrize("sizes", [(5, 3, 2), (7, 5, 3), (46, 48, 4), (9, 24, 11)])
@pytest.mark.parametrize("build", usable())
def test_value_and_gradient_are_those_of_the_definition(sizes, build):
    (x, classes), parts = rows(300, sizes[0], sizes[2], 1), layers(*sizes, 2)
    value, gradient = load(build).perceptron_cross_entropy(x, classes, *parts)
    assert value == pytest.approx(slow_value(x, classes, parts), rel=1e-6)
    place, step = 0, 1e-4
    for part in parts:
        for index in (0, part.size // 2, part.size - 1):
            moved = []
            for sign in (1, -1):
                changed = [p.copy() for p in parts]
                changed[[p is part for p in parts].index(True)].flat[index] += sign * step
                moved.append(slow_value(x, classes, changed))
            assert gradient[place + index] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-4, abs=2e-3)
        place += part.size
    assert place == len(gradient)


def test_large_scores_stay_finite():
    x, classes = rows(50, 4, 3, 3)
    value, gradient = perceptron_cross_entropy(1e3 * x, classes, *(1e3 * p for p in layers(4, 6, 3, 4)))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_threads_change_no_bit():
    (x, classes), parts = rows(5000, 46, 4, 5), layers(46, 48, 4, 6)
    found = []
    for n in (1, 2, 7):
        with kernel_threads(n):
            found.append(perceptron_cross_entropy(x, classes, *parts))
    assert len({value for value, _ in found}) == 1
    assert len({gradient.tobytes() for _, gradient in found}) == 1


def test_fit_tells_classes_that_no_line_divides():
    x = np.random.default_rng(7).normal(size=(2000, 3))
    classes = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    found = fit_perceptron(5.0 + 3.0 * x, classes, 2, np.random.default_rng(8), Options(hidden=12))
    guess = found.scores((5.0 + 3.0 * x).astype(np.float32)).argmax(axis=1)
    assert (guess == classes).mean() > 0.97


def test_the_penalty_draws_both_layers_to_zero_and_leaves_the_odds():
    x, classes = np.random.default_rng(9).normal(size=(600, 2)), np.repeat([0, 0, 1], 200).astype(np.int32)
    found = fit_perceptron(x, classes, 2, np.random.default_rng(10), Options(hidden=4, penalty=1.0))
    assert max(np.abs(found.hidden).max(), np.abs(found.output).max()) < 1e-3
    assert np.diff(found.output_bias)[0] == pytest.approx(np.log(0.5), abs=1e-3)
