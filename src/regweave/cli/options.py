"""Options of commands: made from the fields of classes of options, or shared by several commands."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError

from regweave.config.settings import preset_names, read_table
from regweave.errors import UsageError
from regweave.io.nifti import NiftiFrame
from regweave.io.stored import NonFinite
from regweave.model import shipped_models
from regweave.options import declared, type_of
from regweave.run.job import Method


def from_fields(command: Callable[..., None], *, rare: bool = False, only: Collection[str] = ()) -> Callable[..., None]:
    """Replace each argument whose type is a class of options by its fields, as arguments of the command line.

    A field that may be given by position becomes an argument, any other an option. Fields that cannot be typed are left
    out, and without ``rare`` those for a table of a settings file; ``only`` names all that are wanted. See
    `regweave.options.option` for the hints.
    """
    hints = get_type_hints(command, include_extras=True)
    classes: dict[str, list[Field[Any]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            typed = [f for f in declared(kind) if f.metadata["cli"].get("typed", str) is not None]
            usual = [f for f in typed if rare or not f.metadata["cli"].get("table")]
            classes[name] = [f for f in typed if f.name in only] if only else usual
            for field in classes[name]:
                cli = field.metadata["cli"]
                typed = cli["typed"] if "typed" in cli else type_of(kind, field)
                shown = {
                    "help": field.metadata["help"].split(". ")[0].removesuffix(".") + ".",  # the first sentence
                    "autocompletion": COMPLETE.get(cli.get("complete")), "rich_help_panel": cli.get("panel"),
                    "metavar": cli.get("metavar"),
                }  # fmt: skip
                named = field.kw_only or "flags" in cli
                flags = cli.get("flags", (f"--{field.name.replace('_', '-')}",) if typed is bool else ())
                info = typer.Option(*flags, **shown) if named else typer.Argument(**shown, show_default=False)
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                parameters.append(inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY if named else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=cli.get("absent", default), annotation=Annotated[typed, info],
                ))  # fmt: skip
        else:
            parameters.append(parameter.replace(annotation=kind))

    @wraps(command)
    def call(**given: Any) -> None:
        for name, listed in classes.items():
            given[name] = hints[name](**{f.name: given.pop(f.name) for f in listed})
        command(**given)

    call.__signature__ = inspect.Signature(sorted(parameters, key=lambda p: p.kind))  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def job_table(config: object) -> dict[str, Any]:
    """Return the options in the table ``[register]`` of a settings file; E194 names what is unknown or not allowed."""
    content = read_table(config if isinstance(config, Path) else None, "register")
    known, found = {f.name: f for f in declared(Method, table=True)}, {}
    for name, value in content.items():
        try:
            found[name] = TypeAdapter(type_of(Method, known[name])).validate_python(value)
        except (KeyError, ValidationError) as error:
            what = "unknown" if isinstance(error, KeyError) else f"{value!r}: {error.errors()[0]['msg']}"
            hint = f"known are {', '.join(known)}; see `regweave presets show`"
            raise UsageError("E194", f"{name} in the table [register] of the settings is {what}", hint) from error
    return found


def complete_preset(typed: str) -> list[str]:
    """Names of presets for the shell."""
    names = preset_names()
    return [name for name in sorted({*names, *(n.split("@")[0] for n in names)}) if name.startswith(typed)]


def complete_model(typed: str) -> list[str]:
    """Names of shipped models for the shell, which offers files where none fits."""
    return [name for name in shipped_models() if name.startswith(typed)]


COMPLETE: dict[Any, Callable[[str], list[str]]] = {"preset": complete_preset, "model": complete_model}

of_input = partial(typer.Option, rich_help_panel="Input")
of_method = partial(typer.Option, rich_help_panel="Method")
of_machine = partial(typer.Option, rich_help_panel="Machine")

Frame = Annotated[NiftiFrame, of_input(help="Matrix that places NIfTI files; auto refuses files whose two disagree.")]
Nonfinite = Annotated[
    NonFinite, of_input(help="Voxels that are not finite numbers: refuse the image, or treat them as background.")
]
Follow = Annotated[
    bool, of_input("--follow-links", help="Let headers (.mhd, .nhdr) name files of voxels outside of their folder.")
]

Transform = Annotated[
    str, of_input("--transform", "-t", help="Transform file (.h5, .tfm, .nii.gz, .dcm), or the word identity.")
]
Chain = Annotated[
    list[str],
    of_input("--transform", "-t", help="Transform file, [FILE,1] or identity; several in order.", metavar="FILE"),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Folder = Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.", metavar="FOLDER")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")]

LabelNames = Annotated[
    Path | None, of_input(help="Names of the labels, JSON, TSV or ITK-SNAP; by default a file beside the label map.")
]

Strict = Annotated[bool, typer.Option("--strict", help="End with exit status 6 if a verdict is fail.")]
PageDetail = Literal["small", "normal", "full"]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors and warnings only.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


def parse_values(text: object, option: str = "--classes") -> tuple[int, ...] | None:
    """Read label values with commas between them."""
    if text is None:
        return None
    try:
        return tuple(int(v) for v in str(text).split(","))
    except ValueError as error:
        raise UsageError("E194", f"{option} {text} is not a list of label values", "write 1,2,3") from error
