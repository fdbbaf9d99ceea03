"""What every benchmark shares: its command line, the record of where and how it ran, its JSON file."""

import argparse
import datetime
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import regweave
from regweave import _core
from regweave.run.memory import physical_memory_mb

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
SCHEMA = 1
PACKAGES = ("numpy", "scipy", "SimpleITK", "nibabel", "pydantic", "antspyx")
# What a registration's numbers depend on; presets are not here because rows carry the hash of their settings.
SOURCES = ("config", "energy", "engines", "measures", "metrics", "registration", "spatial")


@dataclass(frozen=True)
class Claim:
    """One measured number, with the target it is held against where there is one.

    ``sense`` is "at least" or "at most"; ``style`` is how the number is printed, in Python's format language.
    """

    what: str
    value: float
    style: str = ".3f"
    unit: str = ""
    target: float | None = None
    sense: str = "at least"

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target. A number that is not finite reaches none."""
        if self.target is None:
            return None
        if not math.isfinite(self.value):
            return False
        return self.value >= self.target if self.sense == "at least" else self.value <= self.target

    def row(self) -> dict[str, Any]:
        """Return the claim as it is written to JSON."""
        return {**asdict(self), "met": self.met}


def parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a command line with the options that all benchmarks have."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    out.add_argument("--pairs", type=int, default=None, help="a seeded sample of this many pairs instead of all")
    out.add_argument("--seed", type=int, default=0, help="seed of the sample, the phantoms and the bootstrap")
    out.add_argument("--init", default="none", help="initial alignment: none, moments or affine")
    out.add_argument("--output", default=None, help="name of the file under benchmark/results, without .json")
    out.set_defaults(**defaults)
    return out


def write(name: str, seed: int, content: Mapping[str, Any], claims: Sequence[Claim]) -> Path:
    """Write the result of a benchmark and print its claims."""
    record = {
        "schema": SCHEMA,
        "benchmark": Path(sys.argv[0]).stem,
        "command": command(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
        "claims": [claim.row() for claim in claims],
        **content,
    }
    RESULTS.mkdir(exist_ok=True)
    path, part = RESULTS / f"{name}.json", RESULTS / f"{name}.tmp"
    part.write_text(json.dumps(plain(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
    for claim in claims:
        print(describe(claim.row()))
    print(f"wrote {path.relative_to(ROOT)}")
    return path


def describe(claim: Mapping[str, Any]) -> str:
    """One line for a claim as it is in JSON."""
    verdict = {True: ", met", False: ", NOT met", None: ""}[claim["met"]]
    wanted = f" (wanted {target(claim)}{verdict})" if claim["target"] is not None else ""
    return f"{claim['what']}: {measured(claim)}{wanted}"


def measured(claim: Mapping[str, Any]) -> str:
    """Return the number of a claim with its unit."""
    return "failed" if claim["value"] is None else _number(claim["value"], claim)


def target(claim: Mapping[str, Any]) -> str:
    """Return the target of a claim with its unit, empty without one."""
    if claim["target"] is None:
        return ""
    return f"{'≥' if claim['sense'] == 'at least' else '≤'} {_number(claim['target'], claim)}"


def _number(value: float, claim: Mapping[str, Any]) -> str:
    return f"{value:{claim['style']}}{claim['unit']}"


def command() -> str:
    """Return the command line that makes the result again, without the paths of this machine."""
    words = [Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:]]
    return " ".join(["python", f"benchmark/{Path(sys.argv[0]).name}", *words])


def commit() -> dict[str, Any]:
    """Hash of the commit, and whether the tree differed from it; nulls outside a checkout."""
    try:
        head, changes = (
            subprocess.run(["git", *a], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for a in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "src", "core", "benchmark/*.py"])
        )
    except (OSError, subprocess.CalledProcessError):
        return {"hash": None, "modified": None}
    return {"hash": head, "modified": bool(changes)}


def machine() -> dict[str, Any]:
    """Describe the machine in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_gb": round(physical_memory_mb() / 1024),
        "system": f"{platform.system()} {platform.machine()}",
        "load_at_end": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of the interpreter and of the packages that took part."""
    out = {"regweave": regweave.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return out


def fingerprint() -> str:
    """Hash of the code that registers: rows measured with other code are not used again."""
    package = Path(regweave.__file__).parent
    files = [f for folder in SOURCES for f in sorted((package / folder).rglob("*.py"))]
    digest = hashlib.sha256()
    for file in [*files, Path(_core.LIBRARY)]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """Replace what JSON has no word for: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def counted(n: int, failed: int, data: str) -> str:
    """Say how many pairs a mean is over, and how many are missing from it."""
    return f"{n} pairs of {data}" + (f", {failed} FAILED" if failed else "")


def failure(error: BaseException) -> str:
    """Return an error in one line, without the paths of this machine."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    for path in (os.environ.get("REGWEAVE_DATA"), str(ROOT), str(Path.home())):
        if path and len(path) > 1:
            text = text.replace(path, "…")
    return text
