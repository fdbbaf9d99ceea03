"""Page, tables and pictures of a reproduction of the paper's experiments."""

from __future__ import annotations

from regweave.report.reproduce.page import write_page

__all__ = ["write_page"]
