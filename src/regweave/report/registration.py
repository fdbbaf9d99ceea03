"""Page of one registration."""

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from regweave.clinic.structures import flagged
from regweave.errors import UsageError
from regweave.io import owned_path
from regweave.io.disk.records import PAGE_RECORD, REPORT, RESULT, RESULTS, write_record
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.propagation import ClinicSection
from regweave.measures.scores import STATES
from regweave.measures.verdict import DOUBTFUL, Rules, in_words
from regweave.registration.guides import COARSE, FINE
from regweave.report.charts import HALF, STYLE, line_chart
from regweave.report.page import asset, render
from regweave.report.pictures import closeups, pictures
from regweave.report.signoff import reviewed_hashes, signoff_names
from regweave.report.viewer import BUDGETS, STRUCTURE_SET, Viewer, by_label
from regweave.run.record import Provenance, model_words
from regweave.run.result import Result, load
from regweave.spatial.warp import determinant

SCRIPTS = (
    "volume.js", "contour.js", "paint.js", "decor.js", "viewer.js", "pointer.js", "structures.js", "controls.js",
    "landmarks.js", "start.js", "tables.js", "signoff.js",
)  # fmt: skip
COSTS = {"data": "cost of the images", "smoothness": "smoothness"}
FLAGS = ("fail", "look", "cut", "pass")
ALIKE = 1.05  # axes whose voxels differ by less than this factor are given as one number
GRAVE = (*DOUBTFUL, "W201", "W229", "W231", "W232", "W249")  # warnings that come first on the page
PAGE_SECONDS, TOTAL_SECONDS = "{seconds of the page}", "{seconds of all}"  # filled in once the page is made
WHOLE = {"label": "", "name": "whole image", "colour": ""}


def write_page(
    folder: str | Path, rules: Rules | None = None, *, detail: str = "normal", landmarks: LandmarkPairs | None = None
) -> Path:
    """Make ``report.html`` again in the folder of a registration, and return its path.

    With ``rules`` or ``landmarks`` page and record are judged again; ``detail`` chooses the number of voxels of the
    page. A missing or damaged file is E101 or E102, a record that is not ours E178, a folder with too little for a page
    E198.
    """
    folder = Path(folder)
    result, again = load(folder), rules is not None or landmarks is not None
    if rules is not None:
        result = result.model_copy(update={"rules": rules})
    if landmarks is not None:
        result = result.with_landmarks(landmarks)
    if again and (clinic := result.clinic) is not None:
        rows = tuple(flagged(row, result.rules, clinic.whole) for row in clinic.structures)
        result = result.model_copy(update={"clinic": clinic.model_copy(update={"structures": rows})})
    draw(result, folder, detail, judged=again)
    return folder / REPORT


def draw(result: Result, folder: Path, detail: str = "normal", *, judged: bool = False) -> Result:
    """Write the page of a result into its folder, and return the result with the seconds that this took.

    The seconds are added to the page and to ``result.json``, unless they are there from an earlier page. A result that
    was ``judged`` again replaces its record.
    """
    began = time.perf_counter()
    result = result.model_copy(update={"score": result.with_surfaces})
    page = registration_page(result, folder, detail)
    first = "page" not in result.seconds
    if first:
        stages = {**result.seconds, "page": time.perf_counter() - began}
        result = result.model_copy(update={"seconds": stages})
        page = page.replace(PAGE_SECONDS, f"{stages['page']:.2f}").replace(TOTAL_SECONDS, f"{sum(stages.values()):.1f}")
    if first or judged:
        write_record(folder / RESULT, result.summary())
    with owned_path(folder / REPORT) as part:
        part.write_text(page, encoding="utf-8", newline="\n")
    return result


