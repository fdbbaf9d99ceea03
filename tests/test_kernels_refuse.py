"""Every compiled kernel refuses a call that it cannot do: shapes that do not fit, empty axes, numbers without sense."""

import contextlib
import itertools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from regweave import _core, _core_test
from regweave._core.builds import load, usable
from regweave.metrics import mi
from regweave.spatial.control_grid import ControlGrid

NAN, INF = float("nan"), float("inf")
EMPTY = [(0, 5, 6), (4, 0, 6), (4, 5, 0)]


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).random(shape).astype(np.float32)


def starts(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def offsets(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def line(*values: float) -> np.ndarray:
    return offsets(*(values or (-1.0, 0.0, 1.0)))


def fusion_call() -> dict[str, Any]:
    labels = np.zeros((2, 9, 9, 9), dtype=np.int32)
    labels[1, 3:6] = 1
    arrays = {"target": f32(9, 9, 9), "images": f32(2, 9, 9, 9), "labels": labels, "decide": labels[1].astype(np.uint8)}
    return {**arrays, "classes": 2, "patch": 1, "reach": 1, "alpha": 0.1, "beta": 2.0}


def volume_call() -> dict[str, Any]:
    d = line(-0.5, 0.0, 0.5)
    box = {"sx": starts(0, 4), "sy": starts(1), "sz": starts(0, 2, 4), "size": (4, 4, 4)}
    return {"fixed": f32(1, 8, 8, 8), "moved": f32(1, 8, 8, 8), **box, "dx": d, "dy": d, "dz": d}


def solver_call() -> dict[str, Any]:
    energy = {"unary": np.random.default_rng(0).random((12, 27)), "shape": (2, 3, 2), "x": line(), "y": line()}
    start = {"z": line(), "weight": 1.0, "base": None, "init": np.zeros(12, dtype=np.int32)}
    return {**energy, **start, "max_iter": 3}


def force_call() -> dict[str, Any]:
    grid = (4, 5, 6)
    return {"fixed": f32(1, *grid), "moved": f32(1, *grid), "weight": f32(*grid), "force": f32(3, *grid)}


def slope_call() -> dict[str, Any]:
    grid = (4, 5, 6)
    return {"fixed": f32(*grid), "moved": f32(*grid), "weight": f32(*grid), "slope": f32(*grid), "scale": 2.0}


MATRIX = np.eye(4)[:3].copy()
FIELD = f32(3, 4, 5, 6)
VOLUMES = ("sad_volume", "ngf_volume", "mean_volume", "overlap_volume", "ncc_volume", "mi_volume", "dwt_volume")
MAPS = ("place", "there", "to_voxel", "back")
LATTICE = {"origin": (0.0, 0.0, 0.0), "spacing": (2.0, 2.0, 2.0)}

GOOD: dict[str, Callable[[], dict[str, Any]]] = {
    "joint_fusion": fusion_call,
    **dict.fromkeys(VOLUMES, volume_call),
    "ncc_volume": lambda: {**volume_call(), "floor": 1e-4, "squared": False},
    "mi_volume": lambda: {**volume_call(), "bins": 8},
    "warp": lambda: {"image": f32(4, 5, 6), "matrix": MATRIX, "field": FIELD, "fill": 0.0, "clamp": False},
    "warp_valid": lambda: {"shape": (4, 5, 6), "matrix": MATRIX, "field": FIELD},
    "warp_nearest": lambda: {
        "labels": np.ones((4, 5, 6), dtype=np.int32), "matrix": MATRIX, "field": FIELD, "fill": 0
    },
    "warp_labels": lambda: {"labels": np.ones((4, 5, 6), dtype=np.int32), "matrix": MATRIX, "field": FIELD},
    "ffd": lambda: {"coefficients": f32(3, 3, 3, 3), **LATTICE, "shape": (4, 5, 6)},
    "ffd_adjoint": lambda: {"dense": FIELD, **LATTICE, "nodes": (3, 3, 3)},
    "gaussian": lambda: {"images": FIELD, "sigma": (1.0, 0.0, 2.0), "truncate": 3.0},
    "gradient_magnitude": lambda: {"image": f32(4, 5, 6)},
    "gradient_direction": lambda: {"image": f32(4, 5, 6), "edge": 1.0},
    "window": lambda: {"image": f32(4, 5, 6), "low": 0.2, "high": 0.8},
    "lookup": lambda: {"image": f32(4, 5, 6), "knots": line(), "values": line()},
    "block_mean": lambda: {"image": f32(4, 5, 6), "factors": (2, 3, 1)},
    "mean_square_force": lambda: {"force": FIELD},
    "support_shares": lambda: {
        "numbers": np.ones((4, 5, 6), dtype=np.int32), "sx": starts(0, 2), "sy": starts(1), "sz": starts(0, 3),
        "size": (2, 3, 3), "n": 2,
    },
    "support_means": lambda: {
        "values": f32(4, 5, 6), "sx": starts(0, 2), "sy": starts(1), "sz": starts(0, 3), "size": (2, 3, 3)
    },
    "hold_back": lambda: {"u": FIELD, "update": f32(3, 3, 3, 3), **LATTICE, "least": 0.1, "attempts": 2},
    "descend": lambda: {
        "gradient": FIELD, "first": f32(3, 4, 5, 6), "second": f32(4, 5, 6), "stretch": (1.0, 1.0, 1.0), "done": 1,
        "keep": (0.9, 0.99), "length": 0.3, "reach": 0.4, "quiet": 0.1,
    },
    "compose": lambda: {"u": FIELD, "d": FIELD},
    "resample_field": lambda: {"u": FIELD, "shape": (4, 5, 6), "scale": (1.0, 1.0, 1.0), "offset": (0.0, 0.0, 0.0)},
    "invert": lambda: {
        "u": FIELD, "matrix": MATRIX, "inverse_matrix": MATRIX, "shape": (4, 5, 6), "max_iter": 5, "tolerance": 1e-3
    },
    "jacobian": lambda: {"u": FIELD},
    "zero_field": lambda: {"shape": (4, 5, 6)},
    "scale_channels": lambda: {"images": FIELD, "factors": f32(3)},
    "turn_vectors": lambda: {"vectors": FIELD, "matrix": [[1.0] * 3] * 3},
    "list_vectors": lambda: {"vectors": FIELD, "first": 1, "planes": 2, "step": 0.5, "bound": 0.25},
    "arrange": lambda: {"images": FIELD, "order": (2, 0, 1), "steps": (1, -1, 1)},
    "profiles": lambda: {"image": f32(4, 5, 6), "level": 0.5},
    "histogram": lambda: {"image": f32(4, 5, 6), "edges": line()},
    "enclosed": lambda: {"mask": np.ones((4, 5, 6), dtype=np.uint8), "axes": 2},
    "plane_distance": lambda: {
        "inside": np.ones((4, 5), dtype=np.uint8), "start": np.ones((3, 2)), "end": np.zeros((3, 2)),
        "step": (1.0, 2.0), "band": 2.5,
    },
    "surface_net": lambda: {"mask": np.ones((4, 5, 6), dtype=np.uint8), "spacing": (1.0, 2.0, 3.0)},
    "distance_to_surface": lambda: {"points": np.ones((7, 3)), "triangles": np.eye(3)[None] * np.ones((2, 1, 1))},
    "log_spread": lambda: {"values": f32(7), "shift": 0.0, "least": 1e-9, "most": 1e9},
    "round_trip": lambda: {"u": FIELD, "v": FIELD, **dict.fromkeys(MAPS, MATRIX.tolist())},
    "normal_equations": lambda: {
        "gradient": FIELD, "matrix": MATRIX, "bins": np.ones((4, 5, 6), dtype=np.int32), "weight": np.ones((4, 5, 6)),
        "residual": np.ones((4, 5, 6)), "n_bins": 4,
    },
    "trws": lambda: {**solver_call(), "tol": 1e-4},
    "fastpd": lambda: {**solver_call(), "bound_passes": 2},
    "icm": solver_call,
    "weighted_unaries": lambda: {
        "costs": f32(2, 5, 3), "shares": f32(5, 4), "matrix": np.ones((2, 4)), "constant": line(), "loss": None,
        "coefficient": 0.0,
    },
    "binary_moves": lambda: {**{k: v for k, v in solver_call().items() if k != "max_iter"}, "expand": False},
    "grid_maxflow": lambda: {"terminals": line(), "arcs": np.ones((3, 6)), "shape": (3, 1, 1)},
    "separable_message": lambda: {
        "f": np.ones((3, 3, 3)), "x": line(), "y": line(), "z": line(), "weight": 1.0, "shift": (0.0, 0.0, 0.0),
        "use_envelope": True,
    },
    "absolute_force": lambda: {**force_call(), "epsilon": 0.01},
    "tensor_force": force_call,
    "correlation_force": lambda: {**force_call(), "radius": 1, "floor": 1e-4, "squared": False},
    "absolute_slope": lambda: {**slope_call(), "epsilon": 0.01},
    "correlation_slope": lambda: {**slope_call(), "radius": 1, "floor": 1e-4, "squared": False},
    "pulled_image": lambda: {"image": f32(7, 5, 3), "matrix": MATRIX, "u": FIELD},
    "pulled_force": lambda: {
        "image": f32(7, 5, 3), "matrix": MATRIX, "u": FIELD, "slope": f32(4, 5, 6), "force": f32(3, 4, 5, 6)
    },
    "bending_force": lambda: {"u": FIELD, "force": f32(3, 4, 5, 6), "factor": [[[1.0] * 3] * 3] * 3},
    "diffusion_force": lambda: {"u": FIELD, "force": f32(3, 4, 5, 6), "factor": [[1.0] * 3] * 3},
    "convolution_block": lambda: {
        "image": f32(4, 2, 6, 3), "coarse": f32(2, 1, 6, 5), "stride": (2, 2, 1), "weight": f32(16, 8, 3, 3, 3),
        "scale": f32(16), "shift": f32(16),
    },
    "max_pool": lambda: {"image": f32(4, 2, 6, 3), "stride": (2, 1, 3)},
    "perceptron_cross_entropy": lambda: {
        "x": f32(6, 4), "classes": np.arange(6, dtype=np.int32) % 3, "hidden": np.ones((4, 5)),
        "hidden_bias": np.ones(5), "output": np.ones((5, 3)), "output_bias": np.ones(3),
    },
    "class_shares": lambda: {"image": f32(4, 2, 6, 3), "weight": f32(5, 3), "bias": f32(5)},
    "stiff_diffusion_force": lambda: {
        "u": FIELD, "stiffness": f32(4, 5, 6), "force": f32(3, 4, 5, 6), "factor": [[1.0] * 3] * 3
    },
    "self_similarity": lambda: {
        "image": f32(4, 5, 6), "pairs": np.ones((2, 2, 3), dtype=np.int32), "radius": 1, "low": 0.001, "high": 1000.0
    },
}  # fmt: skip


def on_grid(*grids: tuple[int, ...], field: bool = True) -> list[np.ndarray]:
    return [f32(3, *g) if field else f32(*g) for g in grids]


TWO = {"fixed": f32(2, 8, 8, 8), "moved": f32(2, 8, 8, 8)}
BAD_VOLUME: list[dict[str, Any]] = [
    *({"fixed": f32(1, *g), "moved": f32(1, *g)} for g in ((0, 8, 8), (8, 0, 8), (8, 8, 0))),
    {"fixed": f32(0, 8, 8, 8), "moved": f32(0, 8, 8, 8)},
    {"moved": f32(1, 8, 8, 7)},
    *({"size": s} for s in ((0, 4, 4), (4, -4, 4), (4, 4, 12), (2**31 - 4, 4, 4), (-(2**31), 4, 4))),
    *({"sx": starts(*s)} for s in ((4, 0), (-1, 4), (0, 5), (-(2**31), 0), (0, 2**31 - 1), ())),
    *({"dz": offsets(*d)} for d in ((NAN,), (INF,), (0.0, -INF), ())),
]
BAD_SOLVER: list[dict[str, Any]] = [
    *({"unary": np.zeros(s)} for s in ((12, 26), (11, 27), (0, 27), (12, 0))),
    *({"unary": np.full((12, 27), v)} for v in (NAN, INF, 1e300)),
    *({"shape": s} for s in ((2, 3, 3), (0, 3, 2), (-2, -3, 2), (2**16, 2**16, 2**16), (2**30, 4, 4))),
    *({"x": offsets(*v)} for v in ((), (0.0, 1.0), (NAN, 0.0, 1.0), (-INF, 0.0, INF))),
    *({"weight": v} for v in (-1.0, NAN, INF, 1e300)),
    *({"base": v} for v in (np.zeros((11, 3)), np.zeros((12, 2)), np.full((12, 3), NAN))),
    *({"init": np.array(v, dtype=np.int32)} for v in ([0] * 11, [27] + [0] * 11, [-1] + [0] * 11)),
    {"max_iter": 0},
]
BAD_FORCE: list[dict[str, Any]] = [
    *(
        {"fixed": f32(1, *g), "moved": f32(1, *g), "weight": f32(*g), "force": f32(3, *g)}
        for g in ((0, 5, 6), (4, 0, 6), (4, 5, 0))
    ),
    {"fixed": f32(0, 4, 5, 6), "moved": f32(0, 4, 5, 6)},
    {"moved": f32(1, 4, 5, 7)},
    {"weight": f32(4, 5, 7)},
    {"force": f32(2, 4, 5, 6)},
]
BAD_SLOPE: list[dict[str, Any]] = [
    *({key: f32(*g) for key in ("fixed", "moved", "weight", "slope")} for g in EMPTY),
    *({key: f32(4, 5, 7)} for key in ("moved", "weight", "slope")),
    *({"scale": v} for v in (NAN, INF)),
]
BAD_FIELD: list[dict[str, Any]] = [{"field": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))]
BAD_MATRIX: list[dict[str, Any]] = [{"matrix": v} for v in (np.eye(4), np.full((3, 4), NAN), np.full((3, 4), INF))]
BAD_SHAPE = [(0, 5, 6), (4, 5, 0), (2**22, 2**22, 2**22), (2**40, 1, 1), (2**63, 2, 1)]
BAD_LATTICE: list[dict[str, Any]] = [
    *({"spacing": (2.0, v, 2.0)} for v in (0.0, -1.0, NAN, INF, 5e-324)),
    *({"origin": (v, 0.0, 0.0)} for v in (NAN, INF)),
]
BAD: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(VOLUMES, BAD_VOLUME),
    "ncc_volume": [*BAD_VOLUME, *({"floor": v} for v in (0.0, -1.0, NAN)), TWO],
    "mi_volume": [*BAD_VOLUME, {"bins": 9}, TWO],
    "dwt_volume": [*BAD_VOLUME, {"size": (4, 4, 3)}, TWO],
    "warp": [*BAD_FIELD, *BAD_MATRIX, *({"image": v} for v in on_grid(*EMPTY, field=False))],
    "warp_valid": [*BAD_FIELD, *BAD_MATRIX, *({"shape": v} for v in BAD_SHAPE)],
    "warp_nearest": [*BAD_FIELD, *BAD_MATRIX, {"labels": np.ones((0, 5, 6), dtype=np.int32)}],
    "warp_labels": [*BAD_FIELD, *BAD_MATRIX, {"labels": np.ones((4, 5, 0), dtype=np.int32)}],
    "ffd": [
        *BAD_LATTICE, *({"shape": v} for v in BAD_SHAPE),
        *({"coefficients": v} for v in (f32(3, 0, 3, 3), f32(0, 3, 3, 3))),
    ],
    "ffd_adjoint": [*BAD_LATTICE, *({"nodes": v} for v in BAD_SHAPE), *({"dense": v} for v in on_grid(*EMPTY))],
    "gaussian": [
        *({"images": v} for v in on_grid(*EMPTY)), *({"sigma": (1.0, v, 1.0)} for v in (-1.0, NAN, INF, 1e6)),
        {"truncate": 0.0}, {"truncate": NAN},
    ],
    "gradient_magnitude": [{"image": v} for v in on_grid(*EMPTY, field=False)],
    "gradient_direction": [
        *({"image": v} for v in on_grid(*EMPTY, field=False)), *({"edge": v} for v in (-1.0, NAN, INF))
    ],
    "window": [*({"image": v} for v in on_grid(*EMPTY, field=False)), {"low": NAN}, {"high": INF}, {"high": 0.2}],
    "lookup": [
        *({"image": v} for v in on_grid(*EMPTY, field=False)),
        {"knots": line(0.0, 1.0)}, {"knots": line(0.0, 2.0, 1.0)},
        {"knots": offsets(), "values": offsets()}, {"knots": line(0.0, NAN, 1.0)}, {"knots": line(0.0, 0.0, 1.0)},
    ],
    "block_mean": [
        *({"image": v} for v in on_grid(*EMPTY, field=False)), *({"factors": v} for v in ((0, 1, 1), (1, 2**40, 1)))
    ],
    "mean_square_force": [{"force": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))],
    "support_shares": [
        *({"numbers": np.ones(g, dtype=np.int32)} for g in EMPTY), {"numbers": np.full((4, 5, 6), 2, dtype=np.int32)},
        {"numbers": np.full((4, 5, 6), -1, dtype=np.int32)}, {"n": 0}, {"n": 2**20}, {"sx": starts(0, 3)},
        {"sy": starts(-1)}, {"sz": starts()}, {"size": (0, 3, 3)}, {"size": (2, 6, 3)},
    ],
    "support_means": [
        *({"values": v} for v in on_grid(*EMPTY, field=False)), {"sx": starts(0, 3)}, {"sy": starts(-1)},
        {"sz": starts()}, {"size": (0, 3, 3)}, {"size": (2, 6, 3)},
    ],
    "hold_back": [
        *BAD_LATTICE, *({"u": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))), {"update": f32(2, 3, 3, 3)},
        {"update": f32(3, 0, 3, 3)}, {"attempts": 0},
    ],
    "descend": [
        *({"gradient": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6), f32(3, 4, 5, 7))), {"second": f32(4, 5, 7)},
        {"first": f32(2, 4, 5, 6)}, {"stretch": (1.0, 0.0, 1.0)}, {"stretch": (NAN, 1.0, 1.0)}, {"done": 0},
        {"keep": (1.0, 0.99)}, {"keep": (0.9, NAN)}, {"length": INF}, {"reach": -1.0}, {"quiet": NAN},
    ],
    "compose": [*({"u": v, "d": v} for v in on_grid(*EMPTY)), {"u": f32(3, 4, 5, 7)}, {"u": f32(2, 4, 5, 6)}],
    "resample_field": [
        *({"shape": v} for v in BAD_SHAPE), *({"u": v} for v in (*on_grid(*EMPTY), f32(0, 4, 5, 6))),
        {"scale": (NAN, 1.0, 1.0)}, {"offset": (0.0, INF, 0.0)},
    ],
    "invert": [
        *BAD_MATRIX, *({"shape": v} for v in BAD_SHAPE), *({"u": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))),
        {"max_iter": 0}, {"tolerance": -1.0}, {"tolerance": NAN}, {"inverse_matrix": np.full((3, 4), NAN)},
    ],
    "jacobian": [{"u": v} for v in (*on_grid(*EMPTY, (0, 0, 0)), f32(2, 4, 5, 6), f32(0, 4, 5, 6))],
    "zero_field": [{"shape": v} for v in BAD_SHAPE],
    "scale_channels": [*({"images": v} for v in on_grid(*EMPTY)), {"factors": f32(2)}],
    "turn_vectors": [
        *({"vectors": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))), {"matrix": [[NAN] * 3] * 3},
    ],
    "list_vectors": [
        *({"vectors": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))), {"first": 5}, {"first": 7}, {"planes": 0},
        {"planes": 7}, {"step": -1.0}, {"step": NAN}, {"bound": -1.0}, {"bound": INF},
    ],
    "arrange": [
        *({"images": v} for v in on_grid(*EMPTY)), {"steps": (1, 0, 1)}, {"steps": (1, 1, 2)},
        *({"order": v} for v in ((0, 1, 1), (0, 0, 1), (0, 1, 0), (0, 1, 3))),
    ],
    "profiles": [{"image": v} for v in on_grid(*EMPTY, field=False)],
    "histogram": [
        *({"image": v} for v in on_grid(*EMPTY, field=False)), {"edges": offsets(0.0)}, {"edges": line(0.0, NAN)},
        {"edges": line(0.0, 0.0)}, {"edges": line(1.0, 0.0)},
    ],
    "enclosed": [*({"mask": np.ones(g, dtype=np.uint8)} for g in EMPTY), {"axes": 0}, {"axes": 4}],
    "plane_distance": [
        {"inside": np.ones((0, 5), dtype=np.uint8)}, {"inside": np.ones((4, 0), dtype=np.uint8)},
        {"start": np.ones((2, 2))}, {"start": np.ones((3, 3))}, {"end": np.full((3, 2), NAN)},
        {"start": np.full((3, 2), INF)}, {"step": (0.0, 1.0)}, {"step": (1.0, NAN)}, {"band": -1.0}, {"band": INF},
    ],
    "surface_net": [
        *({"mask": np.ones(g, dtype=np.uint8)} for g in EMPTY),
        *({"spacing": v} for v in ((1.0, 0.0, 1.0), (1.0, 1.0, NAN), (INF, 1.0, 1.0), (1.0, -1.0, 1.0))),
    ],
    "distance_to_surface": [
        {"points": np.ones((7, 2))}, {"points": np.full((7, 3), NAN)}, {"triangles": np.ones((0, 3, 3))},
        {"triangles": np.ones((2, 2, 3))}, {"triangles": np.ones((2, 3, 2))}, {"triangles": np.full((2, 3, 3), INF)},
    ],
    "log_spread": [
        {"values": f32(0)}, {"least": 0.0}, {"least": NAN}, {"most": INF}, {"shift": NAN}, {"least": 2.0, "most": 1.0}
    ],
    "round_trip": [
        *({k: v} for k in "uv" for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))),
        *({name: np.full((3, 4), NAN).tolist()} for name in MAPS),
    ],
    "normal_equations": [
        *BAD_MATRIX, *({"gradient": v} for v in (*on_grid(*EMPTY), f32(2, 4, 5, 6))), {"n_bins": 0}, {"n_bins": 2000},
        {"weight": np.ones((4, 5, 7))}, {"residual": np.ones((3, 5, 6))}, {"bins": np.ones((4, 0, 6), dtype=np.int32)},
    ],
    "trws": [*BAD_SOLVER, {"tol": NAN}, {"tol": -1.0}],
    "fastpd": [*BAD_SOLVER, {"bound_passes": -1}],
    "icm": BAD_SOLVER,
    "weighted_unaries": [
        *({"costs": f32(*s)} for s in ((3, 5, 3), (2, 4, 3), (2, 5, 2), (2, 0, 3), (2, 5, 0))),
        *({"shares": f32(*s)} for s in ((6, 4), (5, 3), (14, 4))), *({"loss": f32(*s)} for s in ((5, 2), (4, 3))),
        {"matrix": np.ones((2, 3))}, {"constant": line(0.0, 1.0)},
    ],
    "binary_moves": [
        {"unary": np.zeros((11, 27))}, {"shape": (2, 3, 3)}, {"x": offsets()}, {"base": np.zeros((11, 3))},
        *({"init": np.array(v, dtype=np.int32)} for v in ([0] * 11, [27] + [0] * 11, [-1] + [0] * 11)),
    ],
    "grid_maxflow": [
        {"terminals": line(0.0, 1.0)}, {"arcs": np.ones((3, 5))}, {"arcs": np.ones((2, 6))}, {"shape": (3, 0, 1)},
        {"shape": (3, -1, -1)}, {"arcs": np.full((3, 6), NAN)}, {"arcs": np.full((3, 6), -1.0)},
        {"terminals": line(0.0, INF, 1.0)}, {"shape": (2**16, 2**16, 2**16)},
    ],
    "separable_message": [{"x": offsets()}, {"f": np.ones((3, 3, 2))}, {"f": np.ones((9, 3, 1))}],
    "absolute_force": [*BAD_FORCE, *({"epsilon": v} for v in (0.0, -1.0, NAN))],
    "tensor_force": BAD_FORCE,
    "correlation_force": [
        *BAD_FORCE, *({"radius": v} for v in (-1, 2**31 - 1)), *({"floor": v} for v in (0.0, NAN)),
        {"fixed": f32(2, 4, 5, 6), "moved": f32(2, 4, 5, 6)},
    ],
    "absolute_slope": [*BAD_SLOPE, *({"epsilon": v} for v in (0.0, -1.0, NAN))],
    "correlation_slope": [*BAD_SLOPE, *({"radius": v} for v in (-1, 2**31 - 1)), *({"floor": v} for v in (0.0, NAN))],
    "pulled_image": [
        *BAD_MATRIX, *({"image": f32(*shape)} for shape in EMPTY), *({"u": v} for v in on_grid(*EMPTY)),
        {"u": f32(2, 4, 5, 6)},
    ],
    "pulled_force": [
        *BAD_MATRIX, *({"image": f32(*shape)} for shape in EMPTY), {"u": f32(2, 4, 5, 6)}, {"slope": f32(4, 5, 7)},
        {"force": f32(3, 4, 5, 7)}, {"force": f32(2, 4, 5, 6)},
    ],
    "bending_force": [
        *({"u": v, "force": v.copy()} for v in on_grid(*EMPTY)), {"force": f32(3, 4, 5, 7)}, {"u": f32(2, 4, 5, 6)},
        {"factor": [[[NAN] * 3] * 3] * 3},
    ],
    "diffusion_force": [
        *({"u": v, "force": v.copy()} for v in on_grid(*EMPTY)), {"force": f32(3, 4, 5, 7)}, {"u": f32(2, 4, 5, 6)},
        {"factor": [[NAN] * 3] * 3},
    ],
    "convolution_block": [
        *({"image": f32(*g, 3), "coarse": None} for g in EMPTY), {"image": f32(4, 2, 6, 2)}, {"image": f32(5, 2, 6, 3)},
        *({"coarse": v} for v in (None, f32(2, 1, 5, 5), f32(2, 0, 6, 5), f32(2, 1, 6, 0), f32(2, 1, 6, 4))),
        *({"stride": v} for v in ((2, 2, 2), (0, 2, 1), (2**63, 2, 1), (2**63 + 2, 2, 1))),
        *({"weight": f32(*s)} for s in ((16, 8, 3, 3, 1), (16, 7, 3, 3, 3), (0, 8, 3, 3, 3))),
        {"weight": f32(12, 8, 3, 3, 3), "scale": f32(12), "shift": f32(12)}, {"scale": f32(8)}, {"shift": f32(17)},
    ],
    "max_pool": [
        *({"image": f32(*g, 3)} for g in EMPTY), {"image": f32(4, 2, 6, 0)},
        *({"stride": v} for v in ((3, 1, 1), (0, 1, 1), (1, 1, 12), (2**63, 1, 1))),
    ],
    "perceptron_cross_entropy": [
        *({"x": f32(*s)} for s in ((0, 4), (7, 4), (6, 3), (6, 0))),
        *({"classes": np.array(v, dtype=np.int32)} for v in ([0] * 5, [3] + [0] * 5, [-1] + [0] * 5)),
        *({"hidden": np.ones(s)} for s in ((3, 5), (4, 6), (4, 0))), {"hidden_bias": np.ones(4)},
        *({"output": np.ones(s)} for s in ((4, 3), (5, 2), (5, 0))), {"output_bias": np.ones(4)},
    ],
    "class_shares": [
        *({"image": f32(*g, 3)} for g in EMPTY), {"weight": f32(5, 2)}, {"bias": f32(4)},
        {"weight": f32(0, 3), "bias": f32(0)},
    ],
    "stiff_diffusion_force": [
        *({"u": v, "force": v.copy()} for v in on_grid(*EMPTY)), {"force": f32(3, 4, 5, 7)}, {"u": f32(2, 4, 5, 6)},
        {"factor": [[NAN] * 3] * 3}, {"stiffness": f32(4, 5, 7)},
    ],
    "joint_fusion": [
        *({"target": f32(*shape)} for shape in (*EMPTY, (9, 9, 8))), {"images": f32(0, 9, 9, 9)},
        {"images": f32(3, 9, 9, 9)}, {"labels": np.full((2, 9, 9, 9), 2, dtype=np.int32)},
        {"labels": np.full((2, 9, 9, 9), -1, dtype=np.int32)}, {"decide": np.ones((9, 9, 8), dtype=np.uint8)},
        *({"classes": v} for v in (0, 1, 2**31 - 1)), *({"patch": v} for v in (0, 2, 2**31 - 1)),
        *({"reach": v} for v in (-1, 3, 2**31 - 1)), *({"alpha": v} for v in (0.0, NAN, INF)),
        *({"beta": v} for v in (-1.0, NAN, INF)),
    ],
    "self_similarity": [
        *({"image": v} for v in on_grid(*EMPTY, field=False)), {"pairs": np.ones((0, 2, 3), dtype=np.int32)},
        {"pairs": np.ones((2, 3, 2), dtype=np.int32)}, {"pairs": np.full((2, 2, 3), 2**31 - 1, dtype=np.int32)},
        {"radius": -1}, {"radius": 2**31 - 1}, {"low": NAN}, {"high": INF}, {"low": 2.0, "high": 1.0},
    ],
}  # fmt: skip


