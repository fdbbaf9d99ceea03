"""Registration: initial alignment, the coarse-to-fine loop, the three problems it solves, the refinement."""

from __future__ import annotations
