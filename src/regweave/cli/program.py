"""Commands on the program itself: its presets, rules and versions."""

import json
import os
import platform
import re
import subprocess
import textwrap
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer

import regweave
from regweave import _core
from regweave.cli import options as opt
from regweave.cli.app import WIDTH, command_line
from regweave.config.settings import preset, preset_names
from regweave.measures.verdict import CLINIC, SHIPPED, clinic_rules, default_rules, read_rules, shipped_text
from regweave.options import declared, table_text
from regweave.registration import devices
from regweave.registry import plugins_found
from regweave.run.job import Method
from regweave.run.memory import allowed_threads
from regweave.training.options import default_table

app = command_line()
presets = command_line(help="List the presets, or print one as TOML to edit and pass back with --config.")
app.add_typer(presets, name="presets")


@presets.add("regweave presets list", name="list")
def list_(*, as_json: opt.Json = False) -> None:
    """List the presets, one line each."""
    names = preset_names()
    if as_json:
        print(json.dumps(names))
        return
    for name in names:
        settings = preset(name)
        levels = ", ".join(f"{level.spacing_mm:g}" for level in settings.levels)
        refined = f"{settings.refine.steps} steps" if settings.refine.steps else "none"
        used = "  (default)" if name == preset("default").name else ""
        print(f"{name:<12}nodes {levels} mm, engine {settings.engine}, refinement {refined}{used}")


@presets.add("regweave presets show default > mine.toml")
def show(
    name: Annotated[
        str, typer.Argument(help="Preset, with or without its version.", autocompletion=opt.complete_preset)
    ],
    *,
    as_json: opt.Json = False,
) -> None:
    """Print a preset as TOML, with the options of `register` and `train` for a settings file; or the preset as JSON."""
    found = preset(name)
    print(
        found.model_dump_json(indent=1)
        if as_json
        else f"{found.toml()}\n{table_text(declared(Method, table=True), 'register')}\n{default_table()}",
        end="\n" * as_json,
    )


@app.add("regweave rules > mine.toml", "regweave rules mine.toml")
def rules(
    file: Annotated[Path | None, typer.Argument(help="Rules file to check; by default the shipped rules.")] = None,
    *,
    clinic: Annotated[bool, typer.Option("--clinic", help="The rules of propagated contours, with sources.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Print the shipped rules for pass, look and fail as TOML, or check a file of your own.

    Edit them and pass the file to `register`, `contours`, `evaluate` or
    `report` with --rules.
    """
    shipped = clinic_rules() if clinic else default_rules()
    found = shipped if file is None else read_rules(file)
    if as_json:
        print(json.dumps(asdict(found), indent=1, ensure_ascii=False))
    elif file is None:
        print(shipped_text(CLINIC if clinic else SHIPPED), end="")
    else:
        print("\n".join(f"{rule}: {found.words(rule)}" for rule in found.limits))


CPU_FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "sve")


@app.add("regweave about", "regweave about --json")
def about(as_json: opt.Json = False) -> None:
    """Print the version of the program, of the machine and of the libraries."""
    facts = describe()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    for key, value in facts.items():
        pairs = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = f"{key:<14}{', '.join(pairs) if isinstance(pairs, list) else pairs}"
        print(textwrap.fill(text, WIDTH, subsequent_indent=" " * 14, break_long_words=False, break_on_hyphens=False))
    print("For research use only; not a medical device.")


def describe() -> dict[str, Any]:
    """Collect what `about` prints."""
    return {
        "version": regweave.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_features": _cpu_features(),
        "kernels": _core.BUILD,
        "gpus": _gpus(),
        # a scheduler can leave a process fewer than the machine has
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": allowed_threads(),
        "presets": list(regweave.preset_names()),
        # those that do not come with the package, and where each is from
        "plug-ins": {f"{k}/{name}": place for k, found in plugins_found().items() for name, place in found.items()},
        "dependencies": _dependencies(),
    }


def _commit() -> str | None:
    """Return the commit of a source checkout, None for an installed package."""
    root = Path(regweave.__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "src" / "regweave").is_dir():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _gpus() -> list[str]:
    """List the GPUs that `--device` may name, or give the reason for none."""
    found, why = devices.gpus()
    listed = [f"cuda:{i} {name} ({memory / 2**30:.0f} GB)" for i, (name, memory, *_) in enumerate(found)]
    return listed or [f"none: {why}"]


def _cpu_features() -> list[str]:
    listing = Path("/proc/cpuinfo")
    if not listing.is_file():
        return []
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", listing.read_text(encoding="utf-8"), flags=re.MULTILINE)
    present = set(match[1].split()) if match else set()
    return [name for name in CPU_FEATURES if name in present]


def _dependencies() -> dict[str, str]:
    try:
        stated = requires("regweave") or []
    except PackageNotFoundError:
        return {}
    names = [re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0] for text in stated if "extra ==" not in text]
    return {name: version(name) for name in names}
