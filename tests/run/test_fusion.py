"""Joint label fusion against loops over voxels, patches and atlases, and what the ways of fusing promise."""

import itertools

import numpy as np
import pytest

from regweave import RegweaveError, _core
from regweave.run import fusion
from regweave.run.fusion import fuse
from regweave.threads import kernel_threads
from regweave.types import Geometry, LabelMap, Volume

GRID = Geometry((12, 11, 10), np.eye(4))


def cube(radius):
    found = itertools.product(range(-radius, radius + 1), repeat=3)
    return sorted(found, key=lambda o: sum(i * i for i in o))  # the sort is stable


def part(image, at, radius):
    x, y, z = at
    return image[x - radius : x + radius + 1, y - radius : y + radius + 1, z - radius : z + radius + 1].astype(float)


def normalised(values):
    spread = values.std()
    return (values - values.mean()) / spread if spread**2 > 1e-6 else 0 * values


def weights_of(m):
    """Solve M w = 1, and again without the atlas of the most negative weight until there is none."""
    used = list(range(len(m)))
    while True:
        w = np.linalg.solve(m[np.ix_(used, used)], np.ones(len(used)))
        if w.min() >= 0:
            out = np.zeros(len(m))
            out[used] = w / w.sum()
            return out
        used.pop(int(w.argmin()))


def slow_fusion(target, images, labels, decide, patch, reach, alpha, beta):
    """Eq. (9) of Wang et al. (2013), voxel by voxel; returns the share of the votes of each label there."""
    best, weight, shares = {}, {}, {}
    middle = np.argwhere(decide)
    visited = {tuple(v + o) for v in middle for o in cube(patch)}
    for v in visited:
        here = normalised(part(target, v, patch))
        errors = []
        for a, image in enumerate(images):
            match = [(here * normalised(part(image, np.add(v, o), patch))).mean() for o in cube(reach)]
            best[v, a] = cube(reach)[int(np.argmax(np.round(match, 5)))]
            errors.append(np.abs(here - normalised(part(image, np.add(v, best[v, a]), patch))).ravel())
        m = (np.array([[e @ f for f in errors] for e in errors]) / (len(errors[0]) - 1)) ** beta
        weight[v] = weights_of(m + (alpha * np.trace(m) / len(images) + 1e-12) * np.eye(len(images)))
    for v in map(tuple, middle):
        votes = {}
        for o in cube(patch):
            near = tuple(np.add(v, o))
            for a, w in enumerate(weight[near]):
                label = int(labels[a][tuple(np.add(v, best[near, a]))])
                votes[label] = votes.get(label, 0.0) + w
        total = sum(votes.values())
        shares[v] = {label: vote / total for label, vote in votes.items()}
    return shares


def scene(seed=0, atlases=4, shape=(14, 13, 12)):
    rng = np.random.default_rng(seed)
    target = rng.normal(size=shape).astype(np.float32)
    images = np.stack(
        [(target + s * rng.normal(size=shape)).astype(np.float32) for s in (0.3, 0.6, 1.0, 1.5)[:atlases]]
    )
    labels = rng.integers(0, 4, (atlases, *shape)).astype(np.int32)
    decide = np.zeros(shape, np.uint8)
    decide[5:9, 5:8, 4:8] = rng.random((4, 3, 4)) < 0.7
    return target, images, labels, decide


def test_the_kernel_is_the_loop():
    for reach, beta in [(1, 2.0), (0, 2.0), (1, 3.0)]:
        target, images, labels, decide = scene()
        found, posterior = _core.joint_fusion(target, images, labels, decide, 4, 1, reach, 0.1, beta)
        slow = slow_fusion(target, images, labels, decide, 1, reach, 0.1, beta)
        for v, shares in slow.items():
            assert posterior[v] == pytest.approx(max(shares.values()), abs=1e-4)
            assert shares[int(found[v])] == pytest.approx(max(shares.values()), abs=1e-4)
        np.testing.assert_array_equal(found[decide == 0], labels[0][decide == 0])


