"""Cost of a training by stage, kept beside its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from regweave.errors import RegweaveError
from regweave.io.disk.files import sha256
from regweave.io.disk.outputs import atomic_path
from regweave.io.disk.records import Count, Known, RecordPart, Text, read_record


class StageCost(RecordPart):
    """Registrations, inferences and seconds of one stage."""

    registrations: Count | None = None
    inferences: Count | None = None
    seconds: Known = None


class _EffortRecord(RecordPart):
    model_sha256: Text
    stages: dict[str, StageCost] = Field(default_factory=dict)


def effort_path(model: Path) -> Path:
    """Return where the cost of a training is kept: beside the model, which does not depend on the machine."""
    return model.with_name(f"{model.stem}.effort.json")


def write_effort(model: Path, stages: Mapping[str, Mapping[str, float]]) -> None:
    """Write what the stages have cost beside a model, bound to it by its hash."""
    content = {"model_sha256": sha256(model), "stages": stages}
    with atomic_path(effort_path(model)) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_effort(model: Path) -> dict[str, StageCost]:
    """Return what the stages have cost; empty where no file says it, or it speaks of another model."""
    try:
        found = read_record(_EffortRecord, effort_path(model))
    except RegweaveError:
        return {}
    return found.stages if found.model_sha256 == sha256(model) else {}
