"""Drawn structures as shapes: signed distances on the true slices, and sub-voxel outlines again."""

from __future__ import annotations
