import json
import re
import shutil

import numpy as np
import pytest

from made_pairs import small_settings
from phantoms import make_phantom
from regweave.cli import main
from regweave.errors import RegweaveError
from regweave.io.points import write_points
from regweave.measures.landmarks import LandmarkPairs
from regweave.report import registration
from regweave.report.registration import registration_page, write_page
from regweave.report.viewer import Viewer
from regweave.run.register import register
from regweave.run.result import Images, load
from regweave.types import Field, Geometry, Image, ImagePair, Transform, Volume


@pytest.fixture
def copy(result_folder, tmp_path):
    return shutil.copytree(result_folder, tmp_path / "copy")


def embedded(page: str, name: str):
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', page).group(1))


def test_report_makes_the_same_page_again_and_an_old_one_survives_a_failure(copy, capsys, monkeypatch):
    page = copy / "report.html"
    first = page.read_bytes()
    page.unlink()
    assert main(["report", str(copy)]) == 0
    assert page.read_bytes() == first
    assert "report.html" in capsys.readouterr().out

    def fail(*_, **__):
        raise KeyboardInterrupt

    before = (copy / "report.html").read_bytes()
    monkeypatch.setattr(registration, "registration_page", fail)
    with pytest.raises(KeyboardInterrupt):
        write_page(copy)
    assert (copy / "report.html").read_bytes() == before
    assert not list(copy.glob(".*part*"))


def test_the_page_follows_the_json(copy):
    content = json.loads((copy / "result.json").read_text())
    content["structures"][1]["hd95_mm"] = 123.45
    content["structures"][2].update(state="vanished", dice_after=0.0, volume_after_ml=0.0)
    content["structures"][3].update(
        state="no reference", volume_fixed_ml=0.0, dice_before=None, dice_start=None, dice_after=None
    )
    (copy / "result.json").write_text(json.dumps(content))
    text = write_page(copy).read_text(encoding="utf-8")
    assert "123.45" in text
    assert "✗ vanished" in text
    assert "no fixed contour" in text
    assert re.search(r"vanished \(1 not scored\).*?<b>1 of 5</b>", text, flags=re.DOTALL)


def test_damaged_and_missing_files_are_named(copy, tmp_path, capsys):
    for name in ("view/fixed.nii.gz", "warped.nii.gz", "view/nodes.npz", "view/view.json", "result.json"):
        path = copy / name
        whole = path.read_bytes()
        path.write_bytes(whole[:40])
        with pytest.raises(RegweaveError, match="E102") as caught:
            write_page(copy)
        assert name.split("/")[-1] in str(caught.value)
        path.write_bytes(whole)
    shutil.rmtree(copy / "view")
    for folder in (copy, tmp_path):  # without its view; no result at all
        assert main(["report", str(folder)]) == 3
        assert "E198" in capsys.readouterr().err


def test_numbers_of_the_record_are_on_the_page(result_folder):
    record = json.loads((result_folder / "result.json").read_text())
    text = (result_folder / "report.html").read_text(encoding="utf-8")
    for digest in record["provenance"]["inputs_sha256"].values():
        assert digest in text
    for step in record["steps"]:
        assert f"{step['energy']:.4f}" in text
        assert f"{step['lower_bound']:.4f}" in text
    assert f"{record['inverse_consistency_mm']['p95']:.3f} mm" in text
    assert f"{record['structures'][0]['assd_mm']:.2f}" in text
    result = load(result_folder)
    length = np.sqrt((result.transform.field.data.astype(float) ** 2).sum(axis=0))
    inside = length[result.images.fixed_labels.data == record["structures"][0]["label"]]
    assert f"{inside.mean():.1f} · {inside.max():.1f}</td>" in text


def test_volumes_on_the_page_are_those_of_the_files(result_folder, monkeypatch):
    result = load(result_folder)
    shown = Viewer(result, result_folder)
    images = {"fixed": result.fixed, "moving": result.images.before, "warped": result.warped}
    maps = {"fixed": result.images.fixed_labels, "before": result.images.labels_before, "after": result.warped_labels}
    # The phantom's grid runs along the body's axes, so nothing is turned; what lies around the body is cropped.
    (x, y, z), voxels = shown.display.box, result.fixed.data.shape
    part = tuple(slice(*ends) for ends in (x, y, z))
    assert shown.display.geometry.shape == result.fixed.data[part].shape
    assert all(n > 0.6 * whole for n, whole in zip(shown.display.geometry.shape, voxels, strict=True))
    for name in ("fixed", "moving", "warped"):
        table = shown.tables["fixed" if name == "fixed" else "moving"]
        error = np.abs(table[shown.codes[name]] - images[name].data[part])
        assert error.mean() < 0.005 * np.ptp(images[name].data)
    for name, codes in shown.labels.items():
        np.testing.assert_array_equal(codes, maps[name].data[part])  # labels 1 to 6 are codes 1 to 6
    monkeypatch.setitem(registration.BUDGETS, "small", 6000)
    found = load(result_folder)
    text = registration_page(found, Viewer(found, result_folder, registration.BUDGETS["small"]), result_folder)
    assert "reduced from" in text
    assert np.prod(embedded(text, "view-data")["shape"]) <= 6000


