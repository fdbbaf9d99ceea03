"""Cross-validation by person over all people of a set: every rung beside the network's segmentation alone.

People are dealt to folds (`_pairs.py`), and pairs are drawn inside folds. For each fold the smoothness of the uniform
bank, the best single metric, and the weights of structure maps with and without the moving mask are chosen on the pairs
of all other folds and judged on the fold's own, whose people nothing has seen. With ``--maps``
the maps are what networks told out of fold (`plugins/predictors/stored_maps.py`), otherwise a perceptron is fitted for
each fold. A pair may choose for every fold but its own, so each candidate is registered once with each pair.
Interrupted, it goes on where it stopped.

What stays dependent: a person's own maps come from a network that never saw them, but the network of another fold,
whose maps the weights are chosen with, has.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT, Claim, parser, write
from _map_folder import map_folder
from _pairs import SETS, PairName, cases_of, files, fold_pairs, folds_of, subject_of, write_csv
from regweave import predictors
from regweave.config import presets as registration_settings
from regweave.config.settings import Settings
from regweave.io import sha256
from regweave.jobs.runner import REFINE, Method, Runner, bank_of_list, baseline_methods
from regweave.jobs.store import Outcome, content_hash
from regweave.jobs.table import PairFiles, read_pairs
from regweave.measures.overlap import dice
from regweave.measures.statistics import count_better, paired_bootstrap
from regweave.model.model import Model
from regweave.predictors import Examples, Predictor
from regweave.registration.initial import STRUCTURES
from regweave.run.read import Reading
from regweave.training.refinement import background_of
from regweave.types import WeightTable

COMPARED = "compared"
"""Stands for the member that compares maps of both images: `shapes`, or `anatomy` where a bank has no `shapes`."""


@dataclass(frozen=True)
class Mix:
    """Weights of members of maps against one metric, factor of the smoothness, and whether maps act earlier too.

    ``coarse`` gives the first member's maps a weight in the levels: ``levels`` times that of all metrics together.
    ``start`` lays structures on each other first, ``longer`` makes so many times the steps of the refinement. With
    ``apart`` the background has a column of its own: that of the images, with the smoothness of the preset.
    """

    maps: Mapping[str, float]
    smoother: float
    coarse: bool = False
    start: bool = False
    levels: float = 1.0
    longer: int = 1
    apart: bool = False

    @property
    def name(self) -> str:
        """How results and models call it."""
        parts = [f"{member} {factor:g}" for member, factor in self.maps.items()]
        weight = "" if self.levels == 1.0 else f" {self.levels:g}"
        parts += [f"{next(iter(self.maps))}-coarse{weight}"] if self.coarse else []
        parts += ["structures"] if self.start else []
        parts += ["background apart"] if self.apart else []
        return ", ".join(parts) + f" × {self.smoother:g}" + ("" if self.longer == 1 else f", {self.longer} × steps")


LEARNED, MASKED = "learned", "learned, mask"
"""Rungs without and with the moving mask."""
MIXES = {
    "fine": {
        LEARNED: (Mix({COMPARED: 8}, 0.25), Mix({COMPARED: 32}, 0.25)),
        MASKED: (Mix({"outline": 4}, 0.5), Mix({"outline": 8}, 0.5), Mix({"outline": 8, COMPARED: 4}, 0.25)),
    },
    "longer": {
        LEARNED: (Mix({COMPARED: 32}, 0.25, longer=2), Mix({COMPARED: 32}, 0.125, longer=2)),
        MASKED: (
            Mix({"outline": 8}, 0.25, longer=2),
            Mix({"outline": 8, COMPARED: 8}, 0.25, longer=2),
            Mix({COMPARED: 32}, 0.25),
        ),
    },
    "started": {
        LEARNED: (Mix({COMPARED: 8}, 0.5, coarse=True, start=True), Mix({COMPARED: 32}, 0.25, coarse=True, start=True)),
        MASKED: (
            Mix({"outline": 8}, 0.5, coarse=True, start=True),
            Mix({"outline": 8, COMPARED: 4}, 0.25, coarse=True, start=True),
        ),
    },
    "laid": {
        LEARNED: (Mix({COMPARED: 8}, 0.25, start=True), Mix({COMPARED: 32}, 0.25, start=True)),
        MASKED: (Mix({"outline": 8}, 0.5, start=True), Mix({"outline": 8}, 0.25, start=True)),
    },
    "apart": {
        LEARNED: (Mix({COMPARED: 8}, 0.25, apart=True), Mix({COMPARED: 32}, 0.25, apart=True)),
        MASKED: (
            Mix({"outline": 4}, 0.5, apart=True),
            Mix({"outline": 8}, 0.5, apart=True),
            Mix({"outline": 8, COMPARED: 4}, 0.25, apart=True),
        ),
    },
    "coarse-apart": {
        LEARNED: (Mix({COMPARED: 32}, 0.25, coarse=True, apart=True),),
        MASKED: (Mix({"outline": 8}, 0.5, coarse=True, apart=True),),
    },
    "started-apart": {
        LEARNED: (Mix({COMPARED: 32}, 0.25, coarse=True, start=True, apart=True),),
        MASKED: (Mix({"outline": 8, COMPARED: 4}, 0.25, coarse=True, start=True, apart=True),),
    },
}
"""Families of mixes by rung.