def registration_page(result: Result, folder: Path, detail: str = "normal") -> str:
    """Return the page as text.

    The folder holds the files whose hashes a sign-off names, and the structure set of a propagation. The seconds of a
    first page, and of all, are left to be filled in.
    """
    if detail not in BUDGETS:
        raise UsageError("E192", f"unknown page detail {detail!r}", f"choose {', '.join(BUDGETS)}")
    shown = Viewer(result, folder, BUDGETS[detail])
    display, jacobian, clinic = shown.display, determinant(result.transform.field), result.clinic
    data = shown.data(jacobian)
    length_mm = np.zeros_like(jacobian)
    for component in result.transform.field.data:  # one volume more, not three
        length_mm += component**2
    np.sqrt(length_mm, out=length_mm)
    moved = by_label(length_mm, shown.reference)
    inside = length_mm if shown.reference is None or not moved else length_mm[shown.reference != 0]
    whole = [shown.geometry.shape[axis] for axis in display.axes]
    metric = data.get("metric", {"members": [], "parts": []})
    refined_mm = result.transform.interpolated.geometry.spacing_mm.tolist() if result.refinement else ()
    # An evaluation that keeps this registration has its page two folders above.
    kept = (folder / PAGE_RECORD).is_file() and (folder.parents[1] / RESULTS).is_file()
    context = {
        **record_context(result, shown.structures),
        # The registration of a propagation has a matrix or a field as its start.
        "subtitle": subtitle(result.provenance, refined_mm, None if clinic is None else clinic.whole.start),
        "closeups": {} if clinic is None else closeups(shown),
        "back": (f"../../{REPORT}", "Evaluation") if kept else None,
        "sources": result.provenance.sources,
        "names": result.images.names,
        "jacobians": by_label(jacobian, shown.reference),
        "moved": moved,
        "movement": (float(inside.mean()), float(inside.max())),
        "parts": dict(zip(metric["members"], metric["parts"], strict=True)),
        "geometry": shown.geometry,
        "display": display,
        "whole": whole,
        "cropped": [high - low for low, high in display.box] if display.box else whole,
        "unit": shown.unit,
        "called": data["words"],
        "rounding": shown.rounding,
        "pictures": pictures(shown),
        "contours": "" if shown.contours is None or clinic is None else clinic.files[STRUCTURE_SET],
    }
    if "page" not in result.seconds:
        context["seconds"] |= {"page": PAGE_SECONDS}
        context["total_seconds"] = TOTAL_SECONDS
    return render(
        "registration.j2",
        context,
        style=STYLE + asset("registration.css"),
        scripts=[asset(name) for name in SCRIPTS],
        data={"view-data": data, "signoff-data": _signoff_data(result, folder, context["graded"])},
    )


