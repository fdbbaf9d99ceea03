"""Entry point of ``python -m regweave``."""

import sys

from regweave.cli import main

sys.exit(main())
