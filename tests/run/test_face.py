"""The public names: what they are, and that they do in memory what the command does."""

import dataclasses
import inspect
import io
import json
import re
import sys
import types
import warnings

import numpy as np
import pytest

import regweave as rw
from made_pairs import write_pair
from phantoms import make_phantom
from regweave import progress
from regweave.cli import main
from regweave.cli.app import load_command
from regweave.errors import UsageError
from regweave.io.images import read_image, read_labels
from regweave.progress import Bar, StagedBar
from regweave.run.read import Reading
from regweave.run.warp import GridWords

NAMES = {
    "Field", "Geometry", "Image", "LabelMap", "MetricLearner", "Model", "Progress", "RegweaveError", "RegweaveWarning",
    "Result", "Settings", "Transform", "Volume", "WeightTable", "__version__", "batch", "bids", "build_atlas",
    "build_template", "evaluate",
    "evaluate_atlas", "examples", "load",
    "measure", "models", "preset", "preset_names", "propagate_contours", "realign", "register", "segment", "TimeSeries",
    "train", "warp", "warp_labels", "warp_points",
}  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    return make_phantom(shape=(22, 20, 18), spacing_mm=(9.0, 9.0, 9.0), seed=4).pair


@pytest.fixture(scope="module")
def tiny(training_list):
    return training_list.settings


@pytest.fixture(scope="module")
def result(pair, tiny):
    fixed, moving = rw.Image.of(pair.fixed, pair.fixed_labels), rw.Image.of(pair.moving, pair.moving_labels)
    return rw.register(fixed, moving, config=tiny)


