"""Choice of files and series: lists in text files, and one series of several in a folder."""

import json

import numpy as np
import pytest
from made_dicom import Made, write_series

from regweave.cli import main
from regweave.clinic.propagate import ContoursJob, write_contours
from regweave.errors import RegweaveError, UsageError
from regweave.io.dicom.series import list_series, read_series, series_by_place
from regweave.run.read import Reading, read_inputs

SMALL = Made(size=(24, 20), spacing=(2.0, 2.0), along=tuple(3.0 * k for k in range(8)))


@pytest.fixture
def two(tmp_path):
    """A folder with two series of other values, and their hashes by name."""
    folder = tmp_path / "both"
    hashes = {}
    for name, origin in (("1", (-31.0, -40.0, 7.0)), ("2", (-30.0, -40.0, 7.0))):
        made = Made(**{**SMALL.__dict__, "series": name, "origin": origin})
        write_series(tmp_path / name, made)
        hashes[name] = list_series(tmp_path / name)[0].hash
        write_series(folder / name, made)
    return folder, hashes


def test_a_text_file_lists_the_files_of_a_series(tmp_path):
    write_series(tmp_path / "scan", SMALL)
    names = sorted(path.name for path in (tmp_path / "scan").iterdir())
    (tmp_path / "plan.txt").write_text("# the scan\n\n" + "\n".join(f"scan/{name}" for name in names) + "\n")
    whole, listed = read_series(tmp_path / "scan"), read_series(tmp_path / "plan.txt")
    np.testing.assert_array_equal(listed.image.data, whole.image.data)
    with pytest.raises(RegweaveError, match="E168"):
        write_contours(ContoursJob(tmp_path / "plan.txt", tmp_path / "plan.txt"), tmp_path / "scan" / "out")
    (tmp_path / "plan.txt").write_text("# nothing\n")
    with pytest.raises(RegweaveError, match="E101"):
        read_series(tmp_path / "plan.txt")


def test_two_series_of_one_folder_are_told_apart_and_one_name_goes_to_its_folder(two):
    folder, hashes = two
    with pytest.raises(UsageError, match="E161"):
        read_inputs(folder, folder)
    reading = Reading(fixed_series=hashes["2"], moving_series=hashes["1"])
    found = read_inputs(folder, folder, reading=Reading.from_json(json.loads(json.dumps(reading.to_json()))))
    for image, name in ((found.fixed, "2"), (found.moving, "1")):
        expected = read_inputs(folder.parent / name, folder.parent / name).fixed
        np.testing.assert_array_equal(image.data, expected.data)
    assert found.hashes["fixed"] != found.hashes["moving"]
    folder, hashes = two
    assert series_by_place([hashes["2"]], folder) == (hashes["2"], None)
    assert series_by_place(["0" * 12], folder) == (None, "0" * 12)
    assert series_by_place(["a", "b"], folder) == ("a", "b")
    with pytest.raises(UsageError, match="E192"):
        series_by_place(["a", "b", "c"], folder)


def test_register_chooses_and_its_record_runs_again(two, tmp_path, capsys):
    folder, hashes = two
    chosen = ["--series", hashes["1"][:6], "--series", hashes["2"][:6]]
    quick = ["--quiet", "--write", "transform"]
    assert main(["register", str(folder), str(folder), "-o", str(tmp_path / "out"), *chosen, *quick]) == 0
    record = tmp_path / "out" / "result.json"
    again = ["register", "--from", str(record), "-o", str(tmp_path / "again"), "--quiet", "--write", "transform"]
    assert main(again) == 0
    same = [(tmp_path / name / "transform.h5").read_bytes() for name in ("out", "again")]
    assert same[0] == same[1]
    assert main([*again, "--series", hashes["1"], "--overwrite"]) == 2
    assert "--from and --series" in capsys.readouterr().err
