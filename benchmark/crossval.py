"""Cross-validation by person over all people of a set: every rung beside the network's segmentation alone.

People are dealt to folds (`_pairs.py`), and pairs are drawn inside folds. The pairs of all other folds choose for a
fold the smoothness of the uniform bank, the best single metric, and the weights of structure maps, with and without the
moving mask. The fold's own pairs judge, whose people nothing has seen. With ``--maps`` the maps are those of networks
out of fold (`_map_folder.py`), otherwise a perceptron is fitted for each fold. Each candidate is registered once with
each pair. Interrupted, it goes on where it stopped.

What stays dependent: a person's own maps come from a network that never saw them, but the network of another fold,
whose maps the weights are chosen with, has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from _common import ROOT, claim, parser, write
from _map_folder import map_folder
from _pairs import SETS, cases_of, fold_pairs, folds_of, mean_of, segmented, subject_of, write_csv
from regweave import predictors
from regweave.config import settings as presets
from regweave.config.settings import Settings
from regweave.io import sha256
from regweave.jobs.runner import REFINE, Method, Runner, bank_of_list, baseline_methods
from regweave.jobs.table import PairFiles, read_pairs
from regweave.jobs.workers import content_hash
from regweave.measures.scores import dice
from regweave.measures.statistics import count_better, paired_bootstrap
from regweave.model.model import Model
from regweave.predictors import Examples, Predictor
from regweave.registration.initial import STRUCTURES
from regweave.run.read import Reading
from regweave.types import WeightTable

LEARNED, MASKED, ALONE = "learned", "learned, mask", "segmentation"
"""Rungs without and with the moving mask, and the segmentation of the fixed image by the network alone."""
RUNGS = ("default", "uniform", "single", LEARNED, MASKED)
COMPARED = "compared"
"""Stands for the member that compares maps of both images: `shapes`, or `anatomy` where a bank has no `shapes`."""
SMOOTHER = (0.5, 1.0, 2.0)
"""Factors of the smoothness of the refinement for the uniform bank and single metrics."""
IMAGES = 24
"""Images that a perceptron is fitted to, at most."""
WANTED = {
    "msd_hippocampus": (0.86, 0.875), "openkbp_head_neck": (0.77, 0.80), "btcv_abdomen": (0.68, 0.72),
    "acdc_mm": (0.83, 0.84), "ibsr18_64_affine": (0.88, None), "lpba40_80": (0.76, None),
}  # fmt: skip
"""Mean Dice that is asked for, without and with the moving mask."""
GAIN, ABOVE_SEGMENTATION, WORST_STRUCTURE = 0.02, 0.005, -0.005


@dataclass(frozen=True)
class Mix:
    """Weights of members of maps against one metric, factor of the smoothness, and whether maps act earlier too.

    ``coarse`` gives the first member's maps a weight in the levels, that of all metrics together. ``start`` aligns
    structures first, ``longer`` makes so many times the steps of the refinement.
    """

    maps: Mapping[str, float]
    smoother: float
    coarse: bool = False
    start: bool = False
    longer: int = 1

    @property
    def name(self) -> str:
        """Name in results and models."""
        parts = [f"{member} {factor:g}" for member, factor in self.maps.items()]
        parts += [f"{next(iter(self.maps))}-coarse"] * self.coarse + ["structures"] * self.start
        return ", ".join(parts) + f" × {self.smoother:g}" + ("" if self.longer == 1 else f", {self.longer} × steps")


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
    "laid": {
        LEARNED: (Mix({COMPARED: 8}, 0.25, start=True), Mix({COMPARED: 32}, 0.25, start=True)),
        MASKED: (Mix({"outline": 8}, 0.5, start=True), Mix({"outline": 8}, 0.25, start=True)),
    },
    "started": {
        LEARNED: (Mix({COMPARED: 8}, 0.5, coarse=True, start=True), Mix({COMPARED: 32}, 0.25, coarse=True, start=True)),
        MASKED: (
            Mix({"outline": 8}, 0.5, coarse=True, start=True),
            Mix({"outline": 8, COMPARED: 4}, 0.25, coarse=True, start=True),
        ),
    },
}
"""Families of mixes by rung: maps in the refinement alone; with more steps; after a start from structures; and that
with maps in the levels too."""


@dataclass(frozen=True)
class Candidate:
    """One way to register: the rung that it belongs to, its name, and the method for a pair of a fold."""

    rung: str
    name: str
    method: Callable[[int], Method]


def smoothed(rung: str, name: str, method: Method, factor: float) -> Candidate:
    """A method with another smoothness of the refinement."""
    turned = method.at(REFINE, REFINE.get(method.settings) * factor)
    return Candidate(rung, f"{name} × {factor:g}", lambda _: turned)


def mixed(start: WeightTable, schedule: Settings, mix: Mix) -> WeightTable:
    """Give members of maps so many times the weight of one metric of the refinement, and one a weight in the levels."""
    of = dict(zip(start.members, start.matrix[:, 0].tolist(), strict=True))
    fine = {m.name: of[m.name] for m in schedule.continuous if m.stage == "refine" and of[m.name]}
    table = start.share_out({**fine, **{name: factor * max(fine.values()) for name, factor in mix.maps.items()}})
    if not mix.coarse:
        return table
    levels = {m.name: of[m.name] for m in schedule.discrete if m.stage != "refine" and of[m.name]}
    return table.share_out({**levels, f"{next(iter(mix.maps))}-coarse": sum(levels.values())})


@dataclass(frozen=True)
class Table:
    """Dice of every candidate on every pair: by candidate, pair and label; and of the start, by pair and label."""

    pairs: Mapping[int, Sequence[PairFiles]]
    dice: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]
    before: Mapping[str, Mapping[str, float]]

    def best(self, rung: str, fold: int, labels: Sequence[str]) -> str:
        """Name of the candidate of a rung that is best on the pairs of all other folds.

        A candidate that fails somewhere is not chosen: its mean would be over easier pairs.
        """
        others = [p.id for f, pairs in self.pairs.items() if f != fold for p in pairs]

        def score(name: str) -> float:
            means = [mean_over(self.dice[rung, name][pair], labels) for pair in others]
            return float(np.mean(means)) if np.isfinite(means).all() else -1.0

        return max((name for of, name in self.dice if of == rung), key=score)

    def means(self, labels: Sequence[str]) -> dict[str, dict[str, float]]:
        """Mean Dice of every candidate over all pairs, by rung: what the folds chose from."""
        out: dict[str, dict[str, float]] = {}
        for (rung, name), found in self.dice.items():
            out.setdefault(rung, {})[name] = float(np.mean([mean_over(of, labels) for of in found.values()]))
        return out


def mean_over(found: Mapping[str, float | None], labels: Sequence[str]) -> float:
    """Mean over the structures that have a number; NaN for none."""
    return mean_of(found.get(label) for label in labels)


@dataclass(frozen=True)
class Study:
    """One set, how its pairs are drawn, and the candidates; workers read the files in ``folder``."""

    set: str
    folder: Path
    settings: Settings
    n_pairs: int
    kind: str
    mixes: tuple[str, ...]
    singles: tuple[str, ...]
    n_measured: int | None

    @property
    def reading(self) -> Reading:
        """Structures of the set; all others are background."""
        return Reading(classes=tuple(SETS[self.set].labels))

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes that are learned, the background first."""
        return (0, *SETS[self.set].labels)

    @cached_property
    def pairs(self) -> dict[int, list[PairFiles]]:
        """Pairs of each fold, as lines of lists."""
        out = {}
        for fold in range(SETS[self.set].folds):
            path = self.folder / f"pairs-{fold}.csv"
            write_csv(fold_pairs(self.set, fold, self.n_pairs), path)
            out[fold] = read_pairs(path)
        return out

    @cached_property
    def modality(self) -> Any:
        """Bank of the pairs."""
        return bank_of_list(self.settings, [p for of in self.pairs.values() for p in of], self.reading)

    @cached_property
    def predictors(self) -> dict[int, Predictor]:
        """For each fold a predictor that has seen none of its people."""
        return {fold: self._predictor(fold) for fold in self.pairs}

    def _predictor(self, fold: int) -> Predictor:
        cases = [case for case, of in folds_of(self.set).items() if of != fold]
        chosen = cases[:: max(1, len(cases) // IMAGES)][: 1 if self.kind == "stored_maps" else IMAGES]
        people = [subject_of(case) for case in chosen]
        volumes, labels = zip(*(segmented(self.set, case) for case in chosen), strict=True)
        return predictors.fit(self.kind, Examples(volumes, labels, self.classes, self.modality, 0, people))

    def candidates(self) -> list[Candidate]:
        """The uniform bank with some smoothnesses, single metrics that can be refined, and mixes of maps."""
        uniform, *_ = baseline_methods(self.settings, self.modality)
        out = [smoothed("uniform", "uniform", uniform, factor) for factor in SMOOTHER]
        tried = {n: m for n, m in self._alone().items() if not self.singles or n in self.singles}
        out += [smoothed("single", name, method, 1.0) for name, method in tried.items()]
        compared = "shapes" if "shapes" in [m.name for m in self._schedule.bank] else "anatomy"
        for rung in (LEARNED, MASKED):
            for mix in (mix for family in self.mixes for mix in MIXES[family][rung]):
                maps = {compared if member == COMPARED else member: f for member, f in mix.maps.items()}
                out.append(self._mixed(rung, replace(mix, maps=maps)))
        return out

    def tuned_singles(self, names: Sequence[str]) -> list[Candidate]:
        """Other smoothnesses of the single metrics that some fold found best."""
        return [smoothed("single", n, self._alone()[n], factor) for n in names for factor in SMOOTHER if factor != 1.0]

    def _alone(self) -> dict[str, Method]:
        _, *singles = baseline_methods(self.settings, self.modality)
        return {m.name.removeprefix("single:"): m for m in singles if m.settings.refine.steps}

    @property
    def _schedule(self) -> Settings:
        return self.settings.for_bank(self.modality)

    def _mixed(self, rung: str, mix: Mix) -> Candidate:
        base = self.settings.model_copy(update={"modality": self.modality})
        settings = REFINE.set(base, REFINE.get(base) * mix.smoother)
        refine = settings.refine.model_copy(update={"steps": mix.longer * settings.refine.steps})
        more = {"initial": STRUCTURES} if mix.start else {}
        settings = settings.model_copy(update={"refine": refine, **more})
        weights = mixed(self._schedule.start_weights(settings.smoothness, self.classes), self._schedule, mix)

        def method(fold: int) -> Method:
            model = Model(weights, settings, self.modality, predictor=self.predictors[fold])
            path = self.folder / "models" / f"{content_hash(model)[:24]}.json"
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                model.save(path)
            return Method(rung, settings, model=(path, sha256(path)), predicted=rung == LEARNED)

        return Candidate(rung, mix.name, method)

    def segmentation(self, fold: int, pair: PairFiles) -> dict[str, float]:
        """Dice of what a predictor makes of the fixed image by itself, for the structures that it shows."""
        volume, predictor = self.reading.image(pair.fixed), self.predictors[fold]
        truth = self.reading.labels(pair.fixed_labels, volume.geometry)
        assert truth is not None
        shown = [c for c in predictor.classes[1:] if (truth.data == c).any()]
        return {str(c): d for c, d in dice(predictor.labels(volume), truth, shown).items()}


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


def run_all(study: Study, run: Runner) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Register every candidate with every pair, let every fold choose; one row for each pair, and what was tried."""
    labels, candidates = [str(c) for c in study.classes[1:]], study.candidates()
    table = register(candidates, study.pairs, run)
    best = sorted({table.best("single", fold, labels).split(" × ")[0] for fold in study.pairs})
    candidates += study.tuned_singles(best)
    table = register(candidates, study.pairs, run)
    methods = {(c.rung, c.name): c.method for c in candidates}
    rows = []
    for fold, of in study.pairs.items():
        chosen = {rung: table.best(rung, fold, labels) for rung in RUNGS[1:]} | {"default": "uniform × 1"}
        places = {rung: ("uniform" if rung == "default" else rung, chosen[rung]) for rung in RUNGS}
        plan = {
            (rung, p.id): (f"measure/{rung}/{p.id}", methods[places[rung]](fold), p)
            for p in of[: study.n_measured]
            for rung in (LEARNED, MASKED)
        }
        full = dict(zip(plan, run(list(plan.values())), strict=True))
        for p in of:
            found: dict[str, Any] = {
                rung: {"error": None, "dice_after": table.dice[place][p.id]} for rung, place in places.items()
            }
            found["default"]["dice_before"] = table.before[p.id]
            for rung in (LEARNED, MASKED):
                if (rung, p.id) in full:
                    found[rung] = scores(full[rung, p.id])
            rows.append({"pair": p.id, "fold": fold, "group": p.group, "chosen": chosen, "methods": found,
                         ALONE: study.segmentation(fold, p)})  # fmt: skip
    return rows, table.means(labels)


def scores(outcome: Any) -> dict[str, Any]:
    """Numbers of a registration that a row keeps."""
    if outcome.error is not None:
        return {"error": outcome.error}
    value = outcome.value
    of_labels = {
        name: {str(row["label"]): row[name] for row in value["structures"]}
        for name in ("dice_before", "dice_after", "assd_mm", "hd95_mm")
    }
    regular = {name: value["regularity"][name] for name in ("folding_fraction", "sdlogj")}
    return {"error": None, **of_labels, **regular, "seconds": value["seconds"]}


Row = Mapping[str, Any]


def mean_in(row: Row, rung: str, labels: Sequence[str], what: str = "dice_after") -> float:
    """Mean over structures of a number of one pair; NaN where the registration failed or shows none of them."""
    return mean_over(row[ALONE] if rung == ALONE else row["methods"][rung].get(what, {}), labels)


def difference(rows: Sequence[Row], first: str, second: str, labels: Sequence[str]) -> dict[str, Any]:
    """Mean of first − second over pairs, its 95 % interval by person, and how many pairs are better and worse."""
    d = [mean_in(row, first, labels) - mean_in(row, second, labels) for row in rows]
    interval = paired_bootstrap(d, [row["group"] for row in rows])
    return {**interval._asdict(), "n": int(np.isfinite(d).sum()), **count_better(d)}


def condense(rows: Sequence[Row]) -> dict[str, Any]:
    """Means by rung and structure, and the differences that a reader asks for."""
    known = sorted({label for row in rows for label in row["methods"]["default"].get("dice_after", {})}, key=int)
    rivals = ("default", "uniform", "single", ALONE)
    short = []
    for row in rows:
        errors = {rung: m["error"] for rung, m in row["methods"].items() if m["error"] is not None}
        short.append({
            **{key: row[key] for key in ("pair", "fold", "group")},
            "dice": {rung: mean_in(row, rung, known) for rung in (*RUNGS, ALONE)},
            **({"errors": errors} if errors else {}),
        })  # fmt: skip
    return {
        "n_pairs": len(rows),
        "failed": sum(m["error"] is not None for row in rows for m in row["methods"].values()),
        "before": mean_of(mean_in(row, "default", known, "dice_before") for row in rows),
        "methods": {rung: _summary(rows, rung, known) for rung in (*RUNGS, ALONE)},
        "chosen": {rung: sorted({row["chosen"][rung] for row in rows}) for rung in RUNGS},
        "differences": {f"{a} − {b}": difference(rows, a, b, known) for a in (LEARNED, MASKED) for b in rivals},
        "by_class": {label: difference(rows, LEARNED, "uniform", [label]) for label in known},
        "rows": short,
    }


def _summary(rows: Sequence[Row], rung: str, known: Sequence[str]) -> dict[str, Any]:
    """Means of one rung over all pairs."""

    def mean(among: Sequence[str], what: str = "dice_after") -> float:
        return mean_of(mean_in(row, rung, among, what) for row in rows)

    out: dict[str, Any] = {"mean_dice": mean(known), "dice": {label: mean([label]) for label in known}}
    done = [m for row in rows if "sdlogj" in (m := row["methods"].get(rung, {}))]
    if not done:
        return out
    numbers = {"folding_fraction": max, "sdlogj": np.mean, "seconds": np.mean}
    out |= {name: float(join([m[name] for m in done])) for name, join in numbers.items()}
    return out | {name: mean(known, name) for name in ("assd_mm", "hd95_mm")}


def claims_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Targets of a cross-validation."""
    where = f"{found['data']}, {found['settings']}, {found['predictor']}, {found['n_pairs']} pairs"
    methods, differences = found["methods"], found["differences"]
    claims = [
        claim(f"mean Dice, {rung}, {where}", methods[rung]["mean_dice"], least=wanted)
        for rung, wanted in zip((LEARNED, MASKED), WANTED.get(found["data"], (None, None)), strict=True)
    ]
    for rival in ("single", "uniform"):
        gain = differences[f"{LEARNED} − {rival}"]["mean"]
        claims.append(claim(f"{LEARNED} − {rival}, {where}", gain, "+.4f", least=GAIN))
    above = differences[f"{MASKED} − {ALONE}"]["mean"]
    worst = min((d["mean"] for d in found["by_class"].values()), default=float("nan"))
    folding = max(methods[rung]["folding_fraction"] for rung in (LEARNED, MASKED))
    return [
        *claims,
        claim(f"learned with mask − segmentation alone, {where}", above, "+.4f", least=ABOVE_SEGMENTATION),
        claim(f"learned − uniform, worst structure, {where}", worst, "+.4f", least=WORST_STRUCTURE),
        claim(f"folded voxels, {where}", folding, ".6f", most=0.0),
    ]


def about(study: Study) -> Mapping[str, Any]:
    """Describe what was compared, and on whom."""
    of, pairs = SETS[study.set], study.pairs
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
        "n_measured": sum(len(some[: study.n_measured]) for some in pairs.values()),
        "n_people": len({subject_of(case) for case in cases_of(study.set)}),
        "n_people_in_pairs": len({name for some in pairs.values() for pair in some for name in pair.patients}),
    }


def main() -> None:
    """Register, choose, condense, write."""
    options = parser(__doc__, set="msd_hippocampus", pairs=4, seed=0, preset="default", workers=1, output=None)
    options.add_argument("--maps", type=Path, help="archive of out-of-fold maps of a network")
    families = f"families of mixes to choose among, of {', '.join(MIXES)}"
    options.add_argument("--mixes", type=_words, default=("fine",), help=families)
    options.add_argument("--singles", type=_words, default=(), help="single metrics to try; by default all")
    options.add_argument("--measured", type=int, help="pairs of a fold with folds and surfaces; by default all")
    options.add_argument("--name", default="", help="last part of the names of folder and result")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "crossval", help="folder for what is computed")
    args = options.parse_args()
    settings = presets.preset(args.preset).model_copy(update={"initial": SETS[args.set].init})
    title = "-".join(filter(None, (args.set, args.name)))
    (args.work / title).mkdir(parents=True, exist_ok=True)
    if args.maps is not None:
        map_folder(args.set, args.maps, args.work / "maps" / args.set)
    kind = "perceptron" if args.maps is None else "stored_maps"
    study = Study(args.set, args.work / title, settings, args.pairs, kind, args.mixes, args.singles, args.measured)
    with Runner(study.reading, args.workers, None, args.work / "tasks", None) as run:
        rows, tried = run_all(study, run)
    content = {**about(study), "tried": tried, **condense(rows)}
    write(args.output or f"crossval-{title}", args.seed, content, claims_of(content))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
