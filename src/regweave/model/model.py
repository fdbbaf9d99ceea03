"""Model of a registration: weights by class, settings, predictor and training record.

On disk it is JSON to be read and edited by hand, or, with the suffix ``.zip``, the same JSON beside binary arrays.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regweave import predictors
from regweave.config.settings import Settings, describe_problems
from regweave.errors import RegweaveError, UsageError
from regweave.io.disk.files import parse_json, read_text
from regweave.io.disk.outputs import atomic_path
from regweave.io.modality import BankName
from regweave.measures.statistics import patients_of
from regweave.model import find_model, shipped_models
from regweave.model.archive import SUFFIX, Arrays, is_archive, read_archive, write_archive
from regweave.model.domain import Domain
from regweave.model.record import (
    FORMAT,
    MOST_MEMBERS,
    VERSION,
    Levels,
    ModelCard,
    ModelFile,
    TableRecord,
    TrainingRecord,
)
from regweave.predictors import Parts, Predictor
from regweave.registry import REGISTRIES
from regweave.types import WeightTable

MOST_LISTED = 100_000  # largest number of predictor parameters that are written as text


SAME = ("card", "modality", "levels", "outline_without_mask", "settings", "domain")
"""Parts of a model that its file has under the same name."""


@dataclass(frozen=True, repr=False)
class Model:
    """Weights by class with the settings, predictor and record they belong to.

    Examples
    --------
    >>> Model.load("hippocampus-t1").class_names[1]
    'anterior'
    """

    weights: WeightTable  # W with named rows and columns, and the pairwise weight
    settings: Settings  # settings of the registration that the weights belong to
    modality: BankName  # bank of the settings with the rows as members
    class_names: Mapping[int, str] = field(default_factory=dict)  # names of the classes by label value
    training: TrainingRecord = field(default_factory=TrainingRecord)  # training data and tried candidates
    levels: Levels = "all"
    """Where the weights act; with ``finest`` the coarser levels use the same weight for every member."""
    predictor: Predictor | None = None  # predicts the classes of an image without a segmentation
    outline_without_mask: bool = True
    """Without moving labels, members that compare them use predicted ones; if False, the other members of the
    refinement get their weight."""
    weights_without_mask: WeightTable | None = None  # W without moving labels, if it differs
    card: ModelCard | None = None
    domain: Domain | None = None  # ranges over the training images

    def __post_init__(self) -> None:
        """Refuse a predictor that does not fit the weights."""
        found = self.predictor
        unknown = [] if found is None else [c for c in found.classes if c not in self.weights.classes]
        if found is not None and (unknown or found.modality != self.modality) and len(self.weights.classes) > 1:
            message = f"the model's class predictor tells {list(found.classes)} in {found.modality} images"
            known = f"its weights are for {list(self.weights.classes)} in {self.modality} images"
            raise RegweaveError("E170", f"{message}; {known}", "train it again with `regweave train`")

    @classmethod
    def load(cls, given: str | Path) -> Model:
        """Read a model: a file, or the name of a shipped one.

        Raises
        ------
        RegweaveError
            E171 where there is neither, E170 with what is wrong with a file, E169 for a plug-in that is not installed.
        """
        path = find_model(given)
        try:
            text, arrays = read_archive(path) if is_archive(path) else (read_text(path), None)
            content = parse_json(text)
        except ValueError as error:
            raise _bad(given, f"it is not JSON, or no archive with it ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise _bad(given, f"its format is not {FORMAT!r}")
        if content.get("version") != VERSION:
            raise _bad(given, f"found version {content.get('version')!r}, supported {VERSION}")
        _require_plugins(content.get("plugins", {}), given)
        try:
            return cls._of(ModelFile.model_validate(content), arrays)
        except UsageError as error:
            raise _bad(given, error.message) from error
        except ValidationError as error:
            raise _bad(given, describe_problems(error)) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _bad(given, f"a part is missing or malformed ({error})") from error

    def save(self, path: str | Path) -> None:
        """Write the model: JSON, or an archive with binary arrays where the name ends in ``.zip``.

        The table reads ``weights[member][class value]``. The same model gives the same bytes.

        Raises
        ------
        UsageError
            E152 where a predictor holds more numbers than a text should.
        """
        path, parts = Path(path), None if self.predictor is None else self.predictor.save()
        apart = path.suffix == SUFFIX
        numbers = 0 if parts is None else sum(array.size for array in parts.arrays.values())
        if parts is not None and numbers > MOST_LISTED and not apart:
            message = f"{path} would be JSON, and the model's predictor, {parts.kind}, holds {numbers} numbers"
            raise UsageError("E152", f"{message}; allowed in JSON: {MOST_LISTED}", f"write it to {path.stem}.zip")
        text = json.dumps(self._file().model_dump(mode="json"), indent=2, ensure_ascii=False)
        if parts is not None:
            # On one line at the end: thousands of numbers, which are not for reading.
            line = json.dumps(parts.to_json(arrays=not apart), ensure_ascii=False)
            text = f'{text[:-2]},\n  "class_predictor": {line}\n}}'
        if apart:
            write_archive(path, text + "\n", {} if parts is None else parts.arrays)
            return
        with atomic_path(path) as part:
            part.write_text(text + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        structures = ", ".join(self.class_name(c) for c in self.weights.classes if c != 0) or "no structures"
        return f"Model for {self.modality.upper()}: {structures}; members {', '.join(self.weights.members)}"

    def class_name(self, value: int) -> str:
        """Name of a class, its number where it has none."""
        return self.class_names.get(value, "background" if value == 0 else str(value))

    def weights_table(self) -> dict[str, dict[str, float]]:
        """Weights by name of the class and member: ``pandas.DataFrame(model.weights_table())`` shows them."""
        w = self.weights
        return {
            self.class_name(c): dict(zip(w.members, w.matrix[:, k].tolist(), strict=True))
            for k, c in enumerate(w.classes)
        }

    def plugins(self) -> dict[str, dict[str, str | None]]:
        """Plug-ins that the model needs and that do not come with the package."""
        found = self.settings.plugins()
        kind = None if self.predictor is None else self.predictor.save().kind
        origin = None if kind is None else predictors.registry.origin(kind)
        if origin is not None and origin.place != "regweave":
            found[f"predictors/{kind}"] = origin.record()
        return found

    def _file(self) -> ModelFile:
        blind = self.weights_without_mask
        return ModelFile.of(
            self.weights,
            plugins=self.plugins(),
            classes={c: self.class_name(c) for c in self.weights.classes},
            without_mask=None if blind is None else TableRecord.of(blind),
            evidence=self.training,
            **{name: getattr(self, name) for name in SAME},
        )

    @classmethod
    def _of(cls, file: ModelFile, arrays: Arrays | None) -> Model:
        classes, predictor = tuple(sorted(file.classes)), None
        if file.class_predictor is not None:
            try:
                predictor = predictors.load(Parts.from_json(file.class_predictor, arrays))
            except ValidationError as error:
                raise ValueError(f"class_predictor: {describe_problems(error)}") from error
        return cls(
            weights=file.table(classes),
            class_names=file.classes,
            training=file.evidence,
            predictor=predictor,
            weights_without_mask=None if file.without_mask is None else file.without_mask.table(classes),
            **{name: getattr(file, name) for name in SAME},
        )


def _require_plugins(named: Any, path: str | Path) -> None:
    """Raise E169 where a model needs a plug-in that is not installed, with its package."""
    if not isinstance(named, dict) or len(named) > MOST_MEMBERS:
        return
    for key, origin in named.items():
        kind, _, name = str(key).partition("/")
        registry = REGISTRIES.get(kind)
        if registry is None or name in registry.available():
            continue
        facts = origin if isinstance(origin, dict) else {}
        package = " ".join(str(facts[k]) for k in ("distribution", "version") if facts.get(k))
        place = f"package {package}" if package else str(facts.get("from", "another program"))
        message = f"{path} needs the {registry.noun} {name!r} of {place[:100]}, which is not here"
        raise UsageError("E169", message, "install it if you trust it; a model cannot bring code")


def _bad(path: str | Path, reason: str) -> RegweaveError:
    return RegweaveError("E170", f"{path} is not a usable model: {reason}", "train it again with `regweave train`")


WIDTH = 80  # columns of a card


class Models(dict[str, Model]):
    """Models by name; printed, their cards."""

    def __repr__(self) -> str:
        return "\n\n".join(card_text(name, model) for name, model in self.items())


def models() -> Models:
    """Models that come with the package, by name; ``register(…, model=NAME)`` uses one.

    Examples
    --------
    >>> print(str(models()).splitlines()[0])
    head-neck-ct  ct
    """
    return Models((name, Model.load(path)) for name, path in shipped_models().items())


def card_text(name: str, model: Model) -> str:
    """Format the card of a model: images, structures, patients, gain, licence, and when not to use it."""
    record, card = model.training, ModelCard(images="") if model.card is None else model.card
    structures = ", ".join(model.class_name(c) for c in model.weights.classes[1:])
    gains = {
        "weights of the refinement": None if record.refinement is None else record.refinement.gain,
        "columns by structure": record.left_out_gain,
    }
    signs = {name: signed([g.mean, g.low, g.high]) for name, g in gains.items() if g is not None}
    gained = [f"{name} {mean} Dice on left-out patients [{low}, {high}]" for name, (mean, low, high) in signs.items()]
    counted = {"patients": len(patients(record.groups)), "pairs": len(record.pairs)}
    facts = {
        "images": card.images,
        "body part": card.body_part,
        "shows": card.field_of_view,
        "voxels": card.voxels,
        "structures": structures,
        "trained on": ", ".join(f"{n} {what}" for what, n in counted.items() if n),
        "data": card.data,
        "predictor": predictor_text(model),
        "gain": card.gain or "; ".join(gained),
        "licence": f"weights {card.licence or 'not named'}, training data {card.data_licence or 'not named'}",
        "made": card.made,
        "not for": card.avoid,
    }
    lines = [
        textwrap.fill(f"  {key:<12}{value}", WIDTH, subsequent_indent=" " * 14, break_long_words=False)
        for key, value in facts.items()
        if value
    ]
    return "\n".join([f"{name}  {model.modality}", *lines])


def predictor_text(model: Model) -> str | None:
    """Kind of the predictor, its size, and its Dice on left-out images."""
    if model.predictor is None:
        return None
    facts = predictor_facts(model.predictor)
    dice, n = (facts["record"].get(key) for key in ("mean_dice", "n_images"))
    judged = "" if dice is None else f", mean Dice {dice:.3f} on {n} left-out images"
    return f"{facts['kind']} of {facts['numbers']:,} numbers{judged}"


def predictor_facts(predictor: Predictor) -> dict[str, Any]:
    """Return kind, size and record of a predictor."""
    parts = predictor.save()
    return {"kind": parts.kind, "numbers": sum(a.size for a in parts.arrays.values()), "record": dict(parts.record)}


def patients(groups: Sequence[str]) -> set[str]:
    """Return the patients of groups of patients."""
    return {patient for group in groups for patient in patients_of(group)}


def signed(values: Sequence[float | None]) -> list[str]:
    """Return numbers with their sign and four decimals, a dash for None."""
    return ["-" if v is None else f"{v:+.4f}" for v in values]
