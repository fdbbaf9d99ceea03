"""Overview of a DICOM folder: series, structure sets and what is wrong with them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regweave import notices
from regweave.errors import RegweaveError
from regweave.io.dicom import dose, parse, reg, rtstruct
from regweave.io.dicom.series import Series, list_series, read_series
from regweave.io.disk.files import some
from regweave.io.stored import Stored, constant_error


@dataclass(frozen=True)
class OverviewEntry:
    """One series or object of a folder: one line, the same as plain values, problem and warnings; no identity."""

    what: str
    facts: dict[str, Any] = field(default_factory=dict)
    problem: RegweaveError | None = None
    notes: tuple[str, ...] = ()


def overview(folder: Path) -> tuple[OverviewEntry, ...]:
    """Read everything in a DICOM folder, series by series and object by object; one entry for each."""
    found = parse.scan(folder)
    entries, readable = [], {}
    for files in list_series(folder) if found.images else ():
        facts: dict[str, Any] = {"kind": files.modality, "series": files.hash, "patient": files.identity.patient_hash}
        with notices.collected() as noted, notices.muted():
            try:
                series = read_series(files.files)
            except RegweaveError as error:
                facts |= {"images": files.number}
                text = f"{files.modality} series {files.hash}, {files.number} images"
                entries.append(OverviewEntry(text, facts, error, tuple(noted)))
                continue
        readable[files.identity.series_uid] = series
        facts |= {"images": len(series.slices), "even": series.exact}
        even = "" if series.exact else ", uneven or sheared slices"
        text = f"{files.modality} series {files.hash}, {series.image.geometry.summary}{even}"
        stored = Stored(series.image.data, series.image.geometry, f"series {files.hash}")
        entries.append(OverviewEntry(text, facts, constant_error(stored.data, stored), tuple(noted)))
    if found.localisers:
        entries.append(OverviewEntry(f"{found.localisers} localisers, left out", {"kind": "localiser"}))
    if found.empty:
        facts = {"kind": "empty", "number": len(found.empty)}
        entries.append(OverviewEntry(f"{len(found.empty)} files without a byte, left out: {some(found.empty)}", facts))
    entries += [_object(one, readable) for one in found.objects]
    patients = len({entry.facts["patient"] for entry in entries if "patient" in entry.facts})
    if patients > 1:
        entries.append(
            OverviewEntry(f"images and objects of {patients} patients", {"kind": "patients", "number": patients})
        )
    return tuple(entries)


def _object(one: parse.ObjectFile, series: dict[str, Series]) -> OverviewEntry:
    facts: dict[str, Any] = {"kind": one.kind, "patient": one.identity.patient_hash}
    try:
        with notices.collected() as noted, notices.muted():
            text, more, left = READERS[one.kind](one.path, series) if one.kind in READERS else ("not read", {}, ())
    except RegweaveError as error:
        return OverviewEntry(one.kind, facts, error)
    return OverviewEntry(f"{one.kind}, {text}", facts | more, notes=(*left, *noted))


Told = tuple[str, dict[str, Any], tuple[str, ...]]


def _structures(path: Path, series: dict[str, Series]) -> Told:
    wanted = rtstruct.referenced_series(path)
    drawn_on = next((one for uid, one in series.items() if uid in wanted), None)
    if drawn_on is None:
        return "drawn on a series that is not here", {"structures": []}, ()
    found = rtstruct.read_rtstruct(path, drawn_on)
    left = tuple(f"left out: {one.name}: {one.reason}" for one in found.left_out)
    text = f"{len(found.structures)} structures on series {drawn_on.identity.series_hash}"
    return text, {"structures": [one.name for one in found.structures]}, left


def _registration(path: Path, series: dict[str, Series]) -> Told:
    kind = "rigid" if reg.read_reg(path).linear else "deformable"
    return kind, {"registration": kind}, ()


def _dose(path: Path, series: dict[str, Series]) -> Told:
    found = dose.read_dose(path)
    facts = {"smallest": float(found.volume.data.min()), "largest": float(found.volume.data.max())}
    span = f"at most {facts['largest']:.4g}"
    if facts["smallest"] < 0:
        span = f"{facts['smallest']:.4g} to {facts['largest']:.4g}"
    return f"{found.volume.geometry.summary}, {span} {found.units}", facts, ()


READERS = {"RTSTRUCT": _structures, "REG": _registration, "RTDOSE": _dose}
