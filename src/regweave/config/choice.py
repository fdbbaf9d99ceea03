"""Settings of a run: a preset or a file, with what a user replaced in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regweave import engines
from regweave.config import settings as settings_files
from regweave.config.member import Member, plain_member
from regweave.config.settings import Settings
from regweave.errors import UsageError


def choose_settings(
    preset: str, config: str | Path | Settings | None, engine: str | None, members: Mapping[str, float] | None
) -> Settings:
    """Return a preset or the settings of a file, with the engine or the bank replaced where asked."""
    if isinstance(config, Settings):
        chosen = config
    elif config is not None:
        chosen = settings_files.load(Path(config))
    else:
        chosen = settings_files.preset(preset)
    changes: dict[str, Any] = {}
    if engine is not None:
        engines.get(engine)
        changes["engine"] = engine
    if members:
        changes["banks"] = {
            modality: [m.model_dump() for m in _by_hand([_member(name, bank) for name in members])]
            for modality, bank in chosen.banks.items()
        }
    if not changes:
        return chosen
    return settings_files.validate({**chosen.model_dump(), **changes}, "the command line")


def _by_hand(members: Sequence[Member]) -> Sequence[Member]:
    """Let members take part in the refinement where none would: a preset gives that part to others of its bank."""
    if any(m.stage != "levels" and m.differentiable for m in members):
        return members
    return [m.model_copy(update={"stage": "both"}) if m.differentiable else m for m in members]


def _member(name: str, bank: tuple[Member, ...]) -> Member:
    """Return the member of that name in the bank, or the metric of that name with its default options."""
    for member in bank:
        if member.name == name and member.source != "image":
            message = f"--metric {name} compares what a model makes out in the images, and there is none"
            raise UsageError("E188", message, "give --model instead, or another metric")
        if member.name == name:
            return member.model_copy(update={"weight": 1.0})
    return plain_member(name)
