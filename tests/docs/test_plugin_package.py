"""The package of the how-to: installed as far as an interpreter can tell, it registers a pair."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import regweave as rw
from phantoms import make_phantom
from regweave import metrics


@pytest.fixture
def package(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "add-metric.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', page, flags=re.DOTALL))
    project = tomllib.loads(blocks["regweave-cubes/pyproject.toml"])["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    groups = (
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
        for group, points in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    (tmp_path / "regweave_cubes.py").write_text(blocks["regweave-cubes/regweave_cubes.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return project


def test_the_package_of_the_page_registers_a_pair(package, tmp_path):
    assert str(metrics.registry.origin("cubes")) == "package regweave-cubes 0.3"
    found = make_phantom(shape=(16, 16, 16), spacing_mm=(10.0, 10.0, 10.0)).pair
    pair = found.with_fixed(labels=None).with_moving(labels=None)
    settings = rw.preset("default")
    small = settings.model_copy(update={"levels": settings.levels[:1]})
    result = rw.register(pair.fixed, pair.moving, config=small, metrics={"cubes": 1.0})
    result.save(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    cubes = {"from": "regweave_cubes", "distribution": "regweave-cubes", "version": "0.3"}
    assert record["provenance"]["plugins"] == {"metrics/cubes": cubes}
    assert result.refinement  # PENALTY lets it refine
