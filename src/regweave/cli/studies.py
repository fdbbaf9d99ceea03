"""Commands on structures and series: tables of volumes and means, and volumes brought to their mean."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer

from regweave.cli.app import command_line, examples
from regweave.cli.options import JsonOption, LabelNamesOption, OverwriteOption, input_option, method_option
from regweave.io import atomic_path, prepare_output, require_absent, write_image
from regweave.io.time_series import write_time_series
from regweave.io.transforms.files import write_linear
from regweave.jobs.regions import measure as run_measure
from regweave.run.realign import realign

app = command_line()


def write_tsv(stream: IO[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with tabs between the cells; numbers have six digits."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
    writer.writerow(columns)
    cells = ([row.get(name, "n/a") for name in columns] for row in rows)
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in line] for line in cells)


@app.command(
    epilog=examples("regweave measure labels.nii.gz --image t1.nii.gz", "regweave measure list.csv -o volumes.tsv")
)
def measure(
    labels: Annotated[Path, typer.Argument(help="Label map, or a list with id, labels and image.", metavar="LABELS")],
    *,
    image: Annotated[Path | None, input_option(help="Image on the grid of the labels.", metavar="FILE")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Table to write, TSV; by default it is printed.")
    ] = None,
    overwrite: OverwriteOption = False,
    label_names: LabelNamesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print or write the volume of each structure and the mean of an image in it.

    LABELS may be a CSV list with the columns id, labels and, if wanted,
    image: the table then has the rows of all label maps.
    """
    claim = None if output is None else require_absent(output, overwrite=overwrite)
    rows = run_measure(labels, image, label_names=label_names)
    if claim is not None and output is not None:
        with claim.writing(), atomic_path(output) as part, part.open("w", encoding="utf-8", newline="") as stream:
            write_tsv(stream, rows)
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif output is None:
        write_tsv(sys.stdout, rows)
    else:
        print(f"wrote {output}: {len(rows)} structures")


@app.command(epilog=examples("regweave series bold.nii.gz -o realigned"))
def series(
    file: Annotated[Path, typer.Argument(help="4-D NIfTI file.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.", metavar="FOLDER")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")] = False,
    transform: Annotated[
        Literal["rigid", "affine"], method_option(help="Kind of map from the mean to each volume.", metavar="KIND")
    ] = "rigid",
    rounds: Annotated[int, method_option(help="Rounds; each registers the volumes to the mean before.")] = 2,
    threads: Annotated[int | None, method_option(help="Threads; the result is the same for any number.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the volumes of a 4-D image to their mean.

    The folder gets mean.nii.gz, series.nii.gz, motion.tsv with shifts,
    rotations and framewise displacement, and a transform for each volume.
    """
    with prepare_output(output, overwrite=overwrite) as folder:
        found = realign(file, transform=transform, rounds=rounds, threads=threads)
        write_image(folder / "mean.nii.gz", found.mean)
        write_time_series(folder / "series.nii.gz", found.series)
        (folder / "transforms").mkdir()
        for n, matrix in enumerate(found.matrices):
            write_linear(folder / "transforms" / f"{n:04}.tfm", matrix)
        with (folder / "motion.tsv").open("w", encoding="utf-8", newline="") as stream:
            write_tsv(stream, found.motion())
    largest = max(row["framewise_displacement"] for row in found.motion())
    if as_json:
        facts = {"output": str(output), "volumes": len(found.series), "largest_framewise_displacement_mm": largest}
        print(json.dumps(facts))
    else:
        print(f"wrote {output}: {len(found.series)} volumes, framewise displacement up to {largest:.3g} mm")
