"""``regweave train``: weights of a bank learned from pairs with masks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regweave.api.train import train as workflow
from regweave.cli.help import command_line, examples, input_option, machine_option, method_option
from regweave.cli.learning.weights import as_dict, as_text
from regweave.cli.options import (
    DeviceOption,
    FixedModalityOption,
    FollowOption,
    FrameOption,
    JsonOption,
    LabelNamesOption,
    MovingModalityOption,
    NonFiniteOption,
    SchedulerOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    WaitOption,
    cluster_of,
    complete_preset,
    parse_options,
    parse_values,
)
from regweave.errors import Cancelled
from regweave.io import require_absent
from regweave.jobs.workers import WAIT_S
from regweave.model.effort import effort_path, write_effort
from regweave.progress import TrainingBar
from regweave.report import training

app = command_line()


@app.command(
    epilog=examples(
        "regweave train train.csv -o weights.json",
        "regweave train train.csv -o weights.json --classes 1,2 --workers 8",
        "regweave train train.csv -o weights.json --resume",
        "regweave train train.csv -o weights.zip --predictor auto",
    )
)
def train(
    pairs: Annotated[Path, typer.Argument(help="List of pairs with masks.", metavar="PAIRS.csv")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model to write: JSON, or .zip, as a network needs.")],
    preset: Annotated[str, method_option(help="Settings by name.", autocompletion=complete_preset)] = "default",
    config: Annotated[Path | None, method_option(help="Settings from a TOML file.")] = None,
    method: Annotated[str, method_option(help="Kind of learning: lssvm, lssvm-joint or global.")] = "lssvm-joint",
    metrics: Annotated[str | None, method_option(help="Members or metrics of the bank, separated by commas.")] = None,
    loss: Annotated[str | None, method_option(help="Loss on the masks: dice, voxel, surface, landmark.")] = None,
    classes: Annotated[str | None, input_option(help="Structures to learn, label values with commas.")] = None,
    withhold: Annotated[
        str | None, input_option(help="Structures kept out of learning, to judge it by them; the others are learned.")
    ] = None,
    c: Annotated[float | None, method_option("--C", help="Weight of the slacks.")] = None,
    alpha: Annotated[float | None, method_option(help="Weight of the proximity to the start.")] = None,
    eta: Annotated[float | None, method_option(help="Weight of the loss in imputation.")] = None,
    epsilon: Annotated[float, method_option(help="Tolerance of the constraints.")] = 1e-2,
    rounds: Annotated[int, method_option(help="Times the trajectories are refreshed.")] = 1,
    signed: Annotated[bool, method_option("--signed", help="Allow negative weights, as the paper does.")] = False,
    levels: Annotated[str, method_option(help="Where learned weights act: all levels, or the finest.")] = "all",
    folds: Annotated[int, method_option(help="Folds of the gate, by patient.")] = 3,
    max_pairs: Annotated[int | None, method_option(help="Learn on this many pairs chosen at random.")] = None,
    tune_pairs: Annotated[int, method_option(help="Pairs to tune the smoothness with, at most.")] = 24,
    judge_pairs: Annotated[int, method_option(help="Pairs to try, judge and learn weights with, at most.")] = 40,
    max_memory_mb: Annotated[
        float, machine_option(help="Learn on as many pairs, chosen at random, as have samples that fit.")
    ] = 1500.0,
    refinement_learner: Annotated[
        str, method_option(help="What teaches structures weights of their own in the refinement: dice or svm.")
    ] = "dice",
    structure_start: Annotated[
        str, method_option(help="Try a start from structures (auto), or keep that of the settings (keep).")
    ] = "auto",
    gate: Annotated[bool, method_option(help="Use a column only where left-out patients gained.")] = True,
    seed: Annotated[int, method_option(help="Chooses folds and pairs.")] = 0,
    predictor: Annotated[
        str, method_option(help="What tells structures without labels: perceptron, unet, or auto.")
    ] = "perceptron",
    predictor_option: Annotated[
        list[str] | None, method_option(help="Option of the predictor, such as width=24; may be repeated.")
    ] = None,
    workers: Annotated[int | None, machine_option(help="Processes of this machine.")] = None,
    scheduler: SchedulerOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    wait_for_workers: WaitOption = WAIT_S,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older model.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML page.")] = False,
    label_names: LabelNamesOption = None,
    fixed_modality: FixedModalityOption = "auto",
    moving_modality: MovingModalityOption = "auto",
    nifti_frame: FrameOption = "auto",
    nonfinite: NonFiniteOption = "error",
    follow_links: FollowOption = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and warnings.")] = False,
) -> None:
    """Learn how much each structure trusts each metric, from masks alone; write a model and its page.

    What is learned is used, structure by structure, only where it raised the
    Dice of warped masks of patients that were left out. The columns of the
    list are id, fixed, moving, fixed_labels, moving_labels and, if patients
    have several pairs, group: the patients of a pair, with + between them;
    fixed_mask and moving_mask name the regions that count.
    """
    shown = TrainingBar(lines=True, shown=not quiet)
    beside = [] if no_report else [effort_path(output), training.page_path(output)]
    claims = [require_absent(path, overwrite=overwrite) for path in beside]
    cluster = cluster_of(scheduler, tls_ca, tls_cert, tls_key, wait_for_workers)
    try:
        with shown:
            model = workflow(
                pairs, output, preset=preset, config=config, loss=loss,
                metrics=None if metrics is None else metrics.split(","), workers=workers, scheduler=cluster,
                device=device, resume=resume, overwrite=overwrite, on_progress=shown,
                method=method, classes=parse_values(classes), withhold=parse_values(withhold, "--withhold"), C=c,
                alpha=alpha, eta=eta, epsilon=epsilon, rounds=rounds, signed=signed, levels=levels, folds=folds,
                max_pairs=max_pairs, tune_pairs=tune_pairs,
                judge_pairs=judge_pairs, max_memory_mb=max_memory_mb,
                refinement_learner=refinement_learner, structure_start=structure_start, gate=gate,
                seed=seed, predictor=predictor,
                predictor_options=parse_options(predictor_option or [], "--predictor-option"),
                nifti_frame=nifti_frame, nonfinite=nonfinite, label_names=label_names,
                fixed_modality=fixed_modality, moving_modality=moving_modality, follow_links=follow_links,
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
