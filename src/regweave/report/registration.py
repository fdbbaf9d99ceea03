"""Page of one registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regweave.io import owned_path
from regweave.measures.rules import Rules
from regweave.report._results import NAME as RESULTS
from regweave.report.contents import Contents, read_contents
from regweave.report.overview import subtitle, summary_cards, verdict_banner, verdict_of
from regweave.report.page import asset, document, escape
from regweave.report.pictures import pictures
from regweave.report.sections import (
    field_section,
    optimisation_section,
    provenance_section,
    signoff_section,
    structure_section,
    weights_section,
)
from regweave.report.viewer import Shown, prepare, viewer_data
from regweave.study.worst_cases import RECORD

PAGE = "report.html"
SCRIPTS = ("volume.js", "contour.js", "paint.js", "viewer.js", "controls.js", "signoff.js")
TILTED_DEGREES = 2.0
WHOLE = {"label": "", "name": "whole image", "dice_after": None}


def write_page(folder: str | Path, rules: Rules | None = None) -> Path:
    """Make ``report.html`` in the folder of a registration, from the files there.

    Parameters
    ----------
    folder : path
        Output of ``regweave register``, or of `Result.save`.
    rules : Rules, optional
        Acceptance criteria of the verdict on the page, instead of those of the record.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    RegweaveError
        E101, E102 where a file is missing or damaged, E178 where the record is not one of ours, E198 where the folder
        holds too little for a page.
    """
    folder = Path(folder)
    contents = read_contents(folder)
    with owned_path(folder / PAGE) as part:
        part.write_text(registration_page(contents, _owner(folder), rules), encoding="utf-8", newline="\n")
    return folder / PAGE


def _owner(folder: Path) -> tuple[str, str] | None:
    """Return where the page of the evaluation is that kept this registration."""
    kept = (folder / RECORD).is_file() and (folder.parents[1] / RESULTS).is_file()
    return ("../../report.html", "Evaluation") if kept else None


def registration_page(contents: Contents, back: tuple[str, str] | None = None, rules: Rules | None = None) -> str:
    """Return the page as text; ``back`` is the page it belongs to, ``rules`` judge it anew."""
    shown = prepare(contents)
    data = viewer_data(contents, shown)
    record = contents.record
    metric = data.get("metric", {"members": [], "parts": []})
    graded = _graded(record["structures"], shown.structures)
    body = "\n".join(
        (
            verdict_banner(verdict_of(record, rules)),
            summary_cards(record),
            _viewer(contents, shown),
            structure_section(record["structures"], shown.structures),
            signoff_section(graded),
            weights_section(record, contents.names, dict(zip(metric["members"], metric["parts"], strict=True))),
            field_section(record),
            optimisation_section(record),
            provenance_section(record, contents.sources),
        )
    )
    return document(
        _title(contents.sources),
        body,
        style=asset("registration.css"),
        scripts=[asset(name) for name in SCRIPTS],
        subtitle=subtitle(record["provenance"]),
        data={"view-data": data, "signoff-data": _signoff_data(record, graded)},
        back=back,
    )


def _title(sources: Mapping[str, str]) -> str:
    moving, fixed = (sources.get(name, f"{name} image") for name in ("moving", "fixed"))
    return f"Registration of {moving} to {fixed}"


def _viewer(contents: Contents, shown: Shown) -> str:
    geometry, display = contents.geometry, shown.display
    spacing = " × ".join(f"{s:.2f}" for s in display.geometry.spacing_mm)
    notes = [
        "Radiological convention: the patient's left is on the right of axial and coronal planes.",
        "Moving is shown as initially aligned. Grey values are rounded to 256 levels"
        f" (typically by {_rounding(contents, shown)}).",
        f"Shown at {' × '.join(map(str, display.geometry.shape))} voxels of {spacing} mm"
        + (
            f", reduced from {' × '.join(str(geometry.shape[a]) for a in display.axes)}: small detail is lost here, "
            "not in the files."
            if display.factors != (1, 1, 1)
            else "."
        ),
    ]
    if display.tilt_degrees > TILTED_DEGREES:
        tilt = f"{display.tilt_degrees:.0f}°"
        notes.append(f"The scan is oblique by {tilt}: planes follow its grid, letters name the nearest axis.")
    return (
        '<p id="viewer-note" class="bad" role="alert" hidden></p>'
        f'{asset("viewer.html")}{pictures(shown)}<p class="quiet">{escape(" ".join(notes))}</p>'
    )


def _rounding(contents: Contents, shown: Shown) -> str:
    """Mean error that the table of grey values brings, in words."""
    codes, table = shown.codes["fixed"], shown.tables["fixed"]
    error = float(np.abs(table[codes] - shown.display.image(contents.images["fixed"])).mean())
    return f"{error:.2g}"


def _graded(rows: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Structures for the sign-off: those that are drawn, with their Dice, or the image as a whole."""
    dice = {row["label"]: row["dice_after"] for row in rows}
    return [{"label": s["label"], "name": s["name"], "dice_after": dice.get(s["label"])} for s in drawn] or [WHOLE]


def _signoff_data(record: Mapping[str, Any], structures: list[dict[str, Any]]) -> dict[str, Any]:
    provenance = record["provenance"]
    hashes = {f"{name}_sha256": provenance["inputs_sha256"].get(name) for name in ("fixed", "moving")}
    return {
        "file": "signoff.tsv",
        "structures": structures,
        "record": {"regweave": provenance["regweave"], **hashes},
    }
