"""Training of a model from pairs with masks, end to end.

Every stage is a list of registrations run by `regweave.jobs.store`; `regweave.training.run` has the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regweave.config.choice import choose_settings
from regweave.config.settings import Settings, validate
from regweave.datasets.manifest import read_pairs
from regweave.io import require_absent
from regweave.io.disk.working_folder import clear, working_folder
from regweave.jobs.cluster import Cluster, require_cluster
from regweave.jobs.runner import Runner
from regweave.jobs.store import BatchProgress, worker_count
from regweave.model.model import Model, write_model
from regweave.pipeline.reading import Reading
from regweave.training.log import TrainProgress
from regweave.training.options import TrainOptions
from regweave.training.run import Training


def train(
    pairs: str | Path,
    output: str | Path,
    *,
    options: TrainOptions | None = None,
    preset: str = "default",
    config: str | Path | Settings | None = None,
    metrics: Sequence[str] | None = None,
    loss: str | None = None,
    workers: int | None = None,
    scheduler: str | Cluster | None = None,
    resume: bool = False,
    overwrite: bool = False,
    reading: Reading | None = None,
    on_progress: Callable[[TrainProgress | BatchProgress], None] | None = None,
) -> Model:
    """Learn weights from a list of pairs and write the model.

    Parameters
    ----------
    pairs : path
        List of pairs with both label maps; see `regweave.datasets.manifest`.
    output : path
        Model to write, when all is done. Until then finished registrations are kept in a folder beside it.
    options : TrainOptions, optional
        Method, structures, hyper-parameters, folds.
    preset, config : optional
        Settings of the registrations.
    metrics : sequence of str, optional
        Members, or metrics with their default options, instead of the bank of the settings.
    loss : str, optional
        Loss instead of that of the settings.
    workers, scheduler : optional
        Processes of this machine, or a Dask scheduler.
    resume : bool
        Continue after a run that was stopped; the model is the same, bit for bit.
    overwrite : bool
        Replace an older model.
    reading : Reading, optional
        How files are read.
    on_progress : callable, optional
        Called with a `TrainProgress` when a stage begins, and with a `BatchProgress` after every registration.
    """
    options, path = options or TrainOptions(), Path(output)
    options.check()
    n = worker_count(workers, scheduler)
    settings = training_settings(preset, config, metrics, loss)
    claim = require_absent(path, overwrite=overwrite)
    listed = read_pairs(pairs)
    require_cluster(scheduler)
    store = path.with_name(path.name + ".work")
    tell = on_progress or (lambda _: None)
    with (
        working_folder(store, "tasks", "a training that was stopped", resume=resume),
        Runner(reading or Reading(), workers, scheduler, store / "tasks", tell) as runner,
    ):
        model = Training(listed, settings, options, runner, store, tell, n).fit()
        with claim.writing(keep=True):
            write_model(path, model)
    clear(store, ("tasks", "models"))
    return model


def training_settings(
    preset: str, config: str | Path | Settings | None, metrics: Sequence[str] | None, loss: str | None
) -> Settings:
    """Return settings with the bank and the loss replaced where asked."""
    settings = choose_settings(preset, config, None, dict.fromkeys(metrics, 1.0) if metrics else None)
    if loss is None:
        return settings
    return validate({**settings.model_dump(), "loss": loss}, "the command line")
