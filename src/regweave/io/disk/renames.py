"""Rename without overwriting.

Linux has both calls that are needed (``renameat2``). Where system or file system lacks them (NFS, macOS), a new file
is linked to its name, or its name reserved by an exclusive creation; a folder is renamed after a look at the name, and
then at worst an empty folder that appeared in between is replaced: POSIX lets no folder replace anything else.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

AT_FDCWD = -100
NO_REPLACE, EXCHANGE = 1, 2
LACKING = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK}
"""What a system answers that does not know the call."""
TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}
"""What a system answers where something else stands under the new name."""


@cache
def _renameat2() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None


def _rename(source: Path, target: Path, flag: int) -> bool:
    """Call renameat2; False where there is no such call."""
    call = _renameat2()
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in LACKING:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one moment; False where the system cannot."""
    return _rename(one, other, EXCHANGE)


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or a folder to a name that nothing else has.

    Raises
    ------
    FileExistsError
        Where something has the name; it stays as it is.
    """
    try:
        if _rename(source, target, NO_REPLACE):
            return
        if source.is_dir():
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            source.rename(target)
        else:
            _link_new(source, target)
    except OSError as error:
        if error.errno in TAKEN and os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise


def _link_new(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in LACKING:
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        source.replace(target)
    else:
        source.unlink()
