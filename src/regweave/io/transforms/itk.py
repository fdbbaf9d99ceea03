"""Transforms of ITK: lists of numbers from files, checked before ITK gets them, and objects in memory.

ITK does not check the lists of a file. Of a rigid transform with three numbers it reads six, beyond the end of its
memory. So .tfm is parsed here, and .mat by SciPy. A few changed bytes let HDF5 loop for ever or crash, so .h5 is read
by h5py in a child process that may die.
"""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813
from numpy.typing import NDArray

from regweave.errors import RegweaveError, ResourceError, UsageError
from regweave.io import images, stored, write
from regweave.io.disk.files import available_memory, damaged, open_file, require_memory
from regweave.io.disk.outputs import Identity, identity
from regweave.io.geometry import affine_of, make_geometry, set_itk_geometry
from regweave.types import Field, Float32Array, Float64Array, Geometry, Transform

COMPOSITE, FIELD, SPLINE = "CompositeTransform", "DisplacementFieldTransform", "BSplineTransform"
TYPE_NAME = re.compile(r"([A-Za-z][A-Za-z0-9]{0,79})_(float|double)_(\d)_(\d)(?:_(\d))?")
SHOWN_NAME = 60
GRID_NUMBERS = 18  # Size, origin, spacing and direction of a grid, as ITK lists them
SPLINE_ORDER = 3
LARGEST_GRID = 1 << 31  # Most nodes of a grid: what ITK counts in 32 bits on some machines


LINEAR: dict[str, tuple[Callable[[], Any], int, tuple[int, ...]]] = {
    "IdentityTransform": (lambda: sitk.Transform(3, sitk.sitkIdentity), 0, (0,)),
    "TranslationTransform": (lambda: sitk.TranslationTransform(3), 3, (0,)),
    "ScaleTransform": (lambda: sitk.ScaleTransform(3), 3, (3,)),
    "ScaleLogarithmicTransform": (lambda: sitk.Transform(3, sitk.sitkScaleLogarithmic), 3, (3,)),
    "VersorTransform": (sitk.VersorTransform, 3, (3,)),
    "Euler3DTransform": (sitk.Euler3DTransform, 6, (3, 4)),
    "VersorRigid3DTransform": (sitk.VersorRigid3DTransform, 6, (3,)),
    "QuaternionRigidTransform": (lambda: sitk.Transform(3, sitk.sitkQuaternionRigid), 7, (3,)),
    "Similarity3DTransform": (sitk.Similarity3DTransform, 7, (3,)),
    "ScaleVersor3DTransform": (sitk.ScaleVersor3DTransform, 9, (3,)),
    "ComposeScaleSkewVersor3DTransform": (sitk.ComposeScaleSkewVersor3DTransform, 12, (3,)),
    "ScaleSkewVersor3DTransform": (sitk.ScaleSkewVersor3DTransform, 15, (3,)),
    "AffineTransform": (lambda: sitk.AffineTransform(3), 12, (3,)),
    "MatrixOffsetTransformBase": (lambda: sitk.AffineTransform(3), 12, (3,)),
}
"""Linear transforms: their class in SimpleITK, and how many parameters and fixed parameters they have."""


Listed = tuple[str, NDArray[Any], Float64Array]
"""One transform as a file lists it: the name of its type, its parameters, its fixed parameters."""


@dataclass(frozen=True)
class Part:
    """One transform of a file after its checks: ``kind`` is its type without precision and dimensions."""

    kind: str
    order: int  # of a B-spline
    parameters: NDArray[Any]
    fixed: Float64Array

    def to_sitk(self) -> Any:
        """Make the transform in SimpleITK."""
        if self.kind == FIELD:
            vectors = self.parameters.reshape(*self.fixed[2::-1].astype(int), 3)
            image = sitk.GetImageFromArray(vectors.astype(np.float64), isVector=True)
            set_itk_geometry(image, grid_of(self.fixed, "the field"))
            return sitk.DisplacementFieldTransform(image)
        transform = LINEAR[self.kind][0]() if self.kind in LINEAR else sitk.BSplineTransform(3, self.order)
        transform.SetFixedParameters(self.fixed.tolist())
        transform.SetParameters(self.parameters.astype(np.float64).tolist())
        return transform


