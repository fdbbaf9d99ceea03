"""Contours of a structure set in voxels of the page: placed in millimetres, cut in three planes, overlaps kept."""

import numpy as np
import pytest

from regweave.errors import RegweaveError
from regweave.report.viewer import Display, placed
from regweave.types import Contour, Geometry, Structure

SHAPE, STEP = (20, 24, 9), np.array([2.0, 1.5, 4.0])
# Columns: direction of the grid's axes in the body. Axial; sagittal with both axes of the slice reversed; prone.
DIRECTIONS = {
    "axial": np.eye(3),
    "sagittal": np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]),
    "prone": np.diag([-1.0, -1, 1]),
}
SMALL, LARGE = ((6, 6), (12, 14), (3, 5)), ((4, 3), (15, 20), (1, 7))
"""Corners within a slice and slices, from and to, in voxels of the grid."""


def grid(name: str) -> Geometry:
    affine = np.eye(4)
    affine[:3, :3] = DIRECTIONS[name] * STEP
    affine[:3, 3] = (-31.0, 17.0, 203.0)
    return Geometry(SHAPE, affine)


def box(number, corners, geometry, colour=(255, 0, 0)):
    (x0, y0), (x1, y1), (first, last) = corners
    flat = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    rings = [geometry.points(np.array([(*p, k) for p in flat], dtype=float)) for k in range(first, last + 1)]
    return Structure(number, f"s{number}", "", colour, tuple(Contour(ring) for ring in rings))


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_structure_is_whole_in_every_plane_however_many_overlap(name):
    geometry = grid(name)
    display = Display.of(geometry, budget=1000)  # voxels of the page are merged; contours are not
    assert display.factors != (1, 1, 1)
    normal = np.cross(geometry.direction[:, 0], geometry.direction[:, 1])
    slices_mm = geometry.points(np.array([[0.0, 0, k] for k in range(SHAPE[2])])) @ normal
    both = (box(4, LARGE, geometry), box(7, SMALL, geometry))
    contours, rows = placed(both, {4: 4, 7: 70}, slices_mm, geometry, display.geometry, display.axes.index(2))
    assert [(row["label"], row["name"]) for row in rows] == [(4, "s4"), (70, "s7")]
    back = np.linalg.inv(geometry.affine)
    shape = np.array(display.geometry.shape)
    for code, corners in ((1, LARGE), (2, SMALL)):
        low, high = np.array([*corners[0], corners[2][0] - 0.5]), np.array([*corners[1], corners[2][1] + 0.5])
        inside = np.array(rows[code - 1]["centre"])
        for through in range(3):
            u, v = (np.linspace(-0.45, n - 0.55, 57) for n in np.delete(shape, through))
            mask = contours.mask(code, through, inside[through], u, v)
            places = np.empty((57, 57, 3))
            first, second = (a for a in range(3) if a != through)
            places[..., first], places[..., second], places[..., through] = u, v[:, None], inside[through]
            index = display.geometry.points(places.reshape(-1, 3)) @ back[:3, :3].T + back[:3, 3]
            wanted = ((index > low) & (index < high)).all(axis=1).reshape(57, 57)
            assert wanted.any()
            np.testing.assert_array_equal(mask, wanted)


def test_a_set_of_another_result_is_refused():
    for known, off_mm in [({5: 5}, 0.0), ({4: 4}, 1.0)]:
        geometry = grid("axial")
        with pytest.raises(RegweaveError, match="E148"):
            placed((box(4, LARGE, geometry),), known, 203.0 + off_mm + 4.0 * np.arange(9), geometry, geometry, 2)
