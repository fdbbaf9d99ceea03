"""Demonstration: three registrations to look at, then weights learned from scans or phantoms and tested on others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from regweave import notices
from regweave.config.settings import Settings
from regweave.errors import RegweaveError
from regweave.io import owned_path
from regweave.io.disk import records
from regweave.io.disk.files import is_file, is_folder
from regweave.jobs.folds import split_groups
from regweave.jobs.table import FILES, PairFiles, read_pairs, write_pairs
from regweave.measures.scores import When
from regweave.measures.statistics import count_better, patients_of
from regweave.model.model import Model
from regweave.progress import BatchProgress, TrainProgress
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.run.result import Result
from regweave.study import examples
from regweave.study.evaluate import (
    REFERENCE,
    SINGLE,
    Evaluation,
    MethodRecord,
    PairResult,
    evaluate,
    keep_registration,
    mean,
)
from regweave.training.options import TrainOptions
from regweave.types import ImagePair

N_TRAIN, N_TEST = 6, 4
FIRST_TEST = 1000  # held-out phantoms have the same seeds for any number of phantoms to learn from
MOST_CASES = 20
LEAST_CASES = 6
MOST_PAGES = 4  # held-out pairs with a separate page, those with the lowest Dice
LISTS = ("PAIRS.csv", "pairs.csv")
IMAGE, LABELS = "image.nii.gz", "labels.nii.gz"
BEFORE = "before"
MARGIN = 0.01  # loss of Dice against the best single metric of a structure that counts as reaching it
EXAMPLES = "examples"
EXAMPLE_VOXEL_MM = {"head and neck": 2.5, "chest": 3.5, "brain": 2.0}  # registered first
NO_MASKS = "learned, no masks"

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
    """Two lists of pairs without a patient in common.

    ``source`` is a sentence about the scans.
    """

    train: Path
    test: Path
    source: str


def register_examples(folder: Path) -> Iterator[tuple[str, Result]]:
    """Register a pair of each anatomy by the default preset; write each result and its page below the folder."""
    for kind, voxel_mm in EXAMPLE_VOXEL_MM.items():
        pair = examples.pair(0, kind, voxel_mm=voxel_mm)
        with notices.muted():
            result = register(pair.fixed, pair.moving, progress=False)
        place = folder / EXAMPLES / kind.replace(" ", "-")
        place.mkdir(parents=True)
        result.write(place)
        yield kind, result


def example_sentence(result: Result) -> str:
    """Return Dice before and after, the displacement, and whether the result is good."""
    means = result.mean_dice
    gain = f"mean Dice {means['before']:.3f} before, {means['after']:.3f} after" if means else "no structures"
    word = {"pass": "Good", "look": "Look at it", "fail": "Bad"}[result.verdict.word]
    reasons = result.verdict.text or "every rule that can be checked is kept"
    return f"{word}: {gain}; {reasons}."


def make_cohort(
    folder: Path, seed: int = 0, *, n_train: int = N_TRAIN, n_test: int = N_TEST,
    make: Callable[[int], ImagePair] = examples.patient,
) -> Lists:  # fmt: skip
    """Write the scans of phantom patients and the two lists into a new folder; ``make`` renders a patient."""
    folder.mkdir(parents=True)
    for name, first, n in (("train", 0, n_train), ("test", FIRST_TEST, n_test)):
        seeds = [int(np.random.SeedSequence([seed, k]).generate_state(1)[0]) for k in range(first, first + n)]
        pairs = [_write_patient(folder / f"{name}{i:02d}", make(s)) for i, s in enumerate(seeds, start=1)]
        write_pairs(folder / f"{name}.csv", pairs)
    source = f"{n_train + n_test} phantom patients, each scanned at planning and once more later"
    return Lists(folder / "train.csv", folder / "test.csv", source)


def _write_patient(place: Path, pair: ImagePair) -> PairFiles:
    place.mkdir()
    files = {column: place / f"{column}.nii.gz" for column in FILES}
    assert pair.moving_labels is not None
    examples.write_pair(pair, files)
    names = json.dumps({str(value): name for value, name in pair.moving_labels.names.items()}, indent=1)
    (place / "labels.json").write_text(names + "\n", encoding="utf-8")
    return PairFiles(id=place.name, group=place.name, **files)


def split_folder(data: Path, folder: Path, seed: int = 0) -> Lists:
    """Split a user's scans into patients to learn from and patients held out, and write the two lists.

    A folder with PAIRS.csv is split into halves by patient; the seed chooses them. Else each sub-folder with
    image.nii.gz and labels.nii.gz is a patient: neighbours in the order of names become couples, registered both ways;
    the first half of the couples is learned from.

    Raises E138 where the folder has neither, or too few.
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
    return Lists(folder / "train.csv", folder / "test.csv", source)


