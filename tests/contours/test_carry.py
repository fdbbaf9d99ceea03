"""Structures as shapes: what is drawn comes back, through the identity and through a known map."""

from dataclasses import replace

import numpy as np
import pytest
from made_dicom import Made, Roi, circle, keyhole, write_rtstruct, write_series

from regweave.contours import carry, dice_of_areas, preimages, region_of, rings_of, shape_of, volume_ml
from regweave.io.dicom.rtstruct import read_rtstruct
from regweave.io.dicom.series import read_series
from regweave.types import Field, Transform

TILT = np.radians(14.0)
PLACES = {
    "even": Made(),
    "tilted": replace(Made(), column=(0.0, np.cos(TILT), np.sin(TILT))),
    "uneven": replace(Made(), along=(0.0, 0.2, 1.1, 4.0, 6.9, 8.0, 9.5, 12.5, 13.0, 16.0)),
    "prone": replace(Made(), row=(-1.0, 0.0, 0.0), column=(0.0, -1.0, 0.0), origin=(31.0, 40.0, 7.0)),
    "feet first": replace(Made(), row=(-1.0, 0.0, 0.0), origin=(31.0, -40.0, 30.0)),
    "sheared": replace(Made(), shear=0.25),
}
OUT, IN = circle((30.0, 32.0), 20.0), circle((32.0, 30.0), 9.0)
ROIS = [
    Roi("solid", tuple((k, circle((30.0, 32.0), 14.0 + k)) for k in range(2, 8))),
    Roi("nested hole", tuple((k, ring) for k in range(2, 8) for ring in (OUT, IN))),
    Roi("keyhole", tuple((k, keyhole(OUT, IN)) for k in range(2, 8))),
    Roi("islands", tuple((k, circle((x, 30.0), 4.0)) for k in range(1, 9) for x in (12.0, 30.0, 48.0))),
    Roi("interrupted", tuple((k, circle((30.0, 32.0), 12.0)) for k in (2, 3, 5, 6))),
    Roi("tiny", tuple((k, circle((20.3, 41.7), 1.5, 12)) for k in (3, 4))),
    Roi("square", tuple((k, np.array([[9.0, 9.0], [40.0, 9.0], [40.0, 44.0], [9.0, 44.0]])) for k in range(3, 6))),
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Series and structures of each place."""
    folder, found = tmp_path_factory.mktemp("drawn"), {}
    for name, made in PLACES.items():
        write_series(folder / name / "ct", made)
        write_rtstruct(folder / name / "rtstruct.dcm", made, ROIS)
        series = read_series(folder / name / "ct")
        found[name] = series, read_rtstruct(folder / name / "rtstruct.dcm", series)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_the_identity_brings_back_what_was_drawn(drawn, place):
    series, found = drawn[place]
    still = Transform(Field.zero(series.image.geometry))
    for structure in found.structures:
        again = carry(shape_of(structure, series), still, series)
        assert dice_of_areas(structure, again, series) >= 0.995, structure.name
        assert volume_ml(again, series) == pytest.approx(volume_ml(structure, series), rel=0.01)
        assert {c.image for c in again.contours} == {c.image for c in structure.contours}
        for contour in again.contours:
            away = contour.points_mm @ series.grid.normal - series.slices[contour.image].along_mm
            assert np.abs(away).max() < 1e-6


def test_holes_come_back_as_keyholes(drawn):
    series, found = drawn["even"]
    still = Transform(Field.zero(series.image.geometry))
    exact = np.pi * (20.0**2 - 9.0**2)
    for name in ("nested hole", "keyhole"):
        again = carry(shape_of(found.named(name), series), still, series)
        assert [c.image for c in again.contours] == list(range(2, 8))  # one ring a slice
        flat = again.contours[0].points_mm[:, :2]
        region = region_of([flat])
        assert len(rings_of(region)) == 2
        assert region.area == pytest.approx(exact, rel=0.01)


def test_a_known_map_carries_shapes_and_points(drawn):
    """Today is the plan moved by (3, −2, 2) mm and stretched by a tenth along x."""
    series, found = drawn["even"]
    matrix = np.diag([1.1, 1.0, 1.0, 1.0])
    matrix[:3, 3] = -3.0, 2.0, -2.0
    transform = Transform(Field.zero(series.image.geometry), matrix)
    structure = replace(found.named("solid"), points=np.array([[1.0, 2.0, 15.0]]))
    moved = carry(shape_of(structure, series), transform, series)
    by_slice = {c.image: c for c in moved.contours}
    assert sorted(by_slice) == list(range(3, 9))
    ring = by_slice[5].points_mm @ matrix[:3, :3].T + matrix[:3, 3]
    centre = np.array([-31.0 + 30.0, -40.0 + 32.0])
    np.testing.assert_allclose(np.linalg.norm(ring[:, :2] - centre, axis=1), 18.0, atol=0.05)
    np.testing.assert_allclose(moved.points @ matrix[:3, :3].T + matrix[:3, 3], structure.points, atol=1e-6)


def test_shapes_end_half_way_to_empty_slices_and_without_area_are_outside(drawn):
    series, found = drawn["even"]
    shape = shape_of(found.named("solid"), series)
    middle = series.slices[7].position_mm + np.array([30.0, 32.0, 0.0])
    for up, inside in ((0.9, True), (1.1, False)):
        assert (shape.at((middle + np.array([0.0, 0.0, up]))[None])[0] < 0) == inside
    series, found = drawn["even"]
    matrix = np.eye(4)
    matrix[2, 3] = 500.0
    moved = carry(shape_of(found.named("solid"), series), Transform(Field.zero(series.image.geometry), matrix), series)
    assert moved.contours == ()
    series, found = drawn["even"]
    solid = found.named("solid")
    line = replace(solid, contours=(replace(solid.contours[0], points_mm=solid.contours[0].points_mm[[0, 5, 9, 5]]),))
    assert (shape_of(line, series).at(solid.contours[0].points_mm) > 0).all()
    assert not carry(shape_of(line, series), Transform(Field.zero(series.image.geometry)), series).contours


def test_preimages_undo_a_curved_field(drawn):
    geometry = drawn["even"][0].image.geometry
    grid = geometry.points(np.moveaxis(np.indices(geometry.shape, dtype=float), 0, -1))
    data = np.stack([4 * np.sin(grid[..., 1] / 12), 3 * np.cos(grid[..., 0] / 9), 0.1 * grid[..., 0]])
    transform = Transform(Field(data.astype(np.float32), geometry))
    start = np.random.default_rng(0).uniform([-20, -20, 12], [20, 10, 25], (40, 3))
    np.testing.assert_allclose(preimages(transform, transform(start)), start, atol=0.01)
    from regweave.contours import _window

    assert _window(-np.inf, np.inf, 2.0, 4).tolist() == [-1.0, 0.0, 2.0, 4.0, 6.0, 7.0]
    assert len(_window(9.0, 12.0, 2.0, 4)) == 0
