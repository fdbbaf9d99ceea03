"""What of a fitted start is kept: all of it, its part in the slices, or nothing."""

import numpy as np
import pytest

from regweave.clinic import scans
from regweave.clinic.scans import Scan, alike, correlation
from regweave.errors import RegweaveWarning
from regweave.types import Field, Geometry, Transform, Volume

SHAPE, SPACING = (40, 36, 16), np.array([2.0, 2.0, 3.0])
SHIFT = np.array([4.0, -6.0, 6.0])


def scan(moved_mm, *, alike_slices, air=0):
    """A block with waves, moved; the waves may be the same in every slice, and slices at the end may be air."""
    affine = np.diag([*SPACING, 1.0])
    x, y, z = (a * s for a, s in zip(np.meshgrid(*(np.arange(n) for n in SHAPE), indexing="ij"), SPACING, strict=True))
    x, y, z = (a + m for a, m in zip((x, y, z), moved_mm, strict=True))
    body = (np.abs(x - 40) < 26) & (np.abs(y - 36) < 22)
    waves = np.sin(x / 5) + np.cos(y / 6) + (0.0 if alike_slices else 1.5 * np.sin(z / 5))
    body[..., SHAPE[2] - air :] = False
    data = np.where(body, 40 + 60 * waves, -1000).astype(np.float32)
    return Scan(None, Volume(data, Geometry(SHAPE, affine), "ct"), body=body)


def kept(monkeypatch, today, fit_mm, *, alike_slices):
    fit = np.eye(4)
    fit[:3, 3] = fit_mm
    monkeypatch.setattr(scans, "initial_affine", lambda *_: fit)
    plan = scan((0, 0, 0), alike_slices=alike_slices)
    return scans.find_start("rigid", today, plan)


def test_a_shift_is_kept_where_the_slices_show_it(monkeypatch):
    today = scan(SHIFT, alike_slices=True, air=2)
    with pytest.warns(RegweaveWarning, match=r"W229.*in the slices only"):
        found = kept(monkeypatch, today, SHIFT + np.array([0, 0, 9]), alike_slices=True)
    assert found.method == "rigid in the slices"
    np.testing.assert_allclose(found.transform.affine[:3, 3], [4, -6, 0], atol=1e-9)
    found = kept(monkeypatch, scan(SHIFT, alike_slices=False), SHIFT, alike_slices=False)
    assert found.method == "rigid"
    np.testing.assert_allclose(found.transform.affine[:3, 3], SHIFT)
    assert found.chosen > found.headers
    with pytest.warns(RegweaveWarning, match=r"W229.*no better than the headers.*the headers are used"):
        found = kept(monkeypatch, scan((0, 0, 0), alike_slices=False), SHIFT, alike_slices=False)
    assert found.method == "none"
    other = scan((0, 0, 0), alike_slices=False)
    other.image.data[other.body] = np.random.default_rng(0).uniform(-1800, 200, int(other.body.sum()))
    with pytest.warns(RegweaveWarning, match=r"W229.*could not be aligned.*Check that this is the same patient"):
        assert kept(monkeypatch, other, SHIFT, alike_slices=False).method == "none"
    assert found.transform.affine is None or np.allclose(found.transform.affine, np.eye(4))


def test_the_same_voxels_are_compared_for_every_transform():
    today, plan = scan((0, 0, 0), alike_slices=False), scan((0, 0, 0), alike_slices=False)
    still = Transform(Field.zero(today.image.geometry))
    out = np.eye(4)
    out[2, 3] = 24.0
    away = Transform(Field.zero(today.image.geometry), out)
    alone, beside = alike(today, plan, (still,)), alike(today, plan, (still, away))
    assert alone[0] == pytest.approx(1.0)
    assert beside[0] == pytest.approx(1.0)
    half = scan((0, 0, 0), alike_slices=False)
    half.image.data[..., 10:] = -1000
    # Only what the far transform still finds in the plan counts: today's first slices, which are untouched.
    assert alike(half, plan, (still, away))[0] == pytest.approx(1.0)
    assert correlation(half, plan, still) < 0.9
    out[2, 3] = 500.0
    assert all(np.isnan(alike(today, plan, (still, Transform(still.field, out)))))


def test_the_part_in_the_slices_turns_about_the_patient():
    today = scan((0, 0, 0), alike_slices=False)
    a, b = np.radians([5.0, 3.0])
    about = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    across = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    whole = np.eye(4)
    whole[:3, :3], whole[:3, 3] = about @ across, (1.0, 2.0, 3.0)
    flat = scans.in_slices(whole, today)
    np.testing.assert_allclose(flat[2], [0, 0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(flat[:3, :3] @ flat[:3, :3].T, np.eye(3), atol=1e-12)
    middle = today.image.geometry.points(np.argwhere(today.body).astype(float)).mean(axis=0)
    np.testing.assert_allclose((flat[:3, :3] @ middle + flat[:3, 3])[:2], (whole[:3, :3] @ middle + whole[:3, 3])[:2])
