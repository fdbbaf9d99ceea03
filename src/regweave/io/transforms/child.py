"""Sandboxed reader of HDF5 transform files.

A few changed bytes let the HDF5 library loop for ever or crash, and no signal handler of Python runs meanwhile. So
`itk.read_hdf` runs this script as a process with limits on memory and time; it imports nothing of this package. It
writes the word ``ready``, then the length of a JSON head, the head, and the stored numbers.
"""

import json
import sys
from typing import Any

import h5py
import numpy as np

try:
    import resource
except ImportError:  # Windows: the caller's limit on time holds, those of the system do not exist
    resource = None  # type: ignore[assignment]

READY = b"ready\n"
GROUP = "TransformGroup"
PARAMETERS = ("TransformParameters", "TranformParameters")
FIXED = ("TransformFixedParameters", "TranformFixedParameters")  # ITK before 5.0 wrote the second spelling
MOST_PARTS = 100
MOST_NAME = 200
MOST_NUMBERS = 100  # Most parameters of a transform without a grid, and most fixed parameters of any
MOST_NOTE = 1 << 16
RATIO = 1100  # Largest ratio of inflated to deflated bytes, and a little more
FILTERS = {1, 2, 3}  # Deflate, shuffle and Fletcher's check sum; other filters may be plug-ins, which are code


class RefusedError(Exception):
    """A file that is not read, with the code of the error and the reason."""


def main() -> None:
    """Read the file that the request on the command line names."""
    request = json.loads(sys.argv[1])
    if resource is not None:
        for kind, value in ((resource.RLIMIT_AS, request["address_bytes"]), (resource.RLIMIT_CPU, request["cpu_s"])):
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    out.write(READY)
    out.flush()
    head, arrays = answer(request["file"], request["most_bytes"])
    text = json.dumps(head).encode()
    out.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        out.write(memoryview(array).cast("B") if array.size else b"")
    out.flush()


def answer(file: str, most_bytes: int) -> tuple[dict[str, Any], list[Any]]:
    """Return types, counts and texts of a file, or why it is refused; and the fixed and other numbers of each part."""
    head, arrays = dict[str, Any](), list[Any]()
    try:
        with h5py.File(file, "r", locking=False) as h5:
            groups = child(h5, (GROUP,), h5py.Group)
            if not 0 < len(groups) <= MOST_PARTS:
                reason = f"its group '{GROUP}' has {len(groups)} members, allowed are 1 to {MOST_PARTS}"
                raise RefusedError("E102", reason)
            head = {"notes": notes(h5), "parts": []}
            for n in range(len(groups)):
                group = child(groups, (str(n),), h5py.Group)
                name = type_name(child(group, ("TransformType",), h5py.Dataset))
                fixed = parameters = np.empty(0)
                if not name.startswith("CompositeTransform"):
                    fixed = numbers(child(group, FIXED, h5py.Dataset)).astype(np.float64)
                    parameters = numbers(child(group, PARAMETERS, h5py.Dataset), fixed, most_bytes)
                counts = {"fixed": fixed.size, "parameters": parameters.size, "dtype": parameters.dtype.str}
                head["parts"].append({"type": name, **counts})
                arrays += [fixed, parameters]
            return head, arrays
    except RefusedError as error:
        return {"refused": list(error.args)}, []
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, OverflowError) as error:
        return {"refused": ["E102", f"HDF5 cannot read it ({type(error).__name__})"]}, []


def child(parent: Any, names: tuple[str, ...], kind: Any) -> Any:
    """Return the member that a hard link of one of the names leads to: other links may lead out of the file.

    Numbers in other files are refused too, and those that need a filter other than the common ones.
    """
    link = next((found for name in names if (found := parent.get(name, getlink=True)) is not None), None)
    if link is None:
        raise RefusedError("E102", f"it lacks '{names[0]}'")
    if not isinstance(link, h5py.HardLink):
        raise RefusedError("E102", f"'{names[0]}' is a {type(link).__name__}, allowed are hard links alone")
    found = next(parent[name] for name in names if name in parent)
    if not isinstance(found, kind):
        raise RefusedError("E102", f"'{names[0]}' is no {kind.__name__.lower()}")
    if kind is h5py.Dataset:
        if found.external or found.is_virtual:
            raise RefusedError("E102", f"the numbers of '{found.name}' lie in another file")
        plan = found.id.get_create_plist()
        used = {plan.get_filter(n)[0] for n in range(plan.get_nfilters())}
        if used - FILTERS:
            raise RefusedError("E102", f"'{found.name}' uses the filters {sorted(used)}, allowed are {sorted(FILTERS)}")
    return found


def type_name(data: Any) -> str:
    """Read the name of a type, one string."""
    if data.shape not in {(1,), ()} or h5py.check_string_dtype(data.dtype) is None:
        raise RefusedError("E102", f"'{data.name}' has the shape {data.shape} of {data.dtype}, needed is one string")
    value = data[()] if data.shape == () else data[0]
    text = value if isinstance(value, bytes) else str(value).encode("utf-8", errors="replace")
    if len(text) > MOST_NAME or not text.isascii():
        raise RefusedError("E102", f"the name of a type is {text[:40]!r} of {len(text)} bytes")
    return text.decode("ascii")


def numbers(data: Any, grid: Any = (), most_bytes: int = 0) -> Any:
    """Read a list of floats whose bytes the file holds: three for each node of a grid, or else a few."""
    if data.ndim != 1 or data.dtype.kind != "f" or data.dtype.itemsize not in {4, 8}:
        found = f"'{data.name}' has the shape {data.shape} of {data.dtype}"
        raise RefusedError("E102", f"{found}, needed is a list of floats")
    limit = MOST_NUMBERS
    if len(grid) >= 9 and np.isfinite(grid).all():  # size, origin and spacing
        nodes = float(np.prod(grid[:3]))
        if nodes * 3 * 8 > most_bytes:
            raise RefusedError("E140", f"its grid of {nodes:g} nodes does not fit the memory")
        limit = max(MOST_NUMBERS, 3 * int(nodes))
    if data.size > limit:
        raise RefusedError("E102", f"'{data.name}' holds {data.size} numbers, expected are at most {limit}")
    if data.nbytes > data.id.get_storage_size() * RATIO:
        raise RefusedError("E102", f"'{data.name}' promises {data.nbytes} bytes, the file holds too few")
    return np.ascontiguousarray(data[()], dtype=data.dtype.newbyteorder("="))


def notes(h5: Any) -> dict[str, str]:
    """Read the short texts at the root of the file."""
    found = {}
    for name in list(h5.attrs)[:MOST_PARTS]:
        kind = h5.attrs.get_id(name)
        short = kind.shape == () and kind.get_storage_size() <= MOST_NOTE
        if short and h5py.check_string_dtype(kind.dtype) is not None:
            value = h5.attrs[name]
            text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
            found[str(name)] = text[:MOST_NOTE]
    return found


if __name__ == "__main__":
    main()
