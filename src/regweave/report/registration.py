"""Page of one registration, and a text for the methods section of a paper, with the papers to cite."""

import itertools
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
from regweave.measures.scores import STATES
from regweave.measures.verdict import DOUBTFUL, Rules, in_words
from regweave.registration.guides import COARSE, FINE
from regweave.report.charts import HALF, STYLE, line_chart
from regweave.report.page import asset, render
from regweave.report.pictures import closeups, pictures
from regweave.report.signoff import reviewed_hashes, signoff_names
from regweave.report.viewer import BUDGETS, STRUCTURE_SET, Viewer, by_label
from regweave.run.memory import allowed_threads
from regweave.run.record import Provenance
from regweave.run.result import Result, load
from regweave.spatial.warp import determinant
from regweave.threads import kernel_threads

SCRIPTS = (
    "volume.js", "contour.js", "paint.js", "decor.js", "viewer.js", "pointer.js", "structures.js", "controls.js",
    "landmarks.js", "start.js", "tables.js", "signoff.js",
)  # fmt: skip
COSTS = {"data": "cost of the images", "smoothness": "smoothness"}
FLAGS = ("fail", "look", "cut", "pass")
ALIKE = 1.05  # axes whose voxels differ by less than this factor are given as one number
GRAVE = (*DOUBTFUL, "W201", "W229", "W231", "W232", "W249")  # warnings that come first on the page
PAGE_SECONDS, TOTAL_SECONDS = "{seconds of the page}", "{seconds of all}"  # filled in once the page is made
Points = list[tuple[float, float]]
WHOLE = {"label": "", "name": "whole image", "colour": ""}
PAPERS = {
    "method": "Ferrante E, Dokania PK, Marini R, Paragios N. Deformable registration through learning of "
    "context-specific metric aggregation. MLMI 2017.",
    "trws": "Kolmogorov V. Convergent tree-reweighted message passing for energy minimization. IEEE TPAMI 28, 2006.",
    "fastpd": "Komodakis N, Tziritas G, Paragios N. Performance vs computational efficiency for optimizing single and "
    "dynamic MRFs. CVIU 112(1), 2008.",
    "icm": "Besag J. On the statistical analysis of dirty pictures. J R Stat Soc B 48(3), 1986.",
    "linear": "Roche A, Malandain G, Pennec X, Ayache N. The correlation ratio as a new similarity measure for "
    "multimodal image registration. MICCAI 1998.",
}
STARTS = {
    "none": "no start beyond the headers",
    "matrix": "a given matrix as start",
    "file": "a given transform as start",
}


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
    if detail not in BUDGETS:
        raise UsageError("E192", f"unknown page detail {detail!r}", f"choose {', '.join(BUDGETS)}")
    began = time.perf_counter()
    with kernel_threads(min(result.provenance.threads, allowed_threads())):
        result = result.model_copy(update={"score": result.with_surfaces})
        page = registration_page(result, Viewer(result, folder, BUDGETS[detail]), folder)
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


