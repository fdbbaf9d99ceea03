"""How good and how fast are the registrations that users would pick instead?

Every method gets the same pairs from the same start, the same number of threads and a process of its own, and writes a
displacement field; everything that is reported is measured on that field by the same code. Each peer may choose among
the few settings of its adapter by mean Dice on pairs of training patients; only its choice is run on the test pairs.
The peers live in an environment of their own: `python benchmark/peers.py --setup` makes it.
"""

import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import regweave
from _common import RESULTS, ROOT, failure, fingerprint, parser, write
from _pairs import SETS, PairName, choose_set, mean_interval, pair_files, patients, test_pairs, training_pairs
from accuracy import Ledger, mean_dice, mean_of
from regweave.errors import RegweaveError
from regweave.io import fill_value, write_image, write_labels
from regweave.jobs.table import check_leak
from regweave.measures.deformation import regularity
from regweave.measures.overlap import dice, surface_distances
from regweave.model import find_model
from regweave.model.model import Model
from regweave.run.read import Reading, as_stored, read_inputs
from regweave.run.start import start_pair
from regweave.spatial.warp import determinant, warp_image, warp_labels
from regweave.types import Field, ImagePair, LabelMap, Transform

FOLDER = ROOT / "benchmark" / "peers"
VENV = ROOT / ".venv-peers"
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
    code = f"{fingerprint()} {_hash_files([FOLDER / f'{OWN}.py'])}"
    return [Method(n, OWN, {"as is": s}, sys.executable, regweave.__version__, code) for n, s in settings.items()]


def _peer(adapter: str) -> Method:
    module = load(adapter)
    installed = version_of(module.DISTRIBUTION)
    missing = None if installed else "not installed; run benchmark/peers.py --setup"
    package = Path(regweave.__file__).parent
    judges = [f for folder in JUDGES for f in sorted((package / folder).rglob("*.py"))]
    code = f"{installed} {_hash_files([FOLDER / f'{adapter}.py', Path(module.run.__code__.co_filename), *judges])}"
    return Method(
        adapter, adapter, module.SETTINGS, str(VENV / "bin" / "python"), installed or "none", code, missing
    )  # fmt: skip


