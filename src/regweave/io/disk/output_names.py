"""Names of outputs, checked before anything is computed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from regweave.errors import RegweaveError, UsageError

LONGEST = 255
"""Bytes that a name may have on nearly every file system."""
LONGEST_PATH = 4000
"""Bytes that a whole path may have, with room for the hidden name of what is being written."""
SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Identifiers of pairs, which become names of files."""


def check_name(path: str | Path, *, folder: bool = False) -> None:
    """Raise E152 where an output cannot have this name.

    Parameters
    ----------
    path : path
        As the user gave it.
    folder : bool
        True for a folder, which appears by renaming and so cannot be the one that the process stands in.
    """
    text = str(path)
    bytes_ = os.fsencode(text)
    shown = bytes_.decode(errors="backslashreplace").replace("\0", "\\0")
    shown = shown if len(shown) <= 80 else f"{shown[:60]}…"
    if text in {"", "."}:
        raise UsageError("E152", "the name of the output is empty or the present folder", "name a new one with -o")
    try:
        bytes_.decode()
    except UnicodeDecodeError:
        raise UsageError("E152", f"the output name '{shown}' is not UTF-8", "choose another -o") from None
    if "\0" in text:
        raise UsageError("E152", f"the output name '{shown}' holds a null character", "choose another -o")
    try:
        here = Path.cwd()
    except OSError as error:
        raise RegweaveError("E153", "the present folder does not exist any more", "change to another one") from error
    longest = max(len(os.fsencode(part)) for part in Path(text).parts)
    if longest > LONGEST or len(os.fsencode(here / text)) > LONGEST_PATH:
        message = f"the output name '{shown}' is too long: {longest} bytes in one name, allowed {LONGEST}"
        raise UsageError("E152", message, "choose a shorter -o")
    target = (here / text).resolve()
    if folder and target in {here.resolve(), Path(target.anchor)}:
        raise UsageError("E152", f"the output '{shown}' is the present folder or a root", "name a new folder with -o")
