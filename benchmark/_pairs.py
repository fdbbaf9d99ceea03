"""Sets of images under REGWEAVE_DATA, their pairs, folds and people; phantoms where there are none."""

import hashlib
import itertools
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "datasets"))
from phantoms import make_phantom
from regweave import notices, register
from regweave.config import settings as presets
from regweave.config.settings import Settings
from regweave.io import read_image, read_labels, write_image, write_labels
from regweave.jobs.table import PairFiles, write_pairs
from regweave.measures.scores import dice, regularity, surface_distances
from regweave.measures.statistics import paired_bootstrap
from regweave.run.read import Reading, read_inputs
from regweave.run.resolve import Recipe
from regweave.run.result import Result
from regweave.run.start import start_pair
from regweave.spatial.warp import determinant, warp_labels
from regweave.types import Field, Image, ImagePair, LabelMap, Transform, Volume, WeightTable

PHANTOM = "phantom"
N_PHANTOMS = 8
PHANTOM_SHAPE = (64, 64, 64)
PHANTOM_SPACING_MM = (3.0, 3.0, 3.0)
HIPPOCAMPUS = "hippocampus_"
WHICH = ("fixed", "moving", "fixed_labels", "moving_labels")

Couples = list[tuple[str, str]]


@dataclass(frozen=True)
class PairName:
    """Which two cases of a set."""

    set: str
    fixed: str
    moving: str

    @property
    def subject(self) -> str:
        """Person (or phantom) that the fixed image shows."""
        return subject_of(self.fixed)

    def __str__(self) -> str:
        return f"{self.moving} to {self.fixed}"