def test_the_names_are_these_and_no_others():
    assert set(rw.__all__) == NAMES
    assert dir(rw) == sorted(rw.__all__)
    for name in rw.__all__:
        assert getattr(rw, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'regster'"):
        rw.regster  # noqa: B018


def test_functions_have_the_words_of_the_command():
    """Each option is an argument of the same name, but for those that only a command line has."""
    only_there = {
        "from", "help", "json", "quiet", "strict", "verbose", "no_report", "overwrite", "tls_ca", "tls_cert", "tls_key",
        "wait_for_workers", "pairs",
    }  # fmt: skip
    renamed = {"metric": "metrics", "c": "C", "no_gate": "gate", "predictor_option": "predictor_options"}
    renamed |= {"guide_names": "guide"}
    # One word of `register` is two arguments, one for each image.
    own = {"evaluate": {"pages"}, "register": {"output", "write", "page_detail", "series"}}
    for command in ("register", "batch", "train", "evaluate"):
        arguments = set(inspect.signature(getattr(rw, command)).parameters)
        options = {p.opts[0].lstrip("-").replace("-", "_") for p in load_command(command).params}
        here = renamed | ({"model": "models"} if command == "evaluate" else {})
        wanted = {here.get(name, name) for name in options - only_there - own.get(command, set())}
        assert wanted - arguments == set(), command


def test_an_image_brings_its_mask_and_its_labels(pair, tiny, result):
    fixed, moving = (rw.Volume(v.data, v.geometry) for v in (pair.fixed, pair.moving))
    inside = np.zeros(fixed.data.shape, dtype=np.uint8)
    inside[:, 3:-3] = 1
    mask = rw.LabelMap(inside, fixed.geometry)
    named = rw.register(fixed, moving, fixed_mask=mask, config=tiny)
    carried = rw.register(rw.Image.of(fixed, mask=mask), moving, config=tiny)
    assert np.array_equal(named.transform.field.data, carried.transform.field.data)
    assert not np.array_equal(named.transform.field.data, result.transform.field.data)
    apart = rw.register(
        pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, config=tiny
    )
    assert result.mean_dice == apart.mean_dice
    np.testing.assert_array_equal(result.transform.field.data, apart.transform.field.data)


def test_words_about_reading_and_rules_reach_the_files(pair, tiny, tmp_path):
    files = write_pair(tmp_path, pair)
    (tmp_path / "names.json").write_text('{"1": "brain stem"}')
    found = rw.register(**files, config=tiny, label_names=tmp_path / "names.json", classes=(1,))
    assert [row["name"] for row in found.structures()] == ["brain stem"]
    with pytest.raises(TypeError, match="label_nmes"):
        rw.register(**files, label_nmes="x")
    (tmp_path / "strict.toml").write_text('name = "strict"\n[least_jacobian]\nfail = 100.0\n')
    found = rw.register(pair.fixed, pair.moving, config=tiny, rules=tmp_path / "strict.toml")
    assert found.verdict.word == "fail"
    assert found.verdict.rules == "strict"
    with pytest.raises(rw.RegweaveError, match="E189"):
        rw.register(pair.fixed, pair.moving, config=tiny, preset="default")


def test_warp_does_what_the_command_does(pair, result, tmp_path):
    result.save(tmp_path / "out", write=["transform", "inverse"])
    files = {name: str(path) for name, path in write_pair(tmp_path, pair).items()}
    there, back = str(tmp_path / "out" / "transform.h5"), str(tmp_path / "out" / "inverse.h5")
    labels_to = ["-t", back, "-r", files["moving"], "-o", str(tmp_path / "l.nii")]
    image_to = ["-t", there, "-r", files["fixed"], "-o", str(tmp_path / "w.nii")]
    assert main(["warp", "image", files["moving"], *image_to]) == 0
    by_command = read_image(tmp_path / "w.nii").data
    for transform in (there, result.transform, result):
        for reference in (pair.fixed, files["fixed"], None):
            warped = rw.warp(files["moving"], transform, reference)
            np.testing.assert_allclose(warped.data, by_command, atol=1e-3 * np.ptp(by_command))
            np.testing.assert_allclose(warped.geometry.affine, pair.fixed.geometry.affine)
    assert main(["warp", "labels", files["fixed_labels"], *labels_to]) == 0
    labels = rw.warp_labels(pair.fixed_labels, result.inverse, pair.moving)
    assert (labels.data == read_labels(tmp_path / "l.nii").data).mean() > 0.9999
    with pytest.raises(rw.RegweaveError, match="E117"):
        rw.warp(pair.moving, result.inverse, pair.fixed, to="fixed")
    assert set(GridWords.__annotations__) == {"to", "other_grid", "whole_scan", "nifti_frame", "follow_links"}


def test_warp_on_a_grid_of_another_resolution(pair, result):
    coarse = rw.Geometry((11, 10, 9), pair.fixed.geometry.affine @ np.diag([2.0, 2.0, 2.0, 1.0]))
    reference = rw.Volume(np.arange(990, dtype=np.float32).reshape(11, 10, 9), coarse)
    with pytest.raises(rw.RegweaveError, match="E118"):
        rw.warp(pair.moving, result, reference)
    warped = rw.warp(pair.moving, result, reference, other_grid=True)
    np.testing.assert_allclose(warped.data, rw.warp(pair.moving, result).data[::2, ::2, ::2], atol=1e-2)


def test_warnings_follow_the_filters_of_python(pair, tiny):
    holes = pair.fixed.data.copy()
    holes[0, 0, 0] = np.nan
    fixed = (holes, np.diag([-1.0, -1.0, 1.0, 1.0]) @ pair.fixed.geometry.affine)
    with pytest.warns(rw.RegweaveWarning, match="W205"):
        rw.register(fixed, pair.moving, config=tiny, nonfinite="mask")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="W205", category=rw.RegweaveWarning)
        found = rw.register(fixed, pair.moving, config=tiny, nonfinite="mask")
    assert any(text.startswith("W205") for text in found.warnings)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_drawn_on_a_terminal_and_wiped_and_not_in_a_pipe(pair, tiny, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    rw.register(pair.fixed, pair.moving, config=tiny)
    drawn = sys.stderr.getvalue()
    assert "━" in drawn
    assert drawn.rsplit("\n", 1)[-1].endswith("\r")
    assert max(len(part) for line in drawn.splitlines() for part in line.split("\r")) <= 79
    for silent in ({"progress": False}, {"on_progress": lambda _: None}):
        monkeypatch.setattr(sys, "stderr", Terminal())
        rw.register(pair.fixed, pair.moving, config=tiny, **silent)
        assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with StagedBar() as bar:
        bar(rw.Progress("begin", 0, 2, "CT"))
        bar(rw.Progress("levels", 1, 2, "step"))
    assert sys.stderr.getvalue() == ""
    with Bar(lines=True) as log:
        log.draw(0.5, "not shown", line="[1/2] shown")
    assert sys.stderr.getvalue() == "[1/2] shown\n"


def test_models_and_their_repr():
    shipped = rw.models()
    assert sorted(shipped) == ["head-neck-ct", "hippocampus-t1"]
    assert repr(shipped["hippocampus-t1"]).startswith("Model for MR: anterior, posterior; members ")
    assert len(repr(shipped["hippocampus-t1"])) < 200
    cards = str(shipped)
    assert "weights CC BY-SA 4.0, training data CC BY-SA 4.0" in cards
    assert "weights MIT, training data MIT" in cards
    assert max(map(len, cards.splitlines())) <= 80


def test_a_wrong_keyword_or_name_of_a_label_is_refused(pair, result):
    for function, word, near in [
        (rw.register, "metrc", "metrics"),
        (rw.batch, "presett", "preset"),
        (rw.train, "clases", "classes"),
        (rw.register, "labels_names", "label_names"),
    ]:
        with pytest.raises(
            TypeError, match=rf"{function.__name__}\(\) has no argument '?{word}'?; did you mean '{near}'"
        ):
            function("a", "b", **{word: 1})
    for wrong in ({}, {1.5: "a"}, {True: "a"}, {1: 2}, {1: " "}, {"x": "a"}, ["a"], 3, {1: "a", "1": "b"}):
        with pytest.raises(UsageError, match="E142: label_names is"):
            rw.register("a", "b", label_names=wrong)
        with pytest.raises(UsageError, match="E142: label_names is"):
            rw.warp_labels(pair.moving_labels, result, label_names=wrong)


def test_names_of_labels_as_a_mapping(pair, tiny, tmp_path):
    names = {1: "anterior", "2": "posterior"}
    plain = [dataclasses.replace(labels, names={}) for labels in (pair.fixed_labels, pair.moving_labels)]
    found = rw.register(
        pair.fixed, pair.moving, fixed_labels=plain[0], moving_labels=plain[1], config=tiny, label_names=names
    )
    assert [row["name"] for row in found.structures()][:2] == ["anterior", "posterior"]
    found.save(tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "result.json").read_text())["provenance"]["call"]["reading"]
    assert kept["label_names"] == {"1": "anterior", "2": "posterior"}
    assert Reading.from_json(kept).label_names == {1: "anterior", 2: "posterior"}
    assert rw.warp_labels(plain[1], found, label_names=names).name(1) == "anterior"


