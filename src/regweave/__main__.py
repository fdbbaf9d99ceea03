"""Entry point of ``python -m regweave``."""

from __future__ import annotations

import sys

from regweave.cli import main

sys.exit(main())
