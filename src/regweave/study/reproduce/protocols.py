"""Protocols of Ferrante et al. 2017 (main text and supplement), one dataclass for each kind of split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Self

import numpy as np

from regweave.datasets.manifest import PairFiles
from regweave.datasets.simulate import ChangePlan

MOST_PATIENTS, MOST_PAIRS = 18, 72
"""Patients of an experiment and test pairs of a fold, at most: those of the paper's IBSR. More are drawn by seed."""
PAPER_COLUMNS = ("SAD", "MI", "NCC", "DWT", "MW", "increment")
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "RT Parotids": {
        "Parotl": (0.756, 0.760, 0.750, 0.757, 0.788, 0.033),
        "Parotr": (0.813, 0.798, 0.783, 0.774, 0.811, 0.019),
    },
    "RT Abdominal": {
        "Bladder": (0.661, 0.643, 0.662, 0.652, 0.736, 0.082),
        "Sigmoid": (0.429, 0.423, 0.432, 0.426, 0.497, 0.070),
        "Rectum": (0.613, 0.606, 0.620, 0.617, 0.660, 0.046),
    },
    "IBSR": {
        "CSF": (0.447, 0.520, 0.543, 0.527, 0.546, 0.037),
        "GM": (0.712, 0.725, 0.735, 0.734, 0.761, 0.035),
        "WM": (0.629, 0.658, 0.669, 0.661, 0.682, 0.028),
    },
}
"""Mean Dice by data set and organ, Table 1 of the supplement, in the order of `PAPER_COLUMNS`.

The last number, as printed, is MW minus the mean of the single metrics.
"""


@dataclass(frozen=True)
class Scan:
    """One volume with its labels, and the unit that must not be on both sides of a split."""

    name: str
    patient: str
    image: Path
    labels: Path


@dataclass(frozen=True)
class Split:
    """Pairs of one experiment."""

    fold: int
    repetition: int
    train: tuple[PairFiles, ...]
    test: tuple[PairFiles, ...]

    @property
    def name(self) -> str:
        """Word for files and reports."""
        return f"fold{self.fold}-repetition{self.repetition}"


@dataclass(frozen=True)
class Protocol(ABC):
    """One experiment.

    Parameters
    ----------
    name, title : str
        Word for files, words for people.
    data_set : str
        Folder below the data folder.
    paper_set : str
        Data set of the paper that it stands for.
    classes : mapping
        Names of the structures by label value; all others are background.
    paper_organs : mapping
        Organ of the paper's table by label value, where there is one to compare with.
    differences : tuple of str
        Where our data and protocol differ from the paper's.
    source : str
        Acknowledgement that the data ask for.
    folds, repetitions : int
        Folds, and draws of training pairs in each.
    train_pairs, test_pairs : int, optional
        Pairs of a fold drawn at random; all where it is not given, or there are no more.
    patients : int
        Patients drawn at random from a larger set.
    initial : str, optional
        Start of every registration, where it is not that of the settings.
    time_points : int
        Simulated scans of each case.
    plan : ChangePlan, optional
        How they are simulated.
    folds_run : int, optional
        Run only so many of the folds.
    overlay : bool
        Show masks over each other, as the paper does for CT; else differences of intensity, as for the brain.
    """

    name: str
    title: str
    data_set: str
    paper_set: str
    classes: Mapping[int, str]
    paper_organs: Mapping[int, str]
    differences: tuple[str, ...]
    source: str
    folds: int = 2
    repetitions: int = 1
    train_pairs: int | None = 10
    test_pairs: int | None = MOST_PAIRS
    time_points: int = 0
    plan: ChangePlan | None = None
    folds_run: int | None = None
    overlay: bool = True
    least_cases: int = field(default=4, kw_only=True)
    patients: int = field(default=MOST_PATIENTS, kw_only=True)
    initial: str | None = field(default=None, kw_only=True)

    def quick(self) -> Self:
        """Return the protocol for a fast look: one fold, one draw, two training and at most four test pairs."""
        return replace(self, repetitions=1, folds_run=1, train_pairs=2, test_pairs=4)

    def at_most(self, test_pairs: int | None, max_folds: int | None = None) -> Self:
        """Return the protocol with fewer test pairs in a fold, or fewer folds."""
        pairs, run = (
            min((n for n in both if n is not None), default=None)
            for both in ((self.test_pairs, test_pairs), (self.folds_run, max_folds))
        )
        return replace(self, test_pairs=pairs, folds_run=run)

    def splits(self, scans: Sequence[Scan], seed: int = 0) -> list[Split]:
        """Draw the pairs of every fold and repetition; the same scans and seed give the same pairs."""
        out = []
        for fold, (train, test) in enumerate(self.folds_of(scans, seed)[: self.folds_run], start=1):
            tested = _drawn(test, self.test_pairs, np.random.default_rng([seed, fold]))
            for repetition in range(1, self.repetitions + 1):
                rng = np.random.default_rng([seed, fold, repetition])
                out.append(Split(fold, repetition, _drawn(train, self.train_pairs, rng), tested))
        return out

    def first(self, cases: Sequence[Scan], seed: int = 0) -> list[Scan]:
        """Real scans that the experiment uses: all, or of a larger set as many as the paper's largest has."""
        if len(cases) <= self.patients:
            return list(cases)
        chosen = np.random.default_rng([seed, len(cases)]).choice(len(cases), self.patients, replace=False)
        return [cases[i] for i in sorted(chosen)]

    def later(self, case: Scan, t: int) -> tuple[str, str]:
        """Name and patient of the t-th simulated scan of a case."""
        return f"{case.name}_later{t}" if self.time_points > 1 else f"{case.name}_later", case.patient

    @abstractmethod
    def folds_of(self, scans: Sequence[Scan], seed: int) -> list[tuple[list[PairFiles], list[PairFiles]]]:
        """All training and all test pairs of each fold."""

    def describe(self) -> dict[str, Any]:
        """Return what a report needs, as JSON values."""
        return {
            "name": self.name,
            "title": self.title,
            "data_set": self.data_set,
            "paper_set": self.paper_set,
            "classes": {str(c): name for c, name in self.classes.items()},
            "paper_organs": {str(c): name for c, name in self.paper_organs.items()},
            "paper": {organ: dict(zip(PAPER_COLUMNS, v, strict=True)) for organ, v in PAPER[self.paper_set].items()},
            "differences": list(self.differences),
            "source": self.source,
            "overlay": self.overlay,
            "rules": {"patients": self.patients, "test_pairs": self.test_pairs, "initial": self.initial},
        }


