"""What ITK says about a file that it refuses, in words for a user."""

from __future__ import annotations

from regweave.errors import RegweaveError
from regweave.io.files import damaged


def unreadable(subject: str, error: RuntimeError) -> RegweaveError:
    """Make the E102 error of a file that ITK refuses, without ITK's source lines and addresses."""
    last = str(error).strip().splitlines()[-1].strip()
    return damaged(subject, f"ITK cannot read it ({last[:160]})")
