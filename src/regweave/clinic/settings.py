"""Settings for two scans of one patient: smoother than between people, and as many steps as the scan affords."""

from __future__ import annotations

from math import prod

from regweave.config.settings import Settings, preset
from regweave.spatial.pyramid import shrink_geometry
from regweave.types import Geometry

SMOOTHNESS = 0.3
SMOOTHNESS_MR = 0.5
"""For all but CT; less lets the little that a phantom in MR shows be torn apart."""
CONTROL_MM = 5.0
STEPS = (24, 80)
STEP_VOXELS = 60_000_000
"""Voxels times steps that the refinement may take."""


def intra_patient_settings(geometry: Geometry, base: Settings | None = None) -> Settings:
    """Return settings, by default the default preset, with a refinement for two scans of one patient.

    Tissue of one patient deforms more smoothly than two people differ: three times the smoothness, control points 5 mm
    apart. Small structures need many steps; a large scan gets fewer, so that it ends in time.

    Examples
    --------
    >>> import numpy as np
    >>> intra_patient_settings(Geometry((170, 210, 20), np.diag([1.1, 1.1, 2.5, 1.0]))).refine.steps
    80
    """
    base = preset("default") if base is None else base
    voxels = prod(shrink_geometry(geometry, base.refine.factors(geometry)).shape)
    steps = max(STEPS[0], min(STEPS[1], STEP_VOXELS // voxels))
    chosen = {"smoothness": SMOOTHNESS_MR, "smoothness_ct": SMOOTHNESS, "spacing_mm": CONTROL_MM, "steps": steps}
    return base.model_copy(
        update={"name": f"{base.name} for one patient", "refine": base.refine.model_copy(update=chosen)}
    )
