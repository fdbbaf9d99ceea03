"""Demonstration: three registrations to look at, then weights learned from phantoms and tested on others."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from regweave import notices
from regweave.config.settings import Settings
from regweave.io.disk import records
from regweave.jobs.table import read_pairs
from regweave.measures.scores import When
from regweave.model.model import Model
from regweave.progress import BatchProgress, TrainProgress
from regweave.run.read import Reading
from regweave.run.register import register
from regweave.run.result import Result
from regweave.study import evaluate, examples
from regweave.training.options import TrainOptions
from regweave.types import ImagePair

N_TRAIN, N_TEST = 6, 4
FIRST_TEST = 1000  # held-out phantoms have the same seeds for any number of phantoms to learn from
MOST_PAGES = 4  # held-out pairs with a separate page, those with the lowest Dice
BEFORE, LEARNED, NO_MASKS = "before", "learned", "learned, no masks"
MARGIN = 0.01  # loss of Dice against the best single metric of a structure that counts as reaching it
EXAMPLES = "examples"
EXAMPLE_VOXEL_MM = {"head and neck": 2.5, "chest": 3.5, "brain": 2.0}  # registered first

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
) -> tuple[Path, Path]:  # fmt: skip
    """Write two lists of phantom patients into a folder, to learn from and to test; ``make`` renders a patient."""
    lists = []
    for name, first, n in (("train", 0, n_train), ("test", FIRST_TEST, n_test)):
        seeds = [int(np.random.SeedSequence([seed, k]).generate_state(1)[0]) for k in range(first, first + n)]
        made = ((f"{name}{i:02d}", f"{name}{i:02d}", make(s)) for i, s in enumerate(seeds, start=1))
        lists.append(examples.write_list(folder / f"{name}.csv", made))
    return lists[0], lists[1]


class DemoSummary(records.RecordPart):
    """Numbers of a demo, for its page and for the terminal; ``demo.json``."""

    n_train: records.Count  # patients to learn from, a pair of each; `n_test` are held out
    n_test: records.Count
    structures: list[records.Text]
    dice: dict[str, list[records.Known]]  # by title of the method: mean Dice over all structures, then of each
    best_single: records.Text  # title of the single metric with the highest Dice on the training pairs
    against: dict[str, evaluate.Difference]  # of the learned weights, by title of the other method
    shares: Annotated[dict[str, dict[str, records.Number]], Field(min_length=1)]  # share of each metric by class
    uniform: list[records.Text]  # classes whose learned weights are not used
    gain: records.Known  # gain of left-out patients in training; None if no learned column is used
    shown: dict[records.SafeName, records.Known]  # pairs with a page and their mean Dice as learned, the lowest first
    failures: list[records.Text]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not {BEFORE, LEARNED} <= self.dice.keys():
            raise ValueError("dice: no row of the learned weights, or none before registration")
        if any(len(row) != len(self.structures) + 1 for row in self.dice.values()):
            raise ValueError("dice: a row needs a number for the mean and for each structure")
        if self.best_single not in self.against:
            raise ValueError("best_single: nothing is compared with it")
        if len({tuple(row) for row in self.shares.values()}) != 1:
            raise ValueError("shares: classes have different members")
        return self

    @property
    def members(self) -> list[str]:
        """Names of the metrics."""
        return list(next(iter(self.shares.values())))

    def opening(self) -> str:
        """Return where the scans come from and how they were used."""
        source = f"{self.n_train + self.n_test} phantom patients, each scanned at planning and once more later"
        return f"{source}. Learned from {self.n_train} pairs, tried on {self.n_test} others."

    def sentences(self) -> list[str]:
        """Return gains and losses, a sentence each."""
        before, after = self.dice[BEFORE][0], self.dice[LEARNED][0]
        if before is None or after is None:
            return ["No held-out pair could be registered with the learned weights."]
        against = {name: f"Against {name}: {_compared(row)}." for name, row in self.against.items()}
        best = against.pop(self.best_single).replace(":", ", the best single metric of the training patients:", 1)
        out = [
            f"On {self.n_test} held-out patients the learned weights bring the mean Dice from {before:.3f} to "
            f"{after:.3f}.",
            best, *self._by_structure(), *against.values(),
        ]  # fmt: skip
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
        singles = [name for name in self.against if name.endswith(" alone") and name in self.dice]
        found = {}
        for place, name in enumerate(self.structures, start=1):
            learned = self.dice[LEARNED][place]
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


def _compared(row: evaluate.Difference) -> str:
    if row.mean is None:
        return "no pair in common"
    word = "better" if row.mean > 0 else "worse" if row.mean < 0 else "no different"
    return f"{word} by {abs(row.mean):.3f}, better on {row.better} of {row.n} pairs and worse on {row.worse}"


def assess(
    folder: Path, train: Path, test: Path, model: Model, *, workers: int | None, on_progress: OnProgress | None
) -> DemoSummary:
    """Register the held-out patients with the learned weights and with every tuned baseline; keep the worst results."""
    results = folder / records.DEMO_EVALUATION
    found = evaluate.evaluate(
        test, results, models=[folder / records.DEMO_MODEL], baselines=True, train_pairs=train, workers=workers,
        on_progress=on_progress,
    )  # fmt: skip
    for row in found.worst(MOST_PAGES):
        evaluate.keep_registration(found, row, Reading(), results)
    summary = summarise(found, model, len(read_pairs(train)))
    records.write_record(folder / records.DEMO, summary.model_dump())
    return summary


def summarise(found: evaluate.Evaluation, model: Model, n_train: int) -> DemoSummary:
    """Compute the summary from an evaluation and the evaluated model."""
    learned = next(m.name for m in found.methods if _title(m) == LEARNED)
    baselines = [m for m in found.methods if m.is_baseline]

    def means(method: str, when: When = "dice_after") -> list[float | None]:
        return [records.plain(evaluate.mean(found.dice(method, label, when))) for label in (None, *found.labels)]

    def tuned(method: evaluate.MethodRecord) -> float:
        return max((point["mean_dice"] or 0.0 for point in method.tuning), default=-math.inf)

    gates, gain = model.training.gates, model.training.left_out_gain
    return DemoSummary(
        n_train=n_train, n_test=len(found.pairs), structures=list(found.labels.values()),
        dice={BEFORE: means(found.reference, "dice_before"), **{_title(m): means(m.name) for m in found.methods}},
        best_single=_title(max((m for m in baselines if m.name != evaluate.REFERENCE), key=tuned)),
        against={_title(m): evaluate.difference(found, learned, m.name) for m in baselines},
        shares={
            name: {member: w / max(sum(map(abs, row.values())), 1e-12) for member, w in row.items()}
            for name, row in model.weights_table().items()
        },
        uniform=[model.class_name(c) for c in model.weights.classes if str(c) in gates and not gates[str(c)].used],
        gain=None if gain is None else gain.mean,
        shown={row.id: records.plain(row.dice()) for row in found.worst(MOST_PAGES)},
        failures=[f"{row.method}/{row.id}: {row.error}" for row in found.failures],
    )  # fmt: skip


def _title(method: evaluate.MethodRecord) -> str:
    if method.model is not None:
        return NO_MASKS if method.predicted_classes else LEARNED
    if method.name.startswith(evaluate.SINGLE):
        return f"{method.name.removeprefix(evaluate.SINGLE)} alone"
    return f"{method.name} mix"
