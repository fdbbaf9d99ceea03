"""``regweave demo``: phantoms or your scans in; weights, evidence and pages out."""

import shutil
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli import options as opt
from regweave.cli.app import WIDTH, command_line, examples
from regweave.cli.tables import text_table
from regweave.config.presets import choose_settings
from regweave.config.settings import Settings
from regweave.errors import EXIT_SOME_FAILED, Cancelled, UsageError
from regweave.io import prepare_output
from regweave.io.disk.records import DEMO, DEMO_MODEL, INDEX
from regweave.model.record import write_effort
from regweave.progress import TrainingBar, duration
from regweave.report.demo import write_page
from regweave.study import demo as workflow
from regweave.study.demo import DemoSummary
from regweave.training.run import train

app = command_line()


@app.command(epilog=examples("regweave demo", "regweave demo --data scans -o my-demo"))
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.")] = Path("demo-output"),
    data: Annotated[
        Path | None, opt.of_input(help="Folder with PAIRS.csv or with CASE/{image,labels}.nii.gz.", metavar="DIR")
    ] = None,
    classes: Annotated[
        str | None, opt.of_input(help="Structures of DIR to learn, label values with commas; others are background.")
    ] = None,
    preset: Annotated[
        str | None,
        opt.of_method(help="Settings for DIR by name; without it, fast ones.", autocompletion=opt.complete_preset),
    ] = None,
    seed: Annotated[int, opt.of_method(help="Chooses the phantoms, or the halves of PAIRS.csv.", min=0)] = 0,
    workers: Annotated[int | None, opt.of_machine(help="Processes; by default all cores.")] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
) -> None:
    """Register generated scans, learn metric weights, and test them.

    Without DIR: registers a head and neck, a chest and a brain, and writes a
    page with the pictures. Then learns from six generated patients and tests
    the weights on four others, beside every single metric, each tuned. Takes
    about two minutes on two cores; the first pictures take less than one.

    With DIR: learns from your scans and tests on others. PAIRS.csv (see
    `regweave train`) is split into halves by patient. Otherwise each CASE is a
    patient. Neighbours in the order of names become couples, registered both
    ways, at most twenty cases; the first half of the couples trains.
    """
    settings = _settings(data, classes, preset)
    workflow.OPTIONS.check()  # what learning needs, before phantoms are made
    labels, start = opt.parse_values(classes), time.perf_counter()
    if data is None:
        with prepare_output(output, overwrite=overwrite) as folder, TrainingBar(lines=True) as bar:
            bar.say("[0/4] first registrations")
            for kind, result in workflow.register_examples(folder):
                bar.say(f"  {kind}: {workflow.example_sentence(result)}")
            write_page(folder)
        print(f"first pictures  {output / INDEX}", file=sys.stderr)
    try:
        summary = _learn(output, data, labels, settings, seed, workers, overwrite or data is None)
    except (KeyboardInterrupt, Cancelled) as error:
        if data is None:
            raise Cancelled("E190", "cancelled", f"the first pictures stay in {output / INDEX}") from error
        raise
    if as_json:
        print((output / DEMO).read_text(encoding="utf-8"), end="")
    else:
        print(as_text(summary, output, time.perf_counter() - start))
    if summary.failures:
        raise typer.Exit(EXIT_SOME_FAILED)


def _learn(
    output: Path, data: Path | None, labels: tuple[int, ...] | None, settings: Settings, seed: int,
    workers: int | None, overwrite: bool,
) -> DemoSummary:  # fmt: skip
    with prepare_output(output, overwrite=overwrite) as folder:
        if data is None:
            shutil.copytree(output / workflow.EXAMPLES, folder / workflow.EXAMPLES)
        with TrainingBar(lines=True) as bar:
            bar.say(f"[1/4] {'phantoms' if data is None else 'scans'}")
            scans = folder / "scans"
            lists = workflow.make_cohort(scans, seed) if data is None else workflow.split_folder(data, scans, seed)
            bar.say("[2/4] learning")
            options = vars(replace(workflow.OPTIONS, classes=labels))
            model = train(
                lists.train, folder / DEMO_MODEL, config=settings, workers=workers, on_progress=bar, **options
            )
            write_effort(folder / DEMO_MODEL, bar.stages)
        with TrainingBar(lines=True) as bar:
            bar.say("[3/4] held-out patients")
            summary = workflow.assess(folder, lists, model, classes=labels, workers=workers, on_progress=bar)
            bar.say("[4/4] pages")
            write_page(folder, all_pages=True)
    return summary


def _settings(data: Path | None, classes: str | None, preset: str | None) -> Settings:
    given = {"--classes": classes, "--preset": preset}
    named = [name for name, value in given.items() if value is not None]
    if data is None and named:
        raise UsageError("E192", f"{' and '.join(named)} without --data", "add --data DIR, or leave it out")
    return workflow.SETTINGS if preset is None else choose_settings(preset, None, None, None)


def as_text(summary: DemoSummary, output: Path, seconds: float) -> str:
    """Write the summary within 80 columns."""
    dice = [(title, ["-" if v is None else f"{v:.3f}" for v in values]) for title, values in summary.dice.items()]
    members = list(summary.trust[0].shares)
    trust = [
        (row.name, [*(f"{row.shares[m]:.2f}" for m in members), "learned" if row.used else "uniform"])
        for row in summary.trust
    ]
    return "\n".join(
        [
            _filled(summary.opening()),
            "",
            "Dice of the held-out patients",
            text_table("", ["mean", *summary.structures], dice),
            "",
            "Share of each metric in the weights of a structure",
            text_table("", [*members, "weights"], trust),
            "",
            *(_filled(f"- {line}", "  ") for line in summary.sentences()),
            "",
            f"time  {duration(seconds)} min",
            f"open  {output / INDEX}",
        ]
    )


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
