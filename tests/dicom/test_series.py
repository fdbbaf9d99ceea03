"""DICOM series: every slice lies where it says, whatever its name, number or neighbours."""

import logging
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from made_dicom import ID, NAME, Made, function_of, image, save, uid, write_series
from pydicom import config

from regweave.errors import RegweaveError
from regweave.io import inspect_image, read_image
from regweave.io.dicom.overview import overview
from regweave.io.dicom.parse import guarded
from regweave.io.dicom.series import list_series, read_series

EVEN = Made()
TILT = np.radians(14.0)
CASES = {
    "even": EVEN, "uneven": replace(EVEN, along=(0.0, 0.2, 1.1, 4.0, 6.9, 8.0, 9.5, 12.5, 13.0, 16.0)),
    "tilted": replace(EVEN, column=(0.0, np.cos(TILT), np.sin(TILT))),
    "prone": replace(EVEN, row=(-1.0, 0.0, 0.0), column=(0.0, -1.0, 0.0), origin=(31.0, 40.0, 7.0)),
    "feet first": replace(EVEN, row=(-1.0, 0.0, 0.0), origin=(31.0, -40.0, 30.0)),
    "sagittal": replace(EVEN, row=(0.0, 1.0, 0.0), column=(0.0, 0.0, -1.0)), "sheared": replace(EVEN, shear=0.25),
    "two spacings": replace(EVEN, along=(0.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0)),
    "mr": replace(EVEN, modality="MR"), "pet": replace(EVEN, modality="PT"),
}  # fmt: skip


def interior(volume):
    """Voxels and their positions, but for those that sheared slices do not reach."""
    index = np.moveaxis(np.indices(volume.geometry.shape), 0, -1).reshape(-1, 3)
    return volume.data.reshape(-1), volume.geometry.points(index.astype(float))


@pytest.mark.parametrize("name", CASES)
def test_values_stand_where_the_slices_say(tmp_path, name):
    made = write_series(tmp_path / "ct", CASES[name], bare=name in {"uneven", "prone", "mr"})
    series = read_series(tmp_path / "ct")
    values, points = interior(series.image)
    expected = function_of(points)
    known = values != -1000.0 if name == "sheared" else np.ones(len(values), dtype=bool)
    if name == "sheared":  # a border of one pixel mixes with the air beside it
        known &= np.abs(values - expected) < 50.0
        assert known.mean() > 0.7
    # a trilinear image of a linear function is that function; the pixels hold halves
    np.testing.assert_allclose(values[known], expected[known], atol=0.6 if name != "sheared" else 3.0)
    assert [one.along_mm for one in series.slices] == pytest.approx(
        sorted(float(made.position(k) @ made.normal) for k in range(len(made.along))), abs=1e-4
    )
    assert series.exact == (name in {"even", "tilted", "prone", "feet first", "sagittal", "mr", "pet"})
    assert series.image.modality == (name if name in {"mr", "pet"} else "ct")


def test_slices_carry_their_own_identifiers(tmp_path):
    made = write_series(tmp_path, replace(EVEN, along=(0.0, 3.0, 4.0, 9.0)))
    series = read_series(tmp_path)
    assert [one.instance_uid for one in series.slices] == [uid(2, 1, k + 1) for k in range(4)]
    np.testing.assert_allclose(series.slices[2].position_mm, made.position(2))
    assert series.frame_uid == uid(4, 1)
    np.testing.assert_array_equal(read_series(sorted(tmp_path.iterdir())).image.data, series.image.data)


