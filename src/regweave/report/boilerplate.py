"""Methods text of a registration, from its record, with the papers to cite."""

from pathlib import Path

from regweave.run.result import load

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
