"""``regweave demo``: register a phantom with a known deformation and show what it brought."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import regweave
from regweave.cli.tables import overlap_table
from regweave.io import prepare_output, write_image, write_labels
from regweave.types import ImagePair
from regweave.workflows.phantom import make_phantom


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option(help="Chooses the phantom and its deformation.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")] = False,
) -> None:
    """Register a phantom and print the overlap of each organ before and after.

    Six organs, and each changes its contrast in its own way. Images, labels
    and result are written as NIfTI files, to open in any viewer.
    """
    console = Console()
    pair = make_phantom(seed).pair
    with prepare_output(output, overwrite=overwrite) as folder:
        write_inputs(pair, folder / "phantom")
        start = time.perf_counter()
        with console.status("registering two images of 64 x 64 x 64 voxels"):
            result = regweave.register(
                pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels
            )
        seconds = time.perf_counter() - start
        result.save(folder / "result")

    console.print(overlap_table(result.dice, plain=not console.is_terminal))
    console.print(f"time       {seconds:.1f} s")
    console.print(f"folding    {result.regularity['folding_fraction']:.3%} of voxels")
    console.print(f"phantom    {output / 'phantom'}", soft_wrap=True)
    console.print(f"result     {output / 'result'}", soft_wrap=True)


def write_inputs(pair: ImagePair, folder: Path) -> None:
    """Write both images, their labels and the names of these as NIfTI and JSON."""
    folder.mkdir(parents=True)
    for name, volume, labels in (
        ("fixed", pair.fixed, pair.fixed_labels),
        ("moving", pair.moving, pair.moving_labels),
    ):
        write_image(folder / f"{name}.nii.gz", volume)
        if labels is not None:
            write_labels(folder / f"{name}_labels.nii.gz", labels)
            (folder / "labels.json").write_text(json.dumps(dict(labels.names), indent=2), encoding="utf-8")
