from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from regweave.cli.demo import demo, write_inputs
from regweave.cli.tables import overlap_table
from regweave.io import read_image, read_labels
from regweave.workflows.phantom import PhantomPair


def test_table_is_plain_text_with_the_mean_as_last_row() -> None:
    dice = {
        2: {"name": "cord", "before": 0.5, "after": 0.9},
        6: {"name": "airway", "before": 0.7, "after": 0.8},
    }
    stream = StringIO()
    Console(file=stream, width=80).print(overlap_table(dice, plain=True))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert lines[1:] == [
        ["organ", "before", "after", "change"],
        ["cord", "0.500", "0.900", "+0.400"],
        ["airway", "0.700", "0.800", "+0.100"],
        ["mean", "0.600", "0.850", "+0.250"],
    ]
    assert stream.getvalue().isascii()


def test_inputs_come_back_from_disk_with_names(tmp_path: Path, phantom_pair: PhantomPair) -> None:
    pair = phantom_pair.pair
    write_inputs(pair, tmp_path / "phantom")
    moving = read_image(tmp_path / "phantom" / "moving.nii.gz")
    np.testing.assert_array_equal(moving.data, pair.moving.data)
    np.testing.assert_allclose(moving.geometry.affine, pair.moving.geometry.affine, atol=1e-5)
    labels = read_labels(tmp_path / "phantom" / "fixed_labels.nii.gz")
    assert pair.fixed_labels is not None
    np.testing.assert_array_equal(labels.data, pair.fixed_labels.data)
    assert labels.names == pair.fixed_labels.names


@pytest.mark.slow
def test_demo_raises_the_overlap_of_every_organ(tmp_path: Path) -> None:
    output = tmp_path / "out"
    app = typer.Typer()
    app.command()(demo)
    run = CliRunner().invoke(app, ["-o", str(output)])
    assert run.exit_code == 0, run.output
    rows = {line[:16].strip(): line[16:].split() for line in run.output.splitlines() if "+0." in line}
    assert len(rows) == 7
    assert float(rows["mean"][1]) > 0.8
    assert (output / "result").is_dir()
    assert (output / "phantom" / "fixed.nii.gz").is_file()
