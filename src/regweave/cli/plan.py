"""``regweave plan``: memory, time and sizes of a registration, without running it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from regweave.cli.app import command_line, examples
from regweave.cli.options import (
    FixedMaskOption,
    FixedModalityOption,
    FollowOption,
    FrameOption,
    JsonOption,
    MovingMaskOption,
    MovingModalityOption,
    NonFiniteOption,
    complete_preset,
    machine_option,
    method_option,
)
from regweave.config.presets import choose_settings
from regweave.io import overlap_fraction
from regweave.io.modality import describe_modalities
from regweave.run.memory import allowed_threads, forecast, physical_memory_mb
from regweave.run.read import Reading, read_inputs
from regweave.run.resolve import bank_for, with_stated
from regweave.threads import kernel_threads

app = command_line()


@app.command(
    epilog=examples(
        "regweave plan fixed.nii.gz moving.nii.gz", "regweave plan fixed.nii.gz moving.nii.gz --preset paper --json"
    )
)
def plan(
    fixed: Annotated[Path, typer.Argument(help="Image that would stay.")],
    moving: Annotated[Path, typer.Argument(help="Image that would be warped.")],
    *,
    preset: Annotated[str, method_option(help="Settings by name.", autocompletion=complete_preset)] = "default",
    config: Annotated[Path | None, method_option(help="Settings from a TOML file.")] = None,
    nifti_frame: FrameOption = "auto",
    nonfinite: NonFiniteOption = "error",
    follow_links: FollowOption = False,
    fixed_mask: FixedMaskOption = None,
    moving_mask: MovingMaskOption = None,
    fixed_modality: FixedModalityOption = "auto",
    moving_modality: MovingModalityOption = "auto",
    threads: Annotated[int | None, machine_option(help="Threads that the run would use.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast peak memory and time of a registration, and print its grids and labels."""
    settings = choose_settings(preset, config, None, None)
    reading = Reading(
        nifti_frame=nifti_frame, nonfinite=nonfinite, fixed_modality=fixed_modality, moving_modality=moving_modality,
        follow_links=follow_links,
    )  # fmt: skip
    masks = {"fixed_mask": fixed_mask, "moving_mask": moving_mask}
    data = read_inputs(fixed, moving, reading=with_stated(reading, settings, None), **masks)
    bank = bank_for(data, None)
    n = allowed_threads(threads)
    with kernel_threads(n):
        grids = data.fixed.geometry, data.moving.geometry
        found = forecast(*grids, settings, bank, probe=True, masked_voxels=data.masked_voxels)
    overlap = overlap_fraction(data.fixed.geometry, data.moving.geometry, np.eye(4))
    if as_json:
        numbers = {
            **asdict(found),
            "settings": settings.name,
            "modality": {"fixed": data.fixed.modality, "moving": data.moving.modality, "bank": bank},
            "threads": n,
            "overlap": overlap,
        }
        print(json.dumps(numbers, indent=2))
        return
    console = Console(markup=False)
    console.print(f"images       {describe_modalities(*data.modalities)}")
    console.print(f"settings     {settings.name}, bank {bank!r}, {found.n_members} members")
    table = Table(box=None)
    for heading in ("spacing", "voxels", "nodes", "labels", "steps"):
        table.add_column(heading, justify="right")
    for size in found.sizes:
        shape = "x".join(str(n) for n in size.shape)
        table.add_row(f"{size.spacing_mm:g} mm", shape, str(size.n_nodes), str(size.n_labels), str(size.steps))
    console.print(table)
    console.print(f"refinement   {found.refine_steps} steps")
    console.print(f"overlap      {overlap:.0%} of the smaller image, by the headers")
    console.print(f"peak memory  about {found.peak_memory_mb:.0f} MB of {physical_memory_mb():.0f} MB")
    console.print(f"time         about {found.seconds:.1f} s on {n} threads")
