"""Structures that a registration keeps rigid, by name; bones also by their Hounsfield units."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from regweave import notices
from regweave.errors import UsageError
from regweave.io.labels import normalised
from regweave.spatial.rigid import keep_rigid
from regweave.types import Image, IntArray, LabelMap, Transform

BONES = "bones"
BONE_HU = 250.0
BONE_NAMES = re.compile(
    r"mandib|jaw|vertebra|spine|skull|crani|sacrum|coccyx|rib|stern|scapul|clavic|humerus|radius|ulna|pelvis|hip|ilium|femu"
    r"|femor|patell|tibia|fibula|bone"
)
NO_BONES = re.compile(r"cord|canal|muscle|ptv|ctv|gtv|fibular?nerve|stria|tribut")
LEAST_VOXELS = 27  # Smaller pieces of a structure move with its nearest larger one; smaller bones are noise


def names_of(given: Any) -> tuple[str, ...]:
    """Return names of structures, given as a text with commas or as a sequence; E121 for anything else, or none."""
    names = given.split(",") if isinstance(given, str) else given
    if isinstance(names, Sequence) and names and all(isinstance(n, str) and n.strip() for n in names):
        return tuple(dict.fromkeys(n.strip() for n in names))
    message = f"structures to keep rigid are {given!r}, needed are names"
    raise UsageError("E121", message, "give names of the moving labels, or bones for those of a CT")


def rigid_parts(names: Sequence[str], image: Image) -> LabelMap:
    """Return the parts of a moving image that are kept rigid: connected pieces, each with the name of its structure.

    Raises E121 for a name that no label has, a structure without a voxel, and bones where the image shows none.
    """
    labels, found = image.labels, list[tuple[str, NDArray[np.bool_]]]()
    known = {} if labels is None else {v: labels.name(v) for v in labels.values()}
    for name in names:
        values = [v for v, own in known.items() if normalised(own) == normalised(name) or str(v) == name]
        if labels is not None and values:
            found.append((name, np.isin(labels.data, values)))
        elif normalised(name) != BONES:
            raise _unknown(name, known, labels)
        else:
            words = {v: normalised(own) for v, own in known.items()}
            bony = [v for v, word in words.items() if BONE_NAMES.search(word) and not NO_BONES.search(word)]
            found += [(known[v], labels.data == v) for v in bony if labels is not None]
            if image.modality != "ct":
                shown = (image.modality or "image").upper()
                message = f"bones are found in a CT alone; the moving image is {shown}"
                raise UsageError("E121", message, "name structures")
            found.append((BONES, np.asarray(image.data > BONE_HU)))
    parts, called = np.zeros(image.data.shape, dtype=np.int32), dict[int, str]()
    for name, mask in found:
        pieces = _pieces(mask & (parts == 0), noise=name == BONES)
        parts = np.where(pieces > 0, pieces + len(called), parts)
        called |= {len(called) + n: name for n in range(1, int(pieces.max(initial=0)) + 1)}
    if not called:
        raise UsageError("E121", "no bone is found in the moving image", "give labels of the bones, and their names")
    return LabelMap(parts.astype(np.int32), image.geometry, called)


def _unknown(name: str, known: dict[int, str], labels: LabelMap | None) -> UsageError:
    if labels is None:
        return UsageError("E121", f"{name!r} cannot be kept rigid: there are no moving labels", "give moving labels")
    empty = any(normalised(own) == normalised(name) for own in labels.names.values())
    near = difflib.get_close_matches(name.casefold(), {own.casefold() for own in known.values()}, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    what = "has no voxel in the moving labels" if empty else "is no structure of the moving labels"
    return UsageError("E121", f"{name!r} {what}", f"{meant}they show {', '.join(known.values())}")


def _pieces(mask: NDArray[np.bool_], *, noise: bool) -> IntArray:
    """Return the connected pieces of a structure by number; small ones are noise, or part of the nearest larger one."""
    touching = np.ones((3, 3, 3))
    large = ndimage.label(mask, touching)[0]
    small = np.bincount(large.ravel()) < LEAST_VOXELS
    small[0] = False
    if small.any() and (noise or not small[1:].all()):
        kept = ndimage.label(mask & ~small[large], touching)[0]
        if noise:
            return np.asarray(kept, dtype=np.int32)
        nearest = ndimage.distance_transform_edt(kept == 0, return_distances=False, return_indices=True)
        large = np.where(mask, kept[tuple(nearest)], 0)
    return np.asarray(large, dtype=np.int32)


def stiffened(transform: Transform, parts: LabelMap) -> tuple[Transform, dict[str, float]]:
    """Return a map that is rigid in the parts, and how far from rigid each structure was, root mean square in mm.

    Warns with W221 of parts that are not kept rigid: the fixed image does not show them, or their motions would fold.
    """
    made, bent, folding = keep_rigid(transform, parts)
    missing = [f"{name} (outside the fixed image)" for name in parts.names.values() if name not in
               {parts.names[value] for value in bent}]  # fmt: skip
    missing += [f"{parts.names[value]} (its motion would fold what lies around)" for value in sorted(folding)]
    if missing:
        notices.warn(f"W221: structures are not kept rigid: {', '.join(dict.fromkeys(missing))}")
    worst = {name: max(mm for v, mm in bent.items() if parts.names[v] == name) for name in
             dict.fromkeys(parts.names[v] for v in bent)}  # fmt: skip
    return made, worst
