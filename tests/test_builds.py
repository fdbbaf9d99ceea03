"""The builds of the kernels: one is chosen at run time, all give the same numbers but for rounding."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regweave import _core
from regweave._core import builds
from regweave.errors import UsageError


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).parent
RNG = np.random.default_rng(3)
SHAPE = (21, 18, 19)
IMAGES = RNG.random((2, 1, *SHAPE), dtype=np.float32)
FIELDS = RNG.uniform(-2, 2, (2, 3, *SHAPE)).astype(np.float32)
WEIGHT = RNG.random(SHAPE, dtype=np.float32)
LABELS = RNG.integers(0, 4, SHAPE, dtype=np.int32)
MATRIX = np.hstack([np.eye(3) + RNG.normal(0, 0.02, (3, 3)), RNG.normal(0, 0.3, (3, 1))])
SHRUNKEN = np.hstack([np.eye(3) / 2, np.full((3, 1), 4.0)])
BOX = (*(np.array([0, 4, 9], dtype=np.int32),) * 3, (8, 8, 8), *(np.array([-1.5, 0.0, 0.4]),) * 3)
GRID = ((-2.0, -1.5, -2.5), (4.0, 4.5, 5.0))
AXIS = np.array([-1.0, 0.0, 1.0])
ENERGY = (RNG.random((60, 27)), (5, 4, 3), AXIS, AXIS, AXIS, 0.2, None, np.zeros(60, dtype=np.int32))
LAYERS = [RNG.normal(size=shape).astype(np.float32) for shape in ((8, 6, 7, 8), (4, 3, 7, 16))]
WEIGHTS = RNG.normal(size=(24, 24, 3, 3, 3)).astype(np.float32)
INNER = np.pad(np.ones([n - 8 for n in SHAPE], dtype=np.uint8), 4)
PAIRS = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [0, -1, 0]]], dtype=np.int32)
CALLS = {
    **dict.fromkeys(("sad_volume", "ngf_volume", "mean_volume", "overlap_volume", "dwt_volume"), (*IMAGES, *BOX)),
    "ncc_volume": (*IMAGES, *BOX, 1e-4, False),
    "mi_volume": (*(IMAGES * 7), *BOX, 8),
    "warp": (IMAGES[0, 0], MATRIX, FIELDS[0], 0.0, False),
    "warp_valid": (SHAPE, MATRIX, FIELDS[0]),
    "warp_nearest": (LABELS, MATRIX, FIELDS[0], 0),
    "warp_labels": (LABELS, MATRIX, FIELDS[0]),
    "ffd": (FIELDS[0][:, :8, :7, :7].copy(), *GRID, SHAPE),
    "ffd_adjoint": (FIELDS[0], *GRID, (8, 7, 7)),
    "gaussian": (FIELDS[0], (0.7, 1.5, 0.0), 3.0),
    "gradient_magnitude": (IMAGES[0, 0],),
    "gradient_direction": (IMAGES[0, 0], 1.0),
    "window": (IMAGES[0, 0], 0.2, 0.7),
    "lookup": (IMAGES[0, 0], np.array([0.2, 0.4, 0.7]), np.array([0.0, 0.8, 1.0])),
    "block_mean": (IMAGES[0, 0], (2, 3, 4)),
    "mean_square_force": (FIELDS[0],),
    "support_shares": (LABELS, *BOX[:4], 4),
    "support_means": (WEIGHT, *BOX[:4]),
    "hold_back": (FIELDS[0] / 20, FIELDS[1][:, :8, :7, :7] / 2, *GRID, 0.1, 8),
    "descend": (FIELDS[0], FIELDS[1].copy(), WEIGHT.copy(), (1.0, 0.8, 1.25), 3, (0.9, 0.99), 0.3, 0.4, 0.1),
    "compose": tuple(FIELDS),
    "resample_field": (FIELDS[0], (30, 25, 27), (0.7, 0.7, 0.7), (0.1, 0.2, 0.3)),
    "invert": (FIELDS[0] / 20, MATRIX, np.linalg.inv(np.vstack([MATRIX, [0, 0, 0, 1]]))[:3].copy(), SHAPE, 60, 1e-5),
    "jacobian": (FIELDS[0] / 8,),
    "zero_field": (SHAPE,),
    "scale_channels": (FIELDS[0], np.float32([0.5, 2.0, 3.0])),
    "turn_vectors": (FIELDS[0], MATRIX[:, :3].tolist()),
    "list_vectors": (FIELDS[0], 2, 5, 0.0625, 0.04),
    "arrange": (FIELDS[0], (2, 0, 1), (-1, 1, -1)),
    "profiles": (IMAGES[0, 0], 0.4),
    "histogram": (IMAGES[0, 0], np.linspace(0, 1, 33)),
    "enclosed": ((LABELS == 1).astype(np.uint8), 2),
    "surface_net": ((LABELS == 1).astype(np.uint8), (1.0, 2.0, 3.0)),
    "distance_to_surface": (FIELDS.reshape(-1, 3).astype(float), WEIGHT.ravel()[:90].reshape(10, 3, 3).astype(float)),
    "plane_distance": (
        (LABELS[0] == 1).astype(np.uint8),
        np.array([[0.5, 0.5], [2.5, 1.5]]),
        np.array([[2.5, 1.5], [0.5, 0.5]]),
        (1.0, 2.0),
        1.5,
    ),
    "log_spread": (WEIGHT.ravel(), 0.5, 1e-9, 1e9),
    "round_trip": (FIELDS[0], -FIELDS[0], *(m.tolist() for m in (MATRIX, MATRIX, SHRUNKEN, MATRIX))),
    "normal_equations": (FIELDS[0], MATRIX, LABELS, WEIGHT.astype(float), IMAGES[0, 0].astype(float), 4),
    "perceptron_cross_entropy": (
        WEIGHT[:, :, 0].copy(),
        LABELS[:, 0, 0].copy(),
        *(RNG.normal(size=s) for s in ((18, 5), 5, (5, 4), 4)),
    ),
    "weighted_unaries": (
        FIELDS[0, :, :, :, 0].copy(),
        WEIGHT[:, :4, 0].copy(),
        RNG.random((3, 4)),
        np.arange(18.0),
        None,
        0.0,
    ),
    "trws": (*ENERGY, 20, 1e-6),
    "fastpd": (*ENERGY, 20, 4),
    "icm": (*ENERGY, 20),
    "absolute_force": (*IMAGES, WEIGHT, np.zeros_like(FIELDS[0]), 0.01),
    "tensor_force": (*IMAGES, WEIGHT, np.zeros_like(FIELDS[0])),
    "correlation_force": (*IMAGES, WEIGHT, np.zeros_like(FIELDS[0]), 2, 1e-4, True),
    "absolute_slope": (IMAGES[0, 0], IMAGES[1, 0], WEIGHT, np.zeros_like(WEIGHT), 2.0, 0.01),
    "correlation_slope": (IMAGES[0, 0], IMAGES[1, 0], WEIGHT, np.zeros_like(WEIGHT), 2.0, 2, 1e-4, True),
    "pulled_image": (IMAGES[0, 0], np.eye(3, 4), FIELDS[0]),
    "pulled_force": (IMAGES[0, 0], np.eye(3, 4), FIELDS[0], WEIGHT, np.zeros_like(FIELDS[0])),
    "bending_force": (FIELDS[0], np.zeros_like(FIELDS[0]), [[[1.0, 0.5, 0.2]] * 3] * 3),
    "diffusion_force": (FIELDS[0], np.zeros_like(FIELDS[0]), [[1.0, 0.5, 0.2]] * 3),
    "stiff_diffusion_force": (FIELDS[0], WEIGHT, np.zeros_like(FIELDS[0]), [[1.0, 0.5, 0.2]] * 3),
    "joint_fusion": (IMAGES[0, 0], IMAGES[:, 0], np.stack([LABELS, LABELS[::-1]]), INNER, 4, 1, 2, 0.1, 2.0),
    "self_similarity": (IMAGES[0, 0], PAIRS, 1, 0.001, 1000.0),
    "convolution_block": (LAYERS[0], LAYERS[1], (2, 2, 1), WEIGHTS, *WEIGHTS[:2, :24, 1, 1, 1].copy()),
    "max_pool": (LAYERS[0], (2, 3, 1)),
    "class_shares": (LAYERS[0], WEIGHTS[:5, :8, 0, 0, 0].copy(), WEIGHTS[:5, 0, 1, 0, 0].copy()),
}
EXACT = {"support_shares", "warp_valid", "warp_nearest", "warp_labels", "icm", "max_pool"}
"""Kernels whose results are whole numbers, or that only compare what they are given."""
FORCE_PLACE = {"bending_force": 1, "diffusion_force": 1, "stiff_diffusion_force": 2, "pulled_force": 4}
"""Argument that a kernel adds its force to, where it is not the fourth."""
both = pytest.mark.skipif(len(builds.usable()) < 2, reason="one build runs here: no x86-64, or no AVX2")


def _results(build: str, name: str) -> list[np.ndarray]:
    """Return all that a kernel gives, the force that it adds to included."""
    call = [np.array(a) if isinstance(a, np.ndarray) else a for a in CALLS[name]]
    given = getattr(builds.load(build), name)(*call)
    given = given if isinstance(given, tuple) else () if given is None else (given,)
    out = [np.asarray(v, dtype=np.float64) for v in given]
    adds = name.endswith(("_force", "_slope")) and name != "mean_square_force"
    return [*out, *([call[FORCE_PLACE.get(name, 3)]] if adds else [])]


def test_every_kernel_is_compared():
    functions = {n for n, f in vars(_core).items() if callable(f) and not n.startswith("_")}
    assert functions - {"choose", "load", "has_avx2", "set_threads", "threads"} == set(CALLS)


@both
def test_builds_agree_but_for_rounding():
    differ = 0
    for name in CALLS:
        for plain, fast in zip(_results("baseline", name), _results("avx2", name), strict=True):
            if name in EXACT:
                np.testing.assert_array_equal(plain, fast)
            else:  # single precision, sums of up to 500 terms; fused multiply-add keeps a product's last digits
                np.testing.assert_allclose(plain, fast, rtol=2e-5, atol=2e-5 * np.abs(fast).max(), equal_nan=False)
                differ += not np.array_equal(plain, fast)
    assert differ  # or the builds are one


def _about(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from regweave.cli import main; raise SystemExit(main())", "about", "--json"]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_fastest_build_is_taken_and_a_named_one_before_it(monkeypatch):
    monkeypatch.delenv("REGWEAVE_SIMD", raising=False)
    assert builds.choose() == builds.usable()[-1]
    assert json.loads(_about(REGWEAVE_SIMD="baseline").stdout)["kernels"] == "baseline"


def test_a_build_that_is_not_there_is_refused(monkeypatch):
    done = _about(REGWEAVE_SIMD="avx512")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error E159: REGWEAVE_SIMD is 'avx512'" in done.stderr
    monkeypatch.setattr(builds, "usable", lambda: ("baseline",))
    monkeypatch.setenv("REGWEAVE_SIMD", "avx2")
    with pytest.raises(UsageError, match="that run here are baseline"):
        builds.choose()
    monkeypatch.delenv("REGWEAVE_SIMD")
    assert builds.choose() == "baseline"


def test_stub_is_that_of_the_kernels():
    found = _module(HERE / "make_stub.py")
    written = ast.parse(found.STUB.read_text(encoding="utf-8")).body[1:]
    generated = [n for n in ast.parse(found.stub()).body if not isinstance(n, ast.Expr)]
    assert list(map(ast.unparse, written)) == list(map(ast.unparse, generated)), "run `make stub`"
