"""Write docs/settings.md from the settings themselves: ``python docs/_make_settings.py``. A test compares the two."""

import re
from collections.abc import Iterable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from regweave import engines, losses, metrics
from regweave.config.settings import Level, Member, Refine, Settings
from regweave.options import declared, type_of
from regweave.run.job import Method
from regweave.training.options import TrainOptions

PAGE = Path(__file__).with_name("settings.md")
INTRODUCTION = """# Settings

Made from the program itself by `docs/_make_settings.py`. A settings file is TOML; `regweave presets show NAME` prints
one to start from, `--config FILE` uses it. A key that is not listed here, or a number outside its range, is refused
([E185](errors.md)). A model stores the settings that its weights belong to.
"""
REGISTER = """## `[register]`: rarer options of `regweave register`

Read by the commands `register` and `batch`, and the same as the arguments of `rw.register`. A file may have this table
alone: the settings are then those of the default preset.
"""
TRAINING = """## `[train]`: options of `regweave train`

Read by the command `train` alone, and the same as the arguments of `rw.train` and `rw.MetricLearner`. Options of the
command come first. Further keys: `metrics` and `loss`; `nifti_frame`, `nonfinite` and `follow_links` as in
`[register]`; for a [cluster](howto/cluster.md) `tls_ca`, `tls_cert`, `tls_key` and `wait_for_workers`.
"""
TABLES = (
    ("The file", Settings),
    ("`[[levels]]`: the discrete levels, coarse to fine", Level),
    ("`[refine]`: the continuous stage", Refine),
    ("`[[banks.mr]]` and `[[banks.ct]]`: the metrics that are compared", Member),
)
EFFECTS = {
    Settings: {
        "name": "",
        "initial": "the first level undoes about half of its control spacing",
        "modality": "another bank and other windows",
        "smoothness": "more: stiffer, less detail; less: follows noise. A model brings its own",
        "engine": "`trws` and `fastpd` bound what is left to gain, `icm` is quicker and bounds nothing",
        "engine_options": "more iterations: smaller gap, more time",
        "class_rule": "only with weights for structures",
        "class_at": "`displaced` takes more time",
        "class_reach": "more: the weights of a structure act further outside it",
        "pairwise": "`elastic` pulls back to the start, `fluid` allows larger deformations",
        "loss": "only on training",
        "loss_options": "only on training",
        "levels": "more levels: longer reach, finer detail, more time",
        "reference_mm": "",
        "refine": "more: sharper borders; no steps: control points only",
        "banks": "",
    },
    Level: {
        "spacing_mm": "smaller: finer detail, more control points, more time",
        "shrink": "more: faster, coarser",
        "voxels_per_spacing": "more: finer images, more time",
        "support": "larger: steadier, blurs borders, more time",
        "labels_per_axis": "more: longer reach in one step, several times the time",
        "steps": "more: closer to the optimum of the level, more time",
        "first_step": "larger: longer reach; a level reaches about the sum of its steps",
        "step_decay": "nearer to 1: longer reach, coarser end",
    },
    Refine: {
        "steps": "more: sharper, more time; the gain fades",
        "max_voxels": "fewer: faster, less memory, less detail in large images",
        "finest_mm": "smaller: vessels of the lung are seen; more time and memory",
        "finest_steps": "more: sharper, more time",
        "finest_smoothness": "",
        "spacing_voxels": "smaller: finer detail, rougher field",
        "spacing_mm": "smaller: finer detail, rougher field",
        "smoothness": "more: stiffer; less: rougher, Jacobians further from 1",
        "smoothness_ct": "",
        "smoothness_multi": "",
        "exact": "true: nearer to the least cost, about half as long again on a CT",
        "bending_mm": "larger: fewer bends, stretches stay cheap",
        "rate": "larger: faster, may overshoot",
        "radius_voxels": "larger: steadier, blurs borders",
        "start_sigma": "larger: forgets more of what the levels found",
        "class_reach_voxels": "only with a model",
    },
    Member: {
        "name": "",
        "metric": "",
        "source": "maps of structures instead of intensities",
        "window": "narrower: more contrast inside it, nothing outside",
        "support": "larger: steadier, blurs borders, more time",
        "sigma_voxels": "more: less noise, less detail",
        "stage": "`levels` is robust, `refine` is precise",
        "weight": "only the ratio to the other members matters",
        "options": "",
    },
}
OPTIONS: dict[str, Any] = {"options": metrics, "engine_options": engines, "loss_options": losses}
LIMITS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}


