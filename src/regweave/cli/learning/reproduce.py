"""``regweave reproduce``: the experiments of the paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples, input_option, machine_option, method_option
from regweave.cli.options import (
    DeviceOption,
    JsonOption,
    SchedulerOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    WaitOption,
    cluster_of,
    complete_preset,
)
from regweave.cli.tables import terminal_text
from regweave.errors import EXIT_SOME_FAILED, Cancelled, UsageError
from regweave.jobs.cluster import WAIT_S
from regweave.jobs.store import BatchProgress
from regweave.report.reproduce import write_page
from regweave.study.reproduce import run as workflow
from regweave.study.reproduce.cost import told
from regweave.study.reproduce.options import USUAL, ReproduceOptions
from regweave.training.log import TrainProgress

EVERY = 25
"""Registrations between two lines of progress; smaller batches go without."""

app = command_line()


@app.command(
    epilog=examples(
        "regweave reproduce ibsr --data sets -o ibsr --quick",
        "regweave reproduce all --data sets -o paper --workers 16",
    )
)
def reproduce(
    experiment: Annotated[str, typer.Argument(help="ibsr, parotid, abdomen or all.")] = "all",
    *,
    data: Annotated[Path, input_option(help="Folder with the data sets, SET/CASE/{image,labels}.nii.gz.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for report, figures and numbers.")],
    quick: Annotated[
        bool, method_option("--quick", help="One fold and draw, few pairs, no gates: a look, not evidence.")
    ] = False,
    preset: Annotated[str, method_option(help="Settings by name.", autocompletion=complete_preset)] = "paper",
    config: Annotated[Path | None, method_option(help="Settings from a TOML file instead.")] = None,
    seed: Annotated[int, method_option(help="Chooses patients, folds, pairs and simulated scans.")] = 0,
    max_pairs: Annotated[int | None, method_option(help="Test at most so many pairs of a fold, drawn by seed.")] = None,
    max_folds: Annotated[int | None, method_option(help="Run only so many folds of an experiment.")] = None,
    models: Annotated[
        list[str] | None,
        method_option("--model", help="Model to train besides mw, repeatable; by default all but search."),
    ] = None,
    workers: Annotated[int | None, machine_option(help="Processes of this machine, by default all cores.")] = None,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    wait_for_workers: WaitOption = WAIT_S,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and warnings.")] = False,
) -> None:
    """Run the experiments of Ferrante et al. 2017 and put the paper's figures beside ours.

    Writes report.html, summary.md, figures and reproduce.json. Exit status 1
    if some registrations failed: the others are in the report.
    """
    if config is not None and preset != "paper":
        raise UsageError("E189", "--preset and --config are both given", "give one of them")
    options = ReproduceOptions(
        preset, config, quick, seed, max_pairs, tuple(models or USUAL), workers,
        cluster_of(scheduler, tls_ca, tls_cert, tls_key, wait_for_workers), device, max_folds,
    )  # fmt: skip
    try:
        content = workflow.reproduce(
            experiment, data, output, options, resume=resume, on_progress=None if quiet else _tell,
            on_experiment=write_page,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        raise Cancelled("E190", "cancelled", "finished work is kept; continue with --resume") from error
    if as_json:
        print((output / "reproduce.json").read_text(encoding="utf-8"), end="")
    elif not quiet:
        print(terminal_text((output / "summary.md").read_text(encoding="utf-8")))
        print(f"\nreport  {output / 'report.html'}")
        if used := told(output):
            print(f"cost    {used}")
    failed = [row for e in content["experiments"] for row in e["results"] if row["error"] is not None]
    for row in failed:
        print(f"failed {row['split']}/{row['method']}/{row['id']}: {row['error']}", file=sys.stderr)
    if failed:
        raise typer.Exit(EXIT_SOME_FAILED)


def _tell(progress: TrainProgress | BatchProgress) -> None:
    if isinstance(progress, TrainProgress):
        print(f"{progress.stage}: {progress.message}", file=sys.stderr, flush=True)
    elif progress.total >= EVERY and (progress.done == progress.total or progress.done % EVERY == 0):
        left = f", {progress.seconds_left:.0f} s left" if progress.seconds_left == progress.seconds_left else ""
        failed = f", {progress.failed} failed" if progress.failed else ""
        print(f"  {progress.done}/{progress.total} registrations{failed}{left}", file=sys.stderr, flush=True)
