"""Measures of registration quality: overlap, surface distance, regularity."""

from __future__ import annotations
