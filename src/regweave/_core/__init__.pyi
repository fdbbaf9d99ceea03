"""Types of the compiled kernels; written by `make stub`."""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

def has_avx2() -> bool: ...
def set_threads(n: int) -> int: ...
def threads() -> int: ...
def bending_force(
    u: NDArray[numpy.float32],
    force: NDArray[numpy.float32],
    factor: Sequence[Sequence[Sequence[float] | NDArray[numpy.float64]]],
) -> float: ...
def absolute_slope(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    weight: NDArray[numpy.float32],
    slope: NDArray[numpy.float32],
    scale: float,
    epsilon: float,
) -> float: ...
def correlation_slope(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    weight: NDArray[numpy.float32],
    slope: NDArray[numpy.float32],
    scale: float,
    radius: int,
    floor: float,
    squared: bool,
) -> float: ...
def pulled_image(
    image: NDArray[numpy.float32], matrix: NDArray[numpy.float64], u: NDArray[numpy.float32]
) -> NDArray[numpy.float32]: ...
def pulled_force(
    image: NDArray[numpy.float32],
    matrix: NDArray[numpy.float64],
    u: NDArray[numpy.float32],
    slope: NDArray[numpy.float32],
    force: NDArray[numpy.float32],
) -> None: ...
def normal_equations(
    gradient: NDArray[numpy.float32],
    matrix: NDArray[numpy.float64],
    bins: NDArray[numpy.int32],
    weight: NDArray[numpy.float64],
    residual: NDArray[numpy.float64],
    n_bins: int,
) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64]]: ...
def sad_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
) -> NDArray[numpy.float32]: ...
def ngf_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
) -> NDArray[numpy.float32]: ...
def mean_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
) -> NDArray[numpy.float32]: ...
def overlap_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
) -> NDArray[numpy.float32]: ...
def ncc_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
    floor: float,
    squared: bool,
) -> NDArray[numpy.float32]: ...
def mi_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
    bins: int,
) -> NDArray[numpy.float32]: ...
def dwt_volume(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    dx: NDArray[numpy.float64],
    dy: NDArray[numpy.float64],
    dz: NDArray[numpy.float64],
) -> NDArray[numpy.float32]: ...
def warp(
    image: NDArray[numpy.float32],
    matrix: NDArray[numpy.float64],
    field: NDArray[numpy.float32],
    fill: float,
    clamp: bool,
) -> NDArray[numpy.float32]: ...
def warp_valid(
    shape: Sequence[int], matrix: NDArray[numpy.float64], field: NDArray[numpy.float32]
) -> NDArray[numpy.uint8]: ...
def warp_nearest(
    labels: NDArray[numpy.int32], matrix: NDArray[numpy.float64], field: NDArray[numpy.float32], fill: int
) -> NDArray[numpy.int32]: ...
def warp_labels(
    labels: NDArray[numpy.int32], matrix: NDArray[numpy.float64], field: NDArray[numpy.float32]
) -> NDArray[numpy.int32]: ...
def ffd(
    coefficients: NDArray[numpy.float32],
    origin: Sequence[float] | NDArray[numpy.float64],
    spacing: Sequence[float] | NDArray[numpy.float64],
    shape: Sequence[int],
) -> NDArray[numpy.float32]: ...
def ffd_adjoint(
    dense: NDArray[numpy.float32],
    origin: Sequence[float] | NDArray[numpy.float64],
    spacing: Sequence[float] | NDArray[numpy.float64],
    nodes: Sequence[int],
) -> NDArray[numpy.float32]: ...
def compose(u: NDArray[numpy.float32], d: NDArray[numpy.float32]) -> NDArray[numpy.float32]: ...
def resample_field(
    u: NDArray[numpy.float32],
    shape: Sequence[int],
    scale: Sequence[float] | NDArray[numpy.float64],
    offset: Sequence[float] | NDArray[numpy.float64],
) -> NDArray[numpy.float32]: ...
def invert(
    u: NDArray[numpy.float32],
    matrix: NDArray[numpy.float64],
    inverse_matrix: NDArray[numpy.float64],
    shape: Sequence[int],
    max_iter: int,
    tolerance: float,
) -> tuple[NDArray[numpy.float32], NDArray[numpy.float32]]: ...
def jacobian(u: NDArray[numpy.float32]) -> NDArray[numpy.float32]: ...
def descend(
    gradient: NDArray[numpy.float32],
    first: NDArray[numpy.float32],
    second: NDArray[numpy.float32],
    stretch: Sequence[float] | NDArray[numpy.float64],
    done: int,
    keep: Sequence[float] | NDArray[numpy.float64],
    length: float,
    reach: float,
    quiet: float,
) -> NDArray[numpy.float32]: ...
def gaussian(
    images: NDArray[numpy.float32], sigma: Sequence[float] | NDArray[numpy.float64], truncate: float
) -> NDArray[numpy.float32]: ...
def gradient_magnitude(image: NDArray[numpy.float32]) -> NDArray[numpy.float32]: ...
def gradient_direction(image: NDArray[numpy.float32], edge: float) -> NDArray[numpy.float32]: ...
def joint_fusion(
    target: NDArray[numpy.float32],
    images: NDArray[numpy.float32],
    labels: NDArray[numpy.int32],
    decide: NDArray[numpy.uint8],
    classes: int,
    patch: int,
    reach: int,
    alpha: float,
    beta: float,
) -> tuple[NDArray[numpy.int32], NDArray[numpy.float32]]: ...
def hold_back(
    u: NDArray[numpy.float32],
    update: NDArray[numpy.float32],
    origin: Sequence[float] | NDArray[numpy.float64],
    spacing: Sequence[float] | NDArray[numpy.float64],
    least: float,
    attempts: int,
) -> NDArray[numpy.float32]: ...
def trws(
    unary: NDArray[numpy.float64],
    shape: Sequence[int],
    x: NDArray[numpy.float64],
    y: NDArray[numpy.float64],
    z: NDArray[numpy.float64],
    weight: float,
    base: NDArray[numpy.float64] | None,
    init: NDArray[numpy.int32],
    max_iter: int,
    tol: float,
) -> tuple[NDArray[numpy.int32], float, int]: ...
def fastpd(
    unary: NDArray[numpy.float64],
    shape: Sequence[int],
    x: NDArray[numpy.float64],
    y: NDArray[numpy.float64],
    z: NDArray[numpy.float64],
    weight: float,
    base: NDArray[numpy.float64] | None,
    init: NDArray[numpy.int32],
    max_iter: int,
    bound_passes: int,
) -> tuple[NDArray[numpy.int32], float, int]: ...
def icm(
    unary: NDArray[numpy.float64],
    shape: Sequence[int],
    x: NDArray[numpy.float64],
    y: NDArray[numpy.float64],
    z: NDArray[numpy.float64],
    weight: float,
    base: NDArray[numpy.float64] | None,
    init: NDArray[numpy.int32],
    max_iter: int,
) -> tuple[NDArray[numpy.int32], float, int]: ...
def window(image: NDArray[numpy.float32], low: float, high: float) -> NDArray[numpy.float32]: ...
def lookup(
    image: NDArray[numpy.float32], knots: NDArray[numpy.float64], values: NDArray[numpy.float64]
) -> NDArray[numpy.float32]: ...
def block_mean(image: NDArray[numpy.float32], factors: Sequence[int]) -> NDArray[numpy.float32]: ...
def histogram(image: NDArray[numpy.float32], edges: NDArray[numpy.float64]) -> NDArray[numpy.int64]: ...
def profiles(
    image: NDArray[numpy.float32], level: float
) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]: ...
def enclosed(mask: NDArray[numpy.uint8], axes: int) -> NDArray[numpy.uint8]: ...
def log_spread(values: NDArray[numpy.float32], shift: float, least: float, most: float) -> tuple[float, float]: ...
def round_trip(
    u: NDArray[numpy.float32],
    v: NDArray[numpy.float32],
    place: Sequence[Sequence[float] | NDArray[numpy.float64]],
    there: Sequence[Sequence[float] | NDArray[numpy.float64]],
    to_voxel: Sequence[Sequence[float] | NDArray[numpy.float64]],
    back: Sequence[Sequence[float] | NDArray[numpy.float64]],
) -> NDArray[numpy.float32]: ...
def convolution_block(
    image: NDArray[numpy.float32],
    coarse: NDArray[numpy.float32] | None,
    stride: Sequence[int],
    weight: NDArray[numpy.float32],
    scale: NDArray[numpy.float32],
    shift: NDArray[numpy.float32],
) -> NDArray[numpy.float32]: ...
def max_pool(image: NDArray[numpy.float32], stride: Sequence[int]) -> NDArray[numpy.float32]: ...
def class_shares(
    image: NDArray[numpy.float32], weight: NDArray[numpy.float32], bias: NDArray[numpy.float32]
) -> NDArray[numpy.float32]: ...
def perceptron_cross_entropy(
    x: NDArray[numpy.float32],
    classes: NDArray[numpy.int32],
    hidden: NDArray[numpy.float64],
    hidden_bias: NDArray[numpy.float64],
    output: NDArray[numpy.float64],
    output_bias: NDArray[numpy.float64],
) -> tuple[float, NDArray[numpy.float64]]: ...
def plane_distance(
    inside: NDArray[numpy.uint8],
    start: NDArray[numpy.float64],
    end: NDArray[numpy.float64],
    step: Sequence[float] | NDArray[numpy.float64],
    band: float,
) -> NDArray[numpy.float32]: ...
def absolute_force(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    weight: NDArray[numpy.float32],
    force: NDArray[numpy.float32],
    epsilon: float,
) -> float: ...
def tensor_force(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    weight: NDArray[numpy.float32],
    force: NDArray[numpy.float32],
) -> float: ...
def correlation_force(
    fixed: NDArray[numpy.float32],
    moved: NDArray[numpy.float32],
    weight: NDArray[numpy.float32],
    force: NDArray[numpy.float32],
    radius: int,
    floor: float,
    squared: bool,
) -> float: ...
def mean_square_force(force: NDArray[numpy.float32]) -> float: ...
def diffusion_force(
    u: NDArray[numpy.float32], force: NDArray[numpy.float32], factor: Sequence[Sequence[float] | NDArray[numpy.float64]]
) -> float: ...
def stiff_diffusion_force(
    u: NDArray[numpy.float32],
    stiffness: NDArray[numpy.float32],
    force: NDArray[numpy.float32],
    factor: Sequence[Sequence[float] | NDArray[numpy.float64]],
) -> float: ...
def self_similarity(
    image: NDArray[numpy.float32], pairs: NDArray[numpy.int32], radius: int, low: float, high: float
) -> NDArray[numpy.float32]: ...
def support_shares(
    numbers: NDArray[numpy.int32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
    n: int,
) -> NDArray[numpy.float32]: ...
def support_means(
    values: NDArray[numpy.float32],
    sx: NDArray[numpy.int32],
    sy: NDArray[numpy.int32],
    sz: NDArray[numpy.int32],
    size: Sequence[int],
) -> NDArray[numpy.float32]: ...
def surface_net(
    mask: NDArray[numpy.uint8], spacing: Sequence[float] | NDArray[numpy.float64]
) -> NDArray[numpy.float64]: ...
def distance_to_surface(
    points: NDArray[numpy.float64], triangles: NDArray[numpy.float64]
) -> NDArray[numpy.float64]: ...
def weighted_unaries(
    costs: NDArray[numpy.float32],
    shares: NDArray[numpy.float32],
    matrix: NDArray[numpy.float64],
    constant: NDArray[numpy.float64],
    loss: NDArray[numpy.float32] | None,
    coefficient: float,
) -> NDArray[numpy.float64]: ...
def zero_field(shape: Sequence[int]) -> NDArray[numpy.float32]: ...
def scale_channels(images: NDArray[numpy.float32], factors: NDArray[numpy.float32]) -> NDArray[numpy.float32]: ...
def arrange(images: NDArray[numpy.float32], order: Sequence[int], steps: Sequence[int]) -> NDArray[numpy.float32]: ...
def turn_vectors(
    vectors: NDArray[numpy.float32], matrix: Sequence[Sequence[float] | NDArray[numpy.float64]]
) -> NDArray[numpy.float32]: ...
def list_vectors(
    vectors: NDArray[numpy.float32], first: int, planes: int, step: float, bound: float
) -> NDArray[numpy.float32]: ...

BUILD: str
LIBRARY: str
