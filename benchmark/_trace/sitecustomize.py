"""Record of the functions that a process calls, and of the deepest chain of calls, by the interpreter's profiling hook.

Python imports a module of this name when it starts, so a folder on ``PYTHONPATH`` reaches worker processes as well.
"""

import inspect
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = os.environ["HOUSE_PACKAGE"]
FOLDER = Path(os.environ["HOUSE_TRACE"])
seen: dict[int, tuple[CodeType, bool]] = {}
"""By identity, which is quicker than the hash of a code object; kept alive, so that no number is used again."""
depth = threading.local()
deepest = 0


def write(line: str) -> None:
    # Worker processes end without warning: nothing may wait in a buffer.
    with FOLDER.joinpath(str(os.getpid())).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def note(frame: FrameType, event: str, _argument: object) -> None:
    """Write a line when a function of the package is called for the first time in this process."""
    global deepest  # noqa: PLW0603 (one number of the process)
    if event not in {"call", "return"}:
        return
    code = frame.f_code
    if id(code) not in seen:
        # The body of a class is code as well, but its variables are not those of a function.
        function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
        ours = function and code.co_filename.startswith(PACKAGE)
        seen[id(code)] = (code, ours)
        if ours:
            write(f"{code.co_filename[len(PACKAGE) + 1 :]}\t{code.co_qualname}\t{code.co_firstlineno}")
    if seen[id(code)][1]:
        depth.now = getattr(depth, "now", 0) + (1 if event == "call" else -1)
        if depth.now > deepest:
            deepest = depth.now
            write(f"depth\t{deepest}")


sys.setprofile(note)
threading.setprofile(note)
