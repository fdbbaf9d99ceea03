"""itk-elastix: B-splines on mutual information and correlation, weighted by hand or by elastix's relative weights."""

from __future__ import annotations

from typing import Any

from elastix_mi import DISTRIBUTION, run

_BOTH = {
    "Metric": [
        "AdvancedMattesMutualInformation",
        "AdvancedNormalizedCorrelation",
        "TransformBendingEnergyPenalty",
    ],
    "MaximumNumberOfIterations": ["500"],
    "NumberOfSpatialSamples": ["4096"],
    "grid_voxels": 5,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "1 : 1": {**_BOTH, "Metric0Weight": ["1"], "Metric1Weight": ["1"], "Metric2Weight": ["1"]},
    "1 : 0.3": {**_BOTH, "Metric0Weight": ["1"], "Metric1Weight": ["0.3"], "Metric2Weight": ["1"]},
    "1 : 3": {**_BOTH, "Metric0Weight": ["1"], "Metric1Weight": ["3"], "Metric2Weight": ["1"]},
    "relative 0.5 : 0.5 : 0.05": {
        **_BOTH,
        "UseRelativeWeights": ["true"],
        "Metric0RelativeWeight": ["0.5"],
        "Metric1RelativeWeight": ["0.5"],
        "Metric2RelativeWeight": ["0.05"],
    },
}

__all__ = ["DISTRIBUTION", "SETTINGS", "run"]
