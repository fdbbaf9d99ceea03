"""What is compared: the adapters under benchmark/peers, each with its settings and the interpreter that runs it."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import regweave
from _common import ROOT, fingerprint
from regweave.model.shipped import find_model

FOLDER = ROOT / "benchmark" / "peers"
VENV = ROOT / ".venv-peers"
REASONS = VENV / "not-installed.json"
OWN = "regweave_own"
OURS = "regweave:default"
GROUP = "peers"
# The measuring side: rows of a peer that were judged by other code are not used again.
JUDGES = ("spatial", "measures")


@dataclass(frozen=True)
class Method:
    """One row of the comparison: an adapter with the settings it may choose from.

    ``missing`` says why it cannot run, and is None where it can. ``code`` is the hash of all that its numbers depend
    on besides the setting.
    """

    name: str
    adapter: str
    settings: dict[str, dict[str, Any]]
    python: str
    version: str
    code: str
    missing: str | None = None


def adapters() -> list[str]:
    """Names of the peers' adapters, sorted."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_") and p.stem != OWN)


def load(adapter: str) -> Any:
    """Import an adapter; what it needs of its peer is imported when it runs."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(adapter)


def choose_methods(wanted: Sequence[str], models: Sequence[str], labels: Sequence[int]) -> list[Method]:
    """Return regweave's presets and models, and the peers of these names; none are all of them."""
    unknown = sorted(set(wanted) - set(adapters()))
    if unknown:
        raise SystemExit(f"unknown peer {', '.join(unknown)}; available: {', '.join(adapters())}")
    return [*_own(models, labels), *(_peer(name) for name in (wanted or adapters()))]


def _own(models: Sequence[str], labels: Sequence[int]) -> list[Method]:
    settings = {f"regweave:{name}": value for name, value in load(OWN).SETTINGS.items()}
    for model in models:
        path = find_model(model).resolve()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        # The hash tells models of one name apart where rows are taken from an earlier run.
        settings[f"regweave:{path.stem}"] = {"model": str(path), "sha256": digest, "classes": list(labels)}
    code = f"{fingerprint()} {_hash([FOLDER / f'{OWN}.py'])}"
    return [Method(n, OWN, {"as is": s}, sys.executable, regweave.__version__, code) for n, s in settings.items()]


def _peer(adapter: str) -> Method:
    module = load(adapter)
    installed = version_of(module.DISTRIBUTION)
    missing = None if installed else f"not installable: {reason(module.DISTRIBUTION)}"
    package = Path(regweave.__file__).parent
    judges = [f for folder in JUDGES for f in sorted((package / folder).rglob("*.py"))]
    code = f"{installed} {_hash([FOLDER / f'{adapter}.py', Path(module.run.__code__.co_filename), *judges])}"
    return Method(
        adapter, adapter, module.SETTINGS, str(VENV / "bin" / "python"), installed or "none", code, missing
    )  # fmt: skip


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def version_of(distribution: str) -> str | None:
    """Version of a package in the environment of the peers, None where it is not there."""
    folders = [str(p) for p in VENV.glob("lib/python*/site-packages")]
    found = list(metadata.distributions(name=distribution, path=folders))
    return found[0].version if found else None


def reason(distribution: str) -> str:
    """Say why a package is not in the environment of the peers."""
    if not VENV.exists():
        return "run benchmark/peers.py --setup"
    reasons = json.loads(REASONS.read_text(encoding="utf-8")) if REASONS.exists() else {}
    return str(reasons.get(distribution.lower(), "run benchmark/peers.py --setup"))


def set_up() -> None:
    """Create the environment of the peers, and keep the reason for each package that cannot be installed."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        (VENV / ".gitignore").write_text("*\n", encoding="utf-8")
    reasons: dict[str, str] = {}
    for requirement in groups[GROUP]:
        command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        name = requirement.split("=")[0].split(">")[0].split("<")[0].strip()
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reasons[name.lower()] = (errors or ["pip failed"])[-1].removeprefix("ERROR: ")
        print(f"{requirement}: {reasons.get(name.lower()) or version_of(name)}", flush=True)
    REASONS.write_text(json.dumps(reasons, indent=1) + "\n", encoding="utf-8")