def page() -> str:
    """Return the page: a table for each part of a file, then the options of each metric, engine and loss."""
    sections = [_section(f"## {title}", model) for title, model in TABLES]
    sections += [
        _options(REGISTER, Method, declared(Method, table=True)),
        _options(TRAINING, TrainOptions, fields(TrainOptions)),
    ]
    for key, plugins in OPTIONS.items():
        rows = [row for name in plugins.available() for row in _rows(plugins.get(name).Options, f"{name}: ")]
        sections.append(_table(f"## `{key}`, by name", rows))
    return "\n".join([INTRODUCTION, *sections])


def _section(title: str, model: type[BaseModel]) -> str:
    effects = EFFECTS[model]
    rows = [[*row, effects[key]] for key, row in zip(model.model_fields, _rows(model), strict=True)]
    return _table(title, rows, "effect")


def _rows(model: type[BaseModel], owner: str = "") -> list[list[str]]:
    """Return key, meaning, allowed values and default of each field."""
    meanings = {key: _plain(field.description or "") for key, field in model.model_fields.items()}
    if not all(meanings.values()):
        meanings = _meanings(model.__doc__ or "")
    schema = model.model_json_schema()
    rows = []
    for key in model.model_fields:
        entry = schema["properties"][key]
        allowed = "; ".join(dict.fromkeys(_allowed(entry)))
        rows.append([f"{owner}`{key}`", meanings[key], allowed, _default(entry, key in schema.get("required", []))])
    return rows


def _table(title: str, rows: list[list[str]], *more: str) -> str:
    head = ["key", "meaning", "allowed", "default", *more]
    table = [head, ["---"] * len(head), *rows]
    return "\n".join([title, "", *(f"| {' | '.join(row)} |" for row in table), ""])


def _options(head: str, kind: type[Any], listed: Iterable[Field[Any]]) -> str:
    """Return the table of the options of a command."""
    rows = []
    for f in listed:
        schema = TypeAdapter(type_of(kind, f)).json_schema() | {"default": f.default}
        allowed = "; ".join(dict.fromkeys(_allowed(schema)))
        rows.append([f"`{f.name}`", _plain(f.metadata["help"]), allowed, _default(schema, False)])
    return _table(head, rows)


def _meanings(text: str) -> dict[str, str]:
    """Return the meaning of each parameter of a docstring."""
    found = {}
    parts = re.split(r"^    (\w[\w, ]*) : .*\n", text.split("----------\n", 1)[1], flags=re.MULTILINE)
    for names, meaning in zip(parts[1::2], parts[2::2], strict=True):
        for name in names.split(", "):
            found[name] = _plain(meaning)
    return found


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", r"\|")


def _allowed(entry: dict[str, Any]) -> list[str]:
    if "anyOf" in entry:
        return [text for part in entry["anyOf"] for text in _allowed(part)]
    if "enum" in entry or "const" in entry:
        return [", ".join(f"`{v}`" for v in entry.get("enum", [entry.get("const")]))]
    limits = " ".join(words.format(_number(entry[key])) for key, words in LIMITS.items() if key in entry)
    if entry.get("type") == "array" and entry.get("items", {}).get("type") == "integer":
        return ["label values, 1 or more"]
    if entry.get("type") == "array":
        inside = _allowed(entry["prefixItems"][0])[0] if "prefixItems" in entry else ""
        if "minItems" not in entry:
            return ["a list"]
        return [f"two numbers {inside}" if inside else f"{entry['minItems']} to {entry['maxItems']} tables"]
    text = f"text of at most {entry['maxLength']} characters" if "maxLength" in entry else "a name"
    kinds = {
        "number": limits, "integer": f"whole numbers {limits}", "boolean": "`true`, `false`", "string": text,
        "object": "a table", "null": "",
    }  # fmt: skip
    words = kinds["object" if "$ref" in entry else entry["type"]]
    return [words] if words else []


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _default(entry: dict[str, Any], required: bool) -> str:
    value = entry.get("default")
    if required:
        return "required"
    if value is None or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
