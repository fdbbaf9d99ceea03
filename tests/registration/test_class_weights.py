"""Columns of W in the refinement: of voxels, of structure maps, of the smoothness; and maps in the levels."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from regweave.config.settings import Level, Member, Refine, Settings
from regweave.registration.align import align, refine
from regweave.registration.cpu import CPU, SMALL_DIFFERENCE
from regweave.registration.scene import Scene
from regweave.types import Geometry, Image, ImagePair, LabelMap, StructureMaps, WeightTable

SHAPE = (24, 20, 18)
GRID = Geometry(SHAPE, np.diag([1.0, 1.0, 2.0, 1.0]))
CLASSES = (0, 3, 7)
BANK = (
    Member(name="plain", metric="sad"),
    Member(name="shapes", metric="sad", source="structures", weight=0),
    Member(name="outline", metric="ncc", source="labels", weight=0, support=3, options={"variance_floor": 0.01}),
)
SCHEDULE = Settings(
    name="test", modality="mr", smoothness=0.1, levels=(Level(spacing_mm=8.0, steps=4, support=5),), banks={"mr": BANK}
)


def balls(centres, radius: float = 4.0) -> np.ndarray:
    """Number 1, 2, … of the ball that each voxel lies in."""
    at = np.indices(SHAPE)
    out = np.zeros(SHAPE, dtype=np.int32)
    for number, centre in enumerate(centres, start=1):
        out[((at - np.array(centre)[:, None, None, None]) ** 2).sum(axis=0) <= radius**2] = number
    return out


def image_of(centres) -> Image:
    numbers = balls(centres)
    shares = np.stack([ndimage.gaussian_filter((numbers == k).astype(np.float32), 0.7) for k in (1, 2)])
    maps = StructureMaps(shares, GRID, CLASSES[1:])
    noise = np.random.default_rng(len(centres)).random(SHAPE).astype(np.float32)
    labels = LabelMap(np.array(CLASSES, dtype=np.int32)[numbers], GRID)
    return Image(noise, GRID, "mr", labels, maps=maps, label_maps=maps)


PAIR = ImagePair(image_of([(7, 8, 9), (17, 11, 9)]), image_of([(9, 8, 9), (17, 9, 9)]))
"""The first ball moves by two voxels along the first axis, the second by two along the second."""
STILL = np.zeros((3, *SHAPE), dtype=np.float32)


def table(**rows) -> WeightTable:
    matrix = np.array([rows.get(m.name, [0.0, 0.0, 0.0]) for m in BANK], dtype=float)
    return WeightTable(matrix, tuple(m.name for m in BANK), CLASSES, 0.05)


def scene_of(pair: ImagePair = PAIR) -> Scene:
    return Scene.whole(pair, SCHEDULE)


@pytest.mark.parametrize("member", ["shapes", "outline"])
def test_the_column_of_a_structure_is_the_weight_of_its_map(member):
    """Cost and force are linear in the weights of the maps, each compared everywhere."""
    settings = Refine(steps=1)
    members = [m for m in BANK if m.name == member]

    def found(row):
        rows = WeightTable(np.array([row]), (member,), CLASSES, 0.05)
        objective = CPU.data_terms(scene_of(), STILL, members, rows, settings)
        data, _, force = CPU.forces(scene_of(), objective, STILL, 0.0)
        return data, force

    (a, fa), (b, fb), (both, fboth) = (found(r) for r in ([0, 0.8, 0], [0, 0, 0.6], [0, 0.8, 0.6]))
    assert both == pytest.approx(a + b, rel=1e-5)
    np.testing.assert_allclose(fboth, fa + fb, atol=1e-5)
    assert np.abs(fa[:, :8]).max() > 0.1 > 1e-3 > np.abs(fa[:, 18:]).max()
    assert np.abs(fb[:, 18:]).max() > 0.1 > 1e-3 > np.abs(fb[:, :8]).max()


def test_one_weight_for_all_maps_is_their_mean_and_images_use_the_column_of_the_moved_label():
    objective = CPU.data_terms(scene_of(), STILL, BANK[1:2], table(shapes=[1.0, 1.0, 1.0]), Refine(steps=1))
    assert objective.terms[0].channels is None
    data, _, _ = CPU.forces(scene_of(), objective, STILL, 0.0)
    d = (PAIR.moving.maps.shares - PAIR.fixed.maps.shares).astype(float)
    mean = (np.sqrt(d**2 + SMALL_DIFFERENCE**2) - SMALL_DIFFERENCE).mean(axis=0)
    assert data == pytest.approx((objective.terms[0].weight * mean).sum(), rel=1e-5)
    nearly = table(shapes=[0.2, 1.0, 1.0 + 1e-6])
    objective = CPU.data_terms(scene_of(), STILL, BANK[1:2], nearly, Refine(steps=1))
    weighed, _, _ = CPU.forces(scene_of(), objective, STILL, 0.0)
    assert weighed == pytest.approx(data, rel=1e-4)
    row = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    bare, wide = (row[CPU.columns(scene_of(), STILL, CLASSES, reach)] for reach in (0.0, 2.0))
    number = balls([(9, 8, 9), (17, 9, 9)])
    np.testing.assert_allclose(bare, row[number])
    at = np.indices(SHAPE) * (GRID.spacing_mm / 2 ** (1 / 3))[:, None, None, None]
    for value, k in ((0.2, 1), (0.3, 2)):
        inside = at[:, number == k].T
        other = at[:, number == 3 - k].T
        for voxel in ((9, 8, 13), (9, 13, 9), (17, 9, 14), (13, 8, 9), (22, 9, 9), (2, 2, 2)):
            here = at[:, *voxel]
            near, far = (np.sqrt(((points - here) ** 2).sum(axis=1)).min() for points in (inside, other))
            if near <= 2.0 and near < far:
                assert wide[voxel] == np.float32(value)
            if min(near, far) > 2.0:
                assert wide[voxel] == np.float32(0.1)
    assert (wide != bare).any()
    for pair, expected in ((PAIR, bare), (PAIR.with_moving(labels=None), np.full(SHAPE, row[0]))):
        (term,) = CPU.data_terms(scene_of(pair), STILL, BANK[:1], table(plain=row), Refine(steps=1)).terms
        np.testing.assert_allclose(term.weight / term.weight[0, 0, 0], expected / expected[0, 0, 0], rtol=1e-5)


def test_a_stiff_class_bends_less():
    settings = Refine(steps=12, rate=0.3, spacing_voxels=1.0, smoothness=0.05)
    even = table(shapes=[1.0, 1.0, 1.0])
    stiff = replace(even, stiffness=np.array([1.0, 30.0, 1.0]))
    bent = []
    for weights in (even, stiff):
        u = refine(PAIR, STILL, weights, SCHEDULE, settings).displacement
        slope = sum((np.diff(u, axis=a + 1) ** 2).sum(axis=0)[:16, :16, :16] for a in range(3))
        number = balls([(9, 8, 9), (17, 9, 9)])[:16, :16, :16]
        bent.append([float(slope[number == k].mean()) for k in (1, 2)])
    assert bent[1][0] < 0.3 * bent[0][0]
    assert 0.5 * bent[0][1] < bent[1][1] < 2 * bent[0][1]
    even = table(shapes=[1.0, 1.0, 1.0])
    same = replace(even, stiffness=np.ones(3))
    assert same.stiffness is None
    settings = Refine(steps=3, rate=0.3)
    a, b = (refine(PAIR, STILL, w, SCHEDULE, settings).displacement for w in (even, same))
    np.testing.assert_array_equal(a, b)


def test_maps_in_the_levels_move_what_the_images_do_not_show_and_cost_nothing_unweighed():
    for member in ["shapes", "outline"]:
        weights = table(plain=[1e-6] * 3, **{member: [1.0] * 3})
        u = align(PAIR, replace(weights, pairwise=0.01), SCHEDULE).displacement
        number = balls([(7, 8, 9), (17, 11, 9)])
        first, second = (u[:, number == k].mean(axis=1) for k in (1, 2))
        assert first[0] > 1.0 > abs(first[1])
        assert second[1] < -1.0
    bare = ImagePair(*(replace(i, maps=None, label_maps=None) for i in (PAIR.fixed, PAIR.moving)))
    seen: list[int] = []
    align(bare, table(plain=[1.0] * 3), SCHEDULE, on_step=lambda s: seen.append(len(s.terms.costs)))
    assert set(seen) == {1}
    with pytest.raises(ValueError, match="'structures' compare structure maps, and the pair has none"):
        align(bare, table(plain=[1.0] * 3, shapes=[0.0, 0.1, 0.0]), SCHEDULE)
