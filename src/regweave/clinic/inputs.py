"""Inputs of a propagation: planning scan, its structure set, today's scan, read and checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.parse import require_same_patient, scan
from regweave.io.dicom.rtstruct import read_rtstruct, referenced_series
from regweave.io.dicom.series import Series, list_series, read_series
from regweave.types import StructureSet


@dataclass(frozen=True)
class Sources:
    """Inputs as a user names them: scans as folders, files or series in memory, and how they are chosen.

    Parameters
    ----------
    plan, today
        A folder, a list of files, or a `Series`.
    rtstruct : path or StructureSet, optional
        By default the one structure set in the folder of the plan.
    plan_series, today_series : str, optional
        Hashes of the image series that are meant, where a folder holds several.
    allow_id_mismatch : bool
        Take scans that state different patients.
    """

    plan: Any
    today: Any
    rtstruct: str | Path | StructureSet | None = None
    plan_series: str | None = None
    today_series: str | None = None
    allow_id_mismatch: bool = False


@dataclass(frozen=True)
class Scans:
    """Both scans and the structures of the plan."""

    plan: Series
    today: Series
    planned: StructureSet


def read_scans(sources: Sources) -> Scans:
    """Read both scans and the structure set.

    Raises
    ------
    RegweaveError
        E101 where there is no structure set, E146 where it was drawn on today's scan, E161 where there are several sets
        or series and none is chosen, E162 for different patients, and what reading raises.

    Warns
    -----
    RegweaveWarning
        W231 where plan and today are one series, W232 where today's is the older study, W233 where the folder of the
        plan holds several patients.
    """
    chosen = sources.rtstruct if isinstance(sources.rtstruct, StructureSet) else _rtstruct(sources)
    drawn_on = referenced_series(chosen) if isinstance(chosen, Path) else frozenset()
    plan = sources.plan if isinstance(sources.plan, Series) else _plan(sources, chosen, drawn_on)
    today = sources.today if isinstance(sources.today, Series) else read_series(sources.today, sources.today_series)
    if not sources.allow_id_mismatch:
        require_same_patient(plan.identity, today.identity, "the plan and today's scan")
    _require_order(plan, today, drawn_on)
    planned = (
        chosen
        if isinstance(chosen, StructureSet)
        else read_rtstruct(chosen, plan, allow_id_mismatch=sources.allow_id_mismatch)
    )
    return Scans(plan, today, planned)


def _rtstruct(sources: Sources) -> Path:
    if sources.rtstruct is not None:
        return Path(str(sources.rtstruct))
    found = _sets_in(sources.plan)
    if len(found) != 1:
        count = f"{len(found)} structure sets" if found else "no structure set"
        kind = UsageError if found else RegweaveError
        hint = "name one with --rtstruct"
        if not found and not isinstance(sources.today, Series) and _sets_in(sources.today):
            hint = "the folder of today's scan holds one: are PLAN and TODAY exchanged? Else name one with --rtstruct"
        raise kind("E161" if found else "E101", f"the folder of the plan holds {count}", hint)
    return found[0]


def _sets_in(source: Any) -> list[Path]:
    return [one.path for one in scan(source).objects if one.kind == "RTSTRUCT"]


def _plan(sources: Sources, chosen: Path | StructureSet, drawn_on: frozenset[str]) -> Series:
    """Read the series that the structure set refers to, unless another one is asked for."""
    series = sources.plan_series
    if series is None and drawn_on and isinstance(chosen, Path):
        listed = list_series(sources.plan)
        fitting = [one for one in listed if one.identity.series_uid in drawn_on]
        if not fitting and len({one.identity.patient_hash for one in listed}) == 1 and not sources.allow_id_mismatch:
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
    return read_series(sources.plan, series)


def _require_order(plan: Series, today: Series, drawn_on: frozenset[str]) -> None:
    """Raise E146 where the structures lie on today's scan already; warn where the two scans look exchanged."""
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