def test_a_series_is_chosen_by_its_hash_and_printing_shows_nobody(tmp_path):
    write_series(tmp_path)
    write_series(tmp_path, replace(EVEN, series="2", along=EVEN.along[:5]))
    save(tmp_path / "scout.dcm", image(replace(EVEN, elements={"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}), 0))
    found = list_series(tmp_path)
    assert [one.number for one in found] == [12, 5]
    assert found[0].spacing_mm == pytest.approx((1.0, 1.25, 2.0))
    assert len(read_series(tmp_path, found[1].hash[:6]).slices) == 5
    with pytest.raises(RegweaveError, match="E161") as caught:
        read_series(tmp_path)
    shown = f"{caught.value}{found}{read_series(tmp_path, found[1].hash)!r}"
    assert found[0].hash in shown
    assert not [word for word in (NAME, "SECRET", ID, uid(3, 1), uid(3, 2)) if word in shown]


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize(
    ("along", "thickness", "apart", "scans"),
    [
        (1.0, "2.0", {"AcquisitionNumber": 2}, 2), (0.7, "2.0", {"AcquisitionNumber": 2}, 2), (1.0, "2.0", {}, 2),
        (1.0, "", {}, 2), (1.0, "1.0", {"AcquisitionNumber": 2}, 1), (1.0, "1.0", {}, 1),
    ],
)  # fmt: skip
def test_two_scans_of_one_identifier_are_refused_and_passes_of_one_scan_are_not(
    tmp_path, along, thickness, apart, scans, numbered
):
    """Slices of 2 mm every 2 mm twice, against slices of 1 mm of which each pass takes every other one."""
    for k in range(8):
        for scan, (shift, more) in enumerate(((0.0, {"AcquisitionNumber": 1} if apart else {}), (along, apart))):
            number = k + 1 + 8 * scan if numbered else k + 1
            elements = {
                "SliceThickness": thickness, "SOPInstanceUID": uid(2, scan, k), "InstanceNumber": number, **more,
            }  # fmt: skip
            made = replace(EVEN, along=tuple(2.0 * n + shift for n in range(8)), elements=elements)
            save(tmp_path / f"{scan}{k}.dcm", image(made, k))
    if scans == 1:
        assert len(read_series(tmp_path).slices) == 16
    else:
        with pytest.raises(RegweaveError, match=r"E113.*2 scans.*8 images every 2 mm and 8 images every 2 mm"):
            read_series(tmp_path)


def test_series_to_choose_from_are_described(tmp_path):
    for name, words in (("1", "native"), ("2", "arterial")):
        told = {"SeriesNumber": int(name), "SeriesDescription": words, "SeriesDate": "20200103", "SeriesTime": "0910"}
        write_series(tmp_path / f"{words} folder", replace(EVEN, series=name, elements=told))
    with pytest.raises(RegweaveError, match="E161") as caught:
        read_series(tmp_path)
    assert "series 2, 'arterial', 2020-01-03 09:10, in arterial folder" in str(caught.value)
    assert NAME not in str(caught.value)


def test_threads_leave_pydicom_and_warnings_as_they_were(tmp_path):
    write_series(tmp_path, replace(EVEN, along=EVEN.along[:4]))

    def state():
        return logging.getLogger("pydicom").disabled, config.settings.reading_validation_mode, list(warnings.filters)

    was, inside = state(), threading.Barrier(3)

    def read(_):
        with guarded("a file"):
            inside.wait()  # all are inside at once
            read_series(tmp_path)
        with guarded("a file"):
            pass

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(read, range(3)))
    assert state() == was


def test_a_missing_slice_is_named_unless_it_is_asked_to_go_on(tmp_path):
    write_series(tmp_path, replace(EVEN, along=(0.0, 2.0, 4.0, 6.0, 10.0, 12.0, 14.0)))
    with pytest.raises(RegweaveError, match=r"E113.*lacks 1 image:.*13\.00 and 17\.00"):
        read_series(tmp_path)
    (tmp_path / "empty.dcm").write_bytes(b"")
    with pytest.raises(RegweaveError, match=r"E113.*without a byte: empty\.dcm"):
        read_series(tmp_path)
    with pytest.warns(UserWarning, match="W223"):
        assert read_series(tmp_path, gaps="keep").image.geometry.shape[2] == 8


def test_tables_padding_and_spare_bits_are_applied(tmp_path):
    from pydicom.dataset import Dataset

    lut = Dataset()
    lut.LUTDescriptor, lut.ModalityLUTType = [4, 10, 16], "HU"
    lut["LUTDescriptor"].VR = "US"
    lut.add_new("LUTData", "US", [5, 7, 11, 13])
    for k in range(4):
        data = image(EVEN, k)
        data.ModalityLUTSequence = [lut]
        data.PixelData = (np.arange(64 * 56) % 20).astype("<u2").tobytes()
        save(tmp_path / f"{k}.dcm", data)
    row = read_series(tmp_path).image.data[:20, 0, 0]
    assert row.tolist() == [5] * 11 + [7, 11] + [13] * 7
    assert [entry.problem for entry in overview(tmp_path)] == [None]
    for path in tmp_path.iterdir():
        data = pydicom.dcmread(path)
        data.ModalityLUTSequence[0].LUTData = [5] * 4
        data.save_as(path)
    assert overview(tmp_path)[0].problem.code == "E105"
    for k in range(4):
        data = image(EVEN, k)
        stored = np.full((56, 64), 1024 - 2000, dtype="<i2")
        stored[:, 1:] = np.arange(63) + k
        stored[0, 1] = 0x7000 | 5  # an overlay in the bits that are not stored
        data.PixelRepresentation, data.BitsStored, data.HighBit = 1, 12, 11
        data.RescaleSlope, data.RescaleIntercept, data.PixelPaddingValue = 1, -1024, 1024 - 2000
        data.PixelData = stored.tobytes()
        save(tmp_path / f"{k}.dcm", data)
    values = read_series(tmp_path).image.data[:, :, 0]
    assert set(values[0]) == {-1000.0}
    assert values[1, 0] == 5 - 1024
    assert values[2, 5] == 1 - 1024


def test_register_and_check_take_a_folder(tmp_path):
    write_series(tmp_path / "ct")
    volume = read_image(tmp_path / "ct")
    assert volume.modality == "ct"
    assert volume.geometry.spacing_mm == pytest.approx([1.0, 1.25, 2.0])
    found = inspect_image(tmp_path / "ct")
    assert not found.problems
    assert found.facts["dicom"] == {"modality": "CT", "images": 12, "even": True}
    assert "SECRET" not in str(found)
