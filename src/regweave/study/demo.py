"""Demonstration on scans or phantoms: learned weights, and what they are worth on patients left out of learning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from regweave.config.settings import Settings
from regweave.datasets.folds import split_groups
from regweave.datasets.manifest import FILES, PairFiles, read_pairs, write_pairs
from regweave.errors import RegweaveError
from regweave.io import write_image, write_labels
from regweave.io.disk.files import is_file, is_folder
from regweave.io.disk.records import DEMO_EVALUATION, DEMO_MODEL
from regweave.jobs.store import BatchProgress
from regweave.model.effort import write_effort
from regweave.model.model import Model
from regweave.run.reading import Reading
from regweave.study.demo_summary import DemoSummary, summarise
from regweave.study.evaluate import evaluate
from regweave.study.phantoms import COHORT, cohort_pair
from regweave.study.worst_cases import keep_registration, shown_method, worst_pairs
from regweave.training.options import TrainOptions
from regweave.training.run import train
from regweave.training.state import TrainProgress
from regweave.types import ImagePair

N_TRAIN, N_TEST = 6, 4
FIRST_TEST = 1000
"""Held-out phantoms have seeds of their own, whatever the number of those trained on."""
MOST_CASES = 20
LEAST_CASES = 6
MOST_PAGES = 4
"""Held-out pairs with a page of their own, those with the lowest Dice."""
LISTS = ("PAIRS.csv", "pairs.csv")
IMAGE, LABELS = "image.nii.gz", "labels.nii.gz"

_MEMBERS = [
    {"name": "sad", "metric": "sad"},
    {"name": "mi", "metric": "mi", "support": 3},
    {"name": "ncc", "metric": "ncc"},
]
SETTINGS = Settings.model_validate(
    {
        "name": "demo",
        "smoothness": 1.0,
        "class_reach": 2.0,
        "loss": "voxel",
        "reference_mm": 192.0,
        "levels": [
            {"spacing_mm": mm, "voxels_per_spacing": 6.0, "support": 5, "steps": 3} for mm in (48.0, 24.0, 16.0)
        ],
        "banks": {"ct": _MEMBERS, "mr": _MEMBERS},
    }
)
"""Three metrics that differ much, and no refinement: a registration of a phantom takes about 0.3 s."""
OPTIONS = TrainOptions(C=300.0, alpha=0.05, eta=10.0, epsilon=0.03, folds=2)

OnProgress = Callable[[TrainProgress | BatchProgress], None]


@dataclass(frozen=True)
class Lists:
    """Two lists of pairs without a patient in common, and how they came about.

    Parameters
    ----------
    train, test : path
        Lists to learn from and to try the weights on.
    source : str
        One sentence.
    right : mapping
        Metric that is right by construction, by label; empty for real scans.
    """

    train: Path
    test: Path
    source: str
    right: Mapping[int, str]


def make_cohort(
    folder: Path,
    seed: int = 0,
    *,
    n_train: int = N_TRAIN,
    n_test: int = N_TEST,
    make: Callable[[int], ImagePair] = cohort_pair,
) -> Lists:
    """Write the scans of phantom patients and the two lists.

    Parameters
    ----------
    folder : path
        New folder for them.
    seed : int
        Chooses the cohort.
    n_train, n_test : int
        Patients to learn from, and held out.
    make : callable
        Makes the two scans of a patient from a number.
    """
    folder.mkdir(parents=True)
    made = {}
    for name, first, n in (("train", 0, n_train), ("test", FIRST_TEST, n_test)):
        numbers = range(first, first + n)
        seeds = [int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) for number in numbers]
        pairs = [_write_patient(folder, f"{name}{i:02d}", make(s)) for i, s in enumerate(seeds, start=1)]
        made[name] = folder / f"{name}.csv"
        write_pairs(made[name], pairs)
    source = f"{n_train + n_test} phantom patients, each scanned at planning and once more later"
    return Lists(made["train"], made["test"], source, {value: organ.right for value, organ in COHORT.items()})


def _write_patient(folder: Path, name: str, pair: ImagePair) -> PairFiles:
    place = folder / name
    place.mkdir()
    files = {column: place / f"{column}.nii.gz" for column in FILES}
    write_image(files["fixed"], pair.fixed)
    write_image(files["moving"], pair.moving)
    assert pair.fixed_labels is not None
    assert pair.moving_labels is not None
    write_labels(files["fixed_labels"], pair.fixed_labels)
    write_labels(files["moving_labels"], pair.moving_labels)
    names = json.dumps({str(value): name for value, name in pair.moving_labels.names.items()}, indent=1)
    (place / "labels.json").write_text(names + "\n", encoding="utf-8")
    return PairFiles(id=name, group=name, **files)


def split_folder(data: Path, folder: Path, seed: int = 0) -> Lists:
    """Split a user's scans into patients to learn from and patients held out, and write the two lists.

    A folder with PAIRS.csv is split into halves by patient. Else each sub-folder with image.nii.gz and labels.nii.gz
    is a patient: neighbours in the order of names become couples, registered both ways; the first half of the
    couples is learned from.

    Parameters
    ----------
    data : path
        Folder with PAIRS.csv or CASE/{image,labels}.nii.gz.
    folder : path
        New folder for the lists.
    seed : int
        Chooses the halves of PAIRS.csv.

    Raises
    ------
    RegweaveError
        E138 where the folder has neither, or too few.
    """
    listed = next((data / name for name in LISTS if is_file(data / name)), None)
    if listed is not None:
        half = split_groups(read_pairs(listed), 2, seed)[0]
        halves: dict[str, Sequence[PairFiles]] = {"train": half.train, "test": half.test}
        dropped = f"; {len(half.dropped)} pairs have patients in both halves and are left out" if half.dropped else ""
        source = f"the pairs of {listed.name}, half of the patients held out{dropped}"
    else:
        halves, source = _couples(data)
    folder.mkdir(parents=True)
    for name, pairs in halves.items():
        write_pairs(folder / f"{name}.csv", pairs)
    return Lists(folder / "train.csv", folder / "test.csv", source, {})


def _couples(data: Path) -> tuple[dict[str, Sequence[PairFiles]], str]:
    images = data.glob(f"*/{IMAGE}") if is_folder(data) else ()
    found = sorted(p.parent for p in images if (p.parent / LABELS).is_file())
    if len(found) < LEAST_CASES:
        what = f"{len(found)} cases" if is_folder(data) else "no such folder"
        message = f"'{data}': a demo needs {LISTS[0]} or at least {LEAST_CASES} cases, found {what}"
        raise RegweaveError("E138", message, f"write {LISTS[0]}, or put each case in CASE/{IMAGE} and CASE/{LABELS}")
    used = found[: MOST_CASES - MOST_CASES % 2][: len(found) - len(found) % 2]
    couples = [(used[i], used[i + 1]) for i in range(0, len(used), 2)]
    # The gate needs two couples to learn from even where that leaves fewer for the test.
    n = max(2, len(couples) // 2)
    halves = {"train": couples[:n], "test": couples[n:]}
    pairs = {name: [_pair(*way) for a, b in part for way in ((a, b), (b, a))] for name, part in halves.items()}
    source = f"{len(used)} of {len(found)} cases, neighbours by name registered to each other"
    return {name: tuple(part) for name, part in pairs.items()}, source


def _pair(fixed: Path, moving: Path) -> PairFiles:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in f"{moving.name}-to-{fixed.name}")
    files = (fixed / IMAGE, moving / IMAGE, fixed / LABELS, moving / LABELS)
    patients = "+".join(p.name.replace("+", "_").replace(";", "_") for p in (fixed, moving))
    return PairFiles(name.lstrip(".-"), *files, group=patients)


def learn(
    folder: Path,
    lists: Lists,
    *,
    settings: Settings = SETTINGS,
    options: TrainOptions = OPTIONS,
    classes: tuple[int, ...] | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Model:
    """Learn the weights, and write the model and what it has cost into the folder."""
    options = replace(options, classes=classes)
    stages: dict[str, Mapping[str, float]] = {}

    def keep(progress: TrainProgress | BatchProgress) -> None:
        if isinstance(progress, TrainProgress) and progress.stages is not None:
            stages.update(progress.stages)
        if on_progress is not None:
            on_progress(progress)

    model = train(lists.train, folder / DEMO_MODEL, options=options, config=settings, workers=workers, on_progress=keep)
    write_effort(folder / DEMO_MODEL, stages)
    return model


def judge(
    folder: Path,
    lists: Lists,
    model: Model,
    *,
    classes: tuple[int, ...] | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> DemoSummary:
    """Register the held-out patients with the learned weights and with every tuned baseline; keep some results."""
    reading = Reading(classes=classes)
    folder_of_results = folder / DEMO_EVALUATION
    found = evaluate(
        lists.test, folder_of_results, models=[folder / DEMO_MODEL], baselines=True, train_pairs=lists.train,
        workers=workers, classes=classes, on_progress=on_progress,
    )  # fmt: skip
    scores = found.scores
    shown = worst_pairs(scores, MOST_PAGES)
    for pair in shown:
        keep_registration(shown_method(scores), pair, reading, folder_of_results, found.rules)
    summary = summarise(
        scores, model, source=lists.source, n_train=len(read_pairs(lists.train)),
        shown=[pair.id for pair in shown], right=lists.right,
    )  # fmt: skip
    summary.write(folder)
    return summary
