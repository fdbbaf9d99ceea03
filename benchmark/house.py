"""Measures of the source tree: its size, and the way of a registration, a training and contours through it.

`python benchmark/house.py` prints a table; `--package OTHER/src/regweave` measures another checkout, `--json FILE`
keeps the numbers, `--against FILE` prints earlier ones beside them. Reads the tree and runs the program in processes
of their own, so no module is named here. Functions are counted without bodies of modules and classes, lambdas and
comprehensions; depth is the longest chain of calls of functions of the package.
"""

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

ROOT = Path(__file__).resolve().parents[1]
FILES = ("fixed", "moving", "fixed_labels", "moving_labels")
SETTINGS = """
name = "tiny"
smoothness = 0.1
levels = [{spacing_mm = 64.0, shrink = 2, steps = 1}, {spacing_mm = 48.0, steps = 1}]
refine = {steps = 1}
[banks]
mr = [{name = "sad", metric = "sad"}, {name = "mi", metric = "mi"}, {name = "fine", metric = "ncc", stage = "refine"}]
"""
OPTIONS = ("Job", "Method", "Reading")  # classes whose fields are the arguments of `rw.register`
COMMAND = "import sys; from regweave.cli import main; sys.exit(main(sys.argv[1:]))"
IN_MEMORY = """
import nibabel as nib, numpy as np, regweave as rw
images = [nib.load(f"p0/{name}.nii") for name in ("fixed", "moving")]
rw.register(*(rw.Volume(np.asarray(i.dataobj, np.float32), rw.Geometry(i.shape, i.affine)) for i in images))
"""
STUDY = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from made_body import write_study
write_study(pathlib.Path("study"))
"""
TRAIN = """
[train]
C = 20
alpha = 1
eta = 3
epsilon = 0.05
folds = 2
"""
JOURNEYS = {
    "register, labels and page": (COMMAND, "register", "p0/fixed.nii", "p0/moving.nii", "-o", "result",
                                  "--fixed-labels", "p0/fixed_labels.nii", "--moving-labels", "p0/moving_labels.nii"),
    "rw.register in memory": (IN_MEMORY,),
    "train": (COMMAND, "train", "pairs.csv", "-o", "model.json", "--config", "tiny.toml", "--workers", "1"),
    "contours": (COMMAND, "contours", "study/plan", "study/today", "--rtstruct", "study/plan/set.dcm", "-o", "drawn"),
}  # fmt: skip
VALUE_BASES = {"BaseModel", "TypedDict", "NamedTuple"}


def main() -> None:
    """Measure a tree and print the numbers, beside earlier ones if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=ROOT / "src" / "regweave", help="package to measure")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--against", type=Path, help="such a file, to print beside")
    given = parser.parse_args()
    package = given.package.resolve()
    ways = journeys(package)
    found: dict[str, int | str] = tree(package)
    options = declarations(package, ways[next(iter(JOURNEYS))])
    found["declarations of one option of register: median, least, most"] = options
    for what, functions in ways.items():
        modules, deepest = len({row[0] for row in functions}), max(int(row[-1]) for row in functions)
        found[f"{what}: modules / functions / depth"] = f"{modules} / {len(functions)} / {deepest}"
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    earlier = json.loads(given.against.read_text(encoding="utf-8")) if given.against else None
    print("| measure | before | now |\n|---|---|---|" if earlier else "| measure | now |\n|---|---|")
    for what, value in found.items():
        print("| " + " | ".join([what, *([str(earlier.get(what, "–"))] if earlier else []), str(value)]) + " |")


def tree(package: Path) -> dict[str, int | str]:
    """Measure what can be read in the sources."""
    parsed = {path: ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")}
    nodes = [node for module in parsed.values() for node in ast.walk(module)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    root = package.parents[1]
    return {
        "lines of Python in src": lines(package),
        "files": len(parsed),
        "value types": len(value_types([node for node in nodes if isinstance(node, ast.ClassDef)])),
        "lines of import statements": sum(node.end_lineno - node.lineno + 1 for node in imports if node.end_lineno),
        "lines of Python in benchmark": lines(root / "benchmark"),
        "lines of Python in tests": lines(root / "tests"),
    }


def lines(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))


def value_types(classes: list[ast.ClassDef]) -> set[str]:
    """Names of dataclasses, models of pydantic, typed dictionaries and named tuples, subclasses included."""
    bases = {c.name: {ast.unparse(b).split("[")[0].split(".")[-1] for b in c.bases} for c in classes}
    found = {c.name for c in classes if any("dataclass" in ast.unparse(d) for d in c.decorator_list)}
    while more := {name for name, of in bases.items() if of & (found | VALUE_BASES)} - found:
        found |= more
    return found


def declarations(package: Path, way: set[tuple[str, ...]]) -> str:
    """How often an option of `rw.register` is a field or a parameter with a default, in the modules of its journey."""
    parsed = {name: ast.parse((package / name).read_text(encoding="utf-8")) for name in {row[0] for row in way}}
    nodes = [node for module in parsed.values() for node in ast.walk(module)]
    count = Counter(name for node in nodes for name in declared(node))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name in OPTIONS]
    options = [name for node in classes for name in declared(node)]
    found = [count[name] for name in options]
    return f"{statistics.median(found):g}, {min(found)}, {max(found)}"


def declared(node: ast.AST) -> Iterator[str]:
    """Names of the fields of a class, or of the parameters of a function that have a default."""
    if isinstance(node, ast.ClassDef):
        yield from (f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name))
    elif isinstance(node, ast.FunctionDef):
        positional = [*node.args.posonlyargs, *node.args.args]
        yield from (a.arg for a in positional[len(positional) - len(node.args.defaults) :])
        yield from (a.arg for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None)


def journeys(package: Path) -> dict[str, set[tuple[str, ...]]]:
    """Functions that each journey calls, worker processes included: module, name, line, and depth of its calls."""
    out = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_scans(folder)
        run(package, folder, (STUDY, str(ROOT / "tests" / "dicom")))
        for what, words in JOURNEYS.items():
            trace = folder / what
            trace.mkdir()
            run(package, folder, words, {"HOUSE_PACKAGE": str(package), "HOUSE_TRACE": str(trace)})
            written = [line.split("\t") for path in trace.iterdir() for line in path.read_text("utf-8").splitlines()]
            deepest = max((row[1] for row in written if row[0] == "depth"), key=int)
            out[what] = {(*row, deepest) for row in written if row[0] != "depth"}
    return out


def run(package: Path, folder: Path, words: Sequence[str], trace: dict[str, str] | None = None) -> None:
    """Run Python on code of a string, with the package and, where it is traced, with the hook."""
    places = [str(package.parent), *([str(Path(__file__).with_name("_trace"))] if trace else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OPENBLAS_NUM_THREADS": "1", **(trace or {})}
    command = [sys.executable, "-c", *words]
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    # Contours that need review end with 1.
    if done.returncode > 1 or "Traceback" in done.stderr:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")


def write_scans(folder: Path) -> None:
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
    (folder / "tiny.toml").write_text(SETTINGS + TRAIN, encoding="utf-8")


if __name__ == "__main__":
    main()
