"""regweave itself, run and timed as the peers are, with the interpreter that has it."""

from typing import Any

import _fields

DISTRIBUTION = "regweave"
SETTINGS: dict[str, dict[str, Any]] = {"default": {"preset": "default"}, "paper": {"preset": "paper"}}


def run(fixed_path: str, moving_path: str, out_field_path: str, setting: dict[str, Any], threads: int) -> float:
    """Register, write the field, return the seconds of the levels and the refinement.

    A model chooses its weights by the moving labels, which its user has; a preset is given none.
    """
    from regweave import register
    from regweave.io import total_displacement

    labels, classes = setting.get("moving_labels"), setting.get("classes")
    result = register(
        fixed_path,
        moving_path,
        preset=setting.get("preset"),
        model=setting.get("model"),
        moving_labels=labels,
        classes=None if classes is None else tuple(classes),
        init="none",
        threads=threads,
    )
    _fields.write(out_field_path, total_displacement(result.transform).data)
    return float(result.seconds["classes"] + result.seconds["levels"] + result.seconds["refine"])
