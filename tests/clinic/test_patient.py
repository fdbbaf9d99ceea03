"""Patient outline, plausible values and working copies of a CT."""

from types import SimpleNamespace

import numpy as np
import pytest

from regweave.clinic.scans import (
    MOST_VOXELS,
    affordable_factors,
    cropped,
    patient_mask,
    tissue_values,
    trusted_region,
    without_couch,
    working_scan,
)
from regweave.errors import RegweaveWarning
from regweave.types import Geometry, Volume

GRID = Geometry((80, 72, 12), np.array([[2.0, 0, 0, -80], [0, 2.0, 0, -70], [0, 0, 3.0, 5], [0, 0, 0, 1]]))


def ellipse(centre, radii, shape=GRID.shape[:2]):
    x, y = np.meshgrid(*(np.arange(n, dtype=float) for n in shape), indexing="ij")
    return ((x - centre[0]) / radii[0]) ** 2 + ((y - centre[1]) / radii[1]) ** 2 <= 1


def scan():
    """A body with lungs on a couch of two thin shells that it touches, a mask of 2 mm round it, and a rail."""
    data = np.full(GRID.shape, -1000.0, dtype=np.float32)
    body = ellipse((40, 30), (28, 20))
    data[body] = 30.0
    data[ellipse((30, 30), (8, 9)) | ellipse((50, 30), (8, 9))] = -800.0
    data[:, 50:51] = 150.0
    data[:, 60:61] = 150.0
    data[38:42, 51:53] = 100.0
    data[4:7, 66:69] = 400.0
    return Volume(data, GRID, "ct"), np.repeat(body[..., None], GRID.shape[2], axis=2)


def test_couch_mask_and_rail_are_no_patient_and_lungs_are():
    image, body = scan()
    found = patient_mask(image)
    assert not found[:, 56:].any()
    assert 2 * (found & body).sum() / (found.sum() + body.sum()) > 0.985
    assert found[30, 30].all()
    image, body = scan()
    clean = without_couch(image, body)
    assert (clean.data[:, 56:] == -1000.0).all()
    np.testing.assert_array_equal(clean.data[body], image.data[body])
    assert patient_mask(Volume(np.full(GRID.shape, -1000.0, np.float32), GRID, "ct")) is None
    image, body = scan()
    assert trusted_region(image, body) is None


def test_air_that_a_cut_leaves_at_the_end_of_a_scan_does_not_count():
    image, body = scan()
    cut = body.copy()
    cut[:40, :, -3:] = False
    region = trusted_region(image, cut)
    gap = region.data == 0
    assert gap[20, 30, -3:].all()
    assert not gap[..., :-5].any()
    assert not gap[~body].any(), "columns without body keep their air: it is the patient's outline"


def test_padding_is_air_overflown_numbers_are_named_and_metal_stays():
    image, _ = scan()
    padded = image.data.copy()
    padded[:3] = -3024.0
    assert tissue_values(Volume(padded, GRID, "ct")).data.min() == -1000.0
    overflown = np.where(image.data < 0, 31767.0, image.data).astype(np.float32)
    with pytest.warns(RegweaveWarning, match="W217"):
        assert tissue_values(Volume(overflown, GRID, "ct")).data.max() <= 400.0
    image, _ = scan()
    image.data[40, 30, 5] = 12000.0
    assert tissue_values(image).data[40, 30, 5] == 12000.0


def test_a_working_copy_holds_the_patient_at_its_place_at_about_two_millimetres():
    image, body = scan()
    copy = cropped(image, body, GRID)
    index = np.array([40.0, 30.0, 4.0])
    there = np.linalg.solve(copy.geometry.affine, [*GRID.points(index), 1.0])[:3]
    assert copy.data[tuple(np.rint(there).astype(int))] == image.data[40, 30, 4]
    assert copy.data.size < image.data.size
    assert copy.geometry.shape[2] == GRID.shape[2]
    for shape, spacing in [((512, 512, 130), (1.0, 1.0, 3.0)), ((512, 512, 300), (0.7, 0.7, 1.0))]:
        factors = affordable_factors(np.array(shape), np.array(spacing))
        assert (np.array(factors) * spacing)[:2].max() <= 2.2
        small = np.array((200, 200, 20))
        assert affordable_factors(small, np.array((1.1, 1.1, 2.5))) == (1, 1, 1)
        assert np.prod(small) < MOST_VOXELS


def test_dark_ends_of_an_mr_do_not_count_even_where_tissue_encloses_them():
    data = np.random.default_rng(1).normal(0, 8, GRID.shape).astype(np.float32)
    data[ellipse((40, 30), (28, 20))] += 600.0
    data[ellipse((40, 30), (15, 10)), -2:] -= 600.0
    region = working_scan(SimpleNamespace(image=Volume(data, GRID, "mr"))).region.data
    assert not region[40, 30, -2:].any()
    assert region[40, 30, :-3].all()
    assert region[15, 30].all()