def _hash_files(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def version_of(distribution: str) -> str | None:
    """Version of a package in the environment of the peers, None where it is not there."""
    folders = [str(p) for p in VENV.glob("lib/python*/site-packages")]
    found = list(metadata.distributions(name=distribution, path=folders))
    return found[0].version if found else None


def set_up() -> None:
    """Create the environment of the peers; a package that cannot be installed leaves its rows empty."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    for requirement in groups[GROUP]:
        command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement]
        subprocess.run(command, check=False)


THREAD_VARIABLES = (
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


@dataclass(frozen=True)
class Case:
    """A pair as every method gets it: files to register, and in memory what the judge needs."""

    paths: Mapping[str, Path]
    pair: ImagePair
    labels: list[int]


@contextmanager
def case_of(name: PairName, init: str) -> Iterator[Case]:
    """Read a pair. With an initial alignment the moving files are those of the resampled image, for every method."""
    labels = list(SETS[name.set].labels)
    reading = Reading(classes=tuple(labels))
    with pair_files(name) as given_paths, TemporaryDirectory() as folder:
        paths = dict(given_paths)
        pair = _started(paths, reading, init)
        if not np.array_equal(pair.initial, np.eye(4)):
            paths |= _resampled(pair, Path(folder))
            pair = _started(paths, reading, "none")
        yield Case(paths, pair, labels)


def _started(paths: Mapping[str, Path], reading: Reading, init: str) -> ImagePair:
    """Read a pair at its start, on the grids of its files, as every peer reads it."""
    data = read_inputs(**paths, reading=reading)
    return as_stored(start_pair(data, init), data)


def _resampled(pair: ImagePair, folder: Path) -> dict[str, Path]:
    assert pair.moving_labels is not None
    start = Transform(Field.zero(pair.fixed.geometry), pair.initial)
    paths = {"moving": folder / "moving.nii.gz", "moving_labels": folder / "moving_labels.nii.gz"}
    write_image(paths["moving"], warp_image(pair.moving, start, fill=fill_value(pair.moving)))
    write_labels(paths["moving_labels"], warp_labels(pair.moving_labels, start))
    return paths


def measure(method: Method, setting: str, case: Case, threads: int, timeout_s: float) -> dict[str, Any]:
    """Register a pair with one setting: a row with all numbers, or with the error."""
    if method.missing is not None:
        return {"error": method.missing}
    with TemporaryDirectory() as folder:
        field_path = Path(folder, "field.npy")
        row = _register(method, _job(method, setting, case, threads, field_path), Path(folder), timeout_s)
        if row["error"] is not None:
            return row
        try:
            return {**row, **judge(case, np.load(field_path, allow_pickle=False))}
        except (OSError, ValueError) as error:
            return {"error": failure(error)}


def _job(method: Method, setting: str, case: Case, threads: int, field_path: Path) -> dict[str, Any]:
    options = {k: v for k, v in method.settings[setting].items() if k != "sha256"}
    if "model" in options:
        options["moving_labels"] = str(case.paths["moving_labels"])
    return {
        "fixed_path": str(case.paths["fixed"]),
        "moving_path": str(case.paths["moving"]),
        "out_field_path": str(field_path),
        "setting": options,
        "threads": threads,
    }


def _register(method: Method, job: Mapping[str, Any], folder: Path, timeout_s: float) -> dict[str, Any]:
    """Run the worker; the wall time is that of its whole process, from start to end."""
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    command = [method.python, str(FOLDER / "_worker.py"), method.adapter, str(path)]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(job["threads"]))}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {timeout_s:g} s"}
    wall_seconds = time.perf_counter() - start
    answer = path.with_suffix(".answer")
    if not answer.exists():
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return {"error": f"process ended with status {done.returncode}: {last[:200]}"}
    row: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if row["error"] is not None:
        return {"error": row["error"].replace(str(folder), "…")}
    return {**row, "wall_seconds": wall_seconds}


def judge(case: Case, displacement: Any) -> dict[str, Any]:
    """Dice and HD95 by label of the labels warped by a field in LPS millimetres, and how regular the field is."""
    geometry = case.pair.fixed.geometry
    data = np.ascontiguousarray(displacement, dtype=np.float32)
    if data.shape != (3, *geometry.shape):
        raise ValueError(f"the field has shape {data.shape}, wanted is {(3, *geometry.shape)}")
    if not np.isfinite(data).all():
        raise ValueError("the field has numbers that are not finite")
    assert case.pair.moving_labels is not None
    assert case.pair.fixed_labels is not None
    field = Field(data, geometry)
    warped = warp_labels(case.pair.moving_labels, Transform(field))
    scores = dice(warped.data, case.pair.fixed_labels.data, case.labels)
    return {
        "dice": {str(v): d for v, d in scores.items()},
        "hd95_mm": _distances_mm(warped, case.pair.fixed_labels, case.labels),
        **regularity(determinant(field)),
    }


def start_scores(case: Case) -> dict[str, Any]:
    """Scores before any deformation."""
    return judge(case, np.zeros((3, *case.pair.fixed.geometry.shape), dtype=np.float32))


def _distances_mm(a: LabelMap, b: LabelMap, labels: Sequence[int]) -> dict[str, float]:
    return {str(v): surface_distances(a.data == v, b.data == v, b.geometry.spacing_mm).hd95_mm for v in labels}


START = "start"
Row = Mapping[str, Any]


def tuning_score(rows: Sequence[Row]) -> dict[str, Any]:
    """What a setting reaches on some pairs; all that a choice between settings may look at."""
    done = [r for r in rows if r["error"] is None]
    return {
        "dice": mean_of([mean_dice(r) for r in done]),
        "seconds": mean_of([r.get("seconds") for r in done]),
        "folding_fraction": mean_of([r["folding_fraction"] for r in done]),
        "n": len(done),
        "failed": len(rows) - len(done),
        "errors": sorted({r["error"] for r in rows if r["error"] is not None}),
    }


def best(scores: Mapping[str, Row]) -> str:
    """Return the setting with the fewest failures, and of those the one with the highest mean Dice."""
    return max(scores, key=lambda name: (-scores[name]["failed"], np.nan_to_num(scores[name]["dice"])))


def summarise(rows: Sequence[Row], ours: Sequence[Row], seed: int) -> dict[str, Any]:
    """Means over the pairs, and what they are against our default on the pairs that both finished."""
    done = [r for r in rows if r["error"] is None]
    both = [(r, o) for r, o in zip(rows, ours, strict=True) if r["error"] is None and o["error"] is None]
    timed = [(r, o) for r, o in both if r.get("seconds") and o.get("seconds")]
    subjects = [r["subject"] for r, _ in both]
    return {
        **tuning_score(rows),
        "dice": mean_interval([mean_dice(r) for r in done], [r["subject"] for r in done], seed),
        "difference": mean_interval([mean_dice(r) - mean_dice(o) for r, o in both], subjects, seed),
        "hd95_mm": mean_of([v for r in done for v in r["hd95_mm"].values()]),
        "sdlogj": mean_of([r["sdlogj"] for r in done]),
        "pairs_with_folds": sum(r["folding_fraction"] > 0 for r in done),
        "min_jacobian": min((r["min_jacobian"] for r in done), default=float("nan")),
        "wall_seconds": mean_of([r.get("wall_seconds") for r in done]),
        "cpu_seconds": mean_of([r.get("cpu_seconds") for r in done]),
        "peak_memory_mb": max((r.get("peak_memory_mb", 0.0) for r in done), default=float("nan")),
        "seconds_ratio": float(np.median([r["seconds"] / o["seconds"] for r, o in timed])) if timed else None,
    }


class Bench:
    """Measures methods on pairs; what is in the ledger is measured once."""

    def __init__(self, args: Namespace, ledger: Ledger) -> None:
        self._args, self._ledger = args, ledger
        self.rows: dict[tuple[str, str, PairName], dict[str, Any]] = {}
        self.starts: dict[PairName, dict[str, Any]] = {}

    def run(self, name: PairName, jobs: Sequence[tuple[Method, str]]) -> None:
        """Measure one pair with several methods in turn, so that a busy machine is busy for all of them."""
        with ExitStack() as stack:
            case = stack.enter_context(case_of(name, self._args.init))
            who = {"fixed": name.fixed, "moving": name.moving, "subject": name.subject}
            self.starts[name] = {**who, "error": None, **start_scores(case)}
            for method, setting in jobs:
                row = self._row(name, method, setting, case)
                self.rows[method.name, setting, name] = {**who, **row}

    def _row(self, name: PairName, method: Method, setting: str, case: Case) -> dict[str, Any]:
        where = f"{method.name} {self._args.init} {self._args.threads}"
        key = (name.fixed, name.moving, where, _hash(method.settings[setting]), method.code)
        known = self._ledger.get(key) if self._args.resume else None
        if known is not None:
            return {k: v for k, v in known.items() if k != "key"}
        row = measure(method, setting, case, self._args.threads, self._args.timeout)
        if row["error"] is None:
            self._ledger.add(key, row)
        shown = row["error"] or f"Dice {mean_dice(row):.4f}, {row['seconds']:.2f} s"
        print(f"{method.name} [{setting}] {name}: {shown}", flush=True)
        return row


def _hash(setting: dict[str, Any]) -> str:
    # A model is known by its content, wherever it lies.
    content = {k: v for k, v in setting.items() if k != "model"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def tune(bench: Bench, methods: Sequence[Method], names: Sequence[PairName]) -> dict[str, dict[str, Any]]:
    """Scores of every setting on the training pairs, by method and setting."""
    for name in names:
        bench.run(name, [(m, s) for m in methods for s in m.settings])
    return {m.name: {s: tuning_score([bench.rows[m.name, s, n] for n in names]) for s in m.settings} for m in methods}


def compare(
    bench: Bench, methods: Sequence[Method], scores: dict[str, Any], names: Sequence[PairName], seed: int
) -> dict[str, dict[str, Any]]:
    """Results of every method on the test pairs with the setting it chose."""
    chosen = {m.name: best(scores[m.name]) for m in methods}
    for name in names:
        bench.run(name, [(m, chosen[m.name]) for m in methods])
    starts = [bench.starts[n] for n in names]
    rows = {m.name: [bench.rows[m.name, chosen[m.name], n] for n in names] for m in methods}
    out: dict[str, dict[str, Any]] = {START: {"summary": summarise(starts, rows[OURS], seed), "pairs": starts}}
    for m in methods:
        summary = summarise(rows[m.name], rows[OURS], seed)
        means = f"Dice {summary['dice']['mean']:.4f}, to ours {summary['difference']['mean']:+.4f}"
        print(f"{m.name} [{chosen[m.name]}]: {means}")
        out[m.name] = {
            "version": m.version,
            "settings": {s: {k: v for k, v in o.items() if k != "model"} for s, o in m.settings.items()},
            "training": scores[m.name], "chosen": chosen[m.name], "summary": summary, "pairs": rows[m.name],
        }  # fmt: skip
    return out


def _arguments() -> Namespace:
    options = parser(__doc__ or "", pairs=10)
    options.add_argument("--setup", action="store_true", help="create the environment of the peers, and end")
    options.add_argument("--set", default="msd_hippocampus", help=f"one of {', '.join(SETS)}")
    options.add_argument("--peers", default="", help=f"some of {','.join(adapters())}; default: all")
    options.add_argument("--train-pairs", type=int, default=4, help="training pairs that settings are chosen on")
    trained = "a model that has not seen the test patients; may be repeated"
    options.add_argument("--model", action="append", default=[], help=trained)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a registration has failed")
    options.add_argument("--resume", action="store_true", help="take the rows that an earlier run of this code left")
    return options.parse_args()


def main() -> None:
    """Run the comparison."""
    args = _arguments()
    if args.setup:
        set_up()
        return
    chosen, data = choose_set(args.set)
    if chosen == "ibsr18_native" and args.init == "none":
        raise SystemExit(f"the headers of {chosen} do not align its images; give --init affine")
    for model in map(Model.load, args.model):
        trained_on = list(model.training.trained_on)
        try:
            check_leak(trained_on, patients(chosen)[1])
        except RegweaveError as error:
            raise SystemExit(str(error)) from error
    methods = choose_methods([p for p in args.peers.split(",") if p], args.model, list(SETS[chosen].labels))
    training, test = training_pairs(chosen, args.train_pairs), test_pairs(chosen, args.pairs)
    RESULTS.mkdir(exist_ok=True)
    output = args.output or f"peers-{chosen}"
    bench = Bench(args, Ledger(RESULTS / f"{output}.jsonl"))
    scores = tune(bench, methods, training)
    results = compare(bench, methods, scores, test, args.seed)
    training_patients, test_patients = patients(chosen)
    content = {
        "data": data,
        "credit": SETS[chosen].credit,
        "init": args.init,
        "threads": args.threads,
        "labels": SETS[chosen].labels,
        "nominal_spacing": not SETS[chosen].true_mm,
        "training_patients": training_patients,
        "test_patients": test_patients,
        "training_pairs": [str(n) for n in training],
        "training_start": tuning_score([bench.starts[n] for n in training])["dice"],
        "test_pairs": [str(n) for n in test],
        "methods": results,
    }
    write(output, args.seed, content, [])


if __name__ == "__main__":
    main()
