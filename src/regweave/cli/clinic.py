"""Commands of the clinic: contours of a plan on today's scan, sign-offs, commissioning."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regweave.cli import options as opt
from regweave.cli.app import command_line, resumable, usual
from regweave.cli.tables import VERDICTS, end_by_verdict, short, verdict_lines
from regweave.clinic.commission import RECORD, run_trials
from regweave.clinic.propagate import RTSTRUCT, ContoursJob, Propagation, write_contours
from regweave.errors import EXIT_SOME_FAILED, UsageError
from regweave.io import atomic_path, prepare_output, require_absent
from regweave.io.disk.files import sha256
from regweave.io.disk.records import write_record
from regweave.measures.likeness import own_reference
from regweave.measures.propagation import PropagatedStructure
from regweave.progress import Bar, BatchBar, StagedBar
from regweave.report.batch import good_results
from regweave.report.page import render
from regweave.report.signoff import Reviewable, collected, read_signoff, require_match
from regweave.run.result import FILES

ALONE = ("rtstruct", "series", "fixed_points", "moving_points", "guide_points", "guide", "threads")
"""Options of one patient, which a list does not take."""
PROTOCOL, REFERENCE = "protocol.html", "likeness.json"

app = command_line()
clinic = command_line(help="Check reviews of propagated contours, or test contours on phantoms.")
app.add_typer(clinic, name="clinic")


@app.add(
    "regweave contours planning/ today/ -o result",
    "regweave contours planning/ today/ -o result --rtstruct plan.dcm",
    "regweave contours planning/ today/ -o result --structures Parotid_L,Cord",
    "regweave contours planning/ today/ -o result --init registration.dcm",
    "regweave contours fractions.csv -o results --workers 4",
    cls=usual(
        "output overwrite strict rtstruct structures series name_map guide model init rigid check workers resume"
    ),
)
@opt.from_fields
def contours(
    job: ContoursJob,
    *,
    output: opt.Folder,
    strict: opt.Strict = False,
    workers: Annotated[
        int | None, opt.of_machine(help="Processes for a .csv list, each with one thread; by default all cores.")
    ] = None,
    resume: Annotated[bool, opt.of_machine("--resume", help="Continue a .csv list that was interrupted.")] = False,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Bring the contours of a planning CT onto today's CT.

    Writes an unapproved structure set, the registration as a DICOM object
    and an ITK transform, labels, numbers and a page for the review. Inputs
    are never written to. A .csv list with the columns id, plan, today and
    rtstruct replaces PLAN and TODAY. Each row gets its own folder, and all of
    them a table and a page. A failed row stops no other; the exit status is
    then 1.
    """
    if job.today is None:
        _propagate_list(
            job, output, workers, resume=resume, overwrite=overwrite, strict=strict, as_json=as_json, quiet=quiet
        )
        return
    if workers is not None or resume:
        raise UsageError("E192", "--workers or --resume is given without a .csv list", "leave it out, or give a list")
    with StagedBar(lines=True, shown=not quiet) as bar:
        done = write_contours(replace(job, on_stage=bar.stage), output, overwrite=overwrite)
    if as_json:
        record = json.loads((output / "result.json").read_text(encoding="utf-8"))
        print(json.dumps({"output": str(output), **record}, indent=1, ensure_ascii=False))
    elif not quiet:
        _print(done, output)
    end_by_verdict(done.result.verdict, printed=not (as_json or quiet), strict=strict)


