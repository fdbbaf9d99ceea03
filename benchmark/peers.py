"""How good and how fast are the registrations that users would pick instead?

Every method gets the same pairs from the same start, the same number of threads and a process of its own. It writes a
displacement field, and the same code measures all fields. Each peer may choose among the few settings of its adapter
by mean Dice on pairs of training patients. Only its choice is run on the test pairs.
The peers live in an environment of their own: `python benchmark/peers.py --setup` makes it. Finished rows are kept.
"""

import hashlib
import json
import subprocess
import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).with_suffix("")))
from adapters import PEERS

import _pairs as sets
import regweave
from _common import RESULTS, ROOT, Rows, failure, fingerprint, hash_of, parser, run, write
from regweave.errors import RegweaveError
from regweave.io import fill_value, write_image, write_labels
from regweave.jobs.table import check_leak
from regweave.model import find_model
from regweave.model.model import Model
from regweave.run.read import Reading, as_stored, read_inputs
from regweave.run.start import start_pair
from regweave.spatial.warp import warp_image, warp_labels
from regweave.types import Field, ImagePair, Transform

ADAPTERS = ROOT / "benchmark" / "peers" / "adapters.py"
VENV = ROOT / ".venv-peers"
PRESETS = ("default", "paper")
OURS = "regweave:default"
START = "start"
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


def choose_methods(wanted: Sequence[str], models: Sequence[str], labels: Sequence[int]) -> list[Method]:
    """Return regweave's presets and models, and the peers of these names."""
    if unknown := sorted(set(wanted) - set(PEERS)):
        raise SystemExit(f"unknown peer {', '.join(unknown)}; available: {', '.join(PEERS)}")
    settings: dict[str, dict[str, Any]] = {f"regweave:{name}": {"preset": name} for name in PRESETS}
    for model in models:
        path = find_model(model).resolve()
        # The hash tells models of one name apart where rows are taken from an earlier run.
        settings[f"regweave:{path.stem}"] = {"model": str(path), "sha256": hash_of([path]), "classes": list(labels)}
    code, own = f"{fingerprint()} {hash_of([ADAPTERS])}", "adapters.regweave_own"
    out = [Method(n, own, {"as is": s}, sys.executable, regweave.__version__, code) for n, s in settings.items()]
    return [*out, *map(_peer, wanted)]


def _peer(name: str) -> Method:
    distribution, settings = PEERS[name]
    folders, package = [str(p) for p in VENV.glob("lib/python*/site-packages")], Path(regweave.__file__).parent
    found = list(metadata.distributions(name=distribution, path=folders))
    version = found[0].version if found else "none"
    judges = [f for folder in JUDGES for f in sorted((package / folder).rglob("*.py"))]
    missing = None if found else "not installed; run benchmark/peers.py --setup"
    code = f"{version} {hash_of([ADAPTERS, *judges])}"
    return Method(name, f"adapters.{name}", settings, str(VENV / "bin" / "python"), version, code, missing)


def set_up() -> None:
    """Create the environment of the peers; a package that cannot be installed leaves its rows empty."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    for requirement in groups["peers"]:
        subprocess.run([str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement], check=False)


@dataclass(frozen=True)
class Case:
    """A pair as every method gets it: files to register, and in memory what the judge needs."""

    paths: Mapping[str, Path]
    pair: ImagePair
    labels: list[int]


@contextmanager
def case_of(name: sets.PairName, init: str) -> Iterator[Case]:
    """Read a pair. With an initial alignment the moving files are those of the resampled image, for every method."""
    labels = list(sets.SETS[name.set].labels)

    def started(paths: Mapping[str, Path], init: str) -> ImagePair:
        data = read_inputs(**paths, reading=Reading(classes=tuple(labels)))
        return as_stored(start_pair(data, init), data)  # on the grids of its files, as every peer reads it

    with sets.pair_files(name) as given, TemporaryDirectory() as folder:
        paths, pair = dict(given), started(given, init)
        if not np.array_equal(pair.initial, np.eye(4)):
            assert pair.moving_labels is not None
            start = Transform(Field.zero(pair.fixed.geometry), pair.initial)
            paths |= {which: Path(folder, f"{which}.nii.gz") for which in ("moving", "moving_labels")}
            write_image(paths["moving"], warp_image(pair.moving, start, fill=fill_value(pair.moving)))
            write_labels(paths["moving_labels"], warp_labels(pair.moving_labels, start))
            pair = started(paths, "none")
        yield Case(paths, pair, labels)


def run_adapter(
    python: str, adapter: str, fixed: Path, moving: Path, field: Path, setting: Mapping[str, Any], threads: int,
    timeout_s: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Register with a peer in a process of its own: seconds, memory and the field in a file, or the error."""
    words = {"fixed_path": str(fixed), "moving_path": str(moving), "setting": setting, "threads": threads}
    job = field.with_name("job.json")
    job.write_text(json.dumps({**words, "field": str(field)}), encoding="utf-8")
    words = {"threads": threads, "cwd": job.parent, "timeout_s": timeout_s, "check": False}
    done = run(python, ADAPTERS.with_name("_worker.py"), adapter, job, **words)
    answer = job.with_suffix(".answer")
    if answer.exists():
        row: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return {**row, "wall_seconds": done.wall} if row["error"] is None else row
    if timeout_s is not None and done.wall >= timeout_s:
        return {"error": f"not finished after {timeout_s:g} s"}
    last = (done.text.strip().splitlines() or ["nothing printed"])[-1]
    return {"error": f"process ended with status {done.status}: {last[:200]}"}