def check_parts(listed: Sequence[Listed], subject: str) -> list[Part]:
    """Return the transforms of a file without their composite, the last applied first, or raise E102 or E115.

    Several transforms must be parts of a composite, whose head has no numbers and comes first.
    """
    parts = []
    for name, parameters, fixed in listed:
        if (match := TYPE_NAME.fullmatch(name)) is None:
            raise damaged(subject, f"{name[:SHOWN_NAME]!r} is no type of a transform")
        kind, _, *dimensions, order = match.groups()
        if dimensions != ["3", "3"]:
            message = f"{subject} is a transform in {dimensions[0]} dimensions, needed are 3"
            raise RegweaveError("E115", message, "give a 3-D transform")
        if kind not in {*LINEAR, COMPOSITE, FIELD, SPLINE} or (order is not None and kind != SPLINE):
            known = ", ".join([*LINEAR, SPLINE, FIELD, COMPOSITE])
            message = f"{subject} holds a {name[:SHOWN_NAME]}, known are {known}"
            raise RegweaveError("E115", message, "convert it to an affine or a displacement field where it was made")
        parts.append(Part(kind, SPLINE_ORDER if order is None else int(order), parameters, fixed))
    if not parts:
        raise damaged(subject, "no ITK transform in it")
    if parts[0].kind == COMPOSITE:
        if parts[0].parameters.size or parts[0].fixed.size or len(parts) == 1:
            raise damaged(subject, "its composite has numbers of its own, or no parts")
        parts = parts[1:]
    elif len(parts) > 1:
        message = f"{subject} holds {len(parts)} transforms that no composite joins"
        raise RegweaveError("E115", message, "write one transform, or one composite")
    for part in parts:
        _require_fitting(part, subject)
    return parts


def _require_fitting(part: Part, subject: str) -> None:
    """Raise E102 where the numbers of a transform are not as many as its type or its grid needs, E104 for NaN."""
    kind, order = part.kind, part.order
    if kind == COMPOSITE:
        raise damaged(subject, "a composite stands inside of it; only the first transform may be one")
    if not np.isfinite(part.fixed).all():
        raise damaged(subject, f"a fixed parameter of its {kind} is not finite")
    if not 0 <= order <= SPLINE_ORDER:
        raise damaged(subject, f"its B-spline has the order {order}, allowed is 0 to {SPLINE_ORDER}")
    _, parameters, fixed = LINEAR.get(kind, (None, 0, (GRID_NUMBERS,)))
    if part.fixed.size not in fixed:
        expected = " or ".join(map(str, fixed))
        raise damaged(subject, f"{expected} fixed parameters expected of its {kind}, {part.fixed.size} found")
    if kind not in LINEAR:
        grid_of(part.fixed, subject, order + 1 if kind == SPLINE else 1)
        parameters = 3 * int(np.prod(part.fixed[:3]))
    if part.parameters.size != parameters:
        raise damaged(subject, f"{parameters} parameters expected of its {kind}, {part.parameters.size} found")
    if not np.isfinite(part.parameters).all():
        message = f"a parameter of the {kind} in {subject} is not finite"
        raise RegweaveError("E104", message, "compute the transform again")


def grid_of(numbers: Float64Array, subject: str, least: int = 1) -> Geometry:
    """Make the geometry that 18 fixed parameters list: size, origin, spacing, direction."""
    size, spacing = numbers[:3], numbers[6:9]
    whole = bool((size == np.rint(size)).all() and (size >= least).all())
    if not whole or math.prod(size.tolist()) > LARGEST_GRID:
        raise damaged(subject, f"its grid has the size {size.tolist()}, needed are whole numbers from {least} up")
    if not (spacing > 0).all():
        raise damaged(subject, f"its grid has the spacing {spacing.tolist()} mm, needed are positive numbers")
    affine = affine_of(numbers[9:].reshape(3, 3) * spacing, numbers[3:6])
    return make_geometry((int(size[0]), int(size[1]), int(size[2])), affine, subject)


# Text files, .tfm and .txt, and MATLAB files of level 4

TEXT_HEAD = b"#Insight Transform File V1.0"
NOTE = b"#regweave "  # begins the comment line with our own metadata; ITK skips it
DECIMAL = b"0123456789+-.eE \t"
BYTES_PER_CHARACTER = 8  # Memory for a character of a list of numbers, the shortest of which is a digit and a blank


def _content(path: Path) -> bytes:
    with open_file(path) as stream:
        require_memory(path.stat().st_size * BYTES_PER_CHARACTER, f"'{path}'")
        return stream.read()