def kernel(name: str) -> Callable[..., Any]:
    return getattr(_core if hasattr(_core, name) else _core_test, name)


def kernels_of(module: ModuleType) -> set[str]:
    names = {n for n, f in vars(module).items() if callable(f) and not n.startswith("_")}
    return names - {"set_threads", "threads", "has_avx2"}


def test_every_kernel_is_in_the_table():
    tested = kernels_of(_core_test)
    assert tested == {"binary_moves", "grid_maxflow", "separable_message"}
    for build in usable():
        assert kernels_of(load(build)) | tested == set(GOOD) == set(BAD)


def test_wrong_calls_are_refused_and_the_call_that_they_are_made_from_is_taken():
    for name, make in GOOD.items():
        kernel(name)(*make().values())
        for change in BAD[name]:
            call = {**make(), **change}
            assert set(call) == set(make()), "the table changes an argument that the kernel does not have"
            print(name, change)  # noqa: T201  # pytest shows the last one where it was taken
            with pytest.raises((ValueError, TypeError)):
                kernel(name)(*call.values())


def _spoiled(name: str, value: Any, rng: np.random.Generator) -> Any:
    """Return another value of the same type: other sizes, other numbers, numbers that are none."""
    numbers = [NAN, INF, -INF, 1e300, -1e300, 5e-324, -1.0, 0.0, 0.5, 3.0]
    if isinstance(value, np.ndarray) and rng.random() < 0.5:
        return np.resize(value, tuple(int(n) for n in rng.integers(0, 7, value.ndim))).astype(value.dtype)
    if isinstance(value, np.ndarray):
        out = value.copy()
        for _ in range(min(3, out.size)):
            place = int(rng.integers(out.size))
            if value.dtype.kind in "iu":
                limits = np.iinfo(value.dtype)
                out.flat[place] = rng.choice([limits.min, max(-1, limits.min), 0, 1, 5, limits.max])
            else:
                out.flat[place] = np.clip(rng.choice(numbers), -3e38, 3e38)
        return out
    if isinstance(value, tuple | list) and value:
        out = list(value)
        place = int(rng.integers(len(out)))
        out[place] = _spoiled(name, out[place], rng)
        return type(value)(out)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        # As many iterations as asked for are done: that is no fault.
        return int(rng.choice([-1, 0, 1, 2, 7, 300] + ([] if "iter" in name or "passes" in name else [2**31 - 1])))
    return float(rng.choice(numbers)) if isinstance(value, float) else value


