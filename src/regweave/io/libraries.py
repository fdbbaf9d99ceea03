"""Libraries as untyped names: those of images, and those that an extra installs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import nibabel
import SimpleITK

from regweave.errors import UsageError

nib: Any = nibabel
sitk: Any = SimpleITK


def optional_package(name: str, extra: str) -> Any:
    """Return a package that not every user has installed.

    Parameters
    ----------
    name : str
        Package or module.
    extra : str
        Extra of regweave that installs it.

    Raises
    ------
    UsageError
        E158 with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f'pip install "regweave[{extra}]"'
        raise UsageError("E158", f"this needs the package {name.partition('.')[0]}", hint) from error


def in_notebook() -> bool:
    """Tell whether the program runs in a kernel that shows HTML, without loading one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