def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(1)
    shape = (44, 30, 28)
    target = rng.normal(size=shape).astype(np.float32)
    images = rng.normal(size=(5, *shape)).astype(np.float32)
    labels = rng.integers(0, 3, (5, *shape)).astype(np.int32)
    decide = np.zeros(shape, np.uint8)
    decide[7:-7, 7:-7, 7:-7] = 1
    found = []
    for n in (1, 2, 7):
        with kernel_threads(n):
            found.append(_core.joint_fusion(target, images, labels, decide, 3, 2, 3, 0.1, 2.0))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0][0], other[0])
        np.testing.assert_array_equal(found[0][1], other[1])


def people(seed=3, bad=2):
    """A target, and five atlases of which some show and have another shape."""
    rng = np.random.default_rng(seed)
    where = np.indices(GRID.shape).astype(float)

    def ball(middle, radius):
        return ((where - np.array(middle)[:, None, None, None]) ** 2).sum(axis=0) < radius**2

    def image(mask):
        return Volume((100 * mask + rng.normal(0, 5, GRID.shape)).astype(np.float32), GRID)

    truth = ball((5, 5, 5), 3.5)
    masks = [truth] * (5 - bad) + [ball((8, 5, 5), 3.5)] * bad
    labels = [LabelMap(np.where(mask, 70000, 0).astype(np.uint32), GRID, {70000: "core"}) for mask in masks]
    return image(truth), [image(mask) for mask in masks], labels, truth


def test_joint_fusion_follows_the_atlases_that_look_like_the_target():
    target, images, labels, truth = people(bad=3)  # most are wrong, and wrong in the same way
    joint, vote = (fuse(target, images, labels, method).labels for method in ("joint", "vote"))
    wrong = [np.mean((found.data == 70000) != truth) for found in (joint, vote)]
    assert wrong[0] < 0.2 * wrong[1]
    assert joint.data.dtype == np.uint32
    assert joint.names == {70000: "core"}


def test_a_vote_counts_and_of_equals_the_lowest_wins():
    target, images, labels, _ = people()
    two = [LabelMap(np.full(GRID.shape, value, np.uint8), GRID) for value in (9, 4)]
    assert fuse(target, images[:2], two, "vote").labels.values() == [4]
    found = fuse(target, images, labels, "vote")
    counts = np.mean([one.data > 0 for one in labels], axis=0)
    np.testing.assert_array_equal(found.labels.data > 0, counts > 0.5)
    np.testing.assert_allclose(found.agreement.data, np.where(counts > 0.5, counts, 1 - counts), atol=1e-6)


def test_staple_finds_who_is_right():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, GRID.shape)
    rates = (0.05, 0.05, 0.6, 0.6, 0.6)
    labels = []
    for rate in rates:
        other = (truth + rng.integers(1, 3, GRID.shape)) % 3
        labels.append(LabelMap(np.where(rng.random(GRID.shape) < rate, other, truth).astype(np.uint8), GRID))
    image = Volume(rng.normal(size=GRID.shape).astype(np.float32), GRID)
    wrong = [np.mean(fuse(image, [image] * 5, labels, way).labels.data != truth) for way in ("staple", "vote")]
    assert wrong[0] < 0.5 * wrong[1]


def test_what_all_agree_on_stays_and_borders_are_no_exception():
    target, images, labels, _ = people()
    same = fuse(target, images, [labels[0]] * 5)
    np.testing.assert_array_equal(same.labels.data, labels[0].data)
    assert same.posterior.data.min() == same.agreement.data.min() == 1
    corner = np.zeros(GRID.shape, np.uint8)
    corner[0, 0, 0] = 1
    found = fuse(target, images, [LabelMap(corner * (k > 1), GRID) for k in range(5)])
    assert 0 < found.posterior.data[0, 0, 0] <= 1
    kinds = [
        LabelMap((200 * corner).astype(np.uint8), GRID) if k else LabelMap(corner.astype(np.int8), GRID)
        for k in range(5)
    ]
    assert fuse(target, images, kinds, "vote").labels.data[0, 0, 0] == 200
    with pytest.raises(RegweaveError, match="E192"):
        fuse(target, images, labels, "mean")
    assert (fusion.PATCH, fusion.REACH, fusion.ALPHA, fusion.BETA) == (2, 3, 0.6, 2.0)
