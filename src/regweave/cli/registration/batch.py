"""``regweave batch``: every pair of a list registered, each into its own folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.app import command_line, examples
from regweave.cli.options import (
    DeviceOption,
    FixedModalityOption,
    FollowOption,
    FrameOption,
    JsonOption,
    LabelNamesOption,
    MovingModalityOption,
    NonFiniteOption,
    RulesOption,
    SchedulerOption,
    StrictOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    WaitOption,
    cluster_of,
    complete_model,
    complete_preset,
    machine_option,
    method_option,
)
from regweave.config.presets import metric_weights
from regweave.errors import EXIT_SOME_FAILED, EXIT_VERDICT, Cancelled
from regweave.jobs.batch import RESULTS
from regweave.jobs.batch import batch as run
from regweave.jobs.cluster import WAIT_S
from regweave.progress import BatchBar
from regweave.run.images import FILES, parse_outputs

app = command_line()


@app.command(
    epilog=examples(
        "regweave batch pairs.csv -o results --workers 8",
        "regweave batch pairs.csv -o results --workers 8 --resume",
        "regweave batch pairs.csv -o results --model head-neck-ct --write warped,labels",
    )
)
def batch(
    pairs: Annotated[Path, typer.Argument(help="List of pairs.", metavar="PAIRS.csv")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results, one folder a pair.")],
    model: Annotated[
        Path | None,
        method_option(
            help="Model of the rows that name none: a file or a shipped name.", autocompletion=complete_model
        ),
    ] = None,
    preset: Annotated[
        str | None, method_option(help="Settings of the rows that name none.", autocompletion=complete_preset)
    ] = None,
    config: Annotated[Path | None, method_option(help="Settings from a TOML file.")] = None,
    metric: Annotated[
        list[str] | None,
        method_option(help="Use this metric or member; repeat for a mix.", metavar="NAME[=WEIGHT]"),
    ] = None,
    init: Annotated[str | None, method_option(help="Start of the rows that name none.")] = None,
    engine: Annotated[str | None, method_option(help="Inference engine: trws, fastpd, icm.")] = None,
    write: Annotated[
        str | None,
        typer.Option(help=f"Files beside each result.json: some of {', '.join(FILES)}.", metavar="NAMES"),
    ] = None,
    rules: RulesOption = None,
    strict: StrictOption = False,
    workers: Annotated[
        int | None, machine_option(help="Processes, each with one thread; by default all cores.")
    ] = None,
    scheduler: SchedulerOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    wait_for_workers: WaitOption = WAIT_S,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a batch that was interrupted.")] = False,
    label_names: LabelNamesOption = None,
    fixed_modality: FixedModalityOption = "auto",
    moving_modality: MovingModalityOption = "auto",
    nifti_frame: FrameOption = "auto",
    nonfinite: NonFiniteOption = "error",
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and warnings.")] = False,
) -> None:
    """Register every pair of a list; write a folder for each, results.csv, results.json and an index page.

    The columns of the list are id, fixed, moving and, each optional and each
    empty where a row has none, fixed_labels, moving_labels, fixed_mask,
    moving_mask, model, preset and init. Everything is checked before the
    first registration. Exit status 1 if some pairs ended with errors: the
    others are there, and the failures are named. With --strict the status is
    6 if a verdict is fail.
    """
    cluster = cluster_of(scheduler, tls_ca, tls_cert, tls_key, wait_for_workers)
    try:
        with BatchBar(lines=True, shown=not quiet) as shown:
            found = run(
                pairs, output, model=model, preset=preset, config=config, metrics=metric_weights(metric), init=init,
                engine=engine, rules=rules, write=None if write is None else parse_outputs(write), workers=workers,
                scheduler=cluster, device=device, resume=resume, on_progress=shown, label_names=label_names,
                fixed_modality=fixed_modality, moving_modality=moving_modality, nifti_frame=nifti_frame,
                nonfinite=nonfinite, follow_links=follow_links,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise Cancelled("E190", "cancelled", "finished pairs are kept; continue with --resume") from error
    for name, text in found.failures.items():
        print(f"failed {name}: {text}", file=sys.stderr)
    if as_json:
        print((output / RESULTS[1]).read_text(encoding="utf-8"), end="")
    elif not quiet:
        print(f"{found.tally()}\ntable  {output / RESULTS[0]}\npage   {output / RESULTS[2]}")
    failed = [row for row in found.rows if row.verdict == "fail"]
    for row in failed:
        print(f"verdict fail {row.id}: {'; '.join(one.text for one in row.reasons)}", file=sys.stderr)
    if found.failures or (failed and strict):
        raise typer.Exit(EXIT_SOME_FAILED if found.failures else EXIT_VERDICT)
