"""Scans made ready: values in Hounsfield units, fields of view, working copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from regweave import notices
from regweave.clinic.inputs import Scans
from regweave.clinic.scans.field_of_view import field_of_view
from regweave.clinic.scans.hounsfield import HounsfieldMap, hounsfield_map
from regweave.clinic.scans.pair import WorkingScan, working_scan
from regweave.errors import RegweaveError
from regweave.types import Volume

LEAST_RANGE = {"ct": 100.0}
"""Range of values that a scan of a patient has at least, in Hounsfield units; any at all where the scale is its own."""


@dataclass(frozen=True)
class PreparedScans:
    """Both scans as they are registered.

    Parameters
    ----------
    scans : Scans
        As they were read; values of today's that were no Hounsfield units are mapped.
    today, plan : WorkingScan
    mapped : HounsfieldMap, optional
        What today's values went through.
    """

    scans: Scans
    today: WorkingScan
    plan: WorkingScan
    mapped: HounsfieldMap | None = None


def prepare(scans: Scans, on_part: Callable[[str, float], None] = lambda _words, _share: None) -> PreparedScans:
    """Make two scans ready; ``on_part`` takes what is done next, and the share that is done.

    Raises
    ------
    RegweaveError
        E147 for a scan that shows nothing.

    Warns
    -----
    RegweaveWarning
        W236 where today's values are no Hounsfield units, W237 where the field of view of a scan cuts the patient.
    """
    mapped, seen = None, {}
    for name, words in (("today", "today's scan"), ("plan", "the plan")):
        image = getattr(scans, name).image
        _require_content(image, words)
        seen[name] = field_of_view(image) if image.modality == "ct" else None
    if scans.today.modality == scans.plan.modality == "CT":
        mapped = hounsfield_map(scans.today.image, scans.plan.image, seen["today"])
    if mapped is not None:
        notices.warn(
            f"W236: the values of today's scan are no Hounsfield units; by its histogram they are taken as "
            f"{mapped.words}"
        )
        scans = replace(scans, today=replace(scans.today, image=mapped.of(scans.today.image)))
    on_part("patient in today's scan", 0.2)
    today = working_scan(scans.today.image, seen["today"])
    on_part("patient in the plan", 0.6)
    plan = working_scan(scans.plan.image, seen["plan"])
    on_part("start", 1.0)
    for words, scan in (("today's scan", today), ("the plan", plan)):
        if scan.seen is not None:
            notices.warn(f"W237: the field of view of {words} cuts the patient; nothing outside of it was measured")
    return PreparedScans(scans, today, plan, mapped)


def _require_content(image: Volume, words: str) -> None:
    low, high = np.percentile(image.data[::2, ::2], (0.5, 99.5))
    if high - low <= LEAST_RANGE.get(image.modality or "", 0.0):
        message = f"{words} shows nothing: 99 % of its values lie between {low:g} and {high:g}"
        raise RegweaveError("E147", message, "name the series that shows the patient")
