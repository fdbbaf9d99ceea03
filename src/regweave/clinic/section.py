"""Section of ``result.json`` on a propagation as a whole: both scans, the start, similarity, consistency."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from regweave.clinic.quality import TESTS_SOURCE, kinds_done, whole_numbers
from regweave.clinic.scans.consistency import BothWays
from regweave.clinic.scans.prepared import PreparedScans
from regweave.clinic.scans.similarity import bones_bent, correlation, moved_inside
from regweave.clinic.start import Start, missing_ends
from regweave.io.grids import overlap_fraction
from regweave.run.result import Result

REVIEW = "UNAPPROVED – needs review by a qualified person"


def section_of(ready: PreparedScans, start: Start, result: Result, back: BothWays | None) -> dict[str, Any]:
    """Return what is told of a propagation apart from its structures, as JSON values."""
    scans, today, plan = ready.scans, ready.today, ready.plan
    numbers = whole_numbers(scans.plan, scans.today)
    settings = json.dumps(result.settings.model_dump(mode="json"), sort_keys=True)
    there = result.inverse_consistency_mm
    two_ct = scans.today.modality == scans.plan.modality == "CT"
    signs = {
        "bones_bent_mm": _known(bones_bent(today, result.transform)),
        "displacement_p95_mm": _known(moved_inside(today, result.transform)),
    }
    overlap = overlap_fraction(today.image.geometry, plan.image.geometry, start.transform.affine)
    return {
        "status": REVIEW,
        "patient_sha": scans.today.identity.patient_hash,
        "plan_sha": scans.plan.identity.series_hash,
        "today_sha": scans.today.identity.series_hash,
        "settings_sha": hashlib.sha256(settings.encode()).hexdigest()[:16],
        "whole": {
            **numbers,
            "overlap_percent": 100 * overlap,
            "today_values": _values(ready),
            "field_of_view": "part of the patient" if today.seen is not None else "whole patient",
            "missing_ends": missing_ends(today, plan, start.transform),
            "start": start.method,
            "similarity_headers": _known(start.headers),
            "similarity_before": _known(start.chosen),
            "similarity_after": _known(correlation(today, plan, result.transform)),
            **(signs if two_ct else {}),
            "folding_percent": 100 * result.regularity["folding_fraction"],
            "inverse_mean_mm": _known(there["mean"]), "inverse_p95_mm": _known(there["p95"]),
            "inverse_max_mm": _known(there["max"]),
            **({} if back is None else back.numbers(today)),
        },
        "tests": kinds_done(both_ways=back is not None),
        "tests_source": TESTS_SOURCE,
    }  # fmt: skip


def _values(ready: PreparedScans) -> str:
    if ready.mapped is not None:
        return f"HU by {ready.mapped.words}"
    return "HU taken from the file" if ready.scans.today.modality == "CT" else "taken from the file"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
