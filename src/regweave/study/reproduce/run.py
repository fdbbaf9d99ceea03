"""Run of the paper's experiments: scans, pairs, training, the ladder of methods, and all numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.config.choice import choose_settings
from regweave.config.settings import Settings
from regweave.datasets.manifest import PairFiles, write_pairs
from regweave.errors import UsageError
from regweave.io import owned_path
from regweave.io.disk.records import this_program
from regweave.io.disk.working_folder import working_folder
from regweave.jobs.cluster import Cluster, require_cluster
from regweave.jobs.methods import Method
from regweave.jobs.store import Outcome, run_tasks, worker_count
from regweave.pipeline.reading import Reading
from regweave.study.comparison import Scores, compare
from regweave.study.reproduce.data import all_scans, find_scans
from regweave.study.reproduce.experiments import EXPERIMENTS
from regweave.study.reproduce.ladder import WORK, Context, Ladder, Tell, gains
from regweave.study.reproduce.pictures import look, look_task, sample_slice
from regweave.study.reproduce.protocols import Protocol, Split
from regweave.training.log import TrainProgress

SCHEMA = 1
RESULT, PICTURES = "reproduce.json", "pictures.json"
N_SAMPLES = 3
PER_LABEL = ("state", "dice_before", "dice_after", "hd95_mm", "assd_mm")
PER_PAIR = ("folding_fraction", "sdlogj")


def reproduce(
    experiment: str,
    data: str | Path,
    output: str | Path,
    *,
    preset: str = "paper",
    config: str | Path | Settings | None = None,
    quick: bool = False,
    seed: int = 0,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    resume: bool = False,
    on_progress: Tell | None = None,
    on_experiment: Callable[[Path], object] | None = None,
) -> dict[str, Any]:
    """Run the paper's experiments.

    Parameters
    ----------
    experiment : "ibsr", "parotid", "abdomen" or "all"
        Which.
    data : path
        Folder with the data sets, ``SET/CASE/image.nii.gz`` and ``labels.nii.gz``.
    output : path
        Folder for ``reproduce.json``, ``pictures.json``, lists of pairs, models, simulated scans and finished work.
    preset, config : optional
        Settings of all registrations; by default those of the paper.
    quick : bool
        One fold, one draw, few pairs, no gates: a fast look, not evidence.
    seed : int
        Chooses folds, pairs, simulations and candidates.
    workers, scheduler : optional
        As in `regweave.study.evaluate.evaluate`.
    resume : bool
        Continue in a folder that an earlier call left; the numbers are those of an uninterrupted run.
    on_progress : callable, optional
        Called with a `TrainProgress` when a step begins and with a `BatchProgress` after every registration.
    on_experiment : callable, optional
        Called with the folder after each experiment, when the JSON files hold all experiments so far.

    Returns
    -------
    dict
        The content of ``reproduce.json``.

    Raises
    ------
    RegweaveError
        E137 where the data folder lacks a set.
    """
    if experiment not in EXPERIMENTS:
        raise UsageError("E192", f"unknown experiment {experiment!r}", f"available: {', '.join(EXPERIMENTS)}")
    worker_count(workers, scheduler)
    settings = choose_settings(preset, config, None, None)
    protocols = [p.quick() if quick else p for p in EXPERIMENTS[experiment]]
    for protocol in protocols:
        find_scans(protocol, Path(data))
    require_cluster(scheduler)
    folder = Path(output)
    with working_folder(folder, WORK, "such experiments", resume=resume):
        tell = on_progress or (lambda _: None)
        context = Context(Path(data).absolute(), folder.absolute(), settings, quick, seed, workers, scheduler, tell)
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "experiment": experiment,
            "quick": quick,
            "seed": seed,
            "settings": settings.model_dump(mode="json"),
            "experiments": [],
            "timing": {},
            "provenance": this_program(),
        }
        pictures: dict[str, Any] = {}
        for protocol in protocols:
            found = Experiment(protocol, context).run()
            content["experiments"].append(found.content)
            content["timing"][protocol.name] = found.timing
            pictures[protocol.name] = found.pictures
            _write(folder / RESULT, content)
            _write(folder / PICTURES, pictures)
            if on_experiment is not None:
                on_experiment(folder)
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with owned_path(path) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Findings:
    """Numbers of one experiment, the seconds of its registrations, and slices to look at."""

    content: dict[str, Any]
    timing: dict[str, float]
    pictures: dict[str, Any]


class Experiment:
    """One experiment: every split, every method of the ladder, every test pair."""

    def __init__(self, protocol: Protocol, context: Context) -> None:
        self.protocol, self.context = protocol, context
        self.reading = Reading(classes=tuple(sorted(protocol.classes)))
        self.run_pairs = context.runner(self.reading, protocol.name)

    def run(self) -> Findings:
        """Run it all; what an earlier run finished is taken from disk."""
        p, c = self.protocol, self.context
        scans = all_scans(p, c.data, c.folder / "scans" / p.name, c.seed, self._say)
        splits = p.splits(scans, c.seed)
        ladder = Ladder(p, c, self.reading)
        methods = {split.name: self._methods(ladder, split) for split in splits}
        scored = {split.name: self._score(split, methods[split.name]) for split in splits}
        scores = self._pooled(splits, methods, scored)
        shown, truth = self._look(splits, methods)
        content = {
            **p.describe(),
            "cases": [s.name for s in scans],
            "methods": [m.name for m in scores.methods],
            "splits": [_split_line(s) for s in splits],
            "runs": [ladder.record(s, m) for s in splits for m in methods[s.name]],
            "results": [_result(s, m, q, scored) for s in splits for m in methods[s.name] for q in s.test],
            "comparison": compare(scores),
            "gains": gains(scores),
            "truth_error_mm": truth,
        }
        pictures: dict[str, Any] = {"pair": splits[0].test[0].id, "shown": shown}
        pictures["samples"] = {s.name: sample_slice(s.image) for s in scans[:N_SAMPLES]}
        timing = {m.name: float(np.mean(found)) for m in scores.methods if (found := scores.numbers(m, "seconds"))}
        return Findings(content, timing, pictures)

    def _say(self, message: str) -> None:
        self.context.tell(TrainProgress(self.protocol.name, message))

    def _methods(self, ladder: Ladder, split: Split) -> list[Method]:
        lists = self.context.folder / "lists" / self.protocol.name
        lists.mkdir(parents=True, exist_ok=True)
        write_pairs(lists / f"{split.name}-train.csv", split.train)
        write_pairs(lists / f"{split.name}-test.csv", split.test)
        self._say(f"{split.name}: {len(split.train)} training pairs, {len(split.test)} test pairs")
        return ladder.methods(split, self._say)

    def _score(self, split: Split, methods: Sequence[Method]) -> list[Outcome]:
        self._say(f"{split.name}: testing {len(methods)} methods")
        plan = [(f"{split.name}/{m.name}/{p.id}", m, p) for m in methods for p in split.test]
        with self.run_pairs:
            return self.run_pairs(plan)

    def _pooled(
        self,
        splits: Sequence[Split],
        methods: Mapping[str, Sequence[Method]],
        scored: Mapping[str, Sequence[Outcome]],
    ) -> Scores:
        """All splits as one table: a pair that is tested in two repetitions counts twice, for the same patients."""
        pairs: list[PairFiles] = []
        outcomes: dict[tuple[str, str], Outcome] = {}
        for split in splits:
            renamed = {p.id: replace(p, id=f"{split.name}/{p.id}") for p in split.test}
            pairs += renamed.values()
            plan = ((m, p) for m in methods[split.name] for p in split.test)
            for (m, p), outcome in zip(plan, scored[split.name], strict=True):
                outcomes[m.name, renamed[p.id].id] = outcome
        return Scores(tuple(pairs), tuple(methods[splits[0].name]), outcomes)

    def _look(self, splits: Sequence[Split], methods: Mapping[str, Sequence[Method]]) -> tuple[dict[str, Any], Any]:
        """Slices of the first test pair, and errors of known deformations on all of them."""
        known = self.protocol.plan is not None
        plan: list[tuple[str, Split, Method, PairFiles, bool]] = []
        for split in splits:
            for m in methods[split.name]:
                for i, p in enumerate(split.test):
                    picture = split is splits[0] and i == 0
                    if known or picture:
                        plan.append((f"look/{split.name}/{m.name}/{p.id}", split, m, p, picture))
        self._say(f"pictures{' and errors of the known deformation' if known else ''}: {len(plan)} registrations")
        hashes = self.run_pairs.hashes
        tasks = [(key, look_task(p, hashes(p), m, self.reading, picture=pic)) for key, _, m, p, pic in plan]
        c = self.context
        outcomes = run_tasks(
            tasks, look, workers=c.workers, scheduler=c.scheduler, store=c.store(self.protocol.name) / "tasks",
            on_progress=c.tell,
        )  # fmt: skip
        done = [(row, o.value) for row, o in zip(plan, outcomes, strict=True) if o.error is None]
        shown = {m.name: value["views"] for (_, _, m, _, picture), value in done if picture}
        return shown, _mean_errors([(m.name, value["error_mm"]) for (_, _, m, _, _), value in done]) if known else None


def _mean_errors(rows: Sequence[tuple[str, Mapping[str, Mapping[str, float]]]]) -> dict[str, dict[str, Any]]:
    """Mean over test pairs, by method and label, before and after, in millimetres."""
    out: dict[str, dict[str, Any]] = {}
    for name, labels in rows:
        for label, numbers in labels.items():
            cell = out.setdefault(name, {}).setdefault(label, {"before": [], "after": []})
            for when, value in numbers.items():
                cell[when].append(value)
    return {
        name: {c: {when: float(np.mean(v)) for when, v in cell.items()} for c, cell in sorted(labels.items())}
        for name, labels in out.items()
    }


def _split_line(split: Split) -> dict[str, Any]:
    return {
        "name": split.name,
        "fold": split.fold,
        "repetition": split.repetition,
        "train": [p.id for p in split.train],
        "test": [p.id for p in split.test],
    }


def _result(split: Split, method: Method, pair: PairFiles, scored: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """One registration of a test pair; seconds are left to ``timing``, so that the rest can be repeated."""
    key = f"{split.name}/{method.name}/{pair.id}"
    outcome = next(o for o in scored[split.name] if o.key == key)
    head = {"split": split.name, "id": pair.id, "group": pair.group, "method": method.name, "error": outcome.error}
    if outcome.error is not None:
        return head
    labels = {c: {name: row[name] for name in PER_LABEL} for c, row in outcome.value["labels"].items()}
    return {**head, "labels": labels, **{name: outcome.value[name] for name in PER_PAIR}}
