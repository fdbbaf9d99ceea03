"""Latent SVM on the refinement's costs: a structure trusts the member that shows it, and the rest of W stays."""

from types import SimpleNamespace

import numpy as np
import pytest

from regweave.config.settings import validate
from regweave.io import write_image, write_labels
from regweave.jobs.table import PairFiles
from regweave.jobs.workers import Placement
from regweave.run.memory import Cache
from regweave.run.read import Reading
from regweave.training.columns import ColumnLearner
from regweave.training.options import TrainOptions
from regweave.training.refinement import RefinementSvm, as_level
from regweave.training.run import scan
from regweave.training.state import CandidateRunner, TrainingLog, TrainingState
from regweave.types import Geometry, LabelMap, Volume

CLASSES, N = (0, 1, 2), 24
BANK = [
    {"name": "coarse", "metric": "sad", "stage": "levels"},
    {"name": "low", "metric": "sad", "window": [0.0, 0.5], "support": 5, "stage": "refine"},
    {"name": "high", "metric": "sad", "window": [0.5, 1.0], "support": 5, "stage": "refine"},
    {"name": "shapes", "metric": "sad", "source": "structures", "stage": "refine", "weight": 0},
]
SETTINGS = validate(
    {
        "name": "small", "modality": "mr", "smoothness": 0.01, "banks": {"mr": BANK},
        "levels": [{"spacing_mm": 64.0, "steps": 1}, {"spacing_mm": 16.0, "voxels_per_spacing": 2.0, "steps": 1}],
        "refine": {"steps": 1, "smoothness": 0.1},
    },
    "the test",
)  # fmt: skip


def scan_of(seed: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Two blocks: the first differs from its surroundings below 0.5, the second above; each hides in the other window.

    Noise in the window that does not show a block is what a wrong member would follow.
    """
    rng = np.random.default_rng(seed)
    image, labels = np.full((N, N, N), 0.5), np.zeros((N, N, N), dtype=np.int32)
    for value, sign, x in ((1, -1, 3), (2, 1, 14)):
        part = slice(x - 2, x + 9)
        image[part] += -sign * 0.3 * rng.random((11, N, N))
        box = (slice(x, x + 7), slice(7 + shift, 16 + shift), slice(7, 16))
        image[box] = np.where(sign * (image[box] - 0.5) > 0, image[box], 0.5) + sign * 0.25
        labels[box] = value
    return image.clip(0, 1).astype(np.float32), labels


@pytest.fixture(scope="module")
def svm(tmp_path_factory) -> tuple[RefinementSvm, list[PairFiles]]:
    folder, geometry = tmp_path_factory.mktemp("pairs"), Geometry((N, N, N), np.diag([4.0, 4.0, 4.0, 1.0]))
    pairs = []
    for k in range(2):
        files = {}
        for name, shift in (("fixed", 0), ("moving", 1)):
            image, labels = scan_of(10 * k + shift, shift)
            files[name], files[f"{name}_labels"] = (folder / f"{k}{name}{end}.nii.gz" for end in ("", "_labels"))
            write_image(files[name], Volume(image, geometry))
            write_labels(files[f"{name}_labels"], LabelMap(labels, geometry))
        pairs.append(PairFiles(id=f"p{k}", group=f"g{k}", **files))
    log, reading = TrainingLog(lambda _: None), Reading()
    candidates = CandidateRunner(SimpleNamespace(reading=reading, placement=Placement()), SETTINGS, "all", log, None)
    schedule = SETTINGS.for_bank("mr")
    options = TrainOptions(refinement_learner="svm")
    state = TrainingState(
        options, log, Cache(100.0), 1, tuple(pairs), SETTINGS, candidates.run, scan=scan(pairs, reading), modality="mr",
        candidates=candidates,
    )  # fmt: skip
    learner = ColumnLearner.of(state)
    return RefinementSvm(learner, schedule.start_weights(0.01, CLASSES)), pairs


def test_each_structure_trusts_the_member_that_shows_it(svm):
    learn, pairs = svm
    found, trusted = learn(pairs)
    assert trusted["low"][1] > 1.4 * trusted["high"][1]
    assert trusted["high"][2] > 1.4 * trusted["low"][2]
    common = learn.common
    rows = common.rows(["coarse", "shapes"])
    np.testing.assert_array_equal(found.matrix[rows], common.matrix[rows])
    np.testing.assert_allclose(found.matrix.sum(axis=0), common.matrix.sum(axis=0))
    assert found.pairwise == common.pairwise
    learn, pairs = svm
    pair = learn._load(pairs[0])
    assert pair.initial_field is not None
    assert np.abs(pair.initial_field.data).max() > 0


def test_the_refinement_as_a_level():
    schedule = SETTINGS.for_bank("mr")
    weights = schedule.start_weights(0.01, CLASSES)
    found = as_level(schedule, weights)
    assert [m.name for m in found.bank] == ["low", "high"]
    assert {m.stage for m in found.bank} == {"both"}
    (level,) = found.levels
    assert (level.spacing_mm, level.shrink, level.voxels_per_spacing, level.steps) == (16.0, 1, None, 1)
    with_maps = weights.share_out({"low": 1.0, "high": 1.0, "shapes": 2.0})
    assert [m.name for m in as_level(schedule, with_maps).bank] == ["low", "high", "shapes"]