def registration_page(result: Result, shown: Viewer, folder: Path) -> str:
    """Return the page as text, with what the viewer has ``shown``.

    The folder holds the files whose hashes a sign-off names, and the structure set of a propagation. The seconds of a
    first page, and of all, are left to be filled in.
    """
    display, transform, clinic = shown.display, result.images.transform, result.clinic
    jacobian = determinant(transform.field)
    data = shown.data(jacobian)
    length_mm = np.zeros_like(jacobian)
    for component in transform.field.data:  # one volume more, not three
        length_mm += component**2
    np.sqrt(length_mm, out=length_mm)
    moved = by_label(length_mm, shown.reference)
    inside = length_mm if shown.reference is None or not moved else length_mm[shown.reference != 0]
    whole = [shown.geometry.shape[axis] for axis in display.axes]
    metric = data.get("metric", {"members": [], "parts": []})
    refined_mm = transform.interpolated.geometry.spacing_mm.tolist() if result.refinement else ()
    # An evaluation that keeps this registration has its page two folders above.
    kept = (folder / PAGE_RECORD).is_file() and (folder.parents[1] / RESULTS).is_file()
    context = {
        **record_context(result, shown.structures),
        # The registration of a propagation has a matrix or a field as its start.
        "subtitle": subtitle(result.provenance, refined_mm, None if clinic is None else clinic.whole.start),
        "closeups": {} if clinic is None else closeups(shown),
        "back": (f"../../{REPORT}", "Evaluation") if kept else None,
        "sources": result.provenance.sources, "names": result.images.names,
        "jacobians": by_label(jacobian, shown.reference),
        "moved": moved, "movement": (float(inside.mean()), float(inside.max())),
        "parts": dict(zip(metric["members"], metric["parts"], strict=True)),
        "geometry": shown.geometry, "display": display, "whole": whole,
        "cropped": [high - low for low, high in display.box] if display.box else whole,
        "unit": shown.unit, "called": data["words"], "rounding": shown.rounding, "pictures": pictures(shown),
        "contours": "" if shown.contours is None or clinic is None else clinic.files[STRUCTURE_SET],
    }  # fmt: skip
    if "page" not in result.seconds:
        context["seconds"] |= {"page": PAGE_SECONDS}
        context["total_seconds"] = TOTAL_SECONDS
    # An exported review has besides grades the hashes of the reviewed files and of both images.
    run = result.provenance
    names = [re.sub(r"\.nii(\.gz)?$|[^\w-]+", "_", run.sources.get(key, key)).strip("_") for key in ("moving", "fixed")]
    hashes = {f"{name}_sha256": run.inputs_sha256.get(name) for name in ("fixed", "moving")}
    signoff = {
        "file": f"signoff-{'-to-'.join(names) if clinic is None else f'{clinic.patient_sha}-{clinic.today_sha}'}",
        "structures": signoff_names(context["graded"]),
        "record": {"regweave": run.regweave, **reviewed_hashes(folder), **hashes},
    }
    return render(
        "registration.j2",
        context,
        style=STYLE + asset("registration.css"),
        scripts=[asset(name) for name in SCRIPTS],
        data={"view-data": data, "signoff-data": signoff},
    )


