"""Every number of the settings has a range on both sides, and what lies outside is refused by name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regweave import metrics
from regweave.config.settings import Level, Member, Refine, Settings, preset, validate
from regweave.errors import RegweaveError, ResourceError, UsageError
from regweave.model.model import Model
from regweave.predictors.unet import Network, NetworkPredictor, layer_shapes
from regweave.run.memory import check_memory, forecast
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Geometry

MODELS = [Settings, Level, Refine, Member, *(metrics.get(name).Options for name in metrics.available())]
MINIMAL = preset("default").model_dump(mode="json", exclude_none=True)


def numbers(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each number that a field takes, with its part of the schema."""
    for key, entry in model.model_json_schema()["properties"].items():
        for part in entry.get("anyOf", [entry]):
            for leaf in part.get("prefixItems", [part]):
                if leaf.get("type") in {"number", "integer"} and "enum" not in leaf and "const" not in leaf:
                    yield key, leaf


def test_numbers_have_both_ends_and_lists_one():
    for model in MODELS:
        for key, leaf in numbers(model):
            assert {"minimum", "maximum"} <= set(leaf), f"{model.__name__}.{key} has no end: {leaf}"
    schema = Settings.model_json_schema()
    assert schema["properties"]["levels"]["maxItems"] == 16
    assert schema["properties"]["name"]["maxLength"] == 200
    assert schema["$defs"]["Member"]["properties"]["name"]["maxLength"] == 64
    assert "800" in refused(levels=MINIMAL["levels"][:1] * 800)
    many = [{**MINIMAL["banks"]["mr"][0], "name": f"m{n}"} for n in range(33)]
    assert "banks.mr" in refused(banks={"mr": many})


def refused(**changes: Any) -> str:
    with pytest.raises(UsageError, match="E185") as caught:
        validate({**MINIMAL, **changes}, "s.toml")
    return caught.value.message


def test_absurd_numbers_windows_and_texts_are_named():
    for place, value in [
        ("levels.spacing_mm", 1e300), ("levels.spacing_mm", 1e-300), ("levels.first_step", 1e-300),
        ("levels.step_decay", 1e-300), ("levels.voxels_per_spacing", 1e6), ("refine.spacing_mm", 1e300),
        ("refine.smoothness", 1e300), ("refine.smoothness_ct", 5e-324), ("refine.rate", 1e-300),
        ("refine.max_voxels", 10**12),
    ]:  # fmt: skip
        table, key = place.split(".")
        part = {**MINIMAL["levels"][0], key: value} if table == "levels" else {**MINIMAL["refine"], key: value}
        message = refused(**{table: [part] if table == "levels" else part})
        assert f"{key}: Input should be" in message
        assert f"found {value!r}" in message
    for window in [[-1e308, 1e308], [0.0, 5e-324], [1.0, 1.0]]:
        member = {**MINIMAL["banks"]["mr"][0], "window": window}
        assert "window" in refused(banks={"mr": [member]})
    for change in [{"smoothness": 1e308}, {"smoothness": 5e-324}, {"reference_mm": 1e300}]:
        assert next(iter(change)) in refused(**change)
    for value in ["50", True]:
        assert "levels.0.spacing_mm: Input should be a valid number" in refused(levels=[{"spacing_mm": value}])
        assert "smoothness: Input should be a valid number" in refused(smoothness=value)
        assert "levels.0.steps: Input should be a valid integer" in refused(levels=[{"spacing_mm": 50, "steps": value}])
    level = MINIMAL["levels"][0]
    found = refused(levels=[{**level, "spacing_mm": 25.0}, {**level, "spacing_mm": 50.0}])
    assert "coarse to fine, found spacing_mm [25.0, 50.0]" in found
    level = {**MINIMAL["levels"][0], "steps": 20, "step_decay": 0.1}
    assert "2.0e-20 control spacings apart" in refused(levels=[level])
    message = refused(levels=[{"spacing_mm": -1.0}])
    assert message.count("levels") == 1
    assert "and 90 more" in refused(levels=[{"spacing_mm": -1.0, **{f"k{n}": 1 for n in range(99)}}])


