"""Every kind of record and page, made by the command line from tiny phantoms."""

import contextlib
import io
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import doors
import nibabel as nib
import numpy as np
import tomli_w
from texts import page_text, record_text

from regweave.cli import main

TEXTS = Path(__file__).with_name("pages")
CONFIG = ("--config", str(Path(__file__).with_name("tiny.toml")))
QUICK = {"C": 20.0, "alpha": 1.0, "eta": 3.0, "epsilon": 0.05, "folds": 2}
PAPER = {"method": "lssvm", "gate": False}
"""Learning class by class; without gates, so that what was learned is used."""
FILES = ("fixed", "moving", "fixed_labels", "moving_labels")
HEADER = f"id,{','.join(FILES)},group"
RECORDS = {
    "registration": "registration/result.json",
    "model-joint": "joint.json",
    "model-per-class": "per-class.json",
    "evaluation": "evaluation/results.json",
}
PAGES = {
    "registration": "registration/report.html",
    "training-joint": "joint.report.html",
    "training-per-class": "per-class.report.html",
    "evaluation": "evaluation/report.html",
    "evaluation-list": "evaluation/index.html",
    "evaluation-pair": "evaluation/pages/*/report.html",
    "demo": "demo/index.html",
}
NAMES = (*(f"record-{name}.txt" for name in RECORDS), *(f"page-{name}.txt" for name in PAGES))


def texts(folder: Path) -> dict[str, str]:
    """Run the commands in an empty folder and return their records and pages as text."""
    folder = folder.resolve()
    _write_scans(folder)
    with contextlib.chdir(folder), doors.little_work():
        _run(
            "register", *(f"p3/{name}.nii" for name in FILES[:2]), "-o", "registration", *CONFIG,
            *(word for name in FILES[2:] for word in (f"--{name.replace('_', '-')}", f"p3/{name}.nii")),
        )  # fmt: skip
        for name, options in (("joint", QUICK), ("per-class", {**QUICK, **PAPER})):
            table = tomli_w.dumps({"train": {**options, "predictor_options": doors.QUICK}})
            Path(f"{name}.toml").write_text(f"{Path(CONFIG[1]).read_text()}\n{table}")
            _run("train", "train.csv", "-o", f"{name}.json", "--config", f"{name}.toml", "--workers", "1")
        _run(
            "evaluate", "test.csv", "-o", "evaluation", *CONFIG, "--model", "per-class.json", "--baselines",
             "--train-pairs", "train.csv", "--pages", "1", "--workers", "1",
        )  # fmt: skip
        doors.learn_demo(Path("demo"), Path("scans/train.csv"), Path("scans/test.csv"))
    records = {f"record-{name}.txt": record_text(folder / path) for name, path in RECORDS.items()}
    return records | {f"page-{name}.txt": page_text(next(folder.glob(path)), folder) for name, path in PAGES.items()}


def _run(*words: str) -> None:
    told = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        warnings.simplefilter("ignore")
        status = main(words)
    if status != os.EX_OK:
        raise AssertionError(f"regweave {' '.join(words)} ended with {status}: {told.getvalue()}")


def _write_scans(folder: Path) -> None:
    pairs = {f"p{seed}": doors.phantom("tiny", seed) for seed in range(5)}
    for name, pair in pairs.items():
        for column in FILES:
            _write(folder / name / f"{column}.nii", pair[column])
            few, affine = pair[column]
            if column.endswith("labels"):  # the demo learns two structures
                few = np.where(np.isin(few, (3, 4)), few, 0)
            _write(folder / "scans" / name / f"{column}.nii", (few, affine))
    (folder / "labels.json").write_text('{"3": "mandible", "4": "left <parotid>"}', encoding="utf-8")
    for place, names in (
        ("train", ["p0", "p1", "p2"]), ("test", ["p3", "p4"]), ("scans/train", ["p0", "p3"]),
        ("scans/test", ["p1", "p2"]),
    ):  # fmt: skip
        _write_list(folder / f"{place}.csv", names)


def _write(path: Path, part: doors.Part) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = np.float32 if part[0].dtype.kind == "f" else np.uint8
    nib.save(nib.Nifti1Image(part[0].astype(kind), part[1]), path)


def _write_list(path: Path, names: Iterable[str]) -> None:
    rows = (",".join([name, *(f"{name}/{column}.nii" for column in FILES), f"g{name}"]) for name in names)
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