def measure(method: Method, setting: str, case: Case, threads: int, timeout_s: float) -> dict[str, Any]:
    """Register a pair with one setting: a row with all numbers, or with the error."""
    if method.missing is not None:
        return {"error": method.missing}
    options = {k: v for k, v in method.settings[setting].items() if k != "sha256"}
    if "model" in options:
        options["moving_labels"] = str(case.paths["moving_labels"])
    with TemporaryDirectory() as folder:
        field, paths = Path(folder, "field.npy"), (case.paths["fixed"], case.paths["moving"])
        row = run_adapter(method.python, method.adapter, *paths, field, options, threads, timeout_s)
        if row["error"] is not None:
            return {"error": row["error"].replace(folder, "…")}
        try:
            return {**row, **judge_field(case, np.load(field, allow_pickle=False))}
        except (OSError, ValueError) as error:
            return {"error": failure(error)}


def judge_field(case: Case, displacement: Any) -> dict[str, Any]:
    """Scores of the labels warped by a field in LPS millimetres, and how regular the field is."""
    geometry, data = case.pair.fixed.geometry, np.ascontiguousarray(displacement, dtype=np.float32)
    if data.shape != (3, *geometry.shape):
        raise ValueError(f"the field has shape {data.shape}, wanted is {(3, *geometry.shape)}")
    if not np.isfinite(data).all():
        raise ValueError("the field has numbers that are not finite")
    return sets.judge(case.pair, Field(data, geometry), case.labels, surfaces=True)


Row = Mapping[str, Any]