def read_text(path: Path) -> tuple[list[Listed], str]:
    """Read all transforms of a text file, and our own note where there is one, or raise E102.

    Each line is a comment, empty, or one of ``Transform:``, ``Parameters:`` and ``FixedParameters:`` in this order.
    """
    subject, content = f"'{path}'", _content(path)
    if not content.startswith(TEXT_HEAD):
        raise damaged(subject, f"no ITK transform in it; it begins with {content[:4]!r}")
    if not content.endswith(b"\n"):
        raise damaged(subject, "its last line has no end")
    lines = [line.strip() for line in content.split(b"\n")]
    note = next((line[len(NOTE) :].decode("ascii", errors="replace") for line in lines if line.startswith(NOTE)), "")
    fields = iter([line.partition(b":") for line in lines if line and not line.startswith(b"#")])
    parts: list[Listed] = []
    for first, _, kind in fields:
        if first.strip() != b"Transform":
            raise damaged(subject, f"{first[:40]!r} is found where a transform should begin")
        name, lists = kind.strip().decode("ascii", errors="backslashreplace"), [np.empty(0), np.empty(0)]
        for n, wanted in enumerate(() if name.startswith(COMPOSITE) else (b"Parameters", b"FixedParameters")):
            key, _, value = next(fields, (b"", b"", b""))
            if key.strip() != wanted:
                raise damaged(subject, f"it ends before the {wanted.decode()} of a transform")
            lists[n] = _numbers(value, subject)
        parts.append((name, lists[0], lists[1]))
    return parts, note


def _numbers(text: bytes, subject: str) -> Float64Array:
    """Read decimal numbers with blanks between them; ``nan`` and ``1_0`` are none."""
    if text.translate(None, DECIMAL):
        raise damaged(subject, "a list of numbers holds other characters than decimal numbers have")
    try:
        return np.fromiter((float(word[0]) for word in re.finditer(rb"\S+", text)), np.float64)
    except ValueError as error:
        raise damaged(subject, f"a list of numbers holds what is none ({str(error)[-60:]})") from error


FIXED = "fixed"


def read_matlab(path: Path) -> list[Listed]:
    """Read the transform of a file: an array named by its type, then one named ``fixed``, or raise E102."""
    from scipy.io import loadmat, matlab, whosmat  # noqa: PLC0415  (for a rare format)

    subject, content = f"'{path}'", _content(path)
    try:
        if matlab.matfile_version(io.BytesIO(content))[0] != 0:
            raise ValueError("needed is MATLAB level 4")
        names = [name for name, _, _ in whosmat(io.BytesIO(content))]
        arrays = loadmat(io.BytesIO(content))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, matlab.MatReadError) as error:
        raise damaged(subject, f"no ITK transform in it ({error})") from error
    if len(names) != 2 or names[1] != FIXED or any(arrays[name].dtype.kind != "f" for name in names):
        found = [name[:SHOWN_NAME] for name in names[:4]]
        raise damaged(subject, f"its arrays are {found}, needed are a transform and '{FIXED}'")
    parameters, fixed = (arrays[name].ravel() for name in names)
    return [(names[0], parameters, fixed.astype(np.float64))]


# HDF5 files

HDF_MARK = b"\x89HDF\r\n\x1a\n"
READY = b"ready\n"
CHILD = Path(__file__).with_name("child.py")
START = "import json,sys;sys.path[:]=json.loads(sys.argv.pop(1));import runpy;sys.argv[0]=sys.argv.pop(1);"
START += "runpy.run_path(sys.argv[0], run_name='__main__')"
"""The child sees the installed packages of its parent and no others; the folder that it is started in is none."""
SHARE_OF_MEMORY = 4
"""Largest part of the free memory that a file may hold: it is in the child, in the pipe and as a field."""
OWN_BYTES = 3 << 29
CPU_S, WALL_S, BYTES_PER_S = 10, 120, 5 << 20
"""Time that a file gets, and more by its length; a loop ends by the first, a reader that waits by the second."""
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HDF5_PLUGIN_PRELOAD": "::", "MALLOC_ARENA_MAX": "1",
}  # fmt: skip
written: set[Identity | None] = set()  # Files that this process wrote, which need no child to be read