def test_nodes_are_counted_beyond_64_bits_and_refused_beyond_memory(monkeypatch):
    grid = ControlGrid.cover(Geometry((24, 24, 24), np.diag([2.0, 2.0, 2.0, 1.0])), 1e-8)
    assert grid.n_nodes == grid.nodes[0] ** 3 > 2**63
    huge = ControlGrid.cover(Geometry((24, 24, 24), np.eye(4)), 1e300)
    assert huge.nodes == (1, 1, 1)
    assert huge.support == (24, 24, 24)
    assert all((s >= 0).all() for s in huge.starts)
    geometry = Geometry((200, 200, 200), np.diag([2.0, 2.0, 2.0, 1.0]))
    fine = validate({**MINIMAL, "levels": [{"spacing_mm": 1.0}], "reference_mm": 1.0}, "s")
    assert forecast(geometry, geometry, fine, "mr", probe=False).sizes[0].n_nodes == 399**3
    monkeypatch.setattr("regweave.run.memory.physical_memory_mb", lambda: 8000.0)
    with pytest.raises(ResourceError, match="E140"):
        check_memory(geometry, geometry, fine, "mr")


def test_predictors_count_by_their_own_account(monkeypatch):
    # Features of every voxel of 1 mm: six gigabytes, though the registration itself needs two.
    head = Geometry((256, 256, 220), np.eye(4))
    plan = forecast(head, head, preset("default"), "mr", probe=False)
    monkeypatch.setattr("regweave.run.memory.physical_memory_mb", lambda: plan.peak_memory_mb + 100)
    known = Model.load(Path(__file__).parents[1] / "model/tissue.json").predictor
    coarse, fine = (replace(known, sizes=replace(known.sizes, voxel_mm=mm)) for mm in (4.0, 1.0))
    check_memory(head, head, preset("default"), "mr", 0, coarse)
    with pytest.raises(ResourceError, match="E140"):
        check_memory(head, head, preset("default"), "mr", 0, fine)
    head = Geometry((256, 256, 220), np.eye(4))
    layers = {name: np.zeros(shape) for name, shape in layer_shapes(1, 16, 3, 4).items()}
    network = NetworkPredictor((0, 1, 2), "mr", (4.0, 4.0, 4.0), Network.of(layers, ((2, 2, 2),) * 3))
    plan = forecast(head, head, preset("default"), "mr", probe=False)
    monkeypatch.setattr("regweave.run.memory.physical_memory_mb", lambda: plan.peak_memory_mb + 100)
    check_memory(head, head, preset("default"), "mr", 0, network)
    with pytest.raises(ResourceError, match="E140"):
        check_memory(head, head, preset("default"), "mr", 0, replace(network, spacing_mm=(1.0, 1.0, 1.0)))


def test_control_points_far_finer_than_voxels_and_sensible_images():
    for spacing_mm, level_mm in [((1e-6, 1.0, 1e6), 50.0), ((2.0, 2.0, 2.0), 1e-3), ((1e6, 1e6, 1e6), 50.0)]:
        geometry = Geometry((24, 22, 20), np.diag([*spacing_mm, 1.0]))
        settings = validate({**MINIMAL, "levels": [{"spacing_mm": level_mm}]}, "s")
        with pytest.raises(RegweaveError, match=r"E176.*level 1 would lay .* control points.*larger spacing_mm"):
            check_memory(geometry, geometry, settings, "mr")
    for name in ["default", "paper"]:
        for shape, spacing_mm in [
            ((512, 512, 40), (0.4, 0.4, 5.0)), ((64, 64, 8), (1.5, 1.5, 10.0)), ((30, 40, 30), (0.05, 0.05, 0.05)),
        ]:  # fmt: skip
            geometry = Geometry(shape, np.diag([*spacing_mm, 1.0]))
            assert forecast(geometry, geometry, preset(name), "mr", probe=False).peak_memory_mb < 20000
