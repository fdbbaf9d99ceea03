"""Channels that structures share: nothing changes but the number of warps."""

from itertools import product

import numpy as np
import pytest
from scipy import ndimage

from regweave.config.settings import Level, Member, Refine, Settings
from regweave.registration import scene as structure_channels
from regweave.registration.cpu import CPU
from regweave.registration.scene import Scene
from regweave.types import Geometry, Image, ImagePair, StructureMaps, WeightTable

SHAPE = (36, 36, 30)
GRID = Geometry(SHAPE, np.eye(4))
CENTRES = tuple(product((6, 18, 30), (6, 18, 30), (8, 22)))
CLASSES = tuple(range(1, len(CENTRES) + 1))
BANK = (
    Member(name="plain", metric="sad"),
    Member(name="shapes", metric="sad", source="structures", weight=0),
    Member(name="anatomy", metric="ncc", source="structures", support=3, weight=0, options={"variance_floor": 0.01}),
)
SCHEDULE = Settings(name="test", modality="mr", smoothness=0.1, levels=(Level(spacing_mm=8.0),), banks={"mr": BANK})


def image_of(shift) -> Image:
    at = np.indices(SHAPE)
    shares = []
    for centre in CENTRES:
        ball = ((at - (np.array(centre) + shift)[:, None, None, None]) ** 2).sum(axis=0) <= 9
        shares.append(ndimage.gaussian_filter(ball.astype(np.float32), 0.5, truncate=2.0))
    maps = StructureMaps(np.stack(shares), GRID, CLASSES)
    return Image(np.random.default_rng(1).random(SHAPE).astype(np.float32), GRID, "mr", maps=maps)


PAIR = ImagePair(image_of((0, 0, 0)), image_of((1, 0.5, -1)))
ROWS = {"even": np.ones(len(CLASSES) + 1), "uneven": np.r_[0.0, np.random.default_rng(3).random(len(CLASSES)).round(1)]}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("member", BANK[1:], ids=lambda m: m.name)
def test_shared_channels_cost_and_pull_as_single_ones(member, rows, monkeypatch):
    u = np.random.default_rng(2).normal(size=(3, *SHAPE)).astype(np.float32)
    u = ndimage.gaussian_filter(u, (0, 2, 2, 2)) * 3
    weights = WeightTable(ROWS[rows][None], (member.name,), (0, *CLASSES), 0.05)
    found = []
    for few in (structure_channels.FEW, len(CLASSES)):
        monkeypatch.setattr(structure_channels, "FEW", few)
        scene = Scene.whole(PAIR, SCHEDULE)
        objective = CPU.data_terms(scene, u, [member], weights, Refine(steps=1))
        found.append((CPU.forces(scene, objective, u, 0.0), len(scene.maps("structures", u).fixed)))
    (shared, channels), (single, structures) = found
    assert channels < structures / 2
    assert structures == len(CLASSES)
    assert shared[0] == pytest.approx(single[0], rel=2e-3)
    scale = np.abs(single[2]).max()
    assert np.abs(shared[2] - single[2]).max() < 2e-3 * scale
