"""The share of the machine that a run takes, and the forecast of it."""

import numpy as np
import pytest

from phantoms import make_phantom
from regweave.config.settings import Settings, preset, preset_names
from regweave.errors import ResourceError, UsageError
from regweave.registration.align import align
from regweave.run import memory, memory as machine
from regweave.spatial.control_grid import ControlGrid
from regweave.spatial.voxels import shrink_geometry
from regweave.types import Geometry, WeightTable


def test_threads_as_asked_or_as_the_scheduler_and_the_container_say(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "5")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert machine.allowed_threads(7) == 7
    assert machine.allowed_threads() == 5
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    assert machine.allowed_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert machine.allowed_threads() == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert machine.allowed_threads() >= 1
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine.Path, "read_text", lambda *_, **__: "150000 100000")
    assert machine.allowed_threads() == 1


def test_a_number_of_threads_that_is_none_is_refused(monkeypatch):
    for bad in ["many", "0", "-2", "9999999999", "\N{SUPERSCRIPT TWO}", "1.5", ",", "1025", "9" * 5000]:
        monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
        monkeypatch.setenv("OMP_NUM_THREADS", bad)
        with pytest.raises(UsageError, match=r"E186: OMP_NUM_THREADS is .*unset the variable"):
            machine.allowed_threads()
    for bad in [0, -1, 1025, 9999999999, 1.5]:
        with pytest.raises(UsageError, match=r"E186: --threads is .*from 1 to 1024"):
            machine.allowed_threads(bad)


def test_forecast_counts_nodes_and_labels_as_the_run_does():
    for name in preset_names():
        pair = make_phantom(shape=(32, 30, 28), spacing_mm=(6.0, 6.0, 7.0)).pair
        settings = preset(name)
        found = memory.forecast(pair.fixed.geometry, pair.moving.geometry, settings, "mr", probe=False)
        schedule = settings.for_bank("mr")
        assert found.n_members == len(schedule.for_levels().bank)
        assert found.refine_steps == settings.refine.steps
        assert np.isnan(found.seconds)
        one_step = Settings.model_validate(
            {**settings.model_dump(), "levels": [{**v.model_dump(), "steps": 1} for v in settings.levels]}
        ).for_bank("mr")
        seen = []
        weights = {m.name: float(m.source == "image") for m in schedule.bank}
        align(pair, WeightTable.constant(weights, 0.1), one_step, on_step=seen.append)
        for size, step, level in zip(found.sizes, seen, schedule.levels_for(pair.fixed.geometry), strict=True):
            assert size.n_nodes == int(np.prod(step.terms.shape))
            assert size.n_labels == step.terms.costs.shape[2]
            assert size.steps == level.steps
            geometry = shrink_geometry(pair.fixed.geometry, level.factors(pair.fixed.geometry))
            assert size.shape == geometry.shape
            assert ControlGrid.cover(geometry, level.spacing_mm).nodes == step.terms.shape


def test_forecast_grows_with_the_image_and_what_cannot_fit_is_refused(monkeypatch):
    settings = preset("default")
    grids = [Geometry((n, n, n), np.diag([2.0, 2.0, 2.0, 1.0])) for n in (64, 128, 256)]
    found = [memory.forecast(g, g, settings, "ct", probe=False).peak_memory_mb for g in grids]
    assert found[0] < found[1] < found[2]
    assert found[2] > 256**3 * 100 / 2**20
    g = Geometry((64, 64, 64), np.diag([4.0, 4.0, 4.0, 1.0]))
    memory.check_memory(g, g, preset("default"), "mr")
    monkeypatch.setattr(memory, "physical_memory_mb", lambda: 100.0)
    with pytest.raises(ResourceError, match=r"E140.*needs about \d+ MB and the machine has 100 MB") as caught:
        memory.check_memory(g, g, preset("default"), "mr")
    assert caught.value.exit_status == 4
