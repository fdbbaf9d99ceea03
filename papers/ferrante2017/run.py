"""Experiments of Ferrante et al. 2017: train every method on each split, evaluate it, and pool the results.

python papers/ferrante2017/run.py ibsr|parotid|abdomen|all --data DATA -o OUT [--quick] [--resume]
"""

import argparse
import csv
import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

import regweave as rw
from experiments import EXPERIMENTS, Experiment, Row, Scan, Split
from simulate import second_scan
from summarise import pooled, write_figure, write_summary

LEARNER = {"C": 300.0, "alpha": 0.05, "eta": 10.0, "predictor": None, "tune_pairs": 10**6, "judge_pairs": 10**6}
"""The paper's learner on all training pairs; its metrics compare images alone, so no predictor is trained."""
MODELS: dict[str, dict[str, Any]] = {
    "mw": {"method": "lssvm", "gate": False},
    "global": {"method": "global", "gate": False},
    "joint": {"method": "lssvm-joint", "gate": False},
    "per-class": {"method": "lssvm", "gate": True},
}
"""Learned methods; ``mw`` is the paper's, ``per-class`` is used only where left-out training patients gained."""


def main(arguments: list[str] | None = None) -> int:
    """Run the experiments; the status is 1 where a registration failed."""
    parser = argparse.ArgumentParser(description="The experiments of Ferrante et al. 2017 with regweave.")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--data", type=Path, required=True, help="folder with SET/CASE/{image,labels}.nii.gz")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="one fold, one draw, few pairs, no gates: no evidence")
    parser.add_argument("--max-pairs", type=int, metavar="N", help="test at most N pairs of a fold")
    parser.add_argument("--max-folds", type=int, metavar="N", help="run at most N folds of an experiment")
    parser.add_argument("--preset", default="paper", help="settings of all registrations (default: %(default)s)")
    parser.add_argument("--config", type=Path, help="settings from a TOML file instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of patients, folds, pairs and simulated scans")
    parser.add_argument("--workers", type=int, help="processes (default: all cores)")
    parser.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    args = parser.parse_args(arguments)
    if min(n for n in (args.max_pairs, args.max_folds, args.workers, 1) if n is not None) < 1:
        parser.error("--max-pairs, --max-folds and --workers must be 1 or more")
    chosen = [e.limited(args.max_pairs, args.max_folds, quick=args.quick) for e in EXPERIMENTS[args.experiment]]
    for experiment in chosen:
        experiment.cases(args.data, args.seed)
    settings = rw.preset(args.preset)
    if args.config:
        settings = rw.Settings.model_validate(tomllib.loads(args.config.read_text(encoding="utf-8")))
    asked = {k: getattr(args, k) for k in ("experiment", "quick", "max_pairs", "max_folds", "seed")}
    asked["settings"] = settings.model_dump(mode="json")
    _claim(args.output, asked, resume=args.resume)
    try:
        found = [_run(e, args, settings.model_copy(update={"initial": e.initial or settings.initial})) for e in chosen]
    except rw.RegweaveError as error:
        raise SystemExit(f"error {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("cancelled; finished work is kept, continue with --resume") from None
    content = {**asked, "version": rw.__version__, "experiments": found}
    _write(args.output / "reproduce.json", json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    _write(args.output / "summary.md", write_summary(content))
    write_figure(content, args.output / "figure1.png")
    print(f"wrote {args.output / 'summary.md'}")
    return int(any(e["failed"] for e in found))


def _claim(folder: Path, asked: dict[str, Any], *, resume: bool) -> None:
    """Take a new folder, or with ``resume`` the folder of a run with the same arguments."""
    record = folder / "arguments.json"
    text = json.dumps(asked, indent=1) + "\n"
    if folder.exists() and any(folder.iterdir()):
        if not resume:
            raise SystemExit(f"error: '{folder}' is not empty; give --resume or another folder")
        if not record.is_file() or record.read_text(encoding="utf-8") != text:
            raise SystemExit(f"error: '{folder}' holds no run with these arguments; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    _write(record, text)


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _run(e: Experiment, args: argparse.Namespace, settings: rw.Settings) -> dict[str, Any]:
    """Train and evaluate on every split; what an earlier run finished is used again."""
    cases, n_found = e.cases(args.data.absolute(), args.seed)
    scans = _with_simulated(e, cases, args.output.absolute() / "scans" / e.name, args.seed)
    splits, rows, models = e.splits(scans, args.seed), {}, {}
    for split in splits:
        lists = args.output / "lists" / e.name
        train, test = (lists / f"{split.name}-{part}.csv" for part in ("train", "test"))
        _write_pairs(train, split.train)
        _write_pairs(test, split.test)
        used = {name: o for name, o in MODELS.items() if not (args.quick and o["gate"])}
        folder = args.output / "models" / e.name / split.name
        models[split.name] = [_model(e, split, train, folder / f"{n}.json", o, args, settings) for n, o in used.items()]
        print(f"{e.name} {split.name}: evaluating on {len(split.test)} pairs", flush=True)
        evaluation = rw.evaluate(
            test, args.output / "evaluations" / e.name / split.name, models=models[split.name], baselines=True,
            train_pairs=train, config=settings, classes=tuple(sorted(e.classes)), workers=args.workers, resume=True,
            allow_leak=e.pairing == "left out",
        )  # fmt: skip
        rows[split.name] = evaluation.rows()
    return {"cases": [s.name for s in scans], "cases_found": n_found, **pooled(e, splits, rows, models)}


def _model(
    e: Experiment, split: Split, pairs: Path, path: Path, options: dict[str, Any], args: argparse.Namespace,
    settings: rw.Settings,
) -> Path:  # fmt: skip
    """Train a model, unless the same files and options have been trained on before."""
    files = sorted({file for row in split.train for name, file in row.items() if name not in ("id", "group")})
    hashes = [hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in files]
    content = [rw.__version__, settings.model_dump(mode="json"), LEARNER, options, split.train, hashes, args.seed]
    key, mark = hashlib.sha256(json.dumps(content).encode()).hexdigest(), path.with_suffix(".key")
    if not (path.is_file() and mark.is_file() and mark.read_text(encoding="ascii") == key):
        print(f"{e.name} {split.name}: training {path.stem} on {len(split.train)} pairs", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        rw.train(
            pairs, path, config=settings, classes=tuple(sorted(e.classes)), seed=args.seed, workers=args.workers,
            resume=True, overwrite=True, **LEARNER, **options,
        )  # fmt: skip
        _write(mark, key)
    return path


def _write_pairs(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _with_simulated(e: Experiment, cases: list[Scan], folder: Path, seed: int) -> list[Scan]:
    """Return the real scans, then the simulated ones, which are written unless they exist."""
    scans = list(cases)
    for number, case in enumerate(cases):
        for t in range(1, e.time_points + 1):
            name, patient = e.later(case, t)
            scans.append(Scan(name, patient, folder / name / "image.nii.gz", folder / name / "labels.nii.gz"))
            if not (folder / name / "truth.h5").is_file():  # written last
                print(f"{e.name}: simulating {name}", flush=True)
                (folder / name).mkdir(parents=True, exist_ok=True)
                _simulate(e, case, scans[-1], int(np.random.SeedSequence([seed, number, t]).generate_state(1)[0]))
    return scans


def _simulate(e: Experiment, case: Scan, scan: Scan, seed: int) -> None:
    image, labels = nib.load(case.image), nib.load(case.labels)
    affine, spacing_mm = image.affine, np.linalg.norm(image.affine[:3, :3], axis=0)
    data, found, moved = second_scan(image.get_fdata(), np.asarray(labels.dataobj), spacing_mm, e.plan, seed)
    nib.save(nib.Nifti1Image(np.rint(data).astype(np.int16), affine), scan.image)
    nib.save(nib.Nifti1Image(found.astype(np.uint8), affine), scan.labels)
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    field_mm = np.tensordot(lps[:3, :3], moved, axes=1).astype(np.float32)
    rw.Transform(rw.Field(field_mm, rw.Geometry(data.shape, lps))).save(scan.image.parent / "truth.h5")


if __name__ == "__main__":
    sys.exit(main())
