from types import SimpleNamespace

import numpy as np
import pytest

from made_pairs import SAD, small_settings
from phantoms import make_phantom
from regweave.registration.align import Step
from regweave.registration.cpu import StepSearch
from regweave.report.viewer import on_image
from regweave.run import register as workflow
from regweave.run.check import node_evidence
from regweave.run.job import Job
from regweave.spatial.control_grid import ControlGrid
from regweave.types import Geometry, Solution, Terms, WeightTable

FINE = {"name": "fine", "metric": "ncc", "stage": "refine"}
BANK = [SAD, {"name": "mi", "metric": "mi", "stage": "levels"}, FINE]
SETTINGS = small_settings((64.0, 2, 1), (48.0, 1, 2), refine=1, banks={"mr": BANK})


def step_with(costs, shares) -> Step:
    geometry = Geometry((9, 9, 9), np.diag([2.0, 2.0, 2.0, 1.0]))
    grid = ControlGrid.cover(geometry, 8.0)
    offsets = (np.array([-0.1, 0.0, 0.1]), np.array([0.0]), np.array([0.0]))
    terms = Terms(costs, shares, grid.nodes, offsets)
    solution = Solution(np.zeros(grid.n_nodes, dtype=np.int32), 0.0, 0.0, 1)
    around = StepSearch(grid, None, (0, 5), None)
    scene = SimpleNamespace(geometry=geometry)
    return Step(0, 0, 8.0, grid.n_nodes, 3, 0.0, 0.0, 0.0, 1, {}, terms, solution, None, scene, None, around)


@pytest.mark.parametrize("per_label", [False, True])
def test_maps_against_loops(per_label):
    rng = np.random.default_rng(0)
    n_nodes, n_labels, n_members, n_classes = 27, 3, 2, 2
    costs = rng.random((n_members, n_nodes, n_labels)).astype(np.float32)
    shares = rng.random((n_nodes, n_labels, n_classes) if per_label else (n_nodes, n_classes)).astype(np.float32)
    weights = WeightTable(np.array([[0.2, 0.9], [0.8, 0.1]]), ("sad", "ncc"), (0, 5), 0.1)
    maps = node_evidence(step_with(costs, shares), weights, ("sad", "ncc"))
    corners = maps.geometry.points(np.array([[0.0, 0, 0], [2.0, 2, 2]]))
    np.testing.assert_allclose(corners, [[0.0] * 3, [16.0] * 3])
    for n in range(n_nodes):
        parts = np.zeros((n_members, n_labels))
        for m in range(n_members):
            for label in range(n_labels):
                s = shares[n, label] if per_label else shares[n]
                parts[m, label] = sum(s[c] * weights.matrix[m, c] for c in range(n_classes)) * costs[m, n, label]
        best, second, _ = sorted(parts.sum(axis=0))
        assert maps.confidence.ravel()[n] == pytest.approx(second - best, abs=1e-6)
        np.testing.assert_allclose(maps.influence.reshape(2, -1)[:, n], parts.std(axis=1), atol=1e-6)


def test_a_linear_function_of_position_is_interpolated_exactly():
    nodes = Geometry((4, 3, 3), np.array([[0.0, 3, 0, -1], [4, 0, 0, -2], [0, 0, 5, -3], [0, 0, 0, 1]]))
    image = Geometry((5, 6, 4), np.diag([1.0, 1.5, 2.0, 1.0]))
    f = np.array([0.3, -0.2, 0.1])
    at_nodes = nodes.points(np.moveaxis(np.indices(nodes.shape), 0, -1).astype(float)) @ f
    expected = image.points(np.moveaxis(np.indices(image.shape), 0, -1).astype(float)) @ f
    np.testing.assert_allclose(on_image(at_nodes.astype(np.float32), nodes, image), expected, atol=1e-5)


@pytest.fixture(scope="module")
def pair():
    return make_phantom(seed=2, shape=(24, 24, 24), spacing_mm=(8.0, 8.0, 8.0)).pair


def test_evidence_is_measured_only_when_asked_for_and_changes_nothing(pair, tmp_path):
    job = Job(fixed=pair.fixed, moving=pair.moving, config=SETTINGS)
    plain, kept = workflow.run(job, keep_view=False), workflow.run(job)
    assert plain.images.nodes is None
    assert kept.images.nodes is not None
    assert kept.images.nodes.members == ("sad", "mi")
    np.testing.assert_array_equal(plain.transform.field.data, kept.transform.field.data)
    plain.save(tmp_path / "plain")
    kept.save(tmp_path / "kept")
    assert not (tmp_path / "plain" / "view" / "nodes.npz").exists()
    assert (tmp_path / "kept" / "view" / "nodes.npz").is_file()
