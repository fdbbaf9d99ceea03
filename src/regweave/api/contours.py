"""Contours of a planning scan on today's, in memory or from folder to folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from numpy.typing import ArrayLike

from regweave.clinic.files import read_name_map, write_files
from regweave.clinic.inputs import Sources
from regweave.clinic.propagate import ContoursRequest, Propagation, propagate
from regweave.clinic.stages import OnStage
from regweave.errors import RegweaveError
from regweave.io import prepare_output
from regweave.io.dicom.parse import files_in
from regweave.io.dicom.series import Series, series_by_place
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.verdict import Rules, clinic_rules, read_rules
from regweave.model.model import Model
from regweave.progress import ContoursBar
from regweave.types import StructureSet, Transform

ScanLike = str | Path | Sequence[str | Path] | Series
"""A folder, a list of files (or a .txt file that names them), or a series that was read."""
Points = str | Path | ArrayLike | None


class ContourWords(TypedDict, total=False):
    """Keyword arguments of a propagation that users set seldom."""

    landmarks: tuple[Points, Points] | None
    series: Sequence[str] | None
    allow_id_mismatch: bool
    show_ids: bool
    carry_external: bool
    both_ways: bool
    name_map: str | Path | Mapping[str, str] | None
    threads: int | None
    device: str | None


def propagate_contours(
    plan: ScanLike,
    today: ScanLike,
    *,
    rtstruct: str | Path | StructureSet | None = None,
    structures: Sequence[str] | None = None,
    model: str | Path | Model | None = None,
    init: str | Path | Transform | ArrayLike = "rigid",
    rules: str | Path | Rules | None = None,
    progress: bool = True,
    on_stage: OnStage | None = None,
    **words: Unpack[ContourWords],
) -> Propagation:
    """Bring the contours of a planning scan onto today's scan.

    Parameters
    ----------
    plan, today : folder, list of files or Series
        The two scans; nothing is ever written there.
    rtstruct : path or StructureSet, optional
        Structures of the plan; by default the one structure set in the folder of the plan.
    structures : sequence of str, optional
        Names that are wanted; by default all but those made from a dose.
    model : path, name or Model, optional
        Weights per structure.
    init : "rigid", "affine", "moments", "none", path, Transform or matrix
        Start; a DICOM registration, or a transform from today to the plan, is refused where it makes things worse.
    rules : path or Rules, optional
        Limits of the verdict and of the flags; by default the shipped ones, each with its source.
    progress : bool
        Show a bar on a terminal and in a notebook.
    on_stage : callable, optional
        Called with stage, words and share of the work, in place of the bar.
    **words
        ``landmarks`` (points today and in the plan: files, or arrays of LPS millimetres), ``series`` (hashes of the
        image series, where a folder holds several), ``allow_id_mismatch``, ``show_ids``, ``carry_external`` (carry the
        patient's outline, never contour it in today's CT), ``both_ways`` (register the other way too, and measure how
        well the two agree: twice the time), ``name_map`` (new names of structures in files, a file or a mapping; a
        model knows structures by them), ``threads`` and ``device`` as in `regweave.register`.

    Returns
    -------
    Propagation
        ``structures`` on today's slices, ``quality`` by structure, ``result`` of the registration.

    Raises
    ------
    RegweaveError
        E160 other frames, E161 several series, E162 different patients, E165 nothing drawn, E167 a start that makes
        things worse, E192 more than two series named, and what reading raises.
    """
    plan_series, today_series = series_by_place(tuple(words.get("series") or ()), plan)
    sources = Sources(plan, today, rtstruct, plan_series, today_series, words.get("allow_id_mismatch", False))
    judged_by = read_rules(rules) if isinstance(rules, str | Path) else rules or clinic_rules()
    names = words.get("name_map")
    request = ContoursRequest(
        sources, structures, model, init, judged_by, _landmarks(words.get("landmarks")),
        carry_outline=words.get("carry_external", False), both_ways=words.get("both_ways", False),
        names=read_name_map(names) if isinstance(names, str | Path) else names or {}, threads=words.get("threads"),
        device=words.get("device"),
    )  # fmt: skip
    with ContoursBar(shown=progress and on_stage is None) as bar:
        done = propagate(request, on_stage or bar)
    if not words.get("show_ids", False):
        return done
    who = done.scans.today.identity
    shown = {"patient_id": who.patient_id, "patient_name": who.patient_name, "birth_date": who.birth_date}
    shown |= {"plan": str(plan), "today": str(today)}
    return replace(done, result=replace(done.result, clinic={**done.quality, "ids": shown}))


def write_contours(
    plan: ScanLike,
    today: ScanLike,
    output: str | Path,
    *,
    overwrite: bool = False,
    on_stage: OnStage | None = None,
    **words: Any,
) -> Propagation:
    """Propagate contours and write all files into a new folder, which appears when it is complete.

    Parameters
    ----------
    plan, today
        As in `propagate_contours`, and so are ``words``.
    output : path
    overwrite : bool
        Replace an earlier result.
    on_stage : callable, optional
    """
    _require_outside(output, plan, today)
    with prepare_output(output, overwrite=overwrite) as folder:
        done = propagate_contours(plan, today, on_stage=on_stage, **words)
        if on_stage is not None:
            on_stage("files", "files and page", 0.88)
        return write_files(folder, done)


def _require_outside(output: str | Path, *inputs: ScanLike) -> None:
    """Refuse an output in the folder of an input: inputs are never written to."""
    where = Path(output).absolute()
    for folder in (folder for source in inputs for folder in _folders(source)):
        if where == folder or folder in where.parents:
            message = f"the output '{output}' lies in the folder of an input"
            raise RegweaveError("E168", message, "choose another -o: folders of inputs are never written to")


def _folders(source: ScanLike) -> set[Path]:
    """Return the folders of an input: the one that is named, or those of the files of a list."""
    if isinstance(source, Series):
        return set()
    files = files_in(source)
    if files is not None:
        return {path.absolute().parent for path in files}
    return {Path(str(source)).absolute()}


def _landmarks(given: tuple[Points, Points] | None) -> LandmarkPairs | None:
    return None if given is None else LandmarkPairs.read(*given)
