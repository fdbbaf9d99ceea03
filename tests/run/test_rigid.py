"""Structures kept rigid, from names to files and record; and names that mean nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest

from made_pairs import small_settings, write_pair
from phantoms import make_phantom
from regweave import notices
from regweave.errors import UsageError
from regweave.report.registration import boilerplate
from regweave.run.job import recorded_call
from regweave.run.register import register
from regweave.run.rigid import names_of, rigid_parts
from regweave.spatial.rigid import motions_of
from regweave.spatial.warp import warp_points
from regweave.types import Geometry, Image, LabelMap, Transform, Volume

SETTINGS = small_settings((24.0, 2, 2), refine=6)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=3, shape=(32, 32, 28), spacing_mm=(6.0, 6.0, 6.0)).pair


@pytest.fixture(scope="module")
def result(pair):
    return register(pair.fixed, pair.moving, config=SETTINGS, rigid="Mandible")


def test_the_mandible_is_rigid_in_every_output(pair, result, tmp_path):
    alone = register(pair.fixed, pair.moving, config=SETTINGS)
    parts = rigid_parts(["mandible"], pair.moving)
    assert max(motions_of(alone.transform, parts)[1].values()) > 0.3
    assert max(motions_of(result.transform, parts)[1].values()) < 0.01
    assert result.rigid_mm["Mandible"] == pytest.approx(max(motions_of(alone.transform, parts)[1].values()), rel=1e-6)
    assert result.regularity["folding_fraction"] == 0
    others = [k for k, one in result.dice.items() if one["name"] != "mandible"]
    assert np.mean([result.dice[k]["after"] - alone.dice[k]["after"] for k in others]) > -0.02
    result.save(tmp_path / "out")
    assert "rigid inside Mandible" in boilerplate(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert record["rigid_mm"] == result.rigid_mm
    written = Transform.load(tmp_path / "out" / "transform.h5", result.transform.field.geometry)
    assert max(motions_of(written, parts)[1].values()) < 0.01
    back = Transform.load(tmp_path / "out" / "inverse.h5")
    inside = pair.moving.geometry.points(np.argwhere(pair.moving_labels.data == 3).astype(float))
    assert np.linalg.norm(warp_points(warp_points(inside, back), result.transform) - inside, axis=1).max() < 0.1


def test_the_record_gives_the_same_bits(pair, tmp_path):
    first = register(**write_pair(tmp_path, pair), config=SETTINGS, rigid=["3"])
    first.save(tmp_path / "out", write=["transform"])
    again = register(**recorded_call(tmp_path / "out"))
    assert again.provenance.call.rigid == ("3",)
    assert np.array_equal(again.transform.field.data, first.transform.field.data)


def ct(*, bone=True):
    grid = Geometry((24, 24, 24), np.diag([2.0, 2.0, 2.0, 1.0]))
    data = np.full(grid.shape, 40.0, dtype=np.float32)
    if bone:
        data[4:9, 4:9, 4:20] = 800
        data[14:19, 4:9, 4:20] = 700
        data[12, 20, 12] = 900  # noise
    labels = np.zeros(grid.shape, dtype=np.uint8)
    labels[4:9, 4:9, 4:10] = 1
    labels[14:19, 14:19, 5:9] = 2
    return Image.of(
        Volume(data, grid, "ct"), LabelMap(labels, grid, {1: "Bone_Mandible", 2: "SpinalCord", 7: "larynx"})
    )


def test_bones_and_pieces_are_parts():
    parts = rigid_parts(["bones"], ct())
    assert sorted(parts.names.values()) == ["Bone_Mandible", "bones", "bones"]
    assert {name: int((parts.data == v).sum()) for v, name in parts.names.items()}["Bone_Mandible"] == 150
    assert sorted(np.bincount(parts.data.ravel())[1:].tolist()) == [150, 250, 400]
    image = ct()
    labels = image.labels.data.copy()
    labels[0:4, 18:22, 0:4] = 2
    labels[21, 16, 6] = 2  # a speck near the first piece
    parts = rigid_parts(["cord", "SPINAL_CORD"], replace(image, labels=replace(image.labels, data=labels)))
    assert sorted(np.bincount(parts.data.ravel())[1:].tolist()) == [64, 101]


def test_names_are_split_and_what_names_nothing_is_refused():
    for names in ["", " , ", (), ["mandible", 3], 5, [""], None]:
        with pytest.raises(UsageError, match="E121: structures to keep rigid are"):
            names_of(names)
    assert names_of("mandible, cord,mandible") == ("mandible", "cord")


def test_structures_that_are_not_there_are_refused():
    for names, image, message in [
        (["mandibel"], ct(), "'mandibel' is no structure of the moving labels; .* they show Bone_Mandible, SpinalCord"),
        (["spinal cort"], ct(), "did you mean 'spinalcord'"),
        (["larynx"], ct(), "'larynx' has no voxel in the moving labels"),
        (["cord"], replace(ct(), labels=None), "there are no moving labels; give moving labels"),
        (["bones"], replace(ct(), modality="mr"), "bones are found in a CT alone; the moving image is MR"),
        (["bones"], replace(ct(bone=False), labels=None), "no bone is found in the moving image"),
    ]:
        with pytest.raises(UsageError, match=f"E121: .*{message}"):
            rigid_parts(names, image)


def test_a_structure_that_the_fixed_image_does_not_show_is_named(pair):
    labels = pair.moving_labels.data.copy()
    labels[:3, :3, :3] = 9
    grid = pair.fixed.geometry
    cut = Geometry((28, 32, 28), grid.affine @ np.array([[1, 0, 0, 4], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]))
    fixed = Volume(np.ascontiguousarray(pair.fixed.data[4:]), cut)
    moving = replace(pair.moving, labels=replace(pair.moving_labels, data=labels, names={9: "screw"}))
    with notices.muted():
        found = register(fixed, moving, config=SETTINGS, rigid="screw")
    assert any(text.startswith("W221: structures are not kept rigid: screw (outside") for text in found.warnings)
