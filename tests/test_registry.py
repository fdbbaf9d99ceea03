"""Plug-ins: from the package, a folder, an installed package or the program; one name is one plug-in."""

import os
from pathlib import Path

import numpy as np
import pytest

from regweave import engines, losses, metrics
from regweave.config.settings import Member, preset, validate
from regweave.errors import UsageError
from regweave.registration.cpu import PENALTIES
from regweave.registry import FOLDERS, fingerprint, plugins_found
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Energy, Geometry

LINE = np.array([0.0, 1.0])
TWO_NODES = Energy(np.array([[0.0, 1.0], [0.2, 0.0]]), (2, 1, 1), (LINE, LINE[:1], LINE[:1]), weight=3.0)

METRIC = """
from pydantic import Field
from regweave import metrics
from regweave.metrics.sad import cost, features, volume

class Options(metrics.Options):
    gamma: float = Field(default=1.0, ge=0, le=2)
"""
ENGINE = """
from regweave.engines import Options, icm

def minimize(energy, init, options):
    return icm.minimize(energy, init, icm.Options(max_iter=options.max_iter))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of plug-ins that the user names."""
    for kind, name, text in (("metrics", "curved", METRIC), ("engines", "again", ENGINE), ("losses", "_part", "x")):
        place = tmp_path / "mine" / kind / f"{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    monkeypatch.setenv(FOLDERS, str(tmp_path / "mine"))
    return tmp_path / "mine"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An installed package, as far as an interpreter can tell: a module and its metadata on the path."""
    site = tmp_path / "site"
    info = site / "regweave_curves-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: regweave-curves\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[regweave.metrics]\nbent = regweave_curves\n", encoding="utf-8")
    (site / "regweave_curves.py").write_text(METRIC, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    return site


def bank(*members: dict) -> dict:
    return {**preset("default").model_dump(mode="json"), "banks": {"mr": list(members)}}


def test_folders_that_the_user_names(folder, monkeypatch, tmp_path):
    assert "curved" in metrics.available()
    assert "_part" not in losses.available()
    assert metrics.get("curved").Options().gamma == 1.0
    assert engines.solver("again", max_iter=2)(TWO_NODES).labels.tolist() == [1, 1]
    settings = validate(bank({"name": "c", "metric": "curved", "options": {"gamma": 2}}), "a test")
    assert settings.banks["mr"][0].metric_options.gamma == 2
    assert metrics.registry.origin("curved").record() == {"from": "curved.py", "distribution": None, "version": None}
    assert plugins_found()["engines"] == {"again": str(folder / "engines" / "again.py")}
    monkeypatch.delenv(FOLDERS)
    assert "curved" not in metrics.available()
    with pytest.raises(UsageError, match="E181: unknown metric 'curved'; available: "):
        metrics.get("curved")
    monkeypatch.setenv(FOLDERS, os.pathsep.join([str(tmp_path), str(tmp_path / "gone")]))
    with pytest.raises(UsageError, match=r"E179: REGWEAVE_PLUGINS names '.*gone', which is no folder"):
        metrics.available()


def test_options_and_faults_of_a_plug_in_are_named(folder):
    wrong = "gamma: Input should be less than or equal to 2, found 3"
    for options, words in (({"gamma": 3}, wrong), ({"beta": 1}, "options are: gamma")):
        with pytest.raises(UsageError, match=f"E185: .*options of metric 'curved': .*{words}"):
            validate(bank({"name": "c", "metric": "curved", "options": options}), "a test")
    for text, words in [
        ("1 / 0", "does not load: ZeroDivisionError"),
        ("import sys; sys.exit(0)", "does not load: SystemExit"),
        ("def cost(): ...", "lacks Options, features, volume"),
    ]:
        (folder / "metrics" / "broken.py").write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=rf"E179: metric 'broken' from .*broken\.py {words}"):
            metrics.get("broken")
    (folder / "metrics" / "bent.py").write_text(METRIC + "PENALTY = 'absolut'\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"E179: PENALTY of metric 'bent' from .*'absolut'; allowed: absolute, corr"):
        metrics.get("bent")
    assert set(metrics.PENALTIES) == set(PENALTIES)


def test_an_entry_point_of_a_package(package):
    origin = metrics.registry.origin("bent")
    assert (origin.distribution, origin.version) == ("regweave-curves", "1.2")
    assert str(origin) == "package regweave-curves 1.2"
    assert metrics.get("bent").Options().gamma == 1.0
    settings = validate(bank({"name": "b", "metric": "bent"}), "a test")
    assert settings.plugins() == {
        "metrics/bent": {"from": "regweave_curves", "distribution": "regweave-curves", "version": "1.2"}
    }


def test_two_of_one_name_are_an_error_and_not_a_choice(folder, package):
    (folder / "metrics" / "bent.py").write_text(METRIC, encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"E179: two plug-ins are called 'bent': .*bent.py and package regweave-curves"
    ):
        metrics.get("bent")
    (folder / "metrics" / "sad.py").write_text(METRIC, encoding="utf-8")
    with pytest.raises(UsageError, match="E179: two plug-ins are called 'sad': regweave and "):
        metrics.get("sad")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("gone")])
def test_a_plug_in_that_is_no_file_is_refused_and_not_opened(folder, make):
    make(folder / "metrics" / "odd.py")
    for look in (metrics.available, fingerprint, lambda: metrics.get("odd"), lambda: preset("default")):
        with pytest.raises(UsageError, match=r"E179: the plug-in '.*odd\.py' is no regular file"):
            look()


@pytest.fixture
def nothing_stays():
    yield
    for registry in (metrics.registry, engines.registry):
        registry._added.clear()


@pytest.mark.usefixtures("nothing_stays")
def test_a_function_is_a_metric_of_intensities():
    def squared(fixed, moved, grid):
        return grid.pool(((fixed - moved) ** 2).mean(axis=0))

    member = Member(name="mine", metric=squared)
    metric, options = metrics.get(member.metric), member.metric_options
    image = np.random.default_rng(0).random((12, 12, 12), dtype=np.float32)
    grid = ControlGrid.cover(Geometry(image.shape, np.eye(4)), 5.0, None)
    f = metric.features(image, options)
    costs = metric.volume(f, f, grid, (np.array([-1.0, 0.0]), np.zeros(1), np.zeros(1)), options)
    assert costs.shape == (grid.n_nodes, 2)
    assert costs[:, 1].max() == 0
    assert (costs[:, 0] > 0).all()
    assert metrics.add("squared", squared) == "squared"  # again the same is no error
    with pytest.raises(UsageError, match="E179: metric 'sad' is there already, from regweave"):
        metrics.add("sad", squared)


@pytest.mark.usefixtures("nothing_stays")
def test_an_object_is_an_engine():
    class Mine:
        Options = engines.Options

        def minimize(self, energy, init, options):
            return engines.solver("icm")(energy, init, options.max_iter)

    engines.add("mine", Mine())
    assert engines.solver("mine", max_iter=3)(TWO_NODES).labels.tolist() == [1, 1]
