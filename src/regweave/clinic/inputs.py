"""Inputs of a propagation: planning scan, its structure set, today's scan, read and checked against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import require_same_patient, scan
from regweave.io.dicom.rtstruct import read_rtstruct, referenced_series
from regweave.io.dicom.series import Series, list_series, read_series
from regweave.types import StructureSet

ScanLike = str | Path | Sequence[str | Path] | Series
"""A folder, a list of files (or a .txt file that names them), or a series that was read."""


@dataclass(frozen=True)
class Scans:
    """Both scans and the structures of the plan."""

    plan: Series
    today: Series
    planned: StructureSet


def read_scans(
    plan: ScanLike,
    today: ScanLike,
    rtstruct: str | Path | StructureSet | None = None,
    *,
    series: tuple[str | None, str | None] = (None, None),
    allow_id_mismatch: bool = False,
) -> Scans:
    """Read both scans and the structure set; ``series`` has the hashes of the plan's series and of today's.

    Raises E101 without a structure set, E146 if it was drawn on today's scan, E161 for several sets or series without a
    choice, E162 for different patients. Warns with W231 if plan and today are one series, W232 if today's is the older
    study, W233 if the folder of the plan holds several patients.
    """
    chosen = rtstruct if isinstance(rtstruct, StructureSet) else _rtstruct(plan, today, rtstruct)
    drawn_on = referenced_series(chosen) if isinstance(chosen, Path) else frozenset()
    planned_on = plan if isinstance(plan, Series) else _plan(plan, chosen, drawn_on, series[0], allow_id_mismatch)
    current = today if isinstance(today, Series) else read_series(today, series[1])
    if not allow_id_mismatch:
        require_same_patient(planned_on.identity, current.identity, "the plan and today's scan")
    _require_order(planned_on, current, drawn_on)
    if isinstance(chosen, Path):
        chosen = read_rtstruct(chosen, planned_on, allow_id_mismatch=allow_id_mismatch)
    return Scans(planned_on, current, chosen)


def _rtstruct(plan: ScanLike, today: ScanLike, named: str | Path | None) -> Path:
    if named is not None:
        return Path(named)
    sets = _sets_in(plan)
    if len(sets) != 1:
        count = f"{len(sets)} structure sets" if sets else "no structure set"
        kind = UsageError if sets else RegweaveError
        hint = "name one with --rtstruct"
        if not sets and not isinstance(today, Series) and _sets_in(today):
            hint = "the folder of today's scan holds one: are PLAN and TODAY exchanged? Else name one with --rtstruct"
        raise kind("E161" if sets else "E101", f"the folder of the plan holds {count}", hint)
    return sets[0]


def _sets_in(source: Any) -> list[Path]:
    return [one.path for one in scan(source).objects if one.kind == "RTSTRUCT"]


def _plan(
    plan: Any, chosen: Path | StructureSet, drawn_on: frozenset[str], series: str | None, allow_id_mismatch: bool
) -> Series:
    """Read the series of the structure set, unless another one is chosen."""
    if series is None and drawn_on and isinstance(chosen, Path):
        listed = list_series(plan)
        fitting = [one for one in listed if one.identity.series_uid in drawn_on]
        if not fitting and len({one.identity.patient_hash for one in listed}) == 1 and not allow_id_mismatch:
            owner = scan([chosen]).objects[0].identity
            require_same_patient(owner, listed[0].identity, "the structure set and the images of the plan")
        if len(listed) > 1 and len(fitting) == 1:
            series = fitting[0].identity.series_uid
            patients = len({one.identity.patient_hash for one in listed})
            if patients > 1:
                notices.warn(
                    f"W233: the folder of the plan holds images of {patients} patients; the series that the structure "
                    "set was drawn on is used"
                )
    return read_series(plan, series)


def _require_order(plan: Series, today: Series, drawn_on: frozenset[str]) -> None:
    """Raise E146 if the structures were drawn on today's scan; warn if the two scans look exchanged."""
    uids = [one.identity.series_uid for one in (plan, today)]
    if uids[0] == uids[1] != "":
        notices.warn("W231: the plan and today's scan are the same series: the contours should come back as they were")
        return
    if uids[1] in drawn_on and uids[0] not in drawn_on:
        message = "the structure set was drawn on today's scan, not on the plan"
        raise UsageError("E146", message, "exchange PLAN and TODAY, or name the structure set of the plan")
    dates = [one.study.get("StudyDate", "") for one in (plan, today)]
    if all(len(date) == 8 and date.isdigit() for date in dates) and dates[1] < dates[0]:
        notices.warn("W232: today's scan is of an older study than the plan: are PLAN and TODAY exchanged?")
