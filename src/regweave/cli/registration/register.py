"""``regweave register``: two files in, a deformation with its evidence out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regweave.api import register as api
from regweave.cli.app import command_line, examples, words
from regweave.cli.options import (
    FixedMaskOption,
    FixedModalityOption,
    FixedPointsOption,
    FollowOption,
    FrameOption,
    JsonOption,
    LabelNamesOption,
    MovingMaskOption,
    MovingModalityOption,
    MovingPointsOption,
    NonFiniteOption,
    PageDetailOption,
    RulesOption,
    StrictOption,
    complete_model,
    complete_preset,
    input_option,
    machine_option,
    method_option,
)
from regweave.cli.tables import end_by_verdict, overlap_table, verdict_lines
from regweave.config.presets import metric_weights
from regweave.errors import UsageError
from regweave.io import prepare_output
from regweave.io.dicom.series import series_by_place
from regweave.measures.landmarks import LandmarkPairs
from regweave.measures.verdict import Rules, default_rules, read_rules
from regweave.notices import terminal_safe
from regweave.progress import BEFORE_FILES, RegistrationBar
from regweave.run import register as pipeline
from regweave.run.images import FILES, parse_outputs
from regweave.run.read import Reading, ReadingWords
from regweave.run.rerun import recorded_call
from regweave.run.result import Result, load

PAGE = FILES["report"]

app = command_line()


@app.command(
    options_metavar="-o FOLDER [OPTIONS]",
    epilog=examples(
        "regweave register later.nii.gz planning.nii.gz -o result",
        "regweave register later.nii.gz planning.nii.gz -o result --init affine",
        "regweave register f.nii.gz m.nii.gz -o out --moving-labels organs.nii.gz",
        "regweave register f.nii.gz m.nii.gz -o out --model head-neck-ct --json",
        "regweave register f.nii m.nii -o r --fixed-points f.csv --moving-points m.csv",
        "regweave register --from result/result.json -o same",
    ),
)
def register(
    fixed: Annotated[
        Path | None, typer.Argument(help="Image that stays; its grid is the grid of the result.", show_default=False)
    ] = None,
    moving: Annotated[Path | None, typer.Argument(help="Image that is warped.", show_default=False)] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.")],
    moving_labels: Annotated[Path | None, input_option(help="Segmentation of the moving image.")] = None,
    fixed_labels: Annotated[Path | None, input_option(help="Segmentation of the fixed image, for Dice.")] = None,
    fixed_mask: FixedMaskOption = None,
    moving_mask: MovingMaskOption = None,
    fixed_points: FixedPointsOption = None,
    moving_points: MovingPointsOption = None,
    again: Annotated[
        Path | None,
        input_option("--from", help="Run a result.json again: same files, settings, bits.", metavar="RESULT.json"),
    ] = None,
    preset: Annotated[
        str | None, method_option(help="Settings by name; see `regweave presets list`.", autocompletion=complete_preset)
    ] = None,
    config: Annotated[Path | None, method_option(help="Settings from a TOML file.")] = None,
    model: Annotated[
        Path | None,
        method_option(help="Weights per structure: a file, or a shipped model's name.", autocompletion=complete_model),
    ] = None,
    metric: Annotated[
        list[str] | None,
        method_option(help="Use this metric or member; repeat for a mix.", metavar="NAME[=WEIGHT]"),
    ] = None,
    init: Annotated[
        str | None, method_option(help="none, moments, rigid, affine, structures, or a transform file.")
    ] = None,
    engine: Annotated[str | None, method_option(help="Inference engine: trws, fastpd, icm.")] = None,
    threads: Annotated[int | None, machine_option(help="Threads; the result is the same for any number.")] = None,
    device: Annotated[str | None, machine_option(help="What computes: cpu (default), cuda, cuda:N, or auto.")] = None,
    label_names: LabelNamesOption = None,
    series: Annotated[
        list[str] | None,
        input_option(help="DICOM series by its hash, where a folder holds several; repeat for FIXED and MOVING."),
    ] = None,
    fixed_modality: FixedModalityOption = "auto",
    moving_modality: MovingModalityOption = "auto",
    nifti_frame: FrameOption = "auto",
    nonfinite: NonFiniteOption = "error",
    follow_links: FollowOption = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")] = False,
    rules: RulesOption = None,
    strict: StrictOption = False,
    write: Annotated[
        str | None,
        typer.Option(
            help=f"Files beside result.json: some of {', '.join(FILES)}; by default all, displacement up to a million "
            "voxels.",
            metavar="NAMES",
        ),
    ] = None,
    page_detail: PageDetailOption = "normal",
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no page and nothing for it.")] = False,
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every step with its energy.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and warnings.")] = False,
) -> None:
    """Register MOVING to FIXED and write the warped image, both transforms, the numbers behind them and a page."""
    if preset is not None and config is not None:
        raise UsageError("E189", "--preset and --config are both given", "give one of them")
    reading: ReadingWords = {
        "nifti_frame": nifti_frame, "nonfinite": nonfinite, "label_names": label_names,
        "fixed_modality": fixed_modality, "moving_modality": moving_modality, "follow_links": follow_links,
    }  # fmt: skip
    reading["fixed_series"], reading["moving_series"] = series_by_place(series or (), fixed)
    named = None if write is None else parse_outputs(write)
    page = not no_report and (named is None or "report" in named)
    given: dict[str, Any] = {
        "preset": preset, "config": config, "model": model, "metrics": metric_weights(metric), "init": init,
        "engine": engine, "device": device,
    }  # fmt: skip
    files = {"fixed": fixed, "moving": moving, "moving_labels": moving_labels, "fixed_labels": fixed_labels}
    files |= {"fixed_mask": fixed_mask, "moving_mask": moving_mask}
    if again is not None:
        _refuse_beside_from(given, Reading(**reading))
        given = {**recorded_call(again, **files), "keep_view": True}
    elif fixed is None or moving is None:
        raise UsageError("E192", "FIXED and MOVING are needed", "name both images, or a record with --from")
    else:
        pipeline.check_call(**given)
        given |= {**files, **reading}
    judged_by = _rules(rules, again)
    landmarks = read_landmarks(fixed_points, moving_points)
    bar = RegistrationBar(lines=True, shown=not quiet, verbose=verbose, writes=True)
    with prepare_output(output, overwrite=overwrite) as folder, bar as shown:
        run = api.register if again is None else pipeline.register
        result = run(**given, threads=threads, on_progress=shown)
        result = result.with_command(("regweave", *words.get())).model_copy(update={"rules": judged_by})
        result = result if landmarks is None else result.with_landmarks(landmarks)
        shown.stage("write", "files and page" if page else "files", BEFORE_FILES)
        usual = result.images.usual_outputs() if named is None else named
        chosen = [name for name in usual if name != "report" or not no_report]
        result = result.write_files(folder, chosen).release_images(folder)  # a page of large images needs their memory
        if page:
            result = result.write_page(folder, page_detail)
    result = result.release_images(output)
    if as_json:
        print_json(output, page=page)
    elif not quiet:
        print_result(result, output, page=page)
    end_by_verdict(result.verdict, printed=not (as_json or quiet), strict=strict)


def print_result(result: Result, output: Path, *, page: bool) -> None:
    """Print the numbers of a result and where its files are."""
    console = Console(markup=False)  # names of folders may hold brackets
    if result.score.structures:
        console.print(overlap_table(result.score, plain=not console.is_terminal))
    run = result.provenance
    if run.classes_from == "predicted":
        console.print("classes     predicted from the moving image")
    console.print(verdict_lines(result.verdict))
    console.print(f"start       {terminal_safe(run.start.words())}", soft_wrap=True)
    if run.model is not None:
        reason = f": {run.model.reason}" if run.model.reason else ""
        console.print(f"model       {terminal_safe(run.model.words())}{reason}", soft_wrap=True)
    if run.structures is not None:
        console.print(f"structures  {terminal_safe(run.structures.words())}", soft_wrap=True)
    if result.landmarks is not None:
        console.print(f"landmarks   {result.landmarks.words()}")
    console.print(f"folding     {result.regularity['folding_fraction']:.3%} of voxels")
    after = sum(result.seconds.get(name, 0.0) for name in ("files", "page"))
    files = "files and page" if page else "files"
    console.print(f"time        {sum(result.seconds.values()):.1f} s, of these {files} {after:.1f} s")
    console.print(f"result      {output}", soft_wrap=True)
    if page:
        console.print(f"page        {output / PAGE}", soft_wrap=True)
    gap = max((s.gap for s in result.steps), default=0.0)
    text = f"solver      within {gap:.3%} of its own optimum (says nothing about anatomy)"
    console.print(text, style="dim")


def read_landmarks(fixed: Path | None, moving: Path | None) -> LandmarkPairs | None:
    """Read the landmarks of both images, None where there are none."""
    return None if fixed is None and moving is None else LandmarkPairs.read(fixed, moving)


def _rules(file: Path | None, record: Path | None) -> Rules:
    """Return the rules of a file, else those of the record that is run again, else the shipped ones."""
    if file is not None:
        return read_rules(file)
    return default_rules() if record is None else load(record).rules


def _refuse_beside_from(given: Mapping[str, Any], reading: Reading) -> None:
    """Refuse settings beside a record: with them it would be another run."""
    named = [f"--{name.replace('metrics', 'metric')}" for name, value in given.items() if value is not None]
    read = dict.fromkeys("series" if name.endswith("_series") else name for name in reading.to_json())
    named += [f"--{name.replace('_', '-')}" for name in read]
    if named:
        raise UsageError("E192", f"--from and {', '.join(named)} are both given", "the record has all of that")


def print_json(output: Path, *, page: bool) -> None:
    """Print what result.json says, and where the result and its page are."""
    record = json.loads((output / "result.json").read_text(encoding="utf-8"))
    where = {"output": str(output), "page": str(output / PAGE) if page else None}
    print(json.dumps({**where, **record}, indent=1, ensure_ascii=False))
