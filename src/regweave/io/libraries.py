"""Image libraries as untyped names, and the notebook that may be around."""

from __future__ import annotations

import sys
from typing import Any

import nibabel
import SimpleITK

nib: Any = nibabel
sitk: Any = SimpleITK


def in_notebook() -> bool:
    """Tell whether the program runs in a kernel that shows HTML, without loading one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
