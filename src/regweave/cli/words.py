"""Command line of the running process, for records."""

from __future__ import annotations

from contextvars import ContextVar

given: ContextVar[tuple[str, ...]] = ContextVar("regweave_words", default=())
"""Words after the name of the program."""
