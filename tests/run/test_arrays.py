"""Archives of arrays: as numpy writes them, and never more than they may hold."""

import os
import zipfile

import numpy as np
import pytest

from regweave.cli import main
from regweave.errors import RegweaveError
from regweave.io.disk import files as limits
from regweave.run.result import read_arrays


def test_arrays_come_back(tmp_path):
    a, b = np.arange(12.0).reshape(3, 4), np.arange(5, dtype=np.int16)
    np.savez_compressed(tmp_path / "x.npz", a=a, b=b)
    found = read_arrays(tmp_path / "x.npz", ("b", "a"))
    np.testing.assert_array_equal(found[0], b)
    np.testing.assert_array_equal(found[1], a)


def test_archives_that_are_none(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.zeros(100_000))
    content = path.read_bytes()
    monkeypatch.setattr("regweave.run.result.MAX_ARCHIVE_BYTES", 800_000)
    with pytest.raises(RegweaveError, match=r"E102.*allowed are 800000"):
        read_arrays(path, "a")
    monkeypatch.undo()
    monkeypatch.setattr(limits, "available_memory", lambda: 1000)
    with pytest.raises(RegweaveError, match="E140"):
        read_arrays(path, "a")
    monkeypatch.undo()
    for bad in (b"", content[:-30], content[:60] + b"\xff" * 20 + content[80:], b"PK\3\4" + bytes(100)):
        path.write_bytes(bad)
        with pytest.raises(RegweaveError, match="E102"):
            read_arrays(path, "a")
    np.savez(path, b=np.zeros(3), o=np.array([{}], dtype=object))
    for name in "ao":  # not there; it could run code
        with pytest.raises(RegweaveError, match="E102"):
            read_arrays(path, name)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "a.npy",
            b"\x93NUMPY\x01\x00\x76\x00"
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}".ljust(117)
            + b"\n",
        )
    with pytest.raises(RegweaveError, match="E102"):
        read_arrays(path, "a")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RegweaveError, match="E101"):
        read_arrays(path, "a")


def test_a_folder_that_no_folder_can_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "n" * 300]) == 3
    assert "error E1" in capsys.readouterr().err
