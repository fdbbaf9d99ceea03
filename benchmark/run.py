"""Run the benchmarks that a case file names, each in a process of its own.

A case is a list of tables: ``[[run]]`` with ``benchmark``, the name of a script beside this one, and the script's
options as keys, dashes written as they are. Without an argument the smoke case is run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = ("accuracy", "certify", "ladder", "peers", "repeat", "scaling", "speed", "training")


def read_case(path: Path) -> list[dict[str, Any]]:
    """Read and check a case file."""
    case = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = sorted(set(case) - {"run"})
    if unknown or not case.get("run"):
        raise SystemExit(f"{path.name}: a case holds [[run]] tables; found {unknown or 'none'}")
    for run in case["run"]:
        if run.get("benchmark") not in BENCHMARKS:
            raise SystemExit(
                f"{path.name}: unknown benchmark {run.get('benchmark')!r}; available: {', '.join(BENCHMARKS)}"
            )
    return list(case["run"])


def arguments(run: dict[str, Any]) -> list[str]:
    """Return the options of a run as words of a command line."""
    words: list[str] = []
    for key, value in run.items():
        if key != "benchmark":
            values = value if isinstance(value, list) else [value]
            words += [f"--{key}", *map(str, values)]
    return words


def main() -> int:
    """Run a case; the exit status is 1 where a benchmark failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("case", nargs="?", type=Path, default=FOLDER / "cases" / "smoke.toml")
    failed = []
    for run in read_case(options.parse_args().case):
        script = FOLDER / f"{run['benchmark']}.py"
        words = arguments(run)
        print(f"== {script.name} {' '.join(words)}", flush=True)
        if subprocess.run([sys.executable, str(script), *words], check=False).returncode:
            failed.append(run["benchmark"])
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
