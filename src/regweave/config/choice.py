"""Settings of a run: a preset or a file, with what a user replaced in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regweave import engines
from regweave.config import settings as settings_files
from regweave.config.member import Member, plain_member
from regweave.config.settings import Settings
from regweave.errors import UsageError

Metrics = Mapping[str, float] | Sequence[str]
"""Members (or metrics) by hand: weights by name, or names, each alone or as ``name=weight``."""


def metric_weights(given: Metrics | None) -> dict[str, float] | None:
    """Return weights by name; a name without a weight counts one.

    Raises
    ------
    UsageError
        E188 for what is no weight, or a name given twice.

    Examples
    --------
    >>> metric_weights(["ncc=0.7", "mi"]) == metric_weights({"ncc": 0.7, "mi": 1})
    True
    """
    if not given:
        return None
    listed: list[tuple[str, Any]]
    if isinstance(given, Mapping):
        listed = list(given.items())
    else:
        parts = [str(text).partition("=") for text in ([given] if isinstance(given, str) else given)]
        listed = [(name, weight if sign else 1.0) for name, sign, weight in parts]
    found: dict[str, float] = {}
    for name, weight in listed:
        try:
            number = float(weight)
        except (TypeError, ValueError) as error:
            raise UsageError("E188", f"metric {name!r}: {weight!r} is not a number", "write NAME=0.5") from error
        if name in found:
            raise UsageError("E188", f"the metric {name!r} is given twice", "give each name once")
        found[name] = number
    return found


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
        changes["banks"] = _banks(chosen, members)
    if not changes:
        return chosen
    return settings_files.validate({**chosen.model_dump(), **changes}, "the command line")


def _banks(chosen: Settings, members: Iterable[str]) -> dict[str, Any]:
    """Return the banks that know all members, or know metrics of their names; a pair needs one of them alone."""
    found: dict[str, Any] = {}
    problem: UsageError | None = None
    for modality, bank in chosen.banks.items():
        try:
            found[modality] = [m.model_dump() for m in _by_hand([_member(name, bank) for name in members])]
        except UsageError as error:
            problem = problem or error
    if problem is not None and not found:
        raise problem
    return found


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
