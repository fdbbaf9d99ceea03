"""Choice of structures: carried over, the patient's outline, or left out with a reason."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from regweave import notices
from regweave.errors import UsageError
from regweave.io.dicom.rtstruct import checked_names
from regweave.types import LeftOut, Structure, StructureSet

OUTLINE = re.compile(r"^(body|external|skin|patient|outer ?contour|ext(ernal)?[ _-]?contour)$", re.IGNORECASE)
DOSE = re.compile(r"^(dose\b.*|.*\b\d+([.,]\d+)? ?\[?(c?gy)\]?|.*\b\d+ ?% ?(isodose)?|iso ?dose.*)$", re.IGNORECASE)
MARGIN_NOTE = "re-derive from CTV"
"""A planning target is a clinical target with a margin: propagated it is neither."""


@dataclass(frozen=True)
class StructureChoice:
    """Structures of a plan and what becomes of each.

    Parameters
    ----------
    carried : tuple of Structure
        Go through the transform.
    outlines : tuple of Structure
        The patient's outline: found in today's scan or carried (`regweave.clinic.scans.outline`).
    left_out : tuple of LeftOut
        Not taken, and why.
    notes : mapping
        What a reader must know of a structure, by its number.
    """

    carried: tuple[Structure, ...]
    outlines: tuple[Structure, ...]
    left_out: tuple[LeftOut, ...]
    notes: dict[int, str]


def is_outline(structure: Structure) -> bool:
    """Tell whether a structure is the patient's outline, by its type or else its name.

    Examples
    --------
    >>> is_outline(Structure(1, "BODY")), is_outline(Structure(2, "body of mandible"))
    (True, False)
    """
    return structure.kind == "EXTERNAL" or (not structure.kind and bool(OUTLINE.match(structure.name.strip())))


def is_of_dose(structure: Structure) -> bool:
    """Tell whether a structure was made from a dose, so that it belongs to the plan and not to the patient.

    Examples
    --------
    >>> [is_of_dose(Structure(1, name)) for name in ("Dose 5200[cGy]", "95% isodose", "GTV")]
    [True, True, False]
    """
    return structure.kind in {"DOSE_REGION", "TREATED_VOLUME", "IRRAD_VOLUME"} or bool(
        DOSE.match(structure.name.strip())
    )


def choose(planned: StructureSet, names: Collection[str] | None) -> StructureChoice:
    """Decide what becomes of each structure of a plan.

    Parameters
    ----------
    planned : StructureSet
    names : collection of str, optional
        Structures that are asked for: all others are left out, and these are carried whatever they are.

    Raises
    ------
    UsageError
        E165 for a name that the plan does not have.
    """
    _require_known(planned.structures, names)
    carried, outlines, left, notes = [], [], list(planned.left_out), {}
    for one in planned.structures:
        asked = names is not None and one.name in names
        if names is not None and not asked:
            left.append(LeftOut(one.name, "not asked for"))
        elif is_of_dose(one) and not asked:
            left.append(LeftOut(one.name, "made from a dose: it belongs to the plan; ask for it by name"))
        elif is_outline(one) and one.contours:
            outlines.append(one)
        else:
            carried.append(one)
            if one.kind == "PTV" or (not one.kind and one.name.upper().startswith("PTV")):
                notes[one.number] = MARGIN_NOTE
    return StructureChoice(tuple(carried), tuple(outlines), tuple(left), notes)


def require_names(structures: Sequence[Structure], names: Mapping[str, str]) -> None:
    """Raise E166 for new names that cannot be written, before anything is computed; W234 where none is known."""
    with notices.muted():
        checked_names(structures, names)
    if names and not {one.name for one in structures} & set(names):
        notices.warn(f"W234: none of the {len(names)} names of the name map is that of a structure; all keep their own")


def _require_known(structures: Sequence[Structure], names: Collection[str] | None) -> None:
    unknown = sorted(set(names or ()) - {one.name for one in structures})
    if names is not None and (unknown or not names):
        has = ", ".join(one.name for one in structures)
        lower = {one.name.casefold(): one.name for one in structures}
        near = [lower[m] for name in unknown for m in difflib.get_close_matches(name.casefold(), lower, 1)]
        meant = f"did you mean {', '.join(map(repr, near))}? " if near else ""
        what = ", ".join(map(repr, unknown)) or "(none named)"
        raise UsageError("E165", f"the plan has no structure {what}", f"{meant}it has {has}")