def record_context(record: Result, drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the template takes from the record alone; ``drawn`` are the structures of the viewer."""
    score, verdict, carried = record.score, record.verdict, _rows(record.clinic, drawn)
    measured = {s.label: s for s in score.structures}
    run, table = record.provenance, record.weights
    stages = {
        member.name: member.stage
        for bank, found in run.settings.banks.items()
        for member in found
        if bank == run.modality.bank
    } | {member.name: member.stage for member in (COARSE, FINE)}
    gaps = [100 * s.gap for s in record.steps if not math.isnan(s.gap)]
    reasons = {reason.text for reason in verdict.reasons}
    warnings = sorted(dict.fromkeys(record.warnings), key=lambda text: not text.startswith(GRAVE))
    return {
        "record": record,
        "modality": run.modality.words(),
        "seconds": {name: f"{value:.2f}" for name, value in record.seconds.items()},
        "total_seconds": f"{sum(record.seconds.values()):.1f}",
        "verdict": verdict,
        "warnings": [words for text in warnings if (words := in_words(text)) not in reasons],
        "score": score,
        "means": record.mean_dice,
        "guided_means": record.guided_score.means() if record.guided else {},
        "structures": sorted(
            ((item, measured.get(item["label"])) for item in drawn),
            key=lambda row: (  # the worst first; those that are not scored come last
                row[0]["label"] in record.guided,
                not (row[1] and row[1].counted),
                row[1].dice_after if row[1] and row[1].counted else 0.0,
            ),
        ),
        "states": STATES,
        # A review grades every structure of a new set, else those that the viewer draws, else the whole.
        "graded": carried or drawn or [WHOLE],
        "clinic_rows": sorted(carried, key=lambda row: FLAGS.index(row["row"].flag)),
        "stages": stages,
        # Members whose weight differs between structures.
        "particular": [m for m, row in zip(table.members, table.matrix, strict=True) if max(row) - min(row) > 1e-9],
        "weights": list(zip(table.members, table.matrix.tolist(), strict=True)),
        "gaps": gaps,
        "charts": _charts(record),
    }


def _rows(section: ClinicSection | None, drawn: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the structures of a new set with name in the file, label, and colour where the viewer draws them."""
    if section is None:
        return []
    colours = {row["label"]: row["colour"] for row in drawn}
    labels = [row.number if row.label is None else row.label for row in section.structures]
    return [
        {"label": label, "name": section.names.get(row.name, row.name), "colour": colours.get(label, ""), "row": row}
        for label, row in zip(labels, section.structures, strict=True)
    ]


def subtitle(provenance: Provenance, refined_mm: Sequence[float] = (), began: str | None = None) -> str:
    """Return modality, start, model and settings in one line.

    ``refined_mm`` is the voxel size of the refinement, which is coarser than that of a large image; ``began`` replaces
    the start of the record.
    """
    start = provenance.start
    words = [provenance.modality.words()]
    if began is not None:
        words.append("no start" if began == "none" else f"start: {began}")
    else:
        given = {"file": "start from a file", "none": "no start"} if start.used == start.requested else {}
        words.append(given.get(start.used, f"start {start.words()}"))
    words.append(model_words(provenance.model))
    if len(refined_mm):
        alike = max(refined_mm) < ALIKE * min(refined_mm)
        shown = f"{np.mean(refined_mm):.2g}" if alike else " × ".join(f"{v:.2g}" for v in refined_mm)
        words.append(f"refined at {shown} mm")
    return " · ".join([*words, f"settings {provenance.settings.name}"])


def _charts(record: Result) -> dict[str, Markup]:
    """Draw energy and gap of each discrete step by level, and the cost of the refinement."""
    energies: dict[str, list[tuple[float, float]]] = defaultdict(list)
    gaps: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for n, step in enumerate(record.steps, start=1):
        level = f"{step.spacing_mm:.3g} mm"
        energies[level].append((n, step.energy))
        gaps[level].append((n, 100 * step.gap))
    shown = {
        "energy": ("Energy of each step", "% of the level's first", {k: _relative(of) for k, of in energies.items()}),
        "gap": ("Gap of the solver", "%", gaps),
    }
    for key, name in COSTS.items() if record.refinement else ():
        costs = _relative([(r.step + 1, getattr(r, key)) for r in record.refinement])
        shown[key] = (f"Refinement: {name}", "% of the first step", {name: costs})
    return {
        key: line_chart(series, title=title, x_label="step", y_label=label, width=HALF)
        for key, (title, label, series) in shown.items()
    }


def _relative(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    first = abs(points[0][1]) or 1.0
    return [(n, 100 * value / first) for n, value in points]


def _signoff_data(result: Result, folder: Path, graded: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of an exported review besides grades: hashes of the reviewed files and of both images."""
    provenance, clinic = result.provenance, result.clinic
    names = [
        re.sub(r"\.nii(\.gz)?$|[^\w-]+", "_", provenance.sources.get(key, key)).strip("_")
        for key in ("moving", "fixed")
    ]
    hashes = {f"{name}_sha256": provenance.inputs_sha256.get(name) for name in ("fixed", "moving")}
    of = "-to-".join(names) if clinic is None else f"{clinic.patient_sha}-{clinic.today_sha}"
    return {
        "file": f"signoff-{of}",
        "structures": signoff_names(graded),
        "record": {"regweave": provenance.regweave, **reviewed_hashes(folder), **hashes},
    }
