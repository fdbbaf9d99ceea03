"""Resolution and intensity: what the levels of the pyramid see of an image."""

from __future__ import annotations