@dataclass(frozen=True)
class BetweenPatients(Protocol):
    """Patients are dealt into folds; the pairs of a fold are all ordered pairs of different patients in it."""

    def folds_of(self, scans: Sequence[Scan], seed: int) -> list[tuple[list[PairFiles], list[PairFiles]]]:
        """Train on pairs without a patient of the fold, test on pairs within it."""
        parts = _dealt(sorted({s.patient for s in scans}), self.folds, seed)
        return [
            (_ordered([s for s in scans if s.patient not in part]), _ordered([s for s in scans if s.patient in part]))
            for part in parts
        ]


@dataclass(frozen=True)
class TwoTimePoints(Protocol):
    """Pairs are the scans of one patient, in both directions; patients are dealt into folds."""

    def folds_of(self, scans: Sequence[Scan], seed: int) -> list[tuple[list[PairFiles], list[PairFiles]]]:
        """Train on the pairs of the other patients."""
        patients = sorted({s.patient for s in scans})
        pairs = {p: _ordered([s for s in scans if s.patient == p]) for p in patients}
        parts = _dealt(patients, self.folds, seed)
        return [
            (
                [q for p in patients if p not in part for q in pairs[p]],
                [q for p in patients if p in part for q in pairs[p]],
            )
            for part in parts
        ]


@dataclass(frozen=True)
class OnePatient(Protocol):
    """Five scans of one patient give ten pairs: the six without a scan train, the four with it test."""

    def first(self, cases: Sequence[Scan], seed: int = 0) -> list[Scan]:
        """Take one case; scans, named t0, t1, …, are what must not be on both sides."""
        return [Scan("t0", "t0", cases[0].image, cases[0].labels)]

    def later(self, case: Scan, t: int) -> tuple[str, str]:
        """Name the scan by its time."""
        return f"t{t}", f"t{t}"

    def folds_of(self, scans: Sequence[Scan], seed: int) -> list[tuple[list[PairFiles], list[PairFiles]]]:
        """Leave out each scan once, in random order."""
        order = np.random.default_rng(seed).permutation(len(scans))[: self.folds]
        out = []
        for i in order:
            others = [s for s in scans if s != scans[i]]
            out.append(
                ([_pair(b, a) for a, b in combinations(others, 2)], [_pair(scans[i], other) for other in others])
            )
        return out


def _pair(fixed: Scan, moving: Scan) -> PairFiles:
    group = fixed.patient if fixed.patient == moving.patient else f"{fixed.patient}+{moving.patient}"
    return PairFiles(f"{fixed.name}-{moving.name}", fixed.image, moving.image, fixed.labels, moving.labels, group)


def _ordered(scans: Sequence[Scan]) -> list[PairFiles]:
    return [_pair(a, b) for a, b in permutations(scans, 2)]


def _dealt(patients: Sequence[str], folds: int, seed: int) -> list[set[str]]:
    order = np.random.default_rng(seed).permutation(len(patients))
    return [{patients[i] for i in order[part::folds]} for part in range(folds)]


def _drawn(pairs: Sequence[PairFiles], n: int | None, rng: np.random.Generator) -> tuple[PairFiles, ...]:
    if n is None or n >= len(pairs):
        return tuple(pairs)
    return tuple(pairs[i] for i in sorted(rng.choice(len(pairs), n, replace=False)))
