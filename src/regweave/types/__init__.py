"""Immutable value types: files → pair → costs → energy → labels → field.

Conventions, kept everywhere: arrays of voxels are indexed ``[i, j, k]`` in the order of the image axes and are
C-contiguous; ``affine`` takes such an index to LPS millimetres; vectors are component-first, ``(3, X, Y, Z)``.
"""

from regweave.types.energy import Energy, NodeEvidence, Solution, Terms, WeightTable
from regweave.types.images import (
    Direction,
    Ends,
    Field,
    Float32Array,
    Float64Array,
    Geometry,
    Guides,
    Image,
    ImagePair,
    IntArray,
    LabelArray,
    LabelMap,
    Modality,
    StructureMaps,
    Transform,
    Volume,
)
from regweave.types.structures import PALETTE, Colour, Contour, Identity, LeftOut, OutlineKind, Structure, StructureSet

__all__ = [
    "PALETTE", "Colour", "Contour", "Direction", "Ends", "Energy", "Field", "Float32Array", "Float64Array", "Geometry",
    "Guides", "Identity", "Image", "ImagePair", "IntArray", "LabelArray", "LabelMap", "LeftOut", "Modality",
    "NodeEvidence", "OutlineKind", "Solution", "Structure", "StructureMaps", "StructureSet", "Terms", "Transform",
    "Volume", "WeightTable",
]  # fmt: skip
