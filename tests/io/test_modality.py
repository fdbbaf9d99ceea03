import numpy as np
import pytest

from regweave import notices
from regweave.errors import UsageError
from regweave.io import fill_value, read_image
from regweave.io.dicom.series import read_series
from regweave.io.modality import bank_of, label_values, modality_of, stored_offset, with_modality
from regweave.run.read import Reading
from regweave.types import Geometry, Volume

SHAPE = (24, 24, 24)
RNG = np.random.default_rng(5)


def volume(data) -> Volume:
    array = np.asarray(data, dtype=np.float32)
    return Volume(array, Geometry(array.shape, np.eye(4)))


def thorax() -> np.ndarray:
    """Air round a body of fat and muscle with a little bone."""
    data = np.full(SHAPE, -1000.0)
    data[4:20, 4:20, 4:20] = RNG.normal(-100, 15, (16, 16, 16))
    data[6:18, 6:18, 6:18] = RNG.normal(50, 20, (12, 12, 12))
    data[11:13, 11:13, 6:18] = RNG.normal(500, 200, (2, 2, 12))
    return data


def head() -> np.ndarray:
    """A small body in the middle of a wide field of view, mostly tissue, with some fat and bone."""
    data = np.full((40, 40, 40), -1000.0)
    inside = RNG.normal(40, 15, (12, 12, 12))
    inside[:2] = RNG.normal(-100, 15, (2, 12, 12))
    inside[2:3] = RNG.normal(600, 200, (1, 12, 12))
    data[14:26, 14:26, 14:26] = inside
    return data


def metal(data: np.ndarray, share: float, value: float) -> np.ndarray:
    """Set a share of the voxels, evenly spread, to a value."""
    spoilt = data.copy()
    spoilt.ravel()[:: round(1 / share)] = value
    return spoilt


def brain() -> np.ndarray:
    data = np.zeros(SHAPE)
    data[4:20, 4:20, 4:20] = RNG.normal(600, 120, (16, 16, 16)).clip(0)
    return data


def test_ct_is_told_by_air_fat_and_tissue_and_everything_else_is_a_scale_of_its_own():
    for number, data in enumerate(
        (
            thorax(),
            np.where(thorax() < -900, -2048, thorax()),  # padding outside of the field of view
            thorax().clip(-125, 275),  # cut to a window, as public sets are
            thorax()[6:18, 6:18, 4:20],  # a crop without air
            metal(thorax(), 0.002, 19641.0),
            metal(thorax(), 0.01, 8000.0),
            metal(metal(thorax(), 0.01, 30000.0), 0.01, -2500.0),  # implants with streaks
            np.where(thorax() < -900, -3024, thorax()).clip(None, 3071),
            thorax().clip(-160, 240),
            head().clip(-160, 240),
        )
    ):
        assert modality_of(volume(data)) == "ct", number
    for number, data in enumerate(
        (
            brain(),
            brain() - 1,
            spoilt(),
            brain() * 1000 - 700,  # some voxels far below any threshold, none of them air
            (brain() - brain().mean()) / brain().std(),
            RNG.normal(0, 400, SHAPE),
            brain() - 100,  # centred: numbers as in a CT cut to a window
            brain() - brain().mean(),
            brain() * 0.4 - 125,
            brain() / brain().max() * 2000 - 1000,
            brain() / brain().max() * 1400 - 1000,
        )
    ):
        assert modality_of(volume(data)) == "mr", number


def spoilt() -> np.ndarray:
    data = brain()
    data[0, 0, 0] = -32768
    return data


def test_what_is_stated_or_decided_holds():
    ct = volume(thorax())
    assert with_modality(ct).modality == "ct"
    assert with_modality(ct, "t1").modality == "t1"
    assert with_modality(with_modality(ct, "t1")).modality == "t1"
    with pytest.raises(UsageError) as caught:
        with_modality(ct, "xray")
    assert caught.value.code == "E175"
    assert bank_of("ct", "ct") == "ct"
    assert bank_of("mr", "mr") == bank_of("t1", "t1") == bank_of("mr", "t2") == "mr"
    assert bank_of("ct", "mr") == bank_of("mr", "ct") == bank_of("t1", "t2") == bank_of("pet", "ct") == "multi"
    stored = volume(thorax() + 1024)
    assert Reading().image(stored, "mr").data is stored.data


