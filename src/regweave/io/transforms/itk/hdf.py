"""HDF5 transform files of ITK, read by a child process that may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regweave.errors import ResourceError
from regweave.io.disk.files import damaged, open_file
from regweave.io.disk.limits import available_memory
from regweave.io.transforms.itk.parts import Part

MARK = b"\x89HDF\r\n\x1a\n"
READY = b"ready\n"
CHILD = Path(__file__).with_name("hdf_child.py")
START = "import json,sys;sys.path[:]=json.loads(sys.argv.pop(1));import runpy;sys.argv[0]=sys.argv.pop(1);"
START += "runpy.run_path(sys.argv[0], run_name='__main__')"
"""The child sees the installed packages of its parent and no others; the folder that it is started in is none."""
SHARE_OF_MEMORY = 4
"""What a file may hold, as a part of the memory that is free: it is there in the child, in the pipe and as a field."""
OWN_BYTES = 3 << 29
CPU_S, WALL_S, BYTES_PER_S = 10, 120, 5 << 20
"""Time that a file gets, and more by its length; a loop ends by the first, a reader that waits by the second."""
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HDF5_PLUGIN_PRELOAD": "::",
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class HdfContents:
    """Contents of an HDF5 transform file: its transforms, and the texts at its root."""

    parts: list[Part]
    notes: Mapping[str, str]


def read_hdf(path: Path) -> HdfContents:
    """Read the transforms of an HDF5 file in a child process, or raise E102, or E140 where they do not fit."""
    subject = f"'{path}'"
    size = _verified_size(path)
    memory = available_memory()
    most = memory // SHARE_OF_MEMORY
    request = {
        "file": str(path.absolute()),
        "most_bytes": most,
        "address_bytes": OWN_BYTES + 3 * most,
        "cpu_s": CPU_S + size // BYTES_PER_S,
    }
    return _parsed(_answer(request, WALL_S + size // BYTES_PER_S, subject), subject)


def _verified_size(path: Path) -> int:
    """Compare the length that an HDF5 superblock states with that of the file."""
    with open_file(path) as stream:
        block, found = stream.read(64), os.fstat(stream.fileno()).st_size
    if not block.startswith(MARK) or len(block) < 64:
        raise damaged(f"'{path}'", f"no HDF5 mark in it; it begins with {block[:4]!r}")
    at = 40 if block[8] < 2 else 28  # superblock versions 0-1 and 2-3, offsets of eight bytes
    expected = int.from_bytes(block[at : at + 8], "little")
    if found < expected:
        raise damaged(f"'{path}'", f"{expected} bytes expected, {found} found")
    return found


def _answer(request: Mapping[str, Any], wall_s: float, subject: str) -> bytes:
    """Run the child and return what it says after it was ready."""
    places = json.dumps([p for p in sys.path if p and Path(p).is_absolute()])
    words = [sys.executable, "-I", "-S", "-c", START, places, str(CHILD), json.dumps(request)]
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,  # Ctrl-C is for this process, which then ends the child
    )
    try:
        answer = child.communicate(timeout=wall_s)[0]
    except subprocess.TimeoutExpired as error:
        raise damaged(subject, f"HDF5 does not come to an end with it in {wall_s:.0f} s") from error
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if not answer.startswith(READY):
        message = f"the process that reads {subject} could not start (status {child.returncode})"
        raise ResourceError("E140", message, "give the program more memory or processes")
    if child.returncode != 0:
        raise damaged(subject, f"HDF5 cannot read it ({_ending(child.returncode)})")
    return answer[len(READY) :]


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _parsed(answer: bytes, subject: str) -> HdfContents:
    length = int.from_bytes(answer[:8], "little")
    head = json.loads(answer[8 : 8 + length])
    if "refused" in head:
        code, reason = head["refused"]
        if code == "E140":
            message = f"{subject} cannot be read: {reason}"
            raise ResourceError(code, message, "use a machine with more memory")
        raise damaged(subject, reason)
    parts, at = [], 8 + length
    for part in head["parts"]:
        fixed: NDArray[Any] = np.frombuffer(answer, np.float64, part["fixed"], at)
        at += fixed.nbytes
        parameters: NDArray[Any] = np.frombuffer(answer, part["dtype"], part["parameters"], at)
        at += parameters.nbytes
        parts.append(Part(part["type"], parameters, fixed))
    return HdfContents(parts, head["notes"])
