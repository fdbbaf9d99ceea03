"""Presets and settings files, and the settings of a run: one of them with the changes of the user."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regweave import engines, metrics
from regweave.config.settings import Member, Settings, describe_problems
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import parse_toml, read_text

PRESETS = "presets"  # folder of the preset files beside this module
COMMANDS = ("register", "train")  # commands with a table of options in a settings file
Metrics = Mapping[str, float] | Sequence[str]
"""Members (or metrics) by hand: weights by name, or names, each alone or as ``name=weight``."""


def preset_names() -> list[str]:
    """Names of the presets, each frozen by its version."""
    folder = resources.files(__package__).joinpath(PRESETS)
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def preset(name: str) -> Settings:
    """Return a preset; a name without a version takes the newest."""
    names = preset_names()
    versions = [n for n in names if n.split("@")[0] == name]
    chosen = name if name in names else max(versions, key=lambda n: int(n.split("@")[1]), default="")
    if not chosen:
        newest = sorted({n.split("@")[0] for n in names})
        near = difflib.get_close_matches(name[:100], [*newest, *names], n=1, cutoff=0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        hint = f"{guess}available: {', '.join(newest)} (the newest versions); {', '.join(names)}"
        raise UsageError("E184", f"unknown preset {name!r}", hint)
    text = resources.files(__package__).joinpath(PRESETS, f"{chosen}.toml").read_text(encoding="utf-8")
    return parse(text, chosen)


def load(path: Path) -> Settings:
    """Read settings from a TOML file."""
    return parse(_text(path), str(path))


def read_table(path: Path | None, name: str) -> dict[str, Any]:
    """Return the table of a settings file with the options of a command; empty without a file or a table."""
    return {} if path is None else dict(_content(_text(path), str(path)).get(name, {}))


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except RegweaveError as error:
        raise UsageError(error.code, error.message, error.hint) from error
    except UnicodeDecodeError as error:
        raise UsageError("E185", f"{path} is not TOML: it is not UTF-8", "save it as UTF-8 text") from error


def parse(text: str, source: str) -> Settings:
    """Read settings from TOML text without its tables of commands; those of the default preset if nothing is left."""
    content = _content(text, source)
    own = {name: value for name, value in content.items() if name not in COMMANDS}
    return validate(own, source) if own or not content else preset("default")


def _content(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UsageError("E185", f"{source} is not TOML: {error}", "start from `regweave presets show`") from error


def validate(content: Mapping[str, Any], source: str) -> Settings:
    """Check settings; every problem is named with its place."""
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        message = f"settings in {source}: {describe_problems(error)}"
        raise UsageError("E185", message, "correct the named keys") from error


def with_refinement_of_preset(settings: Settings) -> Settings:
    """Return settings with the refinement's smoothness of the preset that they are named after, if any."""
    if settings.name not in preset_names():
        return settings
    own = preset(settings.name).refine
    smoothness = {name: getattr(own, name) for name in ("smoothness", "smoothness_ct", "smoothness_multi")}
    return settings.model_copy(update={"refine": settings.refine.model_copy(update=smoothness)})


def metric_weights(given: Metrics | None, code: str = "E188", what: str = "metric") -> dict[str, float] | None:
    """Return weights by name, of metrics or of something else; a name without a weight counts one.

    Raises E188, or another code, for what is no weight, or a name given twice.
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
            raise UsageError(code, f"{what} {name!r}: {weight!r} is not a number", "write NAME=0.5") from error
        if name in found:
            raise UsageError(code, f"the {what} {name!r} is given twice", "give each name once")
        found[name] = number
    return found


def choose_settings(
    name: str, config: str | Path | Settings | None, engine: str | None, members: Mapping[str, float] | None
) -> Settings:
    """Return a preset or the settings of a file, with the engine or the bank replaced where asked."""
    if isinstance(config, Settings):
        chosen = config
    elif config is not None:
        chosen = load(Path(config))
    else:
        chosen = preset(name)
    changes: dict[str, Any] = {}
    if engine is not None:
        engines.get(engine)
        changes["engine"] = engine
    if members:
        changes["banks"] = _banks(chosen, members)
    if not changes:
        return chosen
    return validate({**chosen.model_dump(), **changes}, "the command line")


def _banks(chosen: Settings, members: Iterable[str]) -> dict[str, Any]:
    """Return the banks with all members, or with metrics of their names; a pair needs one of them alone."""
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
    if any(m.stage != "levels" and m.penalty for m in members):
        return members
    return [m.model_copy(update={"stage": "both"}) if m.penalty else m for m in members]


def _member(name: str, bank: tuple[Member, ...]) -> Member:
    """Return the member of that name in the bank, or the metric of that name with its default options."""
    for member in bank:
        if member.name == name and member.source != "image":
            message = f"the metric {name} compares what a model makes out in the images, and there is none"
            raise UsageError("E188", message, "give --model instead, or another metric")
        if member.name == name:
            return member.model_copy(update={"weight": 1.0})
    metrics.get(name)
    return Member(name=name, metric=name)