def test_random_calls_end_in_a_result_or_a_refusal():
    seed, calls = int(os.environ.get("FUZZ_SEED") or 0), int(os.environ.get("FUZZ_CALLS") or 40)
    for (place, name), number in itertools.product(enumerate(GOOD), range(calls)):
        rng = np.random.default_rng([seed, number, place])
        call = GOOD[name]()
        for key in rng.choice(list(call), int(rng.integers(1, 4))):
            call[key] = _spoiled(key, call[key], rng)
        with contextlib.suppress(ValueError, TypeError, MemoryError):
            kernel(name)(*call.values())


def test_a_force_that_is_an_input_is_refused():
    for name in ["absolute_force", "tensor_force", "correlation_force"]:
        force = f32(3, 4, 5, 6)
        for argument, view in (("fixed", force[:1]), ("moved", force[1:2]), ("weight", force[2])):
            with pytest.raises(ValueError, match="share memory"):
                kernel(name)(*{**GOOD[name](), "force": force, argument: view}.values())


def test_numbers_far_outside_or_none_at_all_see_the_edge():
    def cost(shift: float) -> np.ndarray:
        d = {axis: offsets(0.0, s) for axis, s in (("dx", shift), ("dy", -shift), ("dz", shift))}
        return np.asarray(_core.sad_volume(*{**volume_call(), **d}.values()))

    for far in (30.0, 1e9, 1e300):
        np.testing.assert_array_equal(cost(far), cost(9.0))
    image, field = f32(4, 5, 6), np.zeros((3, 4, 5, 6), dtype=np.float32)
    for value, clamped in ((3e38, 3), (-3e38, 0)):
        field[0] = value
        np.testing.assert_array_equal(_core.warp(image, MATRIX, field, 0.0, True), image[[clamped] * 4])
    for value in (NAN, INF, -INF, 3e38):
        field[0] = value
        assert np.isin(_core.warp(image, MATRIX, field, 0.0, True), image).all()
        assert (_core.warp(image, MATRIX, field, -1.0, False) == -1).all()
        assert not _core.warp_valid((4, 5, 6), MATRIX, field).any()
    call = GOOD["mi_volume"]()
    for image in ("fixed", "moved"):
        call[image] = call[image] * 8
    holes = {k: call[k].copy() for k in ("fixed", "moved")}
    zeros = {k: call[k].copy() for k in ("fixed", "moved")}
    holes["fixed"][..., 3], zeros["fixed"][..., 3] = NAN, 0
    whole = dict.fromkeys(("dx", "dy", "dz"), offsets(0.0))
    np.testing.assert_array_equal(
        _core.mi_volume(*{**call, **holes, **whole}.values()), _core.mi_volume(*{**call, **zeros, **whole}.values())
    )


def test_histograms_of_large_supports():
    """More voxels of one pair of bins than 16 bits count, as one control spacing of fine images has."""
    image = np.zeros((44, 42, 40), dtype=np.float32)
    image[:3] = f32(3, 42, 40)
    grid = ControlGrid(image.shape, (1, 1, 1), np.zeros(3), np.full(3, 44.0), image.shape)
    found = mi.volume(image[None], image[None] ** 2, grid, (np.zeros(1),) * 3, mi.Options(bins=16))
    expected = mi.cost(image[None], image[None] ** 2, grid, mi.Options(bins=16))
    np.testing.assert_allclose(found[:, 0], expected, atol=2e-6)
    assert expected[0] > 0.01