def read_hdf(path: Path) -> tuple[list[Listed], Mapping[str, str]]:
    """Read the transforms of an HDF5 file and the texts at its root, or raise E102, or E140 where they do not fit."""
    subject = f"'{path}'"
    with open_file(path) as stream:
        block, size = stream.read(64), os.fstat(stream.fileno()).st_size
    if not block.startswith(HDF_MARK) or len(block) < 64:
        raise damaged(subject, f"no HDF5 mark in it; it begins with {block[:4]!r}")
    at = 40 if block[8] < 2 else 28  # length of the file in superblocks of versions 0-1 and 2-3, in eight bytes
    expected = int.from_bytes(block[at : at + 8], "little")
    if size < expected:
        raise damaged(subject, f"{expected} bytes expected, {size} found")
    most = available_memory() // SHARE_OF_MEMORY
    if identity(path) in written:
        from regweave.io.transforms import child  # noqa: PLC0415  (h5py is loaded where it was written)

        head, arrays = child.answer(str(path), most)
    else:
        head, arrays = _ask_child(path, most, size // BYTES_PER_S)
    if "refused" in head:
        code, reason = head["refused"]
        if code == "E140":
            raise ResourceError(code, f"{subject} cannot be read: {reason}", "use a machine with more memory")
        raise damaged(subject, reason)
    pairs = zip(head["parts"], arrays[::2], arrays[1::2], strict=True)
    return [(part["type"], parameters, fixed) for part, fixed, parameters in pairs], head["notes"]


def _ask_child(path: Path, most: int, extra_s: int) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """Read a file in a child process: the head of its answer, and the fixed and other numbers of each transform."""
    subject, wall_s = f"'{path}'", WALL_S + extra_s
    request = {"file": str(path.absolute()), "most_bytes": most, "address_bytes": OWN_BYTES + 3 * most}
    request["cpu_s"] = CPU_S + extra_s
    places = json.dumps([p for p in sys.path if p and Path(p).is_absolute()])
    child = subprocess.Popen(  # in a session of its own: Ctrl-C is for this process, which then ends the child
        [sys.executable, "-I", "-S", "-c", START, places, str(CHILD), json.dumps(request)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}, start_new_session=True,
    )  # fmt: skip
    try:
        answer = child.communicate(timeout=wall_s)[0]
    except subprocess.TimeoutExpired as error:
        raise damaged(subject, f"HDF5 does not come to an end with it in {wall_s:.0f} s") from error
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    status = child.returncode
    if not answer.startswith(READY):
        message = f"the process that reads {subject} could not start (status {status})"
        raise ResourceError("E140", message, "give the program more memory or processes")
    if status != 0:
        ending = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise damaged(subject, f"HDF5 cannot read it ({ending})")
    answer = answer[len(READY) :]
    at = 8 + int.from_bytes(answer[:8], "little")
    head, arrays = json.loads(answer[8:at]), list[NDArray[Any]]()
    for part in head.get("parts", ()):
        for count, dtype in ((part["fixed"], "f8"), (part["parameters"], part["dtype"])):
            arrays.append(np.frombuffer(answer, dtype, count, at))
            at += arrays[-1].nbytes
    return head, arrays


# Objects in memory

LARGEST_DISPLACEMENT_MM = 1e5
LARGEST_SCALE, LARGEST_SHIFT_MM = 1e3, 1e7
"""Beyond these a matrix is an error of a program: a magnification of a thousand, a shift of a hundred kilometres."""
ANYWHERE = Geometry((2, 2, 2), np.eye(4))
"""Grid of the zero field of a linear transform without a grid; its value holds everywhere."""


def as_transform(source: Any, geometry: Geometry | None) -> Transform:
    """Take a (4, 4) matrix between LPS millimetres, a SimpleITK transform or a Transform.

    A transform that is not linear is sampled on ``geometry``. Raises E115 for anything else, a matrix that cannot be
    inverted, no grid to sample on, a transform that is not of three dimensions.
    """
    if isinstance(source, Transform):
        return source
    if "SimpleITK.Transform" in images.classes_of(source):
        if source.GetDimension() != 3:
            message = f"the SimpleITK transform has {source.GetDimension()} dimensions, needed are 3"
            raise RegweaveError("E115", message, "give a transform of volumes")
        if source.IsLinear():
            matrix = require_matrix(linear_matrix(source), "the matrix of the SimpleITK transform")
            return Transform(Field.zero(geometry or ANYWHERE), matrix)
        if geometry is None:
            message = "the SimpleITK transform is not linear and has no grid of its own"
            raise RegweaveError("E115", message, "name the geometry on which it is sampled")
        return Transform(sample(source, geometry, "the SimpleITK transform"))
    if hasattr(source, "__array__") or isinstance(source, list | tuple):
        matrix = np.asarray(source, dtype=np.float64)
        if matrix.shape != (4, 4) or matrix[3].tolist() != [0, 0, 0, 1]:
            found = f"shape {matrix.shape}" if matrix.shape != (4, 4) else f"the last row {matrix[3].tolist()}"
            message = f"the matrix of a transform has {found}, needed are (4, 4) and the last row 0, 0, 0, 1"
            raise UsageError("E115", message, "give a matrix from fixed to moving LPS millimetres")
        return Transform(Field.zero(geometry or ANYWHERE), require_matrix(matrix, "the matrix"))
    message = f"cannot read a transform from an object of type {type(source).__module__}.{type(source).__qualname__}"
    raise UsageError("E115", message, "give a path, a (4, 4) matrix in LPS, a SimpleITK transform or a Transform")


def linear_matrix(transform: Any) -> Float64Array:
    """Return the (4, 4) matrix of a linear SimpleITK transform."""
    origin = np.asarray(transform.TransformPoint((0.0, 0.0, 0.0)))
    if hasattr(transform, "GetMatrix"):
        return affine_of(np.reshape(transform.GetMatrix(), (3, 3)), origin)
    return affine_of(
        np.stack([np.asarray(transform.TransformPoint(e)) - origin for e in np.eye(3).tolist()], axis=1), origin
    )


def require_matrix(matrix: Float64Array, subject: str) -> Float64Array:
    """Return a matrix that can be inverted and that some image can mean, or raise E115."""
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
        message = f"{subject} cannot be inverted or is not finite: {matrix.tolist()}"
        raise RegweaveError("E115", message, "give an invertible transform")
    if np.abs(matrix[:3, :3]).max() > LARGEST_SCALE or np.abs(matrix[:3, 3]).max() > LARGEST_SHIFT_MM:
        allowed = f"{LARGEST_SCALE:g} in its linear part and {LARGEST_SHIFT_MM:g} mm in its shift"
        message = f"{subject} is beyond physical sense: {matrix[:3].tolist()}, allowed are up to {allowed}"
        raise RegweaveError("E115", message, "compute the transform again")
    return matrix


def require_sense(vectors: NDArray[Any], geometry: Geometry, subject: str) -> None:
    """Refuse displacements that no image can mean: beyond a hundred metres and beyond the image."""
    longest = float(np.abs(vectors).max())
    allowed = max(LARGEST_DISPLACEMENT_MM, float((geometry.spacing_mm * geometry.shape).max()))
    if longest > allowed:
        message = f"{subject} holds displacements of {longest:.3g} mm, allowed are up to {allowed:.3g} mm"
        raise RegweaveError("E115", message, "compute the transform again")


def component_first(vectors: NDArray[Any], subject: str) -> Float32Array:
    """Turn ITK's (Z, Y, X, 3) into (3, X, Y, Z), refusing non-finite numbers with E104."""
    data = np.array(vectors.transpose(3, 2, 1, 0), dtype=np.float32, order="C")
    if (error := stored.nonfinite_error(data, subject)) is not None:
        raise RegweaveError(error.code, error.message, "compute the transform again")
    return data


def sample(transform: Any, geometry: Geometry, subject: str) -> Field:
    """Evaluate a SimpleITK transform at the voxels of a grid."""
    place = geometry.origin_mm.tolist(), geometry.spacing_mm.tolist(), geometry.direction.ravel().tolist()
    image = sitk.TransformToDisplacementField(transform, sitk.sitkVectorFloat64, list(geometry.shape), *place)
    vectors = sitk.GetArrayViewFromImage(image)
    require_sense(vectors, geometry, subject)
    return Field(component_first(vectors, subject), geometry)


def sitk_transform(transform: Transform) -> Any:
    """Return the SimpleITK composite of affine and field; it applies the last one first, as `Transform` does."""
    affine = sitk.AffineTransform(3)
    affine.SetMatrix(transform.affine[:3, :3].ravel().tolist())
    affine.SetTranslation(transform.affine[:3, 3].tolist())
    field = transform.interpolated
    vectors = write.sitk_image(field.data.astype(np.float64), field.geometry)
    return sitk.CompositeTransform([affine, sitk.DisplacementFieldTransform(vectors)])
