"""Spatial maps: free-form deformations, dense fields, their composition, inverse and effect on images."""

from __future__ import annotations
