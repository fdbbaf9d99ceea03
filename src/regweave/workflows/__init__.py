"""What users run: one registration, a phantom, the machine's share of threads and memory."""

from __future__ import annotations
