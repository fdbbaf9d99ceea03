"""Record of the functions that a process calls, kept by the profiling hook of the interpreter.

Python imports a module of this name when it starts, so a folder on ``PYTHONPATH`` reaches worker processes as well.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = os.environ["HOUSE_PACKAGE"]
FOLDER = Path(os.environ["HOUSE_TRACE"])
seen: dict[int, CodeType] = {}
"""By identity, which is quicker than the hash of a code object; kept alive, so that no number is used again."""


def note(frame: FrameType, event: str, _argument: object) -> None:
    """Write a line when a function of the package is called for the first time in this process."""
    code = frame.f_code
    if event != "call" or id(code) in seen:
        return
    seen[id(code)] = code
    # The body of a class is code as well, but its variables are not those of a function.
    function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    if function and code.co_filename.startswith(PACKAGE):
        line = f"{code.co_filename[len(PACKAGE) + 1 :]}\t{code.co_qualname}\t{code.co_firstlineno}\n"
        # Worker processes end without warning: nothing may wait in a buffer.
        with FOLDER.joinpath(str(os.getpid())).open("a", encoding="utf-8") as stream:
            stream.write(line)


sys.setprofile(note)
threading.setprofile(note)
