"""The small commands: what they write, what they print, how they end."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from regweave import notices
from regweave.cli import app as program, main
from regweave.cli.app import command_line
from regweave.errors import ResourceError
from regweave.io import (
    read_image,
    read_labels,
    read_points,
    read_transform,
    write_image,
    write_labels,
    write_points,
    write_transform,
)
from regweave.types import Ends, Field, Geometry, LabelMap, Transform, Volume

FIXED = Geometry((14, 13, 12), np.diag([-1.0, -1.5, 2.0, 1.0]))
MOVING = Geometry((16, 15, 14), np.diag([1.0, 1.5, 2.0, 1.0]))
MOVING.affine[:3, 3] = (-14.0, -20.0, -2.0)
SHIFT = np.array([1.0, -1.5, 2.0])


ENDS = Ends("fixed_to_moving", FIXED, MOVING)


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(0)
    write_image(tmp_path / "fixed.nii.gz", Volume(rng.normal(0, 1, FIXED.shape).astype(np.float32), FIXED))
    air = rng.random(MOVING.shape) < 0.3
    moving = Volume(np.where(air, -1000.0, rng.normal(40, 12, MOVING.shape)).astype(np.float32), MOVING)  # a CT
    write_image(tmp_path / "moving.nii.gz", moving)
    labels = np.zeros(MOVING.shape, np.uint16)
    labels[4:9, 4:9, 4:9] = 300
    labels[15, 14, 13] = 7
    write_labels(tmp_path / "labels.nrrd", LabelMap(labels, MOVING))
    shift = np.broadcast_to(SHIFT.astype(np.float32)[:, None, None, None], (3, *FIXED.shape)).copy()
    write_transform(tmp_path / "forward.h5", Transform(Field(shift, FIXED), ends=ENDS))
    back = Transform(Field(-np.ones((3, *MOVING.shape), np.float32), MOVING), ends=ENDS.turned())
    write_transform(tmp_path / "inverse.h5", back)
    write_points(tmp_path / "p.csv", np.array([[-3.0, -4.0, 5.0]]), ["a"])
    return tmp_path


def run(folder, *words):
    """Run the program with the folder's files as arguments."""
    names = {p.name for p in folder.iterdir()}
    return main([str(folder / w) if w in names or w.startswith("out") else w for w in words])


def test_warp_image_against_simpleitk(case, capsys):
    status = run(case, "warp", "image", "moving.nii.gz", "-t", "forward.h5", "-r", "fixed.nii.gz", "-o", "out.nii.gz")
    assert status == 0
    assert "outside = -1000" in capsys.readouterr().out
    fixed = sitk.ReadImage(str(case / "fixed.nii.gz"))
    moving = sitk.ReadImage(str(case / "moving.nii.gz"))
    itk = sitk.ReadTransform(str(case / "forward.h5"))
    expected = sitk.Resample(moving, fixed, itk, sitk.sitkLinear, -1000.0)
    found = read_image(case / "out.nii.gz")
    np.testing.assert_allclose(found.data, sitk.GetArrayFromImage(expected).T, atol=1e-2)
    np.testing.assert_array_equal(found.geometry.affine, FIXED.affine)


def test_warp_labels(case, capsys):
    words = ("warp", "labels", "labels.nrrd", "-t", "forward.h5", "-r", "fixed.nii.gz", "-o", "out.nii.gz")
    assert run(case, *words) == 0
    found = read_labels(case / "out.nii.gz")
    assert found.data.dtype == np.uint16
    fixed, moving = (sitk.ReadImage(str(case / n)) for n in ("fixed.nii.gz", "labels.nrrd"))
    itk = sitk.ReadTransform(str(case / "forward.h5"))
    nearest = sitk.Resample(moving, fixed, itk, sitk.sitkNearestNeighbor)
    np.testing.assert_array_equal(found.data, sitk.GetArrayFromImage(nearest).T)
    assert "W203" in capsys.readouterr().err
    assert run(case, *words) == 3
    assert "error E150" in capsys.readouterr().err
    assert run(case, *words, "--overwrite") == 0


def test_hints_name_options_that_exist(case, capsys):
    data = np.random.default_rng(0).normal(size=(6, 6, 6)).astype(np.float32)
    data[0, 0, 0] = np.nan
    image = nib.Nifti1Image(data, np.eye(4))
    image.set_qform(np.diag([1, 1, -1, 1]), 1)
    nib.save(image, case / "bad.nii")
    words = ("warp", "image", "bad.nii", "-t", "identity", "-r", "fixed.nii.gz", "-o", "out.nii")
    assert run(case, *words) == 3
    assert "--nifti-frame sform or qform" in capsys.readouterr().err
    words += ("--nifti-frame", "sform")
    assert run(case, *words) == 3
    assert "nonfinite mask" in capsys.readouterr().err
    assert not (case / "out.nii").exists()
    assert run(case, *words, "--nonfinite", "mask") == 0
    assert "warning W205" in capsys.readouterr().err