def _propagate_list(
    job: ContoursJob, output: Path, workers: int | None, *, resume: bool, overwrite: bool, strict: bool, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Propagate the contours of a list, print the tally and the failures, and end with their status."""
    # One patient needs neither workers nor their store.
    from regweave.cli.batch import end_batch  # noqa: PLC0415
    from regweave.jobs.contours import contours_list  # noqa: PLC0415

    options = dict(vars(job))
    table = Path(str(options.pop("plan")))
    if table.suffix.lower() != ".csv":
        message = "TODAY is missing"
        raise UsageError("E192", message, "name the folder of today's scan, or a .csv list in place of both")
    alone = {name: options.pop(name) for name in ALONE} | {"overwrite": overwrite or None}
    if named := [f"--{name.replace('_', '-')}" for name, value in alone.items() if value is not None]:
        hint = "leave it out; the list has a column rtstruct, and --resume continues a folder"
        raise UsageError("E192", f"{', '.join(named)} is given with a list", hint)
    options = {name: value for name, value in options.items() if name not in ("today", "progress", "on_stage")}
    with resumable("finished rows are kept"), BatchBar(lines=True, shown=not quiet) as bar:
        found = contours_list(table, output, workers=workers, resume=resume, on_progress=bar, **options)
    end_batch(found, output, strict=strict, as_json=as_json, quiet=quiet)


def _print(done: Propagation, output: Path) -> None:
    """Print the structures with their flags, the verdict, and where the files are."""
    console = Console(markup=False)
    quality = done.quality
    console.print(_table(quality.structures, plain=not console.is_terminal))
    drawn = {row.name for row in quality.structures}
    for lost in (*quality.lost, *quality.left_out):
        part = "in part" if lost.name in drawn else "left out"
        console.print(f"{part:<12}{short(lost.name, 26)}: {lost.reason}", soft_wrap=True)
    for row in quality.cut:
        console.print(f"{'cut':<12}{short(row.name, 26)}: {row.reasons[-1]}", soft_wrap=True)
    console.print(verdict_lines(done.result.verdict))
    if done.result.check is not None:
        console.print(f"check       {done.result.check.words()}", soft_wrap=True)
    console.print(f"status      {quality.status}")
    console.print(f"time        {sum(done.result.seconds.values()):.1f} s")
    console.print(f"contours    {output / RTSTRUCT}", soft_wrap=True)
    console.print(f"page        {output / FILES['report']}", soft_wrap=True)


def _table(rows: Sequence[PropagatedStructure], *, plain: bool) -> Table:
    table = Table(title="Structures", box=None if plain else box.SIMPLE_HEAD, title_justify="left")
    table.add_column("structure", no_wrap=True)
    for heading in ("plan ml", "today ml", "change", "shift mm", "planes"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(
            Text(short(row.name, 22)), _number(row.volume_plan_ml, ".2f"), _number(row.volume_today_ml, ".2f"),
            _number(row.volume_change_percent, "+.0f", " %"), _number(row.centroid_shift_mm, ".1f"),
            str(row.planes), Text(row.flag, VERDICTS[row.flag]),
        )  # fmt: skip
    return table


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


@clinic.add(
    "regweave clinic signoff signoff.tsv --result result",
    "regweave clinic signoff *.tsv --result monday --result tuesday -o reviews.tsv",
)
def signoff(
    files: Annotated[list[Path], typer.Argument(help="Sign-offs that pages exported.", show_default=False)],
    *,
    result: Annotated[list[Path], opt.of_input(help="Folder of the result that was reviewed; repeat for several.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write all of them as one table.")] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
) -> None:
    """Read sign-offs back, check that each belongs to an unchanged result, and collect them.

    A sign-off carries the SHA-256 of the transform and of what was looked at:
    the structure set, the warped labels, or the warped image. Where one of
    these files has changed since, or a structure of the page has no grade,
    the review does not count (E145, status 3). Exit status 1 where a
    structure was refused.
    """
    if output is not None:
        require_absent(output, overwrite=overwrite)
    results = [Reviewable.read(folder) for folder in result]
    found = []
    for file in files:
        signed = read_signoff(file)
        found.append((signed, require_match(signed, results, file)))
    if output is not None:
        with atomic_path(output) as part:
            part.write_text(collected(found), encoding="utf-8", newline="\n")
    if as_json:
        rows = [
            {"result": str(of.folder), "verdict": s.word, "header": dict(s.header), "structures": s.rows}
            for s, of in found
        ]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        for signed, of in found:
            low = [f"{name} {grade}" for name, grade, _ in signed.unusable]
            told = f": {', '.join(low)}" if low else ""
            print(f"{of.folder}: {signed.word} by {signed.header['reviewer']} on {signed.header['date']}{told}")
        if output is not None:
            print(f"wrote {output}")
    if any(signed.word == "refused" for signed, _ in found):
        raise typer.Exit(EXIT_SOME_FAILED)


@clinic.add("regweave clinic commission protocol --seed 7 --json")
def commission(
    output: Annotated[Path, typer.Argument(help="Folder for the protocol.", show_default=False)],
    *,
    seed: Annotated[int, typer.Option(help="Chooses the random deformations.", min=0)] = 0,
    cases: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a batch of your own pairs: those graded 2 or more become the reference of likeness."
        ),
    ] = None,
    grades: Annotated[Path | None, typer.Option(help="Table that the contact sheet of CASES exported.")] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
) -> None:
    """Test contour propagation on digital phantoms with known deformations.

    Writes a protocol with every number, its limit and the limit's source,
    and lines for the signatures. Exit status 1 where a trial fails.
    With --cases and --grades also a reference of likeness from your own pairs.
    """
    if (cases is None) != (grades is None):
        raise UsageError("E192", "one of --cases and --grades is given", "give both or none")
    reference = None if cases is None or grades is None else own_reference(good_results(cases, grades), cases.name)
    with prepare_output(output, overwrite=overwrite) as folder, Bar(lines=True, shown=not as_json) as bar:
        record = run_trials(seed, lambda name, share: bar.draw(share, name, line=f"trial {name}"))
        write_record(folder / RECORD, record)
        context = {"record": record, "digest": sha256(folder / RECORD)}
        (folder / PROTOCOL).write_text(render("commission.j2", context), encoding="utf-8", newline="\n")
        if reference is not None:
            write_record(folder / REFERENCE, reference.model_dump(mode="json"))
    if as_json:
        print(json.dumps(record, indent=1, ensure_ascii=False))
    else:
        for one in record["trials"]:
            numbers = f"mean {one['mean_mm']:.2f} mm, largest {one['max_mm']:.2f} mm, Dice {one['least_dice']:.3f}"
            print(f"{one['word']:<6}{one['name']:<12}{numbers}")
        print(f"protocol    {output / PROTOCOL}")
        if reference is not None:
            kinds = ", ".join(f"{one.pairs} of {kind}" for kind, one in reference.kinds.items())
            print(f"reference   {output / REFERENCE}: good results, {kinds}")
    if record["word"] != "pass":
        raise typer.Exit(EXIT_SOME_FAILED)
