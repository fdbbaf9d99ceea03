"""Options of a registration, each declared once; and the same options from the record of an earlier run.

The arguments and the documentation of `regweave.register`, the options of commands, the rows of a batch and the tasks
of workers are made from these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from regweave import __version__, notices
from regweave.config.settings import Metrics, Settings, choose_settings, metric_weights, validate
from regweave.errors import RegweaveError, UsageError
from regweave.io import image_sha256
from regweave.io.disk.files import is_file
from regweave.measures.verdict import Rules, default_rules, read_rules
from regweave.model import shipped_models
from regweave.model.model import Model
from regweave.options import described, option
from regweave.progress import OnProgress
from regweave.registration import devices
from regweave.run.read import ImageLike, Reading
from regweave.run.record import MEMORY, ModelUse, StartRecord
from regweave.run.result import load
from regweave.run.start import Guide, asked_guides, require_labels, require_start
from regweave.types import Image, Transform

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

AUTO = "auto"  # word for the shipped model that fits the images
FILES = ("fixed", "moving", "fixed_labels", "moving_labels", "fixed_mask", "moving_mask")
"""Fields of a job that name images."""
POINTS = ("fixed_points", "moving_points")  # fields of a job that name landmarks


TransformKind = Literal["rigid", "affine", "deformable"]


@dataclass(frozen=True, kw_only=True)
class Method(Reading):
    """What the registrations of a list have in common: how files are read, and how they are registered."""

    preset: str | None = option(
        None, "Settings by name. By default `default`; `regweave presets list` names all.",
        panel="Method", metavar="NAME", complete="preset",
    )  # fmt: skip
    config: str | Path | Settings | None = option(
        None, "Settings and rarer options, TOML. In Python also `Settings`; options are read by commands alone.",
        panel="Method", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    model: str | Path | Model | None = option(
        None, "Weights by structure: a file, a shipped name, or auto for the shipped one that fits the images. A model "
        "brings its own settings unless ``preset`` or ``config`` is given.", panel="Method", typed=Path | None,
        metavar="MODEL", complete="model",
    )  # fmt: skip
    metrics: Metrics | None = option(
        None, 'Members or metrics in place of the bank of the settings: names, "name=weight", or weights by name.',
        table=True,
    )  # fmt: skip
    init: str | Path | Transform | ArrayLike | None = option(
        None, "none, moments, rigid, affine, structures, or a file. By default what the settings state. A transform, a "
        "transform of SimpleITK or a (4, 4) matrix takes fixed points to moving points in LPS millimetres.",
        panel="Method", typed=str | None, metavar="START",
    )  # fmt: skip
    transform: TransformKind = option(
        "deformable", "Kind of the result: rigid, affine or deformable. The first two fit a matrix alone, to a finer "
        "resolution than a start; they take no start, model or metrics.", panel="Method", metavar="KIND",
    )  # fmt: skip
    engine: str | None = option(
        None, "Inference engine in place of that of the settings: trws, fastpd or icm.", typed=None
    )
    predict_classes: bool = option(
        False, "Choose the weights by the model's class predictor even where moving labels are given; these are then "
        "warped and scored only.", table=True,
    )  # fmt: skip
    guide: Guide = option(
        False, "Let structures of both label maps guide. Names choose some of them, a mapping weighs them: 1 is "
        "the usual weight. Structures that one image lacks or cuts do not guide.", panel="Method", typed=bool,
        flags=("--guide",),
    )  # fmt: skip
    guide_only: bool = option(
        False, "Let these structures alone guide, not the images.", panel="Method", flags=("--guide-only",)
    )
    guide_anyway: bool = option(
        False, "Guide by structures whose names seem exchanged, too.", panel="Method", flags=("--guide-anyway",)
    )
    rules: str | Path | Rules | None = option(
        None, "Rules for pass, look and fail, TOML. By default the shipped ones; `regweave rules` prints them.",
        panel="Method", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    check: bool = option(
        False, "Repeat the registration and run it the other way, and map the likely error. It takes four more runs.",
        panel="Method", flags=("--check",),
    )  # fmt: skip
    device: str | None = option(
        None, "Compute device: cpu, cuda, cuda:N or auto. By default cpu; auto takes a GPU where there is one.",
        panel="Method", metavar="NAME",
    )  # fmt: skip

    @property
    def guided_by(self) -> dict[str, float] | None:
        """Weights of the structures that are to guide, by name; empty for all of them, None for no guides."""
        return asked_guides(self.guide, only=self.guide_only)


@dataclass(frozen=True, kw_only=True)
class Job(Method):
    """Request of one registration."""

    fixed: ImageLike = field(kw_only=False, metadata=described(
        "Image that stays; its grid is that of the result. A path, a `Volume`, an (array, RAS affine) tuple, an image "
        "of SimpleITK, nibabel, ANTsPy, TorchIO or MONAI, or an `Image` with its labels and mask.",
        typed=Path | None, absent=None,
    ))  # fmt: skip
    moving: ImageLike = field(
        kw_only=False,
        metadata=described("Image that is warped. Given in the same way.", typed=Path | None, absent=None),
    )
    moving_labels: ImageLike | None = option(
        None, "Segmentation of the moving image. It chooses the weights of a model; without it the model's class "
        "predictor segments the image, if it has one.", panel="Input", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    fixed_labels: ImageLike | None = option(
        None, "Segmentation of the fixed image, for Dice and to guide.", panel="Input", typed=Path | None,
        metavar="FILE",
    )  # fmt: skip
    fixed_mask: ImageLike | None = option(
        None, "Region of the fixed image that counts. A label map on the grid of its image; 0 is outside, such as a "
        "lesion, a couch, or what lies beyond the field of view.", panel="Input", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    moving_mask: ImageLike | None = option(
        None, "Region of the moving image that counts.", panel="Input", typed=Path | None, metavar="FILE"
    )
    fixed_points: str | Path | ArrayLike | None = option(
        None, "Landmarks of the fixed image, for errors. A .mrk.json, .fcsv or .csv file, or LPS millimetres of shape "
        "(P, 3); they guide only with ``guide_points``.", panel="Input", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    moving_points: str | Path | ArrayLike | None = option(
        None, "The same places in the moving image. They have the same labels or the same order.",
        panel="Input", typed=Path | None, metavar="FILE",
    )  # fmt: skip
    guide_points: float | None = option(
        None, "Let the landmarks guide, with their accuracy in mm. It is the standard deviation of their places along "
        "each axis. A column ``guide`` of a .csv file of fixed points, 1 or 0, names those that guide; others judge.",
        panel="Input", metavar="MM",
    )  # fmt: skip
    rigid: str | Sequence[str] | None = option(
        None, "Structures of the moving labels that stay rigid, such as mandible. Each connected piece keeps its "
        "shape, and the tissue around follows; ``bones`` are those of a CT and of the structures named as bones.",
        panel="Method", typed=str | None, metavar="NAMES",
    )  # fmt: skip
    threads: int | None = option(None, "Threads; the result is the same for any number.", panel="Method", metavar="N")
    progress: bool = option(True, "Show a bar on a terminal and in a notebook.", typed=None)
    on_progress: OnProgress | None = option(
        None, "Function that gets a `Progress` after every step, in place of the bar.", typed=None
    )

    def __post_init__(self) -> None:
        """Take labels and masks that images bring, where none are given."""
        super().__post_init__()
        for name in ("fixed", "moving"):
            image = getattr(self, name)
            if isinstance(image, Image):
                for part in ("labels", "mask"):
                    if getattr(self, f"{name}_{part}") is None:
                        object.__setattr__(self, f"{name}_{part}", getattr(image, part))


def rules_of(given: str | Path | Rules | None) -> Rules:
    """Return rules, read if a file is named; the shipped ones where nothing is given."""
    return read_rules(given) if isinstance(given, str | Path) else given or default_rules()


def check_method(job: Method) -> tuple[Model | None, Settings, Any, Any]:
    """Return model, settings, start and device of a job, or refuse them before any image is read or folder is made.

    The model is None for ``auto``, which the images decide. Settings are those that the job names, else those of its
    model, else the default preset. The start of a linear job is its kind: it is the whole result.
    """
    model, weights, guided = job.model, metric_weights(job.metrics), job.guided_by is not None
    if isinstance(model, str | Path):
        model = None if str(model) == AUTO else Model.load(model)
    if job.preset is not None and job.config is not None:
        raise UsageError("E189", "a preset and settings (config) are both given", "give one of them")
    if model is not None and weights:
        raise UsageError("E189", "metrics and a model are both given", "give one of them")
    config = model.settings if model is not None and job.config is None and job.preset is None else job.config
    settings = choose_settings(job.preset or "default", config, job.engine, weights)
    if job.transform not in get_args(TransformKind):
        raise UsageError("E192", f"unknown transform {job.transform!r}", f"use {', '.join(get_args(TransformKind))}")
    start: Any = job.transform
    if job.transform == "deformable":
        start = settings.initial if job.init is None else job.init
        require_start(start, model, guided=guided)
    else:
        given = ("init", "model", "metrics", "guide_points", "rigid")
        beside = [name for name in given if getattr(job, name, None) is not None]
        beside += [name for name, there in {"guide": guided, "check": job.check}.items() if there]
        if beside:
            message = f"transform {job.transform} and {' and '.join(beside)} are both given"
            raise UsageError("E189", message, "a linear fit uses the images alone: leave one of them out")
    if isinstance(job, Job):
        require_labels(job.guided_by, job.fixed_labels, job.moving_labels)
    return model, settings, start, devices.get(job.device)


def recorded_call(record: str | Path, **files: Any) -> dict[str, Any]:
    """Return the fields of the job that a record holds, after comparing every file with its hash.

    ``files`` are new places of images, labels and masks. A damaged record is E178; where a file is not the one that was
    used, the run cannot be repeated: E174. Where another version of the program made the record, W213 is given.
    """
    path = Path(record)
    run = load(path).provenance
    reading, settings = run.call.reading, run.settings
    if not isinstance(settings, Settings):  # a plug-in is missing: the error names it
        settings = validate(settings.content(), f"'{path}'")
    missing = [name for name in ("fixed", "moving") if name not in run.inputs]
    if missing:
        raise RegweaveError("E174", f"'{path}' names no {missing[0]} image", "give a record that is whole")
    if run.regweave != __version__:
        notices.warn(f"W213: '{path}' was made by regweave {run.regweave}, this is {__version__}; bits may differ")

    def same(file: str | Path | None, expected: str | None, name: str, read: Reading = reading) -> Path:
        what = f"the {name.replace('_', ' ')}"
        if file is None:
            hint = "name the file, where it is an image or labels; save the model or start"
            raise RegweaveError("E174", f"{what} of '{path}' was an object in memory", hint)
        found = image_sha256(file, follow_links=read.follow_links, series=getattr(read, f"{name}_series", None))
        if found != expected:
            message = f"{what}, '{file}', is not the file that was used: SHA-256 {found}, recorded {expected}"
            raise RegweaveError("E174", message, "restore the file, or register anew without --from")
        return Path(file)

    def start(used: StartRecord) -> Any:
        if used.file is not None or used.requested == MEMORY:
            return same(used.file, used.sha256, "start")
        return used.matrix if used.requested == "matrix" else used.requested

    def model(used: ModelUse) -> Path:
        there = used.path is None or is_file(used.path)
        place = used.path if there else str(shipped_models().get(used.name, used.path))
        return same(place, used.sha256, f"model {used.name}", Reading())

    return {
        **{f.name: getattr(reading, f.name) for f in fields(Reading)},
        **{n: same(files.get(n) or one.path, one.sha256, n) for n, one in run.inputs.items() if n in (*FILES, *POINTS)},
        **{name: value for name, value in run.call if name != "reading"},
        "init": start(run.start) if run.call.transform == "deformable" else None,
        "config": settings, "model": None if run.model is None else model(run.model), "device": run.device,
    }  # fmt: skip
