"""Pairs of images to measure on: the real sets under REGWEAVE_DATA, or phantoms where there are none."""

import hashlib
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "datasets"))
from phantoms import make_phantom
from regweave.config import presets as registration_settings
from regweave.config.settings import Settings
from regweave.io import write_image, write_labels
from regweave.jobs.table import PairFiles, write_pairs
from regweave.run.read import Inputs, read_inputs
from regweave.run.resolve import Recipe
from regweave.run.start import start_pair
from regweave.types import ImagePair, WeightTable

PHANTOM = "phantom"
N_PHANTOMS = 8
PHANTOM_SHAPE = (64, 64, 64)
PHANTOM_SPACING_MM = (3.0, 3.0, 3.0)
HIPPOCAMPUS = "hippocampus_"

Couples = list[tuple[str, str]]


@dataclass(frozen=True)
class PairName:
    """Which two cases of a set; ``subject`` is the person (or phantom) that the fixed image shows."""

    set: str
    fixed: str
    moving: str
    subject: str

    def __str__(self) -> str:
        return f"{self.moving} to {self.fixed}"


@dataclass(frozen=True)
class ImageSet:
    """A set of the data folder: labels that count, which cases are paired, whom to thank.

    ``folds`` is the number of parts of a cross-validation, ``init`` the start that pairs of the set need, and
    ``true_mm`` says whether distances in millimetres mean something.
    """

    labels: dict[int, str]
    couples: Callable[[list[str]], Couples]
    credit: str
    folds: int = 5
    init: str = "none"
    true_mm: bool = True


@dataclass(frozen=True)
class Prepared:
    """A pair in memory and all that `align` and `refine` need besides."""

    pair: ImagePair
    weights: WeightTable
    schedule: Settings
    settings: Settings


def all_ordered(cases: list[str]) -> Couples:
    """Every case as fixed image for every other."""
    return list(itertools.permutations(cases, 2))


def between_people(cases: list[str]) -> Couples:
    """Every case as fixed image for every other that shows somebody else."""
    return [(a, b) for a, b in all_ordered(cases) if subject_of(a) != subject_of(b)]


def phases(cases: list[str]) -> Couples:
    """End-diastole and end-systole of each patient, both ways."""
    patients = sorted({c.rsplit("_", 1)[0] for c in cases})
    return [(f"{p}_{a}", f"{p}_{b}") for p in patients for a, b in (("ED", "ES"), ("ES", "ED"))]


def _each_alone(cases: list[str]) -> Couples:
    return [(c, c) for c in cases]


_IBSR = (
    "IBSR: the MR brain data sets and their manual segmentations were provided by the Center for Morphometric "
    "Analysis at Massachusetts General Hospital; skull-stripped by Rohlfing, IEEE TMI 31(2), 2012"
)
_TISSUES = {1: "CSF", 2: "GM", 3: "WM"}
_ORGANS = {1: "left parotid", 2: "right parotid", 3: "brainstem", 4: "spinal cord", 5: "mandible"}
_PARTS = {1: "brainstem", 2: "cord", 3: "mandible", 4: "left parotid", 5: "right parotid", 6: "airway"}
_HEART = {1: "right ventricle", 2: "myocardium", 3: "left ventricle"}
_ABDOMEN = ("spleen", "right kidney", "left kidney", "gallbladder", "esophagus", "liver", "stomach", "aorta",
            "inferior vena cava", "portal and splenic vein", "pancreas", "right adrenal", "left adrenal")  # fmt: skip
_ACDC = "ACDC: Bernard et al., IEEE TMI 37(11), 2018"
# Codes of LPBA40: odd ones left, even ones right, in six lobes and four deep structures.
_LPBA = [*range(21, 35), *range(41, 51), *range(61, 69), *range(81, 93), *range(101, 103), *range(121, 123),
         *range(161, 167)]  # fmt: skip
