"""Landmarks that guide, from files to the record: parts of the points, the same bits again, and wrong input."""

import json

import numpy as np
import pytest

from made_pairs import small_settings
from phantoms import make_phantom
from regweave import notices
from regweave.errors import RegweaveError
from regweave.io import write_points
from regweave.io.write import write_image
from regweave.measures.landmarks import LandmarkPairs
from regweave.report.registration import write_page
from regweave.run.job import recorded_call
from regweave.run.register import register
from regweave.run.result import load
from regweave.spatial.warp import warp_points
from regweave.types import Transform

SETTINGS = small_settings((48.0, 2, 2), refine=2)
SHAPE = (24, 22, 20)


@pytest.fixture(scope="module")
def phantom():
    return make_phantom(seed=3, shape=SHAPE, spacing_mm=(8.0, 8.0, 8.0))


@pytest.fixture(scope="module")
def points(phantom):
    """Twelve corresponding points, by the deformation that made the phantom."""
    index = np.random.default_rng(0).uniform(4, np.array(SHAPE) - 5.0, (12, 3))
    fixed = phantom.pair.fixed.geometry.points(index)
    return fixed, warp_points(fixed, Transform(phantom.true_field))


@pytest.fixture(scope="module")
def files(phantom, points, tmp_path_factory):
    folder = tmp_path_factory.mktemp("points")
    paths = {name: folder / f"{name}.nii.gz" for name in ("fixed", "moving")}
    write_image(paths["fixed"], phantom.pair.fixed)
    write_image(paths["moving"], phantom.pair.moving)
    paths |= {name: folder / f"{name}.csv" for name in ("fixed_points", "moving_points")}
    names = [f"P{n}" for n in range(12)]
    rows = [
        f"{','.join(map(repr, p))},{name},{int(n < 8)}"
        for n, (p, name) in enumerate(zip(points[0].tolist(), names, strict=True))
    ]
    paths["fixed_points"].write_text("\n".join(["x_lps,y_lps,z_lps,label,guide", *rows]) + "\n")
    write_points(paths["moving_points"], points[1], names)
    return paths


@pytest.fixture(scope="module")
def guided(files):
    return register(**files, config=SETTINGS, guide_points=0.1)


def errors(result, points, which):
    fixed, moving = (p[which] for p in points)
    return np.linalg.norm(warp_points(fixed, result.transform) - moving, axis=1)


def test_guiding_points_are_met_and_others_gain(files, guided, points):
    alone = register(**files, config=SETTINGS)
    assert errors(guided, points, slice(8)).max() < 0.3
    assert errors(guided, points, slice(8, 12)).mean() < errors(alone, points, slice(8, 12)).mean()
    assert guided.regularity["folding_fraction"] == 0
    assert guided.inverse_consistency_mm["mean"] < 2 * alone.inverse_consistency_mm["mean"]


def test_guiding_and_judging_points_are_apart(guided, files, tmp_path):
    score = guided.landmarks
    assert [p.guides for p in score.points] == [True] * 8 + [False] * 4
    assert score.after_mm["max"] == max(p.after_mm for p in score.points[8:])
    assert score.words().startswith("12 landmarks (8 guided, numbers of the others): mean")
    guided.save(tmp_path / "out")
    again = load(tmp_path / "out")
    assert again.landmarks == score
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "8 guided, numbers of the others" in page
    write_page(tmp_path / "out", landmarks=LandmarkPairs.read(files["fixed_points"], files["moving_points"]))
    assert [p.guides for p in load(tmp_path / "out").landmarks.points] == [True] * 8 + [False] * 4


def test_points_that_all_guide_judge_nothing(phantom, points):
    pair = phantom.pair
    rules = {"fixed_points": points[0], "moving_points": points[1], "config": SETTINGS}
    guided = register(pair.fixed, pair.moving, guide_points=0.1, **rules)
    alone = register(pair.fixed, pair.moving, **rules)
    assert "landmark_mean_mm" in guided.verdict.unchecked
    assert "landmark_mean_mm" not in alone.verdict.unchecked
    assert "all guided, which proves nothing" in guided.landmarks.words()
    assert guided.provenance.inputs["fixed_points"].path is None


def test_the_record_gives_the_same_bits(guided, files, tmp_path):
    guided.save(tmp_path / "out", write=["transform"])
    record = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert record["provenance"]["call"]["guide_points"] == 0.1
    again = register(**recorded_call(tmp_path / "out"))
    assert np.array_equal(again.transform.field.data, guided.transform.field.data)
    text = files["moving_points"].read_text()
    other = tmp_path / "moved.csv"
    other.write_text(text.replace("P3", "P03"))
    with pytest.raises(RegweaveError, match="E174: the moving points"):
        recorded_call(tmp_path / "out", moving_points=other)


def test_accuracies_and_columns_that_mean_nothing_are_refused(phantom, points, tmp_path):
    for accuracy in [0, -1.0, float("nan"), float("inf"), 1e300, True, "1"]:
        with pytest.raises(RegweaveError, match=r"E116: guide_points is"):
            register(
                phantom.pair.fixed, phantom.pair.moving, config=SETTINGS, guide_points=accuracy,
                fixed_points=points[0], moving_points=points[1],
            )  # fmt: skip
    for cells, message in [
        ("1-1", "its column guide holds ''"),
        ("1x1", "its column guide holds 'x'"),
        ("000", "none of the 0 landmarks"),
    ]:
        rows = [f"{x},{y},{z},{cell.strip('-')}" for (x, y, z), cell in zip(points[0][:3].tolist(), cells, strict=True)]
        (tmp_path / "f.csv").write_text("\n".join(["x_lps,y_lps,z_lps,guide", *rows]) + "\n")
        write_points(tmp_path / "m.csv", points[1][:3])
        with pytest.raises(RegweaveError, match=f"E116: .*{message}"), notices.muted():
            register(
                phantom.pair.fixed, phantom.pair.moving, config=SETTINGS, guide_points=1.0,
                fixed_points=tmp_path / "f.csv", moving_points=tmp_path / "m.csv",
            )  # fmt: skip


def test_points_that_cannot_guide_are_refused(phantom, points):
    def run(fixed, moving):
        given = {"fixed_points": fixed, "moving_points": moving, "guide_points": 1.0}
        return register(phantom.pair.fixed, phantom.pair.moving, config=SETTINGS, **given)

    fixed, moving = points
    with pytest.raises(RegweaveError, match="E116: landmarks of the fixed image are missing"):
        run(None, None)
    with pytest.raises(RegweaveError, match="E116: landmarks of the moving image are missing"):
        run(fixed, None)
    with pytest.raises(RegweaveError, match=r"E116: landmarks have shapes \(12, 3\) and \(11, 3\)"):
        run(fixed, moving[:-1])
    with pytest.raises(RegweaveError, match="E116: landmarks hold numbers that are not finite"):
        run(np.where(np.arange(36).reshape(12, 3) == 7, np.nan, fixed), moving)
    with pytest.raises(RegweaveError, match="E116: none of the 12 landmarks that are to guide lies inside both"):
        run(fixed + 5000, moving)
    outside, shifted = fixed.copy(), moving.copy()
    outside[0, 2] += 5000
    shifted[5] += 60.0
    with notices.muted():
        found = run(outside, shifted)
    assert any("W220: landmarks that do not guide: 1 (outside an image), 6 (" in text for text in found.warnings)
    assert [n for n, p in enumerate(found.landmarks.points) if not p.guides] == [0, 5]
