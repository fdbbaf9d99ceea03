"""Kernels of discrete optimisation on a grid of nodes: labels, lower bound, iterations."""

from __future__ import annotations

from regweave._core import fastpd, icm, trws

__all__ = ["fastpd", "icm", "trws"]