SETS = {
    "ibsr18_64": ImageSet(_TISSUES, all_ordered, _IBSR, folds=4),
    "ibsr18_64_affine": ImageSet(_TISSUES, all_ordered, _IBSR, folds=4),
    "ibsr18_native": ImageSet(_TISSUES, all_ordered, _IBSR, folds=4),
    "openkbp_head_neck": ImageSet(_ORGANS, all_ordered, "OpenKBP: Babier et al., Medical Physics 2021"),
    "acdc_cardiac": ImageSet(_HEART, phases, _ACDC, true_mm=False),
    "acdc_mm": ImageSet(_HEART, phases, _ACDC),
    "btcv_abdomen": ImageSet(
        dict(enumerate(_ABDOMEN, 1)), all_ordered, "BTCV: Landman et al., MICCAI workshop 2015", init="affine"
    ),
    "chaos_mr_abdomen": ImageSet(
        dict(enumerate(("liver", "right kidney", "left kidney", "spleen"), 1)),
        all_ordered,
        "CHAOS: Kavur et al., Medical Image Analysis 69, 2021",
        folds=4,
    ),
    "lpba40_80": ImageSet({v: str(v) for v in _LPBA}, all_ordered, "LPBA40: Shattuck et al., NeuroImage 39(3), 2008"),
    "mscmr_cardiac": ImageSet(_HEART, all_ordered, "MS-CMRSeg: Zhuang, IEEE TPAMI 41(12), 2019"),
    "msd_hippocampus": ImageSet(
        {1: "anterior", 2: "posterior"},
        between_people,
        "Medical Segmentation Decathlon: Simpson et al. 2019, CC BY-SA 4.0",
    ),
    PHANTOM: ImageSet(_PARTS, _each_alone, "the phantom of regweave"),
}


def data_root() -> Path | None:
    """Return the folder with the real sets, None where REGWEAVE_DATA is not set."""
    folder = os.environ.get("REGWEAVE_DATA")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise SystemExit("REGWEAVE_DATA is not a folder; correct it, or unset it to use the phantom")
    return Path(folder)


def choose_set(wanted: str) -> tuple[str, str]:
    """Return the set to use and a sentence that says what the data are: the phantom stands in for absent sets."""
    if wanted not in SETS:
        raise SystemExit(f"unknown set {wanted!r}; available: {', '.join(SETS)}")
    if wanted != PHANTOM and data_root() is None:
        return PHANTOM, f"phantoms (in place of {wanted}: REGWEAVE_DATA is not set)"
    return wanted, wanted


def choose_pairs(name: str, n_pairs: int | None, seed: int) -> list[PairName]:
    """Return all pairs of a set, or a seeded sample of them, in the order of their names."""
    couples = SETS[name].couples(cases_of(name))
    if n_pairs is not None and n_pairs < len(couples):
        chosen = np.random.default_rng(seed).choice(len(couples), n_pairs, replace=False)
        couples = [couples[i] for i in sorted(chosen)]
    return [PairName(name, fixed, moving, subject_of(fixed)) for fixed, moving in couples]


def subject_of(case: str) -> str:
    """Return the person that a case shows: two phases of a heart, or both hippocampi of a head, are one person."""
    if case.startswith(HIPPOCAMPUS):
        return f"{HIPPOCAMPUS}p{(int(case.removeprefix(HIPPOCAMPUS)) + 1) // 2:03d}"
    return case.removesuffix("_ED").removesuffix("_ES")


def cases_of(name: str) -> list[str]:
    """Return the names of all cases of a set, sorted."""
    if name == PHANTOM:
        return [f"seed_{s}" for s in range(N_PHANTOMS)]
    root = data_root()
    assert root is not None
    cases = sorted(f.parent.name for f in (root / name).glob("*/image.nii.gz"))
    if not cases:
        raise SystemExit(f"no case in the set {name!r}; REGWEAVE_DATA should hold {name}/CASE/image.nii.gz")
    return cases


