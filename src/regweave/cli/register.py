"""``regweave register``: two files in, a deformation with its evidence out; ``regweave plan`` forecasts its size."""

import json
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from regweave.cli import options as opt
from regweave.cli.app import command_line, usual, words
from regweave.cli.tables import end_by_verdict, overlap_table, verdict_lines
from regweave.config.settings import choose_settings
from regweave.errors import UsageError
from regweave.io import modality, overlap_fraction, prepare_output
from regweave.io.dicom.series import series_by_place
from regweave.io.disk.records import REPORT
from regweave.notices import terminal_safe
from regweave.progress import BEFORE_FILES, StagedBar
from regweave.run.job import FILES, POINTS, Job, check_method, recorded_call
from regweave.run.memory import allowed_threads, forecast, physical_memory_mb
from regweave.run.read import read_inputs
from regweave.run.register import run
from regweave.run.resolve import bank_for, with_stated
from regweave.run.result import Result, load, parse_outputs
from regweave.threads import kernel_threads

PLANNED = (
    "fixed", "moving", "preset", "config", "nifti_frame", "nonfinite", "follow_links", "fixed_mask", "moving_mask",
    "fixed_modality", "moving_modality", "threads",
)  # fmt: skip
"""Options of a registration on which its forecast depends."""

app = command_line()


