"""``regweave train``: weights of a bank learned from pairs with masks."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from regweave.cli.app import command_line, examples, usual
from regweave.cli.models import as_dict, as_text
from regweave.cli.options import (
    ClusterOptions,
    DeviceOption,
    FixedModalityOption,
    JsonOption,
    LabelNamesOption,
    MovingModalityOption,
    complete_preset,
    input_option,
    machine_option,
    method_option,
    parse_values,
)
from regweave.errors import Cancelled
from regweave.io import require_absent
from regweave.model.record import effort_path, write_effort
from regweave.progress import TrainingBar
from regweave.report import training
from regweave.training.options import TrainOptions, train_table
from regweave.training.run import train as workflow

SENTENCES = {f.name: f.metadata["help"] for f in fields(TrainOptions)}
CLUSTER = ("tls_ca", "tls_cert", "tls_key", "wait_for_workers")
OTHERS = (*CLUSTER, "metrics", "loss", "nifti_frame", "nonfinite", "follow_links")
"""Keys of the table ``[train]`` beside the options of a training."""

app = command_line()


@app.command(
    cls=usual("output resume overwrite preset config method classes folds label_names predictor workers device quiet"),
    epilog=examples(
        "regweave train train.csv -o weights.json",
        "regweave train train.csv -o weights.json --classes 1,2 --workers 8",
        "regweave train train.csv -o weights.json --resume",
        "regweave train train.csv -o weights.zip --predictor auto",
    ),
)
def train(
    pairs: Annotated[Path, typer.Argument(help="List of pairs with masks.", metavar="PAIRS.csv")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model to write: JSON, or .zip, as a network needs.")],
    preset: Annotated[str, method_option(help="Settings by name.", autocompletion=complete_preset)] = "default",
    config: Annotated[
        Path | None,
        method_option(help="Settings from a TOML file; its table \\[train] has more options of a training."),
    ] = None,
    method: Annotated[str | None, method_option(help=SENTENCES["method"], metavar="lssvm-joint|lssvm|global")] = None,
    classes: Annotated[str | None, input_option(help=SENTENCES["classes"], metavar="1,2,7")] = None,
    folds: Annotated[int | None, method_option(help=SENTENCES["folds"])] = None,
    predictor: Annotated[str | None, method_option(help=SENTENCES["predictor"])] = None,
    workers: Annotated[int | None, machine_option(help="Processes of this machine.")] = None,
    scheduler: Annotated[
        str | None, machine_option(help="Dask scheduler to use instead, tcp://HOST:PORT or tls://HOST:PORT.")
    ] = None,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older model.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML page.")] = False,
    label_names: LabelNamesOption = None,
    fixed_modality: FixedModalityOption = "auto",
    moving_modality: MovingModalityOption = "auto",
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and warnings.")] = False,
) -> None:
    """Learn weights of metrics by structure, from masks alone; write a model and its page.

    A learned weight is used, structure by structure, only where it raised the
    Dice of warped masks of patients that were left out. The list has the
    columns id, fixed, moving, fixed_labels and moving_labels. Optional:
    group (the patients of a pair, with + between them), fixed_mask and
    moving_mask (regions that count). `regweave presets
    show default` prints all options of the table ``train``.
    """
    shown = TrainingBar(lines=True, shown=not quiet)
    beside = [] if no_report else [effort_path(output), training.page_path(output)]
    claims = [require_absent(path, overwrite=overwrite) for path in beside]
    options: dict[str, Any] = train_table(config, OTHERS)
    cluster = ClusterOptions(
        scheduler=scheduler, **{name: options.pop(name) for name in CLUSTER if name in options}
    ).cluster
    given = {"method": method, "classes": parse_values(classes), "folds": folds, "predictor": predictor}
    options |= {name: value for name, value in given.items() if value is not None}
    try:
        with shown:
            model = workflow(
                pairs, output, preset=preset, config=config, workers=workers, scheduler=cluster, device=device,
                resume=resume, overwrite=overwrite, on_progress=shown, label_names=label_names,
                fixed_modality=fixed_modality, moving_modality=moving_modality, **options,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise Cancelled("E190", "cancelled", "finished registrations are kept; continue with --resume") from error
    if not no_report:
        with claims[0].writing(), claims[1].writing():
            write_effort(output, shown.stages)
            page = training.write_page(output)
        if not quiet:
            print(f"page {page}", file=sys.stderr)
    if as_json:
        print(json.dumps(as_dict(output, model), indent=1, ensure_ascii=False))
    elif not quiet:
        print(as_text(output, model))
