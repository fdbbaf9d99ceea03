"""Cross-validation by person over all people of a set: every rung beside the network's segmentation alone.

People are dealt to folds (`_split.py`), and pairs are drawn inside folds. For each fold the smoothness of the uniform
bank, the best single metric, and the weights of structure maps with and without the moving mask are chosen on the pairs
of all other folds and judged on the fold's own, whose people nothing has seen (`_crossval_grid.py`). With ``--maps``
the maps are what networks told out of fold (`plugins/predictors/stored_maps.py`), otherwise a perceptron is fitted for
each fold. Interrupted, it goes on where it stopped.

What stays dependent: a person's own maps come from a network that never saw them, but the network of another fold,
whose maps the weights are chosen with, has. With ``--withhold`` some structures are left out of learning and of the
maps, and scored; the networks of stored maps have seen them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import ROOT, parser, write
from _crossval_grid import Candidate, Learning, Table, fixed_candidates, tuned_singles
from _crossval_mixes import MIXES
from _crossval_report import RUNGS, claims_of, condense
from _map_folder import map_folder
from _pairs import SETS, PairName, cases_of, files, subject_of
from _split import fold_pairs, folds_of, write_csv
from regweave import predictors
from regweave.config import settings as registration_settings
from regweave.config.settings import Settings
from regweave.datasets.manifest import PairFiles, read_pairs
from regweave.jobs.methods import bank_of_list
from regweave.jobs.runner import Runner
from regweave.jobs.store import Outcome
from regweave.measures import dice
from regweave.pipeline.reading import Reading
from regweave.predictors import Examples, Predictor

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
    withheld: tuple[int, ...]
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
        return (0, *(c for c in SETS[self.set].labels if c not in self.withheld))

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
        rows = outcome.value["labels"]
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
    of_labels = {name: {label: row[name] for label, row in value["labels"].items()} for name in kept}
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
    return Study(args.set, folder, settings, args.pairs, args.withhold, kind, args.mixes, args.singles, args.measured)


def main(words: Sequence[str] | None = None) -> None:
    """Register, choose, condense, write."""
    options = parser(__doc__, pairs=4)
    options.add_argument("--set", default="msd_hippocampus", choices=sorted(SETS), help="set of REGWEAVE_DATA")
    options.add_argument("--preset", default="default", help="settings")
    options.add_argument("--maps", type=Path, default=None, help="archive of out-of-fold maps of a network")
    families = f"families of mixes to choose among, of {', '.join(MIXES)}"
    options.add_argument("--mixes", type=_words, default=("fine",), help=families)
    options.add_argument("--withhold", type=_values, default=(), help="structures left out of learning: 4,5")
    options.add_argument("--singles", type=_words, default=(), help="single metrics to try; by default all")
    options.add_argument(
        "--measured", type=int, default=None, help="pairs of a fold whose folds and surfaces are measured; all"
    )
    options.add_argument("--name", default="", help="last part of the names of folder and result")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "crossval", help="folder for what is computed")
    options.add_argument("--workers", type=int, default=1)
    args = options.parse_args(words)
    study = study_of(args)
    with Runner(study.reading, args.workers, None, args.work / "tasks", None) as run:
        rows, tried = run_all(study, run)
    content = {**about(study), "tried": tried, **condense(rows, study.withheld)}
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
        "withheld": {str(v): of.labels[v] for v in study.withheld},
        "labels": {str(v): name for v, name in of.labels.items()},
        "true_mm": of.true_mm,
        "n_folds": of.folds,
        "singles_tried": list(study.singles) or "all",
        "mixes_tried": list(study.mixes),
        "n_measured": len(measured_pairs(study)),
        "n_people": len({subject_of(case) for case in cases_of(study.set)}),
        "n_people_in_pairs": len(people),
    }


def measured_pairs(study: Study) -> list[PairFiles]:
    """Pairs whose folds and surfaces are measured."""
    return [pair for pairs in study.pairs().values() for pair in pairs[: study.n_measured]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _values(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