def test_warp_points_in_both_directions(case, capsys):
    words = ("warp", "points", "p.csv", "-o", "out.mrk.json", "--overwrite")
    assert run(case, *words, "-t", "forward.h5") == 0
    assert "from fixed to moving" in capsys.readouterr().out
    points, labels = read_points(case / "out.mrk.json")
    np.testing.assert_allclose(points, [[-2.0, -5.5, 7.0]], atol=1e-6)
    assert labels == ["a"]
    assert run(case, *words, "-t", "inverse.h5", "--from", "moving", "--to", "fixed") == 0
    np.testing.assert_allclose(read_points(case / "out.mrk.json")[0], [[-4.0, -5.0, 4.0]], atol=1e-6)
    for wrong in (
        ("-t", "forward.h5", "--from", "moving", "--to", "fixed"),
        ("-t", "inverse.h5"),
        ("-t", "forward.h5", "--to", "fixed"),
    ):
        assert run(case, *words, *wrong) == 2
        assert "error E117" in capsys.readouterr().err


def test_convert(case, capsys):
    for suffix in [".nii.gz", ".nrrd", ".tfm", ".h5"]:
        transform = Transform(read_transform(case / "forward.h5").field, np.diag([1.1, 0.9, 1.0, 1.0]))
        write_transform(case / "t.h5", transform)
        assert run(case, "convert", "t.h5", "-o", f"out{suffix}") == 0
        assert capsys.readouterr().out.count("fixed points to moving points") == 2
        source = sitk.ReadTransform(str(case / "t.h5"))
        if suffix in {".nii.gz", ".nrrd"}:
            image = sitk.ReadImage(str(case / f"out{suffix}"), sitk.sitkVectorFloat64)
            target = sitk.DisplacementFieldTransform(image)
        else:
            target = sitk.ReadTransform(str(case / f"out{suffix}"))
        for index in ([0, 0, 0], [5, 6, 7], [2.5, 3.25, 1.0]):
            point = FIXED.points(np.array(index, dtype=float)).tolist()
            np.testing.assert_allclose(target.TransformPoint(point), source.TransformPoint(point), atol=1e-4)
        assert run(case, "convert", "t.h5", "-o", f"out{suffix}") == 3


def test_convert_linear(case, capsys):
    sitk.WriteTransform(sitk.TranslationTransform(3, SHIFT.tolist()), str(case / "shift.mat"))
    assert run(case, "convert", "shift.mat", "-o", "out.tfm") == 0
    assert sitk.ReadTransform(str(case / "out.tfm")).TransformPoint((0.0, 0.0, 0.0)) == tuple(SHIFT)
    assert run(case, "convert", "shift.mat", "-o", "out.nii.gz") == 3
    assert "--reference" in capsys.readouterr().err
    assert run(case, "convert", "shift.mat", "-o", "out.nii.gz", "-r", "fixed.nii.gz") == 0
    assert read_transform(case / "out.nii.gz").field.data[:, 3, 3, 3].tolist() == SHIFT.tolist()


def test_check_lists_all_files(case, capsys):
    data = np.random.default_rng(0).normal(size=(6, 6, 6)).astype(np.float32)
    data[1, 2, 3] = np.nan
    image = nib.Nifti1Image(data, np.eye(4))
    image.set_qform(np.diag([1, 1, 1, 1]) + np.eye(4, k=3) * 5, 1)
    image.header["descrip"] = b"DOE^JANE"
    nib.save(image, case / "bad.nii")
    (case / "cut.nii.gz").write_bytes((case / "fixed.nii.gz").read_bytes()[:500])
    assert run(case, "check", "fixed.nii.gz") == 0
    assert re.fullmatch(r"\S+: ok, 14×13×12, .* mm, RAS, .* to .*, not CT\n", capsys.readouterr().out)
    assert run(case, "check", "-v", "fixed.nii.gz") == 0
    assert "sha256" in capsys.readouterr().out
    assert run(case, "check", "fixed.nii.gz", "moving.nii.gz") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("pair: can be registered, overlap ")
    far = nib.load(case / "fixed.nii.gz")
    nib.save(nib.Nifti1Image(far.get_fdata(), far.affine + 1e4 * np.eye(4, k=3)), case / "far.nii")
    assert run(case, "check", "fixed.nii.gz", "far.nii") == 0
    assert "--init moments" in capsys.readouterr().out
    assert run(case, "check", "fixed.nii.gz", "bad.nii", "cut.nii.gz", "none.nii") == 3
    text = capsys.readouterr().out
    assert re.findall(r"error (E\d+)", text) == ["E110", "E104", "E102", "E101"]
    assert "DOE" not in text
    assert run(case, "check", "--json", "fixed.nii.gz", "bad.nii") == 3
    good, bad = json.loads(capsys.readouterr().out)
    assert (good["ok"], good["size"], good["orientation"]) == (True, [14, 13, 12], "RAS")
    assert good["nifti"]["qform_code"] == 1
    assert [p["code"] for p in bad["problems"]] == ["E110", "E104"]
    assert bad["nonfinite_voxels"] == 1


