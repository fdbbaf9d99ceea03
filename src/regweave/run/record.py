"""Provenance of a registration: all that is needed to run it again and get the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from regweave.io import image_sha256, sha256
from regweave.io.disk.files import is_file
from regweave.io.labels import StructureMatch
from regweave.io.modality import describe_modalities
from regweave.model import find_model, shipped_models
from regweave.model.model import Model
from regweave.run.read import Inputs, Reading
from regweave.types import ImagePair, LabelMap

MEMORY = "field in memory"
"""A start that no record holds: its numbers are neither in a file nor few."""

MOST_NAMED = 6
"""Structures unknown to a model that a line names."""


@dataclass(frozen=True)
class RunRecord:
    """Provenance of a run, as JSON values.

    Parameters
    ----------
    inputs : mapping
        By input its path, None for one that was in memory, and the SHA-256 of what was read.
    start : mapping
        Method or file of the initial alignment as ``requested`` and as ``used``, the ``reason`` where they differ, the
        file's SHA-256, and the matrix in LPS millimetres.
    model : mapping, optional
        Name, path, SHA-256, training patients and names of the classes of the model; ``used`` (all, part or none of
        it) and the ``reason`` where that is not all.
    modality : mapping
        Modality of each image, and the bank that compares them.
    structures : mapping, optional
        Whether labels and model met by name or by number, which label is which class of the model, and the labels
        that the model does not know.
    call : mapping
        Other arguments of the call that settings do not hold.
    device : str
        Where the kernels ran.
    """

    inputs: Mapping[str, Mapping[str, str | None]]
    start: Mapping[str, Any]
    model: Mapping[str, Any] | None
    modality: Mapping[str, str]
    structures: Mapping[str, Any] | None
    call: Mapping[str, Any]
    device: str = "cpu"
    command: tuple[str, ...] = field(default=())

    def headline(self) -> str:
        """Say in one line what runs.

        Examples
        --------
        >>> start = {"requested": "affine", "used": "moments"}
        >>> RunRecord({}, start, None, {"fixed": "ct", "moving": "mr"}, None, {}).headline()
        'MR to CT · start moments, not affine · no model'
        """
        images = describe_modalities(self.modality["fixed"], self.modality["moving"])
        shown = [images, f"start {start_words(self.start)}", model_words(self.model)]
        if self.structures is not None:
            shown.append(f"structures by {self.structures['matched_by']}")
        return " · ".join(shown)

    def structures_met(self) -> str:
        """Say how the labels and the classes of the model met."""
        if self.structures is None:
            return "no model chooses by structure"
        known, unknown = self.structures["classes"], self.structures["unknown"]
        text = f"{len(known)} of {len(known) + len(unknown)} known to the model, by {self.structures['matched_by']}"
        if not unknown:
            return text
        names = [self.structures["names"][str(value)] for value in unknown[:MOST_NAMED]]
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        return f"{text}; {', '.join(names)}{more}: weights of the background"

    def content(self) -> dict[str, Any]:
        """Return the record as it stands in ``result.json``."""
        return {
            "inputs": {name: dict(one) for name, one in self.inputs.items()},
            "start": dict(self.start),
            "model": self.model and dict(self.model),
            "modality": dict(self.modality),
            "structures": self.structures and dict(self.structures),
            "call": dict(self.call),
            "device": self.device,
            "command": list(self.command),
        }

    @classmethod
    def read(cls, provenance: Mapping[str, Any]) -> RunRecord | None:
        """Return the record that `content` wrote; None from a ``result.json`` of before there were any."""
        if "call" not in provenance:
            return None
        known = {f.name: provenance[f.name] for f in fields(cls)}
        return cls(**{**known, "command": tuple(known["command"])})


def start_words(start: Mapping[str, Any]) -> str:
    """Name the start that was used, and the one that was asked for where it is another."""
    if start.get("file") is not None:
        return Path(start["file"]).name
    used, requested = start["used"], start["requested"]
    return str(used) if used == requested else f"{used}, not {requested}"


def model_words(model: Mapping[str, Any] | None) -> str:
    """Name the model, and say where it was not used, or in part."""
    if model is None:
        return "no model"
    return f"model {model['name']}" + {"none": " not used", "part": " used in part"}.get(model["used"], "")


def model_record(
    given: str | Path | Model | None, loaded: Model | None, used: tuple[str, str]
) -> dict[str, Any] | None:
    """Return which model it is and how much of it was used; one that was handed over in memory has no path."""
    if loaded is None:
        return None
    card = loaded.card
    about = {
        "used": used[0],
        "reason": used[1],
        "class_names": {str(value): name for value, name in loaded.class_names.items()},
        "groups": list(loaded.training.groups),
        "licence": None if card is None else card.licence,
        "data_licence": None if card is None else card.data_licence,
    }
    if not isinstance(given, str | Path):
        return {"name": "in memory", "path": None, "sha256": None, **about}
    path = find_model(given).absolute()
    shipped = shipped_models().get(path.stem)
    name = path.stem if shipped is not None and shipped.absolute() == path else path.name
    return {"name": name, "path": str(path), "sha256": sha256(path), **about}


def start_record(init: Any, pair: ImagePair, reading: Reading, used: str, reason: str) -> dict[str, Any]:
    """Return how the pair was brought to its start: a method, a file, a matrix, or a field that was in memory."""
    named = isinstance(init, str | Path)
    from_file = named and is_file(init)
    in_memory = "matrix" if pair.initial_field is None else MEMORY
    requested = "file" if from_file else str(init) if named else in_memory
    return {
        "requested": requested,
        "used": used or requested,
        "reason": reason,
        "file": str(Path(init).absolute()) if from_file else None,
        "sha256": image_sha256(init, follow_links=reading.follow_links) if from_file else None,
        "matrix": pair.initial.tolist(),
        "field": pair.initial_field is not None,
    }


def structure_record(match: StructureMatch | None, labels: LabelMap | None) -> dict[str, Any] | None:
    """Say how labels and model met."""
    if match is None or labels is None:
        return None
    return {
        "matched_by": match.by,
        "classes": {str(value): other for value, other in match.to.items()},
        "names": {str(v): labels.name(v) for v in (*match.to, *match.unknown)},
        "unknown": list(match.unknown),
    }


def run_record(
    data: Inputs, reading: Reading, start: Mapping[str, Any], model: Mapping[str, Any] | None,
    bank: str, structures: Mapping[str, Any] | None, *, device: str, **call: Any,
) -> RunRecord:  # fmt: skip
    """Put a record together."""
    inputs = {name: {"path": data.sources.get(name), "sha256": digest} for name, digest in data.hashes.items()}
    fixed, moving = data.modalities
    modality = {"fixed": str(fixed), "moving": str(moving), "bank": bank}
    return RunRecord(inputs, start, model, modality, structures, {**call, "reading": reading.to_json()}, device)