``fine`` uses maps in the refinement alone, ``longer`` gives it more steps, ``laid`` aligns the structures of both
images first, ``started`` does so and uses maps in the levels too.
``apart``, ``coarse-apart`` and ``started-apart`` leave the background to the images.
"""


SMOOTHER = (0.5, 1.0, 2.0)
"""Factors of the smoothness of the refinement for the uniform bank and single metrics."""


@dataclass(frozen=True)
class Candidate:
    """One way to register: the rung that it belongs to, its name, and the method for a pair of a fold."""

    rung: str
    name: str
    method: Callable[[int], Method]


def fixed_candidates(base: Settings, modality: Any, only: Sequence[str] = ()) -> list[Candidate]:
    """The uniform bank with some smoothnesses, and every metric that can be refined, or some of them, alone."""
    uniform, *singles = baseline_methods(base, modality)
    named = {m.name.removeprefix("single:"): m for m in singles if m.settings.refine.steps}
    return [
        *(_smoothed("uniform", "uniform", uniform, factor) for factor in SMOOTHER),
        *(_smoothed("single", name, m, 1.0) for name, m in named.items() if not only or name in only),
    ]


def tuned_singles(base: Settings, modality: Any, names: Sequence[str]) -> list[Candidate]:
    """Other smoothnesses of the single metrics that some fold found best."""
    methods = {m.name.removeprefix("single:"): m for m in baseline_methods(base, modality)}
    return [_smoothed("single", name, methods[name], factor) for name in names for factor in SMOOTHER if factor != 1.0]


def _smoothed(rung: str, name: str, method: Method, factor: float) -> Candidate:
    turned = method.at(REFINE, REFINE.get(method.settings) * factor)
    return Candidate(rung, f"{name} × {factor:g}", lambda _: turned)


@dataclass(frozen=True)
class Learning:
    """What candidates that compare maps are made of; ``predictors`` of a fold have seen none of its people.

    Models are written to ``folder``: workers read them there, for a plug-in does not travel in memory.
    """

    settings: Settings
    modality: Any
    classes: tuple[int, ...]
    predictors: Mapping[int, Predictor]
    folder: Path
    mixes: Sequence[str] = ("fine",)

    def candidates(self) -> list[Candidate]:
        """Weights of maps with and without the moving mask, of some families of `MIXES`."""
        names = [m.name for m in self.schedule.bank]
        compared = "shapes" if "shapes" in names else "anatomy"
        out = []
        for rung in (LEARNED, MASKED):
            for mix in (mix for family in self.mixes for mix in MIXES[family][rung]):
                maps = {compared if member == COMPARED else member: f for member, f in mix.maps.items()}
                out.append(self._candidate(rung, replace(mix, maps=maps)))
        return out

    @property
    def schedule(self) -> Settings:
        """Bank and levels."""
        return self.settings.for_bank(self.modality)

    def _candidate(self, rung: str, mix: Mix) -> Candidate:
        base = self.settings.model_copy(update={"modality": self.modality})
        settings = REFINE.set(base, REFINE.get(base) * mix.smoother)
        refine = settings.refine.model_copy(update={"steps": mix.longer * settings.refine.steps})
        settings = settings.model_copy(update={"refine": refine})
        if mix.start:
            settings = settings.model_copy(update={"initial": STRUCTURES})
        start = self.schedule.start_weights(settings.smoothness, self.classes)
        weights = mixed(start, self.schedule, mix)

        def method(fold: int) -> Method:
            model = Model(weights, settings, self.modality, predictor=self.predictors[fold])
            path = self.folder / f"{content_hash(model)[:24]}.json"
            if not path.exists():
                model.save(path)
            return Method(rung, settings, model=(path, sha256(path)), predicted=rung == LEARNED)

        return Candidate(rung, mix.name, method)


def mixed(start: WeightTable, schedule: Settings, mix: Mix) -> WeightTable:
    """Give members of maps so many times the weight of one metric of the refinement, and one a weight in the levels."""
    of = dict(zip(start.members, start.matrix[:, 0].tolist(), strict=True))
    fine = {m.name: of[m.name] for m in schedule.continuous if m.stage == "refine" and of[m.name]}
    one = max(fine.values())
    table = start.share_out({**fine, **{name: factor * one for name, factor in mix.maps.items()}})
    if mix.apart:
        table = background_of(table, start, table.members, 1 / mix.smoother)
    if not mix.coarse:
        return table
    levels = {m.name: of[m.name] for m in schedule.discrete if m.stage != "refine" and of[m.name]}
    return table.share_out({**levels, f"{next(iter(mix.maps))}-coarse": mix.levels * sum(levels.values())})


@dataclass(frozen=True)
class Table:
    """Dice of every candidate on every pair: by candidate, pair and label; and of the start, by pair and label."""

    pairs: Mapping[int, Sequence[PairFiles]]
    dice: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]
    before: Mapping[str, Mapping[str, float]]

    def best(self, rung: str, fold: int, labels: Sequence[str]) -> str:
        """Name of the candidate of a rung that is best on the pairs of all other folds."""
        names = [name for of, name in self.dice if of == rung]
        return max(names, key=lambda name: self._mean(self.dice[rung, name], fold, labels))

    def means(self, labels: Sequence[str]) -> dict[str, dict[str, float]]:
        """Mean Dice of every candidate over all pairs, by rung: what the folds chose from."""
        out: dict[str, dict[str, float]] = {}
        for (rung, name), found in self.dice.items():
            out.setdefault(rung, {})[name] = float(np.mean([mean_over(of, labels) for of in found.values()]))
        return out

    def _mean(self, found: Mapping[str, Mapping[str, float]], fold: int, labels: Sequence[str]) -> float:
        others = [p.id for f, pairs in self.pairs.items() if f != fold for p in pairs]
        means = [mean_over(found[name], labels) for name in others]
        # A candidate that fails somewhere is not chosen: its mean would be over easier pairs.
        return float(np.mean(means)) if np.isfinite(means).all() else -1.0


def mean_over(dice: Mapping[str, float | None], labels: Sequence[str]) -> float:
    """Mean over the structures that have a number; NaN for none."""
    values = [v for label in labels if (v := dice.get(label)) is not None]
    return float(np.mean(values)) if values else float("nan")


Row = Mapping[str, Any]
RUNGS = ("default", "uniform", "single", "learned", "learned, mask")
WANTED = {
    "msd_hippocampus": (0.86, 0.875),
    "openkbp_head_neck": (0.77, 0.80),
    "btcv_abdomen": (0.68, 0.72),
    "acdc_mm": (0.83, 0.84),
    "ibsr18_64_affine": (0.88, None),
    "lpba40_80": (0.76, None),
}
"""Mean Dice that is asked for, without and with the moving mask."""
GAIN = 0.02
ABOVE_SEGMENTATION = 0.005
WORST_STRUCTURE = -0.005


def mean_of(row: Row, rung: str, labels: Sequence[str], what: str = "dice_after") -> float:
    """Mean over structures of a number of one pair; NaN where the registration failed or shows none of them."""
    found = row["segmentation"] if rung == "segmentation" else row["methods"][rung].get(what, {})
    values = [v for label in labels if (v := found.get(label)) is not None]
    return float(np.mean(values)) if values else float("nan")


def difference(rows: Sequence[Row], first: Callable[[Row], float], second: Callable[[Row], float]) -> dict[str, Any]:
    """Mean of first − second over pairs, its 95 % interval by person, and how many pairs are better and worse."""
    d = [first(row) - second(row) for row in rows]
    interval = paired_bootstrap(d, [row["group"] for row in rows])
    return {
        "mean": interval.mean, "low": interval.low, "high": interval.high, "n": int(np.isfinite(d).sum()),
        **count_better(d),
    }  # fmt: skip


def condense(rows: Sequence[Row]) -> dict[str, Any]:
    """Means by rung and structure, and the differences that a reader asks for."""
    of_labels = {label for row in rows for label in row["methods"]["default"].get("dice_after", {})}
    known = sorted(of_labels, key=int)

    def score(rung: str, among: Sequence[str] = known, what: str = "dice_after") -> Callable[[Row], float]:
        return lambda row: mean_of(row, rung, among, what)

    return {
        "n_pairs": len(rows),
        "failed": sum(m["error"] is not None for row in rows for m in row["methods"].values()),
        "before": _mean(rows, score("default", known, "dice_before")),
        "methods": {rung: _summary(rows, rung, known) for rung in (*RUNGS, "segmentation")},
        "chosen": {rung: sorted({row["chosen"][rung] for row in rows}) for rung in RUNGS},
        "differences": {
            f"{rung} − {rival}": difference(rows, score(rung), score(rival))
            for rung in RUNGS[3:]
            for rival in ("default", "uniform", "single", "segmentation")
        },
        "by_class": {
            label: difference(rows, score("learned", [label]), score("uniform", [label])) for label in known
        },
        "rows": [_short(row, known) for row in rows],
    }  # fmt: skip


def _mean(rows: Sequence[Row], score: Callable[[Row], float]) -> float:
    values = np.array([score(row) for row in rows])
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _summary(rows: Sequence[Row], rung: str, known: Sequence[str]) -> dict[str, Any]:
    """Means of one rung over all pairs."""

    def mean(among: Sequence[str], what: str = "dice_after") -> float:
        return _mean(rows, lambda row: mean_of(row, rung, among, what))

    out: dict[str, Any] = {"mean_dice": mean(known), "dice": {label: mean([label]) for label in known}}
    if rung == "segmentation":
        return out
    done = [m for row in rows if "sdlogj" in (m := row["methods"][rung])]
    if not done:
        return out
    numbers = {"folding_fraction": max, "sdlogj": np.mean, "seconds": np.mean}
    out |= {name: float(join([m[name] for m in done])) for name, join in numbers.items()}
    return out | {"assd_mm": mean(known, "assd_mm"), "hd95_mm": mean(known, "hd95_mm")}


def _short(row: Row, known: Sequence[str]) -> dict[str, Any]:
    """One pair: mean Dice by rung."""
    rungs = (*RUNGS, "segmentation")
    out = {name: row[name] for name in ("pair", "fold", "group")}
    out["dice"] = {r: mean_of(row, r, known) for r in rungs}
    errors = {rung: m["error"] for rung, m in row["methods"].items() if m["error"] is not None}
    return {**out, "errors": errors} if errors else out


def claims_of(found: Mapping[str, Any]) -> list[Claim]:
    """What a cross-validation is held against."""
    where = f"{found['data']}, {found['settings']}, {found['predictor']}, {found['n_pairs']} pairs"
    wanted = dict(zip(RUNGS[3:], WANTED.get(found["data"], (None, None)), strict=True))
    claims = [
        Claim(f"mean Dice, {rung}, {where}", found["methods"][rung]["mean_dice"], target=target)
        for rung, target in wanted.items()
    ]
    for rival in ("single", "uniform"):
        d = found["differences"][f"learned − {rival}"]
        claims.append(Claim(f"learned − {rival}, {where}", d["mean"], "+.4f", target=GAIN))
    above = found["differences"]["learned, mask − segmentation"]["mean"]
    claims.append(Claim(f"learned with mask − segmentation alone, {where}", above, "+.4f", target=ABOVE_SEGMENTATION))
    worst = min((d["mean"] for d in found["by_class"].values()), default=float("nan"))
    claims.append(Claim(f"learned − uniform, worst structure, {where}", worst, "+.4f", target=WORST_STRUCTURE))
    folding = max(found["methods"][rung]["folding_fraction"] for rung in RUNGS[3:])
    return [*claims, Claim(f"folded voxels, {where}", folding, ".6f", target=0.0, sense="at most")]


MEASURED = ("learned", "learned, mask")
"""Rungs whose regularity is measured too, and their distances of surfaces."""
IMAGES = 24
"""Images that a perceptron is fitted to, at most."""


@dataclass(frozen=True)
class Study:
    """One set, how its pairs are drawn, and which structures are learned."""

    set: str
    folder: Path
    settings: Settings
    n_pairs: int
    kind: str
    mixes: tuple[str, ...]
    singles: tuple[str, ...]
    n_measured: int | None = None

    @property
    def reading(self) -> Reading:
        """Structures of the set; all others are background."""
        return Reading(classes=tuple(SETS[self.set].labels))

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes that are learned, the background first."""
        return (0, *SETS[self.set].labels)

    def pairs(self) -> dict[int, list[PairFiles]]:
        """Pairs of each fold, as lines of lists."""
        out = {}
        for fold in range(SETS[self.set].folds):
            path = self.folder / f"pairs-{fold}.csv"
            write_csv(fold_pairs(self.set, fold, self.n_pairs), path)
            out[fold] = read_pairs(path)
        return out

    def predictors(self, modality: Any) -> dict[int, Predictor]:
        """For each fold a predictor that has seen none of its people."""
        return {fold: self._predictor(fold, modality) for fold in range(SETS[self.set].folds)}

    def _predictor(self, fold: int, modality: Any) -> Predictor:
        cases = [case for case, of in folds_of(self.set).items() if of != fold]
        chosen = cases[:: max(1, len(cases) // IMAGES)][: 1 if self.kind == "stored_maps" else IMAGES]
        found = [files(PairName(self.set, case, case, subject_of(case))) for case in chosen]
        volumes = [self.reading.image(f["fixed"]) for f in found]
        labels = [self.reading.labels(f["fixed_labels"], v.geometry) for f, v in zip(found, volumes, strict=True)]
        people = [subject_of(case) for case in chosen]
        segmented = [each for each in labels if each is not None]
        return predictors.fit(self.kind, Examples(volumes, segmented, self.classes, modality, 0, people))


def run_all(study: Study, run: Runner) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Register every candidate with every pair, let every fold choose; one row for each pair, and what was tried."""
    pairs = study.pairs()
    listed = [pair for of in pairs.values() for pair in of]
    modality = bank_of_list(study.settings, listed, study.reading)
    told = study.predictors(modality)
    labels = [str(c) for c in study.classes[1:]]
    models = study.folder / "models"
    models.mkdir(exist_ok=True)
    candidates = [
        *fixed_candidates(study.settings, modality, study.singles),
        *Learning(study.settings, modality, study.classes, told, models, study.mixes).candidates(),
    ]
    table = register(candidates, pairs, run)
    best = sorted({table.best("single", fold, labels).split(" × ")[0] for fold in pairs})
    candidates += tuned_singles(study.settings, modality, best)
    table = register(candidates, pairs, run)
    by_name = {(c.rung, c.name): c for c in candidates}
    rows = []
    for fold, of in pairs.items():
        chosen = {rung: table.best(rung, fold, labels) for rung in RUNGS if rung != "default"}
        chosen["default"] = "uniform × 1"
        plan = {
            (rung, p.id): (f"measure/{rung}/{p.id}", by_name[_key(rung, chosen[rung])].method(fold), p)
            for p in of[: study.n_measured]
            for rung in MEASURED
        }
        full = dict(zip(plan, run(list(plan.values())), strict=True))
        for p in of:
            methods = {r: {"error": None, "dice_after": table.dice[_key(r, chosen[r])][p.id]} for r in RUNGS}
            methods["default"]["dice_before"] = table.before[p.id]
            methods |= {rung: _scores(full[rung, p.id]) for rung in MEASURED if (rung, p.id) in full}
            told_alone = segmentation(told[fold], p, study.reading)
            rows.append({"pair": p.id, "fold": fold, "group": p.group, "chosen": chosen, "methods": methods,
                         "segmentation": told_alone})  # fmt: skip
    return rows, table.means(labels)


def _key(rung: str, name: str) -> tuple[str, str]:
    """The default is the uniform bank as the preset has it."""
    return ("uniform" if rung == "default" else rung), name


def register(candidates: Sequence[Candidate], pairs: Mapping[int, Sequence[PairFiles]], run: Runner) -> Table:
    """Register all candidates with all pairs; the tasks of a pair follow each other, for what is kept of it."""
    work = [(c, fold, p) for fold, of in pairs.items() for p in of for c in candidates]
    print(f"{len(candidates)} candidates, {len(work)} registrations", flush=True)
    plan = [(f"{c.rung}/{c.name}/{p.id}", c.method(fold), p) for c, fold, p in work]
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    before: dict[str, dict[str, float]] = {}
    for (c, _, p), outcome in zip(work, run(plan, dice_only=True), strict=True):
        if outcome.error is not None:
            raise SystemExit(f"{c.name}, {p.id}: {outcome.error}")
        rows = {str(row["label"]): row for row in outcome.value["structures"]}
        found.setdefault((c.rung, c.name), {})[p.id] = {label: row["dice_after"] for label, row in rows.items()}
        if c.rung == "uniform":  # a start from structure maps belongs to what is learned
            before[p.id] = {label: row["dice_before"] for label, row in rows.items()}
    return Table(pairs, found, before)


def _scores(outcome: Outcome) -> dict[str, Any]:
    """Numbers of a registration that a row keeps."""
    if outcome.error is not None:
        return {"error": outcome.error}
    value = outcome.value
    kept = ("dice_before", "dice_after", "assd_mm", "hd95_mm")
    of_labels = {
        name: {label: row[name] for label, row in ((str(row["label"]), row) for row in value["structures"])}
        for name in kept
    }
    return {"error": None, **of_labels, **{k: value[k] for k in ("folding_fraction", "sdlogj", "seconds")}}


def segmentation(predictor: Predictor, pair: PairFiles, reading: Reading) -> dict[str, float]:
    """Dice of what a predictor makes of the fixed image by itself, for the structures that it shows."""
    volume = reading.image(pair.fixed)
    truth = reading.labels(pair.fixed_labels, volume.geometry)
    assert truth is not None
    shown = [c for c in predictor.classes[1:] if (truth.data == c).any()]
    return {str(c): d for c, d in dice(predictor.labels(volume), truth, shown).items()}


def study_of(args: Any) -> Study:
    """Read the options of the command line."""
    settings = registration_settings.preset(args.preset).model_copy(update={"initial": SETS[args.set].init})
    kind, folder = "perceptron", args.work / "-".join(filter(None, (args.set, args.name)))
    folder.mkdir(parents=True, exist_ok=True)
    if args.maps is not None:
        kind = "stored_maps"
        map_folder(args.set, args.maps, args.work / "maps" / args.set)
    return Study(args.set, folder, settings, args.pairs, kind, args.mixes, args.singles, args.measured)


def main(words: Sequence[str] | None = None) -> None:
    """Register, choose, condense, write."""
    options = parser(__doc__, pairs=4)
    options.add_argument("--set", default="msd_hippocampus", choices=sorted(SETS), help="set of REGWEAVE_DATA")
    options.add_argument("--preset", default="default", help="settings")
    options.add_argument("--maps", type=Path, default=None, help="archive of out-of-fold maps of a network")
    families = f"families of mixes to choose among, of {', '.join(MIXES)}"
    options.add_argument("--mixes", type=_words, default=("fine",), help=families)
    options.add_argument("--singles", type=_words, default=(), help="single metrics to try; by default all")
    options.add_argument("--measured", type=int, default=None, help="pairs of a fold with folds and surfaces; all")
    options.add_argument("--name", default="", help="last part of the names of folder and result")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "crossval", help="folder for what is computed")
    options.add_argument("--workers", type=int, default=1)
    args = options.parse_args(words)
    study = study_of(args)
    with Runner(study.reading, args.workers, None, args.work / "tasks", None) as run:
        rows, tried = run_all(study, run)
    content = {**about(study), "tried": tried, **condense(rows)}
    name = args.output or "-".join(filter(None, ("crossval", args.set, args.name)))
    write(name, args.seed, content, claims_of(content))


def about(study: Study) -> Mapping[str, Any]:
    """Say what was compared, on whom."""
    of = SETS[study.set]
    people = {name for pairs in study.pairs().values() for pair in pairs for name in pair.patients}
    return {
        "data": study.set,
        "credit": of.credit,
        "settings": study.settings.name,
        "init": of.init,
        "predictor": study.kind,
        "withheld": {},
        "labels": {str(v): name for v, name in of.labels.items()},
        "true_mm": of.true_mm,
        "n_folds": of.folds,
        "singles_tried": list(study.singles) or "all",
        "mixes_tried": list(study.mixes),
        "n_measured": sum(len(pairs[: study.n_measured]) for pairs in study.pairs().values()),
        "n_people": len({subject_of(case) for case in cases_of(study.set)}),
        "n_people_in_pairs": len(people),
    }


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
