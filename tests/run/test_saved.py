"""A saved registration opens again with the same numbers, and a result shows itself."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from phantoms import make_phantom
from regweave.config.settings import preset
from regweave.errors import RegweaveError, UsageError
from regweave.measures.scores import PairScore
from regweave.measures.verdict import parse_rules
from regweave.run.register import register
from regweave.run.result import load
from regweave.spatial.warp import warp_image, warp_points
from regweave.types import Volume

SMALL = preset("default").model_copy(update={"levels": preset("default").levels[:1]})
SMALL = SMALL.model_copy(update={"refine": SMALL.refine.model_copy(update={"steps": 3})})


@pytest.fixture(scope="module")
def pair():
    return make_phantom(shape=(22, 20, 18), spacing_mm=(9.0, 9.0, 9.0), seed=3).pair


@pytest.fixture(scope="module")
def result(pair):
    return register(
        pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, config=SMALL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    target = tmp_path_factory.mktemp("saved") / "out"
    result.save(target)
    return target


def as_json(found):
    return {**found.summary(), "structures": found.structures()}


def test_a_loaded_result_has_the_numbers_and_images_of_the_one_that_was_saved(result, folder):
    back = load(folder)
    assert as_json(back) == json.loads((folder / "result.json").read_text())
    assert {**as_json(back), "seconds": 0} == {**as_json(result), "seconds": 0}
    assert dict(back.seconds).items() > dict(result.seconds).items()  # and those of files and page
    assert repr(back).rpartition(", ")[0] == repr(result).rpartition(", ")[0]
    np.testing.assert_array_equal(back.warped.data, result.warped.data)
    np.testing.assert_array_equal(back.warped_labels.data, result.warped_labels.data)
    np.testing.assert_array_equal(back.transform.field.data, result.transform.field.data)
    np.testing.assert_allclose(back.inverse.field.data, result.inverse.field.data, atol=1e-5)
    np.testing.assert_allclose(back.fixed.data, result.fixed.data, atol=0.5)  # a CT is kept in whole units
    assert back.verdict == result.verdict


def test_a_loaded_result_is_saved_again_file_by_file(folder, tmp_path):
    load(folder).save(tmp_path / "copy")
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert [p for p in names if (tmp_path / "copy" / p).read_bytes() != (folder / p).read_bytes()] == []
    load(folder).save(tmp_path / "less", write=["transform"])
    less = load(tmp_path / "less")
    np.testing.assert_array_equal(less.transform.affine, load(folder).transform.affine)
    np.testing.assert_allclose(less.inverse.field.data, load(folder).inverse.field.data, atol=1e-3)  # computed anew
    with pytest.raises(RegweaveError, match=r"E198.*warped\.nii\.gz"):
        less.warped  # noqa: B018 (it is read when it is asked for)


def test_distances_of_surfaces_are_measured_for_a_page_or_a_rule(result, folder, tmp_path):
    """Without a page they cost nothing, and the rest of the record is the same."""
    needed = parse_rules({"surface_distance_mm": {"look": 1e-3}}, "near")
    strict = result.model_copy(update={"rules": needed})
    rows = {}
    for name, found in (("plain", result), ("ruled", strict)):
        found.save(tmp_path / name, write=["labels", "transform"])
        rows[name] = load(tmp_path / name).structures()
    assert [row["hd95_mm"] for row in rows["plain"]] == [None] * len(rows["plain"])
    assert rows["ruled"] == load(folder).structures()
    assert [row["dice_after"] for row in rows["plain"]] == [row["dice_after"] for row in rows["ruled"]]
    assert load(tmp_path / "ruled").verdict == strict.verdict


def test_a_result_without_labels_opens_too(pair, tmp_path):
    fixed, moving = (Volume(v.data, v.geometry) for v in (pair.fixed, pair.moving))
    register(fixed, moving, config=SMALL).save(tmp_path / "out")
    back = load(tmp_path / "out")
    assert back.warped_labels is None
    assert back.mean_dice == {}
    back.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "report.html").is_file()


def test_what_is_no_result_is_refused(folder, tmp_path):
    with pytest.raises(RegweaveError, match="E101"):
        load(tmp_path)
    copy = shutil.copytree(folder, tmp_path / "copy")
    whole = (folder / "result.json").read_text()
    for change in (
        lambda content: content.pop("weights"),
        lambda content: content.update(steps=[{"level": 0}]),
        lambda content: content.update(structures=3),
        lambda content: content["provenance"].update(inputs=None),
        lambda content: content["provenance"].update(settings={"levels": 3}),
    ):
        content = json.loads(whole)
        change(content)
        (copy / "result.json").write_text(json.dumps(content))
        with pytest.raises(RegweaveError, match="E178"):
            load(copy)
    (copy / "result.json").write_text("[1, 2")
    with pytest.raises(RegweaveError, match="E102"):
        load(copy)


def test_a_result_warps_other_things_and_has_the_jacobian_of_its_numbers(result, pair):
    twice = result.warp((2 * pair.moving.data, np.diag([-1.0, -1.0, 1.0, 1.0]) @ pair.moving.geometry.affine), fill=0.0)
    plain = warp_image(pair.moving, result.transform, fill=0.0)
    np.testing.assert_allclose(twice.data, 2 * plain.data, rtol=1e-5)
    labels = result.warp_labels(pair.moving_labels)
    np.testing.assert_array_equal(labels.data, result.warped_labels.data)
    points = pair.fixed.geometry.points(np.array([[8.0, 8.0, 8.0], [10.0, 9.0, 7.0]]))
    there = result.warp_points(points)
    np.testing.assert_array_equal(there, warp_points(points, result.transform))
    np.testing.assert_allclose(result.warp_points(there, inverse=True), points, atol=1.0)
    jacobian = result.jacobian()
    assert jacobian.data.shape == result.fixed.data.shape
    assert float(jacobian.data.min()) == result.regularity["min_jacobian"]


def test_a_result_shows_itself_and_completion_offers_what_a_user_needs(result):
    assert len(repr(result).splitlines()) <= 3
    assert f"{result.mean_dice['after']:.3f}" in repr(result)
    card = result._repr_html_()
    assert card.count("data:image/png;base64,") == 1
    assert all(row["name"] in card for row in result.structures())
    assert len(card) < 400_000
    named = replace(result.score.structures[0], name="<script>x</script>")
    assert "<script>" not in result.model_copy(update={"score": PairScore((named,))})._repr_html_()
    names = [name for name in dir(result) if not name.startswith("_")]
    assert {"transform", "warped", "dice", "structures", "table", "plot", "save", "report", "verdict"} <= {*names}
    assert not {"model_dump", "copy", "json"} & {*names}
    assert all(hasattr(result, name) for name in names)


def test_table_and_figure_or_the_extra_that_they_need(result, monkeypatch):
    pandas = pytest.importorskip("pandas")
    table = result.table()
    assert isinstance(table, pandas.DataFrame)
    assert table["dice_after"].mean() == pytest.approx(result.mean_dice["after"])
    pytest.importorskip("matplotlib")
    drawn = result.plot()
    assert len(drawn.axes) == 6
    pixels = drawn.axes[3].get_images()[0].get_array()
    assert pixels.shape[2] == 3
    assert np.ptp(pixels) > 100
    for name, call in [("pandas", "table"), ("matplotlib", "plot")]:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UsageError, match=r'E158.*pip install "regweave\[notebook\]"'):
            getattr(result, call)()


def test_the_page_is_one_file_and_errors_name_arguments(result, tmp_path, monkeypatch):
    page = result.report(tmp_path / "page.html")
    assert "<title>" in page.read_text(encoding="utf-8")
    with pytest.raises(RegweaveError, match=r"E150.*overwrite=True"):
        result.report(page)
    result.report(page, overwrite=True)
    result.save(tmp_path / "out")
    with pytest.raises(RegweaveError, match=r"E150.*overwrite=True") as error:
        result.save(tmp_path / "out")
    assert re.search(r"--overwrite|-o\b", str(error.value)) is None
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    result.show()
    assert opened[0].startswith("file://")
    assert opened[0].endswith("report.html")
