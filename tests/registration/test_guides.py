"""Structures that may guide, against slow and obvious references."""

import numpy as np
import pytest

from regweave.registration import guides
from regweave.types import Geometry, Image, LabelMap

GRID = Geometry((30, 24, 20), np.diag([2.0, 2.0, 3.0, 1.0]))
CENTRES = {1: (20.0, 14, 20), 2: (40, 14, 30), 3: (24, 34, 30), 7: (40, 34, 44)}
RADII = {1: 9.0, 2: 5.0, 3: 7.0, 7: 6.0}


def balls(centres=CENTRES, radii=RADII, geometry=GRID) -> LabelMap:
    places = geometry.points(np.stack(np.meshgrid(*map(np.arange, geometry.shape), indexing="ij"), -1).astype(float))
    data = np.zeros(geometry.shape, dtype=np.uint8)
    for value, centre in centres.items():
        data[((places - np.array(centre)) ** 2).sum(axis=-1) < radii[value] ** 2] = value
    return LabelMap(data, geometry, {1: "liver", 2: "spleen", 3: "kidney", 7: "bladder"})


def image(labels: LabelMap, mask: LabelMap | None = None) -> Image:
    return Image(np.zeros(labels.geometry.shape, dtype=np.float32), labels.geometry, "mr", labels, mask)


def exchange(labels: LabelMap, a: int, b: int) -> LabelMap:
    data = labels.data.copy()
    data[labels.data == a], data[labels.data == b] = b, a
    return LabelMap(data, labels.geometry, labels.names)


def test_ramps_are_those_of_the_nearest_voxel_on_any_grid():
    labels = balls()
    maps = guides.ramps(labels, (2, 7), (1, 1, 1))
    voxel = GRID.spacing_mm / np.cbrt(GRID.spacing_mm.prod())
    for share, value in zip(maps.shares, (2, 7), strict=True):
        inside = labels.data == value
        places = np.argwhere(inside) * voxel, np.argwhere(~inside) * voxel
        for index in np.argwhere(share >= 0)[::97]:
            within = inside[tuple(index)]
            away = np.sqrt(((places[int(within)] - index * voxel) ** 2).sum(axis=1)).min() - 0.5
            wanted = np.clip(0.5 + (away if within else -away) / (2 * guides.RAMP_VOXELS), 0, 1)
            assert share[tuple(index)] == pytest.approx(wanted, abs=1e-5)
    maps = guides.ramps(balls(), (1, 2, 3, 7), (2, 2, 1))
    assert maps.shares.shape == (4, 15, 12, 20) == (4, *maps.geometry.shape)
    index = [np.average(np.indices(s.shape).reshape(3, -1), axis=1, weights=s.ravel()) for s in maps.shares]
    np.testing.assert_allclose(maps.geometry.points(np.array(index)), list(CENTRES.values()), atol=1.0)


def test_exchanged_names_are_found_where_structures_lie_apart():
    for two in [(1, 2), (1, 3), (2, 7), (3, 7)]:
        rng = np.random.default_rng(sum(two))
        other = {v: np.array(c) * 1.15 + rng.normal(0, 2, 3) - 3 for v, c in CENTRES.items()}
        moving = balls(other, {v: r * 1.1 for v, r in RADII.items()})
        assert guides.exchanged(balls(), moving, CENTRES) == []
        assert guides.exchanged(balls(), exchange(moving, *two), CENTRES) == [two]
        assert guides.exchanged(exchange(balls(), *two), moving, CENTRES) == [two]
    labels = balls({1: (30, 24, 30), 2: (31, 24, 30)}, {1: 14, 2: 6})
    assert guides.exchanged(labels, exchange(labels, 1, 2), (1, 2)) == []
    fixed = balls({1: (10, 24, 24), 2: (20, 24, 24), 3: (48, 24, 24)}, {1: 6, 2: 4, 3: 5})
    moving = balls({1: (8, 24, 24), 2: (24, 24, 24), 3: (50, 24, 24)}, {1: 12, 2: 4, 3: 5})  # one is larger here
    assert guides.exchanged(fixed, moving, (1, 2, 3)) == []
    assert guides.exchanged(fixed, exchange(moving, 1, 2), (1, 2, 3)) == [(1, 2)]
    assert guides.exchanged(balls(), balls(), ()) == guides.exchanged(balls(), balls(), (2,)) == []


def test_what_one_image_lacks_or_cuts_does_not_guide():
    fixed, moving = balls(), balls({**CENTRES, 7: (40, 34, 57)})
    fixed.data[fixed.data == 2] = 0
    found = guides.choose(image(fixed), image(moving), dict.fromkeys((1, 2, 3, 7), 1.0))
    assert found.weights == {1: 1.0, 3: 1.0}
    assert found.left_out == {
        "spleen": "the fixed labels do not show it",
        "bladder": "the moving image ends in it",
    }
    assert found.exchanged == ()
    mask = LabelMap(np.ones(GRID.shape, dtype=np.uint8), GRID)
    mask.data[:10] = 0  # a mask cuts too
    assert guides.choose(image(balls(), mask), image(balls()), {1: 1.0, 7: 2.0}).weights == {7: 2.0}
    low = balls({**CENTRES, 7: (40, 34, 57 - RADII[7] + 0.1)})  # one that grazes the end guides
    assert (low.data[:, :, -1] == 7).any()
    assert 7 in guides.choose(image(low), image(balls()), {1: 1.0, 7: 1.0}).weights


def test_exchanged_structures_guide_if_insisted_on():
    fixed, moving = image(balls()), image(exchange(balls(), 1, 7))
    asked = dict.fromkeys((1, 2, 3, 7), 1.0)
    refused, kept = (guides.choose(fixed, moving, asked, anyway=anyway) for anyway in (False, True))
    assert set(refused.weights) == {2, 3}
    assert refused.left_out["liver"] == "it seems to be exchanged with bladder"
    assert set(kept.weights) == {1, 2, 3, 7}
    assert kept.exchanged == refused.exchanged == ((1, 7),)
