"""The refinement on the twin of the GPU against the host, from the same start."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import ndimage

from regweave.config.settings import Level, Member, Refine, Settings
from regweave.energy import Comparison
from regweave.registration.align import refine
from regweave.registration.cpu import CPU
from regweave.registration.cuda import CudaDevice
from regweave.registration.scene import Scene
from regweave.types import Geometry, Image, ImagePair, LabelMap, StructureMaps, WeightTable


@dataclass(frozen=True)
class UploadedScene:
    """A scene whose features the host computes and uploads: the refinement's own kernels are tested by themselves."""

    device: CudaDevice
    host: Scene
    without_kernel: frozenset[str]
    factors = property(lambda self: self.host.factors)
    geometry = property(lambda self: self.host.geometry)

    def at(self, resolution):
        return replace(self, host=self.host.at(resolution))

    def compare(self, members, u):
        upload = self.device.upload
        return [
            None if c.member.name in self.without_kernel else Comparison(c.member, upload(c.fixed), upload(c.moved))
            for c in self.host.compare(members, u.numpy())
        ]

    def valid(self, u):
        return self.device.upload(self.host.valid(u.numpy()))

    def maps(self, source, u):
        return self.host.maps(source, u.numpy())


class UploadingDevice(CudaDevice):
    without_kernel: frozenset[str] = frozenset()

    def scene(self, pair, schedule):
        return UploadedScene(self, Scene.whole(pair, schedule), self.without_kernel)


SHAPE = (22, 18, 16)
GRID = Geometry(SHAPE, np.diag([1.0, 1.0, 1.7, 1.0]))
CLASSES = (0, 3, 7)
BANK = (
    Member(name="lncc3", metric="ncc", support=3, options={"squared": True}),
    Member(name="lncc7", metric="ncc", support=7), Member(name="edges", metric="ngf"),
    Member(name="tissue", metric="sad"), Member(name="self", metric="mind"),
    Member(name="shapes", metric="sad", source="structures", weight=0),
    Member(name="outline", metric="ncc", source="labels", weight=0, support=3, options={"variance_floor": 0.01}),
)  # fmt: skip
SCHEDULE = Settings(
    name="test", modality="mr", smoothness=0.1, levels=(Level(spacing_mm=8.0, steps=4, support=5),), banks={"mr": BANK}
)
SETTINGS = Refine(
    steps=5, rate=0.3, spacing_voxels=1.4, smoothness=0.05, class_reach_voxels=2.0, start_sigma=0.1, max_voxels=4000
)
EVEN, BY_CLASS = [1.0, 1.0, 1.0], [0.5, 1.0, 2.0]
ROWS = {
    "correlation": {"lncc3": EVEN, "lncc7": EVEN}, "classes": {"lncc3": BY_CLASS, "tissue": EVEN},
    "maps": {"lncc3": EVEN, "shapes": EVEN, "outline": EVEN},
    "maps by class": {"shapes": BY_CLASS, "outline": [0.3, 1.0, 0.0]}, "features": {"edges": EVEN, "self": EVEN},
}  # fmt: skip


def image_of(seed: int, shift: float) -> Image:
    rng = np.random.default_rng(3)
    at = np.indices(SHAPE).astype(float)
    numbers = np.zeros(SHAPE, dtype=np.int32)
    for number, centre in ((1, (7 + shift, 8, 8)), (2, (15, 10 - shift, 7))):
        numbers[((at - np.array(centre)[:, None, None, None]) ** 2).sum(axis=0) <= 16] = number
    texture = ndimage.gaussian_filter(rng.normal(size=SHAPE), 1.5)
    data = ndimage.shift(texture, shift / 2, order=1, mode="nearest") * 4 + numbers
    data = data + 0.05 * np.random.default_rng(seed).normal(size=SHAPE)
    shares = np.stack([ndimage.gaussian_filter((numbers == k).astype(np.float32), 0.7) for k in (1, 2)])
    maps, labels = StructureMaps(shares, GRID, CLASSES[1:]), LabelMap(np.array(CLASSES, dtype=np.int32)[numbers], GRID)
    return Image(data.astype(np.float32), GRID, "mr", labels, maps=maps, label_maps=maps)


PAIR = ImagePair(image_of(1, 0.0), image_of(2, 1.5))


def table(rows) -> WeightTable:
    matrix = np.array([rows.get(m.name, [0.0] * 3) for m in BANK], dtype=float)
    return WeightTable(matrix, tuple(m.name for m in BANK), CLASSES, 0.05)


