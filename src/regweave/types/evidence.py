"""Evidence of the last discrete step, on the control grid."""

from __future__ import annotations

from dataclasses import dataclass

from regweave.types.arrays import Float32Array
from regweave.types.geometry import Geometry


@dataclass(frozen=True)
class NodeEvidence:
    """Influence of each metric and confidence at each control point.

    Parameters
    ----------
    geometry : Geometry
        The nodes as a grid of voxels: their number, and where they lie.
    members : tuple of str
        Members of the bank that the discrete levels use.
    influence : float32 array of shape (M, *nodes)
        Spread (standard deviation over the labels) of each member's weighted, scaled cost. What is the same for all
        labels decides nothing, so it does not count.
    confidence : float32 array of shape nodes
        Second smallest minus smallest of the node's unaries, in units of the energy: 0 means a tie.
    """

    geometry: Geometry
    members: tuple[str, ...]
    influence: Float32Array
    confidence: Float32Array