def _couples(data: Path) -> tuple[dict[str, Sequence[PairFiles]], str]:
    images = data.glob(f"*/{IMAGE}") if is_folder(data) else ()
    cases = sorted(p.parent for p in images if (p.parent / LABELS).is_file())
    if len(cases) < LEAST_CASES:
        what = f"{len(cases)} cases" if is_folder(data) else "no such folder"
        message = f"'{data}': a demo needs {LISTS[0]} or at least {LEAST_CASES} cases, found {what}"
        raise RegweaveError("E138", message, f"write {LISTS[0]}, or put each case in CASE/{IMAGE} and CASE/{LABELS}")
    used = cases[: MOST_CASES - MOST_CASES % 2][: len(cases) - len(cases) % 2]
    couples = [(used[i], used[i + 1]) for i in range(0, len(used), 2)]
    # The gate needs two couples to learn from even where that leaves fewer for the test.
    n = max(2, len(couples) // 2)
    halves = {"train": couples[:n], "test": couples[n:]}
    pairs = {name: [_pair(*way) for a, b in part for way in ((a, b), (b, a))] for name, part in halves.items()}
    source = f"{len(used)} of {len(cases)} cases, neighbours by name registered to each other"
    return {name: tuple(part) for name, part in pairs.items()}, source


def _pair(fixed: Path, moving: Path) -> PairFiles:
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in f"{moving.name}-to-{fixed.name}")
    files = (fixed / IMAGE, moving / IMAGE, fixed / LABELS, moving / LABELS)
    patients = "+".join(p.name.replace("+", "_").replace(";", "_") for p in (fixed, moving))
    return PairFiles(name.lstrip(".-"), *files, group=patients)


def assess(
    folder: Path, lists: Lists, model: Model, *, classes: tuple[int, ...] | None, workers: int | None,
    on_progress: OnProgress,
) -> DemoSummary:  # fmt: skip
    """Register the held-out patients with the learned weights and with every tuned baseline; keep the worst results."""
    results = folder / records.DEMO_EVALUATION
    found = evaluate(
        lists.test, results, models=[folder / records.DEMO_MODEL], baselines=True, train_pairs=lists.train,
        workers=workers, classes=classes, on_progress=on_progress,
    )  # fmt: skip
    worst = found.worst(MOST_PAGES)
    for row in worst:
        keep_registration(found, row, Reading(classes=classes), results)
    summary = summarise(found, model, lists, len(read_pairs(lists.train)), worst)
    summary.write(folder)
    return summary


class PairedComparison(records.RecordPart):
    """The learned weights against one other method, by the mean Dice of each pair."""

    method: records.Text
    difference: records.Number
    better: records.Count
    worse: records.Count
    pairs: records.Count

    def __str__(self) -> str:
        if not self.pairs:
            return "no pair in common"
        word = "better" if self.difference > 0 else "worse" if self.difference < 0 else "no different"
        counted = f"better on {self.better} of {self.pairs} pairs and worse on {self.worse}"
        return f"{word} by {abs(self.difference):.3f}, {counted}"


class ColumnSummary(records.RecordPart):
    """Learned column of one class: its share of each metric, and whether it is used."""

    name: records.Text
    shares: dict[str, records.Number]
    used: bool


