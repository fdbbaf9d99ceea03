"""Damaged bytes: a code or a result, never another error, and no words of the library."""

import random

import numpy as np
import pytest
from made_dicom import Made, Roi, circle, dose, save, write_rtstruct, write_series

from regweave import notices
from regweave.contours import carry_set
from regweave.errors import RegweaveError
from regweave.io.dicom.dose import read_dose
from regweave.io.dicom.reg import read_reg, write_reg_deformable, write_reg_rigid
from regweave.io.dicom.rtstruct import read_rtstruct
from regweave.io.dicom.series import read_series
from regweave.types import Field, Transform

SMALL = Made(along=tuple(2.0 * k for k in range(5)), size=(16, 12))
RUNS = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each kind, and what reads it."""
    folder = tmp_path_factory.mktemp("whole")
    write_series(folder / "ct", SMALL)
    series = read_series(folder / "ct")
    still = Transform(Field.zero(series.image.geometry))
    rois = [Roi("A", tuple((k, circle((8, 7), 4, 12)) for k in range(1, 4))), Roi("P", points=((1.0, 2.0, 3.0),))]
    write_rtstruct(folder / "set.dcm", SMALL, rois)
    save(folder / "dose.dcm", dose(SMALL))
    write_reg_rigid(folder / "rigid.dcm", np.eye(4), series, series)
    write_reg_deformable(folder / "field.dcm", still, series, series, spacing_mm=8.0)
    return {
        "series": (sorted((folder / "ct").iterdir())[2], lambda path: read_series(path.parent)),
        "set": (folder / "set.dcm", lambda path: carry_set(read_rtstruct(path, series), series, still, series)),
        "dose": (folder / "dose.dcm", read_dose),
        "rigid": (folder / "rigid.dcm", read_reg),
        "field": (folder / "field.dcm", read_reg),
    }


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Flip, cut, take out or put in bytes behind the mark of the format."""
    data, kind = bytearray(whole), rng.random()
    at = rng.randrange(132, len(data) if rng.random() < 0.3 else min(len(data), 1400))
    if kind < 0.6:
        for _ in range(rng.choice([1, 2, 5, 20])):
            data[rng.randrange(132, min(len(data), at + 400))] = rng.choice([0, 255, 92, 45, rng.randrange(256)])
    elif kind < 0.8:
        data = data[:at]
    elif kind < 0.9:
        del data[at : at + rng.randrange(1, 40)]
    else:
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
    return bytes(data)


@pytest.mark.parametrize("kind", ["series", "set", "dose", "rigid", "field"])
def test_damage_ends_in_a_code(files, kind, caplog):
    path, read = files[kind]
    whole, rng, said = path.read_bytes(), random.Random(11), []
    try:
        for _ in range(RUNS):
            path.write_bytes(damaged(whole, rng))
            try:
                with notices.muted():
                    read(path)
            except RegweaveError as error:
                said.append(str(error))
    finally:
        path.write_bytes(whole)
    assert len(said) > RUNS // 4
    assert "SECRET" not in "".join(said)
    assert not caplog.records
    read(path)


def test_a_length_in_the_meta_header_that_is_no_number_is_damage(files, tmp_path):
    path, read = files["rigid"]
    data = bytearray(path.read_bytes())
    data[138:140] = b"\x06\x00"  # six bytes for a number of four
    (tmp_path / "bad.dcm").write_bytes(bytes(data))
    with pytest.raises(RegweaveError, match="E1"):
        read(tmp_path / "bad.dcm")
