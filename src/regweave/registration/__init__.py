"""Registration of a pair: affine start, discrete coarse-to-fine levels, continuous refinement."""

from __future__ import annotations
