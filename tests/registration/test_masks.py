"""Masks: what lies outside has no say, in the start, in the levels and in the refinement."""

import numpy as np
import pytest

from made_pairs import small_settings
from phantoms import make_phantom
from regweave.config.settings import Refine
from regweave.registration.align import align, refine
from regweave.registration.initial import initial_affine
from regweave.registration.scene import Scene
from regweave.spatial.warp import to_voxels
from regweave.types import Geometry, Image, ImagePair, LabelMap, WeightTable

# Control points of the box below and of the whole image lie on the same places.
SCHEDULE = small_settings((40.0, 1, 3), (25.0, 1, 2), modality="mr")
WEIGHTS = WeightTable.constant({"sad": 1.0, "ncc": 1.0}, 0.1)
SETTINGS = Refine(steps=20, start_sigma=0.1)
BOX = (slice(6, 30),) * 3
SHAPE = (36, 36, 36)


def without_labels(pair: ImagePair) -> ImagePair:
    return ImagePair(*(Image(v.data, v.geometry, "mr") for v in (pair.fixed, pair.moving)))


@pytest.fixture(scope="module")
def pair():
    return without_labels(make_phantom(seed=1, shape=SHAPE, spacing_mm=(5.0, 5.0, 5.0)).pair)


def registered(pair: ImagePair):
    start = align(pair, WEIGHTS, SCHEDULE).displacement
    return refine(pair, start, WEIGHTS, SCHEDULE, SETTINGS).displacement


def mask_of(inside, image) -> LabelMap:
    return LabelMap(np.asarray(inside, dtype=np.uint8) * 7, image.geometry)


def distance(u, v):
    return np.linalg.norm(u - v, axis=0)


def test_a_mask_of_all_voxels_changes_no_bit_and_the_start_heeds_others(pair):
    everything = mask_of(np.ones(SHAPE), pair.fixed)
    masked = pair.with_fixed(mask=everything).with_moving(mask=everything)
    assert np.array_equal(registered(masked), registered(pair))
    for method in ("moments", "affine"):
        found = (initial_affine(p.fixed, p.moving, method) for p in (pair, masked))
        assert np.array_equal(*found)
    # A bright block outside of the masks moves the centre of an image, and not that of what counts.
    for method in ["moments", "affine"]:
        expected = initial_affine(pair.fixed, pair.moving, method)
        data = pair.moving.data.copy()
        data[28:, 28:, 28:] = data.max()
        blocked = pair.with_moving(data=data)
        inside = np.ones(SHAPE)
        inside[27:, 27:, 27:] = 0
        masked = blocked.with_moving(mask=mask_of(inside, pair.moving))
        errors = [np.abs(initial_affine(p.fixed, p.moving, method) - expected).max() for p in (blocked, masked)]
        assert errors[1] < 0.5 * errors[0]


def test_a_box_is_registered_as_the_cropped_images_are(pair):
    """A mean difference below 0.2 voxels inside, less than without the mask, where the field itself measures 1."""
    inside = np.zeros(SHAPE)
    inside[BOX] = 1
    box = mask_of(inside, pair.fixed)

    def cropped(image):
        affine = image.geometry.affine.copy()
        affine[:3, 3] = image.geometry.points(np.array([6.0, 6.0, 6.0]))
        return Image(np.ascontiguousarray(image.data[BOX]), Geometry((24, 24, 24), affine), "mr")

    expected = registered(ImagePair(cropped(pair.fixed), cropped(pair.moving)))
    found = registered(pair.with_fixed(mask=box).with_moving(mask=box))[:, *BOX]
    without = registered(pair)[:, *BOX]
    assert np.linalg.norm(expected, axis=0).mean() > 0.8
    assert distance(found, expected).mean() < 0.2
    assert distance(found, expected).mean() < 0.8 * distance(without, expected).mean()


def test_a_lesion_in_one_image_pulls_the_field_unless_masked():
    """Each field is near that of healthy images; errors against the true field are so in the mean of all."""
    far = np.sqrt(((np.indices(SHAPE) - np.array([20, 18, 18])[:, None, None, None]) ** 2).sum(axis=0))
    near, errors = (far > 7) & (far < 12), []
    for seed in (0, 1):
        phantom = make_phantom(seed=seed, shape=SHAPE, spacing_mm=(5.0, 5.0, 5.0))
        pair, truth = without_labels(phantom.pair), to_voxels(phantom.true_field)
        healthy = registered(pair)
        for image, with_lesion in ((pair.fixed, pair.with_fixed), (pair.moving, pair.with_moving)):
            data = np.where(far <= 5, image.data.max(), image.data)
            pulled = registered(with_lesion(data=data))
            masked = registered(with_lesion(data=data, mask=mask_of(far > 6, image)))
            assert distance(masked, healthy)[near].mean() < 0.4 * distance(pulled, healthy)[near].mean()
            errors.append([distance(u, truth)[near].mean() for u in (healthy, pulled, masked)])
    of_healthy, of_pulled, of_masked = np.mean(errors, axis=0)
    assert of_pulled > of_healthy + 0.05
    assert of_masked - of_healthy < (of_pulled - of_healthy) / 3


def test_voxels_outside_have_no_weight_and_no_influence(pair):
    """The same field whatever stands outside of the masks."""
    inside = np.zeros(SHAPE)
    inside[4:32, 4:32, 4:30] = 1
    found = []
    for value in (0.0, 1000.0):
        images = []
        for image in (pair.fixed, pair.moving):
            data = np.where(inside == 1, image.data, np.float32(value))
            images.append(Image(data, image.geometry, "mr", mask=mask_of(inside, image)))
        found.append(registered(ImagePair(*images)))
        scene = Scene.whole(ImagePair(*images), SCHEDULE)
        weight = scene.valid(np.zeros((3, *SHAPE), dtype=np.float32))
        assert weight.max() == 1
        assert weight[inside == 0].max() == 0
    assert np.array_equal(found[0], found[1])
