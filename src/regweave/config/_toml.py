"""Write settings as TOML: nested tables, arrays of tables and plain values."""

from __future__ import annotations

import json
from typing import Any


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """Serialise nested tables, arrays of tables and plain values."""
    plain, nested = [], []
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            nested.append(f"\n[{path}]\n{to_toml(value, path + '.')}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            nested.extend(f"\n[[{path}]]\n{_inline_table(item)}" for item in value)
        else:
            plain.append(f"{key} = {_toml_value(value)}\n")
    return "".join(plain + nested)


def _inline_table(item: dict[str, Any]) -> str:
    return "".join(f"{k} = {_toml_value(v)}\n" for k, v in item.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML string
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(v) for v in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    return repr(value)
