"""Build a folder of atlases from images with labels, or evaluate it by leave-one-out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regweave.cli.app import command_line, examples
from regweave.cli.options import JsonOption, LabelNamesOption, QuietOption, from_fields
from regweave.cli.tables import text_table
from regweave.errors import Cancelled
from regweave.jobs.atlas import EvaluateJob, build_atlas, evaluate_atlas
from regweave.progress import BatchBar

app = command_line(help=__doc__)


@app.command(epilog=examples("regweave atlas build people.csv -o ATLAS"))
def build(
    manifest: Annotated[Path, typer.Argument(help="List with the columns id, image, labels and group.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the atlases.", metavar="ATLAS")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier folder.")] = False,
    label_names: LabelNamesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check images and labels, and copy them into a folder of atlases.

    Structures are brought to one numbering by their names. The column group,
    if there is one, names the patient of each image.
    """
    found = build_atlas(manifest, output, label_names=label_names, overwrite=overwrite)
    facts = {"output": str(output), "atlases": len(found.rows), "structures": len(found.names)}
    text = f"wrote {output}: {facts['atlases']} atlases, {facts['structures']} structures"
    print(json.dumps(facts) if as_json else f"{text}\nnext: regweave atlas evaluate {output} -o scores")


@app.command(epilog=examples("regweave atlas evaluate ATLAS -o scores --top 8"))
@from_fields
def evaluate(job: EvaluateJob, *, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Segment every atlas with the others; print the Dice by structure.

    Atlases that lower the vote of the others are named. The relation of
    estimated to measured Dice is kept in ATLAS for later estimates.
    """
    try:
        with BatchBar(lines=True, shown=not quiet) as bar:
            found = evaluate_atlas(**vars(replace(job, on_progress=bar)))
    except KeyboardInterrupt as error:
        raise Cancelled("E190", "cancelled", "finished work is kept; continue with --resume") from error
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    rows = [(row["name"], [f"{row['dice']:.3f}", str(row["people"])]) for row in found["structures"]]
    print(text_table("structure", ["Dice", "people"], rows, longest=30))
    print(f"mean        {found['dice']:.3f} ({job.fusion} of {job.top}), vote {found['vote']:.3f}")
    print(f"one atlas   {found['most_alike']:.3f} (most alike), {found['best_single']:.3f} (best, chosen by the truth)")
    print(f"estimate    rho {found['estimate']['rho']:.2f} with the measured Dice")
    for name, effect in found["lowering"].items():
        print(f"lowers      {name}: {effect:+.4f} mean Dice of a vote")
    for name, text in found["failed"].items():
        print(f"failed      {name}: {text}")
