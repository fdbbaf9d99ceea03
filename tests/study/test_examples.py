"""The generated anatomies: repeatable, with every structure, deformed without a fold, and good to register."""

import numpy as np
import pytest
from scipy import ndimage

import regweave as rw
from regweave.study import examples

COARSE_MM = {"head and neck": 5.0, "chest": 7.0, "brain": 5.0}


@pytest.mark.parametrize("kind", examples.ANATOMIES)
def test_every_structure_is_there_and_moves_one_to_one_as_the_seed_decides(kind):
    one, again, other = (examples.pair(seed, kind, voxel_mm=14.0) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.fixed.data, again.fixed.data)
    np.testing.assert_array_equal(one.moving_labels.data, again.moving_labels.data)
    assert np.mean(one.moving.data != other.moving.data) > 0.5
    pair = examples.pair(1, kind, voxel_mm=COARSE_MM[kind])
    names = examples.STRUCTURES[kind]
    for labels in (pair.fixed_labels, pair.moving_labels):
        assert tuple(labels.name(value) for value in labels.values()) == names
        assert min(np.bincount(labels.data.ravel())) > 30
    assert np.mean(pair.fixed_labels.data != pair.moving_labels.data) > 0.01
    geometry = examples._geometry(kind, 10.0)
    points = examples.grid_points(geometry)
    u = examples._displacement(points, geometry, examples.SHIFT_MM[kind], np.random.default_rng(0))
    assert np.sqrt((u**2).sum(0)).max() == pytest.approx(examples.SHIFT_MM[kind])
    corner = (points + u)[:, :-1, :-1, :-1]
    edges = np.stack([(points + u)[:, 1:, :-1, :-1], (points + u)[:, :-1, 1:, :-1], (points + u)[:, :-1, :-1, 1:]])
    volume = np.linalg.det(np.moveaxis(edges - corner, (0, 1), (-2, -1))) / 10.0**3
    assert volume.min() > 0.1


def test_a_ct_looks_like_one_and_registers():
    pair = examples.pair(0, "chest", voxel_mm=9.0)
    lungs = ndimage.binary_erosion(np.isin(pair.fixed_labels.data, (1, 2)))
    assert -900 < np.median(pair.fixed.data[lungs]) < -800
    found = rw.register(
        pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, progress=False
    )
    assert found.provenance.modality.bank == "ct"
    assert found.mean_dice["after"] > found.mean_dice["before"] + 0.05


def test_a_patient_has_four_organs_that_change():
    pair = examples.patient(5)
    names = [pair.fixed_labels.name(value) for value in pair.fixed_labels.values()]
    assert tuple(names) == examples.PATIENT_LABELS
    rims = []
    for part in (pair.fixed, pair.moving):
        gland = part.labels.data == 2
        rim = part.data[ndimage.binary_dilation(gland) & ~gland]
        rims.append(np.median(rim[np.abs(rim) < 250]) - np.median(part.data[gland]))
    assert rims[0] > rims[1] + 30  # the agent brightens the fat round the gland in the later scan
