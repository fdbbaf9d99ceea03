"""Settings for two scans of one patient: stiffer than between people, and as many steps as the scan affords."""

from math import prod
from typing import Any

from regweave.config.presets import preset
from regweave.config.settings import Member, Settings
from regweave.spatial.pyramid import shrink_geometry
from regweave.types import Geometry

LEVELS_SMOOTHNESS = 0.5
SMOOTHNESS, BENDING_MM = 0.1, 24.0
EXACT: dict[str, Any] = {"exact": True, "rate": 0.1, "smoothness_ct": 0.02}
"""Of two CT without a model; exact forces are larger, so that the same smoothness is a smaller number."""
SMOOTHNESS_MR = 0.5  # For all but CT; less lets the little that a phantom in MR shows be torn apart
CONTROL_MM = 8.0
ONE_STAGE = {"finest_mm": None, "finest_steps": 0, "finest_smoothness": None}
TISSUE = (
    Member(name="tissue", metric="sad", stage="refine"),
    Member(name="soft-tissue", metric="sad", stage="refine", window=(-150.0, 250.0)),
)
"""Hounsfield numbers, constant in one patient: they identify an organ of even density better than its texture."""
STEPS = (24, 80)
STEP_VOXELS = 60_000_000  # Voxels times steps that the refinement may take


def intra_patient_settings(
    geometry: Geometry, base: Settings | None = None, *, tissue: bool = True, modality: str | None = "ct"
) -> Settings:
    """Return the default preset for two scans of one patient, or the settings of a model with its refinement.

    Tissue of one patient deforms more smoothly than two people differ. The refinement penalises bending more than
    stretching, which would shrink every true deformation, and has control points 8 mm apart. Small structures need many
    steps; a large scan gets fewer, which bounds its time.

    Without a model the levels penalise the whole displacement, ten times as much as between people. Otherwise the noise
    of a scanner moves a uniform region, even after a correct start. The refinement compares Hounsfield numbers too,
    unless ``tissue`` is false: mapped values are not as exact. Of two CT without a model the refinement follows the
    exact derivative of smooth images; other pairs were not tested with it.
    """
    own: dict[str, Any] = {}
    if base is None:
        base = preset("default")
        banks = {**base.banks, "ct": (*base.banks["ct"], *(TISSUE if tissue else ()))}
        own = {"smoothness": LEVELS_SMOOTHNESS, "pairwise": "elastic", "banks": banks}
    # One stage at most of the size of an image that is not shrunken: its steps are what a clinic has time for.
    base = base.model_copy(update={"refine": base.refine.model_copy(update=ONE_STAGE)})
    voxels = prod(shrink_geometry(geometry, base.refine.factors(geometry)).shape)
    steps = max(STEPS[0], min(STEPS[1], STEP_VOXELS // voxels))
    chosen: dict[str, Any] = {
        "smoothness": SMOOTHNESS_MR, "smoothness_ct": SMOOTHNESS, "bending_mm": BENDING_MM, "spacing_mm": CONTROL_MM,
        "steps": steps,
    }  # fmt: skip
    if own and tissue and modality == "ct":
        chosen |= EXACT
    refine = base.refine.model_copy(update=chosen)
    return base.model_copy(update={"name": f"{base.name} for one patient", "refine": refine, **own})
