"""The command line: one file a command."""

from __future__ import annotations

from regweave.cli.app import main

__all__ = ["main"]