def test_about(capsys):
    assert main(["about", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"version", "commit", "python", "platform", "cpu_features", "threads", "dependencies"} <= set(facts)
    assert facts["dependencies"]["numpy"] == np.__version__
    assert main(["about"]) == 0
    assert "research use only" in capsys.readouterr().out


def raising(error):
    """Return a module whose one command warns twice and fails."""
    module = ModuleType("failing")
    module.app = command_line()

    @module.app.command()
    def command() -> None:
        notices.warn("W201: look at this")
        notices.warn("W201: look at this")
        raise error

    return module


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ResourceError("E140", "needs 9 GiB", "coarser"), 4, "error E140: needs 9 GiB\n  coarser"),
        (KeyboardInterrupt(), 5, "cancelled; nothing was written"),
        (MemoryError(), 4, "error E140"),
        (ZeroDivisionError("patient DOE"), 70, "internal error (ZeroDivisionError)"),
    ],
)
def test_how_a_command_ends(monkeypatch, capsys, error, status, text):
    monkeypatch.setitem(sys.modules, "regweave.cli.failing", raising(error))
    monkeypatch.setitem(program.COMMANDS, "command", ("failing", "Program", "Fail."))
    assert main(["command"]) == status
    shown = capsys.readouterr().err
    assert text in shown
    assert shown.startswith("warning W201: look at this\n")
    assert shown.count("W201") == 1
    assert "\x1b[" not in shown
    if status == 70:
        report = Path(re.search(r"\S+regweave-report-\S+\.txt", shown)[0])
        content = report.read_text()
        report.unlink()
        assert "ZeroDivisionError" in content
        assert "raise error" in content
        assert "DOE" not in content + shown


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_process_status_and_termination(spawn, tmp_path):
    """One true process: the exit status, and a scheduler's or a closed terminal's signal leaves no half result."""
    script = (
        "import sys, time; from regweave.cli import app as program, main; from regweave.io import prepare_output\n"
        "sys.modules['regweave.cli.slow'] = sys.modules['__main__']; app = program.command_line()\n"
        "program.COMMANDS['slow'] = ('slow', 'Program', 'Wait.')\n"
        "def slow(out: str) -> None:\n"
        "    with prepare_output(out) as folder:\n"
        "        (folder / 'half').touch(); print('ready', flush=True); time.sleep(60)\n"
        "slow.__annotations__ = {'out': str, 'return': None}\n"
        "app.command()(slow); sys.exit(main(['slow', sys.argv[1]]))\n"
    )
    processes = {name: spawn(sys.executable, "-c", script, tmp_path / name) for name in ("SIGTERM", "SIGHUP")}
    for name, process in processes.items():
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        _, err = process.communicate()
        assert (process.returncode, err) == (5, "cancelled; nothing was written\n"), name
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_not_utf8_are_printed(tmp_path):
    path = tmp_path / os.fsdecode(b"bad\xff\xfe.nii.gz")
    data = np.random.default_rng(0).random(FIXED.shape).astype(np.float32)
    write_image(tmp_path / "x.nii.gz", Volume(data, FIXED))
    (tmp_path / "x.nii.gz").rename(path)
    # A process of its own: the stream that pytest puts in the place of stdout encodes nothing.
    code = "import sys; from regweave.cli import main; sys.exit(main(['check', *w]) or main(['check', '--json', *w]))"
    command = [sys.executable, "-c", code.replace("*w", "sys.argv[1]"), str(path)]
    run = subprocess.run(command, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(rb"bad\udcff\udcfe.nii.gz") == 2
