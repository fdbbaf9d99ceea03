"""``regweave evaluate``: methods against each other on a list of pairs."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli import options as opt
from regweave.cli.app import command_line, resumable, usual
from regweave.cli.tables import terminal_text
from regweave.errors import EXIT_OK, EXIT_SOME_FAILED, EXIT_VERDICT, RegweaveError, UsageError
from regweave.io.disk.records import REPORT, RESULTS
from regweave.jobs.workers import Cluster
from regweave.progress import BatchBar
from regweave.report import evaluation
from regweave.run.read import Reading
from regweave.study import evaluate as workflow
from regweave.study.evaluate import EvaluateJob, Evaluation, keep_registration

app = command_line()


@app.add(
    "regweave evaluate test.csv -o out --model weights.json",
    "regweave evaluate test.csv -o out --baselines --train-pairs train.csv",
    cls=usual(
        "output resume pages strict quiet models baselines preset config train_pairs label_names classes workers device"
    ),
)
@partial(opt.from_fields, rare=True)
def evaluate(
    job: EvaluateJob,
    machines: Cluster,
    *,
    pages: Annotated[
        int, typer.Option(help="Pairs with the lowest Dice with a separate page.", min=0, metavar="N")
    ] = 3,
    strict: opt.Strict = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML pages.")] = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Register every pair with every method; write results.csv, results.json, summary.md and HTML pages.

    The list has the columns id, fixed, moving, fixed_labels and
    moving_labels. Optional columns: group (the patients of a pair, with +
    between them), fixed_mask and moving_mask (regions that count).
    Exit status 1 if some registrations failed; they are named in the results.
    With --strict the status is 6 if a verdict is fail.
    """
    if job.preset is not None and job.config is not None:
        raise UsageError("E189", "--preset and --config are both given", "give one of them")
    cluster, output = machines.asked(), Path(str(job.output))
    with resumable():
        with BatchBar(lines=True, shown=not quiet) as shown:
            job = replace(
                job, classes=opt.parse_values(job.classes), withhold=opt.parse_values(job.withhold, "--withhold"),
                models=job.models or (), scheduler=cluster, on_progress=shown,
            )  # fmt: skip
            found = workflow.evaluate(**vars(job))
        missing = 0 if no_report else _write_pages(found, output, job.reading, pages, quiet=quiet)
    for row in found.failures:
        print(f"failed {row.method}/{row.id}: {row.error}", file=sys.stderr)
    if as_json:
        print((output / RESULTS).read_text(encoding="utf-8"), end="")
    elif not quiet:
        print(terminal_text((output / "summary.md").read_text(encoding="utf-8")))
    done = (row for rows in found.by_method.values() for row in rows if row.error is None)
    failed = [row for row in done if row.verdict.word == "fail"]
    for row in failed:
        print(f"verdict fail {row.id} {row.method}: {row.verdict.text}", file=sys.stderr)
    if found.failures or missing or (failed and strict):
        raise typer.Exit(missing or (EXIT_SOME_FAILED if found.failures else EXIT_VERDICT))


def _write_pages(found: Evaluation, folder: Path, reading: Reading, n: int, *, quiet: bool) -> int:
    """Write the pages of the worst pairs, then those of the evaluation; return the exit status of those that lack."""
    written, status = [], EXIT_OK
    for row in found.worst(n):
        try:
            written.append(keep_registration(found, row, reading, folder) / REPORT)
        except RegweaveError as error:  # the results are there; a page less is no reason to hide them
            status = error.exit_status
            print(f"no page of {row.id}: {error}", file=sys.stderr)
    written.append(evaluation.write_page(folder))
    if not quiet:
        print("\n".join(f"page {path}" for path in written), file=sys.stderr, flush=True)
    return status
