"""Options of commands: made from the fields of classes of options, or shared by several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from regweave.config.settings import preset_names, read_table
from regweave.errors import UsageError
from regweave.io.nifti import NiftiFrame
from regweave.io.stored import NonFinite
from regweave.model import shipped_models
from regweave.options import declared, table_values, type_of
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
            parameters += [_parameter(kind, f) for f in classes[name]]
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


def _parameter(kind: type[Any], field: Field[Any]) -> inspect.Parameter:
    """Return the argument of a command for a field; its help is the first sentence of the field's."""
    cli = field.metadata["cli"]
    typed = cli["typed"] if "typed" in cli else type_of(kind, field)
    shown = {"help": field.metadata["help"].split(". ")[0].removesuffix(".") + "."}
    shown |= {
        "autocompletion": COMPLETE.get(cli.get("complete")),
        "rich_help_panel": cli.get("panel"),
        "metavar": cli.get("metavar"),
    }
    default = cli.get("absent", inspect.Parameter.empty if field.default is MISSING else field.default)
    if field.kw_only or "flags" in cli:
        flags = (f"--{field.name.replace('_', '-')}",) if typed is bool else ()
        info = typer.Option(*cli.get("flags", flags), **shown)
        return inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[typed, info]
        )
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    info = typer.Argument(**shown, show_default=False)
    return inspect.Parameter(field.name, place, default=default, annotation=Annotated[typed, info])


def job_table(config: object) -> dict[str, Any]:
    """Return the options in the table ``[register]`` of a settings file."""
    return table_values(Method, read_table(config if isinstance(config, Path) else None, "register"), "register")


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