@app.add(
    "regweave register later.nii.gz planning.nii.gz -o result --init affine",
    "regweave register f.nii.gz m.nii.gz -o out --model head-neck-ct",
    "regweave register --from result/result.json -o same",
    cls=usual(
        "output overwrite strict moving_labels fixed_labels fixed_mask moving_mask preset model init "
        "transform guide rigid check"
    ),
    options_metavar="-o FOLDER [OPTIONS]",
)
@opt.from_fields
def register(
    job: Job,
    *,
    output: opt.Folder,
    overwrite: opt.Overwrite = False,
    again: Annotated[
        Path | None, opt.of_input("--from", help="Record to run again, with the same bits.", metavar="RESULT")
    ] = None,
    series: Annotated[
        list[str] | None, opt.of_input(help="DICOM series of FIXED, then MOVING, by hash.", metavar="HASH")
    ] = None,
    guide_names: Annotated[
        str | None, opt.of_method(help="Structures that guide, with commas: liver,spleen=0.5.", metavar="NAMES")
    ] = None,
    strict: opt.Strict = False,
    write: Annotated[str | None, typer.Option(help="Files beside result.json, with commas.", metavar="NAMES")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Register MOVING to FIXED; write images, transforms, numbers and a page."""
    named = None if write is None else parse_outputs(write)
    first, second = series_by_place(series or (), job.fixed)
    job = replace(job, fixed_series=first, moving_series=second, **opt.job_table(job.config))
    job = job if guide_names is None else replace(job, guide=guide_names)
    if again is not None:
        _refuse_beside_from(job)
        rules = job.rules or load(again).rules
        job = replace(
            job, **recorded_call(again, **{name: getattr(job, name) for name in (*FILES, *POINTS)}), rules=rules
        )
    elif job.fixed is None or job.moving is None:
        raise UsageError("E192", "FIXED and MOVING are needed", "name both images, or a record with --from")
    else:
        check_method(job)
    shown = StagedBar(lines=True, shown=not quiet, writes=True)
    with prepare_output(output, overwrite=overwrite) as folder, shown as bar:
        result = run(job, bar, command=("regweave", *words.get()))
        chosen = result.images.usual if named is None else named
        page = "report" in chosen
        bar.stage("write", "files and page" if page else "files", BEFORE_FILES)
        result = result.write(folder, chosen)
    if as_json:
        record = json.loads((output / "result.json").read_text(encoding="utf-8"))
        where = {"output": str(output), "page": str(output / REPORT) if page else None}
        print(json.dumps({**where, **record}, indent=1, ensure_ascii=False))
    elif not quiet:
        print_result(result, output, page=page)
    end_by_verdict(result.verdict, printed=not (as_json or quiet), strict=strict)


def _refuse_beside_from(job: Job) -> None:
    """Refuse settings beside a record: with them it would be another run."""
    free = (*FILES, *POINTS, "rules", "threads")
    given = [f.name for f in fields(Job) if f.name not in free and getattr(job, f.name) != f.default]
    if given:
        named = dict.fromkeys("series" if name.endswith("_series") else name.replace("_", "-") for name in given)
        message = f"--from and {', '.join(f'--{name}' for name in named)} are both given"
        raise UsageError("E192", message, "the record has all of that")


def print_result(result: Result, output: Path, *, page: bool) -> None:
    """Print the numbers of a result and where its files are."""
    console = Console(markup=False)  # names of folders may hold brackets
    if result.score.structures:
        console.print(overlap_table(result.score, plain=not console.is_terminal, guided=result.guided))
    run = result.provenance
    if run.classes_from == "predicted":
        console.print("classes     predicted from the moving image")
    console.print(verdict_lines(result.verdict))
    model, guides = run.model, run.guides
    used = "" if model is None else f"{model.words()}: {model.reason}" if model.reason else model.words()
    bent = ", ".join(f"{name} ({mm:.2f} mm)" for name, mm in result.rigid_mm.items())
    lines = [
        ("likeness", result.likeness and result.likeness.text),
        ("start", run.start.words()),
        ("model", used),
        ("structures", run.structures and run.structures.words()),
        ("guides", guides and f"{guides.words()}: their Dice proves nothing"),
        *(("no guide", f"{name}: {reason}") for name, reason in (guides.left_out if guides else {}).items()),
        ("check", result.check and result.check.words()),
        ("landmarks", result.landmarks and result.landmarks.words()),
        ("rigid", bent and f"{bent}: in brackets, how far it was bent"),
    ]
    for name, text in lines:
        if text:
            console.print(f"{name:<12}{terminal_safe(text)}", soft_wrap=True)
    console.print(f"folding     {result.regularity['folding_fraction']:.3%} of voxels")
    after = sum(result.seconds.get(name, 0.0) for name in ("files", "page"))
    files = "files and page" if page else "files"
    console.print(f"time        {sum(result.seconds.values()):.1f} s, of these {files} {after:.1f} s")
    console.print(f"result      {output}", soft_wrap=True)
    if page:
        console.print(f"page        {output / REPORT}", soft_wrap=True)
    gap = max((s.gap for s in result.steps), default=0.0)
    proof = f"solver      within {gap:.3%} of its own optimum (says nothing about anatomy)"
    console.print(proof, style="dim")


@app.add("regweave plan fixed.nii.gz moving.nii.gz", "regweave plan fixed.nii.gz moving.nii.gz --preset paper --json")
@partial(opt.from_fields, only=PLANNED)
def plan(job: Job, *, as_json: opt.Json = False) -> None:
    """Forecast peak memory and time of a registration, and print its grids and labels."""
    if job.fixed is None or job.moving is None:
        raise UsageError("E192", "FIXED and MOVING are needed", "name both images")
    settings = choose_settings(job.preset or "default", job.config, None, None)
    reading = with_stated(job.reading, settings, None)
    data = read_inputs(job.fixed, job.moving, reading=reading, fixed_mask=job.fixed_mask, moving_mask=job.moving_mask)
    bank = bank_for(data, None)
    n = allowed_threads(job.threads)
    with kernel_threads(n):
        grids = data.fixed.geometry, data.moving.geometry
        found = forecast(*grids, settings, bank, probe=True, masked_voxels=data.masked_voxels)
    overlap = overlap_fraction(data.fixed.geometry, data.moving.geometry, np.eye(4))
    if as_json:
        numbers = {
            **asdict(found),
            "settings": settings.name,
            "modality": {"fixed": data.fixed.modality, "moving": data.moving.modality, "bank": bank},
            "threads": n,
            "overlap": overlap,
        }
        print(json.dumps(numbers, indent=2))
        return
    console = Console(markup=False)
    console.print(f"images       {modality.describe_modalities(*data.modalities)}")
    console.print(f"settings     {settings.name}, bank {bank!r}, {found.n_members} members")
    table = Table(box=None)
    for heading in ("spacing", "voxels", "nodes", "labels", "steps"):
        table.add_column(heading, justify="right")
    for size in found.sizes:
        shape = "x".join(str(n) for n in size.shape)
        table.add_row(f"{size.spacing_mm:g} mm", shape, str(size.n_nodes), str(size.n_labels), str(size.steps))
    console.print(table)
    console.print(f"refinement   {found.refine_steps} steps")
    console.print(f"overlap      {overlap:.0%} of the smaller image, by the headers")
    console.print(f"peak memory  about {found.peak_memory_mb:.0f} MB of {physical_memory_mb():.0f} MB")
    console.print(f"time         about {found.seconds:.1f} s on {n} threads")
