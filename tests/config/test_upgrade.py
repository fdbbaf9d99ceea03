"""Settings of earlier versions: the metric of structure maps becomes a source of features."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from regweave.config.member import Member
from regweave.config.presets import preset

OLD = {"name": "anatomy", "metric": "anatomy", "support": 5, "stage": "refine", "weight": 0.0}


@pytest.mark.parametrize(
    ("options", "source", "floor"),
    [({}, "structures", 0.01), ({"outline": True}, "labels", 0.01), ({"variance_floor": 0.5}, "structures", 0.5)],
)
def test_the_former_metric_is_correlation_of_maps(options, source, floor):
    found = Member.model_validate({**OLD, "options": options})
    assert (found.metric, found.source, found.options) == ("ncc", source, {"variance_floor": floor})
    assert not found.metric_options.squared  # an inverted map is no match
    assert Member.model_validate(found.model_dump(mode="json")) == found


def test_a_frozen_preset_keeps_its_file_and_its_meaning():
    bank = preset("default@5").banks["ct"]
    assert {m.name: m.source for m in bank if m.source != "image"} == {"anatomy": "structures", "outline": "labels"}
    assert "source" not in bank[0].model_dump(mode="json")


@pytest.mark.parametrize("change", [{"weight": 1.0}, {"options": {"sigma": 1}}, {"source": "maps"}])
def test_what_no_source_can_be_is_refused(change):
    with pytest.raises(ValidationError):
        Member.model_validate({**OLD, **change})