@dataclass(frozen=True)
class ImageSet:
    """A set of the data folder: labels that count, which cases are paired, whom to thank.

    ``folds`` is the number of parts of a cross-validation, ``init`` the start that pairs of the set need. Distances in
    millimetres are real with ``true_mm``.
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


_IBSR = (
    "IBSR: the MR brain data sets and their manual segmentations were provided by the Center for Morphometric "
    "Analysis at Massachusetts General Hospital; skull-stripped by Rohlfing, IEEE TMI 31(2), 2012"
)
_TISSUES = {1: "CSF", 2: "GM", 3: "WM"}
_ORGANS = {1: "left parotid", 2: "right parotid", 3: "brainstem", 4: "spinal cord", 5: "mandible"}
_PARTS = {1: "brainstem", 2: "cord", 3: "mandible", 4: "left parotid", 5: "right parotid", 6: "airway"}
_HEART = {1: "right ventricle", 2: "myocardium", 3: "left ventricle"}
_ABDOMEN = dict(enumerate((
    "spleen", "right kidney", "left kidney", "gallbladder", "esophagus", "liver", "stomach", "aorta",
    "inferior vena cava", "portal and splenic vein", "pancreas", "right adrenal", "left adrenal",
), 1))  # fmt: skip
_CHAOS = {1: "liver", 2: "right kidney", 3: "left kidney", 4: "spleen"}
_DECATHLON = "Medical Segmentation Decathlon: Simpson et al. 2019, CC BY-SA 4.0"
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
    "btcv_abdomen": ImageSet(_ABDOMEN, all_ordered, "BTCV: Landman et al., MICCAI workshop 2015", init="affine"),
    "chaos_mr_abdomen": ImageSet(_CHAOS, all_ordered, "CHAOS: Kavur et al., Medical Image Analysis 69, 2021", folds=4),
    "lpba40_80": ImageSet({v: str(v) for v in _LPBA}, all_ordered, "LPBA40: Shattuck et al., NeuroImage 39(3), 2008"),
    "mscmr_cardiac": ImageSet(_HEART, all_ordered, "MS-CMRSeg: Zhuang, IEEE TPAMI 41(12), 2019"),
    "msd_hippocampus": ImageSet({1: "anterior", 2: "posterior"}, between_people, _DECATHLON),
    PHANTOM: ImageSet(_PARTS, lambda cases: [(c, c) for c in cases], "the phantom of regweave"),
}


def data_root() -> Path:
    """Return the folder with the real sets."""
    folder = os.environ.get("REGWEAVE_DATA", "")
    if not Path(folder).is_dir() or not folder:
        raise SystemExit("set REGWEAVE_DATA to the folder with the sets")
    return Path(folder)


def choose_set(wanted: str) -> tuple[str, str]:
    """Return the set to use and its description; without REGWEAVE_DATA phantoms take the place of any set."""
    if wanted not in SETS:
        raise SystemExit(f"unknown set {wanted!r}; available: {', '.join(SETS)}")
    if wanted != PHANTOM and "REGWEAVE_DATA" not in os.environ:
        return PHANTOM, f"phantoms (in place of {wanted}: REGWEAVE_DATA is not set)"
    return wanted, wanted


def cases_of(name: str) -> list[str]:
    """Return the names of all cases of a set, sorted."""
    if name == PHANTOM:
        return [f"seed_{s}" for s in range(N_PHANTOMS)]
    cases = sorted(f.parent.name for f in (data_root() / name).glob("*/image.nii.gz"))
    if not cases:
        raise SystemExit(f"no case in the set {name!r}; REGWEAVE_DATA should hold {name}/CASE/image.nii.gz")
    return cases


def subject_of(case: str) -> str:
    """Return the person that a case shows: two phases of a heart, or both hippocampi of a head, are one person."""
    if case.startswith(HIPPOCAMPUS):
        return f"{HIPPOCAMPUS}p{(int(case.removeprefix(HIPPOCAMPUS)) + 1) // 2:03d}"
    return case.removesuffix("_ED").removesuffix("_ES")


def image_file(name: str, case: str) -> Path:
    """File of the image of a case."""
    return data_root() / name / case / "image.nii.gz"


def read_case(name: str, case: str) -> Image:
    """Image of a case with its labels and their names."""
    path, names = image_file(name, case), data_root() / name / "labels.json"
    labels = read_labels(path.with_name("labels.nii.gz"), names_path=names if names.exists() else None)
    return Image.of(read_image(path), labels)


def segmented(name: str, case: str) -> tuple[Volume, LabelMap]:
    """Image of a case with its modality, and its labels; those that do not count are background."""
    reading, path = Reading(classes=tuple(SETS[name].labels)), image_file(name, case)
    volume = reading.image(path)
    labels = reading.labels(path.with_name("labels.nii.gz"), volume.geometry)
    assert labels is not None
    return volume, LabelMap(labels.data, labels.geometry, SETS[name].labels)


def files(name: PairName) -> dict[str, Path]:
    """Files of a pair of a real set: fixed, moving, fixed_labels, moving_labels."""
    found = {"fixed": image_file(name.set, name.fixed), "moving": image_file(name.set, name.moving)}
    return found | {f"{which}_labels": path.with_name("labels.nii.gz") for which, path in found.items()}


@contextmanager
def pair_files(name: PairName) -> Iterator[dict[str, Path]]:
    """Files of a pair; a phantom is written for as long as the block lasts."""
    if name.set != PHANTOM:
        yield files(name)
        return
    with TemporaryDirectory() as folder:
        pair, paths = phantom(name.fixed), {which: Path(folder, f"{which}.nii.gz") for which in WHICH}
        for which, path in paths.items():
            (write_labels if which.endswith("labels") else write_image)(path, getattr(pair, which))
        yield paths


def phantom(case: str) -> ImagePair:
    """Make the pair of a phantom."""
    return make_phantom(int(case.split("_")[1]), PHANTOM_SHAPE, PHANTOM_SPACING_MM).pair


def choose_pairs(name: str, n_pairs: int | None, seed: int) -> list[PairName]:
    """Return all pairs of a set, or a seeded sample of them, in the order of their names."""
    couples = SETS[name].couples(cases_of(name))
    if n_pairs is not None and n_pairs < len(couples):
        chosen = np.random.default_rng(seed).choice(len(couples), n_pairs, replace=False)
        couples = [couples[i] for i in sorted(chosen)]
    return [PairName(name, *couple) for couple in couples]


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


def _pairs_among(set_name: str, people: Sequence[str], limit: int | None) -> list[PairName]:
    couples = SETS[set_name].couples([case for case in cases_of(set_name) if subject_of(case) in people])
    n = len(couples)
    return [PairName(set_name, *couples[k * stride(n) % n]) for k in range(n if limit is None else min(limit, n))]


def stride(n: int) -> int:
    """Return the number nearest to n times the golden ratio that has no factor in common with n."""
    golden = (math.sqrt(5) - 1) / 2
    return min((k for k in range(1, n + 1) if math.gcd(k, n) == 1), key=lambda k: abs(k - n * golden))


def folds_of(set_name: str, seed: int = 0) -> dict[str, int]:
    """Deal the people of a set to its folds, by seed; return the fold of each case."""
    people = sorted({subject_of(case) for case in cases_of(set_name)})
    order = np.random.default_rng(seed).permutation(len(people))
    fold = {people[k]: place % SETS[set_name].folds for place, k in enumerate(order)}
    return {case: fold[subject_of(case)] for case in cases_of(set_name)}


def fold_pairs(set_name: str, fold: int, limit: int, seed: int = 0) -> list[PairName]:
    """Pairs of people of one fold, at most so many; a larger limit only adds pairs."""
    cases = [case for case, k in folds_of(set_name, seed).items() if k == fold]
    return covering_pairs(set_name, cases, limit, np.random.default_rng([seed, fold]))


def covering_pairs(set_name: str, cases: list[str], limit: int, rng: np.random.Generator) -> list[PairName]:
    """Pairs of some cases, each time one whose cases have been used least, as fixed and as moving image counted apart.

    The order of equals is drawn.
    """
    couples = SETS[set_name].couples(cases)
    couples = [couples[k] for k in rng.permutation(len(couples))]
    used: Counter[tuple[str, str]] = Counter()
    out: list[PairName] = []
    while couples and len(out) < limit:
        fixed, moving = min(couples, key=lambda c: _wear(used, c))
        couples.remove((fixed, moving))
        used.update([("fixed", subject_of(fixed)), ("moving", subject_of(moving)), ("case", fixed), ("case", moving)])
        out.append(PairName(set_name, fixed, moving))
    return out


def _wear(used: Counter[tuple[str, str]], couple: tuple[str, str]) -> tuple[int, int, int]:
    people = [subject_of(case) for case in couple]
    times = [used["fixed", person] + used["moving", person] for person in people]
    return max(times), used["fixed", people[0]] + used["moving", people[1]], sum(used["case", c] for c in couple)


def write_csv(pairs: Iterable[PairName], path: str | Path) -> None:
    """Write pairs of a real set as a list for `regweave train` and `regweave evaluate`; a group is ``p07+p11``."""
    people = {pair: dict.fromkeys(map(subject_of, (pair.fixed, pair.moving))) for pair in pairs}
    rows = [PairFiles(id=f"{p.moving}-to-{p.fixed}", group="+".join(of), **files(p)) for p, of in people.items()]
    write_pairs(path, rows)


def settings_of(source: str) -> Settings:
    """Return a preset, or the settings of a TOML file."""
    return presets.load(Path(source)) if source.endswith(".toml") else presets.preset(source)


def settings_hash(settings: Settings) -> str:
    """Short hash of all settings, which a row carries."""
    text = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(name: PairName, settings: Settings, init: str = "none") -> Prepared:
    """Read or make a pair, start it, and give every member of the bank the same weight."""
    made = phantom(name.fixed) if name.set == PHANTOM else None
    inputs = read_inputs(**files(name)) if made is None else read_inputs(*(getattr(made, w) for w in WHICH))
    recipe = Recipe.resolve(settings, inputs)
    return Prepared(start_pair(inputs, init), recipe.weights, recipe.schedule, settings)


def registered(
    fixed: Any, moving: Any, truth: LabelMap | None = None, labels: Sequence[int] | None = None, **words: Any
) -> tuple[Result, dict[str, Any]]:
    """Register on one thread; the result, with folds, processor seconds, and the Dice of some labels with true ones."""
    began = time.process_time()
    with notices.muted():
        result = register(fixed, moving, **{"threads": 1, "progress": False} | words)
    row = {"folds": result.regularity["folding_fraction"], "seconds": time.process_time() - began}
    if truth is not None:
        assert result.warped_labels is not None
        row["dice"] = {str(v): d for v, d in dice(result.warped_labels, truth, labels).items()}
    return result, row


def with_settings(preset: str) -> dict[str, str]:
    """Argument of `register` for a preset, or for settings in a TOML file."""
    return {"config" if preset.endswith(".toml") else "preset": preset}


def judge(pair: ImagePair, field: Field, labels: Sequence[int], *, surfaces: bool = False) -> dict[str, Any]:
    """Dice by label of the labels that a field warps, perhaps distances of surfaces, and how regular the field is."""
    assert pair.moving_labels is not None
    assert pair.fixed_labels is not None
    truth, warped = pair.fixed_labels, warp_labels(pair.moving_labels, Transform(field, pair.initial))
    row: dict[str, Any] = {"dice": {str(v): d for v, d in dice(warped, truth, labels).items()}}
    if surfaces:
        spacing = truth.geometry.spacing_mm
        far = {v: surface_distances(warped.data == v, truth.data == v, spacing).hd95_mm for v in labels}
        row["hd95_mm"] = {str(v): d for v, d in far.items()}
    return {**row, **regularity(determinant(field))}


def mean_of(values: Iterable[float | None]) -> float:
    """Mean over the numbers that are there; NaN for none."""
    kept = [v for v in values if v is not None and np.isfinite(v)]
    return float(np.mean(kept)) if kept else float("nan")


def mean_dice(scores: Mapping[str, Any]) -> float:
    """Mean over the labels that either image has."""
    return mean_of(scores["dice"].values())


def mean_interval(values: Sequence[float], subjects: Sequence[str], seed: int) -> dict[str, float]:
    """Mean of one value for each pair, with its 95 % interval from drawing subjects with replacement."""
    found = paired_bootstrap(values, subjects, n=4000, seed=seed)
    return {**found._asdict(), "n": len(values), "n_subjects": len(set(subjects))}
