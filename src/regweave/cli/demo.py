"""``regweave demo``: phantoms in; weights, evidence and pages out."""

import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli import options as opt
from regweave.cli.app import WIDTH, command_line
from regweave.cli.tables import text_table
from regweave.errors import EXIT_SOME_FAILED, Cancelled
from regweave.io import prepare_output
from regweave.io.disk.records import DEMO, DEMO_MODEL, INDEX
from regweave.model.record import write_effort
from regweave.progress import TrainingBar, duration
from regweave.report.demo import write_page
from regweave.study import demo as workflow
from regweave.study.demo import DemoSummary
from regweave.training.run import train

app = command_line()


@app.add("regweave demo", "regweave demo --seed 5 -o my-demo")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.")] = Path("demo-output"),
    seed: Annotated[int, opt.of_method(help="Chooses the phantoms.", min=0)] = 0,
    workers: Annotated[int | None, opt.of_machine(help="Processes; by default all cores.")] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
) -> None:
    """Register generated scans, learn metric weights, and test them.

    Registers a head and neck, a chest and a brain, and writes a page with the
    pictures. Then learns from six generated patients and tests the weights on
    four others, beside every single metric, each tuned. Takes about two
    minutes on two cores; the first pictures take less than one.

    On your scans, `train` and `evaluate` do the same from lists.
    """
    workflow.OPTIONS.check()  # what learning needs, before phantoms are made
    start = time.perf_counter()
    with prepare_output(output, overwrite=overwrite) as folder, TrainingBar(lines=True) as bar:
        bar.say("[0/4] first registrations")
        for kind, result in workflow.register_examples(folder):
            bar.say(f"  {kind}: {workflow.example_sentence(result)}")
        write_page(folder)
    print(f"first pictures  {output / INDEX}", file=sys.stderr)
    try:
        with prepare_output(output, overwrite=True) as folder:
            shutil.copytree(output / workflow.EXAMPLES, folder / workflow.EXAMPLES)
            summary = _learn(folder, seed, workers)
    except (KeyboardInterrupt, Cancelled) as error:
        raise Cancelled("E190", "cancelled", f"the first pictures stay in {output / INDEX}") from error
    if as_json:
        print((output / DEMO).read_text(encoding="utf-8"), end="")
    else:
        print(as_text(summary, output, time.perf_counter() - start))
    if summary.failures:
        raise typer.Exit(EXIT_SOME_FAILED)


def _learn(folder: Path, seed: int, workers: int | None) -> DemoSummary:
    weights, options = folder / DEMO_MODEL, vars(workflow.OPTIONS)
    with TrainingBar(lines=True) as bar:
        bar.say("[1/4] phantoms")
        lists = workflow.make_cohort(folder / "scans", seed)
        bar.say("[2/4] learning")
        model = train(lists[0], weights, config=workflow.SETTINGS, workers=workers, on_progress=bar, **options)
        write_effort(weights, bar.stages)
    with TrainingBar(lines=True) as bar:
        bar.say("[3/4] held-out patients")
        summary = workflow.assess(folder, *lists, model, workers=workers, on_progress=bar)
        bar.say("[4/4] pages")
        write_page(folder, all_pages=True)
    return summary


def as_text(summary: DemoSummary, output: Path, seconds: float) -> str:
    """Write the summary within 80 columns."""
    dice = [(title, ["-" if v is None else f"{v:.3f}" for v in values]) for title, values in summary.dice.items()]
    shares = [
        (name, [*(f"{share:.2f}" for share in row.values()), "uniform" if name in summary.uniform else "learned"])
        for name, row in summary.shares.items()
    ]

    def filled(text: str, indent: str = "") -> str:
        return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

    return "\n".join([
        filled(summary.opening()), "", "Dice of the held-out patients",
        text_table("", ["mean", *summary.structures], dice), "", "Share of each metric in the weights of a structure",
        text_table("", [*summary.members, "weights"], shares), "",
        *(filled(f"- {line}", "  ") for line in summary.sentences()), "",
        f"time  {duration(seconds)} min", f"open  {output / INDEX}",
    ])  # fmt: skip
