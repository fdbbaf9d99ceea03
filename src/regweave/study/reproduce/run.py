"""Run of the paper's experiments: scans, pairs, training, the ladder of methods, and all numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.config.choice import choose_settings
from regweave.datasets.manifest import PairFiles, write_pairs
from regweave.errors import UsageError
from regweave.io import owned_path
from regweave.io.disk.records import this_program
from regweave.io.disk.working_folder import working_folder
from regweave.jobs.cluster import require_cluster
from regweave.jobs.methods import Method
from regweave.jobs.store import Outcome, run_tasks
from regweave.pipeline.reading import Reading
from regweave.study.comparison import Scores, compare
from regweave.study.reproduce.cost import counted
from regweave.study.reproduce.data import TRUTH, all_scans, find_scans
from regweave.study.reproduce.experiments import EXPERIMENTS
from regweave.study.reproduce.ladder import WORK, Context, Ladder, Tell, gains
from regweave.study.reproduce.options import ReproduceOptions
from regweave.study.reproduce.pictures import sample_slice
from regweave.study.reproduce.protocols import Protocol, Split
from regweave.study.reproduce.trial import PairTask, run_pair
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
    options: ReproduceOptions | None = None,
    *,
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
    options : ReproduceOptions, optional
        Settings, how much runs, and where.
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
    options = options or ReproduceOptions()
    if experiment not in EXPERIMENTS:
        raise UsageError("E192", f"unknown experiment {experiment!r}", f"available: {', '.join(EXPERIMENTS)}")
    placement = options.check()
    settings = choose_settings(options.preset, options.config, None, None)
    protocols = [
        (p.quick() if options.quick else p).at_most(options.max_pairs, options.max_folds)
        for p in EXPERIMENTS[experiment]
    ]
    for protocol in protocols:
        find_scans(protocol, Path(data))
    require_cluster(options.scheduler)
    folder, tell = Path(output), on_progress or (lambda _: None)
    context = Context(Path(data).absolute(), folder.absolute(), settings, options, tell, placement)
    content = _head(experiment, context)
    with working_folder(folder, WORK, "such experiments", resume=resume):
        pictures: dict[str, Any] = {}
        for protocol in protocols:
            with counted(folder, protocol.name) if options.scheduler is None else nullcontext():
                found = Experiment(protocol, context.starting(protocol.initial)).run()
            content["experiments"].append(found.content)
            content["timing"][protocol.name] = found.timing
            pictures[protocol.name] = found.pictures
            _write(folder / RESULT, content)
            _write(folder / PICTURES, pictures)
            if on_experiment is not None:
                on_experiment(folder)
    return content


def _head(experiment: str, context: Context) -> dict[str, Any]:
    options = context.options
    return {
        "schema": SCHEMA,
        "experiment": experiment,
        "quick": options.quick,
        "seed": options.seed,
        "max_pairs": options.max_pairs,
        "max_folds": options.max_folds,
        "models": list(options.ladder()),
        **({} if context.placement.word == "cpu" else {"device": context.placement.word}),
        "settings": context.settings.model_dump(mode="json"),
        "experiments": [],
        "timing": {},
        "provenance": this_program(),
    }


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
        self.runner = context.runner(self.reading, protocol.name)

    def run(self) -> Findings:
        """Run it all; what an earlier run finished is taken from disk."""
        p, c = self.protocol, self.context
        scans = all_scans(p, c.data, c.folder / "scans" / p.name, c.options.seed, self._say)
        splits = p.splits(scans, c.options.seed)
        with self.runner:
            ladder = Ladder(p, c, self.runner)
            methods = {split.name: self._methods(ladder, split) for split in splits}
            tested = {split.name: self._test(split, methods[split.name], splits[0]) for split in splits}
        scores = self._pooled(splits, methods, tested)
        content = {
            **p.describe(),
            "cases": [s.name for s in scans],
            "cases_found": len(find_scans(p, c.data)),
            "methods": [m.name for m in scores.methods],
            "splits": [_split_line(s) for s in splits],
            "runs": [ladder.record(s, m) for s in splits for m in methods[s.name]],
            "results": [row for s in splits for row in _results(s, methods[s.name], tested[s.name])],
            "comparison": compare(scores),
            "gains": gains(scores),
            "truth_error_mm": None if p.plan is None else _mean_errors(scores),
        }
        pictures: dict[str, Any] = {"pair": splits[0].test[0].id, "shown": _shown(scores)}
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

    def _test(self, split: Split, methods: Sequence[Method], first: Split) -> list[Outcome]:
        """Test every method on every pair; the first pair of the first split is also looked at.

        The name of a task has no split: what two draws tuned alike is registered once.
        """
        self._say(f"{split.name}: testing {len(methods)} methods")
        tasks = [
            (f"test/{m.name}/{p.id}", self._task(m, p, picture=split is first and p is split.test[0]))
            for m in methods
            for p in split.test
        ]
        c = self.context
        return run_tasks(
            tasks, run_pair, workers=self.runner.team, scheduler=c.options.scheduler, store=c.store(self.protocol.name),
            unused=("learning", "training"), on_progress=c.tell,
        )  # fmt: skip

    def _task(self, method: Method, pair: PairFiles, *, picture: bool) -> PairTask:
        truths = None
        if self.protocol.plan is not None:
            fixed, moving = (path.parent / TRUTH for path in (pair.fixed, pair.moving))
            truths = (str(fixed) if fixed.is_file() else None, str(moving) if moving.is_file() else None)
        return PairTask(
            pair.files, self.runner.hashes(pair), self.reading, method.settings, method.model, truths, picture,
            self.context.placement.word,
        )  # fmt: skip

    def _pooled(
        self,
        splits: Sequence[Split],
        methods: Mapping[str, Sequence[Method]],
        tested: Mapping[str, Sequence[Outcome]],
    ) -> Scores:
        """All splits as one table: a pair that is tested in two repetitions counts twice, for the same patients."""
        pairs: list[PairFiles] = []
        outcomes: dict[tuple[str, str], Outcome] = {}
        for split in splits:
            renamed = {p.id: replace(p, id=f"{split.name}/{p.id}") for p in split.test}
            pairs += renamed.values()
            plan = ((m, p) for m in methods[split.name] for p in split.test)
            for (m, p), outcome in zip(plan, tested[split.name], strict=True):
                outcomes[m.name, renamed[p.id].id] = outcome
        return Scores(tuple(pairs), tuple(methods[splits[0].name]), outcomes)


def _shown(scores: Scores) -> dict[str, Any]:
    """Slices of the pair that was looked at, by method."""
    found = {m.name: o.value for (m, o) in _in_order(scores) if o.error is None and o.value["views"]}
    return {name: value["views"] for name, value in found.items()}


def _in_order(scores: Scores) -> list[tuple[Method, Outcome]]:
    return [(m, scores.outcomes[m.name, p.id]) for m in scores.methods for p in scores.pairs]


def _mean_errors(scores: Scores) -> dict[str, dict[str, Any]]:
    """Mean distance to the known deformation over test pairs, by method and label, before and after, in mm."""
    out: dict[str, dict[str, Any]] = {}
    for method, outcome in _in_order(scores):
        for label, numbers in {} if outcome.error is not None else outcome.value["error_mm"].items():
            cell = out.setdefault(method.name, {}).setdefault(label, {"before": [], "after": []})
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


def _results(split: Split, methods: Sequence[Method], tested: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Registrations of the test pairs; seconds are left to ``timing``, so that the rest can be repeated."""
    plan = [(m, p) for m in methods for p in split.test]
    for (m, p), outcome in zip(plan, tested, strict=True):
        head = {"split": split.name, "id": p.id, "group": p.group, "method": m.name, "error": outcome.error}
        if outcome.error is not None:
            yield head
            continue
        # Here 'before' is after the affine start, with which every method begins.
        rows = {c: {**row, "dice_before": row["dice_start"]} for c, row in outcome.value["labels"].items()}
        labels = {c: {name: row[name] for name in PER_LABEL} for c, row in rows.items()}
        yield {**head, "labels": labels, **{name: outcome.value[name] for name in PER_PAIR}}
