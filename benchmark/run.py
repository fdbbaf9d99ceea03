"""Run the benchmarks that a case file names, each in a process of its own; without an argument the smoke case.

A case is a list of tables: ``[[run]]`` with ``benchmark``, the name of a script beside this one, and the script's
options as keys, dashes written as they are.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Run a case; the exit status is 1 where a benchmark failed."""
    case = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "cases" / "smoke.toml"
    failed = []
    for run in tomllib.loads(case.read_text(encoding="utf-8"))["run"]:
        script, words = FOLDER / f"{run.pop('benchmark')}.py", []
        for key, value in run.items():
            words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
        print(f"== {script.name} {' '.join(words)}", flush=True)
        if subprocess.run([sys.executable, str(script), *words], check=False).returncode:
            failed.append(script.stem)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
