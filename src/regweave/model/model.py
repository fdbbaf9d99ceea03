"""Trained model on disk: a readable JSON table of class × member, with the settings it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from regweave.config.settings import Settings, describe_problems, validate
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.atomic import atomic_path
from regweave.io.disk.files import exists
from regweave.io.disk.texts import parse_json, read_text
from regweave.io.modality import BankName
from regweave.model.checks import check_model
from regweave.model.record import TrainingRecord
from regweave.types import WeightTable

FORMAT = "regweave-model"
VERSION = 1
Levels = Literal["all", "finest"]
"""Where learned weights act: at every level, or at the last one and in the refinement."""


@dataclass(frozen=True)
class Model:
    """A learned or hand-written weighting.

    Parameters
    ----------
    weights : WeightTable
        W with named rows and columns, and the pairwise weight.
    settings : Settings
        Settings of the registration that the weights belong to.
    modality : str
        Bank of the settings that the rows stand for.
    class_names : mapping
        Names of the classes by label value.
    training : TrainingRecord
        What the model was trained on, and what was tried.
    levels : "all" or "finest"
        Where the weights act; with ``finest`` the coarser levels use the same weight for every member.
    class_predictor : mapping, optional
        What `regweave.predictors.voxel_mlp` needs to tell the classes of an image without a segmentation.
    outline_without_mask : bool
        Where no moving labels are given, members that compare them take what the class predictor makes of the moving
        image instead; if False, the other members of the refinement have their weight there.
    """

    weights: WeightTable
    settings: Settings
    modality: BankName
    class_names: Mapping[int, str] = field(default_factory=dict)
    training: TrainingRecord = field(default_factory=TrainingRecord)
    levels: Levels = "all"
    class_predictor: Mapping[str, Any] | None = None
    outline_without_mask: bool = True


def shipped_models() -> dict[str, Path]:
    """Models that come with the package, for users without training data, by name."""
    folder = Path(str(resources.files("regweave").joinpath("model")))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def find_model(given: str | Path) -> Path:
    """Return the file of a model that is given by path, or by the name of a shipped one; a file comes first."""
    path, shipped = Path(given), shipped_models()
    if exists(path):
        return path
    if str(given) not in shipped:
        message = f"there is no model file '{given}' and no shipped model of that name"
        raise UsageError("E171", message, f"shipped are {', '.join(shipped)}")
    return shipped[str(given)]


def write_model(path: str | Path, model: Model) -> None:
    """Write a model; the table reads ``weights[member][class value]``."""
    w = model.weights
    table = {
        member: {str(c): float(w.matrix[m, k]) for k, c in enumerate(w.classes)} for m, member in enumerate(w.members)
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        "modality": model.modality,
        "classes": {str(c): model.class_names.get(c, "background" if c == 0 else str(c)) for c in w.classes},
        "pairwise": w.pairwise,
        "weights": table,
        "levels": model.levels,
        "outline_without_mask": model.outline_without_mask,
        "scales": None,  # readers of earlier versions look for the key
        "settings": model.settings.model_dump(mode="json"),
        "evidence": model.training.to_json(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    if model.class_predictor is not None:
        # On one line at the end: thousands of numbers that nobody reads.
        text = f'{text[:-2]},\n  "class_predictor": {json.dumps(model.class_predictor, ensure_ascii=False)}\n}}'
    with atomic_path(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def read_model(path: str | Path) -> Model:
    """Read a model, a file or a shipped one; E170 names what is wrong with a file that is not one."""
    try:
        content = parse_json(read_text(find_model(path)))
    except ValueError as error:
        raise _bad(path, f"it is not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _bad(path, f"its format is not {FORMAT!r}")
    if content.get("version") != VERSION:
        raise _bad(path, f"found version {content.get('version')!r}, supported {VERSION}")
    try:
        check_model(content)
        return _parse(content)
    except UsageError as error:
        raise _bad(path, error.message) from error
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(path, f"a part is missing or malformed ({error})") from error


def _parse(content: Mapping[str, Any]) -> Model:
    classes = tuple(sorted(int(c) for c in content["classes"]))
    if not classes or classes[0] != 0:
        raise ValueError("classes must hold 0, the background")
    table = content["weights"]
    members = tuple(table)
    matrix = np.array([[float(table[m][str(c)]) for c in classes] for m in members], dtype=np.float64)
    predictor = content.get("class_predictor")
    levels = content.get("levels", "all")
    if levels not in get_args(Levels):
        raise ValueError(f"levels are {levels!r}, allowed: {', '.join(get_args(Levels))}")
    without_mask = content.get("outline_without_mask", True)
    if not isinstance(without_mask, bool):
        raise ValueError(f"outline_without_mask is {without_mask!r}, allowed: true, false")
    return Model(
        weights=WeightTable(matrix, members, classes, float(content["pairwise"])),
        settings=validate(content["settings"], "the model"),
        modality=content["modality"],
        class_names={int(c): str(n) for c, n in content["classes"].items()},
        training=_training(content.get("evidence", {})),
        levels=levels,
        class_predictor=predictor,
        outline_without_mask=without_mask,
    )


def _training(content: Any) -> TrainingRecord:
    try:
        return TrainingRecord.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"evidence: {describe_problems(error)}") from error


def _bad(path: str | Path, reason: str) -> RegweaveError:
    return RegweaveError("E170", f"{path} is not a usable model: {reason}", "train it again with `regweave train`")
