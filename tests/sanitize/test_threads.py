"""Kernels, engines and whole registrations from many threads at once; the thread sanitizer ends at a race."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from phantoms import make_phantom
from regweave import _core, engines, register
from regweave.config.settings import preset
from regweave.types import Energy


@pytest.mark.parametrize("name", ["trws", "fastpd", "icm"])
def test_engines_at_once(name):
    line = np.array([-1.0, 0.0, 1.0])
    unary = np.random.default_rng(0).random((6 * 5 * 4, 27))
    energy = Energy(unary, (6, 5, 4), (line, line, line), weight=0.3)
    solve = engines.solver(name)
    alone = solve(energy).energy
    before = _core.set_threads(4)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: solve(energy).energy, range(6)))
    finally:
        _core.set_threads(before)
    assert found == [alone] * 6


def test_registrations_at_once():
    pair = make_phantom(seed=0, shape=(16, 16, 16), spacing_mm=(8.0, 8.0, 8.0)).pair
    settings = preset("default")
    quick = settings.model_copy(
        update={"levels": settings.levels[:1], "refine": settings.refine.model_copy(update={"steps": 2})}
    )

    def run(_: int) -> bytes:
        return register(pair.fixed, pair.moving, config=quick, init="affine", threads=3).transform.field.data.tobytes()

    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(run, range(3)))
    assert found == {run(0)}