def tuning_score(rows: Sequence[Row]) -> dict[str, Any]:
    """What a setting reaches on some pairs; all that a choice between settings may look at."""
    done = [r for r in rows if r["error"] is None]
    return {
        "dice": sets.mean_of(map(sets.mean_dice, done)),
        "seconds": sets.mean_of(r.get("seconds") for r in done),
        "folding_fraction": sets.mean_of(r["folding_fraction"] for r in done),
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
    ratios = [r["seconds"] / o["seconds"] for r, o in both if r.get("seconds") and o.get("seconds")]
    gains = [sets.mean_dice(r) - sets.mean_dice(o) for r, o in both]
    return {
        **tuning_score(rows),
        "dice": sets.mean_interval([sets.mean_dice(r) for r in done], [r["subject"] for r in done], seed),
        "difference": sets.mean_interval(gains, [r["subject"] for r, _ in both], seed),
        "hd95_mm": sets.mean_of(v for r in done for v in r["hd95_mm"].values()),
        **{key: sets.mean_of(r.get(key) for r in done) for key in ("sdlogj", "wall_seconds", "cpu_seconds")},
        "pairs_with_folds": sum(r["folding_fraction"] > 0 for r in done),
        "min_jacobian": min((r["min_jacobian"] for r in done), default=float("nan")),
        "peak_memory_mb": max((r.get("peak_memory_mb") or 0.0 for r in done), default=float("nan")),
        "seconds_ratio": float(np.median(ratios)) if ratios else None,
    }


Found = dict[tuple[str, str, sets.PairName], dict[str, Any]]


def measure_all(
    names: Sequence[sets.PairName], jobs: Sequence[tuple[Method, str]], args: Namespace, kept: Rows
) -> Found:
    """Rows of some pairs and methods, and of the start; methods take turns, so that a busy machine is so for all."""
    found: Found = {}
    for name in names:
        who = {"fixed": name.fixed, "moving": name.moving, "subject": name.subject}
        with case_of(name, args.init) as case:
            start = judge_field(case, np.zeros((3, *case.pair.fixed.geometry.shape)))
            found[START, "", name] = {**who, "error": None, **start}
            for method, setting in jobs:
                # A model is known by its content, wherever it lies.
                content = {k: v for k, v in method.settings[setting].items() if k != "model"}
                digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
                key = (name.fixed, name.moving, method.name, args.init, args.threads, digest, method.code)
                row = kept.get(key, lambda m=method, s=setting, c=case: measure(m, s, c, args.threads, args.timeout))
                found[method.name, setting, name] = {**who, **row}
    return found


def main() -> None:
    """Choose settings on training pairs, compare on test pairs, and write."""
    options = parser(__doc__, set="msd_hippocampus", pairs=10, seed=0, init="none", threads=2, output=None)
    options.add_argument("--setup", action="store_true", help="create the environment of the peers, and end")
    options.add_argument("--peers", default=",".join(PEERS), help="names, with commas between")
    options.add_argument("--train-pairs", type=int, default=4, help="training pairs that settings are chosen on")
    trained = "a model that has not seen the test patients; may be repeated"
    options.add_argument("--model", action="append", default=[], help=trained)
    options.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a registration has failed")
    args = options.parse_args()
    if args.setup:
        set_up()
        return
    chosen, data = sets.choose_set(args.set)
    if chosen == "ibsr18_native" and args.init == "none":
        raise SystemExit(f"the headers of {chosen} do not align its images; give --init affine")
    people = sets.patients(chosen)
    for model in map(Model.load, args.model):
        try:
            check_leak(list(model.training.trained_on), people[1])
        except RegweaveError as error:
            raise SystemExit(str(error)) from error
    methods = choose_methods([p for p in args.peers.split(",") if p], args.model, list(sets.SETS[chosen].labels))
    training, test = sets.training_pairs(chosen, args.train_pairs), sets.test_pairs(chosen, args.pairs)
    output = args.output or f"peers-{chosen}"
    kept = Rows(RESULTS / f"{output}.jsonl")
    rows = measure_all(training, [(m, s) for m in methods for s in m.settings], args, kept)
    start = sets.mean_of(sets.mean_dice(rows[START, "", n]) for n in training)
    scores = {m.name: {s: tuning_score([rows[m.name, s, n] for n in training]) for s in m.settings} for m in methods}
    picked = {name: best(of) for name, of in scores.items()}
    rows = measure_all(test, [(m, picked[m.name]) for m in methods], args, kept)
    ours, before = ([rows[*key, n] for n in test] for key in ((OURS, picked[OURS]), (START, "")))
    results: dict[str, Any] = {START: {"summary": summarise(before, ours, args.seed), "pairs": before}}
    for m in methods:
        own = [rows[m.name, picked[m.name], n] for n in test]
        summary = summarise(own, ours, args.seed)
        means = f"Dice {summary['dice']['mean']:.4f}, to ours {summary['difference']['mean']:+.4f}"
        print(f"{m.name} [{picked[m.name]}]: {means}")
        results[m.name] = {
            "version": m.version,
            "settings": {s: {k: v for k, v in o.items() if k != "model"} for s, o in m.settings.items()},
            "training": scores[m.name], "chosen": picked[m.name], "summary": summary, "pairs": own,
        }  # fmt: skip
    content = {
        "data": data, "credit": sets.SETS[chosen].credit, "init": args.init, "threads": args.threads,
        "labels": sets.SETS[chosen].labels, "nominal_spacing": not sets.SETS[chosen].true_mm,
        "training_patients": people[0], "test_patients": people[1], "training_start": start,
        "training_pairs": list(map(str, training)), "test_pairs": list(map(str, test)), "methods": results,
    }  # fmt: skip
    write(output, args.seed, content, [])


if __name__ == "__main__":
    main()
