"""Masks from files to the record: read, checked, used again, and listed."""

import json

import numpy as np
import pytest

from made_pairs import small_settings, write_pair
from phantoms import make_phantom
from regweave import notices
from regweave.errors import RegweaveError
from regweave.io import write_labels
from regweave.jobs.batch import COLUMNS
from regweave.jobs.table import read_pairs, write_pairs
from regweave.measures.scores import regularity
from regweave.run.job import recorded_call
from regweave.run.memory import BYTES_PER_VOXEL, forecast
from regweave.run.read import read_inputs
from regweave.run.register import register
from regweave.types import Geometry, LabelMap

SETTINGS = small_settings((48.0, 2, 2), refine=2)
SHAPE = (24, 22, 20)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=3, shape=SHAPE, spacing_mm=(8.0, 8.0, 8.0)).pair


@pytest.fixture(scope="module")
def mask(pair):
    inside = np.zeros(SHAPE, dtype=np.uint8)
    inside[:, :12] = 255
    return LabelMap(inside, pair.fixed.geometry)


@pytest.fixture(scope="module")
def files(pair, mask, tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    paths = write_pair(folder, pair)
    paths["fixed_mask"] = folder / "fixed_mask.nii.gz"
    write_labels(paths["fixed_mask"], mask)
    return paths


@pytest.fixture(scope="module")
def result(files):
    with notices.muted():
        return register(**files, config=SETTINGS)


def test_a_mask_changes_the_result_and_stands_in_the_record(files, result, tmp_path):
    plain = register(**{k: v for k, v in files.items() if k != "fixed_mask"}, config=SETTINGS)
    assert not np.array_equal(result.transform.field.data, plain.transform.field.data)
    result.save(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert record["provenance"]["inputs"]["fixed_mask"]["path"] == str(files["fixed_mask"])
    with notices.muted():
        again = register(**recorded_call(tmp_path / "out" / "result.json"))
    assert np.array_equal(again.transform.field.data, result.transform.field.data)
    assert again.provenance.inputs_sha256 == result.provenance.inputs_sha256


def test_numbers_are_those_of_the_inside_and_structures_outside_are_named(result, mask, pair):
    jacobian = result.jacobian().data
    assert result.regularity == regularity(jacobian, mask.data != 0)
    assert result.regularity["sdlogj"] != regularity(jacobian)["sdlogj"]
    (warning,) = [w for w in result.warnings if w.startswith("W214")]
    cut = [v for v in pair.fixed_labels.values() if (pair.fixed_labels.data[:, 12:] == v).any()]
    assert all(f"{v} " in warning for v in cut)
    assert len(result.score.structures) == len(pair.fixed_labels.values())


def test_the_order_of_axes_in_a_file_does_not_matter(pair, mask, result):
    """The same image and mask, stored with turned axes."""

    def turned(values, geometry):
        affine = geometry.affine[:, [1, 0, 2, 3]].copy()
        return np.ascontiguousarray(values.swapaxes(0, 1)), np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine

    image, region = (turned(v.data, pair.fixed.geometry) for v in (pair.fixed, mask))
    found = register(image, pair.moving, moving_labels=pair.moving_labels, fixed_mask=region, config=SETTINGS)
    back = found.transform.field.data.swapaxes(1, 2)
    np.testing.assert_allclose(back, result.transform.field.data, atol=1e-3)


def test_masks_that_do_not_fit_are_refused(pair, mask):
    elsewhere = LabelMap(mask.data, Geometry(SHAPE, pair.fixed.geometry.affine @ np.diag([1.1, 1, 1, 1])))
    with pytest.raises(RegweaveError, match=r"E112.*the mask"):
        register(pair.fixed, pair.moving, fixed_mask=elsewhere, config=SETTINGS)
    nothing = LabelMap(np.zeros(SHAPE, dtype=np.uint8), pair.moving.geometry)
    with pytest.raises(RegweaveError, match=r"E131.*holds no voxel"):
        register(pair.fixed, pair.moving, moving_mask=nothing, config=SETTINGS)


def test_lists_have_masks_where_a_row_names_one(files, tmp_path):
    names = list(files)
    rows = [["a", *map(str, files.values()), ""], ["b", *map(str, files.values())]]
    rows[1][names.index("fixed_mask") + 1] = ""
    rows[1].append(str(files["fixed_mask"]))
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(map(",".join, [["id", *names, "moving_mask"], *rows])) + "\n", encoding="utf-8")
    first, second = read_pairs(path)
    assert first.files == files
    assert second.files == {**{k: v for k, v in files.items() if k != "fixed_mask"}, "moving_mask": files["fixed_mask"]}
    write_pairs(tmp_path / "again.csv", [first, second])
    assert read_pairs(tmp_path / "again.csv") == [first, second]
    assert {"fixed_mask", "moving_mask"} <= set(COLUMNS.optional) & set(COLUMNS.files)


def test_memory_counts_masks(pair, mask):
    data = read_inputs(pair.fixed, pair.moving, fixed_mask=mask)
    assert data.masked_voxels == mask.data.size
    grids = pair.fixed.geometry, pair.moving.geometry
    plain, masked = (forecast(*grids, SETTINGS, "mr", probe=False, masked_voxels=n) for n in (0, data.masked_voxels))
    expected = BYTES_PER_VOXEL["mask"] * mask.data.size / 2**20
    assert masked.peak_memory_mb - plain.peak_memory_mb == pytest.approx(expected)
