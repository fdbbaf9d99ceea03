"""Labels of drawn structures on the grid of their series, against asking each voxel."""

from dataclasses import replace

import numpy as np
import shapely

from regweave.clinic.commission import make_scan
from regweave.contours import contour_labels, draw_labels, label_values
from regweave.types import Structure

UNEVEN = np.array([-30.0, -27.0, -26.0, -22.0, -19.0, -16.0, -13.0, -10.0, -7.0, -4.0])


def asked(structure, series):
    """Voxels whose centre lies inside an odd number of the contours of the nearest slice, one polygon at a time."""
    grid = series.image.geometry
    index = np.stack(np.meshgrid(*(np.arange(float(n)) for n in grid.shape), indexing="ij"), axis=-1)
    points = grid.points(index.reshape(-1, 3))
    true = np.array([one.along_mm for one in series.slices])
    nearest = np.abs((points @ series.grid.normal)[:, None] - true).argmin(axis=1)
    odd = np.zeros(len(points), dtype=bool)
    for contour in structure.contours:
        flat = shapely.Polygon(np.stack([contour.points_mm @ a for a in (series.grid.row, series.grid.column)], axis=1))
        here = nearest == contour.image
        at = points[here]
        odd[here] ^= shapely.contains_xy(flat, at @ series.grid.row, at @ series.grid.column)
    return odd.reshape(grid.shape)


def test_voxels_are_those_inside_an_odd_number_of_contours_and_the_smaller_is_seen():
    scan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=UNEVEN, name="PLAN", seed=0)
    assert not scan.series.exact
    drawn = [one for one in scan.structures.structures if one.contours]
    values = label_values(drawn)
    for one in drawn:
        labels = draw_labels([one], scan.series, values, {one.name: "other"})
        expected = asked(one, scan.series)
        assert expected.any()
        np.testing.assert_array_equal(labels.data == values[one.number], expected)
        assert labels.names == {values[one.number]: "other"}
        assert labels.geometry is scan.series.image.geometry
    scan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=UNEVEN, name="PLAN", seed=0)
    large = max(scan.structures.structures, key=lambda s: sum(len(c.points_mm) for c in s.contours))
    contours = tuple(
        replace(c, points_mm=c.points_mm.mean(axis=0) + 0.5 * (c.points_mm - c.points_mm.mean(axis=0)))
        for c in large.contours
    )
    small = Structure(77, "inner", contours=contours)
    values = label_values([large, small])
    one, other = (draw_labels(both, scan.series, values).data for both in ([large, small], [small, large]))
    np.testing.assert_array_equal(one, other)
    assert (one == 77).sum() > 0
    assert (one == large.number).sum() > (one == 77).sum()


def test_outlines_of_labels_draw_the_same_labels():
    scan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=np.arange(-30.0, 0.0, 3.0), name="PLAN", seed=0)
    drawn = [one for one in scan.structures.structures if one.contours]
    labels = draw_labels(drawn, scan.series, label_values(drawn))
    again = contour_labels(labels, scan.series)
    assert [one.name for one in again] == [labels.name(v) for v in labels.values()]
    for one, value in zip(again, labels.values(), strict=True):
        found = draw_labels([one], scan.series, {one.number: 1}).data > 0
        np.testing.assert_array_equal(found, labels.data == value)
