"""Check of a registration by repetitions and by a run the other way."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import ndimage

import regweave as rw
from phantoms import make_phantom
from regweave.cli import main
from regweave.config.settings import preset
from regweave.io import read_image, write_image, write_labels
from regweave.run import check
from regweave.run.check import UNKNOWN, features, limits_mm, perturbed, range_within, require_limits
from regweave.types import Geometry, Volume

SMALL = preset("default").model_copy(update={"levels": preset("default").levels[:1]})


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=3, shape=(24, 24, 24), spacing_mm=(7.0, 7.0, 7.0)).pair


@pytest.fixture(scope="module")
def checked(pair):
    return rw.register(
        pair.fixed, pair.moving, moving_labels=pair.moving_labels, check=True, progress=False, config=SMALL
    )


def test_a_repetition_keeps_the_weight_of_each_stage_and_drops_half_of_its_members():
    for bank in ("ct", "mr", "multi"):
        settings = preset("default").for_bank(bank)
        weights = settings.start_weights(settings.smoothness)
        for n in range(3):
            changed, other = perturbed(settings, weights, n)
            assert other.pairwise == pytest.approx(weights.pairwise * (1.5, 1 / 1.5, 1.0)[n])
            assert changed.refine.smoothness == pytest.approx(settings.refine.smoothness * (1.5, 1 / 1.5, 1.0)[n])
            for stage in ("levels", "refine", "both"):
                rows = weights.rows([m.name for m in settings.bank if m.stage == stage])
                assert other.matrix[rows].sum() == pytest.approx(weights.matrix[rows].sum())
            used = weights.matrix.any(axis=1)
            assert used.sum() // 4 <= (used & ~other.matrix.any(axis=1)).sum() <= used.sum() / 2
            again = perturbed(settings, weights, n)[1]
            assert np.array_equal(other.matrix, again.matrix)


def test_a_pair_that_is_known_exactly_is_certain_and_the_check_changes_no_result(pair, checked):
    plain = rw.register(pair.fixed, pair.moving, moving_labels=pair.moving_labels, progress=False, config=SMALL)
    assert plain.check is None
    assert plain.images.limit is None
    assert np.array_equal(plain.transform.field.data, checked.transform.field.data)
    same = rw.register(pair.moving, pair.moving, check=True, progress=False, config=SMALL)
    assert same.check.apart_mm < 0.05 < checked.check.apart_mm
    assert same.check.back_mm < 0.1 < checked.check.back_mm
    assert {s.there_and_back for s in same.check.structures} == {1.0}


def test_the_check_has_the_same_bits_for_any_number_of_threads(pair, checked):
    given = {"moving_labels": pair.moving_labels, "check": True, "progress": False, "config": SMALL}
    one = rw.register(pair.fixed, pair.moving, **given, threads=1)
    assert one.check == checked.check
    assert np.array_equal(one.images.limit.data, checked.images.limit.data)


def test_structures_are_listed_the_most_doubtful_first_and_images_without_labels_have_none(pair, checked):
    doubts = [s.doubt for s in checked.check.structures]
    assert doubts == sorted(doubts, reverse=True)
    assert {s.label for s in checked.check.structures} == set(pair.moving_labels.values())
    bare = [dataclasses.replace(image, labels=None) for image in (pair.fixed, pair.moving)]
    shift = np.eye(4)
    shift[0, 3] = 2.0
    found = rw.register(
        *bare, init=shift, check=True, progress=False, config=SMALL
    )  # a given start is inverted on the way back
    assert found.check.structures == ()
    assert found.check.back_mm < 20.0


def test_a_saved_check_is_the_same_and_the_command_prints_it(tmp_path, checked, pair, capsys):
    checked.save(tmp_path / "one", write=["warped", "labels", "transform", "report"])
    saved = rw.load(tmp_path / "one")
    assert saved.check == checked.check
    np.testing.assert_allclose(saved.images.limit.data, checked.images.limit.data, atol=1e-4)
    page = (tmp_path / "one" / "report.html").read_text()
    assert 'id="check"' in page
    assert '"limit":{' in page.replace(" ", "")
    saved.save(tmp_path / "two")
    assert read_image(tmp_path / "two" / "error_limit.nii.gz").data.shape == checked.fixed.data.shape
    for name in ("fixed", "moving"):
        write_image(tmp_path / f"{name}.nii.gz", getattr(pair, name))
    write_labels(tmp_path / "labels.nii.gz", pair.moving_labels)
    files = [str(tmp_path / f"{name}.nii.gz") for name in ("fixed", "moving")]
    options = ["--moving-labels", str(tmp_path / "labels.nii.gz"), "--check", "--config", str(tmp_path / "small.toml")]
    (tmp_path / "small.toml").write_text(SMALL.toml())
    assert main(["register", *files, "-o", str(tmp_path / "out"), *options]) == 0
    assert "3 repetitions differ by" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "result.json").read_text())["check"]
    assert record["repetitions"] == 3
    assert (tmp_path / "out" / "error_limit.nii.gz").is_file()


def test_a_limit_is_unknown_where_the_way_back_leaves_the_image():
    rng = np.random.default_rng(1)
    apart, back, fixed, warped = rng.random((4, 12, 11, 10), dtype=np.float32)
    back[8:] = np.nan
    found = features(apart, back, fixed, warped, 2.0)
    limit = limits_mm(found, 2.0)
    assert (limit[:9] > 0).all()
    assert set(limit[11].ravel()) == {np.float32(UNKNOWN)}
    # A slow reference at one voxel, far from the unknown ones: 5 × 5 × 5 voxels, no smoothing of the correlation.
    a, b = (of[2:7, 3:8, 3:8].astype(np.float64) for of in (fixed, warped))
    alike = check._local_correlation(fixed, warped)[4, 5, 5]
    for scale in np.array([1e-12, 1e30], np.float32):
        scaled = check._local_correlation(scale * fixed, scale * warped)
        np.testing.assert_allclose(scaled, check._local_correlation(fixed, warped), atol=1e-4)
    spread = (a.var() + 1e-3 * fixed.var()) * (b.var() + 1e-3 * fixed.var())
    assert alike == pytest.approx(((a - a.mean()) * (b - b.mean())).mean() / np.sqrt(spread), abs=1e-4)
    smooth = ndimage.gaussian_filter(apart.astype(np.float64), 1.0)[4, 5, 5]
    assert found[0, 4, 5, 5] == pytest.approx(np.log(smooth / 2 + 0.02), abs=1e-5)
    log = 0.931 + 0.591 * found[0] + 0.174 * found[1] + 0.15 * found[2]
    assert limit[4, 5, 5] == pytest.approx(2 * (np.exp(log[4, 5, 5]) - 0.02), rel=1e-5)


def test_the_range_of_values_within_a_limit_is_that_of_a_slow_search():
    rng = np.random.default_rng(0)
    grid = Geometry((7, 6, 5), np.diag([2.0, 3.0, 4.0, 1.0]))
    values = Volume(rng.random(grid.shape).astype(np.float32), grid)
    limit = rng.choice([0.0, 2.0, 3.5, 9.0, -1.0], grid.shape).astype(np.float32)
    low, high = range_within(values, Volume(limit, grid))
    for at in np.ndindex(grid.shape):
        reach = np.ceil(limit[at] / grid.spacing_mm - 1e-6).astype(int)
        box = tuple(slice(max(0, i - r), i + r + 1) for i, r in zip(at, reach, strict=True))
        near = values.data if limit[at] < 0 else values.data[box]
        assert (low.data[at], high.data[at]) == (near.min(), near.max())
    for values in [(0.0, 1.0, 2.0), (-1000.0, 40.5, 3.0), (-1.0, 0.5, 1e30)]:
        grid = Geometry((4, 4, 4), np.eye(4))
        require_limits(Volume(np.resize(np.array([-1.0, 0.5, 9.0], np.float32), grid.shape), grid), "limit.nii.gz")
        with pytest.raises(rw.RegweaveError, match=r"E122: 'i.nii.gz' is no map of limits"):
            require_limits(Volume(np.resize(np.array(values, np.float32), grid.shape), grid), "i.nii.gz")
