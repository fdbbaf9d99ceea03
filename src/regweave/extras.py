"""Optional dependencies, imported where they are first needed.

The groups are those of ``[project.optional-dependencies]`` in ``pyproject.toml``.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from regweave.errors import UsageError


def installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    package = module.partition(".")[0]
    return sys.modules.get(package) is not None or find_spec(package) is not None


def require(module: str, extra: str, purpose: str, code: str = "E158") -> None:
    """Refuse to go on without a package that only some users need, with the command that installs it: UsageError.

    ``extra`` is the group of dependencies that brings it, ``purpose`` the beginning of a sentence, such as "learning".
    """
    package = module.partition(".")[0]
    if not installed(package):
        message = f"{purpose} needs the package {package}, which is not installed"
        hint = f'pip install "regweave[{extra}]"; in a folder of the sources: pip install -e ".[{extra}]"'
        raise UsageError(code, message, hint)


def load(module: str, extra: str, purpose: str, code: str = "E158") -> Any:
    """Import a module of a package that only some users need; see `require`."""
    require(module, extra, purpose, code)
    return import_module(module)