def record_context(record: Result, drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the template takes from the record alone; ``drawn`` are the structures of the viewer."""
    score, verdict, carried = record.score, record.verdict, []
    if (clinic := record.clinic) is not None:  # the structures of a new set, with the colours of those that are drawn
        colours = {row["label"]: row["colour"] for row in drawn}
        for one in clinic.structures:
            label, name = one.number if one.label is None else one.label, clinic.names.get(one.name, one.name)
            carried.append({"label": label, "name": name, "colour": colours.get(label, ""), "row": one})
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
        "record": record, "modality": run.modality.words(),
        "seconds": {name: f"{value:.2f}" for name, value in record.seconds.items()},
        "total_seconds": f"{sum(record.seconds.values()):.1f}",
        "verdict": verdict, "score": score, "states": STATES, "stages": stages, "gaps": gaps, "charts": _charts(record),
        "warnings": [words for text in warnings if (words := in_words(text)) not in reasons],
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
        # A review grades every structure of a new set, else those that the viewer draws, else the whole.
        "graded": carried or drawn or [WHOLE],
        "clinic_rows": sorted(carried, key=lambda row: FLAGS.index(row["row"].flag)),
        # Members whose weight differs between structures.
        "particular": [m for m, row in zip(table.members, table.matrix, strict=True) if max(row) - min(row) > 1e-9],
        "weights": list(zip(table.members, table.matrix.tolist(), strict=True)),
    }  # fmt: skip


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
    words.append("no model" if provenance.model is None else f"model {provenance.model.words()}")
    if len(refined_mm):
        alike = max(refined_mm) < ALIKE * min(refined_mm)
        shown = f"{np.mean(refined_mm):.2g}" if alike else " × ".join(f"{v:.2g}" for v in refined_mm)
        words.append(f"refined at {shown} mm")
    return " · ".join([*words, f"settings {provenance.settings.name}"])


def _charts(record: Result) -> dict[str, Markup]:
    """Draw energy and gap of each discrete step by level, and the cost of the refinement."""
    energies, gaps = defaultdict[str, Points](list), defaultdict[str, Points](list)
    for n, step in enumerate(record.steps, start=1):
        level = f"{step.spacing_mm:.3g} mm"
        energies[level].append((n, step.energy))
        gaps[level].append((n, 100 * step.gap))
    refined = COSTS.items() if record.refinement else ()
    costs: dict[str, dict[str, Points]] = {
        key: {name: [(r.step + 1, getattr(r, key)) for r in record.refinement]} for key, name in refined
    }
    for points in itertools.chain(energies.values(), *(of.values() for of in costs.values())):
        first = abs(points[0][1]) or 1.0
        points[:] = [(n, 100 * value / first) for n, value in points]
    shown: dict[str, tuple[str, str, Mapping[str, Points]]] = {
        "energy": ("Energy of each step", "% of the level's first", energies),
        "gap": ("Gap of the solver", "%", gaps),
        **{key: (f"Refinement: {COSTS[key]}", "% of the first step", of) for key, of in costs.items()},
    }
    return {
        key: line_chart(series, title=title, x_label="step", y_label=label, width=HALF)
        for key, (title, label, series) in shown.items()
    }


def boilerplate(folder: str | Path, *, alone: bool = True) -> str:
    """Return a paragraph for the methods section of a paper, and the papers that it cites.

    The numbers are those of this registration, where it is ``alone`` and not one of many. The folder is what ``regweave
    register`` or ``contours`` wrote: E101 without a record, E178 where it is not ours.
    """
    record = load(folder)
    run = record.provenance
    if run.call.transform != "deformable":
        fit = f"{run.call.transform} maps, fitted by a robust correlation ratio on a pyramid of resolutions [1]"
        named = f"Images ({run.modality.words()}) were registered with regweave {run.regweave} by {fit}."
        return f"{named}\n\n[1] {PAPERS['linear']}\n"
    engine = run.settings.engine
    # The paper of a plug-in engine is for its user to add.
    cited = [PAPERS["method"], *([PAPERS[engine]] if engine in PAPERS else [])]
    marks = str(list(range(1, len(cited) + 1)))
    table, start = record.weights, run.start.used
    members = [name for name, row in zip(table.members, table.matrix, strict=True) if max(row) > 0]
    began = STARTS.get(start, f"{start} start") if record.clinic is None else f"start: {record.clinic.whole.start}"
    model = f", model {run.model.name}" if run.model else ""
    text = [
        f"Images ({run.modality.words()}) were registered with regweave {run.regweave} (settings {run.settings.name}, "
        f"{began}{model}): a discrete search over {len({s.spacing_mm for s in record.steps})} levels "
        f"of control grids, each step a Markov random field solved by {engine.upper()} {marks}, with a metric that "
        f"aggregates {', '.join(members)}"
    ]
    if record.refinement:
        text.append(f", followed by {len(record.refinement)} steps of a continuous refinement")
    folding = f" Of all voxels {record.regularity['folding_fraction']:.3%} have a Jacobian of 0 or less."
    text.append(f".{folding if alone else ''}")
    if record.rigid_mm:
        text.append(f" The transform was made rigid inside {', '.join(record.rigid_mm)}.")
    if record.landmarks is not None and record.landmarks.judging:
        error = record.landmarks.after_mm
        text.append(
            f" The target registration error of {len(record.landmarks.judging)} landmarks is {error['mean']:.2f} mm on "
            f"average and {error['max']:.2f} mm at most."
        )
    if record.clinic is not None:
        text.append(
            f" {len(record.clinic.structures)} structures were carried over as signed distances on the true slices; "
            "the structure set is unapproved until a qualified person has reviewed it."
        )
    return "".join(text) + "\n\n" + "\n".join(f"[{n}] {paper}" for n, paper in enumerate(cited, start=1)) + "\n"
