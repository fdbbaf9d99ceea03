"""What ``--help`` looks like: plain text of 80 columns, options in groups, examples at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDTH = 80
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Input": (
        "fixed", "moving", "again", "pairs", "files", "file", "result", "models", "transform", "reference",
        "experiment", "name", "data", "moving_labels", "fixed_labels", "label_names", "classes", "train_pairs",
        "source", "target", "other_grid",
        "fixed_modality", "moving_modality", "nifti_frame", "nonfinite", "follow_links",
    ),
    "Output": (
        "output", "overwrite", "write", "resume", "pages", "no_report", "report", "as_json", "quiet",
    ),
    "Method": (
        "model", "preset", "config", "metric", "metrics", "method", "init", "engine", "fill", "loss", "levels",
        "rules", "baselines", "allow_leak", "quick", "c", "alpha", "eta", "epsilon", "rounds", "signed", "gate",
        "folds", "max_pairs", "budget", "seed",
    ),
    "Machine": (
        "threads", "workers", "scheduler", "tls_ca", "tls_cert", "tls_key", "wait_for_workers", "max_memory_mb",
    ),
    "Program": ("version", "install_completion", "show_completion", "help"),
}  # fmt: skip
"""Parameters by heading, in the order of each; a parameter that stands nowhere fails a test."""
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "register": (
        "regweave register later.nii.gz planning.nii.gz -o result",
        "regweave register later.nii.gz planning.nii.gz -o result \\",
        "    --moving-labels organs.nii.gz --model weights.json",
        "regweave register fixed.nii.gz moving.nii.gz -o out --metric mi --json",
        "regweave register --from result/result.json -o same",
    ),
    "train": (
        "regweave train train.csv -o weights.json",
        "regweave train train.csv -o weights.json --classes 1,2 --workers 8",
        "regweave train train.csv -o weights.json --resume",
    ),
    "evaluate": (
        "regweave evaluate test.csv -o evaluation --model weights.json",
        "regweave evaluate test.csv -o evaluation --model weights.json \\",
        "    --baselines --train-pairs train.csv",
    ),
    "report": (
        "regweave report result",
        "regweave report result --rules mine.toml",
        "regweave report weights.json",
    ),
    "rules": (
        "regweave rules > mine.toml",
        "regweave rules mine.toml",
    ),
    "reproduce": (
        "regweave reproduce ibsr --data sets -o ibsr --quick",
        "regweave reproduce all --data sets -o paper --workers 16",
    ),
    "plan": (
        "regweave plan fixed.nii.gz moving.nii.gz",
        "regweave plan fixed.nii.gz moving.nii.gz --preset paper --json",
    ),
    "check": ("regweave check scans/*.nii.gz", "regweave check planning.nii.gz --json"),
    "convert": (
        "regweave convert result/transform.h5 -o field.nii.gz",
        "regweave convert affine.tfm -o field.nii.gz -r fixed.nii.gz",
    ),
    "demo": (
        "regweave demo",
        "regweave demo --data scans -o my-demo",
    ),
    "about": ("regweave about", "regweave about --json"),
    "warp image": (
        "regweave warp image dose.nii.gz -t result/transform.h5 \\",
        "    -r fixed.nii.gz -o warped.nii.gz",
    ),
    "warp labels": (
        "regweave warp labels organs.nii.gz -t result/transform.h5 \\",
        "    -r fixed.nii.gz -o new.nii.gz",
    ),
    "warp points": (
        "regweave warp points marks.csv -t result/transform.h5 -o moved.csv",
        "regweave warp points marks.mrk.json --from moving --to fixed \\",
        "    -t result/inverse.h5 -o moved.mrk.json",
    ),
    "presets list": ("regweave presets list",),
    "presets show": ("regweave presets show default > mine.toml",),
    "weights list": ("regweave weights list",),
    "weights show": ("regweave weights show weights.json",),
    "weights compare": ("regweave weights compare mine.json theirs.json",),
}
"""Calls by command, each line at most 76 characters."""
SUMMARIES: Mapping[str, str] = {
    "register": "Register two images; write transforms, numbers and a page.",
    "train": "Learn from masks how much each structure trusts each metric.",
    "evaluate": "Compare models and baselines on a list of pairs.",
    "report": "Make the page of a result again.",
    "rules": "Print the rules for pass, look and fail.",
    "reproduce": "Run the experiments of the paper.",
    "plan": "Forecast memory and time of a registration.",
    "check": "Look for faults in image files.",
    "convert": "Write a transform in another format.",
    "demo": "Train, register and evaluate, on phantoms or your scans.",
    "about": "Print the versions of everything that runs here.",
    "warp": "Move images, labels or points with a transform.",
    "warp image": "Bring a moving image onto the fixed grid.",
    "warp labels": "Bring moving labels onto the fixed grid.",
    "warp points": "Bring points from one image to the other.",
    "presets": "List presets or print one as TOML.",
    "presets list": "List the presets.",
    "presets show": "Print a preset as TOML.",
    "weights": "Show what models have learned.",
    "weights list": "Name the models that come with the package.",
    "weights show": "Print the weights of models.",
    "weights compare": "Print the weights of models side by side.",
}
"""A line for each command, at most 60 characters."""
FIRST = ("regweave demo", "regweave register later.nii.gz planning.nii.gz -o result", "regweave register --help")
"""Calls that a newcomer may try."""
EXIT_STATUS = (
    "0   done",
    "1   done, but some registrations failed; the results name them",
    "2   wrong call: unknown option, value or name",
    "3   an input cannot be used",
    "4   the work does not fit the machine",
    "5   cancelled (Ctrl-C, SIGTERM, SIGHUP); nothing half-written is left",
    "70  a fault of the program; a report was written",
)


def _grouped(parameters: list[Any], ctx: Any, formatter: Any) -> None:
    """Write the parameters under their headings."""
    records = {p.name: _record(p, ctx) for p in parameters}
    known = {name for names in SECTIONS.values() for name in names}
    rest = [name for name in records if name not in known]
    for title, names in (*SECTIONS.items(), ("Other", rest)):
        rows = [records[name] for name in names if records.get(name) is not None]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _argument(parameter: Any) -> str:
    """Name an argument as the text of the help does: FIXED, [EXPERIMENT], FILES..."""
    name = parameter.metavar or parameter.name.upper()
    name = name if parameter.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if parameter.required else f"[{name}]"


def _record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    record: tuple[str, str] | None = parameter.get_help_record(ctx)
    if record is not None and parameter.param_type_name == "argument":
        return _argument(parameter).strip("[]"), record[1]
    return record


def _lines(title: str, lines: tuple[str, ...], formatter: Any) -> None:
    """Write lines as they are."""
    with formatter.section(title):
        for line in lines:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(TyperCommand):
    """A command whose usage names what it needs and whose options are in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments, options that must be given, and a word for the others."""
        parameters: list[Any] = self.get_params(ctx)
        pieces = [_argument(p) for p in parameters if p.param_type_name == "argument"]
        pieces += [
            f"{min(p.opts, key=len)} {p.name.upper()}"
            for p in parameters
            if p.param_type_name == "option" and p.required
        ]
        return [*pieces, "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        _grouped(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        name = ctx.command_path.partition(" ")[2]
        if name in EXAMPLES:
            _lines("Examples", EXAMPLES[name], formatter)


class Group(TyperGroup):
    """A group of commands; that of the whole program ends with its exit status."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        _grouped(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write first calls and how the program ends, or the examples of the group's commands."""
        if ctx.parent is None:
            _lines("Examples", FIRST, formatter)
            _lines("Exit status", EXIT_STATUS, formatter)
            return
        path = ctx.command_path.partition(" ")[2]
        lines = [line for name, some in EXAMPLES.items() if name.startswith(f"{path} ") for line in some]
        _lines("Examples", tuple(lines), formatter)
