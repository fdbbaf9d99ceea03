"""The seam of the devices: both loops run on another implementation and give the same answer."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from phantoms import make_phantom
from regweave import register
from regweave.config.settings import Refine, Settings
from regweave.errors import UsageError
from regweave.registration import devices
from regweave.registration.align import align
from regweave.registration.refine import refine
from regweave.types import Volume, WeightTable

SPEC = importlib.util.spec_from_file_location("reference_device", Path(__file__).with_name("reference_device.py"))
assert SPEC is not None
assert SPEC.loader is not None
reference_device = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = reference_device  # dataclasses look their module up
SPEC.loader.exec_module(reference_device)
ReferenceDevice, Held = reference_device.ReferenceDevice, reference_device.Held

BANK = [{"name": name, "metric": name} for name in ("sad", "ncc", "mi", "gradient")]
SCHEDULE = Settings.model_validate(
    {
        "name": "test",
        "modality": "mr",
        "smoothness": 0.1,
        "levels": [{"spacing_mm": 48.0, "shrink": 2, "steps": 2}, {"spacing_mm": 30.0, "steps": 2}],
        "banks": {"mr": BANK},
    }
)
WEIGHTS = WeightTable.constant({m["name"]: 1.0 for m in BANK}, 0.1)
SETTINGS = Refine(steps=6, max_voxels=1500, start_sigma=0.1)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=2, shape=(20, 18, 16), spacing_mm=(8.0, 9.0, 10.0)).pair


@pytest.fixture(scope="module")
def aligned(pair):
    """Alignments by the host and by the reference, with their steps and what the reference was sent."""
    out = []
    for device in (devices.get("cpu"), ReferenceDevice()):
        steps = []
        out.append((align(pair, WEIGHTS, SCHEDULE, on_step=steps.append, device=device), steps, device))
    return out


def test_levels_agree(aligned):
    (host, by_host, _), (found, by_reference, _) = aligned
    assert np.abs(host.displacement).max() > 1
    np.testing.assert_allclose(found.displacement, host.displacement, atol=2e-3)
    for a, b in zip(by_host, by_reference, strict=True):
        np.testing.assert_allclose(b.terms.costs, a.terms.costs, atol=5e-3)
        assert np.array_equal(b.solution.labels, a.solution.labels)
        assert b.solution.energy == pytest.approx(a.solution.energy, rel=1e-3)
    for a, b in zip(host.steps, found.steps, strict=True):
        assert (a.level, a.step, a.n_nodes, a.n_labels) == (b.level, b.step, b.n_nodes, b.n_labels)


def test_equal_terms_give_equal_labels(aligned):
    (_, by_host, host), (_, _, reference) = aligned
    for step in by_host:
        ours = host.minimize(step.terms, WEIGHTS, SCHEDULE)
        theirs = reference.minimize(Held(step.terms), WEIGHTS, SCHEDULE)
        assert np.array_equal(ours.labels, reference.download(theirs.labels))
        assert ours.lower_bound == theirs.lower_bound
    _, (_, steps, reference) = aligned
    unknown = [m["metric"] for m in BANK if m["metric"] not in reference_device.METRICS]
    sent = [shape for shape in reference.uploads if len(shape) == 2]
    assert sent == [step.terms.costs.shape[1:] for step in steps for _ in unknown]


def test_refinement_agrees(pair, aligned):
    start = aligned[0][0].displacement
    reference = ReferenceDevice()
    host, found = (refine(pair, start, WEIGHTS, SCHEDULE, SETTINGS, device=d) for d in (devices.get("cpu"), reference))
    assert np.abs(host.displacement - start).max() > 0.2
    np.testing.assert_allclose(found.displacement, host.displacement, atol=2e-3)
    for a, b in zip(host.steps, found.steps, strict=True):
        assert b.data == pytest.approx(a.data, rel=1e-3)
        assert b.smoothness == pytest.approx(a.smoothness, rel=1e-2, abs=1e-3)
    assert host.steps[-1].data < host.steps[0].data
    np.testing.assert_allclose(found.knots.data, host.knots.data, atol=0.02)


def test_the_record_names_the_device(pair, tmp_path):
    images = (Volume(image.data, image.geometry) for image in (pair.fixed, pair.moving))
    register(*images, preset="paper", device="cpu").save(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert record["provenance"]["device"] == "cpu"
    with pytest.raises(UsageError, match=r"E173.*'tpu'.*cpu"):
        register(pair.fixed, pair.moving, device="tpu")
