"""Shared by all benchmarks: options, rows that are kept when a run is stopped, child processes, and the result file."""

import argparse
import datetime
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import regweave
from regweave import _core
from regweave.run.memory import physical_memory_mb

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
SCHEMA = 1
PACKAGES = ("numpy", "scipy", "SimpleITK", "nibabel", "pydantic", "antspyx")
# What a registration's numbers depend on; presets are not here because rows carry the hash of their settings.
SOURCES = ("config", "energy", "engines", "measures", "metrics", "registration", "spatial")
THREADS = ("ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def claim(
    what: str, value: float, form: str = ".3f", *, least: float | None = None, most: float | None = None
) -> dict[str, Any]:
    """One measured number with its form in Python's format language and its unit, such as ".1f ms", and its target.

    A number that is not finite reaches no target.
    """
    style, unit = re.fullmatch(r"(\+?[.\d]*[a-z%])(.*)", form).groups()  # type: ignore[union-attr]
    target, finite = least if most is None else most, math.isfinite(value)
    met = None if target is None else finite and (value >= target if most is None else value <= target)
    sense = "at least" if most is None else "at most"
    return {"what": what, "value": value, "style": style, "unit": unit, "target": target, "sense": sense, "met": met}


OPTIONS: dict[str, dict[str, Any]] = {
    "pairs": {"type": int, "help": "number of pairs"},
    "seed": {"type": int, "help": "seed of samples, noise and bootstrap"},
    "set": {"help": "set of REGWEAVE_DATA"},
    "preset": {"help": "a preset, or settings in a TOML file"},
    "init": {"help": "initial alignment: none, moments or affine"},
    "threads": {"type": int, "help": "threads of one registration"},
    "workers": {"type": int, "help": "processes at a time"},
    "repetitions": {"type": int, "help": "runs of the same; the fastest counts"},
    "seconds": {"type": float, "help": "start no registration later than this"},
    "rows": {"type": Path, "help": "file of finished registrations, which are not run again"},
    "peers": {"help": "Python that has the other programs"},
    "output": {"help": "name of the file under benchmark/results, without .json"},
}


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a command line with those of `OPTIONS` that have a default here."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, value in defaults.items():
        out.add_argument(f"--{name}", default=value, **OPTIONS[name])
    return out


class Rows:
    """Finished rows by key, one JSON line each in a file; a row with an error is not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        whole, _, half = path.read_text(encoding="utf-8").rpartition("\n") if path.exists() else ("", "", "")
        if half:  # a run that was killed may have left half a line
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        for row in map(json.loads, whole.splitlines()):
            self._rows[tuple(row.pop("key"))] = row

    def __contains__(self, key: Sequence[Any]) -> bool:
        """Whether a row is finished."""
        return tuple(map(str, key)) in self._rows

    def all(self) -> list[dict[str, Any]]:
        """Return all finished rows."""
        return list(self._rows.values())

    def get(self, key: Sequence[Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the row of a key; where it is missing, measure, keep and print it."""
        words = tuple(map(str, key))
        if words in self._rows:
            return self._rows[words]
        row: dict[str, Any] = plain(measure())
        numbers = [f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, int | float)]
        print(*words, row.get("error") or ", ".join(numbers[:5]), flush=True)
        if row.get("error") is None:
            self._rows[words] = row
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "key": words}) + "\n")
        return row


class Run(NamedTuple):
    """Wall and processor seconds of a program, the most memory that it held, its exit status and its output."""

    wall: float
    cpu: float
    gb: float
    status: int
    text: str


def run(
    *words: Any, threads: int = 1, timeout_s: float | None = None, cwd: Path | None = None, check: bool = True
) -> Run:
    """Run a program in a process of its own; after its time it is killed. With ``check`` it must end with 0."""
    environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
    with TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, words)), stdout=out, stderr=subprocess.STDOUT, cwd=cwd, env=environment
        )
        timer = threading.Timer(timeout_s or threading.TIMEOUT_MAX, process.kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if check and process.returncode:
        raise SystemExit(f"{text[-2000:]}\n{' '.join(map(str, words))[:300]} ended with status {process.returncode}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024**2, process.returncode, text)


def regweave_command(*words: Any, threads: int = 1, check: bool = True) -> Run:
    """Run a command of regweave in a process of its own."""
    return run(sys.executable, "-m", "regweave", *words, threads=threads, check=check)


def with_python(python: str, code: str, *given: Any) -> float:
    """Run code in another Python on one thread, the arguments in its ``given``; return the number it prints last."""
    head = "import json, sys, time\ngiven = json.loads(sys.argv[1])\n"
    return float(run(python, "-c", head + code, json.dumps(given, default=str)).text.splitlines()[-1])


def write(name: str, seed: int, content: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> Path:
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
        "claims": claims,
        **content,
    }
    path, part = RESULTS / f"{name}.json", RESULTS / f"{name}.tmp"
    part.write_text(json.dumps(plain(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
    for one in claims:
        wanted = f" (wanted {target(one)}, {'met' if one['met'] else 'NOT met'})" if one["target"] is not None else ""
        print(f"{one['what']}: {measured(one)}{wanted}")
    print(f"wrote {path.relative_to(ROOT)}")
    return path


def measured(one: Mapping[str, Any]) -> str:
    """Return the number of a claim with its unit."""
    return "failed" if one["value"] is None else f"{one['value']:{one['style']}}{one['unit']}"


def target(one: Mapping[str, Any]) -> str:
    """Return the target of a claim with its unit, empty without one."""
    sign = "≥" if one["sense"] == "at least" else "≤"
    return "" if one["target"] is None else f"{sign} {one['target']:{one['style']}}{one['unit']}"


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
    info = Path("/proc/cpuinfo")
    models = re.findall(
        r"^model name\s*: (.*)$", info.read_text(encoding="utf-8") if info.exists() else "", re.MULTILINE
    )
    return {
        "processor": next(iter(models), platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(physical_memory_mb() / 1024),
        "system": f"{platform.system()} {platform.machine()}",
        "load_at_end": round(os.getloadavg()[0], 1),
    }


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
    return hash_of([*(f for folder in SOURCES for f in sorted((package / folder).rglob("*.py"))), Path(_core.LIBRARY)])


def hash_of(files: Sequence[Path]) -> str:
    """Short hash of the contents of files."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def plain(value: Any) -> Any:
    """Replace what JSON has no word for: keys become text, numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def failure(error: BaseException) -> str:
    """Return an error in one line, without the paths of this machine."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    for path in (os.environ.get("REGWEAVE_DATA"), str(ROOT), str(Path.home())):
        if path and len(path) > 1:
            text = text.replace(path, "…")
    return text