def read(name: PairName) -> Inputs:
    """Read the images and labels of a pair, or make them."""
    if name.set == PHANTOM:
        p = make_phantom(int(name.fixed.split("_")[1]), PHANTOM_SHAPE, PHANTOM_SPACING_MM).pair
        return read_inputs(p.fixed, p.moving, p.fixed_labels, p.moving_labels)
    return read_inputs(*files(name).values())


def files(name: PairName) -> dict[str, Any]:
    """Files of a pair of a real set: fixed, moving, fixed_labels, moving_labels."""
    root = data_root()
    assert root is not None
    fixed, moving = (root / name.set / case for case in (name.fixed, name.moving))
    return {
        "fixed": fixed / "image.nii.gz",
        "moving": moving / "image.nii.gz",
        "fixed_labels": fixed / "labels.nii.gz",
        "moving_labels": moving / "labels.nii.gz",
    }


@contextmanager
def pair_files(name: PairName) -> Iterator[Any]:
    """Files of a pair; a phantom is written for as long as the block lasts."""
    if name.set != PHANTOM:
        yield files(name)
        return
    with TemporaryDirectory() as folder:
        pair = make_phantom(int(name.fixed.split("_")[1]), PHANTOM_SHAPE, PHANTOM_SPACING_MM).pair
        for which in ("fixed", "moving"):
            write_image(Path(folder, f"{which}.nii.gz"), getattr(pair, which))
            write_labels(Path(folder, f"{which}_labels.nii.gz"), getattr(pair, f"{which}_labels"))
        names = ("fixed", "moving", "fixed_labels", "moving_labels")
        yield {n: Path(folder, f"{n}.nii.gz") for n in names}


def settings_of(source: str) -> Settings:
    """Return a preset, or the settings of a TOML file."""
    if source.endswith(".toml"):
        return registration_settings.load(Path(source))
    return registration_settings.preset(source)


def all_settings_of(sources: Sequence[str]) -> list[Settings]:
    """Return several settings; their names tell the results apart, so they must differ."""
    out = [settings_of(source) for source in sources]
    names = [s.name for s in out]
    if len(set(names)) < len(names):
        raise SystemExit(f"the settings are called {', '.join(names)}; give each a name of its own")
    return out


def settings_hash(settings: Settings) -> str:
    """Short hash of all settings, by which a result knows what it was made with."""
    text = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(name: PairName, settings: Settings, init: str = "none") -> Prepared:
    """Read a pair, start it, and give every member of the bank the same weight."""
    inputs = read(name)
    recipe = Recipe.resolve(settings, inputs)
    return Prepared(start_pair(inputs, init), recipe.weights, recipe.schedule, settings)


GOLDEN = (math.sqrt(5) - 1) / 2


