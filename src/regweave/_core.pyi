"""Types of the compiled kernels."""

from regweave.types import Float32Array, Float64Array, IntArray, LabelArray

Shape = tuple[int, ...]
Triple = tuple[float, ...] | list[float] | Float64Array
Support = tuple[int, int, int]

def set_threads(n: int) -> int: ...
def threads() -> int: ...

# cost_volume.cpp: fixed and moved features, starts and size of the supports, displacements along each axis
def sad_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
) -> Float32Array: ...
def ngf_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
) -> Float32Array: ...
def mean_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
) -> Float32Array: ...
def overlap_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
) -> Float32Array: ...
def dwt_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
) -> Float32Array: ...
def ncc_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
    floor: float,
    squared: bool,
) -> Float32Array: ...
def mi_volume(
    fixed: Float32Array,
    moved: Float32Array,
    sx: IntArray,
    sy: IntArray,
    sz: IntArray,
    size: Support,
    dx: Float64Array,
    dy: Float64Array,
    dz: Float64Array,
    bins: int,
) -> Float32Array: ...

# deformation.cpp: all in voxel units
def warp(image: Float32Array, matrix: Float64Array, field: Float32Array, fill: float, clamp: bool) -> Float32Array: ...
def warp_valid(shape: Shape, matrix: Float64Array, field: Float32Array) -> LabelArray: ...
def warp_nearest(labels: IntArray, matrix: Float64Array, field: Float32Array, fill: int) -> IntArray: ...
def warp_labels(labels: IntArray, matrix: Float64Array, field: Float32Array) -> IntArray: ...
def ffd(coefficients: Float32Array, origin: Triple, spacing: Triple, shape: Shape) -> Float32Array: ...
def ffd_adjoint(dense: Float32Array, origin: Triple, spacing: Triple, nodes: Shape) -> Float32Array: ...
def compose(u: Float32Array, d: Float32Array) -> Float32Array: ...
def resample_field(u: Float32Array, shape: Shape, scale: Triple, offset: Triple) -> Float32Array: ...
def invert(
    u: Float32Array,
    matrix: Float64Array,
    inverse_matrix: Float64Array,
    shape: Shape,
    max_iter: int,
    tolerance: float,
) -> tuple[Float32Array, Float32Array]: ...
def jacobian(u: Float32Array) -> Float32Array: ...

# inference.cpp: labels, lower bound, iterations
def trws(
    unary: Float64Array,
    shape: Shape,
    x: Float64Array,
    y: Float64Array,
    z: Float64Array,
    weight: float,
    base: Float64Array | None,
    init: IntArray,
    max_iter: int,
    tol: float,
) -> tuple[IntArray, float, int]: ...
def fastpd(
    unary: Float64Array,
    shape: Shape,
    x: Float64Array,
    y: Float64Array,
    z: Float64Array,
    weight: float,
    base: Float64Array | None,
    init: IntArray,
    max_iter: int,
    bound_passes: int,
) -> tuple[IntArray, float, int]: ...
def icm(
    unary: Float64Array,
    shape: Shape,
    x: Float64Array,
    y: Float64Array,
    z: Float64Array,
    weight: float,
    base: Float64Array | None,
    init: IntArray,
    max_iter: int,
) -> tuple[IntArray, float, int]: ...
def grid_maxflow(terminals: Float64Array, arcs: Float64Array, shape: Shape) -> tuple[float, LabelArray]: ...
def separable_message(
    f: Float64Array,
    x: Float64Array,
    y: Float64Array,
    z: Float64Array,
    weight: float,
    shift: Triple,
    use_envelope: bool,
) -> Float64Array: ...

# refine.cpp: cost; the force (3, X, Y, Z) is added to the array given
def absolute_force(
    fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array, epsilon: float
) -> float: ...
def tensor_force(fixed: Float32Array, moved: Float32Array, weight: Float32Array, force: Float32Array) -> float: ...
def correlation_force(
    fixed: Float32Array,
    moved: Float32Array,
    weight: Float32Array,
    force: Float32Array,
    radius: int,
    floor: float,
    squared: bool,
) -> float: ...
def diffusion_force(u: Float32Array, force: Float32Array, factor: list[list[float]]) -> float: ...

# self_similarity.cpp
def self_similarity(image: Float32Array, pairs: IntArray, radius: int, low: float, high: float) -> Float32Array: ...