@pytest.mark.slow
def test_a_page_of_128_cubed_voxels_of_noise_stays_below_15_mb(result_folder):
    rng = np.random.default_rng(0)
    shape = (128, 128, 128)
    geometry = Geometry(shape, np.diag([2.0, 2.0, 2.0, 1.0]))
    transform = Transform(Field(rng.normal(size=(3, *shape)).astype(np.float32), geometry), np.eye(4))
    fixed, moving, warped = (Volume(rng.normal(size=shape).astype(np.float32), geometry) for _ in range(3))
    images = Images.made(transform, transform, warped, None, ImagePair(Image.of(fixed), Image.of(moving)))
    noise = load(result_folder).model_copy(update={"images": images})
    size = len(registration_page(noise, Viewer(noise, result_folder), result_folder).encode())
    assert 8e6 < size < 15e6  # nothing compresses here: scans are smaller


def test_a_result_without_labels_has_a_page(result_folder, tmp_path):
    folder = shutil.copytree(result_folder, tmp_path / "plain")
    for path in ("view/fixed_labels.nii.gz", "view/moving_labels.nii.gz", "warped_labels.nii.gz"):
        (folder / path).unlink()
    record = json.loads((folder / "result.json").read_text())
    record.update(dice={}, mean_dice={}, structures=[])
    for name in ("fixed_labels", "moving_labels"):
        del record["provenance"]["inputs"][name]
    (folder / "result.json").write_text(json.dumps(record))
    text = write_page(folder).read_text(encoding="utf-8")
    assert "no labels" in text
    assert "whole image" in text
    assert "<h2>Structures</h2>" not in text


def test_landmarks_are_on_the_page_and_stay_with_a_saved_result(copy, tmp_path, capsys):
    """Points that the transform itself gives have no error left; the page of a finished result shows new ones."""
    result = load(copy)
    fixed = contents_points(copy)
    write_points(tmp_path / "f.mrk.json", fixed, ["carina", "spinous"])
    write_points(tmp_path / "m.mrk.json", result.warp_points(fixed), ["carina", "spinous"])
    words = ["--fixed-points", str(tmp_path / "f.mrk.json"), "--moving-points", str(tmp_path / "m.mrk.json")]
    assert main(["report", str(copy), *words, "--page-detail", "small"]) == 0
    record = json.loads((copy / "result.json").read_text())
    assert record["landmarks"]["after_mm"]["max"] == pytest.approx(0.0, abs=1e-3)
    assert record["verdict"]["unchecked"] == []
    text = (copy / "report.html").read_text(encoding="utf-8")
    assert re.search(r"Target registration error of 2 landmarks.*?<b>0.00 mm</b>", text, flags=re.DOTALL)
    marks = embedded(text, "view-data")["landmarks"]
    assert [m["name"] for m in marks] == ["carina", "spinous"]
    assert marks[0]["after"] == pytest.approx(marks[0]["fixed"], abs=0.2)
    scored = result.with_landmarks(LandmarkPairs.read(tmp_path / "f.mrk.json", tmp_path / "m.mrk.json"))
    scored.save(tmp_path / "again")
    assert load(tmp_path / "again").landmarks.after_mm["max"] == pytest.approx(0.0, abs=1e-3)
    assert "spinous" in (tmp_path / "again" / "report.html").read_text(encoding="utf-8")
    assert main(["report", str(copy), *words[:2]]) == 2
    assert "E116" in capsys.readouterr().err


def contents_points(folder):
    """Two places inside the fixed image."""
    geometry = load(folder).fixed.geometry
    return geometry.points(np.array([[10.0, 12.0, 14.0], [20.0, 16.0, 9.0]]))


def test_a_page_from_memory_shows_what_the_page_of_the_folder_shows(tmp_path):
    pair = make_phantom(seed=2, shape=(20, 20, 20), spacing_mm=(9.0, 9.0, 9.0)).pair
    result = register(pair.fixed, pair.moving, config=small_settings((48.0, 1, 1)))
    result.save(tmp_path / "saved")
    pages = [result.report(tmp_path / "memory.html"), write_page(tmp_path / "saved")]
    memory, saved = (embedded(page.read_text(encoding="utf-8"), "view-data") for page in pages)
    for data in (memory, saved):  # files hold the places of voxels as 32-bit numbers
        for name in ("affine", "spacing", "start", "view", "tile"):
            data[name] = np.round(data[name], 3).tolist()
    assert memory == saved
