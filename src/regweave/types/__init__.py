"""Immutable value types: files → pair → costs → energy → labels → field.

Conventions, kept everywhere: arrays of voxels are indexed ``[i, j, k]`` in the order of the image axes and are
C-contiguous; ``affine`` takes such an index to LPS millimetres; vectors are component-first, ``(3, X, Y, Z)``.
"""

from regweave.types.energy import Energy, NodeEvidence, Solution, Terms, WeightTable
from regweave.types.geometry import Float32Array, Float64Array, Geometry, IntArray, LabelArray
from regweave.types.images import Guides, Image, ImagePair, LabelMap, Modality, StructureMaps, Volume
from regweave.types.structures import PALETTE, Colour, Contour, Identity, LeftOut, OutlineKind, Structure, StructureSet
from regweave.types.transform import Direction, Ends, Field, Transform

__all__ = [
    "PALETTE", "Colour", "Contour", "Direction", "Ends", "Energy", "Field", "Float32Array", "Float64Array", "Geometry",
    "Guides", "Identity", "Image", "ImagePair", "IntArray", "LabelArray", "LabelMap", "LeftOut", "Modality",
    "NodeEvidence", "OutlineKind", "Solution", "Structure", "StructureMaps", "StructureSet", "Terms", "Transform",
    "Volume", "WeightTable",
]  # fmt: skip