def test_examples_are_the_same_each_time():
    one, again, other = (rw.examples.pair(seed, voxel_mm=12.0) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.moving.data, again.moving.data)
    assert not np.array_equal(one.moving.data, other.moving.data)
    assert one.fixed_labels.name(4) == "left parotid"
    assert rw.examples.pair(kind="chest", voxel_mm=15.0).moving_labels.name(1) == "left lung"


def test_transforms_of_sitk_and_images_for_ants(pair, result, monkeypatch):
    back = rw.Transform.from_sitk(result.transform.to_sitk(), pair.fixed.geometry)
    points = pair.fixed.geometry.points(np.array([[9.0, 9.0, 8.0]]))
    np.testing.assert_allclose(back(points), result.transform(points), atol=1e-3)
    with pytest.raises(rw.RegweaveError, match="E115"):
        rw.Transform.from_sitk("no transform")
    monkeypatch.setitem(sys.modules, "ants", None)
    with pytest.raises(UsageError, match=r"E158.*antspyx"):
        pair.fixed.to_ants()
    taken = types.SimpleNamespace(from_numpy=lambda *parts: parts)
    monkeypatch.setitem(sys.modules, "ants", taken)
    data, origin, spacing, direction = pair.moving_labels.to_ants()
    assert data.dtype == np.uint8
    place = np.array(direction) @ np.diag(spacing)
    np.testing.assert_allclose(np.c_[place, origin], pair.moving.geometry.affine[:3], atol=1e-9)


def test_a_notebook_keeps_one_line(pair, tiny, monkeypatch):
    """Each drawing replaces the same output of the cell; nothing goes to standard error."""
    outputs = []

    class Handle:
        def update(self, content, raw):
            outputs[-1] = content["text/plain"]

    def display(content, raw, display_id):
        outputs.append(content["text/plain"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    rw.register(pair.fixed, pair.moving, config=tiny)
    assert len(outputs) == 1
    assert re.fullmatch(r"MR · start none · no model · \d+:\d\d", outputs[0])
    assert sys.stderr.getvalue() == ""


@pytest.mark.usefixtures("in_process")
def test_train_and_evaluate_in_memory(training_list, tmp_path, monkeypatch, capsys):
    """Images from memory give what their files give, and nothing is left on disk."""
    monkeypatch.chdir(tmp_path)
    files = [training_list.files(n) for n in range(3)]
    read = {"fixed": read_image, "moving": read_image, "fixed_labels": read_labels, "moving_labels": read_labels}
    memory = [tuple(read[name](path) for name, path in of_pair.items()) for of_pair in files]
    words = {"config": training_list.settings, "workers": 1}
    rows = [{"id": f"pair{n}", **f} for n, f in enumerate(files)]
    from_files, from_memory = rw.evaluate(rows, **words), rw.evaluate(memory, **words)
    dice = [[row["dice_after"] for row in found.rows()] for found in (from_files, from_memory)]
    assert dice[0] == dice[1]
    assert list(tmp_path.iterdir()) == []
    assert repr(from_memory) == "Evaluation(3 pairs, 1 methods, 0 failed)"
    assert re.search(r"^preset:tiny +0\.\d{3} +0\.\d{3} +3 +0$", str(from_memory), re.MULTILINE)
    pandas = pytest.importorskip("pandas")
    assert isinstance(from_memory.table(), pandas.DataFrame)
    assert set(from_memory.table()["id"]) == {"pair0", "pair1", "pair2"}
    quick = {"method": "global", "C": 20.0, "alpha": 1.0, "eta": 3.0, "epsilon": 0.1, "folds": 2, "effort": "smoke"}
    capsys.readouterr()
    model = rw.train(memory, **words, **quick)
    said = capsys.readouterr().err
    assert "tune: " in said
    assert re.search(r"^  \d+/\d+ registrations", said, re.MULTILINE)
    rw.train(memory, **words, **quick, progress=False)
    assert capsys.readouterr().err == ""
    assert isinstance(model, rw.Model)
    assert list(tmp_path.iterdir()) == []
    judged = rw.evaluate(memory[:1], models=[model], workers=1, allow_leak=True)
    assert judged.methods[0].name == "model:model1"
    with pytest.raises(TypeError, match="etha"):
        rw.train(memory, etha=3.0)
