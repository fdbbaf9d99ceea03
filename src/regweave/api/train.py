"""Training of a model from pairs with labels, with the words of the command line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from regweave.config.presets import Metrics
from regweave.config.settings import Settings
from regweave.jobs.cluster import Cluster
from regweave.jobs.table import Pairs
from regweave.model.model import Model
from regweave.progress import BatchProgress, TrainingBar, TrainProgress
from regweave.run.read import Reading, ReadingWords
from regweave.training import run
from regweave.training.options import TrainOptions

OPTIONS = {f.name for f in fields(TrainOptions)}
READING = set(ReadingWords.__annotations__) - OPTIONS


def train(
    pairs: Pairs,
    output: str | Path | None = None,
    *,
    preset: str = "default",
    config: str | Path | Settings | None = None,
    metrics: Metrics | None = None,
    loss: str | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    on_progress: Callable[[TrainProgress | BatchProgress], None] | None = None,
    **words: Any,
) -> Model:
    """Learn from masks how much each structure trusts each metric.

    Parameters
    ----------
    pairs : path, table, or sequence
        Pairs with both label maps: a CSV file, a pandas table, rows by column, or tuples of fixed image, moving image,
        fixed labels and moving labels, as files or in memory.
    output : path, optional
        Model to write, when all is done. Until then finished registrations are kept in a folder beside it. Without it
        nothing is left on disk.
    preset, config : optional
        Settings of the registrations.
    metrics : mapping or sequence, optional
        Members, or metrics with their default options, instead of the bank of the settings: names, "name=weight", or
        weights by name.
    loss : str, optional
        Loss on masks instead of that of the settings.
    workers, scheduler : optional
        Processes of this machine, or a Dask scheduler.
    device : str, optional
        What registers, as in `regweave.register`; ``cuda:0,1`` for several GPUs.
    resume : bool
        Continue after a run that was stopped, whose pairs were files; the model is the same, bit for bit.
    overwrite : bool
        Replace an older model.
    progress : bool
        Show a bar on a terminal and in a notebook, and lines on standard error elsewhere.
    on_progress : callable, optional
        Called when a stage begins, and after every registration, in place of the bar.
    **words
        Fields of the training: ``method``, ``classes``, ``withhold``, ``C``, ``alpha``, ``eta``, ``epsilon``,
        ``rounds``, ``signed``, ``levels``, ``folds``, ``max_pairs``, ``tune_pairs``, ``judge_pairs``,
        ``max_memory_mb``, ``refinement_learner``, ``structure_start``, ``gate``, ``seed``, ``predictor``,
        ``predictor_options``; and how files are read,
        as in `regweave.register`.

    Returns
    -------
    Model
        ``save`` writes it, ``register(…, model=…)`` uses it.
    """
    unknown = sorted(words.keys() - OPTIONS - READING)
    if unknown:
        known = sorted(OPTIONS | READING)
        near = difflib.get_close_matches(unknown[0], [*inspect.signature(train).parameters, *known], n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        listed = ", ".join(known)
        raise TypeError(f"train() has no argument {', '.join(unknown)}; {guess}known besides the named ones: {listed}")
    with TrainingBar(lines=True, shown=progress and on_progress is None) as bar:
        return run.train(
            pairs, output, preset=preset, config=config, metrics=metrics, loss=loss, workers=workers,
            scheduler=scheduler, device=device, resume=resume, overwrite=overwrite, on_progress=on_progress or bar,
            options=TrainOptions(**{name: value for name, value in words.items() if name in OPTIONS}),
            reading=Reading(**{name: value for name, value in words.items() if name in READING}),
        )  # fmt: skip
