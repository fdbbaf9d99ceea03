"""Methods that an experiment compares, each given the same training pairs; all calls to training are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regweave.config.settings import Settings
from regweave.io import atomic_path, sha256
from regweave.jobs.kept import Kept
from regweave.jobs.methods import Method, bank_of_list, baseline_methods, tune, tuned_as
from regweave.jobs.placement import Placement
from regweave.jobs.program import program_hash
from regweave.jobs.runner import Runner
from regweave.jobs.store import BatchProgress, content_hash, worker_count
from regweave.measures.statistics import paired_bootstrap
from regweave.model.model import Model
from regweave.pipeline.reading import Reading
from regweave.study.comparison import Scores
from regweave.study.reproduce.options import PAPER_METHOD, ReproduceOptions
from regweave.study.reproduce.protocols import Protocol, Split
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.run import fit_model

WORK = "work"
"""Folder for finished work; a folder without it is not one of ours."""
RECORDED = ("gates", "hyper", "share", "left_out_gain", "registrations", "inferences")
"""What the record of an experiment keeps of the training record of a model."""


KEPT_MB = 1500.0
"""Memory for trajectories and fits of a split."""

Tell = Callable[[TrainProgress | BatchProgress], None]


@dataclass(frozen=True)
class Context:
    """Shared state of all experiments of a run.

    Parameters
    ----------
    data, folder : path
        Data folder, and folder of the run.
    settings : Settings
        Settings of all registrations.
    options : ReproduceOptions
        How much runs, and where.
    tell : callable
        Takes progress.
    placement : Placement
        Devices of the registrations.
    """

    data: Path
    folder: Path
    settings: Settings
    options: ReproduceOptions
    tell: Tell
    placement: Placement

    def starting(self, initial: str | None) -> Context:
        """Return the context of an experiment whose registrations have their own start."""
        return (
            self if initial is None else replace(self, settings=self.settings.model_copy(update={"initial": initial}))
        )

    def runner(self, reading: Reading, name: str) -> Runner:
        """Return what runs the registrations of an experiment and keeps those that are done."""
        o = self.options
        return Runner(reading, o.workers, o.scheduler, self.store(name), self.tell, self.placement)

    def store(self, name: str) -> Path:
        """Return the folder for the finished registrations of an experiment."""
        return self.folder / WORK / name / "tasks"


@dataclass(frozen=True)
class Ladder:
    """Baselines and models of one experiment; one runner for all, whose processes keep what they prepared."""

    protocol: Protocol
    context: Context
    run: Runner

    def methods(self, split: Split, say: Callable[[str], None]) -> list[Method]:
        """Tune and train on the training pairs of a split: uniform, each member alone, and the models."""
        options, models = self.context.options.ladder(), {}
        kept = Kept(KEPT_MB)  # trajectories and fits that models of one split have in common
        for i, (name, wanted) in enumerate(options.items(), start=1):
            say(f"{split.name}: training {name} ({i} of {len(options)})")
            models[name] = self._model(split, name, wanted, kept)
        modality = bank_of_list(self.context.settings, split.train, self.run.reading)
        uniform, *singles = baseline_methods(self.context.settings, modality)
        # Training has tuned the uniform bank already, on these pairs and with the values of every baseline.
        tuned_before = models[PAPER_METHOD].training.smoothness
        assert tuned_before is not None
        uniform = tuned_as(uniform, tuned_before)
        say(f"{split.name}: tuning the smoothness of {len(singles)} single metrics")
        tuned = tune(singles, split.train, lambda plan: self.run(plan, dice_only=True))
        return [*tuned, uniform, *(self._method(split, name, model) for name, model in models.items())]

    def record(self, split: Split, method: Method) -> dict[str, Any]:
        """Say what was run: smoothness and its curve; for a model, weights, gates and the cost of learning."""
        line: dict[str, Any] = {"split": split.name, "method": method.name, "smoothness": method.settings.smoothness}
        if method.model is None:
            curve = [{"smoothness": s, "mean_dice": d} for s, d in method.tuning.items()]
            return {**line, "tuning": curve}
        model = Model.load(method.model[0])
        w, record = model.weights, model.training.to_json()
        return {
            **line,
            "smoothness": w.pairwise,
            "weights": {"members": list(w.members), "classes": list(w.classes), "matrix": w.matrix.tolist()},
            **{key: record[key] for key in RECORDED},
            "sha256": method.model[1],
        }

    def _path(self, split: Split, name: str) -> Path:
        return self.context.folder / "models" / self.protocol.name / split.name / f"{name}.json"

    def _method(self, split: Split, name: str, model: Model) -> Method:
        path = self._path(split, name)
        return Method(f"model:{name}", model.settings, (path, sha256(path)))

    def _model(self, split: Split, name: str, options: TrainOptions, kept: Kept) -> Model:
        """Train a model, or take the one that an earlier run wrote from the same files, settings and code."""
        path, context = self._path(split, name), self.context
        chosen = replace(options, classes=self.run.reading.classes, seed=context.options.seed)
        files = [[p.id, self.run.hashes(p)] for p in split.train]
        key = content_hash([program_hash(), chosen, context.settings, files, context.placement.word])
        mark = path.with_suffix(".key")
        if path.is_file() and mark.is_file() and mark.read_text(encoding="ascii") == f"{key} {sha256(path)}":
            return Model.load(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        n = worker_count(context.options.workers, context.options.scheduler)
        # One store of registrations for all models: the tuning of the uniform bank runs once.
        model = fit_model(split.train, context.settings, chosen, self.run, self._told, n, kept)
        model.save(path)
        with atomic_path(mark) as part:
            part.write_text(f"{key} {sha256(path)}", encoding="ascii")
        return model

    def _told(self, progress: TrainProgress) -> None:
        self.context.tell(replace(progress, stage=f"{self.protocol.name} {progress.stage}"))


def gains(scores: Scores) -> list[dict[str, Any]]:
    """Gain of the paper's method over the mean of the single metrics, the best of them, and the uniform bank.

    The first is the last column of the paper's table. The best single metric is the one with the largest mean on the
    test pairs themselves, which favours it.
    """
    by_name = {m.name: m for m in scores.methods}
    method = by_name[f"model:{PAPER_METHOD}"]
    singles = [m for m in scores.methods if m.name.startswith("single:")]
    groups = [p.group for p in scores.pairs]
    out = []
    for label in (None, *scores.labels()):
        mine = scores.dice(method, label)
        alone = {m.name: scores.dice(m, label) for m in singles}
        best = max(alone, key=lambda name: float(np.nanmean(alone[name])))
        rivals: Mapping[str, Any] = {
            "mean of single metrics": np.mean(list(alone.values()), axis=0),
            best: alone[best],
            "uniform": scores.dice(by_name["uniform"], label),
        }
        for rival, values in rivals.items():
            interval = paired_bootstrap(mine - values, groups)
            numbers = {k: None if np.isnan(v) else v for k, v in interval._asdict().items()}
            out.append({"label": label, "over": rival, **numbers, "best_single": rival == best})
    return out