class DemoSummary(records.RecordPart):
    """Numbers of a demo, for its page and for the terminal; ``demo.json``."""

    source: records.Text  # where the scans come from
    n_train: records.Count  # pairs to learn from; `n_test` pairs of `n_patients` are held out
    n_test: records.Count
    n_patients: records.Count
    structures: list[records.Text]
    dice: dict[str, list[records.Known]]  # by title of the method: mean Dice over all structures, then of each
    learned: records.Text  # title of the learned weights
    best_single: records.Text  # title of the single metric with the highest Dice on the training pairs
    against: list[PairedComparison]
    trust: Annotated[list[ColumnSummary], Field(min_length=1)]  # weights by class
    gain: records.Known  # gain of left-out patients in training; None if no learned column is used
    shown: dict[records.SafeName, records.Known]  # pairs with a page and their mean Dice as learned, the lowest first
    failures: list[records.Text]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not {BEFORE, self.learned} <= self.dice.keys():
            raise ValueError("dice: no row of the learned weights, or none before registration")
        if any(len(row) != len(self.structures) + 1 for row in self.dice.values()):
            raise ValueError("dice: a row needs a number for the mean and for each structure")
        if self.best_single not in {row.method for row in self.against}:
            raise ValueError("best_single: nothing is compared with it")
        if len({tuple(row.shares) for row in self.trust}) != 1:
            raise ValueError("trust: classes have different members")
        return self

    def write(self, folder: Path) -> None:
        """Write ``demo.json``."""
        with owned_path(folder / records.DEMO) as part:
            part.write_text(json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def opening(self) -> str:
        """Return where the scans come from and how they were used."""
        source = self.source[:1].upper() + self.source[1:]
        return f"{source}. Learned from {self.n_train} pairs, tried on {self.n_test} others."

    def sentences(self) -> list[str]:
        """Return gains and losses, a sentence each."""
        before, after = self.dice[BEFORE][0], self.dice[self.learned][0]
        if before is None or after is None:
            return ["No held-out pair could be registered with the learned weights."]
        best = next(row for row in self.against if row.method == self.best_single)
        out = [
            f"On {self.n_patients} held-out patients the learned weights bring the mean Dice from {before:.3f} to "
            f"{after:.3f}.",
            f"Against {best.method}, the best single metric of the training patients: {best}.",
            *self._by_structure(),
            *(f"Against {row.method}: {row}." for row in self.against if row is not best),
        ]
        alone = self.dice.get(NO_MASKS, [None])[0]
        if alone is not None:
            out.append(f"Without masks of the moving images, with structures that the model predicts: {alone:.3f}.")
        if self.gain is None:
            out.append(
                "In training, left-out patients did not gain by learning: the columns of the levels are uniform."
            )
        if self.failures:
            out.append(f"{len(self.failures)} registrations failed; the page of the evaluation names them.")
        return out

    def best_singles(self) -> dict[str, tuple[str, float, float]]:
        """Return by structure the single metric with the highest held-out Dice, this Dice, and the learned one."""
        singles = [row.method for row in self.against if row.method.endswith(" alone") and row.method in self.dice]
        found = {}
        for place, name in enumerate(self.structures, start=1):
            learned = self.dice[self.learned][place]
            tried = {method: v for method in singles if (v := self.dice[method][place]) is not None}
            if learned is not None and tried:
                best = max(tried, key=tried.__getitem__)
                found[name] = best, tried[best], learned
        return found

    def _by_structure(self) -> list[str]:
        """Compare each structure with its best single metric, losses first."""
        found = self.best_singles()
        if not found:
            return []
        below = {name: row for name, row in found.items() if row[2] < row[1] - MARGIN}
        by_metric: dict[str, list[str]] = {}
        for name, (method, _, _) in found.items():
            by_metric.setdefault(method.removesuffix(" alone"), []).append(name)
        best = "; ".join(f"{metric} for {', '.join(names)}" for metric, names in by_metric.items())
        lost = ", ".join(f"{name} ({row[2]:.3f}, {row[0]} {row[1]:.3f})" for name, row in below.items())
        return [
            f"The best single metric is another one in each structure: {best}."
            if len(by_metric) > 1
            else f"One single metric is the best in every structure: {best}.",
            f"The learned weights reach the best single metric of the structure, within {MARGIN}, in "
            f"{len(found) - len(below)} of {len(found)} structures"
            + (f"; they are below it in {lost}." if lost else "."),
        ]


def summarise(found: Evaluation, model: Model, lists: Lists, n_train: int, worst: Sequence[PairResult]) -> DemoSummary:
    """Compute the summary from an evaluation and the evaluated model; ``worst`` pairs have pages."""
    learned = next(m for m in found.methods if m.model is not None and not m.predicted_classes)
    baselines = [m for m in found.methods if m.is_baseline]
    singles = [m for m in baselines if m.name != REFERENCE]

    def means(method: str, when: When = "dice_after") -> list[float | None]:
        return [_known(mean(found.dice(method, label, when))) for label in (None, *found.labels)]

    def against(other: MethodRecord) -> PairedComparison:
        differences = found.dice(learned.name) - found.dice(other.name)
        counts, n = count_better(differences), int((~np.isnan(differences)).sum())
        difference = _known(mean(differences)) or 0.0
        return PairedComparison(
            method=_title(other), difference=difference, better=counts.better, worse=counts.worse, pairs=n
        )

    def tuned(method: MethodRecord) -> float:
        return max((point["mean_dice"] or 0.0 for point in method.tuning), default=-math.inf)

    gain = model.training.left_out_gain
    return DemoSummary(
        source=lists.source, n_train=n_train, n_test=len(found.pairs),
        n_patients=len({name for pair in found.pairs for name in patients_of(pair.group or pair.id)}),
        structures=list(found.labels.values()),
        dice={BEFORE: means(found.reference, "dice_before"), **{_title(m): means(m.name) for m in found.methods}},
        learned=_title(learned), best_single=_title(max(singles, key=tuned)), against=[against(m) for m in baselines],
        trust=_columns(model), gain=None if gain is None else gain.mean,
        shown={row.id: _known(row.dice()) for row in worst},
        failures=[f"{row.method}/{row.id}: {row.error}" for row in found.failures],
    )  # fmt: skip


def _title(method: MethodRecord) -> str:
    if method.model is not None:
        return NO_MASKS if method.predicted_classes else "learned"
    return f"{method.name.removeprefix(SINGLE)} alone" if method.name.startswith(SINGLE) else f"{method.name} mix"


def _columns(model: Model) -> list[ColumnSummary]:
    w, gates = model.weights, model.training.gates
    shares = w.matrix / np.maximum(np.abs(w.matrix).sum(axis=0), 1e-12)
    return [
        ColumnSummary(
            name=model.class_names.get(value, str(value)),
            shares=dict(zip(w.members, shares[:, k].tolist(), strict=True)),
            used=str(value) not in gates or gates[str(value)].used,
        )
        for k, value in enumerate(w.classes)
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
