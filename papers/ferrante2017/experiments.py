"""Experiments of Ferrante et al. 2017: data, organs, pairs of each split, and where they differ from the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from simulate import ChangePlan, OrganChange

COLUMNS = ("SAD", "MI", "NCC", "DWT", "MW", "increment")
PAPER = {
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
"""Mean Dice by data set and organ, Table 1 of the supplement; ``increment`` is MW minus the mean of the others."""
Row = dict[str, str]
PATIENTS = 18
"""Largest number of patients of an experiment, that of the paper's IBSR; of a larger set so many are drawn by seed."""


@dataclass(frozen=True)
class Scan:
    """One volume with its labels; scans of one ``patient`` are never on both sides of a split."""

    name: str
    patient: str
    image: Path
    labels: Path


@dataclass(frozen=True)
class Split:
    """Training and test pairs, each a row of a list: id, four files, and the patients that it shows."""

    name: str
    train: list[Row]
    test: list[Row]


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    ``pairing`` is "between" (pairs of different patients), "within" (the scans of one patient) or "left out" (one scan
    with all others of one patient, which no training pair shows). ``paper_organs`` names organs of the paper's table
    by label. Patients are dealt into ``folds``; ``draws`` is the number of random sets of ``train_pairs`` in each, and
    ``test_pairs`` the largest number of tests of a fold. ``initial`` replaces the start of the settings;
    ``time_points`` is the number of scans that are simulated from each case, as ``plan`` asks.
    """

    name: str
    title: str
    folder: str
    paper_set: str
    pairing: str
    classes: Mapping[int, str]
    paper_organs: Mapping[int, str]
    source: str
    differences: tuple[str, ...]
    folds: int = 2
    draws: int = 1
    train_pairs: int = 10
    test_pairs: int = 72
    least_cases: int = 4
    initial: str | None = None
    time_points: int = 0
    plan: ChangePlan | None = None

    def limited(self, max_pairs: int | None, max_folds: int | None, *, quick: bool) -> Experiment:
        """Return the experiment with fewer pairs and folds."""
        e = replace(self, draws=1, folds=1, train_pairs=2, test_pairs=4) if quick else self
        return replace(e, test_pairs=min(e.test_pairs, max_pairs or 10**9), folds=min(e.folds, max_folds or 10**9))

    def cases(self, data: Path, seed: int) -> tuple[list[Scan], int]:
        """Return the real scans that are used, and how many cases the data folder has; SystemExit where too few."""
        folders = sorted(p.parent for p in (data / self.folder).glob("*/image.nii.gz"))
        found = [
            Scan(p.name, p.name, p / "image.nii.gz", p / "labels.nii.gz")
            for p in folders
            if (p / "labels.nii.gz").is_file()
        ]
        if len(found) < self.least_cases:
            raise SystemExit(
                f"error: {self.title} needs at least {self.least_cases} cases in '{data / self.folder}', found "
                f"{len(found)}; put each there as CASE/image.nii.gz and CASE/labels.nii.gz (see README.md)"
            )
        if self.pairing == "left out":
            return [replace(found[0], name="t0", patient="t0")], len(found)
        if len(found) <= PATIENTS:
            return found, len(found)
        chosen = np.random.default_rng([seed, len(found)]).choice(len(found), PATIENTS, replace=False)
        return [found[i] for i in sorted(chosen)], len(found)

    def later(self, case: Scan, t: int) -> tuple[str, str]:
        """Return name and patient of the t-th simulated scan of a case."""
        return (f"t{t}", f"t{t}") if self.pairing == "left out" else (f"{case.name}_later", case.patient)

    def splits(self, scans: Sequence[Scan], seed: int) -> list[Split]:
        """Draw the pairs of every fold; the same scans and seed give the same pairs."""
        out = []
        for fold, (train, test) in enumerate(self._folds(scans, seed), start=1):
            tested = _drawn(test, self.test_pairs, np.random.default_rng([seed, fold]))
            for draw in range(1, self.draws + 1):
                chosen = _drawn(train, self.train_pairs, np.random.default_rng([seed, fold, draw]))
                out.append(Split(f"fold{fold}-draw{draw}", chosen, tested))
        return out

    def _folds(self, scans: Sequence[Scan], seed: int) -> list[tuple[list[Row], list[Row]]]:
        """Return all training and all test pairs of each fold."""
        rng, scans = np.random.default_rng(seed), sorted(scans, key=lambda s: s.patient)
        if self.pairing == "left out":
            order = rng.permutation(len(scans))[: self.folds]
            others = [[s for s in scans if s is not scans[i]] for i in order]
            return [
                ([_pair(b, a) for a, b in combinations(kept, 2)], [_pair(scans[i], s) for s in kept])
                for i, kept in zip(order, others, strict=True)
            ]
        patients = sorted({s.patient for s in scans})
        order = rng.permutation(len(patients))
        within = self.pairing == "within"
        pairs = [(a, b) for a, b in permutations(scans, 2) if (a.patient == b.patient) == within]
        out = []
        for part in range(2)[: self.folds]:  # patients are always dealt into two halves
            tested = {patients[i] for i in order[part::2]}
            train = [_pair(a, b) for a, b in pairs if not {a.patient, b.patient} & tested]
            out.append((train, [_pair(a, b) for a, b in pairs if {a.patient, b.patient} <= tested]))
        return out


def _pair(fixed: Scan, moving: Scan) -> Row:
    group = "+".join(dict.fromkeys((fixed.patient, moving.patient)))
    files = {"fixed": fixed.image, "moving": moving.image, "fixed_labels": fixed.labels, "moving_labels": moving.labels}
    return {"id": f"{fixed.name}-{moving.name}", **{name: str(p) for name, p in files.items()}, "group": group}


def _drawn(pairs: Sequence[Row], n: int, rng: np.random.Generator) -> list[Row]:
    if n >= len(pairs):
        return list(pairs)
    return [pairs[i] for i in sorted(rng.choice(len(pairs), n, replace=False))]


PAROTIDS, PAROTID_ORGANS = {1: "left parotid", 2: "right parotid"}, {1: "Parotl", 2: "Parotr"}
OPENKBP = "OpenKBP: Babier et al., Medical Physics 2021; MIT licence."
START = (
    "The paper starts learning from weights of a grid search, (0.1, 10, 10, 10), and does not give C, α and η; "
    "here learning starts from equal weights of costs with equal scale."
)
EXACT = "Warped labels are exact for the known deformation; two real segmentations disagree."
IBSR = Experiment(
    "ibsr", "IBSR brain MR, between subjects", "ibsr18_64", "IBSR", "between",
    {1: "CSF", 2: "GM", 3: "WM"}, {1: "CSF", 2: "GM", 3: "WM"},
    "The MR brain data sets and their manual segmentations were provided by the Center for Morphometric Analysis at "
    "Massachusetts General Hospital. Skull-stripped: Rohlfing, IEEE TMI 31(2), 2012. Do not publish the pictures.",
    (
        "The paper has 18 subjects: two folds of 9, 72 ordered pairs each. Here each fold has half of the n subjects "
        "of the data folder; all their ordered pairs are tested, at most 72.",
        "The 64³ volumes are our own downsampling of the same repository; brain centroids are at the origin and "
        "nothing else is aligned. The paper does not give the start of its registrations.",
        START,
    ),
    draws=3,
)  # fmt: skip
PAROTID_BETWEEN = Experiment(
    "parotid-between", "Head and neck CT, between patients", "openkbp_head_neck", "RT Parotids", "between",
    PAROTIDS, PAROTID_ORGANS, OPENKBP,
    (
        "The paper registers two scans of one patient (4 patients, 8 pairs). This experiment registers different "
        "patients of OpenKBP at the paper's grid, which is harder: levels of Dice are not comparable with the paper's.",
        "At most 18 patients drawn by seed; two folds by patient, 10 random training pairs, the 72 ordered pairs of "
        "the other fold tested.",
        START,
    ),
)  # fmt: skip
PAROTID_TIME = Experiment(
    "parotid-time", "Head and neck CT, simulated second time point", "openkbp_head_neck", "RT Parotids", "within",
    PAROTIDS, PAROTID_ORGANS, OPENKBP,
    (
        "The paper's second scans are real. Here they are simulated from the first: parotids shrink to 60-85 %, most "
        "on the side of the midline; posture, gain, contrast and noise change; bones are not rigid.",
        EXACT,
        "The paper has 4 patients and one split. Here at most 18 patients drawn by seed are each tested once, in two "
        "folds by patient, in both directions; 10 random pairs of the other fold train.",
        START,
    ),
    time_points=1,
    plan=ChangePlan(
        tuple(OrganChange(c, volume=(0.6, 0.85), motion_mm=4.0, contrast=10.0, graded=True) for c in PAROTIDS),
        posture_mm=16.0,
    ),
)  # fmt: skip
ABDOMEN = Experiment(
    "abdomen", "Abdominal CT, one patient, simulated time points", "totalseg_abdomen", "RT Abdominal", "left out",
    {13: "bladder", 10: "colon", 11: "small bowel", 5: "stomach", 1: "liver", 2: "spleen"},
    {13: "Bladder", 10: "Sigmoid"},
    "TotalSegmentator example: Wasserthal et al., Radiology: Artificial Intelligence 2023; Apache-2.0.",
    (
        "The paper has five real scans of one patient with bladder, sigmoid and rectum drawn by specialists. Here are "
        "one real scan and four simulated from it: bladder filling, motion of the bowels, breathing and posture.",
        "The organs are those of a segmentation network. The whole colon is compared with the paper's sigmoid; the "
        "paper's rectum has no counterpart.",
        "As in the paper, six pairs train and four test, and all show one patient: only the left-out scan is new. Each "
        "scan is left out once. Intervals and gates take scans, not patients, as the unit of chance.",
        EXACT + " Sliding organs and gas are absent.",
        START,
    ),
    folds=5, time_points=4, least_cases=1,
    plan=ChangePlan(
        (
            OrganChange(13, volume=(0.5, 2.0), contrast=15.0),
            OrganChange(10, volume=(0.8, 1.25), motion_mm=28.0, contrast=25.0),
            OrganChange(11, volume=(0.9, 1.1), motion_mm=22.0, contrast=10.0),
            OrganChange(5, volume=(0.6, 1.5), motion_mm=8.0, contrast=20.0),
            OrganChange(1, motion_mm=8.0),
        ),
        posture_mm=14.0, posture_width_mm=35.0,
    ),
)  # fmt: skip
ABDOMEN_BETWEEN = Experiment(
    "abdomen-between", "Abdominal CT, between patients", "btcv_abdomen", "RT Abdominal", "between",
    {6: "liver", 1: "spleen", 2: "right kidney", 3: "left kidney", 7: "stomach"}, {},
    "BTCV: Multi-Atlas Labeling Beyond the Cranial Vault, Landman et al., MICCAI 2015 workshop, Synapse syn3193805. "
    "Do not publish the pictures.",
    (
        "The paper registers five scans of one patient. This experiment registers different patients, whose organs "
        "differ far more, and has none of the paper's organs: only differences between methods are comparable.",
        "Only organs that are larger than a cell of the 25 mm control grid are learned and scored.",
        "Body sizes differ, so every registration of every method has an affine start; 'before' is after it. The paper "
        "names no start.",
        "Two folds by patient, 10 random training pairs, the 72 ordered pairs of the other fold tested.",
        START,
    ),
    initial="affine",
)  # fmt: skip
ALL = (IBSR, PAROTID_BETWEEN, PAROTID_TIME, ABDOMEN, ABDOMEN_BETWEEN)
EXPERIMENTS = {e.name: (e,) for e in ALL} | {
    "parotid": (PAROTID_BETWEEN, PAROTID_TIME),
    "abdomen": (ABDOMEN, ABDOMEN_BETWEEN),
    "all": ALL,
}
"""Experiments by the word of the command line; ``abdomen`` is both of them."""
