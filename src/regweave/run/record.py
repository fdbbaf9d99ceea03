"""Provenance of a registration: all that is needed to run it again and get the same bits."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer, StrictBool, computed_field

from regweave.config.settings import Settings
from regweave.io import sha256
from regweave.io.disk.records import Count, Number, RecordPart, Text, Whole
from regweave.io.modality import describe_modalities
from regweave.model import find_model, shipped_models
from regweave.model.model import Model
from regweave.run import read, resolve

MEMORY = "field in memory"  # start that no record holds: its numbers are neither in a file nor few
MOST_NAMED = 6  # structures unknown to a model that a line names
Row = tuple[Number, Number, Number, Number]


class InputFile(RecordPart):
    """Path of an input, None for one that was in memory, and the SHA-256 of what was read."""

    path: Text | None
    sha256: Text


class StartRecord(RecordPart):
    """Initial alignment."""

    requested: Text  # method or file that was requested, and that was used
    used: Text
    reason: Text = ""  # why another one was used
    file: Text | None = None  # its file
    sha256: Text | None = None
    matrix: tuple[Row, Row, Row, Row]  # from fixed to moving points, in LPS millimetres
    field: StrictBool = False  # whether a displacement field was part of it, which the record does not hold

    def words(self) -> str:
        """Return the start that was used, and the requested one if it is another."""
        if self.file is not None:
            return Path(self.file).name
        return self.used if self.used == self.requested else f"{self.used}, not {self.requested}"


class ModelUse(RecordPart):
    """Model of a registration."""

    name: Text  # its file; a model in memory has none
    path: Text | None = None
    sha256: Text | None = None
    used: Literal["all", "part", "none"]  # how much of it was used, and the `reason` if not all
    reason: Text = ""
    class_names: dict[int, Text] = Field(default_factory=dict)  # name of each class
    groups: tuple[Text, ...] = ()  # training patients
    licence: Text | None = None
    data_licence: Text | None = None

    def words(self) -> str:
        """Return the name of the model, and whether it was not used or in part."""
        return self.name + {"none": " not used", "part": " used in part"}.get(self.used, "")


class StructuresRecord(RecordPart):
    """Match of labels and classes of the model, by name or by number; ``unknown`` labels have no class."""

    matched_by: Text
    classes: dict[int, Whole]
    names: dict[int, Text]
    unknown: tuple[Whole, ...]

    def words(self) -> str:
        """Return how many structures are classes of the model, and names of those that are not."""
        known, unknown = self.classes, self.unknown
        text = f"{len(known)} of {len(known) + len(unknown)} known to the model, by {self.matched_by}"
        if not unknown:
            return text
        names = [self.names.get(value, str(value)) for value in unknown[:MOST_NAMED]]
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        return f"{text}; {', '.join(names)}{more}: weights of the background"


class Modalities(RecordPart):
    """Modality of each image, and the bank that compares them."""

    fixed: Text
    moving: Text
    bank: Text

    def words(self) -> str:
        """Return both modalities as text."""
        return describe_modalities(self.fixed, self.moving)


class Call(RecordPart):
    """Arguments of the call that settings do not hold."""

    metrics: dict[str, Number] | None = None
    predict_classes: StrictBool = False
    rigid: tuple[Text, ...] | None = Field(default=None, exclude_if=lambda given: given is None)
    guide_points: Number | None = Field(default=None, exclude_if=lambda given: given is None)
    transform: Literal["rigid", "affine", "deformable"] = Field(
        default="deformable", exclude_if=lambda given: given == "deformable"
    )
    guide: StrictBool | dict[str, Number] = Field(default=False, exclude_if=lambda given: given is False)
    guide_only: StrictBool = Field(default=False, exclude_if=lambda given: not given)
    guide_anyway: StrictBool = Field(default=False, exclude_if=lambda given: not given)
    reading: Annotated[read.Reading, PlainSerializer(read.Reading.to_json)]


class GuidesRecord(RecordPart):
    """Structures that guided, with their weights by label, and those that did not, with the reason by name.

    ``levels`` states whether they guided the start and the discrete levels too, ``only`` whether nothing else guided,
    ``learned`` whether their weights are those of the model.
    """

    weights: dict[int, Number]
    names: dict[int, Text]
    left_out: dict[Text, Text]
    levels: StrictBool
    only: StrictBool
    learned: StrictBool = Field(default=False, exclude_if=lambda given: not given)

    def words(self) -> str:
        """Return how many structures guided, where, and by which weights."""
        what = f"{len(self.weights)} structure{'s' if len(self.weights) > 1 else ''}"
        where = ", contours alone" if self.only else ", from the start on" if self.levels else ""
        return f"{what}{where}, weights {'of the model' if self.learned else 'as usual'}"


class RecordedMember(RecordPart):
    """Member of a bank."""

    model_config = ConfigDict(extra="allow")
    name: Text
    stage: Text = "levels"


class RecordedSettings(RecordPart):
    """Settings that name a plug-in which is not installed: a page can be made of them, but no registration."""

    model_config = ConfigDict(extra="allow")
    name: Text
    engine: Text = "trws"
    banks: dict[str, tuple[RecordedMember, ...]]


class Provenance(RecordPart):
    """Provenance of a registration."""

    regweave: Text  # versions of the program that made it
    python: Text
    dependencies: dict[str, Text]
    platform: Text
    threads: Count  # threads of the kernels, and where these ran
    inputs: dict[str, InputFile]  # file and hash of each input
    start: StartRecord  # initial alignment, model, modalities, and how labels and classes of the model match
    model: ModelUse | None
    modality: Modalities
    structures: StructuresRecord | None
    # structures that guided
    guides: GuidesRecord | None = Field(default=None, exclude_if=lambda given: given is None)
    call: Call  # other arguments of the call
    device: Text = "cpu"
    command: tuple[Text, ...] = ()  # command line, if any
    classes_from: resolve.ClassesFrom = "none"  # segmentation that chose the weights
    # settings, and the `plugins` that they use
    settings: Annotated[Settings | RecordedSettings, Field(union_mode="left_to_right")]
    plugins: dict[str, Any] = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def inputs_sha256(self) -> dict[str, str]:
        """Hash of each input."""
        return {name: one.sha256 for name, one in self.inputs.items()}

    @property
    def sources(self) -> dict[str, str]:
        """File and folder of each input that was a file, for the page."""
        return {name: "/".join(Path(one.path).parts[-2:]) for name, one in self.inputs.items() if one.path is not None}

    def headline(self) -> str:
        """Return modalities, start, model and match of the structures in one line."""
        model = "no model" if self.model is None else f"model {self.model.words()}"
        shown = [self.modality.words(), f"start {self.start.words()}", model]
        shown += [] if self.structures is None else [f"structures by {self.structures.matched_by}"]
        return " · ".join(shown if self.guides is None else [*shown, f"guided by {self.guides.words()}"])


def model_record(given: str | Path | Model | None, loaded: Model | None, used: tuple[str, str]) -> ModelUse | None:
    """Return which model was used and how much of it; one in memory has no path."""
    if loaded is None:
        return None
    card, file = loaded.card, {"name": "in memory"}
    if isinstance(given, str | Path):
        path = find_model(given).absolute()
        shipped = shipped_models().get(path.stem)
        name = path.stem if shipped is not None and shipped.absolute() == path else path.name
        file = {"name": name, "path": str(path), "sha256": sha256(path)}
    return ModelUse.model_validate(
        {
            **file, "used": used[0], "reason": used[1], "class_names": loaded.class_names,
            "groups": loaded.training.groups, "licence": None if card is None else card.licence,
            "data_licence": None if card is None else card.data_licence,
        }
    )  # fmt: skip