@pytest.mark.parametrize("stated", ["auto", "ct"])
def test_a_stored_offset_is_subtracted_and_warned_of(stated):
    offset = 1024.0
    stored = volume(thorax() + offset)
    assert (modality_of(stored), stored_offset(stored)) == ("mr", offset)
    assert fill_value(stored) == offset - 1000  # an image is warped in its stored values
    with notices.collected() as warned, notices.muted():
        read = Reading().image(stored, stated)
        again = Reading().image(read)
    assert read.modality == "ct"
    np.testing.assert_array_equal(read.data, stored.data - np.float32(offset))
    assert again is read
    assert [text[:5] for text in warned] == ["W250:"]


CT = ("openkbp_head_neck", "btcv_abdomen", "totalseg_abdomen", "popi_lung")
MR = ("acdc_mm", "chaos_mr_abdomen", "fvb_mouse_brain", "ibsr18_64", "lpba40_80", "mscmr_cardiac", "msd_hippocampus")


@pytest.mark.data
@pytest.mark.parametrize("name", CT)
def test_real_ct_is_ct(name, data_root):
    for path in sorted((data_root / name).glob("*/image.nii.gz"))[:12]:
        data = read_image(path).data
        whole = data.min() < -500
        changed = {"as it is": data, "implants": metal(data, 0.01, 8000.0)}
        if whole:
            windows = {"window": (-125, 275), "soft window": (-160, 240), "wide": (-1000, 1000)}
            changed |= {what: data.clip(*window) for what, window in windows.items()}
        for what, values in changed.items():
            assert modality_of(volume(values)) == "ct", f"{path.parent.name}: {what}"
        assert not whole or stored_offset(volume((data + 1024).clip(0))) > 0, path.parent.name


@pytest.mark.data
@pytest.mark.parametrize("name", ["eclipse_ent", "aw_prone_ffp"])
def test_a_small_patient_in_a_wide_field_of_view_is_ct_when_cut_to_a_window(name, data_root):
    data = read_series(data_root / "dicom" / name / "ct").image.data
    for low, high in ((-125, 275), (-160, 240), (-200, 300), (-1000, 1000)):
        assert modality_of(volume(data.clip(low, high))) == "ct", (low, high)


@pytest.mark.data
@pytest.mark.parametrize("name", MR)
def test_real_mr_is_not_ct(name, data_root):
    for path in sorted((data_root / name).glob("*/image.nii.gz"))[:12]:
        data = read_image(path).data
        high = float(np.percentile(data, 99))
        for what, values in {
            "as it is": data, "minus 100": data - 100, "centred": data - data.mean(), "minus 1000": data - 1000,
            "standardised": 100 * (data - data.mean()) / data.std(), "as air and bone": data / high * 2000 - 1000,
        }.items():  # fmt: skip
            assert stored_offset(volume(values)) == 0, f"{path.parent.name}: {what}"
            assert modality_of(volume(values)) == "mr", f"{path.parent.name}: {what}"


def regions(*values: float) -> np.ndarray:
    """Draw blocks of some values next to each other, background around."""
    data = np.zeros(SHAPE)
    for n, value in enumerate(values):
        data[4 + 4 * n : 8 + 4 * n, 4:20, 4:20] = value
    return data


def test_a_label_map_is_not_taken_for_an_image():
    assert label_values(volume(regions(1, 2))) == 3
    assert label_values(volume(regions(2, 14175, 3, 41))) == 5
    for image in (
        thorax(), head(), brain(), np.rint(brain()), np.rint(brain() / 100), regions(1), regions(0.5, 1, 2),
        regions(-1000, 40, 300), brain() > 600, np.arange(24**3).reshape(SHAPE) // 24, RNG.integers(0, 4, SHAPE),
    ):  # fmt: skip
        assert label_values(volume(image)) == 0


@pytest.mark.data
def test_label_maps_of_real_sets_are_known_from_their_images(data_root):
    for kind in ("image", "labels"):
        for case in sorted(data_root.glob(f"*/*/{kind}.nii.gz")):
            if int(sum(case.parent.name.encode())) % 5 == 0 or case.parent.name.endswith("01"):
                found = label_values(read_image(case))
                assert (found > 0) == (kind == "labels"), case