def patients(set_name: str) -> tuple[list[str], list[str]]:
    """Return the patients for training and those for the test."""
    names = sorted({subject_of(case) for case in cases_of(set_name)})
    return names[: len(names) // 2], names[len(names) // 2 :]


def training_pairs(set_name: str, limit: int | None) -> list[PairName]:
    """Pairs of training patients: all of them, or the first of the walk."""
    return _pairs_among(set_name, patients(set_name)[0], limit)


def test_pairs(set_name: str, limit: int | None) -> list[PairName]:
    """Pairs of test patients: all of them, or the first of the walk."""
    return _pairs_among(set_name, patients(set_name)[1], limit)


def folds_of(set_name: str, seed: int = 0) -> dict[str, int]:
    """Deal the people of a set to its folds, by seed; return the fold of each case."""
    people = sorted({subject_of(case) for case in cases_of(set_name)})
    order = np.random.default_rng(seed).permutation(len(people))
    fold = {people[k]: place % SETS[set_name].folds for place, k in enumerate(order)}
    return {case: fold[subject_of(case)] for case in cases_of(set_name)}


def fold_pairs(set_name: str, fold: int, limit: int, seed: int = 0) -> list[PairName]:
    """Pairs of people of one fold, at most so many; a larger limit only adds pairs.

    The next pair is always one whose cases have been used least, the fixed place and the moving place counted apart;
    the order of equals is drawn by seed.
    """
    cases = [case for case, k in folds_of(set_name, seed).items() if k == fold]
    return covering_pairs(set_name, cases, limit, np.random.default_rng([seed, fold]))


def covering_pairs(set_name: str, cases: list[str], limit: int, rng: np.random.Generator) -> list[PairName]:
    """Pairs of some cases, each time one whose cases have been used least; the order of equals is drawn."""
    couples = SETS[set_name].couples(cases)
    couples = [couples[k] for k in rng.permutation(len(couples))]
    used: Counter[tuple[str, str]] = Counter()
    out = []
    while couples and len(out) < limit:
        fixed, moving = min(couples, key=lambda c: _wear(used, c))
        couples.remove((fixed, moving))
        used.update([("fixed", subject_of(fixed)), ("moving", subject_of(moving)), ("case", fixed), ("case", moving)])
        out.append(PairName(set_name, fixed, moving, subject_of(fixed)))
    return out


def _wear(used: Counter[tuple[str, str]], couple: tuple[str, str]) -> tuple[int, int, int]:
    people = [subject_of(case) for case in couple]
    times = [used["fixed", person] + used["moving", person] for person in people]
    return max(times), used["fixed", people[0]] + used["moving", people[1]], sum(used["case", c] for c in couple)


def write_csv(pairs: Iterable[PairName], path: str | Path) -> None:
    """Write pairs of a real set as a list for `regweave train` and `regweave evaluate`; a group is ``p07+p11``."""
    write_pairs(path, [_line(pair) for pair in pairs])


def _line(name: PairName) -> PairFiles:
    people = dict.fromkeys(map(subject_of, (name.fixed, name.moving)))
    return PairFiles(id=f"{name.moving}-to-{name.fixed}", group="+".join(people), **files(name))


def _pairs_among(set_name: str, people: Sequence[str], limit: int | None) -> list[PairName]:
    chosen = [case for case in cases_of(set_name) if subject_of(case) in people]
    couples = SETS[set_name].couples(chosen)
    n = len(couples)
    step = stride(n)
    walk = [couples[k * step % n] for k in range(n if limit is None else min(limit, n))]
    return [PairName(set_name, fixed, moving, subject_of(fixed)) for fixed, moving in walk]


def stride(n: int) -> int:
    """Return the number nearest to n times the golden ratio that has no factor in common with n."""
    return min((k for k in range(1, n + 1) if math.gcd(k, n) == 1), key=lambda k: abs(k - n * GOLDEN))


N_DRAWS = 4000
LEVEL = 0.95


def mean_interval(values: Sequence[float], subjects: Sequence[str], seed: int) -> dict[str, float]:
    """Mean of one value per pair, and its interval from drawing subjects with replacement.

    Returns
    -------
    dict
        ``mean``, ``low`` and ``high`` (the middle 95 % of the drawn means), ``n`` pairs, ``n_subjects``.
    """
    table = np.asarray(values, dtype=np.float64)
    names = sorted(set(subjects))
    if table.size == 0:
        return {"mean": float("nan"), "low": float("nan"), "high": float("nan"), "n": 0, "n_subjects": 0}
    of = [np.flatnonzero([s == name for s in subjects]) for name in names]
    sums, counts = np.array([table[i].sum() for i in of]), np.array([len(i) for i in of])
    drawn = np.random.default_rng(seed).integers(0, len(names), (N_DRAWS, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "mean": float(table.mean()), "low": float(low), "high": float(high), "n": table.size, "n_subjects": len(names)
    }  # fmt: skip
