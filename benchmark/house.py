"""Measures of the source tree: size, shape, the way of one registration and of one training, start-up time.

``python benchmark/house.py --name before --package OTHER/src/regweave`` measures another checkout; ``--against before``
prints both columns. Reads the tree and runs its commands in processes of their own, so it knows no module by name.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
START = "import sys; from regweave.cli import main; sys.exit(main(sys.argv[1:]))"
COMPLETE = {"_REGWEAVE_COMPLETE": "complete_bash", "COMP_WORDS": "regweave reg", "COMP_CWORD": "1"}
REPEATS = 7
FILES = ("fixed", "moving", "fixed_labels", "moving_labels")
SETTINGS = """
name = "tiny"
smoothness = 0.1
levels = [{spacing_mm = 64.0, shrink = 2, steps = 1}, {spacing_mm = 48.0, steps = 1}]
refine = {steps = 1}
[banks]
mr = [{name = "sad", metric = "sad"}, {name = "mi", metric = "mi"}, {name = "fine", metric = "ncc", stage = "refine"}]
"""
QUICK = ("--C", "20", "--alpha", "1", "--eta", "3", "--epsilon", "0.05", "--rounds", "1", "--folds", "2")


def main() -> None:
    """Measure a tree, write the numbers and print them, beside earlier ones if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=ROOT / "src" / "regweave", help="package to measure")
    parser.add_argument("--name", required=True, help="results go to benchmark/results/house-NAME.json")
    parser.add_argument("--against", help="name of an earlier measurement to print beside")
    given = parser.parse_args()
    package = given.package.resolve()
    found = {**tree(package), **ways(package), **starts(package), **wheel(package.parents[1])}
    RESULTS.joinpath(f"house-{given.name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    earlier = {}
    if given.against:
        earlier = json.loads(RESULTS.joinpath(f"house-{given.against}.json").read_text(encoding="utf-8"))
    print(table(found, earlier, given.against, given.name))


def table(found: dict[str, Any], earlier: dict[str, Any], first: str | None, second: str) -> str:
    """Return the measures as a Markdown table, those of an earlier tree in front."""
    heads = ["measure", *([first] if first else []), second]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for key, value in found.items():
        cells = [key.replace("_", " "), *([_cell(earlier.get(key))] if first else []), _cell(value)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)


def tree(package: Path) -> dict[str, Any]:
    """Measure what can be read in the sources."""
    files = sorted(package.rglob("*.py"))
    sources = {path: path.read_text(encoding="utf-8") for path in files}
    folders = Counter(str(path.parent.relative_to(package)) for path in files if path.name != "__init__.py")
    largest = dict(folders.most_common(3))
    public = {name for path in files if path.parent == package for name in _exported(sources[path])}
    classes: Counter[str] = Counter()
    longest = (0, "")
    for path, source in sources.items():
        parsed = ast.parse(source)
        classes.update(n.name for n in ast.walk(parsed) if isinstance(n, ast.ClassDef) and not n.name.startswith("_"))
        if path.relative_to(package).parts[0] != "cli":
            named = [
                (n, f"{path.relative_to(package)} {name}") for name, n in _parameters(parsed) if name not in public
            ]
            longest = max([longest, *named])
    return {
        "lines_of_python": sum(source.count("\n") for source in sources.values()),
        "modules": len(files),
        "folders": len(folders),
        "modules_of_the_largest_folders": {("." if name == "." else name): n for name, n in largest.items()},
        "longest_parameter_list": f"{longest[0]} ({longest[1]})",
        "public_class_names_used_twice": sorted(name for name, n in classes.items() if n > 1),
    }


def _exported(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            yield from ast.literal_eval(node.value)


def _parameters(parsed: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield functions with the number of their parameters, without ``self``; ``__init__`` has the name of its class."""
    owners = {f: c.name for c in ast.walk(parsed) if isinstance(c, ast.ClassDef) for f in c.body}
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            name = owners.get(node, node.name) if node.name == "__init__" else node.name
            yield name, len([n for n in names if n not in {"self", "cls"}])


def ways(package: Path) -> dict[str, Any]:
    """Count modules and functions that one registration and one training call, workers included."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_scans(folder)
        pair = [f"p0/{name}.nii" for name in FILES]
        register = ("register", *pair[:2], "--fixed-labels", pair[2], "--moving-labels", pair[3], "-o", "result")
        train = ("train", "pairs.csv", "-o", "model.json", "--config", "tiny.toml", "--workers", "1", *QUICK)
        called = {"registration": _trace(package, folder, register), "training": _trace(package, folder, train)}
    out = {}
    for way, functions in called.items():
        modules = {path for path, _, _ in functions}
        out[f"modules_on_the_way_of_one_{way}"] = len(modules)
        out[f"folders_on_the_way_of_one_{way}"] = len({str(Path(path).parent) for path in modules})
        out[f"functions_on_the_way_of_one_{way}"] = len(functions)
    return out


def _trace(package: Path, folder: Path, words: Sequence[str]) -> set[tuple[str, str, str]]:
    places = (package.parent, Path(__file__).with_name("_trace"))
    with tempfile.TemporaryDirectory() as told:
        environment = {"HOUSE_PACKAGE": str(package), "HOUSE_TRACE": told}
        _python(places, ["-c", START, *words], folder, environment)
        lines = [line for path in Path(told).iterdir() for line in path.read_text(encoding="utf-8").splitlines()]
    return {tuple(line.split("\t")) for line in lines}  # type: ignore[misc]


def _python(
    places: Sequence[Path], words: Sequence[str], folder: Path, more: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, places))
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", **more}
    run = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
    if run.returncode:
        sys.exit(f"{' '.join(words)} ended with {run.returncode}:\n{run.stderr}")
    return run


def _write_scans(folder: Path) -> None:
    """Write three pairs of 24³ voxels: three balls in noise, shifted against each other."""
    rng = np.random.default_rng(0)
    grid = np.moveaxis(np.indices((24, 24, 24)), 0, -1)
    rows = [f"id,{','.join(FILES)},group"]
    for number in range(3):
        (folder / f"p{number}").mkdir()
        texture = 30 * gaussian_filter(rng.standard_normal((24, 24, 24)), 1.5)
        for part, shift in (("fixed", 0.0), ("moving", 1.5)):
            labels = np.zeros((24, 24, 24), np.uint8)
            for value, centre in enumerate(((8, 8, 12), (15, 9, 12), (12, 16, 12)), start=1):
                labels[((grid - np.array(centre) - shift) ** 2).sum(axis=-1) < 14 + number] = value
            image = gaussian_filter(100.0 * labels, 0.7) + np.roll(texture, int(shift), axis=0)
            for name, data in ((part, image.astype(np.float32)), (f"{part}_labels", labels)):
                nib.save(nib.Nifti1Image(data, np.diag([8.0, 8.0, 8.0, 1.0])), folder / f"p{number}" / f"{name}.nii")
        rows.append(",".join([f"p{number}", *(f"p{number}/{name}.nii" for name in FILES), f"g{number}"]))
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "tiny.toml").write_text(SETTINGS, encoding="utf-8")


def starts(package: Path) -> dict[str, Any]:
    """Measure start-up, the best of several: seconds of the processor, and memory."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for what, words, more in (
            ("python_alone", ["-c", "pass"], {}),
            ("import_regweave", ["-c", "import regweave"], {}),
            ("version", ["-c", START, "--version"], {}),
            ("tab", ["-c", START], COMPLETE),
        ):
            found[f"{what}_cpu_s"] = round(min(_cpu_s(package, Path(name), words, more) for _ in range(REPEATS)), 3)
        times = [
            _python([package.parent], ["-X", "importtime", "-c", "import regweave"], Path(name), {}) for _ in range(3)
        ]
    # The last line of the report is the module that was asked for, with all that it loads.
    microseconds = [int(re.findall(r"\|\s*(\d+) \| regweave$", run.stderr, flags=re.MULTILINE)[-1]) for run in times]
    found["import_regweave_importtime_s"] = round(min(microseconds) / 1e6, 3)
    return found


def _cpu_s(package: Path, folder: Path, words: Sequence[str], more: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _python([package.parent], words, folder, more)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wheel(root: Path) -> dict[str, Any]:
    """Return the size of the newest built wheel."""
    built = sorted((root / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    return {"wheel_kB": round(built[-1].stat().st_size / 1000) if built else None}


if __name__ == "__main__":
    main()