def both(twin, pair, weights, settings=SETTINGS, without=()):
    device = UploadingDevice(twin)
    device.without_kernel = frozenset(without)
    start = np.zeros((3, *SHAPE), dtype=np.float32)
    start[0] = 0.3
    host, found = (refine(pair, start, weights, SCHEDULE, settings, **by) for by in ({}, {"device": device}))
    assert np.abs(host.displacement - start).max() > 0.2
    return host, found


def agree(host, found):
    away = np.linalg.norm(host.displacement - found.displacement, axis=0)
    assert np.quantile(away, 0.999) <= 1e-3
    for a, b in zip(host.steps, found.steps, strict=True):
        assert b.data == pytest.approx(a.data, rel=1e-4)
        assert b.smoothness == pytest.approx(a.smoothness, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("rows", sorted(ROWS))
def test_the_refinement_is_that_of_the_host(twin, rows):
    agree(*both(twin, PAIR, table(ROWS[rows])))


@pytest.mark.parametrize("rows", sorted(ROWS))
def test_the_refinement_with_features_of_the_gpu_is_that_of_the_host(twin, rows):
    start = np.full((3, *SHAPE), 0.3, dtype=np.float32)
    by = ({}, {"device": CudaDevice(twin)})
    agree(*(refine(PAIR, start, table(ROWS[rows]), SCHEDULE, SETTINGS, **device) for device in by))


def test_bending_is_added_by_the_host(twin):
    bent = SETTINGS.model_copy(update={"bending_mm": 6.0})
    host, found = both(twin, PAIR, table(ROWS["features"]), bent)
    agree(host, found)
    straight = both(twin, PAIR, table(ROWS["features"]))[0]
    assert host.steps[-1].smoothness > 0
    assert np.abs(np.diff(host.displacement, 2, axis=1)).sum() < np.abs(np.diff(straight.displacement, 2, axis=1)).sum()


def test_stiff_classes_and_masks_count_as_on_the_host(twin):
    inside = np.zeros(SHAPE, dtype=np.uint8)
    inside[3:-2, 2:, :-3] = 1
    mask = LabelMap(inside, GRID)
    stiff = replace(table(ROWS["classes"]), stiffness=np.array([1.0, 9.0, 0.5]))
    masked = PAIR.with_fixed(mask=mask).with_moving(mask=mask)
    host, found = both(twin, masked, stiff)
    agree(host, found)
    start = np.zeros((3, *SHAPE), dtype=np.float32)
    start[0] = 0.3
    agree(host, refine(masked, start, stiff, SCHEDULE, SETTINGS, device=CudaDevice(twin)))


def test_knots_and_members_without_a_kernel_come_from_the_host(twin):
    host, found = both(twin, PAIR, table(ROWS["correlation"]), SETTINGS.model_copy(update={"max_voxels": 1000}))
    agree(host, found)
    np.testing.assert_allclose(found.knots.data, host.knots.data, atol=2e-3)
    agree(*both(twin, PAIR, table(ROWS["features"]), without={"self"}))


def test_columns_are_laid_as_on_the_host_for_labels_beyond_32_bits_too(twin):
    device, row = UploadingDevice(twin), np.array([0.1, 0.2, 0.3], dtype=np.float32)
    scene = device.scene(PAIR, SCHEDULE)
    u = np.full((3, *SHAPE), 0.4, dtype=np.float32)
    valid = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    expected = CPU.columns(Scene.whole(PAIR, SCHEDULE), u, CLASSES, 2.0)
    columns = device.columns(scene, device.upload(u), CLASSES, 2.0)
    assert len(np.unique(expected)) == 3
    assert np.array_equal(columns.numpy(), expected)
    found = device.laid(scene, columns, row, device.upload(valid), 0.25).numpy()
    np.testing.assert_allclose(found, row[expected] * valid * np.float32(0.25), rtol=1e-6)
    large = (0, 3, 7_000_000_000)
    data = np.array(large)[np.searchsorted(CLASSES, PAIR.moving_labels.data)]
    pair = PAIR.with_moving(labels=LabelMap(data, GRID))
    device, u = UploadingDevice(twin), np.zeros((3, *SHAPE), dtype=np.float32)
    found = device.columns(device.scene(pair, SCHEDULE), device.upload(u), large, 0.0)
    expected = CPU.columns(Scene.whole(pair, SCHEDULE), u, large, 0.0)
    assert len(np.unique(expected)) == 3
    assert np.array_equal(found.numpy(), expected)
