"""Which files of a result are written."""

from __future__ import annotations

from collections.abc import Iterable

from regweave.errors import UsageError

FILES = {
    "warped": "warped.nii.gz",
    "labels": "warped_labels.nii.gz",
    "transform": "transform.h5",
    "inverse": "inverse.h5",
    "displacement": "displacement.nii.gz",
    "report": "report.html",
}
"""What can be chosen, and its file; ``result.json`` is always written, ``report`` has the folder ``view`` besides."""
DEFAULT = ("warped", "labels", "transform", "inverse", "report")
"""All but the displacement, which repeats the transform."""
SMALL_VOXELS = 1_000_000
"""Up to this size the displacement is written too: programs that read no ITK transform read it, and it costs little."""
NEEDED_BY_REPORT = ("warped", "labels", "transform")


def usual_outputs(n_voxels: int) -> tuple[str, ...]:
    """Return what is written where nobody chooses, for a fixed image of that many voxels.

    Examples
    --------
    >>> "displacement" in usual_outputs(64**3), "displacement" in usual_outputs(512 * 512 * 55)
    (True, False)
    """
    return check_outputs((*DEFAULT, "displacement") if n_voxels <= SMALL_VOXELS else DEFAULT)


def check_outputs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of outputs in their usual order, or raise E119.

    Examples
    --------
    >>> check_outputs(["transform", "warped"])
    ('warped', 'transform')
    """
    wanted = set(names)
    unknown = sorted(wanted - set(FILES))
    if unknown or not wanted:
        message = f"outputs {', '.join(map(repr, unknown)) or 'are missing'}, known are {', '.join(FILES)}"
        raise UsageError("E119", message, f"choose some of them; the default is {','.join(DEFAULT)}")
    lacking = [name for name in NEEDED_BY_REPORT if name not in wanted]
    if "report" in wanted and lacking:
        message = f"a report is made from {', '.join(NEEDED_BY_REPORT)}, and {', '.join(lacking)} are not to be written"
        raise UsageError("E119", message, "add them, or leave the report out")
    return tuple(name for name in FILES if name in wanted)


def parse_outputs(text: str) -> tuple[str, ...]:
    """Read names with commas between them.

    Examples
    --------
    >>> parse_outputs("warped, inverse")
    ('warped', 'inverse')
    """
    return check_outputs(name.strip() for name in text.split(","))
