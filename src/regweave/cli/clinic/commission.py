"""``regweave commission``: the program tested on phantoms whose deformation is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.help import command_line, examples
from regweave.cli.options import JsonOption
from regweave.clinic.commission import RECORD
from regweave.clinic.commission import commission as run
from regweave.errors import EXIT_SOME_FAILED
from regweave.io import prepare_output
from regweave.io.disk.records import write_record
from regweave.progress import Bar
from regweave.report.commission import PROTOCOL, write_protocol

app = command_line()


@app.command(epilog=examples("regweave commission protocol", "regweave commission protocol --seed 7 --json"))
def commission(
    output: Annotated[Path, typer.Argument(help="Folder for the protocol.", show_default=False)],
    *,
    seed: Annotated[int, typer.Option(help="Chooses the random deformations.", min=0)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier protocol.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Test contour propagation on digital phantoms with known deformations.

    Writes a protocol with every number, its limit and the limit's source,
    and lines for the signatures. Exit status 1 where a trial fails.
    """
    with prepare_output(output, overwrite=overwrite) as folder, Bar(lines=True, shown=not as_json) as bar:
        record = run(seed, lambda name, share: bar.draw(share, name, line=f"trial {name}"))
        write_record(folder / RECORD, record.model_dump())
        write_protocol(folder)
    if as_json:
        print(record.model_dump_json(indent=1))
    else:
        for trial in record.trials:
            numbers = f"mean {trial.mean_mm:.2f} mm, largest {trial.max_mm:.2f} mm, Dice {trial.least_dice:.3f}"
            print(f"{trial.word:<6}{trial.name:<12}{numbers}")
        print(f"protocol    {output / PROTOCOL}")
    if record.word != "pass":
        raise typer.Exit(EXIT_SOME_FAILED)
